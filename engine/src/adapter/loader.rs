//! The threads that do what blocks: check access, fetch, read, lay out, free.
//!
//! A failure is the failure of one adapter, and so is a panic: the thread goes on.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use super::{
    LoraWeights,
    lease::Callback,
    peft,
    registry::Shared,
    slots::{ReadFrom, SlotKey, watched},
    stamp::Stamp,
    state::{Start, Work},
    tiers::Trash,
};
use crate::{
    error::{Error, Result},
    hub::{Files, Source, Sources},
    ids::Generation,
};

/// Where adapters come from. [`Sources`] is the one that ships. All calls may block: they run on loader threads.
pub trait AdapterSource: Send + Sync {
    /// Fetches an adapter's files, with the caller's credential if there is one.
    fn fetch(&self, source: &Source, credential: Option<&str>) -> Result<Files>;

    /// Whether `credential` may see `source`: asked of the source itself.
    fn check_access(&self, source: &Source, credential: Option<&str>) -> Result<()>;
}

impl AdapterSource for Sources {
    fn fetch(&self, source: &Source, credential: Option<&str>) -> Result<Files> {
        self.fetch_adapter(source, credential, &crate::hub::Silent)
    }

    fn check_access(&self, source: &Source, credential: Option<&str>) -> Result<()> {
        Sources::check_access(self, source, credential)
    }
}

/// A loader's life.
pub(super) fn run(shared: &Arc<Shared>) {
    loop {
        let mut callbacks = Vec::new();
        let Some(work) = shared.wait_for_work(&mut callbacks) else {
            return;
        };
        call(callbacks);
        match work {
            Some(Work::Load { key, start, reserved }) => load(shared, key, &start, reserved),
            Some(Work::LayOut {
                generation,
                weights,
                reserved,
                name,
            }) => {
                lay_out(shared, generation, weights, reserved, name);
            }
            Some(Work::Free(trash)) => free(shared, trash),
            None => {}
        }
    }
}

/// Calls what waited for leases. Without a lock: it may do anything with the registry.
pub(super) fn call(callbacks: Vec<Callback>) {
    for callback in callbacks {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(callback)) {
            tracing::error!(
                panic = message(&*panic),
                "a callback of an adapter's lease panicked"
            );
        }
    }
}

fn free(shared: &Shared, trash: Trash) {
    let (device, host) = trash.bytes();
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(trash))) {
        tracing::error!(panic = message(&*panic), "freeing an adapter panicked");
    }
    shared.update(|state, _| state.tiers.freed(device, host));
}

fn lay_out(
    shared: &Shared,
    generation: Generation,
    weights: Arc<LoraWeights>,
    reserved: usize,
    name: String,
) {
    let adapter = catch_unwind(AssertUnwindSafe(|| shared.loader.load(&weights))).unwrap_or_else(|panic| {
        Err(Error::AdapterRefused {
            adapter: name,
            reason: format!(
                "laying it out broke off: {}; this is a defect, please report it",
                message(&*panic)
            ),
        })
    });
    // From here on the registry may evict the weights, and counts on having the last hold on them.
    drop(weights);
    shared
        .update(|state, callbacks| state.laid_out(generation, reserved, adapter, Instant::now(), callbacks));
}

/// What came of an attempt to load.
enum Loaded<'s> {
    /// Somebody had read it before.
    Known,
    /// It waits for so many bytes of host memory.
    Parked(usize),
    Read(LoraWeights, HostReservation<'s>),
}

fn load(shared: &Arc<Shared>, key: Arc<SlotKey>, start: &Start, reserved: Option<usize>) {
    let reservation = reserved.map(|bytes| HostReservation { shared, bytes });
    // Of the files that were looked at last.
    let mut from = ReadFrom::default();
    let loaded = catch_unwind(AssertUnwindSafe(|| {
        try_load(shared, &key, start, reservation, &mut from)
    }))
    .unwrap_or_else(|panic| {
        Err(Error::AdapterRefused {
            adapter: start.name.clone(),
            reason: format!(
                "reading it broke off: {}; this is a defect, please report it",
                message(&*panic)
            ),
        })
    });
    match loaded {
        Ok(Loaded::Known) => {}
        Ok(Loaded::Parked(bytes)) => shared.update(|state, _| state.park(key, bytes)),
        Ok(Loaded::Read(weights, reservation)) => {
            let weights = Arc::new(weights);
            shared.update(|state, callbacks| {
                let bytes = reservation.hand_over();
                state.loaded(&key, weights, bytes, from, Instant::now(), callbacks);
            });
        }
        Err(error) => {
            shared.update(|state, callbacks| state.failed(&key, &error, from, Instant::now(), callbacks));
        }
    }
}

fn try_load<'s>(
    shared: &'s Shared,
    key: &Arc<SlotKey>,
    start: &Start,
    mut reservation: Option<HostReservation<'s>>,
    from: &mut ReadFrom,
) -> Result<Loaded<'s>> {
    let credential = start.credential.as_deref();
    if start.check {
        shared.source.check_access(&key.source, credential)?;
        if shared.update(|state, callbacks| state.may_see(key, Instant::now(), callbacks)) {
            return Ok(Loaded::Known);
        }
    }
    // Files that are being replaced right now get some chances to hold still.
    for attempt in 1..=ATTEMPTS {
        let mut before = look(watched(&key.source, None), from);
        let files = shared.source.fetch(&key.source, credential)?;
        from.folder = folder_of(&key.source, &files);
        if before.is_none() {
            before = look(from.folder.clone().as_deref(), from);
        }
        let read = read(shared, &start.name, &files, &mut reservation);
        if before == watched(&key.source, from.folder.as_deref()).map(Stamp::of) {
            return read;
        }
        std::thread::sleep(Duration::from_millis(20) * attempt);
    }
    Err(Error::AdapterRefused {
        adapter: start.name.clone(),
        reason: "its files changed while they were read, again and again: replace them at once, by renaming a folder"
            .to_owned(),
    })
}

/// How often files are read that change meanwhile.
const ATTEMPTS: u32 = 5;

/// Looks at a folder's files. A stamp that cannot show the next change is not kept, so that the next request reads again.
fn look(folder: Option<&Path>, from: &mut ReadFrom) -> Option<Stamp> {
    let now = SystemTime::now();
    let stamp = folder.map(Stamp::of);
    from.stamp = stamp.filter(|stamp| stamp.is_settled(now));
    stamp
}

/// Reads the files into reserved memory: the header says how much it takes before anything is read.
fn read<'s>(
    shared: &'s Shared,
    name: &str,
    files: &Files,
    reservation: &mut Option<HostReservation<'s>>,
) -> Result<Loaded<'s>> {
    let plan = peft::Plan::new(name, files, &shared.modules, shared.max_rank)?;
    let bytes = plan.bytes();
    let limit = shared.host_limit;
    if bytes > limit {
        return Err(Error::AdapterRefused {
            adapter: name.to_owned(),
            reason: format!(
                "it takes {bytes} bytes of host memory, all adapters together may take {limit}: raise that limit"
            ),
        });
    }
    // Files that are others than those that the room was for need other room.
    let held = reservation.take().filter(|held| held.bytes == bytes);
    match held.or_else(|| HostReservation::take(shared, bytes)) {
        Some(held) => Ok(Loaded::Read(plan.read()?, held)),
        None => Ok(Loaded::Parked(bytes)),
    }
}

fn folder_of(source: &Source, files: &Files) -> Option<PathBuf> {
    match (source, files) {
        (Source::Local(_), Files::Folder(folder)) => Some(folder.clone()),
        _ => None,
    }
}

/// Bytes of the host budget that were taken before a read. Dropping gives them back.
struct HostReservation<'s> {
    shared: &'s Shared,
    bytes: usize,
}

impl<'s> HostReservation<'s> {
    fn take(shared: &'s Shared, bytes: usize) -> Option<Self> {
        shared
            .update(|state, _| state.tiers.reserve_host(bytes))
            .then(|| Self { shared, bytes })
    }

    /// The bytes go to what was read.
    fn hand_over(mut self) -> usize {
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for HostReservation<'_> {
    fn drop(&mut self) {
        // Not after handing over: that happens under the registry's lock.
        if self.bytes > 0 {
            self.shared
                .update(|state, _| state.tiers.unreserve_host(self.bytes));
        }
    }
}

/// What a panic said.
fn message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("it did not say why")
}
