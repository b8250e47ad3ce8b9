//! What loaders report: the part of the registry's state that settles leases.

use std::{mem, sync::Arc, time::Instant};

use super::{
    LoraWeights,
    lease::{Callback, LeaseCell},
    slots::{Failure, Phase, ReadFrom, SlotKey, Viewer, Waiting},
    stamp::Stamp,
    state::State,
};
use crate::{
    batch::DeviceAdapter,
    error::{Error, Result},
    hub::Source,
    ids::Generation,
};

/// What becomes of leases that waited for a slot.
#[derive(Clone, Copy)]
enum Outcome<'a> {
    Claim(Generation),
    Fail(&'a Error),
}

impl State {
    /// The viewer may see the source. True if that was all there was to find out: what waited has its claim.
    pub(super) fn may_see(
        &mut self,
        key: &Arc<SlotKey>,
        now: Instant,
        callbacks: &mut Vec<Callback>,
    ) -> bool {
        self.counters.access_checks += 1;
        let Some(slot) = self.slots.get_mut(key) else {
            return true;
        };
        let until = now + self.access_ttl;
        slot.access_until = Some(until);
        slot.failure = None;
        self.accesses.push_back((until, key.clone()));
        let read = slot.generation.or(self
            .callers
            .get(&key.source)
            .and_then(|callers| callers.generation));
        let Some(generation) = read.filter(|generation| self.tiers.is_at_hand(generation)) else {
            return false;
        };
        slot.generation = Some(generation);
        self.tiers.attach(generation, key);
        self.finish(key, |_| true, Outcome::Claim(generation), now, callbacks);
        true
    }

    /// Reading has to wait for host memory.
    pub(super) fn park(&mut self, key: Arc<SlotKey>, bytes: usize) {
        if let Some(slot) = self.slots.get_mut(&key) {
            slot.phase = Phase::Queued;
            self.parked.push_back((key, bytes));
        }
    }

    /// The slot's adapter has been read into `reserved` bytes.
    pub(super) fn loaded(
        &mut self,
        key: &Arc<SlotKey>,
        weights: Arc<LoraWeights>,
        reserved: usize,
        read: ReadFrom,
        now: Instant,
        callbacks: &mut Vec<Callback>,
    ) {
        self.counters.reads += 1;
        let generation = weights.generation;
        self.tiers.put(weights, reserved);
        self.tiers.attach(generation, key);
        let Some(slot) = self.slots.get_mut(key) else {
            debug_assert!(false, "a slot went away while it was loaded");
            self.tiers.detach(generation, key);
            return;
        };
        let before = slot.generation.replace(generation);
        if let Some(callers) = self.callers.get_mut(&key.source)
            && key.viewer != Viewer::Operator
        {
            callers.generation = Some(generation);
        }
        slot.stamp = read.stamp;
        slot.folder = read.folder;
        slot.failure = None;
        self.finish(
            key,
            |stamp| stamp == read.stamp,
            Outcome::Claim(generation),
            now,
            callbacks,
        );
        if let Some(before) = before
            && before != generation
        {
            self.tiers.detach(before, key);
        }
        self.tidy_gone();
    }

    /// The slot's adapter could not be had.
    pub(super) fn failed(
        &mut self,
        key: &Arc<SlotKey>,
        error: &Error,
        from: ReadFrom,
        now: Instant,
        callbacks: &mut Vec<Callback>,
    ) {
        self.counters.failures += 1;
        let Some(slot) = self.slots.get_mut(key) else {
            return;
        };
        slot.folder = from.folder.or_else(|| slot.folder.take());
        // Files on disk that are being replaced, or were replaced by bad ones: what was good before goes on.
        let fallback = slot
            .generation
            .filter(|before| matches!(key.source, Source::Local(_)) && self.tiers.is_at_hand(before));
        if fallback.is_some() {
            tracing::warn!(source = %key.source, %error, "a changed adapter cannot be used: requests go on with what it was before");
        }
        self.remember_failure(key, error, from.stamp, fallback, now);
        let outcome = fallback.map_or(Outcome::Fail(error), Outcome::Claim);
        self.finish(key, |stamp| stamp == from.stamp, outcome, now, callbacks);
        self.tidy_gone();
    }

    /// A layout has ended.
    pub(super) fn laid_out(
        &mut self,
        generation: Generation,
        reserved: usize,
        adapter: Result<DeviceAdapter>,
        now: Instant,
        callbacks: &mut Vec<Callback>,
    ) {
        match adapter {
            Ok(adapter) => {
                self.tiers
                    .laid_out(generation, reserved, Some(adapter), now, callbacks);
            }
            Err(error) => {
                let waiting = self.tiers.laid_out(generation, reserved, None, now, callbacks);
                self.fail_content(generation, &waiting, &error, now, callbacks);
            }
        }
        self.tidy_gone();
    }

    /// Settles the leases that wait for the slot and that this reading is recent enough for; the others are read for again.
    fn finish(
        &mut self,
        key: &Arc<SlotKey>,
        recent: impl Fn(Option<Stamp>) -> bool,
        outcome: Outcome<'_>,
        now: Instant,
        callbacks: &mut Vec<Callback>,
    ) {
        let Some(slot) = self.slots.get_mut(key) else {
            return;
        };
        let (settled, again) = mem::take(&mut slot.waiting)
            .into_iter()
            .partition(|waiting| waiting.covered || recent(waiting.stamp));
        slot.waiting = again;
        if slot.waiting.is_empty() {
            slot.phase = Phase::Idle;
            slot.credential = None;
        } else {
            slot.phase = Phase::Queued;
            self.jobs.push_back(key.clone());
        }
        let settled: Vec<Waiting> = settled;
        for waiting in settled {
            match outcome {
                Outcome::Claim(generation) => self.tiers.claim(generation, &waiting.cell, now, callbacks),
                Outcome::Fail(error) => waiting.cell.fail(error, callbacks),
            }
        }
        self.tidy(key);
    }

    /// A content that was read cannot be laid out.
    pub(super) fn fail_content(
        &mut self,
        generation: Generation,
        waiting: &[Arc<LeaseCell>],
        error: &Error,
        now: Instant,
        callbacks: &mut Vec<Callback>,
    ) {
        self.counters.failures += 1;
        for cell in waiting {
            cell.fail(error, callbacks);
        }
        let slots = self
            .tiers
            .contents
            .get(&generation)
            .map(|content| content.slots.clone())
            .unwrap_or_default();
        for key in slots {
            let stamp = self.slots.get(&key).and_then(|slot| slot.stamp);
            self.remember_failure(&key, error, stamp, None, now);
        }
        self.tidy_gone();
    }

    fn remember_failure(
        &mut self,
        key: &Arc<SlotKey>,
        error: &Error,
        stamp: Option<Stamp>,
        fallback: Option<Generation>,
        now: Instant,
    ) {
        let until = now + self.negative_ttl;
        if let Some(slot) = self.slots.get_mut(key) {
            slot.failure = Some(Failure {
                until,
                error: error.clone(),
                stamp,
                fallback,
            });
            self.failures.push_back((until, key.clone()));
        }
    }
}
