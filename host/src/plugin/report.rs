//! The rungs that a component climbs, and what is told of the climb.

use std::{fmt, time::Instant};

use serde::Serialize;

use super::contract::Role;

/// A check on the way from a file to the pipeline, in their order. A component that fails on one goes no further, and
/// its slot keeps what it had.
///
/// [`Signature`](Self::Signature), [`Shadow`](Self::Shadow), [`Canary`](Self::Canary) and [`Guard`](Self::Guard) have
/// their names and places here, so that reports and the audit log keep their meaning; nothing climbs them yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rung {
    /// Stable bytes: a file is read until two readings are the same.
    Read,
    /// Who made it.
    Signature,
    /// What it is: a component of this contract, importing nothing that was not granted.
    Contract,
    /// Compiled within the time limit, and it fits the pool of instances.
    Compile,
    /// Configured, under the limits of the slot, and snapshotted.
    Configure,
    /// Its own test passes on a fresh instance.
    SelfTest,
    /// Runs beside the one that serves; the decisions are compared.
    Shadow,
    /// Serves a share of the requests.
    Canary,
    /// Becomes part of the pipeline: new requests see it.
    Commit,
    /// The ones before it end with their last stream.
    Drain,
    /// Watched for a while, and rolled back if it does worse than the one before it.
    Guard,
}

impl Rung {
    /// The name, as in reports and the audit log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Signature => "signature",
            Self::Contract => "contract",
            Self::Compile => "compile",
            Self::Configure => "configure",
            Self::SelfTest => "self-test",
            Self::Shadow => "shadow",
            Self::Canary => "canary",
            Self::Commit => "commit",
            Self::Drain => "drain",
            Self::Guard => "guard",
        }
    }
}

impl fmt::Display for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One rung of a climb.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RungReport {
    /// Which.
    pub rung: Rung,
    /// Whether it was passed.
    pub passed: bool,
    /// Milliseconds that it took.
    pub ms: f64,
    /// What is worth knowing; why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Why a component is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub rung: Rung,
    pub reason: String,
    /// Whether the reason holds words of the component's own, which may repeat its configuration. They are shown to
    /// the operator who asked and kept out of the audit log.
    pub quotes: bool,
}

impl Refusal {
    pub(super) fn new(rung: Rung, reason: impl Into<String>) -> Self {
        Self {
            rung,
            reason: reason.into(),
            quotes: false,
        }
    }

    /// What the audit log may hold.
    pub(super) fn public_reason(&self) -> &str {
        if self.quotes {
            "the component gave a reason of its own"
        } else {
            &self.reason
        }
    }
}

/// Everything that a check found out about a component.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct CheckReport {
    /// Whether every rung was passed.
    pub accepted: bool,
    /// SHA-256 of the file, in hexadecimal.
    pub digest: String,
    /// Its size in bytes.
    pub bytes: usize,
    /// The name that it gives itself.
    pub name: String,
    /// Its version.
    pub version: String,
    /// What it says of itself.
    pub description: String,
    /// What it can do.
    pub roles: Vec<Role>,
    /// What it exports.
    pub exports: Vec<String>,
    /// What it imports.
    pub imports: Vec<String>,
    /// What it was granted.
    pub grants: Vec<&'static str>,
    /// The routes that it serves: `POST /v1/chat/completions`.
    pub routes: Vec<String>,
    /// Whether each request starts from a configured snapshot; none if it did not come so far.
    pub snapshot: Option<bool>,
    /// Why there is no snapshot, so that `configure` runs in each instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_reason: Option<String>,
    /// Milliseconds spent compiling; none if compiled code was at hand.
    pub compile_ms: Option<f64>,
    /// Every rung that was tried.
    pub rungs: Vec<RungReport>,
}

impl CheckReport {
    /// Tries a rung and writes down how it went.
    pub(super) fn climb<T>(
        &mut self,
        rung: Rung,
        attempt: impl FnOnce(&mut Self) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let start = Instant::now();
        let result = attempt(self);
        let note = result.as_ref().err().map(|refusal| refusal.reason.clone());
        self.rungs.push(RungReport {
            rung,
            passed: result.is_ok(),
            ms: milliseconds(start),
            note,
        });
        result
    }

    /// Adds what is worth knowing to the last rung.
    pub(super) fn note(&mut self, note: impl Into<String>) {
        if let Some(rung) = self.rungs.last_mut() {
            rung.note = Some(note.into());
        }
    }

    /// The rung that failed, if one did.
    pub fn failed(&self) -> Option<&RungReport> {
        self.rungs.iter().find(|rung| !rung.passed)
    }
}

/// Since `start`, to the microsecond.
pub(super) fn milliseconds(start: Instant) -> f64 {
    (start.elapsed().as_secs_f64() * 1e6).round() / 1e3
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.name.is_empty() {
            writeln!(f, "{} {}: {}", self.name, self.version, self.description)?;
        }
        writeln!(f, "{} bytes, sha256 {}", self.bytes, self.digest)?;
        for (what, items) in [
            ("exports", &self.exports),
            ("imports", &self.imports),
            ("routes", &self.routes),
        ] {
            if !items.is_empty() {
                writeln!(f, "{what:<8} {}", items.join(", "))?;
            }
        }
        writeln!(
            f,
            "granted  {}",
            if self.grants.is_empty() {
                "nothing".into()
            } else {
                self.grants.join(", ")
            }
        )?;
        for rung in &self.rungs {
            let mark = if rung.passed { "ok    " } else { "FAILED" };
            write!(f, "{mark} {:<10} {:>9.1} ms", rung.rung, rung.ms)?;
            match &rung.note {
                Some(note) => writeln!(f, "  {note}")?,
                None => writeln!(f)?,
            }
        }
        match (&self.snapshot, &self.snapshot_reason) {
            (Some(true), _) => writeln!(f, "Each request starts from the configured snapshot.")?,
            (Some(false), reason) => writeln!(
                f,
                "No snapshot: `configure` runs in each instance. {}",
                reason.as_deref().unwrap_or_default()
            )?,
            (None, _) => {}
        }
        f.write_str(if self.accepted { "accepted" } else { "refused" })
    }
}

/// How a change of the pipeline went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// New requests run through it.
    Committed,
    /// The slot holds these bytes already.
    Unchanged,
    /// A rung failed; nothing changed.
    Refused,
    /// A later change of the same slot came first.
    Superseded,
    /// It was only checked, and passed.
    Checked,
}

/// The answer to an installation: one for each slot that it names.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InstallReport {
    /// The slot.
    pub slot: String,
    /// How it went.
    pub verdict: Verdict,
    /// The generation of the pipeline that has it, if it was committed.
    pub generation: Option<u64>,
    /// Where and why it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<RungReport>,
    /// What was found out.
    pub check: CheckReport,
}
