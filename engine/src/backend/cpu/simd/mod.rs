//! Sixteen numbers at a time, whatever the machine has for it.
//!
//! Kernels are written once, over [`Simd`], and run as they are for the best instruction set there is ([`Level`]). All
//! of them use fused multiplication and addition and add lanes up in the same order, so **every level gives the same
//! bits**; the tests hold them to that. (The products of `bf16` pairs of AVX512-BF16, [`Simd::pairs`], are the
//! exception.)

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use half::{bf16, f16};

/// Lanes of a vector.
pub(super) const LANES: usize = 16;

/// An instruction set that kernels can be run with.
///
/// A value of an implementing type is the proof that the machine has the instructions: only [`Level::detect`] and
/// [`Level::all`] lead to one.
pub(crate) trait Simd: Copy + Send + Sync {
    /// Sixteen `f32`.
    type F: Copy;
    /// Sixteen `i32`.
    type I: Copy;
    /// Thirty-two 16-bit words: two for each lane.
    type W: Copy;

    /// Rows of activations that a tile of [`PANEL`](super::matrix::PANEL) outputs takes at once: what fits in the registers.
    const ROWS: usize;

    fn splat(self, x: f32) -> Self::F;
    fn load(self, from: &[f32; LANES]) -> Self::F;
    fn store(self, x: Self::F, to: &mut [f32; LANES]);
    fn load_bf16(self, from: &[bf16; LANES]) -> Self::F;
    fn load_f16(self, from: &[f16; LANES]) -> Self::F;
    fn load_u8(self, from: &[u8; LANES]) -> Self::F;

    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The greater of each lane. Of a NaN and a number: `b`.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// The lesser of each lane. Of a NaN and a number: `b`.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// `2^n` for each `n + 1.5 * 2^23`, `n` a whole number from -126 to 127.
    fn power_of_two(self, shifted: Self::F) -> Self::F;

    fn splat_int(self, x: i32) -> Self::I;
    fn add_int(self, a: Self::I, b: Self::I) -> Self::I;
    fn to_f32(self, x: Self::I) -> Self::F;

    fn load_words(self, from: &[u16; 2 * LANES]) -> Self::W;
    /// Of each word the four bits from `BIT` on.
    fn nibbles<const BIT: u32>(self, x: Self::W) -> Self::W;
    /// Of each word the eight bits from `BIT` on, 0 or 8.
    fn bytes<const BIT: u32>(self, x: Self::W) -> Self::W;
    /// Adds to each lane the products of its two words with two numbers that all lanes share.
    fn dot(self, sums: Self::I, weights: Self::W, x: &[i16; 2]) -> Self::I;

    /// Adds to each lane the product of its pair of weights with a pair that all lanes share, as AVX512-BF16 does.
    fn pairs(self, sums: Self::F, weights: &[[bf16; 2]; LANES], x: [bf16; 2]) -> Self::F;

    /// Asks for the cache line at an address, which need not be one.
    fn prefetch<T>(self, at: *const T);

    /// The sum of all lanes, halving: lane `i` and lane `i + 8` first.
    #[inline(always)]
    fn sum(self, x: Self::F) -> f32 {
        let mut lanes = [0.0; LANES];
        self.store(x, &mut lanes);
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                lanes[i] += lanes[i + half];
            }
        }
        lanes[0]
    }

    /// The greatest of all lanes.
    #[inline(always)]
    fn greatest(self, x: Self::F) -> f32 {
        let mut lanes = [0.0; LANES];
        self.store(x, &mut lanes);
        lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    /// `e^x` within a relative 3e-7 (Cephes' `expf`), as if `x` were between -87 and 88.
    #[inline(always)]
    fn exp(self, x: Self::F) -> Self::F {
        // 1.5 * 2^23: adding it leaves the nearest whole number in the low bits.
        const ROUND: f32 = 12_582_912.0;
        // ln 2 in two parts, the first of them exact in few bits.
        const LN_2_HIGH: f32 = 0.693_359_4;
        const LN_2_LOW: f32 = -2.121_944_4e-4;
        let x = self.min(self.max(x, self.splat(-87.0)), self.splat(88.0));
        let shifted = self.fma(x, self.splat(std::f32::consts::LOG2_E), self.splat(ROUND));
        let whole = self.sub(shifted, self.splat(ROUND));
        let rest = self.fma(whole, self.splat(-LN_2_HIGH), x);
        let rest = self.fma(whole, self.splat(-LN_2_LOW), rest);
        let mut series = self.splat(1.987_569_1e-4);
        for coefficient in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
            series = self.fma(series, rest, self.splat(coefficient));
        }
        let series = self.add(self.fma(self.mul(series, rest), rest, rest), self.splat(1.0));
        self.mul(series, self.power_of_two(shifted))
    }

    /// `tanh(x)`, within 3e-7.
    #[inline(always)]
    fn tanh(self, x: Self::F) -> Self::F {
        let one = self.splat(1.0);
        let power = self.exp(self.add(x, x));
        self.sub(one, self.div(self.splat(2.0), self.add(power, one)))
    }
}

/// Two words in one of twice the size, the first in the low half.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn word_pair([low, high]: [i16; 2]) -> i32 {
    i32::from(low as u16) | i32::from(high) << 16
}

/// A number as weights, adapters and the KV cache store it.
pub(crate) trait Number: Copy + Default + Send + Sync + 'static {
    fn of(x: f32) -> Self;
    fn to(self) -> f32;
    fn load<S: Simd>(simd: S, from: &[Self; LANES]) -> S::F;
}

impl Number for f32 {
    fn of(x: f32) -> Self {
        x
    }
    fn to(self) -> f32 {
        self
    }
    #[inline(always)]
    fn load<S: Simd>(simd: S, from: &[Self; LANES]) -> S::F {
        simd.load(from)
    }
}

impl Number for bf16 {
    fn of(x: f32) -> Self {
        Self::from_f32(x)
    }
    fn to(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn load<S: Simd>(simd: S, from: &[Self; LANES]) -> S::F {
        simd.load_bf16(from)
    }
}

impl Number for f16 {
    fn of(x: f32) -> Self {
        Self::from_f32(x)
    }
    fn to(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn load<S: Simd>(simd: S, from: &[Self; LANES]) -> S::F {
        simd.load_f16(from)
    }
}

/// Something to be run with an instruction set.
pub(super) trait Kernel {
    type Output;
    /// Must be `#[inline(always)]`, and so must everything in it that computes: only then is it compiled for the
    /// instruction set.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// An instruction set that this machine has.
#[derive(Debug, Clone, Copy)]
pub(super) enum Level {
    Portable(portable::Portable),
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(avx512::Avx512<false>),
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16(avx512::Avx512<true>),
}

impl Level {
    /// All that this machine has, the best last.
    pub(super) fn all() -> Vec<Self> {
        let levels = [
            Some(Self::Portable(portable::Portable)),
            #[cfg(target_arch = "x86_64")]
            avx2::Avx2::detect().map(Self::Avx2),
            #[cfg(target_arch = "x86_64")]
            avx512::Avx512::<false>::detect().map(Self::Avx512),
            #[cfg(target_arch = "x86_64")]
            avx512::Avx512::<true>::detect().map(Self::Avx512Bf16),
        ];
        levels.into_iter().flatten().collect()
    }

    /// What it is called on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Portable(_) => "portable",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => "avx512",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16(_) => "avx512-bf16",
        }
    }

    /// Whether products of `bf16` pairs are one instruction.
    pub(super) fn has_pairs(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        if let Self::Avx512Bf16(_) = self {
            return true;
        }
        false
    }

    pub(super) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            Self::Portable(simd) => kernel.run(simd),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(simd) => simd.run(kernel),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(simd) => simd.run(kernel),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16(simd) => simd.run(kernel),
        }
    }
}

#[cfg(test)]
mod tests;
