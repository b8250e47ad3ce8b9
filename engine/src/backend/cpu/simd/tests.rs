//! Every instruction set against the portable one, bit for bit.

use half::{bf16, f16};

use super::{Kernel, LANES, Level, Simd};

/// Numbers of many sizes, the same each time.
fn numbers(seed: u32, spread: f32) -> [f32; LANES] {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    std::array::from_fn(|_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state as f32 / u32::MAX as f32 - 0.5) * spread
    })
}

/// What the operations give for some operands, as bits.
struct Everything(u32);

impl Kernel for Everything {
    type Output = Vec<[u32; LANES]>;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Self::Output {
        let [a, b, c] = [0, 1, 2].map(|i| numbers(3 * self.0 + i, 40.0));
        let (x, y, z) = (simd.load(&a), simd.load(&b), simd.load(&c));
        let words: [u16; 2 * LANES] = std::array::from_fn(|i| (a[i / 2].to_bits() >> (i % 2 * 16)) as u16);
        let words = simd.load_words(&words);
        let signed = [a[0].to_bits() as i16, b[0].to_bits() as i16];
        let extremes = simd.load_words(&[0xffff; 2 * LANES]);
        let start = simd.splat_int(-7);
        let whole = [
            simd.dot(start, simd.bytes::<0>(words), &signed),
            simd.add_int(
                simd.splat_int(5),
                simd.dot(start, simd.bytes::<0>(words), &signed),
            ),
            simd.dot(start, simd.bytes::<8>(words), &signed),
            simd.dot(start, simd.bytes::<0>(extremes), &[i16::MIN; 2]),
            simd.dot(start, simd.bytes::<8>(extremes), &[i16::MAX; 2]),
            simd.dot(start, simd.nibbles::<0>(words), &signed),
            simd.dot(start, simd.nibbles::<4>(words), &signed),
            simd.dot(start, simd.nibbles::<8>(words), &signed),
            simd.dot(start, simd.nibbles::<12>(words), &signed),
        ];
        let results = [
            simd.splat(a[0]),
            simd.load_bf16(&a.map(bf16::from_f32)),
            simd.load_f16(&a.map(f16::from_f32)),
            simd.load_u8(&a.map(|a| a.to_bits() as u8)),
            simd.add(x, y),
            simd.sub(x, y),
            simd.mul(x, y),
            simd.div(x, y),
            simd.fma(x, y, z),
            simd.max(x, y),
            simd.min(x, y),
            simd.exp(x),
            simd.exp(simd.mul(x, simd.splat(10.0))),
            simd.tanh(x),
            simd.splat(simd.sum(x)),
            simd.splat(simd.greatest(x)),
        ];
        results
            .into_iter()
            .chain(whole.map(|whole| simd.to_f32(whole)))
            .map(|result| {
                let mut lanes = [0.0; LANES];
                simd.store(result, &mut lanes);
                lanes.map(f32::to_bits)
            })
            .collect()
    }
}

#[test]
fn every_level_gives_the_same_bits() {
    let levels = Level::all();
    for seed in 0..2000 {
        let portable = levels[0].run(Everything(seed));
        for level in &levels[1..] {
            let got = level.run(Everything(seed));
            for (operation, (got, portable)) in got.iter().zip(&portable).enumerate() {
                assert_eq!(
                    got,
                    portable,
                    "operation {operation}, {}, seed {seed}",
                    level.name()
                );
            }
        }
    }
}

struct Functions(f32);

impl Kernel for Functions {
    type Output = [f32; 2];

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Self::Output {
        let x = simd.splat(self.0);
        [simd.exp(x), simd.tanh(x)].map(|result| simd.greatest(result))
    }
}

/// Against the standard library in `f64`.
#[test]
fn functions_are_right() {
    for step in -8700..8800 {
        let x = step as f32 / 100.0;
        let [exp, tanh] = Level::all()[0].run(Functions(x));
        let expected = f64::from(x).exp();
        assert!(
            (f64::from(exp) / expected - 1.0).abs() < 4e-7,
            "exp({x}) = {exp}, not {expected}"
        );
        let expected = f64::from(x).tanh();
        assert!(
            (f64::from(tanh) - expected).abs() < 3e-7,
            "tanh({x}) = {tanh}, not {expected}"
        );
    }
    assert_eq!(Level::all()[0].run(Functions(f32::NEG_INFINITY))[1], -1.0);
}

/// AVX512-BF16 rounds and flushes otherwise; two products of eight bits each are near all the same.
#[test]
fn pairs_are_near() {
    struct Pairs([[bf16; 2]; LANES]);
    impl Kernel for Pairs {
        type Output = [f32; LANES];
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Self::Output {
            let x = [bf16::from_f32(1.5), bf16::from_f32(-0.375)];
            let mut lanes = [0.0; LANES];
            simd.store(simd.pairs(simd.splat(0.25), &self.0, x), &mut lanes);
            lanes
        }
    }
    for seed in 0..500 {
        let weights: [[bf16; 2]; LANES] = std::array::from_fn(|i| {
            [numbers(seed, 4.0)[i], numbers(seed + 1000, 4.0)[i]].map(bf16::from_f32)
        });
        for level in Level::all() {
            for (got, weights) in level.run(Pairs(weights)).iter().zip(weights) {
                let expected = 0.25 + 1.5 * weights[0].to_f32() - 0.375 * weights[1].to_f32();
                assert!(
                    (got - expected).abs() < 2e-6,
                    "{}: {got}, not {expected}",
                    level.name()
                );
            }
        }
    }
}
