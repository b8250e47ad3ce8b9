//! The threads that compute: one fork and join for each operation that is worth it.
//!
//! A step is some two hundred forks, a few microseconds apart, so a worker that has nothing to do spins for a while before it
//! sleeps. The thread that forks takes its share of the tasks and waits only for workers that have begun: one that the
//! operating system keeps off its core delays nobody.

use std::{
    cell::UnsafeCell,
    marker::PhantomData,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle, Thread},
    time::{Duration, Instant},
};

/// How long a worker spins for the next job.
const SPIN: Duration = Duration::from_micros(100);

/// Of [`Shared::state`]: whether workers may still join the job.
const OPEN: u64 = 1 << 31;
/// Of the same: the number of the job, in steps of this.
const JOB: u64 = 1 << 32;
/// Of the same: how many workers are in the job.
const INSIDE: u64 = OPEN - 1;

/// A pool of threads. Dropping it ends them.
pub(super) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<(JoinHandle<()>, Thread)>,
}

/// Rows cut into ranges.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut {
    rows: usize,
    each: usize,
}

impl Cut {
    /// Ranges of so many rows, the last one of what is left.
    pub(super) fn of(rows: usize, each: usize) -> Self {
        Self { rows, each }
    }

    /// How many ranges.
    pub(super) fn pieces(self) -> usize {
        self.rows.div_ceil(self.each)
    }

    /// One of them.
    pub(super) fn piece(self, index: usize) -> Range<usize> {
        index * self.each..self.rows.min((index + 1) * self.each)
    }
}

/// A job: what is called with the number of each task.
type Work<'a> = &'a (dyn Fn(usize) + Sync);

struct Shared {
    /// Number of the job, whether it is open, workers inside.
    state: AtomicU64,
    /// The job; written only while none is open and nobody is inside.
    work: UnsafeCell<Option<Work<'static>>>,
    tasks: AtomicUsize,
    next: AtomicUsize,
    panicked: AtomicBool,
    sleeping: Vec<AtomicBool>,
    closing: AtomicBool,
}

// SAFETY: `work` is written by the one thread that has `&mut Pool`, before it opens the job (release) and after everyone has
// left it (acquire); workers read it only after they entered an open job (acquire).
unsafe impl Sync for Shared {}

impl Pool {
    /// A pool of so many threads, the calling one included.
    pub(super) fn new(threads: usize) -> std::io::Result<Self> {
        let workers = threads.max(1) - 1;
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            work: UnsafeCell::new(None),
            tasks: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            sleeping: (0..workers).map(|_| AtomicBool::new(false)).collect(),
            closing: AtomicBool::new(false),
        });
        let mut pool = Self {
            shared,
            workers: Vec::with_capacity(workers),
        };
        for index in 0..workers {
            let shared = pool.shared.clone();
            let handle = thread::Builder::new()
                .name(format!("cpu-{}", index + 1))
                .spawn(move || shared.serve(index))?;
            let thread = handle.thread().clone();
            pool.workers.push((handle, thread));
        }
        Ok(pool)
    }

    /// How many threads compute.
    pub(super) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Cuts rows into ranges for [`run`](Self::run): one if they are not worth a fork, by the multiplications or the like that
    /// each of them takes.
    pub(super) fn cut(&self, rows: usize, work: usize) -> Cut {
        /// A fork and a join take about as long as this many.
        const WORTH_A_FORK: usize = 50_000;
        let pieces = (rows * work / WORTH_A_FORK).clamp(1, 4 * self.threads());
        Cut {
            rows,
            each: rows.div_ceil(pieces).max(1),
        }
    }

    /// Calls `work` with each number below `tasks`, on all threads, and returns when all are done.
    ///
    /// # Panics
    /// If `work` did.
    pub(super) fn run(&mut self, tasks: usize, work: impl Fn(usize) + Sync) {
        if tasks <= 1 || self.workers.is_empty() {
            (0..tasks).for_each(work);
            return;
        }
        let shared = &*self.shared;
        let work: Work<'_> = &work;
        // SAFETY: nobody is inside (see the end of this function), so nobody reads it; and nobody is when this function returns, by
        // a panic too, so that the longer lifetime is never made use of.
        unsafe { *shared.work.get() = Some(std::mem::transmute::<Work<'_>, Work<'static>>(work)) };
        shared.tasks.store(tasks, Ordering::Relaxed);
        shared.next.store(0, Ordering::Relaxed);
        let job = (shared.state.load(Ordering::Relaxed) & !(JOB - 1)).wrapping_add(JOB);
        shared.state.store(job | OPEN, Ordering::SeqCst);
        for ((_, thread), sleeping) in self.workers.iter().zip(&shared.sleeping) {
            if sleeping.load(Ordering::SeqCst) {
                thread.unpark();
            }
        }
        shared.take_tasks(work);
        shared.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0u32;
        while shared.state.load(Ordering::Acquire) & INSIDE != 0 {
            relax(&mut spins);
        }
        // SAFETY: closed, and nobody is inside.
        unsafe { *shared.work.get() = None };
        assert!(
            !shared.panicked.swap(false, Ordering::Relaxed),
            "a kernel panicked"
        );
    }
}

/// A slice whose parts are written by different tasks.
pub(super) struct Parts<'a, T> {
    data: *mut T,
    len: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

impl<T> Clone for Parts<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Parts<'_, T> {}

// SAFETY: it is a `&mut [T]` whose parts are handed out one by one.
unsafe impl<T: Send> Send for Parts<'_, T> {}
// SAFETY: the same; no part is handed out twice, see `part`.
unsafe impl<T: Send> Sync for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    pub(super) fn new(slice: &'a mut [T]) -> Self {
        Self {
            data: slice.as_mut_ptr(),
            len: slice.len(),
            lifetime: PhantomData,
        }
    }

    /// One part.
    ///
    /// # Safety
    /// Nobody else has a part that overlaps it.
    #[inline(always)]
    pub(super) unsafe fn part(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: within the slice; the caller sees to the rest.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(range.start), range.len()) }
    }

    /// A pointer to one element, for those who write different fields of it.
    #[inline(always)]
    pub(super) fn pointer(&self, index: usize) -> *mut T {
        assert!(index < self.len);
        // SAFETY: within the slice.
        unsafe { self.data.add(index) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        for (handle, thread) in self.workers.drain(..) {
            thread.unpark();
            // A worker does not panic: it catches what its tasks do.
            let _ = handle.join();
        }
    }
}

impl Shared {
    /// A worker's life.
    fn serve(&self, index: usize) {
        let mut done = 0;
        loop {
            let Some(job) = self.next_job(index, done) else {
                return;
            };
            done = job;
            if !self.enter(job) {
                continue;
            }
            // SAFETY: inside an open job, so it is written and stays.
            if let Some(work) = unsafe { *self.work.get() } {
                self.take_tasks(work);
            }
            self.state.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits for an open job other than `done`; none if the pool closes.
    fn next_job(&self, index: usize, done: u64) -> Option<u64> {
        let is_next = |state: u64| state & OPEN != 0 && state & !(JOB - 1) != done;
        let start = Instant::now();
        let mut spins = 0u32;
        loop {
            let state = self.state.load(Ordering::Acquire);
            if is_next(state) {
                return Some(state & !(JOB - 1));
            }
            if self.closing.load(Ordering::Relaxed) {
                return None;
            }
            relax(&mut spins);
            if !spins.is_multiple_of(64) || start.elapsed() < SPIN {
                continue;
            }
            // Whoever opens a job after this is seen by the check, or sees that this worker sleeps.
            self.sleeping[index].store(true, Ordering::SeqCst);
            while !is_next(self.state.load(Ordering::SeqCst)) && !self.closing.load(Ordering::SeqCst) {
                thread::park();
            }
            self.sleeping[index].store(false, Ordering::SeqCst);
        }
    }

    /// Goes into a job if it is still open.
    fn enter(&self, job: u64) -> bool {
        let join = |state: u64| (state & OPEN != 0 && state & !(JOB - 1) == job).then_some(state + 1);
        self.state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, join)
            .is_ok()
    }

    fn take_tasks(&self, work: Work<'_>) {
        let tasks = self.tasks.load(Ordering::Relaxed);
        let take = || {
            loop {
                let task = self.next.fetch_add(1, Ordering::Relaxed);
                if task >= tasks {
                    return;
                }
                work(task);
            }
        };
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(take)).is_err() {
            // The rest is not worth computing.
            self.next.store(tasks, Ordering::Relaxed);
            self.panicked.store(true, Ordering::Relaxed);
        }
    }
}

/// One turn of a wait that should be short: where it is not, somebody else may need the core.
fn relax(spins: &mut u32) {
    *spins = spins.wrapping_add(1);
    if spins.is_multiple_of(1024) {
        thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_is_done_once_however_the_threads_meet() {
        for threads in [1, 2, 5] {
            let mut pool = Pool::new(threads).unwrap();
            assert_eq!(pool.threads(), threads);
            for round in 0..2000 {
                let tasks = round % 7;
                let counts: Vec<_> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(tasks, |task| {
                    counts[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
                if round % 500 == 0 {
                    thread::sleep(3 * SPIN);
                }
            }
        }
    }

    #[test]
    fn a_panic_in_a_task_is_the_callers_and_the_pool_goes_on() {
        let mut pool = Pool::new(3).unwrap();
        for failing in 0..8 {
            let run = std::panic::AssertUnwindSafe(|| pool.run(8, |task| assert_ne!(task, failing)));
            assert!(std::panic::catch_unwind(run).is_err());
        }
        let sum = AtomicUsize::new(0);
        pool.run(8, |task| {
            sum.fetch_add(task, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 28);
    }
}
