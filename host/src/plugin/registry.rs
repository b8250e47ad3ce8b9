//! The slots, and the one pointer to what serves now. Changing it is a store; everything before that is done elsewhere.

use std::{
    collections::BTreeMap,
    fs::File,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use arc_swap::ArcSwap;

use super::{
    audit::Audit,
    cache::Cache,
    lastgood::{LastGood, Saved},
    mailbox::Mailbox,
    pipeline::Pipeline,
    plugin::{Plugin, Settings},
    report::{Refusal, Rung},
    source::{Home, Stamp},
    status::SlotError,
};

/// Everything that a host has.
pub(super) struct Shared {
    pub pipeline: ArcSwap<Pipeline>,
    pub registry: Mutex<Registry>,
    pub mailbox: Arc<Mailbox>,
    /// The watched folder.
    pub directory: Option<PathBuf>,
    pub max_live_generations: usize,
    pub cache: Arc<Cache>,
    pub last_good: LastGood,
    pub audit: Audit,
    pub watcher: Mutex<Option<notify::RecommendedWatcher>>,
    /// Locked for as long as the host lives.
    pub _lock: File,
}

/// The slots and the pipelines that live.
pub(super) struct Registry {
    pub slots: BTreeMap<String, Slot>,
    generations: Vec<Generation>,
}

/// A slot, whatever is in it. What serves is in the pipeline.
pub(super) struct Slot {
    pub settings: Arc<Settings>,
    pub home: Home,
    /// What its file held when it was last looked at, taken or not.
    pub tried: Option<String>,
    pub stamp: Option<Stamp>,
    /// What its source held when it was last taken from there.
    pub seen: Option<String>,
    /// Where what serves came from: `builtin`, `api`, a file.
    pub source: String,
    pub previous: Option<Previous>,
    pub last_error: Option<SlotError>,
    /// Counts the changes of what serves.
    pub revision: u64,
}

/// To what a rollback goes.
#[derive(Clone)]
pub(super) struct Previous {
    pub digest: String,
    pub source: String,
    /// None after a restart: then the bytes of the last good set are loaded.
    pub plugin: Option<Arc<Plugin>>,
}

struct Generation {
    since: Instant,
    pipeline: Weak<Pipeline>,
}

/// A component that climbed all rungs but the last.
#[derive(Clone)]
pub(super) struct Ready {
    pub plugin: Arc<Plugin>,
    /// None if the last good set has them.
    pub bytes: Option<Arc<[u8]>>,
    pub source: String,
    /// Whether it is what the slot's own source holds.
    pub from_home: bool,
    /// That of the slot when it was made; none if there was no slot.
    pub revision: Option<u64>,
}

/// Why a commit did not happen.
#[derive(Debug)]
pub(super) enum NotCommitted {
    /// Something else was done to the slot meanwhile.
    Superseded,
    Refused(Refusal),
}

impl Slot {
    pub(super) fn new(settings: Arc<Settings>, home: Home) -> Self {
        Self {
            settings,
            home,
            tried: None,
            stamp: None,
            seen: None,
            source: String::new(),
            previous: None,
            last_error: None,
            revision: 0,
        }
    }
}

impl Registry {
    pub(super) fn new(slots: BTreeMap<String, Slot>) -> Self {
        Self {
            slots,
            generations: Vec::new(),
        }
    }

    /// The pipelines that somebody still uses, oldest first.
    pub(super) fn live(&mut self) -> Vec<Arc<Pipeline>> {
        self.generations
            .retain(|generation| generation.pipeline.strong_count() > 0);
        self.generations
            .iter()
            .filter_map(|generation| generation.pipeline.upgrade())
            .collect()
    }

    /// Writes what serves into the last good set.
    pub(super) fn save(&self, shared: &Shared, serving: &Pipeline) {
        if let Err(error) = shared.last_good.save(self.saved(serving)) {
            tracing::error!(
                "the last good set cannot be written, a restart will not find this change: {error}"
            );
        }
    }

    fn saved(&self, serving: &Pipeline) -> BTreeMap<String, Saved> {
        let save = |(name, slot): (&String, &Slot)| {
            let saved = Saved {
                digest: serving.plugin(name)?.digest().to_owned(),
                previous: slot.previous.as_ref().map(|previous| previous.digest.clone()),
                seen: slot.seen.clone(),
                source: slot.source.clone(),
            };
            Some((name.clone(), saved))
        };
        self.slots.iter().filter_map(save).collect()
    }
}

impl Shared {
    pub(super) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes components part of what serves: all of them in one store, or none. The number of the new pipeline.
    pub(super) fn commit(&self, ready: &[Ready]) -> Result<u64, NotCommitted> {
        let mut registry = self.registry();
        let revision = |ready: &Ready| registry.slots.get(ready.plugin.slot()).map(|slot| slot.revision);
        if ready.iter().any(|ready| revision(ready) != ready.revision) {
            return Err(NotCommitted::Superseded);
        }
        let refuse = |reason: String| NotCommitted::Refused(Refusal::new(Rung::Commit, reason));
        let next = self.next(ready).map_err(refuse)?;
        for bytes in ready.iter().filter_map(|ready| ready.bytes.as_ref()) {
            self.last_good
                .keep(bytes)
                .map_err(|error| refuse(format!("it cannot be kept: {error}")))?;
        }
        let serving = self.pipeline.load_full();
        for ready in ready {
            let name = ready.plugin.slot();
            let slot = registry
                .slots
                .entry(name.to_owned())
                .or_insert_with(|| Slot::new(Arc::clone(&ready.plugin.settings), Home::Nowhere));
            if let Some(plugin) = serving.plugin(name) {
                slot.previous = Some(Previous {
                    digest: plugin.digest().to_owned(),
                    source: std::mem::take(&mut slot.source),
                    plugin: Some(Arc::clone(plugin)),
                });
            }
            slot.source.clone_from(&ready.source);
            if ready.from_home {
                slot.seen = Some(ready.plugin.digest().to_owned());
            }
            slot.last_error = None;
            slot.revision += 1;
        }
        let number = next.generation();
        self.publish(&mut registry, next);
        Ok(number)
    }

    /// What would serve after a commit; an error if that cannot be.
    pub(super) fn next(&self, ready: &[Ready]) -> Result<Arc<Pipeline>, String> {
        let serving = self.pipeline.load();
        let mut plugins = serving.slots().clone();
        for ready in ready {
            plugins.insert(ready.plugin.slot().to_owned(), Arc::clone(&ready.plugin));
        }
        Pipeline::build(serving.generation() + 1, plugins).map(Arc::new)
    }

    /// The store itself: from here on new requests see `next`.
    pub(super) fn publish(&self, registry: &mut Registry, next: Arc<Pipeline>) {
        let pipeline = Arc::downgrade(&next);
        self.pipeline.store(Arc::clone(&next));
        registry.generations.push(Generation {
            since: Instant::now(),
            pipeline,
        });
        let live = registry.live().len();
        if live > self.max_live_generations {
            // The newest wins and the streams of the oldest go on: cutting a client off would be worse than the
            // memory that it keeps.
            tracing::warn!(
                live,
                limit = self.max_live_generations,
                oldest_s = registry
                    .generations
                    .first()
                    .map_or(0, |oldest| oldest.since.elapsed().as_secs()),
                "streams keep more generations of the pipeline alive than `max_live_generations`"
            );
        }
        registry.save(self, &next);
    }

    /// Notes that something was refused for a slot.
    pub(super) fn note_error(&self, slot: &str, digest: Option<&str>, refusal: &Refusal) {
        if let Some(slot) = self.registry().slots.get_mut(slot) {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            slot.last_error = Some(SlotError {
                time_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
                digest: digest.map(str::to_owned),
                rung: refusal.rung,
                message: refusal.reason.clone(),
            });
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.mailbox.close();
    }
}
