//! Products with weights, and with the adapters of the rows.

use std::{ops::Range, sync::Arc};

use half::bf16;

use super::{
    adapter::{CpuAdapter, LoraRows, Pair},
    matrix::{self, BLOCK, InputForm, Line, Matrix, PANEL, PairLine, Panels, QuantBlock, QuantInput, Sums},
    pool::{Cut, Parts, Pool},
    simd::{Kernel, LANES, Level, Number, Simd},
};
use crate::adapter::LoraSite;

/// Rows of activations that one task takes with a panel: with wide inputs, what stays in the second cache.
const ROW_BLOCK: usize = 64;
/// Pieces of a product for each thread: enough that one that is late delays the others little.
const PIECES: usize = 8;
/// Rows of one task of the first half of a LoRA.
const SHRINK_ROWS: usize = 8;

/// Stacked projections of one input.
pub struct Linear {
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    parts: Vec<Part>,
    /// Every panel: its part, and which of the part's it is.
    panels: Vec<(u32, u32)>,
}

/// One of the projections.
pub(super) struct Part {
    site: LoraSite,
    /// Its columns in the output.
    columns: Range<usize>,
    bias: Option<Vec<f32>>,
    matrix: Arc<Matrix>,
}

impl Part {
    pub(super) fn new(
        site: LoraSite,
        columns: Range<usize>,
        bias: Option<Vec<f32>>,
        matrix: Arc<Matrix>,
    ) -> Self {
        Self {
            site,
            columns,
            bias,
            matrix,
        }
    }
}

/// What products work in beside their operands, kept from step to step.
#[derive(Default)]
pub(super) struct Scratch {
    pairs: Vec<[bf16; 2]>,
    quantised: Vec<QuantInput>,
    /// What the first halves of the LoRAs give.
    shrunk: Vec<f32>,
    /// Where in `shrunk` each row's is, `[row of LoraRows, part]`, and the end.
    shrunk_at: Vec<usize>,
    /// The first entry of `shrunk_at` for each row of the product.
    first_of_row: Vec<usize>,
}

/// The operands of a product.
pub(super) struct Operands<'a, E> {
    /// `[rows, inputs]`.
    pub(super) x: &'a [f32],
    pub(super) rows: usize,
    pub(super) lora: &'a LoraRows,
    /// Of the step's segments.
    pub(super) adapters: &'a [&'a CpuAdapter<E>],
}

impl Linear {
    pub(super) fn new(inputs: usize, parts: Vec<Part>) -> Self {
        let panels = parts.iter().enumerate().flat_map(|(part, of)| {
            (0..of.matrix.panel_count()).map(move |panel| (part as u32, panel as u32))
        });
        Self {
            inputs,
            outputs: parts.iter().map(|part| part.columns.len()).sum(),
            panels: panels.collect(),
            parts,
        }
    }

    /// `out = x @ weight^T + bias + LoRA`, `[rows, outputs]`.
    pub(super) fn apply<E: Number>(
        &self,
        pool: &mut Pool,
        level: Level,
        scratch: &mut Scratch,
        operands: &Operands<'_, E>,
        out: &mut [f32],
    ) {
        self.convert(pool, level, scratch, operands);
        self.shrink(pool, level, scratch, operands);
        let blocks = Cut::of(operands.rows, ROW_BLOCK);
        let out = Parts::new(out);
        // Neighbouring panels go to one thread: their outputs may share cache lines.
        let tasks = self.panels.len() * blocks.pieces();
        let tasks = Cut::of(tasks, tasks.div_ceil(PIECES * pool.threads()).max(1));
        pool.run(tasks.pieces(), |piece| {
            for task in tasks.piece(piece) {
                let (part, panel) = self.panels[task / blocks.pieces()];
                level.run(PanelOfRows {
                    linear: self,
                    part: part as usize,
                    panel: panel as usize,
                    rows: blocks.piece(task % blocks.pieces()),
                    operands,
                    scratch,
                    out,
                });
            }
        });
    }

    /// Puts the input into the forms that the matrices want.
    fn convert<E>(&self, pool: &mut Pool, level: Level, scratch: &mut Scratch, operands: &Operands<'_, E>) {
        let rows = pool.cut(operands.rows, 2 * self.inputs);
        let wants = |form| self.parts.iter().any(|part| part.matrix.input_form() == form);
        let x_of = |row: usize| &operands.x[row * self.inputs..(row + 1) * self.inputs];
        if wants(InputForm::Pairs) {
            let width = self.inputs.div_ceil(2);
            scratch.pairs.resize(operands.rows * width, Default::default());
            let to = Parts::new(&mut scratch.pairs);
            pool.run(rows.pieces(), |task| {
                for row in rows.piece(task) {
                    // SAFETY: a row is in one piece.
                    let to = unsafe { to.part(row * width..(row + 1) * width) };
                    level.run(Round { x: x_of(row), to });
                }
            });
        }
        if wants(InputForm::Quantised) {
            let width = self.inputs / BLOCK;
            scratch
                .quantised
                .resize(operands.rows * width, Default::default());
            let to = Parts::new(&mut scratch.quantised);
            pool.run(rows.pieces(), |task| {
                for row in rows.piece(task) {
                    // SAFETY: a row is in one piece.
                    let to = unsafe { to.part(row * width..(row + 1) * width) };
                    level.run(Quantise { x: x_of(row), to });
                }
            });
        }
    }

    /// The first halves of the LoRAs.
    fn shrink<E: Number>(
        &self,
        pool: &mut Pool,
        level: Level,
        scratch: &mut Scratch,
        operands: &Operands<'_, E>,
    ) {
        let lora = operands.lora;
        if lora.rows.is_empty() {
            return;
        }
        let pair = |segment: usize, part: usize| operands.adapters[segment].pair(self.parts[part].site);
        let parts = self.parts.len();
        scratch.shrunk_at.clear();
        scratch.first_of_row.clear();
        scratch.first_of_row.resize(operands.rows, 0);
        let mut end = 0;
        for (row, segment) in &lora.rows {
            scratch.first_of_row[*row] = scratch.shrunk_at.len();
            for part in 0..parts {
                scratch.shrunk_at.push(end);
                end += pair(*segment, part).map_or(0, |pair| pair.rank);
            }
        }
        scratch.shrunk_at.push(end);
        scratch.shrunk.resize(end, 0.0);
        let (to, at) = (Parts::new(&mut scratch.shrunk), &scratch.shrunk_at);
        let rows = Cut::of(lora.rows.len(), SHRINK_ROWS);
        pool.run(rows.pieces() * parts, |task| {
            let part = task % parts;
            for index in rows.piece(task / parts) {
                let (row, segment) = lora.rows[index];
                let Some(pair) = pair(segment, part) else { continue };
                let at = &at[index * parts + part..];
                // SAFETY: each row and part has a range of its own, and is in one task.
                let to = unsafe { to.part(at[0]..at[1]) };
                let x = &operands.x[row * self.inputs..(row + 1) * self.inputs];
                level.run(Shrink { pair, x, to });
            }
        });
    }
}

/// Rounds a row to pairs.
struct Round<'a> {
    x: &'a [f32],
    to: &'a mut [[bf16; 2]],
}

impl Kernel for Round<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for (x, to) in self.x.chunks(2).zip(self.to) {
            let second = x.get(1).copied().unwrap_or(0.0);
            *to = [bf16::from_f32(x[0]), bf16::from_f32(second)];
        }
    }
}

/// Quantises a row.
struct Quantise<'a> {
    x: &'a [f32],
    to: &'a mut [QuantInput],
}

impl Kernel for Quantise<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        matrix::quantise(simd, self.x, self.to);
    }
}

/// The first half of one LoRA of one row.
struct Shrink<'a, E> {
    pair: &'a Pair<E>,
    x: &'a [f32],
    to: &'a mut [f32],
}

impl<E: Number> Kernel for Shrink<'_, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        self.pair.shrink(simd, self.x, self.to);
    }
}

/// The second half of one LoRA of one row, for a panel of outputs.
pub(super) struct Expand<'a, E> {
    pub(super) pair: &'a Pair<E>,
    pub(super) panel: usize,
    pub(super) shrunk: &'a [f32],
    pub(super) out: &'a mut [f32],
}

impl<E: Number> Kernel for Expand<'_, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        self.pair.expand(simd, self.panel, self.shrunk, self.out);
    }
}

/// One task: a panel of outputs for some rows.
struct PanelOfRows<'a, E> {
    linear: &'a Linear,
    part: usize,
    panel: usize,
    rows: Range<usize>,
    operands: &'a Operands<'a, E>,
    scratch: &'a Scratch,
    out: Parts<'a, f32>,
}

impl<E: Number> Kernel for PanelOfRows<'_, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        self.prefetch(simd);
        let part = &self.linear.parts[self.part];
        let (matrix, index, inputs) = (&part.matrix, self.panel, part.matrix.inputs);
        let x = Rows {
            data: self.operands.x,
            width: inputs,
        };
        let quantised = Rows {
            data: &self.scratch.quantised,
            width: inputs / BLOCK,
        };
        match &matrix.panels {
            Panels::F32(panels) => self.tiles(simd, matrix::panel_of(panels, index, inputs), x),
            Panels::F16(panels) => self.tiles(simd, matrix::panel_of(panels, index, inputs), x),
            Panels::Bf16(panels) => self.tiles(simd, matrix::panel_of(panels, index, inputs), x),
            Panels::Pairs(panels) => {
                let width = inputs.div_ceil(2);
                let data = &self.scratch.pairs;
                self.tiles(simd, matrix::panel_of(panels, index, width), Rows { data, width });
            }
            Panels::Q8(panels) => {
                self.tiles(simd, matrix::panel_of(panels, index, inputs / BLOCK), quantised);
            }
            Panels::Q4Symmetric(panels) => {
                self.tiles(simd, matrix::panel_of(panels, index, inputs / BLOCK), quantised);
            }
            Panels::Q4(panels) => {
                self.tiles(simd, matrix::panel_of(panels, index, inputs / BLOCK), quantised);
            }
            Panels::Q4K(panels) => {
                self.tiles(simd, matrix::panel_of(panels, index, inputs / BLOCK), quantised);
            }
            Panels::Q6K(panels) => {
                self.tiles(simd, matrix::panel_of(panels, index, inputs / BLOCK), quantised);
            }
        }
        self.expand(simd);
    }
}

impl<'a, E: Number> PanelOfRows<'a, E> {
    /// Asks for the second halves of the LoRAs.
    #[inline(always)]
    fn prefetch<S: Simd>(&self, simd: S) {
        let mut last = None;
        for (_, segment) in self.adapted_rows() {
            if last != Some(segment) {
                if let Some(pair) = self.pair(segment) {
                    pair.prefetch(simd, self.panel);
                }
                last = Some(segment);
            }
        }
    }

    /// The rows that have an adapter, with its segment.
    #[inline(always)]
    fn adapted_rows(&self) -> impl Iterator<Item = (usize, u32)> {
        let lora = self.operands.lora;
        let rows = if lora.rows.is_empty() {
            0..0
        } else {
            self.rows.clone()
        };
        rows.filter_map(|row| Some((row, lora.segment_of[row]?)))
    }

    /// What a segment's adapter adds to this part.
    #[inline(always)]
    fn pair(&self, segment: u32) -> Option<&Pair<E>> {
        self.operands.adapters[segment as usize].pair(self.linear.parts[self.part].site)
    }

    /// All rows, in tiles of as many as the registers hold.
    #[inline(always)]
    fn tiles<S: Simd, T: Tile<X>, X>(&self, simd: S, panel: &[T], x: Rows<'_, X>) {
        let mut row = self.rows.start;
        while S::ROWS >= 8 && row + 8 <= self.rows.end {
            self.store(simd, row, T::sums::<S, 8>(simd, panel, x.tile(row)));
            row += 8;
        }
        while S::ROWS >= 4 && row + 4 <= self.rows.end {
            self.store(simd, row, T::sums::<S, 4>(simd, panel, x.tile(row)));
            row += 4;
        }
        while row + 2 <= self.rows.end {
            self.store(simd, row, T::sums::<S, 2>(simd, panel, x.tile(row)));
            row += 2;
        }
        if row < self.rows.end {
            self.store(simd, row, T::sums::<S, 1>(simd, panel, x.tile(row)));
        }
    }

    /// Writes a tile, with its bias.
    #[inline(always)]
    fn store<S: Simd, const M: usize>(&self, simd: S, first: usize, sums: Sums<S, M>) {
        let bias = &self.linear.parts[self.part].bias;
        for (row, sums) in sums.into_iter().enumerate() {
            // SAFETY: one row at a time.
            let out = unsafe { self.out_of(first + row) };
            if let ([low, high], []) = out.as_chunks_mut::<LANES>() {
                simd.store(sums[0], low);
                simd.store(sums[1], high);
            } else {
                let mut padded = [[0.0; LANES]; 2];
                for (to, sums) in padded.iter_mut().zip(sums) {
                    simd.store(sums, to);
                }
                out.copy_from_slice(&padded.as_flattened()[..out.len()]);
            }
            if let Some(bias) = bias {
                for (out, bias) in out.iter_mut().zip(&bias[self.panel * PANEL..]) {
                    *out += bias;
                }
            }
        }
    }

    /// The second halves of the LoRAs.
    #[inline(always)]
    fn expand<S: Simd>(&self, simd: S) {
        for (row, segment) in self.adapted_rows() {
            let Some(pair) = self.pair(segment) else { continue };
            let at = &self.scratch.shrunk_at[self.scratch.first_of_row[row] + self.part..];
            let shrunk = &self.scratch.shrunk[at[0]..at[1]];
            // SAFETY: one row at a time.
            let out = unsafe { self.out_of(row) };
            pair.expand(simd, self.panel, shrunk, out);
        }
    }

    /// This panel's columns of a row.
    ///
    /// # Safety
    /// The caller holds no others. (Each task has rows and columns of its own.)
    #[inline(always)]
    unsafe fn out_of(&self, row: usize) -> &'a mut [f32] {
        let columns = &self.linear.parts[self.part].columns;
        let begin = columns.start + self.panel * PANEL;
        let end = columns.end.min(begin + PANEL);
        let row = row * self.linear.outputs;
        // SAFETY: the caller sees to it.
        unsafe { self.out.part(row + begin..row + end) }
    }
}

/// Rows of an input in some form.
#[derive(Clone, Copy)]
struct Rows<'a, X> {
    data: &'a [X],
    width: usize,
}

impl<'a, X> Rows<'a, X> {
    #[inline(always)]
    fn tile<const M: usize>(&self, first: usize) -> [&'a [X]; M] {
        std::array::from_fn(|row| &self.data[(first + row) * self.width..(first + row + 1) * self.width])
    }
}

/// What a panel is made of, with its product.
trait Tile<X>: Sized {
    fn sums<S: Simd, const M: usize>(simd: S, panel: &[Self], x: [&[X]; M]) -> Sums<S, M>;
}

impl<W: Number> Tile<f32> for Line<W> {
    #[inline(always)]
    fn sums<S: Simd, const M: usize>(simd: S, panel: &[Self], x: [&[f32]; M]) -> Sums<S, M> {
        matrix::product(simd, panel, x)
    }
}

impl Tile<[bf16; 2]> for PairLine {
    #[inline(always)]
    fn sums<S: Simd, const M: usize>(simd: S, panel: &[Self], x: [&[[bf16; 2]]; M]) -> Sums<S, M> {
        matrix::pair_product(simd, panel, x)
    }
}

impl<Q: QuantBlock> Tile<QuantInput> for Q {
    #[inline(always)]
    fn sums<S: Simd, const M: usize>(simd: S, panel: &[Self], x: [&[QuantInput]; M]) -> Sums<S, M> {
        matrix::quant_product(simd, panel, x)
    }
}
