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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        batch::Span,
        ids::{Generation, TokenId},
    };

    const LIMITS: StepLimits = StepLimits {
        vocab: 100,
        context: 64,
        kv_blocks: 8,
    };

    fn span(
        rows: Range<usize>,
        start: usize,
        blocks: &[u32],
        adapter: Option<u8>,
        logits: LogitRows,
    ) -> Span {
        Span {
            rows,
            start,
            blocks: blocks.iter().copied().map(BlockId).collect(),
            adapter: adapter.map(|name| DeviceAdapter {
                generation: Generation([name; 32]),
                bytes: 0,
                inner: Arc::new(()),
            }),
            logits,
        }
    }

    fn batch(rows: u32, spans: Vec<Span>) -> Batch {
        Batch {
            tokens: (0..rows).map(TokenId).collect(),
            spans,
        }
    }

    #[test]
    fn rows_find_their_slots_segments_and_logits() {
        let batch = batch(
            6,
            vec![
                span(0..2, 15, &[3, 5], Some(1), LogitRows::Last),
                span(2..3, 0, &[7], None, LogitRows::None),
                span(3..4, 4, &[2], Some(2), LogitRows::Last),
                span(4..6, 0, &[1], Some(1), LogitRows::All),
            ],
        );
        let step = Step::new(&batch, LIMITS).unwrap();
        assert_eq!(step.positions, [15, 16, 0, 4, 0, 1]);
        assert_eq!(step.slots, [3 * 16 + 15, 5 * 16, 7 * 16, 2 * 16 + 4, 16, 17]);
        assert_eq!(step.wanted, [1, 3, 4, 5]);
        assert_eq!(step.lora_rows, [0, 1, 4, 5, 3]);
        let ranges: Vec<_> = step.segments.iter().map(|segment| segment.rows.clone()).collect();
        assert_eq!(ranges, [0..4, 4..5]);
    }

    #[test]
    fn a_batch_that_breaks_the_rules_is_refused() {
        let refused = |batch: Batch, words: &str| {
            let error = Step::new(&batch, LIMITS).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        let none = LogitRows::None;
        let mut unknown = batch(1, vec![span(0..1, 0, &[0], None, none)]);
        unknown.tokens[0] = TokenId(100);
        refused(unknown, "token 100");
        refused(
            batch(2, vec![span(0..1, 0, &[0], None, none)]),
            "cover 1 rows of 2",
        );
        refused(batch(1, vec![span(0..0, 0, &[0], None, none)]), "0..0");
        refused(batch(2, vec![span(1..2, 0, &[0], None, none)]), "1..2");
        refused(
            batch(2, vec![span(0..2, 15, &[0], None, none)]),
            "1 blocks do not hold 17",
        );
        refused(batch(1, vec![span(0..1, 0, &[8], None, none)]), "no block 8");
        refused(
            batch(1, vec![span(0..1, 64, &[0; 8], None, none)]),
            "past the context",
        );
    }
}
