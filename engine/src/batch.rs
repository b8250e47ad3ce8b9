//! One step's work, as the scheduler's plan reads to the model: rows of tokens, grouped into spans.

use std::{any::Any, ops::Range, sync::Arc};

use crate::{
    adapter::LoraWeights,
    error::Result,
    ids::{BlockId, Generation, TokenId},
};

/// The rows of one step. Decode rows and prefill chunks are the same thing: a span of one row or more.
#[derive(Debug, Default)]
pub struct Batch {
    /// The input tokens, `[rows]`.
    pub tokens: Vec<TokenId>,
    /// One span for each sequence of the step; together they cover `tokens`, in order.
    pub spans: Vec<Span>,
}

/// Consecutive positions of one sequence.
#[derive(Debug)]
pub struct Span {
    /// Its rows in [`Batch::tokens`].
    pub rows: Range<usize>,
    /// The position of its first row in the sequence. Everything before it is in the KV cache already.
    pub start: usize,
    /// The sequence's block table: position `p` lives in `blocks[p / BLOCK_TOKENS]`. Covers `start + rows.len()`.
    pub blocks: Vec<BlockId>,
    /// The adapter of the rows; none for the base model.
    pub adapter: Option<DeviceAdapter>,
    /// Which rows' logits are wanted.
    pub logits: LogitRows,
}

/// Which rows of a span want logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitRows {
    /// None: a prefill chunk that is not the last.
    None,
    /// The last row.
    Last,
    /// Every row (log probabilities of a prompt).
    All,
}

/// Logits of the rows that wanted them, in the order of the batch.
#[derive(Debug, Default)]
pub struct Logits {
    /// `[wanted rows, vocab]`, row-major.
    pub data: Vec<f32>,
    /// Columns of a row.
    pub vocab: usize,
}

impl Logits {
    /// The logits of the `index`-th row that wanted them.
    pub fn row(&self, index: usize) -> &[f32] {
        &self.data[index * self.vocab..(index + 1) * self.vocab]
    }

    /// The same, to be changed in place.
    pub fn row_mut(&mut self, index: usize) -> &mut [f32] {
        &mut self.data[index * self.vocab..(index + 1) * self.vocab]
    }
}

/// An adapter as a back end holds it. Cheap to clone; the memory is freed with the last clone.
#[derive(Clone)]
pub struct DeviceAdapter {
    /// Its identity.
    pub generation: Generation,
    /// Bytes it takes on the device.
    pub bytes: usize,
    /// The back end's own layout.
    pub inner: Arc<dyn Any + Send + Sync>,
}

impl std::fmt::Debug for DeviceAdapter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceAdapter")
            .field("generation", &self.generation)
            .field("bytes", &self.bytes)
            .finish()
    }
}

/// A model on a back end, with its KV cache: what the step loop drives.
pub trait Runner: Send {
    /// Runs one step: writes the rows' keys and values into their blocks and returns the logits that were asked for.
    fn forward(&mut self, batch: &Batch) -> Result<Logits>;

    /// Takes back what a step returned, so that the next one need not make room for its own.
    fn recycle(&mut self, _: Logits) {}

    /// Blocks that the KV cache holds.
    fn kv_blocks(&self) -> usize;

    /// Lays adapters out for this back end; called from loader threads.
    fn adapter_loader(&self) -> Arc<dyn AdapterLoader>;
}

/// The part of a back end that takes adapters in, apart from the step loop.
pub trait AdapterLoader: Send + Sync {
    /// Lays out `weights` for the device. The weights fit the model: PEFT loading has checked that.
    fn load(&self, weights: &LoraWeights) -> Result<DeviceAdapter>;
}
