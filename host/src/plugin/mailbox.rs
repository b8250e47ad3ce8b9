//! What waits for the reconciler. Everything that wants a change only leaves a note here; of several notes for one slot
//! the latest wins.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc},
    time::{Duration, Instant},
};

use super::{CheckReport, InstallReport, Verdict, load, source::is_slot_name};
use crate::error::{Error, Result};

/// After an event, how long nothing may happen before the files are looked at; and how long that is put off at most.
const QUIET: Duration = Duration::from_millis(250);
const PATIENCE: Duration = Duration::from_secs(2);
/// Between looks without an event: not every file system tells of changes.
const REGULAR: Duration = Duration::from_secs(15);

/// What the reconciler is to do.
pub(super) struct Mailbox {
    queue: Mutex<Queue>,
    wake: Condvar,
}

struct Queue {
    jobs: VecDeque<Job>,
    /// The first and the last event since the last look.
    touched: Option<(Instant, Instant)>,
    all: bool,
    looked: Instant,
    closed: bool,
}

/// Components to install, or only to check.
pub(super) struct Job {
    pub components: Vec<(String, Arc<[u8]>)>,
    pub actor: String,
    pub commit: bool,
    pub reply: mpsc::Sender<Vec<InstallReport>>,
}

pub(super) enum Work {
    Install(Job),
    /// Look at the files; at those that did not change as well.
    Look {
        all: bool,
    },
    Stop,
}

impl Mailbox {
    pub(super) fn new() -> Self {
        let queue = Queue {
            jobs: VecDeque::new(),
            touched: None,
            all: false,
            looked: Instant::now(),
            closed: false,
        };
        Self {
            queue: Mutex::new(queue),
            wake: Condvar::new(),
        }
    }

    /// Something may have changed in a watched folder.
    pub(super) fn touch(&self) {
        let mut queue = self.queue();
        let now = Instant::now();
        let first = queue.touched.map_or(now, |(first, _)| first);
        queue.touched = Some((first, now));
        self.wake.notify_one();
    }

    pub(super) fn look_at_all(&self) {
        self.queue().all = true;
        self.wake.notify_one();
    }

    pub(super) fn close(&self) {
        let mut queue = self.queue();
        queue.closed = true;
        // Who waits for an answer gets none, and knows.
        queue.jobs.clear();
        self.wake.notify_one();
    }

    /// Leaves components to install. What waits for the same slot, and only for it, is not done any more.
    pub(super) fn submit(
        &self,
        components: Vec<(String, Arc<[u8]>)>,
        actor: &str,
        commit: bool,
    ) -> Result<mpsc::Receiver<Vec<InstallReport>>> {
        if let Some((name, _)) = components.iter().find(|(name, _)| !is_slot_name(name)) {
            return Err(Error::Config(format!(
                "`{}` is no name of a slot: use up to 64 lower-case letters, digits, `-` and `_`",
                super::log::printable(name, 100)
            )));
        }
        let (reply, reports) = mpsc::channel();
        let job = Job {
            components,
            actor: actor.to_owned(),
            commit,
            reply,
        };
        let mut queue = self.queue();
        if queue.closed {
            return Ok(reports);
        }
        if commit {
            let replaced = |waiting: &Job| {
                let names = |job: &Job| {
                    job.components
                        .iter()
                        .map(|(name, _)| name.clone())
                        .collect::<Vec<_>>()
                };
                waiting.commit && names(waiting) == names(&job)
            };
            let (superseded, jobs) = queue.jobs.drain(..).partition::<VecDeque<_>, _>(replaced);
            queue.jobs = jobs;
            for job in superseded {
                let reports = job.components.iter().map(|(slot, bytes)| InstallReport {
                    slot: slot.clone(),
                    verdict: Verdict::Superseded,
                    generation: None,
                    refused: None,
                    check: CheckReport {
                        digest: load::digest(bytes),
                        bytes: bytes.len(),
                        ..CheckReport::default()
                    },
                });
                // Nobody may be waiting any more.
                let _ = job.reply.send(reports.collect());
            }
        }
        queue.jobs.push_back(job);
        self.wake.notify_one();
        Ok(reports)
    }

    /// Whether a later change of the slot waits.
    pub(super) fn supersedes(&self, slot: &str) -> bool {
        let waiting = |job: &Job| job.commit && job.components.iter().any(|(name, _)| name == slot);
        self.queue().jobs.iter().any(waiting)
    }

    /// Waits for something to do.
    pub(super) fn next(&self) -> Work {
        let mut queue = self.queue();
        loop {
            if queue.closed {
                return Work::Stop;
            }
            if let Some(job) = queue.jobs.pop_front() {
                return Work::Install(job);
            }
            let touched = queue
                .touched
                .map(|(first, last)| (last + QUIET).min(first + PATIENCE));
            let due = touched
                .unwrap_or(queue.looked + REGULAR)
                .min(queue.looked + REGULAR);
            let wait = due.saturating_duration_since(Instant::now());
            if queue.all || wait.is_zero() {
                queue.touched = None;
                queue.looked = Instant::now();
                return Work::Look {
                    all: std::mem::take(&mut queue.all),
                };
            }
            queue = self
                .wake
                .wait_timeout(queue, wait)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(mailbox: &Mailbox, slots: &[&str], commit: bool) -> mpsc::Receiver<Vec<InstallReport>> {
        let components = slots
            .iter()
            .map(|&slot| (slot.to_owned(), Vec::new().into()))
            .collect();
        mailbox.submit(components, "test", commit).unwrap()
    }

    #[test]
    fn the_latest_note_for_a_slot_wins() {
        let mailbox = Mailbox::new();
        let first = job(&mailbox, &["a"], true);
        let checked = job(&mailbox, &["a"], false);
        let other = job(&mailbox, &["a", "b"], true);
        let second = job(&mailbox, &["a"], true);
        let verdict =
            |reports: &mpsc::Receiver<Vec<InstallReport>>| reports.try_recv().ok().map(|r| r[0].verdict);
        assert_eq!(verdict(&first), Some(Verdict::Superseded));
        for waits in [&checked, &other, &second] {
            assert_eq!(verdict(waits), None);
        }
        assert!(mailbox.supersedes("b"));
        for _ in 0..3 {
            assert!(matches!(mailbox.next(), Work::Install(_)));
        }
        assert!(!mailbox.supersedes("a"));
    }

    #[test]
    fn events_are_answered_by_one_look_when_they_end() {
        let mailbox = Mailbox::new();
        let start = Instant::now();
        mailbox.touch();
        mailbox.touch();
        assert!(matches!(mailbox.next(), Work::Look { all: false }));
        assert!(start.elapsed() >= QUIET);
        assert_eq!(mailbox.queue().touched, None);
        mailbox.look_at_all();
        assert!(matches!(mailbox.next(), Work::Look { all: true }));
    }

    #[test]
    fn names_that_are_none_are_refused_and_a_closed_box_answers_nobody() {
        let mailbox = Mailbox::new();
        assert!(
            mailbox
                .submit(vec![("../a".into(), Vec::new().into())], "test", true)
                .is_err()
        );
        let waits = job(&mailbox, &["a"], true);
        mailbox.close();
        assert!(waits.recv().is_err());
        assert!(matches!(mailbox.next(), Work::Stop));
        assert!(job(&mailbox, &["a"], true).recv().is_err());
    }
}
