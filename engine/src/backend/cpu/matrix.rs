//! Weights as the kernels read them: panels of [`PANEL`] outputs, each a stream of cache lines along the inputs.
//!
//! Packed once, at load. Quantised weights of the formats that have kernels keep their bits; others are dequantised to
//! 16 bits.

mod float;
mod kquant;
mod quant;

use candle_core::quantized::GgmlDType;
use half::{bf16, f16};
use rayon::prelude::*;

use super::{
    memory::{Arena, Array},
    simd::{Number, Simd},
};
use crate::backend::HostTensor;

pub(super) use float::{Line, PairLine, pair_product, product};
pub(super) use kquant::{Q4K, Q6K};
pub(super) use quant::{BLOCK, Q4, Q8, QuantBlock, QuantInput, product as quant_product, quantise};

/// Outputs in a panel: two vectors of lanes.
pub(super) const PANEL: usize = 32;

/// The sums of a panel's outputs for some rows.
pub(super) type Sums<S, const M: usize> = [[<S as Simd>::F; 2]; M];

/// A packed weight, `[outputs, inputs]`.
pub(super) struct Matrix {
    pub(super) outputs: usize,
    pub(super) inputs: usize,
    pub(super) panels: Panels,
}

/// The panels one after the other.
pub(super) enum Panels {
    /// A line for each input.
    F32(Array<Line<f32>>),
    /// The same.
    F16(Array<Line<f16>>),
    /// The same.
    Bf16(Array<Line<bf16>>),
    /// A line for each pair of inputs; the last pair is filled with zeros.
    Pairs(Array<PairLine>),
    /// A block for each 32 inputs.
    Q8(Array<Q8>),
    /// The same. The minima are `-8 * scale`, and absent.
    Q4Symmetric(Array<Q4<0>>),
    /// The same.
    Q4(Array<Q4<PANEL>>),
    /// The same.
    Q4K(Array<Q4K>),
    /// The same.
    Q6K(Array<Q6K>),
}

/// How weights are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Storage {
    /// Everything in `f32`.
    F32,
    /// As the checkpoint has it, floating point of 32 bits rounded to `bf16`.
    Compact {
        /// Whether the products of `bf16` weights are taken in pairs.
        pairs: bool,
    },
}

/// What form a matrix wants its input rows in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InputForm {
    /// As they are.
    F32,
    /// Rounded to `bf16`.
    Pairs,
    /// In blocks of 32 signed bytes.
    Quantised,
}

impl Matrix {
    /// Packs the rows `range` of a tensor.
    ///
    /// # Errors
    /// candle's message where it cannot dequantise the type.
    pub(super) fn pack(
        tensor: &HostTensor<'_>,
        range: std::ops::Range<usize>,
        storage: Storage,
        arena: &mut Arena,
    ) -> Result<Self, String> {
        let (outputs, inputs) = (range.len(), tensor.cols);
        let mut pack = Pack {
            tensor,
            first: range.start,
            outputs,
            arena,
        };
        let panels = match (storage, tensor.dtype) {
            (Storage::Compact { .. }, GgmlDType::Q8_0) => Panels::Q8(pack.blocks(Q8::fill)?),
            (Storage::Compact { .. }, GgmlDType::Q4_0) => Panels::Q4Symmetric(pack.blocks(Q4::fill)?),
            (Storage::Compact { .. }, GgmlDType::Q4_1) => Panels::Q4(pack.blocks(Q4::fill)?),
            (Storage::Compact { .. }, GgmlDType::Q4K) => Panels::Q4K(pack.blocks(Q4K::fill)?),
            (Storage::Compact { .. }, GgmlDType::Q6K) => Panels::Q6K(pack.blocks(Q6K::fill)?),
            (Storage::Compact { pairs: true }, GgmlDType::BF16 | GgmlDType::F32) => {
                Panels::Pairs(pack.pairs()?)
            }
            (Storage::Compact { .. }, GgmlDType::BF16 | GgmlDType::F32) => Panels::Bf16(pack.lines()?),
            (Storage::Compact { .. }, _) => Panels::F16(pack.lines()?),
            (Storage::F32, _) => Panels::F32(pack.lines()?),
        };
        Ok(Self {
            outputs,
            inputs,
            panels,
        })
    }

    /// Packs numbers, `[outputs, inputs]`.
    ///
    /// # Errors
    /// As [`pack`](Self::pack); none is known.
    pub(super) fn from_f32(
        outputs: usize,
        inputs: usize,
        numbers: &[f32],
        storage: Storage,
        arena: &mut Arena,
    ) -> Result<Self, String> {
        let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        let tensor = HostTensor {
            rows: outputs,
            cols: inputs,
            dtype: GgmlDType::F32,
            data: &bytes,
            order: crate::backend::RowOrder::Plain,
        };
        Self::pack(&tensor, 0..outputs, storage, arena)
    }

    /// How many panels.
    pub(super) fn panel_count(&self) -> usize {
        self.outputs.div_ceil(PANEL)
    }

    /// Bytes in memory.
    pub(super) fn bytes(&self) -> usize {
        match &self.panels {
            Panels::F32(panels) => size_of_val(&**panels),
            Panels::F16(panels) => size_of_val(&**panels),
            Panels::Bf16(panels) => size_of_val(&**panels),
            Panels::Pairs(panels) => size_of_val(&**panels),
            Panels::Q8(panels) => size_of_val(&**panels),
            Panels::Q4Symmetric(panels) => size_of_val(&**panels),
            Panels::Q4(panels) => size_of_val(&**panels),
            Panels::Q4K(panels) => size_of_val(&**panels),
            Panels::Q6K(panels) => size_of_val(&**panels),
        }
    }

    pub(super) fn input_form(&self) -> InputForm {
        match self.panels {
            Panels::F32(_) | Panels::F16(_) | Panels::Bf16(_) => InputForm::F32,
            Panels::Pairs(_) => InputForm::Pairs,
            Panels::Q8(_) | Panels::Q4Symmetric(_) | Panels::Q4(_) | Panels::Q4K(_) | Panels::Q6K(_) => {
                InputForm::Quantised
            }
        }
    }

    /// Writes the weights of one output to `to`, in `f32`.
    pub(super) fn read_output(&self, output: usize, to: &mut [f32]) {
        let (panel, lane) = (output / PANEL, output % PANEL);
        match &self.panels {
            Panels::F32(panels) => float::read(panel_of(panels, panel, self.inputs), lane, to),
            Panels::F16(panels) => float::read(panel_of(panels, panel, self.inputs), lane, to),
            Panels::Bf16(panels) => float::read(panel_of(panels, panel, self.inputs), lane, to),
            Panels::Pairs(panels) => {
                float::read_pairs(panel_of(panels, panel, self.inputs.div_ceil(2)), lane, to);
            }
            Panels::Q8(panels) => quant::read(panel_of(panels, panel, self.inputs / BLOCK), lane, to),
            Panels::Q4Symmetric(panels) => {
                quant::read(panel_of(panels, panel, self.inputs / BLOCK), lane, to);
            }
            Panels::Q4(panels) => quant::read(panel_of(panels, panel, self.inputs / BLOCK), lane, to),
            Panels::Q4K(panels) => quant::read(panel_of(panels, panel, self.inputs / BLOCK), lane, to),
            Panels::Q6K(panels) => quant::read(panel_of(panels, panel, self.inputs / BLOCK), lane, to),
        }
    }
}

/// Panel `index` of panels of `len` units each.
#[inline(always)]
pub(super) fn panel_of<T>(panels: &[T], index: usize, len: usize) -> &[T] {
    &panels[index * len..(index + 1) * len]
}

/// Rows of a tensor on their way into panels.
struct Pack<'a> {
    tensor: &'a HostTensor<'a>,
    first: usize,
    outputs: usize,
    arena: &'a mut Arena,
}

impl Pack<'_> {
    fn keep<T: Copy>(&mut self, panels: &[T]) -> Result<Array<T>, String> {
        self.arena
            .copy(panels)
            .map_err(|error| format!("no memory for the weights: {error}"))
    }

    /// `inputs` lines for each panel.
    fn lines<W: Number>(&mut self) -> Result<Array<Line<W>>, String> {
        let inputs = self.tensor.cols;
        let mut lines = vec![Line::default(); self.outputs.div_ceil(PANEL) * inputs];
        self.each_row_of_panel(&mut lines, inputs, |panel, lane, numbers| {
            for (line, number) in panel.iter_mut().zip(numbers) {
                line.0[lane] = W::of(*number);
            }
        })?;
        self.keep(&lines)
    }

    fn pairs(&mut self) -> Result<Array<PairLine>, String> {
        let pairs = self.tensor.cols.div_ceil(2);
        let mut lines = vec![PairLine::default(); self.outputs.div_ceil(PANEL) * pairs];
        self.each_row_of_panel(&mut lines, pairs, |panel, lane, numbers| {
            for (line, pair) in panel.iter_mut().zip(numbers.chunks(2)) {
                for (to, number) in line.0[lane].iter_mut().zip(pair) {
                    *to = bf16::from_f32(*number);
                }
            }
        })?;
        self.keep(&lines)
    }

    /// Calls `put` with a panel, a lane and its output's weights in `f32`, for every output.
    fn each_row_of_panel<T: Send>(
        &self,
        panels: &mut [T],
        panel_len: usize,
        put: impl Fn(&mut [T], usize, &[f32]) + Sync,
    ) -> Result<(), String> {
        let (tensor, first, outputs) = (self.tensor, self.first, self.outputs);
        panels
            .par_chunks_mut(panel_len.max(1))
            .enumerate()
            .try_for_each(|(index, panel)| {
                for lane in 0..PANEL.min(outputs - index * PANEL) {
                    let row = first + index * PANEL + lane;
                    let row = HostTensor {
                        rows: 1,
                        cols: tensor.cols,
                        dtype: tensor.dtype,
                        data: tensor.row(row),
                        order: crate::backend::RowOrder::Plain,
                    };
                    put(panel, lane, &row.to_f32()?);
                }
                Ok(())
            })
    }

    /// The quantised blocks, `inputs / BLOCK` for each panel. `fill` puts one stored block of an output into the `N` that it
    /// makes here.
    fn blocks<B: Copy + Default + Send + Sync, const N: usize>(
        &mut self,
        fill: impl Fn(&mut [B; N], usize, &[u8]) + Sync,
    ) -> Result<Array<B>, String> {
        let (tensor, first, outputs) = (self.tensor, self.first, self.outputs);
        let per_row = tensor.cols / BLOCK;
        let mut blocks = vec![B::default(); outputs.div_ceil(PANEL) * per_row];
        blocks
            .par_chunks_mut(per_row.max(1))
            .enumerate()
            .for_each(|(index, panel)| {
                let (groups, _) = panel.as_chunks_mut::<N>();
                for lane in 0..PANEL.min(outputs - index * PANEL) {
                    let row = tensor.row(first + index * PANEL + lane);
                    let stored = row.chunks_exact(row.len() / groups.len().max(1));
                    for (group, bytes) in groups.iter_mut().zip(stored) {
                        fill(group, lane, bytes);
                    }
                }
            });
        self.keep(&blocks)
    }
}
