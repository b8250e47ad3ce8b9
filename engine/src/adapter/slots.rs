//! What a request names, and what is known of it: the registry's state behind its one lock.
//!
//! A slot is a source as somebody sees it. Registered names point to slots; a slot points to the generation that its source held when
//! it was last read. Nothing here does I/O: loaders ask for work, do it without the lock, and report what came of it.

use std::{
    collections::{HashMap, VecDeque},
    mem,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use sha2::{Digest, Sha256};

use super::{
    LoraWeights,
    lease::{Callback, Claim, LeaseCell},
    stamp::Stamp,
    tiers::{DeviceWork, Tiers, Trash},
};
use crate::{
    error::{Error, Result},
    hub::Source,
    ids::Generation,
};

/// A source, and on whose behalf it is read.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct SlotKey {
    pub(super) source: Source,
    pub(super) viewer: Viewer,
}

/// On whose behalf an adapter is read. What one viewer may see says nothing of another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Viewer {
    /// The operator, who registered it for everybody, or whose disk or binary it is on.
    Operator,
    /// A caller without a credential.
    Anonymous,
    /// A caller, by the digest of the credential.
    Credential([u8; 32]),
}

impl Viewer {
    pub(super) fn of(source: &Source, credential: Option<&str>) -> Self {
        match (source, credential) {
            (Source::Local(_) | Source::Embedded(_), _) => Self::Operator,
            (_, None) => Self::Anonymous,
            (_, Some(credential)) => {
                let mut hash = Sha256::new();
                hash.update(b"heddle adapter viewer v1\0");
                hash.update(credential);
                Self::Credential(hash.finalize().into())
            }
        }
    }
}

/// A registered name.
pub(super) struct Named {
    pub(super) key: Arc<SlotKey>,
    /// Seconds since 1970.
    pub(super) created: u64,
}

/// What is known of one source as one viewer sees it.
#[derive(Default)]
pub(super) struct Slot {
    /// Registered names that point here.
    pub(super) names: usize,
    /// Its last name was taken away: it goes as soon as nobody waits for it.
    retired: bool,
    /// What the source held when it was last read.
    pub(super) generation: Option<Generation>,
    /// The folder's stamp at that time; none for what is not local.
    stamp: Option<Stamp>,
    /// The folder that was read, if the source is local.
    pub(super) folder: Option<PathBuf>,
    /// Until when the viewer's access is taken as checked.
    access_until: Option<Instant>,
    pub(super) failure: Option<Failure>,
    phase: Phase,
    pub(super) waiting: Vec<Waiting>,
    /// The viewer's credential, kept only while somebody waits.
    credential: Option<Arc<str>>,
}

/// A recent failure, which answers at once.
pub(super) struct Failure {
    until: Instant,
    pub(super) error: Error,
    /// Of the files that failed: others are tried at once.
    stamp: Option<Stamp>,
    /// The generation before, which new requests get as long as it is at hand.
    fallback: Option<Generation>,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Phase {
    #[default]
    Idle,
    /// In `jobs` or `parked`.
    Queued,
    /// A loader is at it.
    Running,
}

/// A lease that waits for its adapter to be read.
pub(super) struct Waiting {
    cell: Arc<LeaseCell>,
    /// What the folder looked like when the lease was asked for.
    stamp: Option<Stamp>,
    /// Whether the reading began after that, so that what it finds is recent enough.
    covered: bool,
}

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
    jobs: VecDeque<Arc<SlotKey>>,
    /// Slots whose reading waits for so many bytes of host memory, in order.
    parked: VecDeque<(Arc<SlotKey>, usize)>,
    /// The slots with failures, by their end.
    failures: VecDeque<(Instant, Arc<SlotKey>)>,
    /// The slots of callers whose access was checked, by its end.
    accesses: VecDeque<(Instant, Arc<SlotKey>)>,
    /// What callers ask for by its source. One slot for each caller, but one reading for all who may see it.
    callers: HashMap<Source, Callers>,
    pub(super) closing: bool,
    /// Leases that were given out and not given back.
    pub(super) leases: usize,
    pub(super) counters: Counters,
    negative_ttl: Duration,
    access_ttl: Duration,
}

/// The callers' slots of one source.
#[derive(Default)]
struct Callers {
    slots: usize,
    /// What the source held when it was last read for one of them.
    generation: Option<Generation>,
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
        adapter: Result<crate::batch::DeviceAdapter>,
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
    fn fail_content(
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

    fn tidy_gone(&mut self) {
        for key in self.tiers.take_gone() {
            self.tidy(&key);
        }
    }

    /// Forgets a slot that no name points to and that there is nothing to know of.
    fn tidy(&mut self, key: &Arc<SlotKey>) {
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

/// What becomes of leases that waited for a slot.
#[derive(Clone, Copy)]
enum Outcome<'a> {
    Claim(Generation),
    Fail(&'a Error),
}

/// Where an adapter was read, if it is local.
#[derive(Default)]
pub(super) struct ReadFrom {
    pub(super) folder: Option<PathBuf>,
    /// None if it could not show the next change.
    pub(super) stamp: Option<Stamp>,
}

/// The folder that shows whether a source has changed: its own path, so that a link that points elsewhere shows; for a relative path,
/// which is looked for in several places, the one where it was found.
pub(super) fn watched<'a>(source: &'a Source, found: Option<&'a Path>) -> Option<&'a Path> {
    match source {
        Source::Local(path) if path.is_absolute() => Some(path),
        Source::Local(_) => found,
        _ => None,
    }
}
