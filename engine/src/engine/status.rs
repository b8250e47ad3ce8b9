//! What the engine says of itself: written by the step loop, read from anywhere, without a lock.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// What the engine can say of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Health {
    /// Whether the step loop is alive and its steps succeed.
    pub alive: bool,
    /// Whether it takes new requests.
    pub accepting: bool,
    /// Sequences that run.
    pub running: usize,
    /// Requests that wait to start.
    pub waiting: usize,
    /// Blocks in use, of `kv_blocks`.
    pub kv_used: usize,
    /// Blocks of the KV cache.
    pub kv_blocks: usize,
}

/// What the engine has done since it started. Every number only grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Metrics {
    /// Steps that were computed.
    pub steps: u64,
    /// Steps that failed.
    pub failed_steps: u64,
    /// Prompt positions computed, and generated ones that were computed again after a preemption.
    pub prefill_tokens: u64,
    /// Positions computed for the next token of a running sequence.
    pub decode_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Sequences that lost their blocks to others.
    pub preemptions: u64,
    /// Prompt positions that were looked up in the prefix cache.
    pub prefix_lookups: u64,
    /// Those that were found there.
    pub prefix_hits: u64,
    /// Requests that ended with [`crate::request::Event::Done`].
    pub requests_done: u64,
    /// Requests that ended with [`crate::request::Event::Failed`].
    pub requests_failed: u64,
    /// Requests whose stream was dropped before their end.
    pub requests_cancelled: u64,
}

/// One number of [`Metrics`].
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, amount: usize) {
        self.0.fetch_add(amount as u64, Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Steps in a row that may fail before the engine calls itself dead.
const TOLERATED_FAILURES: usize = 3;

/// The numbers as they are written.
#[derive(Debug, Default)]
pub(super) struct Status {
    pub(super) accepting: AtomicBool,
    ended: AtomicBool,
    failures_in_a_row: AtomicUsize,
    pub(super) running: AtomicUsize,
    pub(super) kv_used: AtomicUsize,
    pub(super) steps: Counter,
    failed_steps: Counter,
    pub(super) prefill_tokens: Counter,
    pub(super) decode_tokens: Counter,
    pub(super) generated_tokens: Counter,
    pub(super) preemptions: Counter,
    pub(super) prefix_lookups: Counter,
    pub(super) prefix_hits: Counter,
    pub(super) requests_done: Counter,
    pub(super) requests_failed: Counter,
    pub(super) requests_cancelled: Counter,
}

impl Status {
    /// A step was computed.
    pub(super) fn step_succeeded(&self) {
        self.steps.add(1);
        self.failures_in_a_row.store(0, Relaxed);
    }

    /// A step broke off.
    pub(super) fn step_failed(&self) {
        self.failed_steps.add(1);
        self.failures_in_a_row.fetch_add(1, Relaxed);
    }

    /// The step loop is no more.
    pub(super) fn end(&self) {
        self.accepting.store(false, Relaxed);
        self.ended.store(true, Relaxed);
        self.running.store(0, Relaxed);
        self.kv_used.store(0, Relaxed);
    }

    pub(super) fn health(&self, waiting: usize, kv_blocks: usize) -> Health {
        Health {
            alive: !self.ended.load(Relaxed) && self.failures_in_a_row.load(Relaxed) < TOLERATED_FAILURES,
            accepting: self.accepting.load(Relaxed),
            running: self.running.load(Relaxed),
            waiting,
            kv_used: self.kv_used.load(Relaxed),
            kv_blocks,
        }
    }

    pub(super) fn metrics(&self) -> Metrics {
        Metrics {
            steps: self.steps.get(),
            failed_steps: self.failed_steps.get(),
            prefill_tokens: self.prefill_tokens.get(),
            decode_tokens: self.decode_tokens.get(),
            generated_tokens: self.generated_tokens.get(),
            preemptions: self.preemptions.get(),
            prefix_lookups: self.prefix_lookups.get(),
            prefix_hits: self.prefix_hits.get(),
            requests_done: self.requests_done.get(),
            requests_failed: self.requests_failed.get(),
            requests_cancelled: self.requests_cancelled.get(),
        }
    }
}
