//! AVX-512 with VNNI, with or without the products of `bf16` pairs: one register.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::{Kernel, LANES, Simd};

/// The proof that there is AVX-512 F, BW, DQ, VL and VNNI; with `BF16`, that one too, and fast.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Avx512<const BF16: bool>(());

impl<const BF16: bool> Avx512<BF16> {
    pub(super) fn detect() -> Option<Self> {
        let common = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("f16c");
        (common && (!BF16 || pairs_are_fast())).then_some(Self(()))
    }

    pub(super) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]
        fn run<K: Kernel, const BF16: bool>(simd: Avx512<BF16>, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma,avx512bf16")]
        fn run_bf16<K: Kernel, const BF16: bool>(simd: Avx512<BF16>, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        // SAFETY: `self` proves that the machine has them.
        unsafe {
            if BF16 {
                run_bf16(self, kernel)
            } else {
                run(self, kernel)
            }
        }
    }
}

/// Zen 4 multiplies pairs at twice the rate of its FMA. Sapphire and Emerald Rapids do it at half of that rate.
fn pairs_are_fast() -> bool {
    let vendor = __cpuid(0);
    let is_amd = (vendor.ebx, vendor.edx, vendor.ecx) == (0x6874_7541, 0x6974_6e65, 0x444d_4163);
    is_amd && is_x86_feature_detected!("avx512bf16")
}

/// `vpdpwssd` with a pair of words from memory for every lane. By hand, because the compiler takes `_mm512_dpwssd_epi32`
/// apart again, into a multiplication and an addition, where it finds that the sums depend on each other.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn dot(sums: __m512i, weights: __m512i, x: &[i16; 2]) -> __m512i {
    let mut sums = sums;
    // SAFETY: reads the four bytes of `x`; the features are there.
    unsafe {
        std::arch::asm!(
            "vpdpwssd {sums}, {weights}, dword ptr [{x}]{{1to16}}",
            sums = inout(zmm_reg) sums,
            weights = in(zmm_reg) weights,
            x = in(reg) x,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    sums
}

// SAFETY of every intrinsic below: `self` proves that the machine has its instructions, and loads and stores stay within
// the arrays that they are given.
impl<const BF16: bool> Simd for Avx512<BF16> {
    type F = __m512;
    type I = __m512i;
    type W = __m512i;

    // Twelve are slower with quantised weights and no faster with others (Zen 4).
    const ROWS: usize = 8;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        // SAFETY: see the impl.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::F {
        // SAFETY: see the impl.
        unsafe { _mm512_loadu_ps(from.as_ptr()) }
    }
    #[inline(always)]
    fn store(self, x: Self::F, to: &mut [f32; LANES]) {
        // SAFETY: see the impl.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), x) }
    }
    #[inline(always)]
    fn load_bf16(self, from: &[bf16; LANES]) -> Self::F {
        // SAFETY: see the impl.
        unsafe {
            let halves = _mm256_loadu_si256(from.as_ptr().cast());
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
        }
    }
    #[inline(always)]
    fn load_f16(self, from: &[f16; LANES]) -> Self::F {
        // SAFETY: see the impl.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())) }
    }
    #[inline(always)]
    fn load_u8(self, from: &[u8; LANES]) -> Self::F {
        // SAFETY: see the impl.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.as_ptr().cast()))) }
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn power_of_two(self, shifted: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe {
            let bits = _mm512_slli_epi32::<23>(_mm512_castps_si512(shifted));
            _mm512_castsi512_ps(_mm512_add_epi32(bits, _mm512_set1_epi32(127 << 23)))
        }
    }
    #[inline(always)]
    fn splat_int(self, x: i32) -> Self::I {
        // SAFETY: see the impl.
        unsafe { _mm512_set1_epi32(x) }
    }
    #[inline(always)]
    fn add_int(self, a: Self::I, b: Self::I) -> Self::I {
        // SAFETY: see the impl.
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    fn to_f32(self, x: Self::I) -> Self::F {
        // SAFETY: see the impl.
        unsafe { _mm512_cvtepi32_ps(x) }
    }
    #[inline(always)]
    fn load_words(self, from: &[u16; 2 * LANES]) -> Self::W {
        // SAFETY: see the impl.
        unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
    }
    #[inline(always)]
    fn nibbles<const BIT: u32>(self, x: Self::W) -> Self::W {
        // SAFETY: see the impl.
        unsafe { _mm512_and_si512(_mm512_srli_epi16::<BIT>(x), _mm512_set1_epi16(15)) }
    }
    #[inline(always)]
    fn bytes<const BIT: u32>(self, x: Self::W) -> Self::W {
        // SAFETY: see the impl.
        unsafe { _mm512_and_si512(_mm512_srli_epi16::<BIT>(x), _mm512_set1_epi16(255)) }
    }
    #[inline(always)]
    fn dot(self, sums: Self::I, weights: Self::W, x: &[i16; 2]) -> Self::I {
        // SAFETY: see the impl.
        unsafe { dot(sums, weights, x) }
    }
    #[inline(always)]
    fn prefetch<T>(self, at: *const T) {
        // SAFETY: it reads nothing, wherever it points.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
    #[inline(always)]
    fn pairs(self, sums: Self::F, weights: &[[bf16; 2]; LANES], x: [bf16; 2]) -> Self::F {
        // SAFETY: see the impl; the instruction of the first way is there where `BF16` is.
        unsafe {
            let pairs = _mm512_loadu_si512(weights.as_ptr().cast());
            if BF16 {
                let x = u32::from(x[0].to_bits()) | u32::from(x[1].to_bits()) << 16;
                let x = _mm512_set1_epi32(x as i32);
                let pairs = std::mem::transmute::<__m512i, __m512bh>(pairs);
                let x = std::mem::transmute::<__m512i, __m512bh>(x);
                _mm512_dpbf16_ps(sums, pairs, x)
            } else {
                let first = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs));
                let second = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(!0xffff)));
                let sums = _mm512_fmadd_ps(second, _mm512_set1_ps(x[1].to_f32()), sums);
                _mm512_fmadd_ps(first, _mm512_set1_ps(x[0].to_f32()), sums)
            }
        }
    }
}
