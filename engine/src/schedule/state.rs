//! What the scheduler knows: every sequence, the blocks, and who has been served what.

use std::collections::HashSet;

use super::{
    AdapterNeed, Limits, NewSequence, Sequence, StepAdapter, StepPlan,
    accounts::{Accounts, OUTPUT_WEIGHT},
    rotation::Rotation,
};
use crate::{
    ids::{SequenceId, TokenId},
    kv::{BlockPool, blocks_for},
};

/// The scheduler's state. A sequence is in exactly one of its three lists: it is moved, never copied, so there is no second
/// place that could disagree.
#[derive(Debug)]
pub struct State {
    pub(super) limits: Limits,
    /// Steps that were planned: the only clock there is.
    pub(super) step: u64,
    arrivals: u64,
    pub(super) pool: BlockPool,
    /// Those that have no adapter yet.
    loading: Vec<Loading>,
    /// Those that wait to be admitted, in no order. They hold no blocks.
    pub(super) waiting: Vec<Sequence>,
    /// Those that run, the most senior first as of the last step.
    pub(super) running: Vec<Sequence>,
    pub(super) accounts: Accounts,
    pub(super) rotation: Rotation,
}

#[derive(Debug)]
struct Loading {
    new: NewSequence,
    arrival: u64,
    since: u64,
}

impl State {
    /// Nothing to do yet, on a KV cache of so many blocks.
    pub fn new(limits: Limits, kv_blocks: usize) -> Self {
        Self {
            limits: limits.sane(),
            step: 0,
            arrivals: 0,
            pool: BlockPool::new(kv_blocks),
            loading: Vec::new(),
            waiting: Vec::new(),
            running: Vec::new(),
            accounts: Accounts::default(),
            rotation: Rotation::default(),
        }
    }

    /// Takes in a sequence. It arrives now, whenever its adapter does.
    pub fn insert(&mut self, new: NewSequence) {
        let (arrival, since) = (self.arrivals, self.step);
        self.arrivals += 1;
        match new.adapter {
            AdapterNeed::Loading => self.loading.push(Loading { new, arrival, since }),
            AdapterNeed::Ready(adapter) => self.enqueue(Loading { new, arrival, since }, adapter),
        }
    }

    /// A sequence's adapter has been loaded.
    pub fn adapter_ready(&mut self, id: SequenceId, adapter: StepAdapter) {
        if let Some(index) = self.loading.iter().position(|loading| loading.new.id == id) {
            let loading = self.loading.swap_remove(index);
            self.enqueue(loading, Some(adapter));
        }
    }

    fn enqueue(&mut self, loading: Loading, adapter: Option<StepAdapter>) {
        let Loading { new, arrival, since } = loading;
        let account = self.accounts.enter(new.account(adapter));
        self.waiting
            .push(Sequence::new(new, adapter, account, arrival, since));
    }

    /// Notes that the runner has computed `plan`: the positions are in the cache, and full blocks can be found there.
    pub fn settle(&mut self, plan: &StepPlan) {
        for span in &plan.spans {
            let Some(sequence) = self
                .running
                .iter_mut()
                .find(|sequence| sequence.id == span.sequence)
            else {
                continue;
            };
            let before = sequence.computed;
            sequence.computed = span.start + span.rows;
            sequence
                .table
                .publish(sequence.computed, &sequence.tokens, &mut self.pool);
            if before < sequence.prompt && sequence.computed >= sequence.prompt {
                self.start_followers(span.sequence);
            }
        }
    }

    /// Appends a generated token to a running sequence, all of whose tokens have been computed.
    pub fn push(&mut self, id: SequenceId, token: TokenId) {
        if let Some(sequence) = self.running.iter_mut().find(|sequence| sequence.id == id) {
            debug_assert_eq!(sequence.pending(), 0, "a token follows from those before it");
            sequence.tokens.push(token);
            sequence.charged = sequence.tokens.len();
            self.accounts.charge(sequence.account, OUTPUT_WEIGHT);
        }
    }

    /// Takes a sequence out, wherever it is, and frees its blocks. Returns whether it was there.
    pub fn remove(&mut self, id: SequenceId) -> bool {
        if let Some(index) = self.loading.iter().position(|loading| loading.new.id == id) {
            self.loading.swap_remove(index);
        } else if let Some(index) = self.waiting.iter().position(|sequence| sequence.id == id) {
            let sequence = self.waiting.swap_remove(index);
            self.accounts.leave(sequence.account);
        } else if let Some(index) = self.running.iter().position(|sequence| sequence.id == id) {
            let mut sequence = self.running.remove(index);
            sequence.table.release(&mut self.pool);
            self.accounts.leave(sequence.account);
        } else {
            return false;
        }
        self.start_followers(id);
        true
    }

    /// Lets those go on that wait for the prompt of `id`.
    pub(super) fn start_followers(&mut self, id: SequenceId) {
        let loading = self.loading.iter_mut().map(|loading| &mut loading.new.after);
        let waiting = self.waiting.iter_mut().map(|sequence| &mut sequence.after);
        for after in loading.chain(waiting) {
            if *after == Some(id) {
                *after = None;
            }
        }
    }

    /// A sequence that runs.
    pub fn running(&self, id: SequenceId) -> Option<&Sequence> {
        self.running.iter().find(|sequence| sequence.id == id)
    }

    /// Sequences that run.
    pub fn running_count(&self) -> usize {
        self.running.len()
    }

    /// Sequences that wait, for their adapter or to be admitted.
    pub fn waiting_count(&self) -> usize {
        self.loading.len() + self.waiting.len()
    }

    /// The blocks.
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// Whether a sequence has aged: none that came later goes before it.
    pub(super) fn is_aged(&self, sequence: &Sequence) -> bool {
        self.step - sequence.since >= self.limits.ageing_steps
    }

    /// Compares everything with everything: that no block is lost or counted twice, that no sequence is in two places, that
    /// tables hold what was computed, and that accounts count those that are here.
    ///
    /// # Errors
    /// What does not agree, in words.
    pub fn check_integrity(&self) -> Result<(), String> {
        self.pool
            .check_integrity(self.running.iter().map(|sequence| sequence.table.blocks()))?;
        let mut ids = HashSet::new();
        let loading = self.loading.iter().map(|loading| loading.new.id);
        let others = self
            .waiting
            .iter()
            .chain(&self.running)
            .map(|sequence| sequence.id);
        if let Some(twice) = loading.chain(others).find(|&id| !ids.insert(id)) {
            return Err(format!("{twice:?} is in the lists twice"));
        }
        if self.running.len() > self.limits.max_running {
            let (running, limit) = (self.running.len(), self.limits.max_running);
            return Err(format!("{running} sequences run where {limit} may"));
        }
        if let Some(holds) = self
            .waiting
            .iter()
            .find(|sequence| sequence.computed > 0 || !sequence.table.blocks().is_empty())
        {
            return Err(format!("{:?} waits and holds blocks", holds.id));
        }
        for sequence in &self.running {
            if sequence.computed >= sequence.tokens.len() {
                return Err(format!("{:?} has nothing left to compute", sequence.id));
            }
            let (computed, blocks) = (sequence.computed, sequence.table.blocks().len());
            if blocks < blocks_for(computed) || blocks > sequence.blocks_needed() {
                let id = sequence.id;
                return Err(format!(
                    "{id:?} has computed {computed} positions and has {blocks} blocks"
                ));
            }
        }
        let (counted, here) = (self.accounts.sequences(), self.waiting.len() + self.running.len());
        if counted != here {
            return Err(format!("accounts count {counted} sequences and {here} are here"));
        }
        Ok(())
    }
}
