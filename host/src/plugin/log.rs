//! The plugin log: what a plugin writes, made harmless, at a bounded rate, under the target `plugin`.

use std::{
    fmt::Write as _,
    sync::{Mutex, PoisonError},
    time::Instant,
};

use super::bindings::heddle::plugin::log::Level;

/// The longest entry in bytes; what is over it is cut.
const MAX_ENTRY: usize = 4 << 10;
/// Entries that a plugin may write at once, and each second.
const BURST: f64 = 200.0;
const PER_SECOND: f64 = 100.0;

/// The log of one plugin, shared by all of its instances.
pub(super) struct PluginLog {
    slot: String,
    budget: Mutex<Budget>,
}

struct Budget {
    entries: f64,
    filled: Instant,
    dropped: u64,
}

impl PluginLog {
    pub(super) fn new(slot: &str) -> Self {
        Self {
            slot: slot.to_owned(),
            budget: Mutex::new(Budget {
                entries: BURST,
                filled: Instant::now(),
                dropped: 0,
            }),
        }
    }

    /// Writes an entry of the guest's, or drops it if there are too many.
    pub(super) fn write(&self, level: Level, message: &str) {
        let Some(dropped) = self
            .budget
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take(Instant::now())
        else {
            return;
        };
        let slot = self.slot.as_str();
        if dropped > 0 {
            tracing::warn!(target: "plugin", slot, dropped, "entries were dropped: the plugin writes too many");
        }
        let message = printable(message, MAX_ENTRY);
        match level {
            Level::Trace => tracing::trace!(target: "plugin", slot, "{message}"),
            Level::Debug => tracing::debug!(target: "plugin", slot, "{message}"),
            Level::Info => tracing::info!(target: "plugin", slot, "{message}"),
            Level::Warn => tracing::warn!(target: "plugin", slot, "{message}"),
            Level::Error => tracing::error!(target: "plugin", slot, "{message}"),
        }
    }
}

impl Budget {
    /// Takes one entry; how many were dropped before it, or none if it is to be dropped as well.
    fn take(&mut self, now: Instant) -> Option<u64> {
        let seconds = now.saturating_duration_since(self.filled).as_secs_f64();
        self.entries = (self.entries + seconds * PER_SECOND).min(BURST);
        self.filled = now;
        if self.entries < 1.0 {
            self.dropped += 1;
            return None;
        }
        self.entries -= 1.0;
        Some(std::mem::take(&mut self.dropped))
    }
}

/// Guest text that is safe to show on a terminal and in a line of a log: at most `max` bytes of it, with control
/// characters and those that change the direction of writing escaped.
pub(super) fn printable(text: &str, max: usize) -> String {
    let cut = text.floor_char_boundary(max);
    let mut out = String::with_capacity(cut + 16);
    for c in text[..cut].chars() {
        if c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        {
            // Writing to a string cannot fail.
            let _ = write!(out, "{}", c.escape_default());
        } else {
            out.push(c);
        }
    }
    if cut < text.len() {
        let _ = write!(out, " [{} bytes more]", text.len() - cut);
    }
    out
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn control_characters_are_escaped_and_long_entries_cut() {
        assert_eq!(
            printable("a\nb\u{1b}[31m\u{202e}ä", 100),
            "a\\nb\\u{1b}[31m\\u{202e}ä"
        );
        assert_eq!(printable("ää", 3), "ä [2 bytes more]", "never inside a character");
    }

    #[test]
    fn the_rate_is_limited_and_what_was_dropped_is_counted() {
        let start = Instant::now();
        let mut budget = Budget {
            entries: BURST,
            filled: start,
            dropped: 0,
        };
        let written = (0..1_000).filter(|_| budget.take(start).is_some()).count();
        assert_eq!(written, 200, "the burst");
        assert_eq!(budget.take(start + Duration::from_secs(1)), Some(800));
    }
}
