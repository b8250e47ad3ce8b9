//! llama.cpp's K-quants: blocks of 256 inputs that share a scale of scales.
//!
//! Here they are eight blocks of 32 each, every one with the shared scale beside its own: exact, and one bit for each weight
//! more than in the file. The six bits of `Q6_K` take a byte.

use half::f16;

use super::{
    PANEL,
    quant::{PAIRS, QuantBlock, Words, bytes, load_halves, nibbles, number, place},
};
use crate::backend::cpu::simd::{LANES, Simd};

/// Inputs of a block as it is stored.
pub(super) const STORED: usize = 256;
/// Our blocks in it.
pub(super) const BLOCKS: usize = STORED / super::BLOCK;

/// `Q4_K`: nibbles with a scale and a minimum of six bits for each 32 inputs.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(in super::super) struct Q4K {
    shared_scales: [f16; PANEL],
    shared_minima: [f16; PANEL],
    scales: [u8; PANEL],
    minima: [u8; PANEL],
    /// `[vector][half]`: four pairs, the first in the lowest nibbles.
    words: [[Words; 2]; PAIRS / 4],
}

/// `Q6_K`: six bits, 32 being zero, with a signed scale of eight for each 16 inputs.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(in super::super) struct Q6K {
    shared_scales: [f16; PANEL],
    /// `[part]`, stored with 128 added.
    scales: [[u8; PANEL]; 2],
    /// `[vector][half]`: two pairs, the first in the low bytes.
    words: [[Words; 2]; PAIRS / 2],
}

impl Default for Q4K {
    fn default() -> Self {
        Self {
            shared_scales: [f16::ZERO; PANEL],
            shared_minima: [f16::ZERO; PANEL],
            scales: [0; PANEL],
            minima: [0; PANEL],
            words: [[[0; 2 * LANES]; 2]; PAIRS / 4],
        }
    }
}

impl Default for Q6K {
    fn default() -> Self {
        Self {
            shared_scales: [f16::ZERO; PANEL],
            scales: [[128; PANEL]; 2],
            words: [[[0; 2 * LANES]; 2]; PAIRS / 2],
        }
    }
}

#[inline(always)]
fn load_bytes<S: Simd>(simd: S, numbers: &[u8; PANEL]) -> [S::F; 2] {
    let (halves, _) = numbers.as_chunks::<LANES>();
    [simd.load_u8(&halves[0]), simd.load_u8(&halves[1])]
}

impl Q4K {
    /// Takes in an output's block as GGML stores it: scale of scales, scale of minima, twelve bytes of eight scales and minima, 128
    /// bytes of nibbles, of which each 32 bytes are two blocks.
    pub(super) fn fill(blocks: &mut [Self; BLOCKS], lane: usize, stored: &[u8]) {
        let (packed, stored_nibbles) = (&stored[4..16], &stored[16..]);
        for (index, block) in blocks.iter_mut().enumerate() {
            block.shared_scales[lane] = number(stored, 0);
            block.shared_minima[lane] = number(stored, 2);
            (block.scales[lane], block.minima[lane]) = match index {
                0..4 => (packed[index] & 63, packed[index + 4] & 63),
                _ => (
                    packed[index + 4] & 15 | packed[index - 4] >> 6 << 4,
                    packed[index + 4] >> 4 | packed[index] >> 6 << 4,
                ),
            };
            for (input, byte) in stored_nibbles[index / 2 * 32..][..32].iter().enumerate() {
                let nibble = if index % 2 == 0 { byte & 15 } else { byte >> 4 };
                let (vector, half, word, shift) = place(Self::SHARED, lane, input);
                block.words[vector][half][word] |= u16::from(nibble) << (4 * shift);
            }
        }
    }
}

impl Q6K {
    /// Takes in an output's block as GGML stores it: 128 bytes of low nibbles, 64 of high pairs of bits, sixteen scales, the
    /// scale of scales. Each half of it is four blocks, whose bits lie side by side.
    pub(super) fn fill(blocks: &mut [Self; BLOCKS], lane: usize, stored: &[u8]) {
        let (low, rest) = stored.split_at(128);
        let (high, rest) = rest.split_at(64);
        let (scales, shared) = rest.split_at(16);
        for (index, block) in blocks.iter_mut().enumerate() {
            block.shared_scales[lane] = number(shared, 0);
            for part in 0..2 {
                block.scales[part][lane] = scales[2 * index + part].wrapping_add(128);
            }
            let (side, quarter) = (index / 4, index % 4);
            for input in 0..32 {
                let low = low[64 * side + 32 * (quarter % 2) + input];
                let low = if quarter < 2 { low & 15 } else { low >> 4 };
                let high = high[32 * side + input] >> (2 * quarter) & 3;
                let (vector, half, word, shift) = place(Self::SHARED, lane, input);
                block.words[vector][half][word] |= u16::from(low | high << 4) << (8 * shift);
            }
        }
    }
}

impl QuantBlock for Q4K {
    const ZERO: i32 = 0;
    const VECTORS: usize = PAIRS / 4;

    #[inline(always)]
    fn scales<S: Simd>(&self, simd: S, _: usize) -> [S::F; 2] {
        let (shared, own) = (
            load_halves(simd, &self.shared_scales),
            load_bytes(simd, &self.scales),
        );
        [0, 1].map(|half| simd.mul(shared[half], own[half]))
    }
    #[inline(always)]
    fn minima<S: Simd>(&self, simd: S) -> Option<[S::F; 2]> {
        let (shared, own) = (
            load_halves(simd, &self.shared_minima),
            load_bytes(simd, &self.minima),
        );
        Some([0, 1].map(|half| simd.sub(simd.splat(0.0), simd.mul(shared[half], own[half]))))
    }
    #[inline(always)]
    fn weights<S: Simd>(&self, simd: S, vector: usize) -> [[S::W; 2]; 4] {
        nibbles(simd, &self.words[vector])
    }
    fn weight(&self, lane: usize, input: usize) -> f32 {
        let (vector, half, word, shift) = place(Self::SHARED, lane, input);
        let nibble = self.words[vector][half][word] >> (4 * shift) & 15;
        let scale = self.shared_scales[lane].to_f32() * f32::from(self.scales[lane]);
        scale * f32::from(nibble) - self.shared_minima[lane].to_f32() * f32::from(self.minima[lane])
    }
}

impl QuantBlock for Q6K {
    const ZERO: i32 = 32;
    const PARTS: usize = 2;
    const VECTORS: usize = PAIRS / 2;

    #[inline(always)]
    fn scales<S: Simd>(&self, simd: S, part: usize) -> [S::F; 2] {
        let (shared, own) = (
            load_halves(simd, &self.shared_scales),
            load_bytes(simd, &self.scales[part]),
        );
        [0, 1].map(|half| simd.mul(shared[half], simd.sub(own[half], simd.splat(128.0))))
    }
    #[inline(always)]
    fn weights<S: Simd>(&self, simd: S, vector: usize) -> [[S::W; 2]; 4] {
        bytes(simd, &self.words[vector])
    }
    fn weight(&self, lane: usize, input: usize) -> f32 {
        let (vector, half, word, shift) = place(Self::SHARED, lane, input);
        let byte = self.words[vector][half][word] >> (8 * shift) & 255;
        let scale = i32::from(self.scales[input / LANES][lane]) - 128;
        self.shared_scales[lane].to_f32() * scale as f32 * (i32::from(byte) - Self::ZERO) as f32
    }
}
