//! One sequence: a choice of a request, as the scheduler sees it.

use std::cmp::Reverse;

use super::accounts::{Account, AccountId};
use crate::{
    ids::{Generation, SequenceId, Tenant, TokenId},
    kv::{BlockHash, BlockTable, CacheScope, blocks_for},
};

/// A sequence to be scheduled.
#[derive(Debug, Clone)]
pub struct NewSequence {
    /// Its id, used by no other.
    pub id: SequenceId,
    /// On whose account; an empty name is counted for the adapter.
    pub tenant: Tenant,
    /// Higher goes first.
    pub priority: i32,
    /// The prompt, at least one token.
    pub prompt: Vec<TokenId>,
    /// With whom it shares blocks.
    pub scope: CacheScope,
    /// Its adapter.
    pub adapter: AdapterNeed,
    /// The sibling whose prompt it waits for.
    pub after: Option<SequenceId>,
    /// The most rows of it in one step, at least 1.
    pub chunk: usize,
    /// Whether it computes its whole prompt itself, even if the cache has it: for the prompt's logits.
    pub whole_prompt: bool,
}

/// An adapter as far as a step is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepAdapter {
    /// Its identity.
    pub generation: Generation,
    /// Bytes that a step reads for it.
    pub bytes: usize,
}

/// Whether a sequence has its adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdapterNeed {
    /// Not yet: [`super::State::adapter_ready`] will say when.
    Loading,
    /// It has; none for the base model.
    Ready(Option<StepAdapter>),
}

/// A sequence that has its adapter: it waits to be admitted, or runs.
#[derive(Debug)]
pub struct Sequence {
    pub(super) id: SequenceId,
    pub(super) account: AccountId,
    pub(super) priority: i32,
    /// Its place in the order of arrival.
    pub(super) arrival: u64,
    /// The step in which it arrived.
    pub(super) since: u64,
    pub(super) adapter: Option<StepAdapter>,
    pub(super) after: Option<SequenceId>,
    pub(super) chunk: usize,
    pub(super) whole_prompt: bool,
    pub(super) prompt: usize,
    /// The prompt and what was generated.
    pub(super) tokens: Vec<TokenId>,
    /// Positions from the beginning whose keys and values are in the blocks of `table`.
    pub(super) computed: usize,
    pub(super) table: BlockTable,
    /// Tokens that its account has been charged for: no one pays twice for being preempted.
    pub(super) charged: usize,
}

/// A sequence's place in the order of all: the least is the most senior.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Seniority {
    /// Whether it has not aged.
    pub(super) young: bool,
    /// Means nothing for the aged.
    pub(super) priority: Reverse<i32>,
    /// What its account was served; means nothing for the aged, nor among those that run.
    pub(super) served: u64,
    pub(super) arrival: u64,
}

impl Sequence {
    /// Makes a sequence of `new`, which has its adapter now.
    pub(super) fn new(
        new: NewSequence,
        adapter: Option<StepAdapter>,
        account: AccountId,
        arrival: u64,
        since: u64,
    ) -> Self {
        assert!(!new.prompt.is_empty(), "a sequence has a prompt");
        assert!(new.chunk > 0, "a sequence takes rows");
        let root = BlockHash::root(adapter.map(|adapter| adapter.generation), &new.scope);
        Self {
            id: new.id,
            account,
            priority: new.priority,
            arrival,
            since,
            adapter,
            after: new.after,
            chunk: new.chunk,
            whole_prompt: new.whole_prompt,
            prompt: new.prompt.len(),
            tokens: new.prompt,
            computed: 0,
            table: BlockTable::new(root),
            charged: 0,
        }
    }

    /// Its id.
    pub fn id(&self) -> SequenceId {
        self.id
    }

    /// The prompt and what was generated.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Its block table.
    pub fn table(&self) -> &BlockTable {
        &self.table
    }

    /// Its adapter; none for the base model.
    pub fn adapter(&self) -> Option<StepAdapter> {
        self.adapter
    }

    /// Positions whose keys and values are in the cache.
    pub fn computed(&self) -> usize {
        self.computed
    }

    /// Tokens whose keys and values are not in the cache. Never none: the last token was sampled, not computed.
    pub fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Whether all but its last token is computed.
    pub(super) fn decodes(&self) -> bool {
        self.pending() == 1
    }

    /// Whether it takes over what the prefix cache has of it.
    pub(super) fn reuses(&self) -> bool {
        // Once there is an output the prompt's logits have been had.
        !self.whole_prompt || self.tokens.len() > self.prompt
    }

    /// Blocks that it needs for the tokens that it has.
    pub(super) fn blocks_needed(&self) -> usize {
        blocks_for(self.tokens.len())
    }

    /// Its place in the order, `served` being what its account got if that is to count.
    pub(super) fn seniority(&self, step: u64, ageing_steps: u64, served: u64) -> Seniority {
        let young = step - self.since < ageing_steps;
        Seniority {
            young,
            priority: Reverse(if young { self.priority } else { 0 }),
            served: if young { served } else { 0 },
            arrival: self.arrival,
        }
    }
}

impl NewSequence {
    /// Whose account it runs on, once its adapter is known.
    pub(super) fn account(&self, adapter: Option<StepAdapter>) -> Account {
        match adapter {
            _ if !self.tenant.0.is_empty() => Account::Tenant(self.tenant.clone()),
            Some(adapter) => Account::Adapter(adapter.generation),
            None => Account::Base,
        }
    }
}
