//! The CPU back end: own kernels for the instructions that the machine has, on own threads.
//!
//! # One arithmetic for every batch size
//! Every sum runs in an order that follows from the shapes of the model and the position in the sequence, never from the
//! other rows of the step, the number of threads or the order of tasks. So a request's logits are the same to the bit, alone
//! and in any company, however its prompt is cut up. The instruction sets give the same bits too, but for
//! `avx512-bf16`.
//!
//! # What is computed in which numbers
//! Activations are `f32`. Weights keep the checkpoint's numbers: floating point is widened as it is read, or, with
//! `avx512-bf16`, meets activations rounded to `bf16`; quantised weights meet activations quantised to 16 bits. Keys, values and adapters are `bf16`. With [`Dtype::F32`] all of them are `f32`.
//!
//! # Where the time goes
//! Decoding reads every weight once for each step, so it is the memory's bandwidth that limits it: weights are packed so
//! that they are one stream of cache lines for each task ([`matrix`]). Prefill and large batches are limited by
//! multiplications: a tile of 32 outputs and as many rows as the registers hold reuses what it loads ([`linear`]).

mod adapter;
mod aligned;
mod attention;
mod elementwise;
mod linear;
mod matrix;
mod memory;
mod pool;
mod simd;

#[cfg(test)]
mod tests;

use std::{marker::PhantomData, ops::Range, sync::Arc};

use self::{
    adapter::{CpuAdapter, Loader, LoraRows},
    aligned::Aligned,
    attention::KvCache,
    linear::{Operands, Part, Scratch},
    matrix::{Matrix, PANEL, Storage},
    memory::Arena,
    pool::Pool,
    simd::{Level, Number},
};
use super::{
    AttentionSpec, Backend, HeadSpec, HeadWeight, HostTensor, LinearSpec, NormSpec, RopeSpec, Step,
    reference::{Rope, soft_cap},
};
use crate::{
    adapter::LoraSite,
    batch::{AdapterLoader, Logits},
    error::{Error, Result},
    ids::BLOCK_TOKENS,
    model::{Activation, ModelConfig},
};

pub use elementwise::Norm;
pub use linear::Linear;

/// How the CPU back end computes.
#[derive(Debug, Clone, Default)]
pub struct CpuOptions {
    /// Threads; none: one for each physical core that this process may use.
    pub threads: Option<usize>,
    /// The instruction set, by name ([`kernels`]); none: the best there is.
    pub kernels: Option<String>,
    /// The numbers.
    pub dtype: Dtype,
}

/// The numbers that the CPU back end computes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dtype {
    /// `f32` for checkpoints in `f32`, otherwise `bf16`.
    #[default]
    Auto,
    /// Weights as the checkpoint has them (`f32` rounded to `bf16`), keys, values and adapters in `bf16`.
    Bf16,
    /// Everything in `f32`.
    F32,
}

/// The names of the instruction sets that this machine has kernels for, the best last.
pub fn kernels() -> Vec<&'static str> {
    Level::all().into_iter().map(Level::name).collect()
}

/// Bytes of weights that are mapped together.
const WEIGHTS: usize = 64 << 20;

/// The CPU back end. `E` is what keys, values and adapters are stored in.
pub(crate) struct Cpu<E> {
    hidden: usize,
    storage: Storage,
    level: Level,
    pool: Pool,
    weights: Arena,
    kv: KvCache<E>,
    scratch: Scratch,
    tables: Tables,
    /// The input of the head: the wanted rows.
    wanted: Vec<f32>,
    /// Logits that came back.
    spare: Vec<f32>,
}

/// What a step's operations look up, made once for each step.
#[derive(Default)]
struct Tables {
    /// Sequences and rows that are attended for together.
    attention: Vec<(usize, Range<usize>)>,
    /// Of all rows.
    lora: LoraRows,
    /// Of the rows whose logits are wanted.
    wanted_lora: LoraRows,
}

/// Activations: `[rows, width]`, row-major.
pub struct Buffer {
    width: usize,
    data: Aligned,
}

impl Buffer {
    /// Makes room for the rows of a step; what was in it may stay.
    fn set_rows(&mut self, rows: usize) {
        self.data.resize(rows * self.width);
    }
}

/// The input embedding.
pub struct Embedding {
    table: Arc<Matrix>,
    scale: f32,
}

/// The output head.
pub struct Head {
    linear: Linear,
    soft_cap: Option<f32>,
}

/// An error of this back end.
fn failed(reason: impl std::fmt::Display) -> Error {
    Error::Backend {
        backend: "cpu",
        reason: reason.to_string(),
    }
}

impl<E: Number> Cpu<E> {
    /// A back end with a KV cache of at most `kv_bytes`.
    ///
    /// # Errors
    /// `kv_bytes` do not hold one block; the machine does not have the instruction set that was asked for; threads cannot be
    /// started.
    pub(crate) fn new(config: &ModelConfig, kv_bytes: usize, options: &CpuOptions) -> Result<Self> {
        let layer = attention::block_bytes::<E>(config.kv_heads, config.head_dim);
        let block = config.layers * layer;
        let blocks = kv_bytes / block;
        if blocks == 0 {
            return Err(failed(format!(
                "the KV cache may take {kv_bytes} bytes, but one block of {BLOCK_TOKENS} tokens takes {block}: allow it more"
            )));
        }
        let level = level(options.kernels.as_deref())?;
        let threads = options.threads.unwrap_or_else(physical_cores);
        let full = size_of::<E>() == size_of::<f32>();
        Ok(Self {
            hidden: config.hidden,
            storage: match full {
                true => Storage::F32,
                false => Storage::Compact {
                    pairs: level.has_pairs(),
                },
            },
            level,
            pool: Pool::new(threads)
                .map_err(|error| failed(format!("threads cannot be started: {error}")))?,
            weights: Arena::new(WEIGHTS),
            kv: KvCache::new(config.layers, blocks, config.kv_heads, config.head_dim)
                .map_err(|error| failed(format!("no memory for the KV cache: {error}")))?,
            scratch: Scratch::default(),
            tables: Tables::default(),
            wanted: Vec::new(),
            spare: Vec::new(),
        })
    }
}

/// The level of a name.
fn level(name: Option<&str>) -> Result<Level> {
    let mut levels = Level::all();
    let wanted = match name {
        None => levels.pop(),
        Some(name) => levels.into_iter().find(|level| level.name() == name),
    };
    wanted.ok_or_else(|| {
        failed(format!(
            "there are no kernels `{}` for this machine: choose one of {}",
            name.unwrap_or_default(),
            kernels().join(", ")
        ))
    })
}

/// Physical cores that this process may use.
fn physical_cores() -> usize {
    num_cpus::get_physical().min(num_cpus::get()).max(1)
}

impl<E: Number> Backend for Cpu<E> {
    type Buffer = Buffer;
    type Norm = Norm;
    type Linear = Linear;
    type Embedding = Embedding;
    type Head = Head;
    type Rope = Rope;

    fn describe(&self) -> String {
        let numbers = match self.storage {
            Storage::F32 => "f32",
            Storage::Compact { .. } => "bf16",
        };
        let threads = self.pool.threads();
        let s = if threads == 1 { "" } else { "s" };
        format!("CPU ({numbers}, {}, {threads} thread{s})", self.level.name())
    }

    fn kv_blocks(&self) -> usize {
        self.kv.blocks
    }

    fn adapter_loader(&self) -> Arc<dyn AdapterLoader> {
        Arc::new(Loader::<E> {
            hidden: self.hidden,
            storage: self.storage,
            number: PhantomData,
        })
    }

    fn buffer(&mut self, width: usize) -> Result<Buffer> {
        Ok(Buffer {
            width,
            data: Aligned::default(),
        })
    }

    fn norm(&mut self, spec: NormSpec) -> Result<Norm> {
        Ok(Norm(spec))
    }

    fn linear(&mut self, spec: LinearSpec<'_>) -> Result<Linear> {
        let mut weights = spec.weights.iter();
        let (mut weight, mut first) = (weights.next(), 0);
        let mut column = 0;
        let mut parts = Vec::with_capacity(spec.parts.len());
        for part in &spec.parts {
            let rows = part.out_features;
            if weight.is_some_and(|weight| first == weight.rows) {
                (weight, first) = (weights.next(), 0);
            }
            let tensor = weight
                .filter(|weight| first + rows <= weight.rows)
                .ok_or_else(|| failed("the weights do not have the rows of their parts"))?;
            let matrix =
                Matrix::pack(tensor, first..first + rows, self.storage, &mut self.weights).map_err(failed)?;
            let columns = column..column + rows;
            let bias = spec.bias.as_ref().map(|bias| bias[columns.clone()].to_vec());
            parts.push(Part::new(part.site, columns, bias, Arc::new(matrix)));
            (first, column) = (first + rows, column + rows);
        }
        Ok(Linear::new(spec.in_features, parts))
    }

    fn embedding(&mut self, table: &HostTensor<'_>, scale: f32) -> Result<Embedding> {
        let table = Matrix::pack(table, 0..table.rows, self.storage, &mut self.weights).map_err(failed)?;
        Ok(Embedding {
            table: Arc::new(table),
            scale,
        })
    }

    fn head(&mut self, spec: HeadSpec<'_, Embedding>) -> Result<Head> {
        let matrix = match spec.weight {
            HeadWeight::Tied(embedding) => embedding.table.clone(),
            HeadWeight::Own(weight) => Arc::new(
                Matrix::pack(&weight, 0..weight.rows, self.storage, &mut self.weights).map_err(failed)?,
            ),
        };
        Ok(Head {
            linear: head_linear(matrix),
            soft_cap: spec.soft_cap,
        })
    }

    fn rope(&mut self, spec: RopeSpec) -> Result<Rope> {
        Ok(Rope::new(&spec))
    }

    fn run(&mut self, step: &Step, operations: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        attention::cut_sequences(step, &mut self.tables.attention);
        self.tables.lora.set(step, step.rows(), Some);
        operations(self)
    }

    fn embed(&mut self, step: &Step, embedding: &Embedding, out: &mut Buffer) -> Result<()> {
        out.set_rows(step.rows());
        let adapters = adapters::<E>(step)?;
        let mut shrunk = Vec::new();
        for (row, (out, token)) in out.data.chunks_exact_mut(out.width).zip(&step.tokens).enumerate() {
            embedding.table.read_output(*token as usize, out);
            for x in &mut *out {
                *x *= embedding.scale;
            }
            let pair = self.tables.lora.segment_of[row]
                .and_then(|segment| adapters[segment as usize].pair(LoraSite::Embed));
            if let Some(pair) = pair {
                shrunk.resize(pair.rank, 0.0);
                pair.shrink_column(*token as usize, embedding.scale, &mut shrunk);
                for (panel, out) in out.chunks_mut(PANEL).enumerate() {
                    self.level.run(linear::Expand {
                        pair,
                        panel,
                        shrunk: &shrunk,
                        out,
                    });
                }
            }
        }
        Ok(())
    }

    fn apply_norm(&mut self, step: &Step, x: &Buffer, norm: &Norm, out: &mut Buffer) -> Result<()> {
        out.set_rows(step.rows());
        elementwise::apply_norm(&mut self.pool, self.level, &x.data, norm, &mut out.data);
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
        let (residual, out) = (&mut residual.data, &mut out.data);
        elementwise::add_norm(&mut self.pool, self.level, &delta.data, post, residual, norm, out);
        Ok(())
    }

    fn apply_linear(&mut self, step: &Step, x: &Buffer, linear: &Linear, out: &mut Buffer) -> Result<()> {
        out.set_rows(step.rows());
        let operands = Operands::<E> {
            x: &x.data,
            rows: step.rows(),
            lora: &self.tables.lora,
            adapters: &adapters(step)?,
        };
        linear.apply(
            &mut self.pool,
            self.level,
            &mut self.scratch,
            &operands,
            &mut out.data,
        );
        Ok(())
    }

    fn rope_and_store(
        &mut self,
        step: &Step,
        attention: &AttentionSpec,
        rope: &Rope,
        norms: Option<(&Norm, &Norm)>,
        qkv: &mut Buffer,
    ) -> Result<()> {
        let (pool, level) = (&mut self.pool, self.level);
        self.kv
            .rope_and_store(pool, level, step, attention, rope, norms, &mut qkv.data);
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
        let (pool, tasks) = (&mut self.pool, &self.tables.attention);
        self.kv
            .attend(pool, self.level, step, tasks, attention, &qkv.data, &mut out.data);
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
        elementwise::gated_activation(
            &mut self.pool,
            self.level,
            activation,
            &gate_up.data,
            width,
            &mut out.data,
        );
        Ok(())
    }

    fn logits(&mut self, step: &Step, x: &Buffer, head: &Head) -> Result<Logits> {
        let (rows, vocab) = (step.wanted.len(), head.linear.outputs);
        self.wanted.clear();
        for row in &step.wanted {
            self.wanted
                .extend_from_slice(&x.data[*row as usize * x.width..][..x.width]);
        }
        let x = &self.wanted;
        let place = |row: usize| step.wanted.binary_search(&(row as u32)).ok();
        self.tables.wanted_lora.set(step, rows, place);
        let adapters = adapters(step)?;
        let operands = Operands::<E> {
            x,
            rows,
            lora: &self.tables.wanted_lora,
            adapters: &adapters,
        };
        let mut logits = Logits {
            data: std::mem::take(&mut self.spare),
            vocab,
        };
        logits.data.resize(rows * vocab, 0.0);
        let (pool, scratch) = (&mut self.pool, &mut self.scratch);
        head.linear
            .apply(pool, self.level, scratch, &operands, &mut logits.data);
        // Heads of their own, in place of the model's.
        for (row, segment) in &self.tables.wanted_lora.rows {
            let Some(own) = &adapters[*segment].lm_head else {
                continue;
            };
            let mut lora = LoraRows::default();
            lora.set_one(*segment);
            let operands = Operands::<E> {
                x: &x[row * self.hidden..(row + 1) * self.hidden],
                rows: 1,
                lora: &lora,
                adapters: &adapters,
            };
            head_linear(own.clone()).apply(pool, self.level, scratch, &operands, logits.row_mut(*row));
        }
        if let Some(cap) = head.soft_cap {
            for logit in &mut logits.data {
                *logit = soft_cap(*logit, cap);
            }
        }
        Ok(logits)
    }

    fn recycle(&mut self, logits: Logits) {
        self.spare = logits.data;
    }
}

/// The product of an output head.
fn head_linear(matrix: Arc<Matrix>) -> Linear {
    let (inputs, columns) = (matrix.inputs, 0..matrix.outputs);
    Linear::new(inputs, vec![Part::new(LoraSite::LmHead, columns, None, matrix)])
}

/// The adapters of the step's segments.
fn adapters<E: Number>(step: &Step) -> Result<Vec<&CpuAdapter<E>>> {
    step.segments
        .iter()
        .map(|segment| CpuAdapter::of(&segment.adapter))
        .collect()
}
