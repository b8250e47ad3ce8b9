//! Bringing a host up: every slot gets what its source holds, or what served last.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, OpenOptions, TryLockError},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use super::{
    CheckReport, PluginsConfig, Rung, SlotConfig,
    attempt::{Attempt, Wish, commit},
    audit::{Action, Audit},
    builtin::{self, DEFAULT_SLOTS},
    cache::Cache,
    check, files,
    lastgood::{LastGood, Saved},
    load,
    mailbox::Mailbox,
    pipeline::Pipeline,
    reconcile,
    registry::{Previous, Registry, Shared, Slot},
    report::Refusal,
    source::{Home, Look, Stamp, in_folder, is_slot_name, look},
    watch,
};
use crate::error::{Error, Result};

/// How long a host that goes down may hold the state folder.
const HANDOVER: Duration = Duration::from_secs(3);

/// Loads all slots and starts watching.
pub(super) fn start(config: &PluginsConfig, state: &Path) -> Result<Arc<Shared>> {
    files::private_folder(state)?;
    let lock = lock(&state.join("lock"))?;
    let last_good = LastGood::open(state)?;
    let saved = last_good.load();
    if let Some(directory) = &config.directory {
        fs::create_dir_all(directory).map_err(files::io(directory))?;
    }
    let slots = slots(config, &saved)?;
    let empty = Pipeline::build(0, BTreeMap::new()).map_err(Error::Config)?;
    let shared = Arc::new(Shared {
        pipeline: Arc::new(empty).into(),
        registry: Mutex::new(Registry::new(slots)),
        mailbox: Arc::new(Mailbox::new()),
        directory: config.directory.clone(),
        max_live_generations: config.max_live_generations,
        cache: Arc::new(Cache::open(&state.join("cache"))?),
        last_good,
        audit: Audit::open(&state.join("audit.jsonl"))?,
        watcher: Mutex::new(None),
        _lock: lock,
    });
    fill(&shared, &saved)?;
    watch_files(&shared);
    reconcile::spawn(&shared).map_err(files::io(state))?;
    Ok(shared)
}

fn lock(path: &Path) -> Result<fs::File> {
    let open = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path);
    let file = open.map_err(files::io(path))?;
    let start = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(files::io(path)(error)),
            Err(TryLockError::WouldBlock) if start.elapsed() > HANDOVER => {
                return Err(Error::Config(format!(
                    "{}: another heddle uses this state folder; give each one its own",
                    path.display()
                )));
            }
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// The slots: the default ones, those of the configuration, and those that were made while an earlier host ran.
fn slots(config: &PluginsConfig, saved: &BTreeMap<String, Saved>) -> Result<BTreeMap<String, Slot>> {
    let mut slots = BTreeMap::new();
    let made_here = saved.keys().filter(|name| is_slot_name(name));
    let names = DEFAULT_SLOTS
        .iter()
        .map(|default| default.slot)
        .chain(config.slots.keys().map(String::as_str));
    let folder = config.directory.as_deref().map(in_folder).unwrap_or_default();
    for name in names
        .chain(made_here.map(String::as_str))
        .chain(folder.keys().map(String::as_str))
    {
        if slots.contains_key(name) {
            continue;
        }
        if !is_slot_name(name) {
            return Err(Error::Config(format!(
                "[plugins.slots.{name}]: a slot has up to 64 lower-case letters, digits, `-` and `_` in its name"
            )));
        }
        let default = DEFAULT_SLOTS.iter().find(|default| default.slot == name);
        let unset = SlotConfig::default();
        let configured = config.slots.get(name);
        let slot = configured.unwrap_or(&unset);
        let component = slot
            .component
            .as_deref()
            .or(default.map(|default| default.component));
        let home = match (component, configured) {
            (None, None) => Home::Nowhere,
            // A file in the watched folder may be all that a configured slot has.
            (None, Some(_)) if folder.contains_key(name) && builtin::find(name).is_none() => Home::Nowhere,
            _ => Home::parse(name, component)?,
        };
        slots.insert(
            name.to_owned(),
            Slot::new(Arc::new(check::settings(name, slot)?), home),
        );
    }
    Ok(slots)
}

/// A component that a slot may start with.
struct Candidate {
    bytes: Result<Arc<[u8]>, String>,
    source: String,
    from_home: bool,
}

/// Fills every slot and makes the first pipeline.
fn fill(shared: &Shared, saved: &BTreeMap<String, Saved>) -> Result<()> {
    let names: Vec<_> = shared.registry().slots.keys().cloned().collect();
    let mut attempts = Vec::new();
    for name in &names {
        match fill_slot(shared, name, saved.get(name)) {
            Ok(attempt) => attempts.push(attempt),
            Err(refusal) => allow_empty(shared, name, &refusal)?,
        }
    }
    remember(shared, saved, &attempts);
    commit(shared, &mut attempts, true);
    if let Some(conflict) = attempts.iter().find_map(|attempt| attempt.refusal.clone()) {
        attempts = together(shared, saved, attempts, &conflict)?;
        remember(shared, saved, &attempts);
        commit(shared, &mut attempts, true);
        if let Some(attempt) = attempts.iter().find(|attempt| attempt.refusal.is_some()) {
            return Err(refused(&attempt.slot, &conflict));
        }
    }
    attempts.iter().for_each(|attempt| attempt.record(shared));
    Ok(())
}

/// What does not go together is replaced by what went together last time.
fn together(
    shared: &Shared,
    saved: &BTreeMap<String, Saved>,
    attempts: Vec<Attempt>,
    conflict: &Refusal,
) -> Result<Vec<Attempt>> {
    let mut kept = Vec::new();
    for mut attempt in attempts {
        let last = saved.get(&attempt.slot);
        if last.is_some_and(|last| last.digest == attempt.check.digest) {
            attempt.retry();
            kept.push(attempt);
            continue;
        }
        attempt.record(shared);
        let old = last.map(|last| (last, shared.last_good.bytes(&last.digest)));
        if let Some((last, Ok(bytes))) = old {
            let wish = Wish {
                source: &last.source,
                from_home: false,
                ..start_wish(&attempt.slot)
            };
            kept.push(Attempt::climb(shared, wish, &bytes));
        } else {
            allow_empty(shared, &attempt.slot, conflict)?;
        }
    }
    Ok(kept)
}

/// A slot that nobody configured can be empty; one that somebody counts on cannot.
fn allow_empty(shared: &Shared, slot: &str, refusal: &Refusal) -> Result<()> {
    if shared
        .registry()
        .slots
        .get(slot)
        .is_some_and(|slot| slot.home != Home::Nowhere)
    {
        return Err(refused(slot, refusal));
    }
    tracing::error!(slot, "this slot stays empty: {}", refusal.public_reason());
    Ok(())
}

fn refused(slot: &str, refusal: &Refusal) -> Error {
    Error::PluginRefused {
        slot: slot.to_owned(),
        rung: refusal.rung.name(),
        reason: refusal.reason.clone(),
    }
}

fn start_wish(slot: &str) -> Wish<'_> {
    Wish {
        action: Action::Start,
        actor: "start",
        slot,
        source: "",
        from_home: true,
    }
}

/// The first of a slot's candidates that climbs. Those that do not are in the audit log.
fn fill_slot(shared: &Shared, name: &str, saved: Option<&Saved>) -> Result<Attempt, Refusal> {
    let mut last = Refusal::new(
        Rung::Read,
        "it has no component: neither a file nor one that served before",
    );
    let mut broken = false;
    for candidate in candidates(shared, name, saved) {
        let wish = Wish {
            source: &candidate.source,
            from_home: candidate.from_home,
            ..start_wish(name)
        };
        let attempt = match &candidate.bytes {
            Ok(bytes) => Attempt::climb(shared, wish, bytes),
            Err(reason) => {
                let mut attempt = Attempt::new(wish, CheckReport::default());
                attempt.refuse(Refusal::new(Rung::Read, reason.clone()));
                attempt
            }
        };
        let Some(refusal) = &attempt.refusal else {
            if broken {
                tracing::warn!(slot = name, "the slot starts with the component that served last");
            }
            return Ok(attempt);
        };
        attempt.record(shared);
        if !broken {
            last = refusal.clone();
        }
        broken = true;
    }
    Err(last)
}

/// What a slot may start with, the best first: what its source holds if that is new, what served last, what its source
/// holds if that is not new (it was pushed over, or rolled back from).
fn candidates(shared: &Shared, name: &str, saved: Option<&Saved>) -> Vec<Candidate> {
    let home = home(shared, name);
    let digest = home
        .as_ref()
        .and_then(|home| home.bytes.as_ref().ok())
        .map(|bytes| load::digest(bytes));
    let last = saved
        .filter(|saved| Some(&saved.digest) != digest.as_ref())
        .map(|saved| Candidate {
            bytes: shared
                .last_good
                .bytes(&saved.digest)
                .map_err(|error| error.to_string()),
            source: saved.source.clone(),
            from_home: false,
        });
    let known = saved.is_some_and(|saved| saved.seen == digest);
    let both = if known { [last, home] } else { [home, last] };
    both.into_iter().flatten().collect()
}

/// What a slot's source holds; none if it has none.
fn home(shared: &Shared, name: &str) -> Option<Candidate> {
    let in_folder = shared.directory.as_deref().map(in_folder).unwrap_or_default();
    let home = shared.registry().slots[name].home.clone();
    let path = match (in_folder.get(name), home) {
        (Some(path), _) => path.clone(),
        (None, Home::File(path)) => path,
        (None, Home::Builtin(component)) => {
            let bytes = builtin::find(component)?.bytes;
            return Some(Candidate {
                bytes: Ok(bytes.into()),
                source: "builtin".into(),
                from_home: true,
            });
        }
        (None, Home::Nowhere) => return None,
    };
    let stamp = Stamp::of(&path);
    let bytes = look(&path, None).map(|found| match found {
        Look::Other(bytes, _) => bytes,
        // Nothing was known, so nothing can be the same.
        Look::Same => Arc::default(),
    });
    if let Some(slot) = shared.registry().slots.get_mut(name) {
        (slot.stamp, slot.tried) = (stamp, bytes.as_ref().ok().map(|bytes| load::digest(bytes)));
    }
    Some(Candidate {
        bytes,
        source: path.display().to_string(),
        from_home: true,
    })
}

/// Takes over from the last run what the first commit cannot know: what each source held, and to what slots go back.
fn remember(shared: &Shared, saved: &BTreeMap<String, Saved>, attempts: &[Attempt]) {
    let mut registry = shared.registry();
    for attempt in attempts {
        let (Some(saved), Some(slot)) = (saved.get(&attempt.slot), registry.slots.get_mut(&attempt.slot))
        else {
            continue;
        };
        slot.seen.clone_from(&saved.seen);
        let same = saved.digest == attempt.check.digest;
        let previous = if same {
            saved.previous.clone()
        } else {
            Some(saved.digest.clone())
        };
        slot.previous = previous.map(|digest| Previous {
            digest,
            source: "last good".into(),
            plugin: None,
        });
    }
}

fn watch_files(shared: &Arc<Shared>) {
    let mut folders: BTreeSet<PathBuf> = shared.directory.iter().cloned().collect();
    for slot in shared.registry().slots.values() {
        if let Home::File(path) = &slot.home {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            folders.insert(folder.unwrap_or(Path::new(".")).to_owned());
        }
    }
    let watcher = watch::watch(folders.iter().map(PathBuf::as_path), &shared.mailbox);
    *shared
        .watcher
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner) = watcher;
}
