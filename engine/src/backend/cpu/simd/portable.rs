//! Arrays: what any machine can do, and what the others are tested against.

use half::{bf16, f16};

use super::{LANES, Simd};

/// No instructions in particular.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Portable;

#[inline(always)]
fn each<T: Copy>(f: impl Fn(usize) -> T) -> [T; LANES] {
    std::array::from_fn(f)
}

impl Simd for Portable {
    type F = [f32; LANES];
    type I = [i32; LANES];
    type W = [u16; 2 * LANES];

    const ROWS: usize = 2;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [x; LANES]
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::F {
        *from
    }
    #[inline(always)]
    fn store(self, x: Self::F, to: &mut [f32; LANES]) {
        *to = x;
    }
    #[inline(always)]
    fn load_bf16(self, from: &[bf16; LANES]) -> Self::F {
        each(|i| f32::from_bits(u32::from(from[i].to_bits()) << 16))
    }
    #[inline(always)]
    fn load_f16(self, from: &[f16; LANES]) -> Self::F {
        each(|i| from[i].to_f32())
    }
    #[inline(always)]
    fn load_u8(self, from: &[u8; LANES]) -> Self::F {
        each(|i| f32::from(from[i]))
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        each(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        each(|i| a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        each(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        each(|i| a[i] / b[i])
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        each(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        each(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        each(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn power_of_two(self, shifted: Self::F) -> Self::F {
        each(|i| f32::from_bits((shifted[i].to_bits() << 23).wrapping_add(127 << 23)))
    }
    #[inline(always)]
    fn splat_int(self, x: i32) -> Self::I {
        [x; LANES]
    }
    #[inline(always)]
    fn add_int(self, a: Self::I, b: Self::I) -> Self::I {
        each(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn to_f32(self, x: Self::I) -> Self::F {
        each(|i| x[i] as f32)
    }
    #[inline(always)]
    fn load_words(self, from: &[u16; 2 * LANES]) -> Self::W {
        *from
    }
    #[inline(always)]
    fn nibbles<const BIT: u32>(self, x: Self::W) -> Self::W {
        x.map(|word| word >> BIT & 15)
    }
    #[inline(always)]
    fn bytes<const BIT: u32>(self, x: Self::W) -> Self::W {
        x.map(|word| word >> BIT & 255)
    }
    #[inline(always)]
    fn dot(self, sums: Self::I, weights: Self::W, x: &[i16; 2]) -> Self::I {
        each(|i| {
            let [first, second] = [0, 1].map(|j| i32::from(weights[2 * i + j]) * i32::from(x[j]));
            sums[i] + first + second
        })
    }
    #[inline(always)]
    fn prefetch<T>(self, _: *const T) {}
    #[inline(always)]
    fn pairs(self, sums: Self::F, weights: &[[bf16; 2]; LANES], x: [bf16; 2]) -> Self::F {
        each(|i| {
            let [first, second] = [0, 1].map(|j| (weights[i][j].to_f32(), x[j].to_f32()));
            first.0.mul_add(first.1, second.0.mul_add(second.1, sums[i]))
        })
    }
}
