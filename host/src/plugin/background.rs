//! Work that must not disturb serving: compiling, configuring, testing. One thread at a time, of low priority, watched.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Condvar, Mutex, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

/// How nice the thread is: about a tenth of a core that others want, all of one that is idle.
const NICE: libc::c_int = 10;

/// Whether the thread is at work.
static BUSY: Mutex<bool> = Mutex::new(false);
static IDLE: Condvar = Condvar::new();

/// Why there is no result.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Failed {
    /// Earlier work holds the thread.
    Busy,
    /// It takes too long. It goes on in the background, since a compiler cannot be stopped, but nobody waits for it.
    Overdue,
    /// It panicked.
    Panicked,
}

/// Runs `work` on the background thread: waits at most for `limit` until it is free, and as long for the result.
pub(super) fn run<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failed> {
    let busy = BUSY.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut busy, wait) = IDLE
        .wait_timeout_while(busy, limit, |busy| *busy)
        .unwrap_or_else(PoisonError::into_inner);
    if wait.timed_out() {
        return Err(Failed::Busy);
    }
    *busy = true;
    drop(busy);
    let (done, result) = mpsc::channel();
    let spawned = thread::Builder::new()
        .name("heddle-compile".into())
        .stack_size(8 << 20)
        .spawn(move || {
            lower_priority();
            // A component is untrusted input to the compiler and the snapshotter; a panic in them is a refusal.
            let outcome = catch_unwind(AssertUnwindSafe(work));
            release();
            // Nobody may be waiting any more.
            let _ = done.send(outcome);
        });
    if spawned.is_err() {
        release();
        return Err(Failed::Busy);
    }
    match result.recv_timeout(limit) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(_)) => Err(Failed::Panicked),
        Err(RecvTimeoutError::Timeout) => Err(Failed::Overdue),
        Err(RecvTimeoutError::Disconnected) => Err(Failed::Panicked),
    }
}

fn release() {
    *BUSY.lock().unwrap_or_else(PoisonError::into_inner) = false;
    IDLE.notify_one();
}

fn lower_priority() {
    // SAFETY: a plain system call. On Linux the "process" 0 is the calling thread.
    if unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) } != 0 {
        tracing::debug!("the compiling thread keeps its priority");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_nice_and_a_panic_is_an_answer() {
        let limit = Duration::from_secs(20);
        // SAFETY: a plain system call.
        let nice = run(limit, || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) });
        assert_eq!(nice, Ok(NICE));
        assert_eq!(
            run(limit, || -> () { panic!("a panic that the test wants") }),
            Err(Failed::Panicked)
        );
        assert_eq!(run(limit, || 7), Ok(7), "the thread is free again");
    }
}
