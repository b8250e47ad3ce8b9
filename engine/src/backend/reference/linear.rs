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

/// Base products are of whole multiples of so many rows: a vector register of them.
const ROWS_TOGETHER: usize = 8;

/// Stacked projections of one input.
pub struct Linear {
    /// `[out, in]`.
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
            weight: matrix(out_features, in_features, stacked)?,
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
    /// `[vocab, hidden]`; a tied head is the same memory.
    table: Tensor,
    pub(super) scale: f32,
}

impl Embedding {
    pub(super) fn new(table: &HostTensor<'_>, scale: f32) -> Result<Self> {
        let numbers = table.to_f32().map_err(failed)?;
        Ok(Self {
            table: matrix(table.rows, table.cols, numbers)?,
            scale,
        })
    }

    /// Writes the tokens' rows, scaled.
    pub(super) fn read(&self, tokens: &[u32], out: &mut [f32]) -> Result<()> {
        let read = || {
            let tokens = Tensor::new(tokens, &Device::Cpu)?;
            self.table
                .index_select(&tokens, 0)?
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
    /// `[vocab, hidden]`.
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
            weight: matrix(weight.rows, weight.cols, numbers)?,
            soft_cap,
        })
    }

    /// The logits of the wanted rows of `x`, `[rows, hidden]`.
    pub(super) fn logits(&self, step: &Step, x: &[f32]) -> Result<Logits> {
        let (vocab, hidden) = self.weight.dims2().map_err(failed)?;
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

/// `x @ weight^T`: `[rows, in]` by `[out, in]`, computed as `weight @ x^T`, which streams the weights as they lie.
fn product(x: &[f32], weight: &Tensor) -> Result<Vec<f32>> {
    let multiply = || {
        let (out_features, in_features) = weight.dims2()?;
        let rows = x.len() / in_features;
        if rows == 0 {
            return Ok(Vec::new());
        }
        // See the module of the back end.
        let padded = rows.next_multiple_of(ROWS_TOGETHER);
        let mut columns = vec![0.0; in_features * padded];
        kernels::transpose(rows, in_features, x, padded, &mut columns);
        let columns = Tensor::from_vec(columns, (in_features, padded), &Device::Cpu)?;
        let product = weight.matmul(&columns)?.flatten_all()?.to_vec1::<f32>()?;
        let mut out = vec![0.0; padded * out_features];
        kernels::transpose(out_features, padded, &product, out_features, &mut out);
        out.truncate(rows * out_features);
        Ok::<_, candle_core::Error>(out)
    };
    multiply().map_err(failed)
}

/// A `[rows, cols]` tensor.
pub(super) fn matrix(rows: usize, cols: usize, numbers: Vec<f32>) -> Result<Tensor> {
    Tensor::from_vec(numbers, (rows, cols), &Device::Cpu).map_err(failed)
}
