//! Panels of weights in blocks of 32 bytes or nibbles with a scale, and activations to go with them.
//!
//! The activations of a product with quantised weights are quantised too, so that the instructions for whole numbers do the work:
//! to 16 bits, with a scale for each block. The 8 bits that llama.cpp takes would let twice as much through an instruction, but
//! move SmolLM2's logits by up to 1.1, and its answers with them. Sums within a block are whole numbers, so they are
//! exact in any order.

use half::f16;

use super::{PANEL, Sums};
use crate::backend::cpu::simd::{LANES, Simd};

/// Inputs in a block.
pub(in super::super) const BLOCK: usize = 32;
/// Pairs of inputs in a block: an instruction multiplies one of them.
pub(super) const PAIRS: usize = BLOCK / 2;
/// The greatest of a block of activations becomes this.
const GREATEST: f32 = 32_767.0;

/// A word for each of two inputs of each output of half a panel.
pub(super) type Words = [u16; 2 * LANES];

/// One block of each of a panel's outputs.
pub(in super::super) trait QuantBlock {
    /// What a weight of 0 is stored as.
    const ZERO: i32;
    /// How many parts of the block have scales of their own.
    const PARTS: usize = 1;
    /// How many vectors of words the weights of half a panel take.
    const VECTORS: usize;
    /// How many pairs share a vector of words.
    const SHARED: usize = PAIRS / Self::VECTORS;

    /// The scales of a part, `[half]`.
    fn scales<S: Simd>(&self, simd: S, part: usize) -> [S::F; 2];
    /// What is added to each weight, if the format has such a thing.
    fn minima<S: Simd>(&self, _: S) -> Option<[S::F; 2]> {
        None
    }
    /// The weights of the pairs that share a vector, `[pair][half]`; only the first [`SHARED`](Self::SHARED) are there.
    fn weights<S: Simd>(&self, simd: S, vector: usize) -> [[S::W; 2]; 4];
    /// One weight of one output.
    fn weight(&self, lane: usize, input: usize) -> f32;
}

/// Blocks of signed bytes: GGML's `Q8_0`. The bytes are stored with 128 added.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(in super::super) struct Q8 {
    scales: [f16; PANEL],
    /// `[vector][half]`: two pairs, the first in the low bytes.
    words: [[Words; 2]; PAIRS / 2],
}

/// Blocks of nibbles: with as many minima as outputs GGML's `Q4_1`, with none its `Q4_0`, which adds 8 to each.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(in super::super) struct Q4<const MINIMA: usize> {
    scales: [f16; PANEL],
    minima: [f16; MINIMA],
    /// `[vector][half]`: four pairs, the first in the lowest nibbles.
    words: [[Words; 2]; PAIRS / 4],
}

impl Default for Q8 {
    fn default() -> Self {
        Self {
            scales: [f16::ZERO; PANEL],
            words: [[[0; 2 * LANES]; 2]; PAIRS / 2],
        }
    }
}

impl<const MINIMA: usize> Default for Q4<MINIMA> {
    fn default() -> Self {
        Self {
            scales: [f16::ZERO; PANEL],
            minima: [f16::ZERO; MINIMA],
            words: [[[0; 2 * LANES]; 2]; PAIRS / 4],
        }
    }
}

/// Where a weight is among words of which each holds one of `shared` pairs: vector, half, word, and which of the pairs.
pub(super) fn place(shared: usize, lane: usize, input: usize) -> (usize, usize, usize, usize) {
    let pair = input / 2;
    let word = lane % LANES * 2 + input % 2;
    (pair / shared, lane / LANES, word, pair % shared)
}

/// The two bytes at `at`.
pub(super) fn number(bytes: &[u8], at: usize) -> f16 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]])
}

#[inline(always)]
pub(super) fn load_halves<S: Simd>(simd: S, numbers: &[f16]) -> [S::F; 2] {
    let (halves, _) = numbers.as_chunks::<LANES>();
    [simd.load_f16(&halves[0]), simd.load_f16(&halves[1])]
}

/// The weights of the four pairs in a vector of nibbles, see [`QuantBlock::weights`].
#[inline(always)]
pub(super) fn nibbles<S: Simd>(simd: S, words: &[Words; 2]) -> [[S::W; 2]; 4] {
    let words = [simd.load_words(&words[0]), simd.load_words(&words[1])];
    [
        words.map(|words| simd.nibbles::<0>(words)),
        words.map(|words| simd.nibbles::<4>(words)),
        words.map(|words| simd.nibbles::<8>(words)),
        words.map(|words| simd.nibbles::<12>(words)),
    ]
}

/// The same of the two pairs in a vector of bytes.
#[inline(always)]
pub(super) fn bytes<S: Simd>(simd: S, words: &[Words; 2]) -> [[S::W; 2]; 4] {
    let words = [simd.load_words(&words[0]), simd.load_words(&words[1])];
    let low = words.map(|words| simd.bytes::<0>(words));
    [low, words.map(|words| simd.bytes::<8>(words)), low, low]
}

impl Q8 {
    /// Takes in an output's block as GGML stores it: the scale, 32 signed bytes.
    pub(super) fn fill([block]: &mut [Self; 1], lane: usize, stored: &[u8]) {
        block.scales[lane] = number(stored, 0);
        for (input, byte) in stored[2..].iter().enumerate() {
            let (vector, half, word, shift) = place(Self::SHARED, lane, input);
            block.words[vector][half][word] |= u16::from(byte.wrapping_add(128)) << (8 * shift);
        }
    }
}

impl<const MINIMA: usize> Q4<MINIMA> {
    /// Takes in an output's block as GGML stores it: the scale, the minimum if there is one, 16 bytes of which the low nibbles
    /// are the first half.
    pub(super) fn fill([block]: &mut [Self; 1], lane: usize, stored: &[u8]) {
        block.scales[lane] = number(stored, 0);
        if let Some(minimum) = block.minima.get_mut(lane) {
            *minimum = number(stored, 2);
        }
        let (_, nibbles) = stored.split_at(stored.len() - BLOCK / 2);
        for (input, byte) in nibbles.iter().enumerate() {
            for (input, nibble) in [(input, byte & 15), (input + BLOCK / 2, byte >> 4)] {
                let (vector, half, word, shift) = place(Self::SHARED, lane, input);
                block.words[vector][half][word] |= u16::from(nibble) << (4 * shift);
            }
        }
    }
}

impl QuantBlock for Q8 {
    const ZERO: i32 = 128;
    const VECTORS: usize = PAIRS / 2;

    #[inline(always)]
    fn scales<S: Simd>(&self, simd: S, _: usize) -> [S::F; 2] {
        load_halves(simd, &self.scales)
    }
    #[inline(always)]
    fn weights<S: Simd>(&self, simd: S, vector: usize) -> [[S::W; 2]; 4] {
        bytes(simd, &self.words[vector])
    }
    fn weight(&self, lane: usize, input: usize) -> f32 {
        let (vector, half, word, shift) = place(Self::SHARED, lane, input);
        let byte = self.words[vector][half][word] >> (8 * shift) & 255;
        self.scales[lane].to_f32() * (i32::from(byte) - Self::ZERO) as f32
    }
}

impl<const MINIMA: usize> QuantBlock for Q4<MINIMA> {
    const ZERO: i32 = if MINIMA == 0 { 8 } else { 0 };
    const VECTORS: usize = PAIRS / 4;

    #[inline(always)]
    fn scales<S: Simd>(&self, simd: S, _: usize) -> [S::F; 2] {
        load_halves(simd, &self.scales)
    }
    #[inline(always)]
    fn minima<S: Simd>(&self, simd: S) -> Option<[S::F; 2]> {
        (MINIMA != 0).then(|| load_halves(simd, &self.minima))
    }
    #[inline(always)]
    fn weights<S: Simd>(&self, simd: S, vector: usize) -> [[S::W; 2]; 4] {
        nibbles(simd, &self.words[vector])
    }
    fn weight(&self, lane: usize, input: usize) -> f32 {
        let (vector, half, word, shift) = place(Self::SHARED, lane, input);
        let nibble = self.words[vector][half][word] >> (4 * shift) & 15;
        let minimum = self.minima.get(lane).map_or(0.0, |minimum| minimum.to_f32());
        self.scales[lane].to_f32() * (i32::from(nibble) - Self::ZERO) as f32 + minimum
    }
}

/// One output's weights.
pub(super) fn read(panel: &[impl QuantBlock], lane: usize, to: &mut [f32]) {
    for (to, block) in to.chunks_mut(BLOCK).zip(panel) {
        for (input, to) in to.iter_mut().enumerate() {
            *to = block.weight(lane, input);
        }
    }
}

/// One block of a row of activations.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(in super::super) struct QuantInput {
    scale: f32,
    /// The sums of the numbers of each half.
    sums: [i32; 2],
    numbers: [[i16; 2]; PAIRS],
}

/// Quantises a row.
#[inline(always)]
pub(in super::super) fn quantise<S: Simd>(simd: S, x: &[f32], to: &mut [QuantInput]) {
    let (blocks, _) = x.as_chunks::<BLOCK>();
    for (block, to) in blocks.iter().zip(to) {
        let (halves, _) = block.as_chunks::<LANES>();
        let halves = [simd.load(&halves[0]), simd.load(&halves[1])];
        let sizes = halves.map(|x| simd.max(x, simd.sub(simd.splat(0.0), x)));
        let size = simd.greatest(simd.max(sizes[0], sizes[1]));
        to.scale = size / GREATEST;
        let inverse = if size > 0.0 { GREATEST / size } else { 0.0 };
        // 1.5 * 2^23: adding it leaves the nearest whole number in the low bits.
        let shifted = halves.map(|x| simd.fma(x, simd.splat(inverse), simd.splat(12_582_912.0)));
        let mut numbers = [[0.0; LANES]; 2];
        for (numbers, shifted) in numbers.iter_mut().zip(shifted) {
            simd.store(shifted, numbers);
        }
        let numbers = numbers.as_flattened();
        for (to, number) in to.numbers.as_flattened_mut().iter_mut().zip(numbers) {
            *to = number.to_bits() as i16;
        }
        let (halves, _) = to.numbers.as_flattened().as_chunks::<LANES>();
        to.sums = [0, 1].map(|half| halves[half].iter().copied().map(i32::from).sum());
    }
}

/// `sums[row][output] = sum over inputs of weight * x`, exact within a block, and block after block.
#[inline(always)]
pub(in super::super) fn product<S: Simd, Q: QuantBlock, const M: usize>(
    simd: S,
    panel: &[Q],
    x: [&[QuantInput]; M],
) -> Sums<S, M> {
    assert!(x.iter().all(|x| x.len() == panel.len()));
    let mut sums = [[simd.splat(0.0); 2]; M];
    for (index, block) in panel.iter().enumerate() {
        for part in 0..Q::PARTS {
            let whole = whole_sums::<S, Q, M>(simd, block, part, &x, index);
            let scales = block.scales(simd, part);
            for row in 0..M {
                let x_scale = simd.splat(x[row][index].scale);
                for half in 0..2 {
                    let scale = simd.mul(scales[half], x_scale);
                    sums[row][half] = simd.fma(simd.to_f32(whole[row][half]), scale, sums[row][half]);
                }
            }
        }
        if let Some(minima) = block.minima(simd) {
            for row in 0..M {
                let x = &x[row][index];
                let sum = simd.splat(x.scale * (x.sums[0] + x.sums[1]) as f32);
                for half in 0..2 {
                    sums[row][half] = simd.fma(minima[half], sum, sums[row][half]);
                }
            }
        }
    }
    sums
}

/// The sums of a part of a block, in whole numbers.
#[inline(always)]
fn whole_sums<S: Simd, Q: QuantBlock, const M: usize>(
    simd: S,
    block: &Q,
    part: usize,
    x: &[&[QuantInput]; M],
    index: usize,
) -> [[S::I; 2]; M] {
    let mut whole: [[S::I; 2]; M] = std::array::from_fn(|row| {
        let sums = x[row][index].sums;
        let sum = if Q::PARTS == 1 {
            sums[0] + sums[1]
        } else {
            sums[part]
        };
        [simd.splat_int(-Q::ZERO * sum); 2]
    });
    // They may be added in any order. Of few rows, second sums keep the multipliers busy.
    let mut second = [[simd.splat_int(0); 2]; M];
    let vectors = Q::VECTORS / Q::PARTS;
    for vector in part * vectors..(part + 1) * vectors {
        let weights = block.weights(simd, vector);
        for (pair, weights) in weights[..Q::SHARED].iter().enumerate() {
            for row in 0..M {
                let x = &x[row][index].numbers[vector * Q::SHARED + pair];
                let sums = if M <= 2 && pair % 2 == 1 {
                    &mut second
                } else {
                    &mut whole
                };
                for half in 0..2 {
                    sums[row][half] = simd.dot(sums[row][half], weights[half], x);
                }
            }
        }
    }
    if M <= 2 {
        for (whole, second) in whole.as_flattened_mut().iter_mut().zip(second.as_flattened()) {
            *whole = simd.add_int(*whole, *second);
        }
    }
    whole
}
