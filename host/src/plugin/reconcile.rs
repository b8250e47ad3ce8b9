//! One thread changes the pipeline: it does what the mailbox holds, one thing after the other, and waits for no request.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    thread,
};

use super::{
    CheckReport, InstallReport, Rung, SlotConfig, Verdict,
    attempt::{Attempt, Wish, commit},
    audit::Action,
    check, load,
    mailbox::{Job, Work},
    plugin::Plugin,
    registry::{Previous, Ready, Shared, Slot},
    report::Refusal,
    source::{Home, Look, Stamp, in_folder, look},
};
use crate::error::{Error, Result};

/// Starts the thread. It ends with the host.
pub(super) fn spawn(shared: &Arc<Shared>) -> std::io::Result<()> {
    let mailbox = Arc::clone(&shared.mailbox);
    let shared: Weak<Shared> = Arc::downgrade(shared);
    let run = move || {
        loop {
            let work = mailbox.next();
            let Some(shared) = shared.upgrade() else { return };
            match work {
                Work::Install(job) => {
                    let reports = install(&shared, &job);
                    // Before the answer: who has it may take the host down and start the next one.
                    drop(shared);
                    // Nobody may be waiting any more.
                    let _ = job.reply.send(reports);
                }
                Work::Look { all } => look_at_files(&shared, all),
                Work::Stop => return,
            }
        }
    };
    thread::Builder::new()
        .name("heddle-reconcile".into())
        .spawn(run)
        .map(drop)
}

/// Installs what was pushed, or checks it.
fn install(shared: &Shared, job: &Job) -> Vec<InstallReport> {
    let climb = |(slot, bytes): &(String, Arc<[u8]>)| {
        let wish = Wish {
            action: Action::Install,
            actor: &job.actor,
            slot,
            source: "api",
            from_home: false,
        };
        Attempt::climb(shared, wish, bytes)
    };
    let mut attempts: Vec<_> = job.components.iter().map(climb).collect();
    if attempts.iter().any(|attempt| attempt.refusal.is_some()) {
        for attempt in attempts.iter_mut().filter(|attempt| attempt.ready.is_some()) {
            attempt.refuse(Refusal::new(
                Rung::Commit,
                "another component of the same change was refused",
            ));
        }
    } else if job.commit
        && attempts
            .iter()
            .any(|attempt| shared.mailbox.supersedes(&attempt.slot))
    {
        for attempt in &mut attempts {
            attempt.verdict = Verdict::Superseded;
        }
    } else {
        commit(shared, &mut attempts, job.commit);
    }
    if job.commit {
        attempts.iter().for_each(|attempt| attempt.record(shared));
    }
    attempts.into_iter().map(Attempt::report).collect()
}

/// Looks at the files of slots and takes those that changed; with `all`, also those that were refused or rolled back
/// before. Files that changed together are committed together.
fn look_at_files(shared: &Shared, all: bool) {
    let actor = if all { "reload" } else { "watcher" };
    let mut attempts: Vec<_> = files(shared)
        .iter()
        .filter_map(|(slot, path)| look_at(shared, slot, path, all, actor))
        .collect();
    if attempts.iter().filter(|attempt| attempt.ready.is_some()).count() > 1 {
        commit(shared, &mut attempts, true);
    }
    for attempt in &mut attempts {
        // Alone, or not possible together: each one that can be is.
        if attempt.ready.is_some() && attempt.verdict != Verdict::Committed {
            attempt.retry();
            commit(shared, std::slice::from_mut(attempt), true);
        }
        attempt.record(shared);
    }
}

/// The files that slots come from: those of the watched folder go before those of the configuration.
fn files(shared: &Shared) -> Vec<(String, PathBuf)> {
    let mut files = shared.directory.as_deref().map(in_folder).unwrap_or_default();
    for (name, slot) in &shared.registry().slots {
        if let Home::File(path) = &slot.home {
            files.entry(name.clone()).or_insert_with(|| path.clone());
        }
    }
    files.into_iter().collect()
}

/// Looks at one file. None if there is nothing to do.
fn look_at(shared: &Shared, slot: &str, path: &Path, all: bool, actor: &str) -> Option<Attempt> {
    let stamp = Stamp::of(path);
    let (known, tried) = match shared.registry().slots.get(slot) {
        Some(slot) => (slot.stamp, slot.tried.clone()),
        None => (None, None),
    };
    // A file that is gone leaves the slot with what it has.
    if stamp.is_none() || (!all && stamp == known) {
        return None;
    }
    let source = path.display().to_string();
    let wish = Wish {
        action: Action::Install,
        actor,
        slot,
        source: &source,
        from_home: true,
    };
    let attempt = match look(path, if all { None } else { tried.as_deref() }) {
        Ok(Look::Same) => None,
        Ok(Look::Other(bytes, digest)) => {
            know(shared, slot, |slot| slot.tried = Some(digest));
            let attempt = Attempt::climb(shared, wish, &bytes);
            // What serves already may have been pushed before it came to the file.
            (attempt.verdict != Verdict::Unchanged).then_some(attempt)
        }
        Err(reason) => {
            // The stamp is not kept: it is read again at the next look. It is told once.
            let mut told = false;
            know(shared, slot, |slot| {
                told = slot
                    .last_error
                    .as_ref()
                    .is_some_and(|error| error.message == reason);
            });
            let mut attempt = Attempt::new(wish, CheckReport::default());
            attempt.refuse(Refusal::new(Rung::Read, reason));
            return (!told).then_some(attempt);
        }
    };
    know(shared, slot, |slot| slot.stamp = stamp);
    attempt
}

/// Notes something about a slot; one that is only a file in the folder so far is made for it.
fn know(shared: &Shared, name: &str, note: impl FnOnce(&mut Slot)) {
    let mut registry = shared.registry();
    if !registry.slots.contains_key(name) {
        let Ok(settings) = check::settings(name, &SlotConfig::default()) else {
            return;
        };
        registry
            .slots
            .insert(name.to_owned(), Slot::new(Arc::new(settings), Home::Nowhere));
    }
    if let Some(slot) = registry.slots.get_mut(name) {
        note(slot);
    }
}

/// Puts the component that a slot had before back. Not the reconciler's: it must not wait for a compilation.
pub(super) fn rollback(shared: &Shared, name: &str, actor: &str) -> Result<u64> {
    let missing = |what: &str| Error::Config(format!("slot `{name}`: {what}"));
    let (previous, settings, revision) = {
        let registry = shared.registry();
        let slot = registry
            .slots
            .get(name)
            .ok_or_else(|| missing("there is no such slot"))?;
        let previous = slot
            .previous
            .clone()
            .ok_or_else(|| missing("it had no component before this one"))?;
        (previous, Arc::clone(&slot.settings), slot.revision)
    };
    let Previous {
        digest,
        source,
        plugin,
    } = previous;
    let wish = Wish {
        action: Action::Rollback,
        actor,
        slot: name,
        source: &source,
        from_home: false,
    };
    let check = CheckReport {
        digest: digest.clone(),
        grants: settings.grants.names(),
        ..CheckReport::default()
    };
    let mut attempt = Attempt::new(wish, check);
    attempt.from = shared
        .pipeline
        .load()
        .plugin(name)
        .map(|plugin| plugin.digest().to_owned());
    let plugin: Result<Arc<Plugin>, Refusal> = match plugin {
        Some(plugin) => Ok(plugin),
        None => match shared.last_good.bytes(&digest) {
            Ok(bytes) => {
                let (check, plugin) = load::load(&bytes, &settings, Some(&shared.cache));
                attempt.check = check;
                plugin.map(Arc::new)
            }
            Err(error) => Err(Refusal::new(Rung::Read, error.to_string())),
        },
    };
    match plugin {
        Ok(plugin) => {
            let ready = Ready {
                plugin,
                bytes: None,
                source: source.clone(),
                from_home: false,
                revision: Some(revision),
            };
            attempt.ready = Some(ready);
            commit(shared, std::slice::from_mut(&mut attempt), true);
        }
        Err(refusal) => attempt.refuse(refusal),
    }
    attempt.record(shared);
    let refuse = |rung: Rung, reason| Error::PluginRefused {
        slot: name.to_owned(),
        rung: rung.name(),
        reason,
    };
    match (attempt.generation, attempt.refusal) {
        (Some(generation), _) => Ok(generation),
        (None, Some(refusal)) => Err(refuse(refusal.rung, refusal.reason)),
        (None, None) => Err(refuse(
            Rung::Commit,
            "the slot was changed at the same moment: look again".into(),
        )),
    }
}
