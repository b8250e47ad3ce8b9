//! A request in the step loop: its choices, and what each row of logits means to it.

use tokio::sync::mpsc::UnboundedSender;

use super::gate::{Permit, QueuePlace};
use crate::{
    adapter::Lease,
    batch::{DeviceAdapter, LogitRows},
    error::Error,
    ids::{SequenceId, TokenId},
    request::{Event, FinishReason, TokenInfo},
    sampling::{History, Sampler, logprobs},
    schedule::PlannedSpan,
    text::Detokenizer,
};

/// What holds for every choice of a request.
#[derive(Debug)]
pub(super) struct Rules {
    /// Tokens of each choice at most.
    pub(super) max_tokens: usize,
    /// Tokens before which nothing in `ends` is sampled.
    pub(super) min_tokens: usize,
    /// The tokens that end a choice.
    pub(super) ends: Vec<TokenId>,
    /// Alternatives to report with each generated token.
    pub(super) logprobs: Option<usize>,
    /// The same for the prompt's.
    pub(super) prompt_logprobs: Option<usize>,
}

/// One continuation that has not ended.
#[derive(Debug)]
pub(super) struct Choice {
    sequence: SequenceId,
    sampler: Sampler,
    history: History,
    detokenizer: Detokenizer,
    generated: usize,
    /// The caller ended it before its prompt was computed.
    stopping: bool,
    _permit: Permit,
}

impl Choice {
    pub(super) fn new(
        sequence: SequenceId,
        sampler: Sampler,
        history: History,
        detokenizer: Detokenizer,
        permit: Permit,
    ) -> Self {
        Self {
            sequence,
            sampler,
            history,
            detokenizer,
            generated: 0,
            stopping: false,
            _permit: permit,
        }
    }
}

/// A request that was submitted and has not ended. What it holds is given back when it is dropped.
#[derive(Debug)]
pub(super) struct Active {
    events: UnboundedSender<Event>,
    /// Set when the lease is ready. Stands before it: it goes first, because its memory is the lease's to count.
    pub(super) adapter: Option<DeviceAdapter>,
    pub(super) lease: Option<Lease>,
    prompt: Vec<TokenId>,
    rules: Rules,
    /// None for those that have ended.
    choices: Vec<Option<Choice>>,
    /// Held until the first choice starts.
    place: Option<QueuePlace>,
    /// Prompt positions that came from the prefix cache, for the first choice that started.
    cached_tokens: usize,
    /// What is known of the prompt's tokens, if that was asked for.
    prompt_infos: Vec<TokenInfo>,
    prefilled: bool,
}

/// What a span came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The prompt goes on.
    Pending,
    /// The choice got this token.
    Token(TokenId),
    /// The choice has ended, with its last token.
    Last,
    /// The choice has ended, and got no token any more.
    Ended,
    /// Nobody listens any more.
    Cancelled,
}

/// The receiver of the events is gone.
#[derive(Debug)]
pub(super) struct Gone;

impl Active {
    pub(super) fn new(
        events: UnboundedSender<Event>,
        lease: Option<Lease>,
        prompt: Vec<TokenId>,
        rules: Rules,
        choices: Vec<Choice>,
        place: QueuePlace,
    ) -> Self {
        // Nothing comes before the first token, so its probability is not known.
        let first = prompt.first().filter(|_| rules.prompt_logprobs.is_some());
        let prompt_infos = first.map(|&id| TokenInfo {
            id,
            logprob: None,
            top: Vec::new(),
        });
        Self {
            events,
            lease,
            adapter: None,
            prompt_infos: prompt_infos.into_iter().collect(),
            prompt,
            rules,
            choices: choices.into_iter().map(Some).collect(),
            place: Some(place),
            cached_tokens: 0,
            prefilled: false,
        }
    }

    /// The prompt.
    pub(super) fn prompt(&self) -> &[TokenId] {
        &self.prompt
    }

    /// Whether the prompt's logits are wanted.
    pub(super) fn wants_prompt(&self) -> bool {
        self.rules.prompt_logprobs.is_some()
    }

    /// The sequences of the choices that have not ended.
    pub(super) fn sequences(&self) -> impl Iterator<Item = SequenceId> + '_ {
        self.choices.iter().flatten().map(|choice| choice.sequence)
    }

    /// Whether every choice has ended.
    pub(super) fn is_done(&self) -> bool {
        self.choices.iter().all(Option::is_none)
    }

    /// One of its sequences started. Returns whether it is the request that started.
    pub(super) fn start(&mut self, reused: usize) -> bool {
        let first = self.place.take().is_some();
        if first {
            self.cached_tokens = reused;
        }
        first
    }

    /// Which rows of a span's logits are wanted.
    pub(super) fn logit_rows(&self, choice: u32, span: &PlannedSpan) -> LogitRows {
        let prompt_lacks = self.wants_prompt() && self.prompt_infos.len() < self.prompt.len();
        if choice == 0 && prompt_lacks {
            LogitRows::All
        } else if span.complete {
            LogitRows::Last
        } else {
            LogitRows::None
        }
    }

    /// A span of one choice has been computed. `rows` are the logits that [`Self::logit_rows`] asked for, `vocab` wide;
    /// `scratch` is a buffer.
    pub(super) fn advance(
        &mut self,
        choice: u32,
        span: &PlannedSpan,
        rows: &mut [f32],
        vocab: usize,
        scratch: &mut Vec<f32>,
    ) -> Outcome {
        if self.logit_rows(choice, span) == LogitRows::All {
            self.note_prompt(span.start, rows.chunks_exact(vocab));
        }
        if !span.complete {
            return Outcome::Pending;
        }
        let last = rows.len() - vocab;
        self.next_token(choice, &mut rows[last..], scratch)
            .unwrap_or(Outcome::Cancelled)
    }

    /// The logits of the positions from `start` on say how likely the tokens after them were.
    fn note_prompt<'a>(&mut self, start: usize, rows: impl Iterator<Item = &'a [f32]>) {
        let top = self.rules.prompt_logprobs.unwrap_or(0);
        for (place, row) in (start + 1..self.prompt.len()).zip(rows) {
            // After a preemption the beginning comes again.
            if place == self.prompt_infos.len() {
                let id = self.prompt[place];
                let (logprob, top) = logprobs(row, id, top);
                self.prompt_infos.push(TokenInfo {
                    id,
                    logprob: Some(logprob),
                    top,
                });
            }
        }
    }

    /// Everything that the choice has is computed; `logits` are for what comes next.
    fn next_token(
        &mut self,
        index: u32,
        logits: &mut [f32],
        scratch: &mut Vec<f32>,
    ) -> Result<Outcome, Gone> {
        if !self.prefilled {
            self.prefilled = true;
            let prompt = std::mem::take(&mut self.prompt_infos);
            self.send(Event::Prefilled {
                cached_tokens: self.cached_tokens,
                prompt,
            })?;
            self.rules.prompt_logprobs = None;
        }
        let rules = &self.rules;
        let Some(choice) = self.choices.get_mut(index as usize).and_then(Option::as_mut) else {
            return Ok(Outcome::Ended);
        };
        if choice.stopping || choice.generated >= rules.max_tokens {
            let reason = if choice.stopping {
                FinishReason::Stopped
            } else {
                FinishReason::Length
            };
            self.finish(index, reason)?;
            return Ok(Outcome::Ended);
        }
        // Probabilities are those of the model, and the sampler changes its row.
        if rules.logprobs.is_some() {
            scratch.clear();
            scratch.extend_from_slice(logits);
        }
        if choice.generated < rules.min_tokens {
            // Ids beyond the vocabulary were refused, or left out at the start.
            for token in &rules.ends {
                logits[token.0 as usize] = f32::NEG_INFINITY;
            }
        }
        let id = choice.sampler.sample(logits, &choice.history);
        choice.history.push(id);
        choice.generated += 1;
        let ends = rules.ends.binary_search(&id).is_ok();
        let (logprob, top) = match rules.logprobs {
            Some(top) => {
                let (logprob, top) = logprobs(scratch, id, top);
                (Some(logprob), top)
            }
            None => (None, Vec::new()),
        };
        let text = if ends {
            String::new()
        } else {
            choice.detokenizer.push(id)
        };
        let full = choice.generated >= rules.max_tokens;
        self.send(Event::Token {
            choice: index,
            text,
            token: TokenInfo { id, logprob, top },
        })?;
        let reason = match (ends, full) {
            (true, _) => FinishReason::Eos,
            (false, true) => FinishReason::Length,
            (false, false) => return Ok(Outcome::Token(id)),
        };
        self.finish(index, reason)?;
        Ok(Outcome::Last)
    }

    /// The caller ends a choice. Returns its sequence if it has ended with that: before the prompt is computed it goes on, for
    /// the sake of its siblings and of the prompt's probabilities.
    pub(super) fn stop(&mut self, index: u32) -> Result<Option<SequenceId>, Gone> {
        let Some(choice) = self.choices.get_mut(index as usize).and_then(Option::as_mut) else {
            return Ok(None);
        };
        choice.stopping = true;
        let sequence = choice.sequence;
        if !self.prefilled {
            return Ok(None);
        }
        self.finish(index, FinishReason::Stopped)?;
        Ok(Some(sequence))
    }

    fn finish(&mut self, index: u32, reason: FinishReason) -> Result<(), Gone> {
        let Some(choice) = self.choices.get_mut(index as usize).and_then(Option::as_mut) else {
            return Ok(());
        };
        let event = Event::Finished {
            choice: index,
            text: choice.detokenizer.finish(),
            reason,
            generated: choice.generated,
        };
        // Where nobody hears it, the choice stays, so that the cancellation that follows takes its sequence out.
        self.send(event)?;
        self.choices[index as usize] = None;
        Ok(())
    }

    /// The last event, if every choice has ended.
    pub(super) fn done(self) {
        let _ = self.send(Event::Done);
    }

    /// The last event of a request that broke off.
    pub(super) fn fail(self, error: Error) {
        let _ = self.send(Event::Failed(error));
    }

    fn send(&self, event: Event) -> Result<(), Gone> {
        self.events.send(event).map_err(|_| Gone)
    }
}
