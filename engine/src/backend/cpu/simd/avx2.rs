//! AVX2 with FMA and F16C: two registers of eight lanes each.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::{Kernel, LANES, Simd, word_pair};

/// The proof that there is AVX2, FMA and F16C.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Avx2(());

impl Avx2 {
    pub(super) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c"))
        .then_some(Self(()))
    }

    pub(super) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn run<K: Kernel>(simd: Avx2, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        // SAFETY: `self` proves that the machine has them.
        unsafe { run(self, kernel) }
    }
}

/// Both halves of one vector.
#[inline(always)]
fn both<T>(f: impl Fn(usize) -> T) -> [T; 2] {
    [f(0), f(1)]
}

// SAFETY of every intrinsic below: `self` proves that the machine has its instructions, and loads and stores stay within
// the arrays that they are given.
impl Simd for Avx2 {
    type F = [__m256; 2];
    type I = [__m256i; 2];
    type W = [__m256i; 2];

    const ROWS: usize = 2;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        // SAFETY: see the impl.
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::F {
        // SAFETY: see the impl.
        both(|i| unsafe { _mm256_loadu_ps(from.as_ptr().add(8 * i)) })
    }
    #[inline(always)]
    fn store(self, x: Self::F, to: &mut [f32; LANES]) {
        for (i, x) in x.into_iter().enumerate() {
            // SAFETY: see the impl.
            unsafe { _mm256_storeu_ps(to.as_mut_ptr().add(8 * i), x) }
        }
    }
    #[inline(always)]
    fn load_bf16(self, from: &[bf16; LANES]) -> Self::F {
        // SAFETY: see the impl.
        both(|i| unsafe {
            let halves = _mm_loadu_si128(from.as_ptr().add(8 * i).cast());
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves)))
        })
    }
    #[inline(always)]
    fn load_f16(self, from: &[f16; LANES]) -> Self::F {
        // SAFETY: see the impl.
        both(|i| unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().add(8 * i).cast())) })
    }
    #[inline(always)]
    fn load_u8(self, from: &[u8; LANES]) -> Self::F {
        // SAFETY: see the impl.
        both(|i| unsafe {
            let bytes = _mm_loadl_epi64(from.as_ptr().add(8 * i).cast());
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes))
        })
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see the impl.
        both(|i| unsafe { _mm256_add_ps(a[i], b[i]) })
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see the impl.
        both(|i| unsafe { _mm256_sub_ps(a[i], b[i]) })
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see the impl.
        both(|i| unsafe { _mm256_mul_ps(a[i], b[i]) })
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see the impl.
        both(|i| unsafe { _mm256_div_ps(a[i], b[i]) })
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: see the impl.
        both(|i| unsafe { _mm256_fmadd_ps(a[i], b[i], c[i]) })
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see the impl.
        both(|i| unsafe { _mm256_max_ps(a[i], b[i]) })
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see the impl.
        both(|i| unsafe { _mm256_min_ps(a[i], b[i]) })
    }
    #[inline(always)]
    fn power_of_two(self, shifted: Self::F) -> Self::F {
        // SAFETY: see the impl.
        both(|i| unsafe {
            let bits = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted[i]));
            _mm256_castsi256_ps(_mm256_add_epi32(bits, _mm256_set1_epi32(127 << 23)))
        })
    }
    #[inline(always)]
    fn splat_int(self, x: i32) -> Self::I {
        // SAFETY: see the impl.
        unsafe { [_mm256_set1_epi32(x); 2] }
    }
    #[inline(always)]
    fn add_int(self, a: Self::I, b: Self::I) -> Self::I {
        // SAFETY: see the impl.
        both(|i| unsafe { _mm256_add_epi32(a[i], b[i]) })
    }
    #[inline(always)]
    fn to_f32(self, x: Self::I) -> Self::F {
        // SAFETY: see the impl.
        both(|i| unsafe { _mm256_cvtepi32_ps(x[i]) })
    }
    #[inline(always)]
    fn load_words(self, from: &[u16; 2 * LANES]) -> Self::W {
        // SAFETY: see the impl.
        both(|i| unsafe { _mm256_loadu_si256(from.as_ptr().add(16 * i).cast()) })
    }
    #[inline(always)]
    fn nibbles<const BIT: u32>(self, x: Self::W) -> Self::W {
        // SAFETY: see the impl.
        both(|i| unsafe {
            let shifted = _mm256_srl_epi16(x[i], _mm_cvtsi32_si128(BIT as i32));
            _mm256_and_si256(shifted, _mm256_set1_epi16(15))
        })
    }
    #[inline(always)]
    fn bytes<const BIT: u32>(self, x: Self::W) -> Self::W {
        // SAFETY: see the impl.
        both(|i| unsafe {
            let shifted = _mm256_srl_epi16(x[i], _mm_cvtsi32_si128(BIT as i32));
            _mm256_and_si256(shifted, _mm256_set1_epi16(255))
        })
    }
    #[inline(always)]
    fn dot(self, sums: Self::I, weights: Self::W, x: &[i16; 2]) -> Self::I {
        // SAFETY: see the impl.
        both(|i| unsafe {
            _mm256_add_epi32(
                sums[i],
                _mm256_madd_epi16(weights[i], _mm256_set1_epi32(word_pair(*x))),
            )
        })
    }
    #[inline(always)]
    fn prefetch<T>(self, at: *const T) {
        // SAFETY: it reads nothing, wherever it points.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
    #[inline(always)]
    fn pairs(self, sums: Self::F, weights: &[[bf16; 2]; LANES], x: [bf16; 2]) -> Self::F {
        // SAFETY: see the impl.
        both(|i| unsafe {
            let pairs = _mm256_loadu_si256(weights.as_ptr().add(8 * i).cast());
            let first = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs));
            let second = _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(!0xffff)));
            let sums = _mm256_fmadd_ps(second, _mm256_set1_ps(x[1].to_f32()), sums[i]);
            _mm256_fmadd_ps(first, _mm256_set1_ps(x[0].to_f32()), sums)
        })
    }
}
