//! Products with weights: linear maps, the embedding, the output head.

use std::ops::Range;

use candle_core::{Device, Tensor};

use super::{ReferenceAdapter, adapter, failed, kernels};
use crate::{
    adapter::LoraSite,
    backend::{HostTensor, LinearSpec, Step},
    batch::Logits,
    error::Result,
};

/// Stacked projections of one input.
pub struct Linear {
    /// `[in, out]`: the product then reads the weights in the order in which it computes.
    weight: Tensor,
    bias: Option<Vec<f32>>,
    in_features: usize,
    out_features: usize,
    /// Where each projection's columns are in the output.
    parts: Vec<(LoraSite, Range<usize>)>,
}

impl Linear {
    pub(super) fn new(spec: LinearSpec<'_>) -> Result<Self> {
        let (in_features, out_features) = (spec.in_features, spec.out_features());
        let mut stacked = Vec::with_capacity(in_features * out_features);
        for weight in &spec.weights {
            stacked.extend(weight.to_f32().map_err(failed)?);
        }
        let mut column = 0;
        let parts = spec
            .parts
            .iter()
            .map(|part| {
                column += part.out_features;
                (part.site, column - part.out_features..column)
            })
            .collect();
        Ok(Self {
            weight: transposed(out_features, in_features, &stacked)?,
            bias: spec.bias,
            in_features,
            out_features,
            parts,
        })
    }

    /// `out = x @ weight + bias + LoRA`.
    pub(super) fn apply(&self, step: &Step, x: &[f32], out: &mut Vec<f32>) -> Result<()> {
        *out = product(x, &self.weight)?;
        if let Some(bias) = &self.bias {
            for out in out.chunks_exact_mut(self.out_features) {
                kernels::add(bias, out);
            }
        }
        if step.segments.is_empty() {
            return Ok(());
        }
        let mut adapters: Vec<Option<&ReferenceAdapter>> = vec![None; step.rows()];
        for (row, adapter) in adapter::by_row(step)? {
            adapters[row] = Some(adapter);
        }
        // Roughly: rank 8 on every part.
        let work = 8 * (self.in_features + self.out_features);
        kernels::for_each_row(out, self.out_features, work, |row, out| {
            let Some(adapter) = adapters[row] else { return };
            let x = &x[row * self.in_features..(row + 1) * self.in_features];
            for (site, columns) in &self.parts {
                if let Some(pair) = adapter.pairs.get(site) {
                    pair.add(x, &mut out[columns.clone()]);
                }
            }
        });
        Ok(())
    }
}

/// The input embedding.
pub struct Embedding {
    /// `[hidden, vocab]`, so that a tied head is the same memory.
    table: Tensor,
    pub(super) scale: f32,
}

impl Embedding {
    pub(super) fn new(table: &HostTensor<'_>, scale: f32) -> Result<Self> {
        let numbers = table.to_f32().map_err(failed)?;
        Ok(Self {
            table: transposed(table.rows, table.cols, &numbers)?,
            scale,
        })
    }

    /// Writes the tokens' rows, scaled.
    pub(super) fn read(&self, tokens: &[u32], out: &mut [f32]) -> Result<()> {
        let read = || {
            let tokens = Tensor::new(tokens, &Device::Cpu)?;
            self.table
                .index_select(&tokens, 1)?
                .t()?
                .flatten_all()?
                .to_vec1::<f32>()
        };
        let rows = read().map_err(failed)?;
        for (out, x) in out.iter_mut().zip(rows) {
            *out = x * self.scale;
        }
        Ok(())
    }
}

/// The output head.
pub struct Head {
    /// `[hidden, vocab]`.
    weight: Tensor,
    soft_cap: Option<f32>,
}

impl Head {
    pub(super) fn tied(embedding: &Embedding, soft_cap: Option<f32>) -> Self {
        Self {
            weight: embedding.table.clone(),
            soft_cap,
        }
    }

    pub(super) fn own(weight: &HostTensor<'_>, soft_cap: Option<f32>) -> Result<Self> {
        let numbers = weight.to_f32().map_err(failed)?;
        Ok(Self {
            weight: transposed(weight.rows, weight.cols, &numbers)?,
            soft_cap,
        })
    }

    /// The logits of the wanted rows of `x`, `[rows, hidden]`.
    pub(super) fn logits(&self, step: &Step, x: &[f32]) -> Result<Logits> {
        let (hidden, vocab) = self.weight.dims2().map_err(failed)?;
        let row_of = |row: usize| &x[row * hidden..(row + 1) * hidden];
        let wanted: Vec<f32> = step
            .wanted
            .iter()
            .flat_map(|row| row_of(*row as usize))
            .copied()
            .collect();
        let mut logits = Logits {
            data: product(&wanted, &self.weight)?,
            vocab,
        };
        for (row, adapter) in adapter::by_row(step)? {
            let Ok(index) = step.wanted.binary_search(&(row as u32)) else {
                continue;
            };
            let out = logits.row_mut(index);
            if let Some(head) = &adapter.lm_head {
                out.copy_from_slice(&product(row_of(row), head)?);
            }
            if let Some(pair) = adapter.pairs.get(&LoraSite::LmHead) {
                pair.add(row_of(row), out);
            }
        }
        if let Some(cap) = self.soft_cap {
            for logit in &mut logits.data {
                *logit = kernels::soft_cap(*logit, cap);
            }
        }
        Ok(logits)
    }
}

/// `x @ weight`: `[rows, in]` by `[in, out]`.
fn product(x: &[f32], weight: &Tensor) -> Result<Vec<f32>> {
    let multiply = || {
        let (in_features, out_features) = weight.dims2()?;
        let rows = x.len() / in_features;
        if rows == 0 {
            return Ok(Vec::new());
        }
        // See the module of the back end: a lone row would be summed in another order.
        let padded = rows.max(2);
        let mut x = x.to_vec();
        x.resize(padded * in_features, 0.0);
        let x = Tensor::from_vec(x, (padded, in_features), &Device::Cpu)?;
        let mut out = x.matmul(weight)?.flatten_all()?.to_vec1()?;
        out.truncate(rows * out_features);
        Ok::<_, candle_core::Error>(out)
    };
    multiply().map_err(failed)
}

/// A `[cols, rows]` tensor of a `[rows, cols]` matrix.
pub(super) fn transposed(rows: usize, cols: usize, matrix: &[f32]) -> Result<Tensor> {
    let mut numbers = vec![0.0; matrix.len()];
    kernels::transpose(rows, cols, matrix, &mut numbers);
    Tensor::from_vec(numbers, (cols, rows), &Device::Cpu).map_err(failed)
}
