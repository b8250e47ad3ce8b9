//! The audit log: what was done to the pipeline, by whom, and how it went.
//!
//! `audit.jsonl` is append-only; each line is a JSON object that holds the SHA-256 of the line before it, and is on the
//! disk before the change is answered. Whoever alters or takes out a line has to write all later ones anew. Nothing of
//! a plugin's configuration is ever in it.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use serde::Serialize;

use super::{
    files,
    load::digest,
    report::{Rung, Verdict},
};
use crate::error::{Error, Result};

/// What is read from the end of the log to show its last lines.
const TAIL_BYTES: u64 = 4 << 20;

/// One line, without its link.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Event<'a> {
    /// Who: `admin`, `watcher`, `signal`, `start`.
    pub actor: &'a str,
    /// From where the component came: `builtin`, `api`, a file.
    pub source: &'a str,
    pub action: Action,
    pub slot: &'a str,
    /// SHA-256 of what the slot had before, and of what it was to have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<&'a str>,
    pub verdict: Verdict,
    /// The rung that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rung: Option<Rung>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'a str>,
    pub grants: Vec<&'static str>,
    /// Milliseconds on each rung.
    pub ms: BTreeMap<&'static str, f64>,
    /// Of the pipeline, if it changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Action {
    Start,
    Install,
    Rollback,
}

/// The open log.
pub(super) struct Audit {
    path: PathBuf,
    last: Mutex<(File, String)>,
}

#[derive(Serialize)]
struct Line<'a> {
    time_ms: u64,
    #[serde(flatten)]
    event: &'a Event<'a>,
    /// SHA-256 of the line before, without its line break; of nothing for the first one.
    prev: &'a str,
}

impl Audit {
    /// Opens the log and finds its last line.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let open = || {
            let mut file = OpenOptions::new()
                .read(true)
                .append(true)
                .create(true)
                .mode(0o600)
                .open(path)?;
            let text = tail(&mut file)?;
            if !text.is_empty() && !text.ends_with('\n') {
                // The machine went down while the line was written: it stays as it is, and in the chain.
                file.write_all(b"\n")?;
            }
            let last = text.lines().next_back().unwrap_or_default();
            Ok((file, digest(last.as_bytes())))
        };
        Ok(Self {
            path: path.to_owned(),
            last: Mutex::new(open().map_err(files::io(path))?),
        })
    }

    /// Appends a line. A log that cannot be written is told to the operator; the pipeline goes on.
    pub(super) fn write(&self, event: &Event<'_>) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let (file, prev) = &mut *last;
        let Ok(mut line) = serde_json::to_string(&Line { time_ms, event, prev }) else {
            tracing::error!("an audit line could not be made");
            return;
        };
        let link = digest(line.as_bytes());
        line.push('\n');
        if let Err(error) = file.write_all(line.as_bytes()).and_then(|()| file.sync_data()) {
            tracing::error!(path = %self.path.display(), "the audit log cannot be written: {error}");
        }
        *prev = link;
    }

    /// The last lines, oldest first.
    pub(super) fn last(&self, limit: usize) -> Result<Vec<serde_json::Value>> {
        let text = File::open(&self.path)
            .and_then(|mut file| tail(&mut file))
            .map_err(files::io(&self.path))?;
        let mut lines: Vec<_> = text
            .lines()
            .rev()
            .filter_map(|line| serde_json::from_str(line).ok())
            .take(limit)
            .collect();
        lines.reverse();
        Ok(lines)
    }
}

/// The end of the log, as far as it is shown.
fn tail(file: &mut File) -> std::io::Result<String> {
    let from = file.metadata()?.len().saturating_sub(TAIL_BYTES);
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    if from > 0 {
        // Not a whole line.
        let first = bytes
            .iter()
            .position(|&byte| byte == b'\n')
            .map_or(bytes.len(), |at| at + 1);
        bytes.drain(..first);
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Checks the chain of an audit log; how many lines it has.
///
/// # Errors
/// [`Error::Config`] naming the first line that does not follow the one before it; [`Error::Io`].
pub fn verify_audit(path: &Path) -> Result<usize> {
    let text = fs::read_to_string(path).map_err(files::io(path))?;
    let mut link = digest(b"");
    for (number, line) in text.lines().enumerate() {
        let parsed: Option<serde_json::Value> = serde_json::from_str(line).ok();
        // A line that was cut off by a crash has no link to check; the next one has its digest.
        if let Some(entry) = parsed
            && entry["prev"] != link.as_str()
        {
            return Err(Error::Config(format!(
                "{}: line {} does not follow the line before it: one of the two was altered",
                path.display(),
                number + 1
            )));
        }
        link = digest(line.as_bytes());
    }
    Ok(text.lines().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(slot: &str) -> Event<'_> {
        Event {
            actor: "admin",
            source: "api",
            action: Action::Install,
            slot,
            from: None,
            to: Some("00"),
            verdict: Verdict::Refused,
            rung: Some(Rung::SelfTest),
            reason: Some("why"),
            grants: vec!["log"],
            ms: BTreeMap::from([("compile", 1.5)]),
            generation: None,
        }
    }

    #[test]
    fn the_chain_goes_on_after_a_restart_and_a_crash() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        for slot in ["a", "b"] {
            Audit::open(&path).unwrap().write(&event(slot));
        }
        fs::write(&path, fs::read_to_string(&path).unwrap() + "{\"cut").unwrap();
        let audit = Audit::open(&path).unwrap();
        audit.write(&event("c"));
        assert_eq!(verify_audit(&path).unwrap(), 4);
        let slots: Vec<_> = audit
            .last(2)
            .unwrap()
            .iter()
            .map(|line| line["slot"].clone())
            .collect();
        assert_eq!(slots, ["b", "c"]);
    }

    #[test]
    fn an_altered_line_breaks_the_chain() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let audit = Audit::open(&path).unwrap();
        for slot in ["a", "b", "c"] {
            audit.write(&event(slot));
        }
        let text = fs::read_to_string(&path).unwrap();
        for forged in [
            text.replacen("\"slot\":\"a\"", "\"slot\":\"x\"", 1),
            text.lines().skip(1).map(|line| format!("{line}\n")).collect(),
        ] {
            fs::write(&path, forged).unwrap();
            assert!(verify_audit(&path).unwrap_err().to_string().contains("altered"));
        }
    }
}
