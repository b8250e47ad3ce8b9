//! The registry: names, what they stand for, and what of it is loaded.
//!
//! Requests take a [`Lease`]; it is ready when the adapter is on the device, and keeps it there. Between the name and the device lie a
//! source, host memory and threads that load (`loader`); what is known of all of it is behind one lock (`state`), under which nothing
//! blocks; which adapters stay where is decided in `tiers`.

use std::{
    fmt,
    path::PathBuf,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use super::{
    AdapterSource, AdapterStats, Lease,
    lease::{Callback, LeaseCell},
    loader,
    slots::{SlotKey, Viewer, watched},
    stamp::Stamp,
    state::{Ask, State, Work},
    tiers::Tiers,
};
use crate::{
    batch::AdapterLoader,
    error::{Error, Result},
    hub::{Source, Sources},
    ids::Generation,
    model::Module,
};

/// Where an adapter is looked for that nobody registered and that comes without a source.
const DEFAULT_SOURCE: &str = "hub";

/// How long the first in the queue for the device waits before adapters that are in use are drained for it.
const DRAIN_AFTER: Duration = Duration::from_secs(1);

/// Limits of the registry.
#[derive(Debug, Clone)]
pub struct AdapterLimits {
    /// Bytes of adapters laid out on the device.
    pub device_bytes: usize,
    /// Bytes of adapters in host memory.
    pub host_bytes: usize,
    /// The highest rank taken.
    pub max_rank: usize,
    /// Threads that fetch and read.
    pub loaders: usize,
    /// Seconds for which a failure answers at once.
    pub negative_ttl: std::time::Duration,
    /// Seconds for which a caller's access to a remote adapter is taken as checked.
    pub access_ttl: std::time::Duration,
    /// Whether requests may name adapters that nobody registered, by their source.
    pub dynamic: bool,
}

/// Which adapter a request asks for.
#[derive(Clone)]
pub struct AdapterRequest {
    /// A registered name, or an id at `source`.
    pub id: String,
    /// `hub`, `local`, `s3`, `wheel`; none looks for a registered name, then at the default source.
    pub source: Option<String>,
    /// The credential for the source: the caller's own.
    pub credential: Option<String>,
}

impl fmt::Debug for AdapterRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdapterRequest")
            .field("id", &self.id)
            .field("source", &self.source)
            .field("credential", &self.credential.as_ref().map(|_| "(hidden)"))
            .finish()
    }
}

/// A registered adapter.
#[derive(Debug, Clone)]
pub struct AdapterInfo {
    /// Its name.
    pub name: String,
    /// Where it comes from.
    pub source: Source,
    /// Its identity, once it has been read.
    pub generation: Option<Generation>,
    /// Seconds since 1970-01-01 UTC at which the name was registered.
    pub created: u64,
    /// Whether it is on the device.
    pub resident: bool,
    /// Why it could not be had when it was last tried.
    pub failure: Option<Error>,
}

/// The registry. Cheap to clone. When the last clone is dropped, leases that wait fail and the loaders end; leases that are ready
/// stay so.
#[derive(Clone)]
pub struct AdapterRegistry {
    handle: Arc<Handle>,
}

struct Handle {
    shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.update(|state, callbacks| state.close(callbacks));
    }
}

/// What the handle, the leases and the loaders share.
pub(super) struct Shared {
    pub(super) modules: Vec<Module>,
    pub(super) loader: Arc<dyn AdapterLoader>,
    pub(super) source: Arc<dyn AdapterSource>,
    pub(super) max_rank: usize,
    pub(super) host_limit: usize,
    dynamic: bool,
    state: Mutex<State>,
    /// Loaders wait here for work.
    work: Condvar,
}

impl AdapterRegistry {
    /// An empty registry for a model with these modules. Starts the loader threads.
    ///
    /// # Panics
    /// If the system refuses a thread, as [`std::thread::spawn`] does.
    pub fn new(
        modules: Vec<Module>,
        loader: Arc<dyn AdapterLoader>,
        sources: Arc<Sources>,
        limits: AdapterLimits,
    ) -> Self {
        Self::with_source(modules, loader, sources, limits)
    }

    /// The same with sources of another kind.
    ///
    /// # Panics
    /// As [`AdapterRegistry::new`].
    pub fn with_source(
        modules: Vec<Module>,
        loader: Arc<dyn AdapterLoader>,
        source: Arc<dyn AdapterSource>,
        limits: AdapterLimits,
    ) -> Self {
        Self::start(modules, loader, source, limits, DRAIN_AFTER)
    }

    pub(super) fn start(
        modules: Vec<Module>,
        loader: Arc<dyn AdapterLoader>,
        source: Arc<dyn AdapterSource>,
        limits: AdapterLimits,
        drain_after: Duration,
    ) -> Self {
        let tiers = Tiers::new(limits.host_bytes, limits.device_bytes, drain_after);
        let shared = Arc::new(Shared {
            modules,
            loader,
            source,
            max_rank: limits.max_rank,
            host_limit: limits.host_bytes,
            dynamic: limits.dynamic,
            state: Mutex::new(State::new(tiers, limits.negative_ttl, limits.access_ttl)),
            work: Condvar::new(),
        });
        for index in 0..limits.loaders.max(1) {
            let shared = shared.clone();
            std::thread::Builder::new()
                .name(format!("adapter-loader-{index}"))
                .spawn(move || loader::run(&shared))
                .expect("the system refuses a thread at the start");
        }
        Self {
            handle: Arc::new(Handle { shared }),
        }
    }

    /// Gives a name to a source. The same source again changes nothing; another replaces it for requests to come.
    /// Nothing is read before the first lease.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`]: the name is empty, longer than 256 bytes, or has control characters.
    pub fn register(&self, name: &str, source: Source) -> Result<()> {
        if name.is_empty() || name.len() > 256 || name.chars().any(char::is_control) {
            return Err(Error::InvalidRequest {
                parameter: "lora_name",
                message: "must be 1 to 256 bytes without control characters".to_owned(),
            });
        }
        let created = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        let key = Arc::new(SlotKey {
            source,
            viewer: Viewer::Operator,
        });
        self.handle
            .shared
            .update(|state, _| state.register(name, key, created));
        Ok(())
    }

    /// Takes a name away. Running requests keep their lease; the memory is freed with the last of them. False if there was none.
    pub fn unregister(&self, name: &str) -> bool {
        self.handle.shared.update(|state, _| state.unregister(name))
    }

    /// The registered adapters, by name.
    pub fn list(&self) -> Vec<AdapterInfo> {
        let state = self.handle.shared.lock();
        let mut list: Vec<_> = state
            .names
            .iter()
            .map(|(name, named)| {
                let slot = state.slots.get(&named.key);
                let generation = slot.and_then(|slot| slot.generation);
                AdapterInfo {
                    name: name.clone(),
                    source: named.key.source.clone(),
                    generation,
                    created: named.created,
                    resident: generation.is_some_and(|generation| state.tiers.is_resident(&generation)),
                    failure: slot
                        .and_then(|slot| slot.failure.as_ref())
                        .map(|failure| failure.error.clone()),
                }
            })
            .collect();
        drop(state);
        list.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        list
    }

    /// Whether `name` is registered.
    pub fn contains(&self, name: &str) -> bool {
        self.handle.shared.lock().names.contains_key(name)
    }

    /// A lease on what `request` names. Returns at once: loading goes on in the background.
    ///
    /// A registered name is the operator's: whoever may use it has been decided before. What is named by its source is checked there with
    /// the caller's credential, also when it is loaded already. A folder on disk whose files have changed is read again.
    ///
    /// # Errors
    /// [`crate::Error::UnknownAdapter`], or the recent failure of the same adapter, or [`Error::InvalidRequest`] for a source that cannot be.
    pub fn lease(&self, request: &AdapterRequest) -> Result<Lease> {
        let shared = &self.handle.shared;
        let (key, folder, dynamic) = shared.resolve(request)?;
        // A look at two files, without the lock.
        let stamp = watched(&key.source, folder.as_deref()).map(Stamp::of);
        let cell = LeaseCell::new(&request.id);
        let credential = request
            .credential
            .as_deref()
            .filter(|_| key.viewer != Viewer::Operator);
        let ask = Ask {
            stamp,
            credential: credential.map(Arc::from),
            dynamic,
            now: Instant::now(),
        };
        shared.update(|state, _| state.join(&key, &cell, ask))?;
        Ok(Lease::new(cell, shared.clone()))
    }

    /// How many sources are known.
    #[cfg(test)]
    pub(super) fn slots(&self) -> usize {
        self.handle.shared.lock().slots.len()
    }

    /// What it holds and has done.
    pub fn stats(&self) -> AdapterStats {
        self.handle.shared.lock().stats()
    }

    /// Whether every count and every byte is accounted for. For tests, and for an engine that is idle.
    ///
    /// # Errors
    /// What does not balance.
    pub fn check_integrity(&self) -> std::result::Result<(), String> {
        self.handle.shared.lock().check()
    }
}

impl fmt::Debug for AdapterRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdapterRegistry")
            .field("stats", &self.stats())
            .finish()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under this lock is a defect, and loading the other adapters is still the best there is to do.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, then wakes loaders if there is work, then calls what has been settled.
    pub(super) fn update<T>(&self, change: impl FnOnce(&mut State, &mut Vec<Callback>) -> T) -> T {
        let mut callbacks = Vec::new();
        let mut state = self.lock();
        let result = change(&mut state, &mut callbacks);
        let wake = state.closing || state.has_work();
        drop(state);
        if wake {
            self.work.notify_all();
        }
        loader::call(callbacks);
        result
    }

    /// Blocks a loader until there is work or something to call. None: the registry is gone.
    pub(super) fn wait_for_work(&self, callbacks: &mut Vec<Callback>) -> Option<Option<Work>> {
        let mut state = self.lock();
        loop {
            if state.closing {
                return None;
            }
            let work = state.next_work(Instant::now(), callbacks);
            if work.is_some() || !callbacks.is_empty() {
                return Some(work);
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Gives a lease's claim back.
    pub(super) fn release(&self, cell: &Arc<LeaseCell>) {
        self.update(|state, _| state.release(cell));
    }

    /// What a request names, the folder where that was found before, and whether it was named by its source.
    fn resolve(&self, request: &AdapterRequest) -> Result<(Arc<SlotKey>, Option<PathBuf>, bool)> {
        if request.source.is_none() {
            let state = self.lock();
            if let Some(named) = state.names.get(&request.id) {
                let folder = state.slots.get(&named.key).and_then(|slot| slot.folder.clone());
                return Ok((named.key.clone(), folder, false));
            }
        }
        let unknown = || Error::UnknownAdapter(request.id.clone());
        if !self.dynamic {
            return Err(unknown());
        }
        let source = match &request.source {
            Some(kind) => Source::from_request(kind, &request.id)?,
            // A bare name is a registered one, misspelt; the hub's adapters have an owner: `org/name`.
            None if !request.id.contains('/') => return Err(unknown()),
            None => Source::from_request(DEFAULT_SOURCE, &request.id).map_err(|_| unknown())?,
        };
        let viewer = Viewer::of(&source, request.credential.as_deref());
        let key = Arc::new(SlotKey { source, viewer });
        let folder = self.lock().slots.get(&key).and_then(|slot| slot.folder.clone());
        Ok((key, folder, true))
    }
}
