//! Panels of weights in blocks of 32 bytes or nibbles with a scale, and activations to go with them.
//!
//! As in llama.cpp, the activations of a product with quantised weights are quantised too, to signed bytes with a scale for
//! each block. Sums within a block are whole numbers, so they are exact in any order.

use half::f16;

use super::{PANEL, Sums};
use crate::backend::cpu::simd::{LANES, Simd};

/// Inputs in a block.
pub(in super::super) const BLOCK: usize = 32;
/// Inputs that one instruction multiplies.
const GROUP: usize = 4;
/// Groups of a block.
const GROUPS: usize = BLOCK / GROUP;

/// One block of each of a panel's outputs.
pub(in super::super) trait QuantBlock {
    /// Whether the weights are below 16.
    const NIBBLES: bool;
    /// What a weight of 0 is stored as.
    const ZERO: i32;

    /// The scales, `[half]`.
    fn scales<S: Simd>(&self, simd: S) -> [S::F; 2];
    /// What is added to each weight, if the format has such a thing.
    fn minima<S: Simd>(&self, simd: S) -> Option<[S::F; 2]>;
    /// The weights of group `index`, or of `index` and `index + 4` where they are nibbles, `[which][half]`.
    fn groups<S: Simd>(&self, simd: S, index: usize) -> [[S::B; 2]; 2];
    /// One weight of one output.
    fn weight(&self, lane: usize, input: usize) -> f32;
}

/// Blocks of signed bytes: GGML's `Q8_0`. The bytes are stored with 128 added.
#[derive(Clone)]
#[repr(C, align(64))]
pub(in super::super) struct Q8 {
    scales: [f16; PANEL],
    /// `[group][half]`, four bytes for each output.
    bytes: [[[u8; 4 * LANES]; 2]; GROUPS],
}

/// Blocks of nibbles: with as many minima as outputs GGML's `Q4_1`, with none its `Q4_0`, which adds 8 to each.
#[derive(Clone)]
#[repr(C, align(64))]
pub(in super::super) struct Q4<const MINIMA: usize> {
    scales: [f16; PANEL],
    minima: [f16; MINIMA],
    /// `[group][half]`, four bytes for each output: groups from 0 in the low nibbles, those from 4 in the high ones.
    nibbles: [[[u8; 4 * LANES]; 2]; GROUPS / 2],
}

impl Default for Q8 {
    fn default() -> Self {
        Self {
            scales: [f16::ZERO; PANEL],
            bytes: [[[0; 4 * LANES]; 2]; GROUPS],
        }
    }
}

impl<const MINIMA: usize> Default for Q4<MINIMA> {
    fn default() -> Self {
        Self {
            scales: [f16::ZERO; PANEL],
            minima: [f16::ZERO; MINIMA],
            nibbles: [[[0; 4 * LANES]; 2]; GROUPS / 2],
        }
    }
}

/// Where the byte of an input of an output is: half, and place in it.
fn place(lane: usize, input: usize) -> (usize, usize) {
    (lane / LANES, lane % LANES * GROUP + input % GROUP)
}

/// The two bytes at `at`.
fn number(bytes: &[u8], at: usize) -> f16 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]])
}

#[inline(always)]
fn load_halves<S: Simd>(simd: S, numbers: &[f16]) -> [S::F; 2] {
    let (halves, _) = numbers.as_chunks::<LANES>();
    [simd.load_f16(&halves[0]), simd.load_f16(&halves[1])]
}

impl Q8 {
    /// Takes in an output's block as GGML stores it: the scale, 32 signed bytes.
    pub(super) fn fill(&mut self, lane: usize, stored: &[u8]) {
        self.scales[lane] = number(stored, 0);
        for (input, byte) in stored[2..].iter().enumerate() {
            let (half, place) = place(lane, input);
            self.bytes[input / GROUP][half][place] = byte.wrapping_add(128);
        }
    }
}

impl<const MINIMA: usize> Q4<MINIMA> {
    /// Takes in an output's block as GGML stores it: the scale, the minimum if there is one, 16 bytes of which the low nibbles
    /// are the first half.
    pub(super) fn fill(&mut self, lane: usize, stored: &[u8]) {
        self.scales[lane] = number(stored, 0);
        if let Some(minimum) = self.minima.get_mut(lane) {
            *minimum = number(stored, 2);
        }
        let nibbles = &stored[stored.len() - BLOCK / 2..];
        for (input, byte) in nibbles.iter().enumerate() {
            // The same split as here: input `i` and `i + 16` share a byte, and so do groups `g` and `g + 4`.
            let (half, place) = place(lane, input);
            self.nibbles[input / GROUP][half][place] = *byte;
        }
    }
}

impl QuantBlock for Q8 {
    const NIBBLES: bool = false;
    const ZERO: i32 = 128;

    #[inline(always)]
    fn scales<S: Simd>(&self, simd: S) -> [S::F; 2] {
        load_halves(simd, &self.scales)
    }
    #[inline(always)]
    fn minima<S: Simd>(&self, _: S) -> Option<[S::F; 2]> {
        None
    }
    #[inline(always)]
    fn groups<S: Simd>(&self, simd: S, index: usize) -> [[S::B; 2]; 2] {
        [index, index + GROUPS / 2].map(|group| [0, 1].map(|half| simd.load_bytes(&self.bytes[group][half])))
    }
    fn weight(&self, lane: usize, input: usize) -> f32 {
        let (half, place) = place(lane, input);
        let byte = i32::from(self.bytes[input / GROUP][half][place]) - Self::ZERO;
        self.scales[lane].to_f32() * byte as f32
    }
}

impl<const MINIMA: usize> QuantBlock for Q4<MINIMA> {
    const NIBBLES: bool = true;
    const ZERO: i32 = if MINIMA == 0 { 8 } else { 0 };

    #[inline(always)]
    fn scales<S: Simd>(&self, simd: S) -> [S::F; 2] {
        load_halves(simd, &self.scales)
    }
    #[inline(always)]
    fn minima<S: Simd>(&self, simd: S) -> Option<[S::F; 2]> {
        (MINIMA != 0).then(|| load_halves(simd, &self.minima))
    }
    #[inline(always)]
    fn groups<S: Simd>(&self, simd: S, index: usize) -> [[S::B; 2]; 2] {
        let bytes = [0, 1].map(|half| simd.load_bytes(&self.nibbles[index][half]));
        [
            bytes.map(|bytes| simd.low_nibbles(bytes)),
            bytes.map(|bytes| simd.high_nibbles(bytes)),
        ]
    }
    fn weight(&self, lane: usize, input: usize) -> f32 {
        let (half, place) = place(lane, input);
        let byte = self.nibbles[input / GROUP % (GROUPS / 2)][half][place];
        let nibble = if input < BLOCK / 2 { byte & 15 } else { byte >> 4 };
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
    /// The sum of the bytes.
    sum: i32,
    bytes: [[i8; GROUP]; GROUPS],
}

/// Quantises a row: the greatest of a block becomes 127.
#[inline(always)]
pub(in super::super) fn quantise<S: Simd>(simd: S, x: &[f32], to: &mut [QuantInput]) {
    let (blocks, _) = x.as_chunks::<BLOCK>();
    for (block, to) in blocks.iter().zip(to) {
        let (halves, _) = block.as_chunks::<LANES>();
        let halves = [simd.load(&halves[0]), simd.load(&halves[1])];
        let sizes = halves.map(|x| simd.max(x, simd.sub(simd.splat(0.0), x)));
        let size = simd.greatest(simd.max(sizes[0], sizes[1]));
        to.scale = size / 127.0;
        let inverse = if size > 0.0 { 127.0 / size } else { 0.0 };
        // 1.5 * 2^23: adding it leaves the nearest whole number in the low bits.
        let shifted = halves.map(|x| simd.fma(x, simd.splat(inverse), simd.splat(12_582_912.0)));
        let mut numbers = [[0.0; LANES]; 2];
        for (numbers, shifted) in numbers.iter_mut().zip(shifted) {
            simd.store(shifted, numbers);
        }
        let bytes = to.bytes.as_flattened_mut();
        to.sum = 0;
        for (byte, number) in bytes.iter_mut().zip(numbers.as_flattened()) {
            *byte = number.to_bits() as i8;
            to.sum += i32::from(*byte);
        }
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
        let mut whole: [[S::I; 2]; M] =
            std::array::from_fn(|row| [simd.splat_int(-Q::ZERO * x[row][index].sum); 2]);
        for group in 0..GROUPS / 2 {
            let weights = block.groups(simd, group);
            for row in 0..M {
                for (which, weights) in weights.iter().enumerate() {
                    let x = x[row][index].bytes[group + which * (GROUPS / 2)];
                    for half in 0..2 {
                        whole[row][half] = match Q::NIBBLES {
                            true => simd.dot::<true>(whole[row][half], weights[half], x),
                            false => simd.dot::<false>(whole[row][half], weights[half], x),
                        };
                    }
                }
            }
        }
        let (scales, minima) = (block.scales(simd), block.minima(simd));
        for row in 0..M {
            let x = &x[row][index];
            for half in 0..2 {
                let scale = simd.mul(scales[half], simd.splat(x.scale));
                let whole = simd.to_f32(whole[row][half]);
                sums[row][half] = simd.fma(whole, scale, sums[row][half]);
                if let Some(minima) = minima {
                    let sum = simd.splat(x.scale * x.sum as f32);
                    sums[row][half] = simd.fma(minima[half], sum, sums[row][half]);
                }
            }
        }
    }
    sums
}
