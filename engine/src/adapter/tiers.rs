//! What is in host memory and on the device, and who may have the room: policy without a thread, a file or a clock of its own.
//!
//! A content is one generation of an adapter. Its host copy and its device copy each count against a budget of bytes, and each
//! may be evicted when nobody needs it, the least recently used first. Leases that find no room on the device wait in one queue
//! and are served in its order: nobody who comes later is served from the room that the first one waits for. Adapters that are on
//! the device stay in use meanwhile, until the first in the queue has waited for [`Tiers::drain_after`]; then enough of them are
//! drained: they take no new leases, so that the wait ends with the leases that are running. That bounds every wait.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    LoraWeights,
    lease::{Callback, Claim, LeaseCell},
    slots::SlotKey,
};
use crate::{batch::DeviceAdapter, ids::Generation};

/// A budget of bytes and what could be evicted from it.
#[derive(Debug)]
pub(super) struct Budget {
    pub(super) limit: usize,
    /// Bytes of what is there, is being made, or is being freed.
    pub(super) used: usize,
    /// Bytes of `used` for what is being made.
    pub(super) reserved: usize,
    /// Bytes of `used` that were evicted and are not free yet.
    pub(super) dying: usize,
    /// What nobody needs, by its last use, the oldest first.
    pub(super) idle: BTreeMap<u64, Generation>,
    /// Bytes of `idle`.
    pub(super) idle_bytes: usize,
    /// How often something was evicted to make room.
    pub(super) evictions: u64,
}

impl Budget {
    fn new(limit: usize) -> Self {
        Self {
            limit,
            used: 0,
            reserved: 0,
            dying: 0,
            idle: BTreeMap::new(),
            idle_bytes: 0,
            evictions: 0,
        }
    }

    /// Whether `bytes` more fit now.
    fn fits(&self, bytes: usize) -> bool {
        self.used.saturating_add(bytes) <= self.limit
    }

    /// Whether `bytes` more will fit when everything idle is gone.
    fn can_fit(&self, bytes: usize) -> bool {
        (self.used - self.dying - self.idle_bytes).saturating_add(bytes) <= self.limit
    }

    fn reserve(&mut self, bytes: usize) {
        self.used += bytes;
        self.reserved += bytes;
    }

    fn unreserve(&mut self, bytes: usize) {
        self.used -= bytes;
        self.reserved -= bytes;
    }

    /// Puts a content into the list of idle ones with `now` bytes, or takes it out. `listed` is what it is in there with.
    fn list(&mut self, listed: &mut Option<usize>, now: Option<usize>, used: u64, generation: Generation) {
        if let Some(bytes) = listed.take() {
            self.idle_bytes -= bytes;
            self.idle.remove(&used);
        }
        if let Some(bytes) = now {
            self.idle_bytes += bytes;
            self.idle.insert(used, generation);
        }
        *listed = now;
    }

    /// The idle content that was used least recently.
    fn oldest(&self) -> Option<Generation> {
        self.idle.first_key_value().map(|(_, generation)| *generation)
    }

    /// Whether `bytes` more will fit without a further eviction.
    fn will_fit(&self, bytes: usize) -> bool {
        (self.used - self.dying).saturating_add(bytes) <= self.limit
    }
}

/// One generation of an adapter.
#[derive(Default)]
pub(super) struct Content {
    /// The slots that stand for it.
    pub(super) slots: HashSet<Arc<SlotKey>>,
    pub(super) host: Option<Arc<LoraWeights>>,
    pub(super) device: Device,
    /// Leases that have it.
    pub(super) leases: usize,
    /// Leases that wait for it.
    pub(super) waiting: Vec<Arc<LeaseCell>>,
    /// Since when it is in the queue for room.
    pub(super) queued: Option<Instant>,
    /// Takes no new leases while someone waits for its room.
    pub(super) draining: bool,
    /// What its layout takes, once it has been laid out.
    pub(super) device_bytes: Option<usize>,
    /// When it was last used; its key in the lists of idle contents.
    pub(super) used: u64,
    /// Its bytes among the idle ones on the host, if it is there.
    pub(super) idle_host: Option<usize>,
    /// The same on the device.
    pub(super) idle_device: Option<usize>,
}

#[derive(Default)]
pub(super) enum Device {
    #[default]
    Absent,
    /// A loader is at it.
    LayingOut,
    Resident(DeviceAdapter),
}

/// The contents and the two budgets.
pub(super) struct Tiers {
    pub(super) contents: HashMap<Generation, Content>,
    pub(super) host: Budget,
    pub(super) device: Budget,
    /// Contents whose leases wait for room on the device, in order.
    pub(super) queue: VecDeque<Generation>,
    /// How long the first in the queue waits before others are drained for it.
    pub(super) drain_after: Duration,
    /// For whom the draining ones are drained.
    drained_for: Option<Generation>,
    /// Bytes of the layout that was made last, and of the weights it was made from.
    seen_layout: Option<(usize, usize)>,
    trash: Trash,
    /// Slots whose content went away.
    gone: Vec<Arc<SlotKey>>,
    ticks: u64,
}

/// Evicted copies. They are dropped without a lock, and their bytes are free only then.
#[derive(Default)]
pub(super) struct Trash {
    device: Vec<DeviceAdapter>,
    host: Vec<Arc<LoraWeights>>,
}

impl Trash {
    /// How much memory it takes, on the device and on the host.
    pub(super) fn bytes(&self) -> (usize, usize) {
        let device = self.device.iter().map(|adapter| adapter.bytes).sum();
        let host = self.host.iter().map(|weights| weights.bytes()).sum();
        (device, host)
    }
}

/// What there is to do for the device.
pub(super) enum DeviceWork {
    /// Lay it out in `reserved` bytes, then call [`Tiers::laid_out`].
    LayOut {
        generation: Generation,
        weights: Arc<LoraWeights>,
        reserved: usize,
    },
    /// It is larger than the whole budget.
    TooLarge { generation: Generation, bytes: usize },
}

impl Tiers {
    pub(super) fn new(host_bytes: usize, device_bytes: usize, drain_after: Duration) -> Self {
        Self {
            contents: HashMap::new(),
            host: Budget::new(host_bytes),
            device: Budget::new(device_bytes),
            queue: VecDeque::new(),
            drain_after,
            drained_for: None,
            seen_layout: None,
            trash: Trash::default(),
            gone: Vec::new(),
            ticks: 0,
        }
    }

    /// Whether a lease on it need not wait for anything to be read.
    pub(super) fn is_at_hand(&self, generation: &Generation) -> bool {
        self.contents
            .get(generation)
            .is_some_and(|content| match content.device {
                Device::Resident(_) => !content.draining || content.host.is_some(),
                Device::LayingOut => true,
                Device::Absent => content.host.is_some(),
            })
    }

    /// Whether it is on the device.
    pub(super) fn is_resident(&self, generation: &Generation) -> bool {
        self.contents
            .get(generation)
            .is_some_and(|content| matches!(content.device, Device::Resident(_)))
    }

    /// What it is called by those that wait for it, for messages.
    pub(super) fn name_of(&self, generation: &Generation) -> String {
        let waiting = self
            .contents
            .get(generation)
            .and_then(|content| content.waiting.first());
        waiting.map_or_else(|| generation.to_string(), |cell| cell.name.clone())
    }

    /// Gives a lease its claim on a content that is at hand: at once if it is on the device, else a place in the queue.
    pub(super) fn claim(
        &mut self,
        generation: Generation,
        cell: &Arc<LeaseCell>,
        now: Instant,
        callbacks: &mut Vec<Callback>,
    ) {
        self.touch(generation);
        let Some(content) = self.contents.get_mut(&generation) else {
            debug_assert!(false, "claimed a content that is not at hand");
            return;
        };
        match &content.device {
            Device::Resident(adapter) if !content.draining => {
                content.leases += 1;
                cell.ready(adapter, callbacks);
            }
            device => {
                content.waiting.push(cell.clone());
                cell.set_claim(Claim::Content(generation));
                if !matches!(device, Device::LayingOut) && content.queued.is_none() {
                    content.queued = Some(now);
                    self.queue.push_back(generation);
                }
            }
        }
        self.update(generation);
    }

    /// A lease that had it is gone.
    pub(super) fn release(&mut self, generation: Generation) {
        self.touch(generation);
        if let Some(content) = self.contents.get_mut(&generation) {
            content.leases -= 1;
        }
        self.update(generation);
    }

    /// A lease that waited for it is gone.
    pub(super) fn withdraw(&mut self, generation: Generation, cell: &Arc<LeaseCell>) {
        if let Some(content) = self.contents.get_mut(&generation) {
            content.waiting.retain(|waiting| !Arc::ptr_eq(waiting, cell));
        }
        self.leave_queue_if_unwanted(generation);
        self.update(generation);
    }

    /// Takes weights in that have been read into `reserved` bytes of the host budget. [`Tiers::attach`] is due afterwards.
    pub(super) fn put(&mut self, weights: Arc<LoraWeights>, reserved: usize) {
        let generation = weights.generation;
        let bytes = weights.bytes();
        self.host.unreserve(reserved);
        self.host.used += bytes;
        let content = self.contents.entry(generation).or_default();
        if content.host.is_none() {
            content.host = Some(weights);
        } else {
            // The same content came by another way.
            self.host.dying += bytes;
            self.trash.host.push(weights);
        }
        self.touch(generation);
    }

    /// `slot` stands for it from now on.
    pub(super) fn attach(&mut self, generation: Generation, slot: &Arc<SlotKey>) {
        if let Some(content) = self.contents.get_mut(&generation) {
            content.slots.insert(slot.clone());
        }
        self.update(generation);
    }

    /// `slot` no longer stands for it: it is freed with its last lease if nothing else does.
    pub(super) fn detach(&mut self, generation: Generation, slot: &SlotKey) {
        if let Some(content) = self.contents.get_mut(&generation) {
            content.slots.remove(slot);
        }
        self.update(generation);
    }

    /// Takes `bytes` of host memory, evicting what is idle. False if there is no room yet; it comes when leases that wait for
    /// the device are served.
    pub(super) fn reserve_host(&mut self, bytes: usize) -> bool {
        if !self.host.fits(bytes) && self.host.can_fit(bytes) {
            while !self.host.will_fit(bytes)
                && let Some(generation) = self.host.oldest()
            {
                self.host.evictions += 1;
                self.evict_host(generation);
            }
        }
        let fits = self.host.fits(bytes);
        if fits {
            self.host.reserve(bytes);
        }
        fits
    }

    /// Gives a reservation back.
    pub(super) fn unreserve_host(&mut self, bytes: usize) {
        self.host.unreserve(bytes);
    }

    /// What was evicted since the last call. [`Tiers::freed`] is due when it has been emptied.
    pub(super) fn take_trash(&mut self) -> Option<Trash> {
        let some = !self.trash.device.is_empty() || !self.trash.host.is_empty();
        some.then(|| std::mem::take(&mut self.trash))
    }

    /// Trash has been emptied.
    pub(super) fn freed(&mut self, device: usize, host: usize) {
        self.device.used -= device;
        self.device.dying -= device;
        self.host.used -= host;
        self.host.dying -= host;
    }

    /// The next thing to do for those that wait for room on the device. When it is none, nothing can be done before something changes:
    /// a lease ends, or trash is emptied.
    pub(super) fn next_device_work(&mut self, callbacks: &mut Vec<Callback>) -> Option<DeviceWork> {
        loop {
            self.end_drain(callbacks);
            let generation = *self.queue.front()?;
            let Some(content) = self.contents.get(&generation) else {
                debug_assert!(false, "a content that waits has weights");
                self.queue.pop_front();
                continue;
            };
            let weights = match (&content.device, &content.host) {
                (Device::Absent, Some(weights)) => weights.clone(),
                // It was drained for another one, and its own turn has come before its room was taken.
                _ => {
                    self.serve(generation, callbacks);
                    continue;
                }
            };
            // Until this layout has been seen, others of the back end stand for it; the room it gets is never more than the
            // budget.
            let reserved = match content.device_bytes {
                Some(bytes) if bytes > self.device.limit => {
                    self.leave_queue(generation);
                    return Some(DeviceWork::TooLarge { generation, bytes });
                }
                Some(bytes) => bytes,
                None => self.expected_layout(weights.bytes()).min(self.device.limit),
            };
            if !self.device.fits(reserved) {
                if self.device.can_fit(reserved) {
                    while !self.device.will_fit(reserved)
                        && let Some(idle) = self.device.oldest()
                    {
                        self.device.evictions += 1;
                        self.evict_device(idle);
                    }
                }
                return None;
            }
            self.device.reserve(reserved);
            if let Some(content) = self.contents.get_mut(&generation) {
                content.device = Device::LayingOut;
            }
            self.leave_queue(generation);
            self.update(generation);
            return Some(DeviceWork::LayOut {
                generation,
                weights,
                reserved,
            });
        }
    }

    /// What a layout of so many bytes of f32 weights is likely to take: in proportion to the one that was seen last.
    fn expected_layout(&self, weights: usize) -> usize {
        match self.seen_layout {
            Some((layout, of)) if of > 0 => {
                usize::try_from(weights as u128 * layout as u128 / of as u128).unwrap_or(usize::MAX)
            }
            _ => weights,
        }
    }

    /// A layout has been made, or could not be: then the leases that waited for it are returned.
    pub(super) fn laid_out(
        &mut self,
        generation: Generation,
        reserved: usize,
        adapter: Option<DeviceAdapter>,
        now: Instant,
        callbacks: &mut Vec<Callback>,
    ) -> Vec<Arc<LeaseCell>> {
        self.device.unreserve(reserved);
        let Some(content) = self.contents.get_mut(&generation) else {
            debug_assert!(false, "a content went away while it was laid out");
            return Vec::new();
        };
        content.device = Device::Absent;
        let Some(adapter) = adapter else {
            let waiting = std::mem::take(&mut content.waiting);
            self.update(generation);
            return waiting;
        };
        let bytes = adapter.bytes;
        content.device_bytes = Some(bytes);
        if let Some(weights) = &content.host {
            self.seen_layout = Some((bytes, weights.bytes()));
        }
        self.device.used += bytes;
        if self.device.can_fit(0) {
            content.device = Device::Resident(adapter);
            self.serve(generation, callbacks);
            // It may take more than its weights did.
            while !self.device.will_fit(0)
                && let Some(idle) = self.device.oldest()
            {
                self.device.evictions += 1;
                self.evict_device(idle);
            }
        } else {
            // It keeps its place and asks for the room that it takes, which is known now.
            self.device.dying += bytes;
            self.trash.device.push(adapter);
            if !content.waiting.is_empty() {
                content.queued = Some(now);
                self.queue.push_front(generation);
            }
            self.update(generation);
        }
        Vec::new()
    }

    /// Takes the leases that wait for it out of the queue.
    pub(super) fn take_waiting(&mut self, generation: Generation) -> Vec<Arc<LeaseCell>> {
        self.leave_queue(generation);
        let waiting = self
            .contents
            .get_mut(&generation)
            .map(|content| std::mem::take(&mut content.waiting))
            .unwrap_or_default();
        self.update(generation);
        waiting
    }

    /// Whether somebody waits for something that an ending lease may bring.
    pub(super) fn has_waiting(&self) -> bool {
        !self.queue.is_empty()
            || self.drained_for.is_some()
            || !self.trash.device.is_empty()
            || !self.trash.host.is_empty()
    }

    /// Slots whose content has gone since the last call.
    pub(super) fn take_gone(&mut self) -> Vec<Arc<SlotKey>> {
        std::mem::take(&mut self.gone)
    }

    /// Gives a resident adapter to all that wait for it.
    fn serve(&mut self, generation: Generation, callbacks: &mut Vec<Callback>) {
        self.leave_queue(generation);
        if let Some(content) = self.contents.get_mut(&generation)
            && let Device::Resident(adapter) = &content.device
        {
            content.draining = false;
            for cell in content.waiting.drain(..) {
                content.leases += 1;
                cell.ready(adapter, callbacks);
            }
        }
        self.update(generation);
    }

    /// Before a lease is asked for: if the first in the queue has waited for long enough, drains the adapters that were used least
    /// recently, as many as it needs.
    pub(super) fn drain_for_first(&mut self, now: Instant) {
        let Some(&first) = self.queue.front() else {
            return;
        };
        let Some(content) = self.contents.get(&first) else {
            return;
        };
        let waited = content
            .queued
            .is_some_and(|since| now.saturating_duration_since(since) >= self.drain_after);
        if !waited || self.drained_for == Some(first) || !matches!(content.device, Device::Absent) {
            return;
        }
        let bytes = content.host.as_ref().map_or(0, |weights| weights.bytes());
        let wanted = content.device_bytes.unwrap_or(bytes).min(self.device.limit);
        let mut resident: Vec<_> = self
            .contents
            .iter()
            .filter_map(|(generation, content)| match &content.device {
                Device::Resident(adapter) => Some((content.used, *generation, adapter.bytes)),
                _ => None,
            })
            .collect();
        resident.sort_unstable();
        let mut kept = self.device.used - self.device.dying;
        for (_, generation, bytes) in resident {
            if kept.saturating_add(wanted) <= self.device.limit {
                break;
            }
            kept -= bytes;
            if let Some(content) = self.contents.get_mut(&generation) {
                content.draining = true;
            }
        }
        self.drained_for = Some(first);
    }

    /// When the one that was drained for has been served, the rest is free again.
    fn end_drain(&mut self, callbacks: &mut Vec<Callback>) {
        if self.drained_for.is_none() || self.drained_for == self.queue.front().copied() {
            return;
        }
        self.drained_for = None;
        let drained: Vec<_> = self
            .contents
            .iter()
            .filter(|(_, content)| content.draining)
            .map(|(generation, _)| *generation)
            .collect();
        for generation in drained {
            if let Some(content) = self.contents.get_mut(&generation) {
                content.draining = false;
            }
            self.serve(generation, callbacks);
        }
    }

    fn leave_queue_if_unwanted(&mut self, generation: Generation) {
        if self
            .contents
            .get(&generation)
            .is_some_and(|content| content.waiting.is_empty())
        {
            self.leave_queue(generation);
        }
    }

    fn leave_queue(&mut self, generation: Generation) {
        if let Some(content) = self.contents.get_mut(&generation)
            && content.queued.take().is_some()
        {
            self.queue.retain(|queued| *queued != generation);
        }
    }

    /// Marks it as used now. [`Tiers::update`] is due afterwards.
    fn touch(&mut self, generation: Generation) {
        self.ticks += 1;
        if let Some(content) = self.contents.get_mut(&generation) {
            self.host
                .list(&mut content.idle_host, None, content.used, generation);
            self.device
                .list(&mut content.idle_device, None, content.used, generation);
            content.used = self.ticks;
        }
    }

    fn evict_host(&mut self, generation: Generation) {
        if let Some(content) = self.contents.get_mut(&generation)
            && let Some(weights) = content.host.take()
        {
            self.host.dying += weights.bytes();
            self.trash.host.push(weights);
        }
        self.update(generation);
    }

    fn evict_device(&mut self, generation: Generation) {
        if let Some(content) = self.contents.get_mut(&generation)
            && let Device::Resident(adapter) = std::mem::take(&mut content.device)
        {
            content.draining = false;
            self.device.dying += adapter.bytes;
            self.trash.device.push(adapter);
        }
        self.update(generation);
    }

    /// After every change of a content: it is listed as idle or not, and goes when nobody has a use for it.
    fn update(&mut self, generation: Generation) {
        let Some(content) = self.contents.get_mut(&generation) else {
            return;
        };
        let in_work = !content.waiting.is_empty() || matches!(content.device, Device::LayingOut);
        if !in_work && content.leases == 0 && content.slots.is_empty() {
            // Nothing stands for it any more. That is no eviction.
            if let Some(weights) = content.host.take() {
                self.host.dying += weights.bytes();
                self.trash.host.push(weights);
            }
            if let Device::Resident(adapter) = std::mem::take(&mut content.device) {
                self.device.dying += adapter.bytes;
                self.trash.device.push(adapter);
            }
        }
        let host = content
            .host
            .as_ref()
            .filter(|_| !in_work)
            .map(|weights| weights.bytes());
        let device = match &content.device {
            Device::Resident(adapter) if content.leases == 0 => Some(adapter.bytes),
            _ => None,
        };
        self.host
            .list(&mut content.idle_host, host, content.used, generation);
        self.device
            .list(&mut content.idle_device, device, content.used, generation);
        if content.host.is_none() && matches!(content.device, Device::Absent) {
            self.gone.extend(content.slots.drain());
            self.contents.remove(&generation);
        }
    }
}
