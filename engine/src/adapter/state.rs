//! The registry's state behind its one lock: names, slots and tiers, what is to be done, and who waits for it.
//!
//! Nothing here does I/O. Loaders ask for work ([`State::next_work`]), do it without the lock, and report what came of it
//! (`outcomes`).

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    LoraWeights,
    lease::{Callback, Claim, LeaseCell},
    slots::{Named, Phase, Slot, SlotKey, Viewer, Waiting},
    stamp::Stamp,
    tiers::{DeviceWork, Tiers, Trash},
};
use crate::{
    error::{Error, Result},
    hub::Source,
    ids::Generation,
};

/// What a request brings along.
pub(super) struct Ask {
    /// The folder's stamp, if the source is local and its folder is known.
    pub(super) stamp: Option<Stamp>,
    pub(super) credential: Option<Arc<str>>,
    /// It names a source, not a registered name.
    pub(super) dynamic: bool,
    pub(super) now: Instant,
}

/// The registry's state.
pub(super) struct State {
    pub(super) names: HashMap<String, Named>,
    pub(super) slots: HashMap<Arc<SlotKey>, Slot>,
    pub(super) tiers: Tiers,
    /// Slots to be read, in order.
    pub(super) jobs: VecDeque<Arc<SlotKey>>,
    /// Slots whose reading waits for so many bytes of host memory, in order.
    pub(super) parked: VecDeque<(Arc<SlotKey>, usize)>,
    /// The slots with failures, by their end.
    pub(super) failures: VecDeque<(Instant, Arc<SlotKey>)>,
    /// The slots of callers whose access was checked, by its end.
    pub(super) accesses: VecDeque<(Instant, Arc<SlotKey>)>,
    /// What callers ask for by its source. One slot for each caller, but one reading for all who may see it.
    pub(super) callers: HashMap<Source, Callers>,
    pub(super) closing: bool,
    /// Leases that were given out and not given back.
    pub(super) leases: usize,
    pub(super) counters: Counters,
    pub(super) negative_ttl: Duration,
    pub(super) access_ttl: Duration,
}

/// The callers' slots of one source.
#[derive(Default)]
pub(super) struct Callers {
    pub(super) slots: usize,
    /// What the source held when it was last read for one of them.
    pub(super) generation: Option<Generation>,
}

/// Counts since the start.
#[derive(Default, Clone, Copy)]
pub(super) struct Counters {
    pub(super) reads: u64,
    pub(super) layouts: u64,
    pub(super) failures: u64,
    pub(super) access_checks: u64,
}

/// The most failures that are remembered: strangers can ask for any name.
const MAX_FAILURES: usize = 10_000;

/// What a loader does next.
pub(super) enum Work {
    /// Check access, fetch and read; `reserved` bytes of host memory were taken already.
    Load {
        key: Arc<SlotKey>,
        start: Start,
        reserved: Option<usize>,
    },
    /// Lay out for the device.
    LayOut {
        generation: Generation,
        weights: Arc<LoraWeights>,
        reserved: usize,
        name: String,
    },
    /// Free evicted memory.
    Free(Trash),
}

/// What a loader needs to know to load a slot.
pub(super) struct Start {
    /// For messages.
    pub(super) name: String,
    pub(super) credential: Option<Arc<str>>,
    /// The viewer's access is to be checked first.
    pub(super) check: bool,
}

impl State {
    pub(super) fn new(tiers: Tiers, negative_ttl: Duration, access_ttl: Duration) -> Self {
        Self {
            names: HashMap::new(),
            slots: HashMap::new(),
            tiers,
            jobs: VecDeque::new(),
            parked: VecDeque::new(),
            failures: VecDeque::new(),
            accesses: VecDeque::new(),
            callers: HashMap::new(),
            closing: false,
            leases: 0,
            counters: Counters::default(),
            negative_ttl,
            access_ttl,
        }
    }

    /// Points `name` to a slot.
    pub(super) fn register(&mut self, name: &str, key: Arc<SlotKey>, created: u64) {
        if self.names.get(name).is_some_and(|named| named.key == key) {
            return;
        }
        let slot = self.slots.entry(key.clone()).or_default();
        slot.names += 1;
        slot.retired = false;
        let before = self.names.insert(name.to_owned(), Named { key, created });
        if let Some(before) = before {
            self.drop_name(&before.key);
        }
    }

    /// Takes a name away.
    pub(super) fn unregister(&mut self, name: &str) -> bool {
        let Some(named) = self.names.remove(name) else {
            return false;
        };
        self.drop_name(&named.key);
        true
    }

    fn drop_name(&mut self, key: &Arc<SlotKey>) {
        if let Some(slot) = self.slots.get_mut(key) {
            slot.names -= 1;
            slot.retired = slot.names == 0;
        }
        self.tidy(key);
    }

    /// Gives a new lease its claim, or a place among those that wait for the slot to be read.
    pub(super) fn join(&mut self, key: &Arc<SlotKey>, cell: &Arc<LeaseCell>, ask: Ask) -> Result<()> {
        if self.closing {
            return Err(Error::ShuttingDown);
        }
        self.forget(ask.now);
        self.tiers.drain_for_first(ask.now);
        // A lease that nobody knows yet has no callbacks.
        let mut none = Vec::new();
        let callers = &mut self.callers;
        let slot = self.slots.entry(key.clone()).or_insert_with(|| {
            if key.viewer != Viewer::Operator {
                callers.entry(key.source.clone()).or_default().slots += 1;
            }
            Slot {
                retired: !ask.dynamic,
                ..Slot::default()
            }
        });
        if ask.dynamic {
            slot.retired = false;
        }
        if let Some(failure) = &slot.failure
            && failure.until > ask.now
            && failure.stamp == ask.stamp
        {
            let Some(before) = failure.fallback.filter(|before| self.tiers.is_at_hand(before)) else {
                return Err(failure.error.clone());
            };
            self.leases += 1;
            self.tiers.claim(before, cell, ask.now, &mut none);
            return Ok(());
        }
        self.leases += 1;
        let may_see =
            key.viewer == Viewer::Operator || slot.access_until.is_some_and(|until| until > ask.now);
        match slot.generation {
            Some(generation) if may_see && slot.stamp == ask.stamp && self.tiers.is_at_hand(&generation) => {
                self.tiers.attach(generation, key);
                self.tiers.claim(generation, cell, ask.now, &mut none);
            }
            _ => {
                cell.set_claim(Claim::Slot(key.clone()));
                slot.waiting.push(Waiting {
                    cell: cell.clone(),
                    stamp: ask.stamp,
                    covered: false,
                });
                slot.credential = ask.credential;
                if slot.phase == Phase::Idle {
                    slot.phase = Phase::Queued;
                    self.jobs.push_back(key.clone());
                }
            }
        }
        Ok(())
    }

    /// Takes a lease back.
    pub(super) fn release(&mut self, cell: &Arc<LeaseCell>) {
        self.leases -= 1;
        let (claim, ready) = cell.close();
        match claim {
            Claim::None => {}
            Claim::Slot(key) => {
                if let Some(slot) = self.slots.get_mut(&key) {
                    slot.waiting.retain(|waiting| !Arc::ptr_eq(&waiting.cell, cell));
                    if slot.waiting.is_empty() {
                        slot.credential = None;
                    }
                }
                self.tidy(&key);
            }
            Claim::Content(generation) if ready => self.tiers.release(generation),
            Claim::Content(generation) => self.tiers.withdraw(generation, cell),
        }
        self.tidy_gone();
    }

    /// Whether a loader could find something to do.
    pub(super) fn has_work(&self) -> bool {
        !self.jobs.is_empty() || !self.parked.is_empty() || self.tiers.has_waiting()
    }

    /// The next thing to do. None: wait until something changes.
    pub(super) fn next_work(&mut self, now: Instant, callbacks: &mut Vec<Callback>) -> Option<Work> {
        loop {
            match self.tiers.next_device_work(callbacks) {
                Some(DeviceWork::LayOut {
                    generation,
                    weights,
                    reserved,
                }) => {
                    self.counters.layouts += 1;
                    let name = self.tiers.name_of(&generation);
                    return Some(Work::LayOut {
                        generation,
                        weights,
                        reserved,
                        name,
                    });
                }
                Some(DeviceWork::TooLarge { generation, bytes }) => {
                    let error = Error::AdapterRefused {
                        adapter: self.tiers.name_of(&generation),
                        reason: format!(
                            "it takes {bytes} bytes on the device, all adapters together may take {}: raise that limit",
                            self.tiers.device.limit
                        ),
                    };
                    let waiting = self.tiers.take_waiting(generation);
                    self.fail_content(generation, &waiting, &error, now, callbacks);
                }
                None => break,
            }
        }
        if let Some(trash) = self.tiers.take_trash() {
            return Some(Work::Free(trash));
        }
        while let Some((key, bytes)) = self.parked.front().cloned() {
            let wanted = self.slots.get(&key).is_some_and(|slot| !slot.waiting.is_empty());
            if !wanted {
                self.parked.pop_front();
                self.begin(&key, now);
                continue;
            }
            if !self.tiers.reserve_host(bytes) {
                // Room may come from what was evicted just now.
                if let Some(trash) = self.tiers.take_trash() {
                    return Some(Work::Free(trash));
                }
                break;
            }
            self.parked.pop_front();
            match self.begin(&key, now) {
                Some(start) => {
                    return Some(Work::Load {
                        key,
                        start,
                        reserved: Some(bytes),
                    });
                }
                None => self.tiers.unreserve_host(bytes),
            }
        }
        while let Some(key) = self.jobs.pop_front() {
            if let Some(start) = self.begin(&key, now) {
                return Some(Work::Load {
                    key,
                    start,
                    reserved: None,
                });
            }
        }
        None
    }

    /// A loader takes the slot on. None if nobody waits for it any more.
    fn begin(&mut self, key: &Arc<SlotKey>, now: Instant) -> Option<Start> {
        let slot = self.slots.get_mut(key)?;
        let Some(first) = slot.waiting.first() else {
            slot.phase = Phase::Idle;
            self.tidy(key);
            return None;
        };
        let start = Start {
            name: first.cell.name.clone(),
            credential: slot.credential.clone(),
            check: key.viewer != Viewer::Operator && slot.access_until.is_none_or(|until| until <= now),
        };
        slot.phase = Phase::Running;
        for waiting in &mut slot.waiting {
            waiting.covered = true;
        }
        Some(start)
    }

    /// Takes no more leases and fails those that wait.
    pub(super) fn close(&mut self, callbacks: &mut Vec<Callback>) {
        self.closing = true;
        let mut waiting: Vec<_> = self
            .slots
            .values_mut()
            .flat_map(|slot| slot.waiting.drain(..).map(|waiting| waiting.cell))
            .collect();
        for generation in self.tiers.contents.keys().copied().collect::<Vec<_>>() {
            waiting.append(&mut self.tiers.take_waiting(generation));
        }
        for cell in waiting {
            cell.fail(&Error::ShuttingDown, callbacks);
        }
    }

    /// Forgets what has expired.
    fn forget(&mut self, now: Instant) {
        while self.failures.front().is_some_and(|(until, _)| *until <= now)
            || self.failures.len() > MAX_FAILURES
        {
            let Some((until, key)) = self.failures.pop_front() else {
                break;
            };
            if let Some(slot) = self.slots.get_mut(&key)
                && slot
                    .failure
                    .as_ref()
                    .is_some_and(|failure| failure.until <= until)
            {
                slot.failure = None;
                self.tidy(&key);
            }
        }
        while self.accesses.front().is_some_and(|(until, _)| *until <= now) {
            let Some((_, key)) = self.accesses.pop_front() else {
                break;
            };
            self.forget_caller(&key, now);
        }
    }

    /// Forgets a caller's slot, unless it is the last that holds a content: that stays for whoever may see it next.
    fn forget_caller(&mut self, key: &Arc<SlotKey>, now: Instant) {
        let Some(slot) = self.slots.get_mut(key) else {
            return;
        };
        let others = slot
            .generation
            .and_then(|generation| self.tiers.contents.get(&generation))
            .is_some_and(|content| content.slots.len() > 1);
        if others && slot.access_until.is_none_or(|until| until <= now) {
            slot.retired = true;
            self.tidy(key);
        }
    }

    pub(super) fn tidy_gone(&mut self) {
        for key in self.tiers.take_gone() {
            self.tidy(&key);
        }
    }

    /// Forgets a slot that no name points to and that there is nothing to know of.
    pub(super) fn tidy(&mut self, key: &Arc<SlotKey>) {
        let Some(slot) = self.slots.get(key) else {
            return;
        };
        if slot.names > 0 || !slot.waiting.is_empty() || slot.phase != Phase::Idle {
            return;
        }
        let held = slot.generation.filter(|generation| {
            self.tiers
                .contents
                .get(generation)
                .is_some_and(|content| content.slots.contains(key))
        });
        if slot.retired || (held.is_none() && slot.failure.is_none()) {
            self.slots.remove(key);
            if key.viewer != Viewer::Operator
                && let Some(callers) = self.callers.get_mut(&key.source)
            {
                callers.slots -= 1;
                if callers.slots == 0 {
                    self.callers.remove(&key.source);
                }
            }
            if let Some(generation) = held {
                self.tiers.detach(generation, key);
            }
        }
    }
}
