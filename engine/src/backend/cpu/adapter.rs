//! Adapters as this back end holds them, and their products.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    failed,
    matrix::{Line, Matrix, PANEL, Storage, panel_of},
    memory::{Arena, Array},
    simd::{LANES, Number, Simd},
};
use crate::{
    adapter::{LoraPair, LoraSite, LoraWeights},
    backend::Step,
    batch::{AdapterLoader, DeviceAdapter},
    error::Result,
};

/// Lays adapters out.
pub(super) struct Loader<E> {
    /// Width of the residual stream: the columns of an output head.
    pub(super) hidden: usize,
    pub(super) storage: Storage,
    pub(super) number: std::marker::PhantomData<fn() -> E>,
}

/// An adapter: its pairs at their true rank.
pub(super) struct CpuAdapter<E> {
    pairs: BTreeMap<LoraSite, Pair<E>>,
    /// An output head of its own.
    pub(super) lm_head: Option<Arc<Matrix>>,
}

/// A low-rank pair.
pub(super) struct Pair<E> {
    pub(super) rank: usize,
    scale: f32,
    in_features: usize,
    /// `[rank, in]`.
    a: Array<E>,
    /// `b` in panels of outputs: a line for each rank.
    b: Array<Line<E>>,
}

impl<E: Number> Pair<E> {
    fn new(pair: &LoraPair, arena: &mut Arena) -> std::io::Result<Self> {
        let panels = pair.out_features.div_ceil(PANEL);
        let mut b = vec![Line::default(); panels * pair.rank];
        for (output, row) in pair.b.chunks_exact(pair.rank).enumerate() {
            let begin = output / PANEL * pair.rank;
            for (line, number) in b[begin..begin + pair.rank].iter_mut().zip(row) {
                line.set(output % PANEL, *number);
            }
        }
        let a: Vec<E> = pair.a.iter().map(|number| E::of(*number)).collect();
        Ok(Self {
            rank: pair.rank,
            scale: pair.scale,
            in_features: pair.in_features,
            a: arena.copy(&a)?,
            b: arena.copy(&b)?,
        })
    }

    /// `to = scale * a @ x`, `[rank]`.
    #[inline(always)]
    pub(super) fn shrink<S: Simd>(&self, simd: S, x: &[f32], to: &mut [f32]) {
        /// Ranks that share the reading of `x`.
        const TOGETHER: usize = 4;
        let rows = self.a.chunks_exact(self.in_features);
        let mut rows = rows.zip(to);
        loop {
            let mut four = [(); TOGETHER].map(|()| rows.next());
            match &mut four {
                [Some(a), Some(b), Some(c), Some(d)] => {
                    let sums = dots(simd, [a.0, b.0, c.0, d.0], x);
                    for (to, sum) in [&mut *a.1, b.1, c.1, d.1].into_iter().zip(sums) {
                        *to = self.scale * sum;
                    }
                }
                some => {
                    for (row, to) in some.iter_mut().flatten() {
                        [**to] = dots(simd, [row], x).map(|sum| self.scale * sum);
                    }
                    return;
                }
            }
        }
    }

    /// `to = factor * scale * a[:, column]`: the embedding's, whose input is a one-hot vector.
    pub(super) fn shrink_column(&self, column: usize, factor: f32, to: &mut [f32]) {
        for (row, to) in self.a.chunks_exact(self.in_features).zip(to) {
            *to = factor * self.scale * row[column].to();
        }
    }

    /// Adds `b @ shrunk` to a panel of outputs, in the order of the ranks.
    #[inline(always)]
    pub(super) fn expand<S: Simd>(&self, simd: S, panel: usize, shrunk: &[f32], out: &mut [f32]) {
        if let ([low, high], []) = out.as_chunks_mut::<LANES>() {
            self.expand_whole(simd, panel, shrunk, [low, high]);
        } else {
            let mut padded = [[0.0; LANES]; 2];
            let numbers = padded.as_flattened_mut();
            numbers[..out.len()].copy_from_slice(out);
            let [low, high] = &mut padded;
            self.expand_whole(simd, panel, shrunk, [low, high]);
            out.copy_from_slice(&padded.as_flattened()[..out.len()]);
        }
    }

    #[inline(always)]
    fn expand_whole<S: Simd>(&self, simd: S, panel: usize, shrunk: &[f32], out: [&mut [f32; LANES]; 2]) {
        let mut sums = [simd.load(out[0]), simd.load(out[1])];
        for (line, x) in panel_of(&self.b, panel, self.rank).iter().zip(shrunk) {
            let (weights, x) = (line.load(simd), simd.splat(*x));
            for half in 0..2 {
                sums[half] = simd.fma(weights[half], x, sums[half]);
            }
        }
        for (sum, out) in sums.into_iter().zip(out) {
            simd.store(sum, out);
        }
    }

    /// Asks for what [`expand`](Self::expand) will read: too short a stretch for the machine to foresee it.
    #[inline(always)]
    pub(super) fn prefetch<S: Simd>(&self, simd: S, panel: usize) {
        for line in panel_of(&self.b, panel, self.rank) {
            simd.prefetch(line);
        }
    }

    fn bytes(&self) -> usize {
        size_of_val(&*self.a) + size_of_val(&*self.b)
    }
}

/// The products of some rows of weights with `x`.
#[inline(always)]
fn dots<S: Simd, E: Number, const N: usize>(simd: S, rows: [&[E]; N], x: &[f32]) -> [f32; N] {
    let (x_lanes, x_rest) = x.as_chunks::<LANES>();
    let rows = rows.map(|row| row.as_chunks::<LANES>());
    let mut sums = [simd.splat(0.0); N];
    for (index, x) in x_lanes.iter().enumerate() {
        let x = simd.load(x);
        for (sum, row) in sums.iter_mut().zip(rows) {
            *sum = simd.fma(E::load(simd, &row.0[index]), x, *sum);
        }
    }
    let mut totals = [0.0; N];
    for ((total, sum), row) in totals.iter_mut().zip(sums).zip(rows) {
        let rest: f32 = row.1.iter().zip(x_rest).map(|(a, x)| a.to() * x).sum();
        *total = simd.sum(sum) + rest;
    }
    totals
}

impl<E: Number> CpuAdapter<E> {
    pub(super) fn pair(&self, site: LoraSite) -> Option<&Pair<E>> {
        self.pairs.get(&site)
    }

    /// One that this back end laid out.
    pub(super) fn of(adapter: &DeviceAdapter) -> Result<&Self> {
        adapter
            .inner
            .downcast_ref()
            .ok_or_else(|| failed("an adapter was laid out by another back end"))
    }
}

impl<E: Number> AdapterLoader for Loader<E> {
    fn load(&self, weights: &LoraWeights) -> Result<DeviceAdapter> {
        // One mapping holds the pairs.
        let numbers: usize = weights
            .pairs
            .values()
            .map(|pair| pair.a.len() + pair.b.len())
            .sum();
        let mut arena = Arena::new(numbers * size_of::<E>());
        let pairs: BTreeMap<_, _> = weights
            .pairs
            .iter()
            .map(|(site, pair)| Ok((*site, Pair::<E>::new(pair, &mut arena)?)))
            .collect::<std::io::Result<_>>()
            .map_err(|error| failed(format!("no memory for the adapter: {error}")))?;
        let lm_head = weights
            .lm_head
            .as_ref()
            .map(|head| {
                let vocab = head.len() / self.hidden;
                Matrix::from_f32(vocab, self.hidden, head, self.storage, &mut arena)
            })
            .transpose()
            .map_err(failed)?;
        let bytes =
            pairs.values().map(Pair::bytes).sum::<usize>() + lm_head.as_ref().map_or(0, Matrix::bytes);
        let lm_head = lm_head.map(Arc::new);
        Ok(DeviceAdapter {
            generation: weights.generation,
            bytes,
            inner: Arc::new(CpuAdapter { pairs, lm_head }),
        })
    }
}

/// The rows of one product that have an adapter.
#[derive(Default)]
pub(super) struct LoraRows {
    /// Row and segment, grouped by segment.
    pub(super) rows: Vec<(usize, usize)>,
    /// The segment of each row of the product, if it has one.
    pub(super) segment_of: Vec<Option<u32>>,
}

impl LoraRows {
    /// Of a step's rows: `place` says which row of the product each is, if it is in it.
    pub(super) fn set(&mut self, step: &Step, rows: usize, place: impl Fn(usize) -> Option<usize>) {
        self.rows.clear();
        self.segment_of.clear();
        self.segment_of.resize(rows, None);
        for (index, segment) in step.segments.iter().enumerate() {
            for row in &step.lora_rows[segment.rows.clone()] {
                if let Some(row) = place(*row as usize) {
                    self.rows.push((row, index));
                    self.segment_of[row] = Some(index as u32);
                }
            }
        }
    }

    /// One row, of that segment.
    pub(super) fn set_one(&mut self, segment: usize) {
        self.rows = vec![(0, segment)];
        self.segment_of = vec![Some(segment as u32)];
    }
}
