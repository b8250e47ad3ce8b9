//! Adapters as the reference back end holds them.

use std::{collections::BTreeMap, sync::Arc};

use candle_core::Tensor;

use super::{failed, kernels, linear::matrix};
use crate::{
    adapter::{LoraPair, LoraSite, LoraWeights},
    backend::Step,
    batch::{AdapterLoader, DeviceAdapter},
    error::Result,
};

/// Lays adapters out.
pub(super) struct Loader {
    /// Width of the residual stream: the columns of an output head.
    pub(super) hidden: usize,
}

/// An adapter: its pairs at their true rank, `b` transposed so that adding one rank is one pass over the output.
pub struct ReferenceAdapter {
    pub(super) pairs: BTreeMap<LoraSite, Pair>,
    /// An output head of its own, `[vocab, hidden]`.
    pub(super) lm_head: Option<Tensor>,
}

/// A low-rank pair.
pub(super) struct Pair {
    scale: f32,
    in_features: usize,
    out_features: usize,
    /// `[rank, in]`.
    a: Vec<f32>,
    /// `[rank, out]`.
    b: Vec<f32>,
}

impl Pair {
    fn new(pair: &LoraPair) -> Self {
        let mut b = vec![0.0; pair.b.len()];
        kernels::transpose(pair.out_features, pair.rank, &pair.b, pair.out_features, &mut b);
        Self {
            scale: pair.scale,
            in_features: pair.in_features,
            out_features: pair.out_features,
            a: pair.a.clone(),
            b,
        }
    }

    /// `out += scale * b @ (a @ x)`.
    pub(super) fn add(&self, x: &[f32], out: &mut [f32]) {
        let ranks = self
            .a
            .chunks_exact(self.in_features)
            .zip(self.b.chunks_exact(self.out_features));
        for (a, b) in ranks {
            kernels::add_scaled(self.scale * kernels::dot(a, x), b, out);
        }
    }

    /// `out += factor * scale * b @ a[:, column]`: the embedding's, whose input is a one-hot vector.
    pub(super) fn add_column(&self, column: usize, factor: f32, out: &mut [f32]) {
        let ranks = self
            .a
            .chunks_exact(self.in_features)
            .zip(self.b.chunks_exact(self.out_features));
        for (a, b) in ranks {
            kernels::add_scaled(factor * self.scale * a[column], b, out);
        }
    }
}

impl AdapterLoader for Loader {
    fn load(&self, weights: &LoraWeights) -> Result<DeviceAdapter> {
        let pairs: BTreeMap<_, _> = weights
            .pairs
            .iter()
            .map(|(site, pair)| (*site, Pair::new(pair)))
            .collect();
        let lm_head = weights
            .lm_head
            .as_ref()
            .map(|head| matrix(head.len() / self.hidden, self.hidden, head.clone()))
            .transpose()?;
        let numbers = pairs
            .values()
            .map(|pair| pair.a.len() + pair.b.len())
            .sum::<usize>()
            + weights.lm_head.as_ref().map_or(0, Vec::len);
        Ok(DeviceAdapter {
            generation: weights.generation,
            bytes: numbers * size_of::<f32>(),
            inner: Arc::new(ReferenceAdapter { pairs, lm_head }),
        })
    }
}

/// The rows of a step that have an adapter, with it.
pub(super) fn by_row(step: &Step) -> Result<Vec<(usize, &ReferenceAdapter)>> {
    step.adapter_rows()
        .map(|(row, adapter)| {
            let adapter = adapter
                .inner
                .downcast_ref()
                .ok_or_else(|| failed("an adapter was laid out by another back end"))?;
            Ok((row, adapter))
        })
        .collect()
}
