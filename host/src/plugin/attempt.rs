//! One attempt to bring a component into a slot: its rungs, its commit, its line in the audit log.

use std::{sync::Arc, time::Instant};

use super::{
    CheckReport, InstallReport, Rung, SlotConfig, Verdict,
    audit::{Action, Event},
    check, load,
    plugin::Settings,
    registry::{NotCommitted, Ready, Shared},
    report::{Refusal, RungReport, milliseconds},
};
use crate::error::Result;

/// An attempt and what came of it so far.
pub(super) struct Attempt {
    pub action: Action,
    pub actor: String,
    pub slot: String,
    /// `builtin`, `api`, a file.
    pub source: String,
    /// What the slot had.
    pub from: Option<String>,
    pub check: CheckReport,
    pub verdict: Verdict,
    pub refusal: Option<Refusal>,
    pub generation: Option<u64>,
    /// What can be committed.
    pub ready: Option<Ready>,
}

/// Who wants what.
#[derive(Clone, Copy)]
pub(super) struct Wish<'a> {
    pub action: Action,
    pub actor: &'a str,
    pub slot: &'a str,
    pub source: &'a str,
    /// Whether this is what the slot's own source holds.
    pub from_home: bool,
}

impl Attempt {
    /// Nothing done yet.
    pub(super) fn new(wish: Wish<'_>, check: CheckReport) -> Self {
        Self {
            action: wish.action,
            actor: wish.actor.to_owned(),
            slot: wish.slot.to_owned(),
            source: wish.source.to_owned(),
            from: None,
            check,
            verdict: Verdict::Unchanged,
            refusal: None,
            generation: None,
            ready: None,
        }
    }

    /// Climbs all rungs before the commit.
    pub(super) fn climb(shared: &Shared, wish: Wish<'_>, bytes: &Arc<[u8]>) -> Self {
        let check = CheckReport {
            digest: load::digest(bytes),
            bytes: bytes.len(),
            ..CheckReport::default()
        };
        let mut attempt = Self::new(wish, check);
        attempt.from = shared
            .pipeline
            .load()
            .plugin(wish.slot)
            .map(|plugin| plugin.digest().to_owned());
        if attempt.from.as_ref() == Some(&attempt.check.digest) {
            attempt.check.accepted = true;
            return attempt;
        }
        let (settings, revision) = match settings(shared, wish.slot) {
            Ok(settings) => settings,
            Err(error) => {
                attempt.refuse(Refusal::new(Rung::Contract, error.to_string()));
                return attempt;
            }
        };
        let (check, plugin) = load::load(bytes, &settings, Some(&shared.cache));
        attempt.check = check;
        match plugin {
            Ok(plugin) => {
                attempt.verdict = Verdict::Checked;
                attempt.ready = Some(Ready {
                    plugin: Arc::new(plugin),
                    bytes: Some(Arc::clone(bytes)),
                    source: wish.source.to_owned(),
                    from_home: wish.from_home,
                    revision,
                });
            }
            Err(refusal) => attempt.refuse(refusal),
        }
        attempt
    }

    pub(super) fn refuse(&mut self, refusal: Refusal) {
        self.verdict = Verdict::Refused;
        self.check.accepted = false;
        self.refusal = Some(refusal);
    }

    /// Forgets a commit that failed, for another one.
    pub(super) fn retry(&mut self) {
        self.refusal = None;
        self.check.rungs.retain(|rung| rung.rung != Rung::Commit);
    }

    /// The answer to who asked.
    pub(super) fn report(self) -> InstallReport {
        let ms = self.check.failed().map_or(0.0, |rung| rung.ms);
        InstallReport {
            slot: self.slot,
            verdict: self.verdict,
            generation: self.generation,
            refused: self.refusal.map(|refusal| RungReport {
                rung: refusal.rung,
                passed: false,
                ms,
                note: Some(refusal.reason),
            }),
            check: self.check,
        }
    }

    /// Writes down what happened: in the audit log, in the log, and in the slot if it failed.
    pub(super) fn record(&self, shared: &Shared) {
        let digest = (!self.check.digest.is_empty()).then_some(self.check.digest.as_str());
        shared.audit.write(&Event {
            actor: &self.actor,
            source: &self.source,
            action: self.action,
            slot: &self.slot,
            from: self.from.as_deref(),
            to: digest,
            verdict: self.verdict,
            rung: self.refusal.as_ref().map(|refusal| refusal.rung),
            reason: self.refusal.as_ref().map(Refusal::public_reason),
            grants: self.check.grants.clone(),
            ms: self
                .check
                .rungs
                .iter()
                .map(|rung| (rung.rung.name(), rung.ms))
                .collect(),
            generation: self.generation,
        });
        let (slot, source) = (&self.slot, &self.source);
        match &self.refusal {
            Some(refusal) => {
                shared.note_error(slot, digest, refusal);
                let (rung, reason) = (refusal.rung, refusal.public_reason());
                tracing::warn!(slot, source, %rung, "a plugin was refused: {reason}");
            }
            None => {
                tracing::info!(slot, source, digest, generation = self.generation, verdict = ?self.verdict, "plugin")
            }
        }
    }
}

/// Commits everything that is ready, in one store, or none of it. Without `commit` only looks whether that could be.
pub(super) fn commit(shared: &Shared, attempts: &mut [Attempt], commit: bool) {
    let ready: Vec<_> = attempts
        .iter()
        .filter_map(|attempt| attempt.ready.clone())
        .collect();
    if ready.is_empty() {
        return;
    }
    let start = Instant::now();
    let done = if commit {
        shared.commit(&ready).map(Some)
    } else {
        let fits = shared.next(&ready);
        fits.map(|_| None)
            .map_err(|reason| NotCommitted::Refused(Refusal::new(Rung::Commit, reason)))
    };
    let ms = milliseconds(start);
    for attempt in attempts.iter_mut().filter(|attempt| attempt.ready.is_some()) {
        let mut rung = RungReport {
            rung: Rung::Commit,
            passed: true,
            ms,
            note: None,
        };
        match &done {
            Ok(generation) => {
                attempt.generation = *generation;
                attempt.verdict = if commit {
                    Verdict::Committed
                } else {
                    Verdict::Checked
                };
            }
            Err(NotCommitted::Superseded) => {
                attempt.verdict = Verdict::Superseded;
                continue;
            }
            Err(NotCommitted::Refused(refusal)) => {
                (rung.passed, rung.note) = (false, Some(refusal.reason.clone()));
                attempt.refuse(refusal.clone());
            }
        }
        attempt.check.rungs.push(rung);
    }
}

/// What holds for a slot, and its revision; the defaults for one that there is not yet.
fn settings(shared: &Shared, slot: &str) -> Result<(Arc<Settings>, Option<u64>)> {
    match shared.registry().slots.get(slot) {
        Some(slot) => Ok((Arc::clone(&slot.settings), Some(slot.revision))),
        None => Ok((Arc::new(check::settings(slot, &SlotConfig::default())?), None)),
    }
}
