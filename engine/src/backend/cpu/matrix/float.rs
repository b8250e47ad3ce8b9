//! Panels of floating-point weights.

use half::bf16;

use super::{PANEL, Sums};
use crate::backend::cpu::simd::{LANES, Number, Simd};

/// The weights of a panel's outputs for one input.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(in super::super) struct Line<W>(pub(super) [W; PANEL]);

impl<W: Number> Default for Line<W> {
    fn default() -> Self {
        Self([W::default(); PANEL])
    }
}

/// The weights of a panel's outputs for two inputs.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(in super::super) struct PairLine(pub(super) [[bf16; 2]; PANEL]);

impl Default for PairLine {
    fn default() -> Self {
        Self([[bf16::ZERO; 2]; PANEL])
    }
}

/// The two vectors of a line.
#[inline(always)]
fn halves<T>(line: &[T; PANEL]) -> [&[T; LANES]; 2] {
    let (halves, _) = line.as_chunks::<LANES>();
    [&halves[0], &halves[1]]
}

impl<W: Number> Line<W> {
    /// In `f32`.
    #[inline(always)]
    pub(in super::super) fn load<S: Simd>(&self, simd: S) -> [S::F; 2] {
        halves(&self.0).map(|half| W::load(simd, half))
    }

    /// Puts a number in its place.
    pub(in super::super) fn set(&mut self, lane: usize, x: f32) {
        self.0[lane] = W::of(x);
    }
}

/// `sums[row][output] = sum over inputs of weight * x`, in the order of the inputs.
#[inline(always)]
pub(in super::super) fn product<S: Simd, W: Number, const M: usize>(
    simd: S,
    panel: &[Line<W>],
    x: [&[f32]; M],
) -> Sums<S, M> {
    assert!(x.iter().all(|x| x.len() == panel.len()));
    let mut sums = [[simd.splat(0.0); 2]; M];
    for (input, line) in panel.iter().enumerate() {
        let weights = line.load(simd);
        for row in 0..M {
            let x = simd.splat(x[row][input]);
            for half in 0..2 {
                sums[row][half] = simd.fma(weights[half], x, sums[row][half]);
            }
        }
    }
    sums
}

/// The same by pairs of inputs.
#[inline(always)]
pub(in super::super) fn pair_product<S: Simd, const M: usize>(
    simd: S,
    panel: &[PairLine],
    x: [&[[bf16; 2]]; M],
) -> Sums<S, M> {
    assert!(x.iter().all(|x| x.len() == panel.len()));
    let mut sums = [[simd.splat(0.0); 2]; M];
    for (pair, line) in panel.iter().enumerate() {
        let weights = halves(&line.0);
        for row in 0..M {
            for half in 0..2 {
                sums[row][half] = simd.pairs(sums[row][half], weights[half], x[row][pair]);
            }
        }
    }
    sums
}

/// One output's weights.
pub(super) fn read<W: Number>(panel: &[Line<W>], lane: usize, to: &mut [f32]) {
    for (to, line) in to.iter_mut().zip(panel) {
        *to = line.0[lane].to();
    }
}

/// The same of pairs.
pub(super) fn read_pairs(panel: &[PairLine], lane: usize, to: &mut [f32]) {
    for (to, line) in to.chunks_mut(2).zip(panel) {
        for (to, number) in to.iter_mut().zip(line.0[lane]) {
            *to = number.to_f32();
        }
    }
}
