//! Downloads, shown to the person who waits: bars on a terminal, lines elsewhere.

use std::{
    io::IsTerminal,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use heddle_engine::hub::Progress;
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

/// How often a line tells how far a download is.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Progress on standard error.
pub(super) struct Terminal {
    bars: bool,
    file: Mutex<Option<File>>,
}

/// The file that is on its way.
struct File {
    name: String,
    total: Option<u64>,
    done: u64,
    said: Instant,
    bar: Option<ProgressBar>,
}

impl Terminal {
    pub(super) fn new() -> Self {
        Self {
            bars: std::io::stderr().is_terminal(),
            file: Mutex::new(None),
        }
    }

    fn with_file(&self, change: impl FnOnce(&mut Option<File>)) {
        change(&mut self.file.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Progress for Terminal {
    fn begin(&self, file: &str, total: Option<u64>, done: u64) {
        let bar = self.bars.then(|| {
            let bar = total.map_or_else(ProgressBar::no_length, ProgressBar::new);
            let template = "{msg:30!} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.set_message(file.to_owned());
            bar.set_position(done);
            bar
        });
        if bar.is_none() {
            let size = total.map_or_else(String::new, |total| format!(" ({})", HumanBytes(total)));
            eprintln!("fetching {file}{size}");
        }
        self.with_file(|current| {
            *current = Some(File {
                name: file.to_owned(),
                total,
                done,
                said: Instant::now(),
                bar,
            });
        });
    }

    fn advance(&self, bytes: u64) {
        self.with_file(|current| {
            let Some(file) = current else { return };
            file.done += bytes;
            if let Some(bar) = &file.bar {
                bar.inc(bytes);
            } else if file.said.elapsed() >= LINE_EVERY {
                file.said = Instant::now();
                let total = file
                    .total
                    .map_or_else(String::new, |total| format!(" of {}", HumanBytes(total)));
                eprintln!("fetching {}: {}{total}", file.name, HumanBytes(file.done));
            }
        });
    }

    fn end(&self) {
        self.with_file(|current| {
            if let Some(bar) = current.take().and_then(|file| file.bar) {
                bar.finish_and_clear();
            }
        });
    }

    fn say(&self, message: &str) {
        self.with_file(
            |current| match current.as_ref().and_then(|file| file.bar.as_ref()) {
                Some(bar) => bar.suspend(|| eprintln!("{message}")),
                None => eprintln!("{message}"),
            },
        );
    }
}
