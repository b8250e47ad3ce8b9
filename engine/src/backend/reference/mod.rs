//! The reference back end: candle's f32 matrix product and otherwise plain loops, on the CPU.
//!
//! It is the definition that the other back ends are tested against, so every operation is the shortest code that is
//! right. Two things keep it fit to serve a small model: base products are one matrix product for all rows of a step, and the
//! KV cache is read where it lies.
//!
//! # Rows are independent to the bit
//! Everything but the base product works row by row. candle's product (the `gemm` crate, 0.19) adds up each element in
//! the order of the depth, cut into pieces whose length follows from the depth and the caches alone. But it has other
//! ways, with other orders and results that differ in the last bits (1e-7 relative), for a single row and for small
//! products whose operands both lie along the depth. So rows are padded to a multiple of eight, which costs nothing (they are the
//! lanes of a vector register), and lie across the depth. The one exception left: maps of at most 64 outputs and more
//! than 512 inputs, in steps of more than 64 rows against steps of fewer.

mod adapter;
mod attention;
mod kernels;
mod linear;

use std::sync::Arc;

use super::{AttentionSpec, Backend, HeadSpec, HeadWeight, HostTensor, LinearSpec, NormSpec, RopeSpec, Step};
use crate::{
    adapter::LoraSite,
    batch::{AdapterLoader, Logits},
    error::{Error, Result},
    ids::BLOCK_TOKENS,
    model::{Activation, ModelConfig},
};

pub use adapter::ReferenceAdapter;
pub use attention::Rope;
pub(super) use kernels::{activate, soft_cap};
pub use linear::{Embedding, Head, Linear};

/// The reference back end.
pub struct Reference {
    hidden: usize,
    kv: attention::KvCache,
}

/// Activations: `[rows, width]`, row-major.
pub struct Buffer {
    width: usize,
    data: Vec<f32>,
}

impl Buffer {
    /// Makes room for the rows of a step; what was in it is forgotten.
    fn set_rows(&mut self, rows: usize) {
        self.data.resize(rows * self.width, 0.0);
    }

    fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.width..(row + 1) * self.width]
    }

    fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.data.chunks_exact(self.width)
    }

    fn rows_mut(&mut self) -> impl Iterator<Item = &mut [f32]> {
        self.data.chunks_exact_mut(self.width)
    }
}

/// A norm's weight.
pub struct Norm(NormSpec);

impl Reference {
    /// A back end with a KV cache of at most `kv_bytes`.
    ///
    /// # Errors
    /// `kv_bytes` do not hold one block.
    pub fn new(config: &ModelConfig, kv_bytes: usize) -> Result<Self> {
        let block = 2 * config.layers * BLOCK_TOKENS * config.kv_width() * size_of::<f32>();
        let blocks = kv_bytes / block;
        if blocks == 0 {
            return Err(failed(format!(
                "the KV cache may take {kv_bytes} bytes, but one block of {BLOCK_TOKENS} tokens takes {block}: allow it more"
            )));
        }
        Ok(Self {
            hidden: config.hidden,
            kv: attention::KvCache::new(config.layers, blocks, config.kv_width()),
        })
    }
}

/// An error of this back end.
fn failed(reason: impl std::fmt::Display) -> Error {
    Error::Backend {
        backend: "reference",
        reason: reason.to_string(),
    }
}

impl Backend for Reference {
    type Buffer = Buffer;
    type Norm = Norm;
    type Linear = Linear;
    type Embedding = Embedding;
    type Head = Head;
    type Rope = Rope;

    fn describe(&self) -> String {
        "reference (CPU, f32)".to_owned()
    }

    fn kv_blocks(&self) -> usize {
        self.kv.blocks
    }

    fn adapter_loader(&self) -> Arc<dyn AdapterLoader> {
        Arc::new(adapter::Loader { hidden: self.hidden })
    }

    fn buffer(&mut self, width: usize) -> Result<Buffer> {
        Ok(Buffer {
            width,
            data: Vec::new(),
        })
    }

    fn norm(&mut self, spec: NormSpec) -> Result<Norm> {
        Ok(Norm(spec))
    }

    fn linear(&mut self, spec: LinearSpec<'_>) -> Result<Linear> {
        Linear::new(spec)
    }

    fn embedding(&mut self, table: &HostTensor<'_>, scale: f32) -> Result<Embedding> {
        Embedding::new(table, scale)
    }

    fn head(&mut self, spec: HeadSpec<'_, Embedding>) -> Result<Head> {
        match spec.weight {
            HeadWeight::Tied(embedding) => Ok(Head::tied(embedding, spec.soft_cap)),
            HeadWeight::Own(weight) => Head::own(&weight, spec.soft_cap),
        }
    }

    fn rope(&mut self, spec: RopeSpec) -> Result<Rope> {
        Ok(Rope::new(&spec))
    }

    fn run(&mut self, _: &Step, operations: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        operations(self)
    }

    fn embed(&mut self, step: &Step, embedding: &Embedding, out: &mut Buffer) -> Result<()> {
        out.set_rows(step.rows());
        embedding.read(&step.tokens, &mut out.data)?;
        for (row, adapter) in adapter::by_row(step)? {
            if let Some(pair) = adapter.pairs.get(&LoraSite::Embed) {
                let out = &mut out.data[row * out.width..(row + 1) * out.width];
                pair.add_column(step.tokens[row] as usize, embedding.scale, out);
            }
        }
        Ok(())
    }

    fn apply_norm(&mut self, step: &Step, x: &Buffer, norm: &Norm, out: &mut Buffer) -> Result<()> {
        out.set_rows(step.rows());
        for (out, x) in out.rows_mut().zip(x.rows()) {
            kernels::rms_norm(x, &norm.0, out);
        }
        Ok(())
    }

    fn add_norm(
        &mut self,
        step: &Step,
        delta: &Buffer,
        post: Option<&Norm>,
        residual: &mut Buffer,
        norm: &Norm,
        out: &mut Buffer,
    ) -> Result<()> {
        out.set_rows(step.rows());
        for ((out, residual), delta) in out.rows_mut().zip(residual.rows_mut()).zip(delta.rows()) {
            match post {
                Some(post) => {
                    kernels::rms_norm(delta, &post.0, out);
                    kernels::add(out, residual);
                }
                None => kernels::add(delta, residual),
            }
            kernels::rms_norm(residual, &norm.0, out);
        }
        Ok(())
    }

    fn apply_linear(&mut self, step: &Step, x: &Buffer, linear: &Linear, out: &mut Buffer) -> Result<()> {
        linear.apply(step, &x.data, &mut out.data)
    }

    fn rope_and_store(
        &mut self,
        step: &Step,
        attention: &AttentionSpec,
        rope: &Rope,
        norms: Option<(&Norm, &Norm)>,
        qkv: &mut Buffer,
    ) -> Result<()> {
        let norms = norms.map(|(q, k)| (&q.0, &k.0));
        attention::rope(step, attention, rope, norms, &mut qkv.data);
        self.kv.store(step, attention, &qkv.data);
        Ok(())
    }

    fn attend(
        &mut self,
        step: &Step,
        attention: &AttentionSpec,
        qkv: &Buffer,
        out: &mut Buffer,
    ) -> Result<()> {
        out.set_rows(step.rows());
        self.kv.attend(step, attention, &qkv.data, &mut out.data);
        Ok(())
    }

    fn gated_activation(
        &mut self,
        step: &Step,
        activation: Activation,
        gate_up: &Buffer,
        out: &mut Buffer,
    ) -> Result<()> {
        out.set_rows(step.rows());
        let width = out.width;
        // An exponential takes about as long as twenty multiplications.
        kernels::for_each_row(&mut out.data, width, 20 * width, |row, out| {
            let (gate, up) = gate_up.row(row).split_at(width);
            for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
                *out = kernels::activate(activation, *gate) * up;
            }
        });
        Ok(())
    }

    fn logits(&mut self, step: &Step, x: &Buffer, head: &Head) -> Result<Logits> {
        head.logits(step, &x.data)
    }
}
