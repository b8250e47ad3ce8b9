//! A step as back ends read it: a checked [`Batch`] with what they all derive from it.

use std::ops::Range;

use crate::{
    batch::{Batch, DeviceAdapter, LogitRows},
    error::{Error, Result},
    ids::{BLOCK_TOKENS, BlockId},
};

/// One step. Rows are numbered from 0 in the order of the batch.
#[derive(Debug)]
pub struct Step {
    /// The input token of each row.
    pub tokens: Vec<u32>,
    /// The position of each row in its sequence.
    pub positions: Vec<u32>,
    /// Where the key and the value of each row go: `block * BLOCK_TOKENS + offset`.
    pub slots: Vec<u32>,
    /// The sequences, in the order of their rows. Together they cover all rows.
    pub sequences: Vec<Sequence>,
    /// The rows that have an adapter, grouped by it: each segment is a range of these.
    pub lora_rows: Vec<u32>,
    /// The distinct adapters of the step. Empty where no row has one.
    pub segments: Vec<Segment>,
    /// The rows whose logits are wanted, ascending.
    pub wanted: Vec<u32>,
}

/// Consecutive rows of one sequence.
#[derive(Debug)]
pub struct Sequence {
    /// Its rows.
    pub rows: Range<usize>,
    /// The position of the first.
    pub start: usize,
    /// Its block table.
    pub blocks: Vec<BlockId>,
}

/// The rows of one adapter.
#[derive(Debug)]
pub struct Segment {
    /// The adapter.
    pub adapter: DeviceAdapter,
    /// Its rows: a range of [`Step::lora_rows`]. Not empty.
    pub rows: Range<usize>,
}

/// What a batch must stay within.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepLimits {
    /// Tokens are below this.
    pub vocab: usize,
    /// Positions are below this.
    pub context: usize,
    /// Blocks are below this.
    pub kv_blocks: usize,
}

impl Step {
    /// Checks a batch and derives the rest.
    ///
    /// # Errors
    /// [`Error::Generation`] where the batch breaks its own rules: nothing of it has been computed then.
    pub fn new(batch: &Batch, limits: StepLimits) -> Result<Self> {
        let broken = |what: String| Error::Generation(format!("a step was planned wrongly: {what}"));
        let rows = batch.tokens.len();
        if let Some(token) = batch.tokens.iter().find(|token| token.0 as usize >= limits.vocab) {
            return Err(broken(format!(
                "token {} is not in the vocabulary of {}",
                token.0, limits.vocab
            )));
        }
        let mut step = Self {
            tokens: batch.tokens.iter().map(|token| token.0).collect(),
            positions: Vec::with_capacity(rows),
            slots: Vec::with_capacity(rows),
            sequences: Vec::with_capacity(batch.spans.len()),
            lora_rows: Vec::new(),
            segments: Vec::new(),
            wanted: Vec::new(),
        };
        for span in &batch.spans {
            if span.rows.start != step.positions.len() || span.rows.is_empty() || span.rows.end > rows {
                return Err(broken(format!(
                    "the span {:?} does not follow the one before",
                    span.rows
                )));
            }
            let end = span.start + span.rows.len();
            if end > limits.context {
                return Err(broken(format!(
                    "position {end} is past the context of {}",
                    limits.context
                )));
            }
            if span.blocks.len() * BLOCK_TOKENS < end {
                return Err(broken(format!(
                    "{} blocks do not hold {end} positions",
                    span.blocks.len()
                )));
            }
            if let Some(block) = span
                .blocks
                .iter()
                .find(|block| block.0 as usize >= limits.kv_blocks)
            {
                return Err(broken(format!(
                    "there is no block {} in {}",
                    block.0, limits.kv_blocks
                )));
            }
            for position in span.start..end {
                let block = span.blocks[position / BLOCK_TOKENS].0 as usize;
                step.positions.push(position as u32);
                step.slots
                    .push((block * BLOCK_TOKENS + position % BLOCK_TOKENS) as u32);
            }
            match span.logits {
                LogitRows::None => {}
                LogitRows::Last => step.wanted.push(span.rows.end as u32 - 1),
                LogitRows::All => step.wanted.extend(span.rows.clone().map(|row| row as u32)),
            }
            step.sequences.push(Sequence {
                rows: span.rows.clone(),
                start: span.start,
                blocks: span.blocks.clone(),
            });
        }
        if step.positions.len() != rows {
            return Err(broken(format!(
                "the spans cover {} rows of {rows}",
                step.positions.len()
            )));
        }
        step.group_by_adapter(batch);
        Ok(step)
    }

    /// Rows of the step.
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// Each row that has an adapter, with it, grouped by adapter.
    pub fn adapter_rows(&self) -> impl Iterator<Item = (usize, &DeviceAdapter)> {
        self.segments.iter().flat_map(|segment| {
            self.lora_rows[segment.rows.clone()]
                .iter()
                .map(|row| (*row as usize, &segment.adapter))
        })
    }

    /// Segments in the order in which their adapters first appear.
    fn group_by_adapter(&mut self, batch: &Batch) {
        let mut distinct: Vec<&DeviceAdapter> = Vec::new();
        for adapter in batch.spans.iter().filter_map(|span| span.adapter.as_ref()) {
            if distinct
                .iter()
                .all(|known| known.generation != adapter.generation)
            {
                distinct.push(adapter);
            }
        }
        for adapter in distinct {
            let begin = self.lora_rows.len();
            for span in &batch.spans {
                if span
                    .adapter
                    .as_ref()
                    .is_some_and(|own| own.generation == adapter.generation)
                {
                    self.lora_rows.extend(span.rows.clone().map(|row| row as u32));
                }
            }
            self.segments.push(Segment {
                adapter: adapter.clone(),
                rows: begin..self.lora_rows.len(),
            });
        }
    }
}
