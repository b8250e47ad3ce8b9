//! Pure scheduling: `plan(&mut State) -> StepPlan`, without a tensor, a clock or I/O.
//!
//! The step loop repeats: [`plan`] says which positions of which sequences the next step computes, the runner computes
//! them, [`State::settle`] notes that they are there, and a sequence whose last token was computed gets its next one with
//! [`State::push`].
//!
//! # A step
//! Every sequence has tokens and a number of positions whose keys and values are in the cache; what lies between is
//! pending. A decoding sequence has one pending token, a new one its whole prompt, a preempted one everything: they differ in
//! nothing else, and one budget of rows counts them all. `plan` does three things:
//!
//! 1. *admit*: waiting sequences start while there is a place, rows and blocks for them. Blocks are not reserved for
//!    what a sequence may become, only counted for what it is and one block more.
//! 2. *share rows*: one row to each that decodes, what is left to prefill chunks, the most senior first.
//! 3. *take blocks*, the most senior first. Where blocks are short the most junior running sequence is preempted: its blocks
//!    are freed, and it waits at its old place to be computed again (what of it is still in the prefix cache is not). One
//!    that may preempt nobody stands still for the step and keeps its blocks. A sequence that does not fit although it
//!    has the whole cache to itself is refused.
//!
//! # Order
//! *Seniority* ranks sequences: those that came [`Limits::ageing_steps`] ago or earlier go first, in the order in which they
//! came (they are *aged*); then higher priority, then in the order in which they came. A sequence that starts must be the
//! first of those that wait, except that between priority and arrival the tenant who has been served least goes first: a
//! virtual token counter for each tenant counts what was computed for it (Sheng et al., "Fairness in Serving Large Language
//! Models", OSDI 2024). Requests without a tenant are counted for their adapter. If the first has no room, nobody starts: the
//! large are not starved by the small. It takes the place of running ones only if their priority is lower and they
//! have not aged.
//!
//! A sequence whose adapter is loading, or that waits for a sibling's prompt, keeps its place without holding anyone up.
//!
//! # Adapters
//! The distinct adapters of a step are bounded in bytes. When those of the running sequences do not fit they take turns: an
//! adapter that is left out goes before those that were not. So of `G` adapters each is in one of `G` steps in a row; an
//! adapter that alone is larger than the bound has its step to itself.
//!
//! # Nobody waits for ever
//! Let `r` be a sequence that waits, has aged, and whose adapter is loaded, and `E` those that run at that time or came
//! earlier. From then on nobody starts before `r` who is not in `E`. `r` starts within
//!
//! ```text
//! G * sum over s in E of (N(s) + 1 + 4 * ceil(C / c))      steps, where
//!   N(s)  tokens that s may still generate
//!   C     the greatest length that one of E may reach
//!   c     step_tokens - max_running + 1, or a sequence's own limit of rows if that is lower
//!   G     1 if the adapters of the running sequences fit into one step, otherwise their number
//! ```
//!
//! The most senior running sequence gets a row, and of a prompt `c` rows, in one of `G` steps, because at most
//! `max_running - 1` others decode; it is never preempted for blocks; so it ends after `ceil(C / c) + N(s) + 1` turns. It loses work only
//! if another becomes the most senior: for each of `E` that can happen when it is first admitted, when it ages, and when
//! it is admitted again after that; preemption alone never does it, because whoever is preempted was junior to all that go on, and
//! comes back before all that are junior to it. What is lost is one prefill. When `E` is empty there is
//! room. The tests compare every wait of their random workloads with this bound.
//!
//! # Choices
//! The choices of one request are sequences of their own. The first computes the prompt; its siblings wait for it and find the
//! full blocks of the prompt in the prefix cache, so they share its memory and compute what is left of the last
//! block. With the prefix cache switched off the choices of one request still share, and only they: see
//! [`crate::kv::CacheScope`].

mod accounts;
mod plan;
mod rotation;
mod sequence;
#[cfg(test)]
mod simulation;
mod state;
#[cfg(test)]
mod tests;

pub use plan::plan;
pub use sequence::{AdapterNeed, NewSequence, Sequence, StepAdapter};
pub use state::State;

use crate::ids::SequenceId;

/// What a step may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Rows of one step, decode and prefill together; at least 1.
    pub step_tokens: usize,
    /// Sequences that run at a time; never more than `step_tokens`, so that each can have a row.
    pub max_running: usize,
    /// Bytes of distinct adapters in one step.
    pub step_adapter_bytes: usize,
    /// Steps after which a sequence goes before all that came later, whatever their priority.
    pub ageing_steps: u64,
}

impl Limits {
    /// The same limits, each at least what is needed to get anywhere.
    fn sane(self) -> Self {
        let step_tokens = self.step_tokens.max(1);
        Self {
            step_tokens,
            max_running: self.max_running.clamp(1, step_tokens),
            ..self
        }
    }
}

/// What one step computes, and what had to happen for it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct StepPlan {
    /// The positions to compute, the most senior sequence first. None if nothing can run until something changes.
    pub spans: Vec<PlannedSpan>,
    /// Sequences that started, or started again.
    pub admitted: Vec<Admitted>,
    /// Sequences that lost their blocks and wait again.
    pub preempted: Vec<SequenceId>,
    /// Sequences that do not fit into the whole cache. They are gone from the state.
    pub refused: Vec<SequenceId>,
}

/// Consecutive positions of one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedSpan {
    /// Which sequence.
    pub sequence: SequenceId,
    /// The first position.
    pub start: usize,
    /// Positions, at least 1.
    pub rows: usize,
    /// Whether the last of them is the sequence's last token: its next one can be sampled.
    pub complete: bool,
}

/// A sequence that started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admitted {
    /// Which.
    pub sequence: SequenceId,
    /// Its length then.
    pub tokens: usize,
    /// Positions that it took over from the prefix cache.
    pub reused: usize,
}
