//! What the host keeps beside one instance: its limits, its clock, its handles, its log.

use std::{sync::Arc, time::Duration};

use wasmtime::{
    ResourceLimiter, Store, UpdateDeadline,
    component::{Resource, ResourceTable},
};

use super::{
    Limits,
    grants::Grants,
    log::PluginLog,
    runtime::{self, TICK},
};

/// Handles (of the guest's and of the host's resources) that may live at a time in one instance.
const MAX_HANDLES: usize = 1_000;

/// The data of a plugin's store.
pub(super) struct HostState {
    /// The host's resources that the guest holds handles to.
    pub table: ResourceTable,
    /// Memory and tables.
    pub limiter: Limiter,
    /// Time.
    pub clock: CallClock,
    /// Where `log.write` goes.
    pub log: Arc<PluginLog>,
    /// Whether `credential.reveal` answers.
    pub reveal: bool,
    /// Bytes of guest data that the host holds for the guest, and how many it may.
    retained: (usize, usize),
}

/// A fault of the guest's in a call of the host: it ends the session. The texts hold no guest data.
#[derive(Debug, thiserror::Error)]
pub(super) enum GuestFault {
    #[error("it left more data with the host than its {0} KiB (`data_kib`)")]
    Retained(usize),
    #[error("it asked `random` for more than 4096 bytes in one call")]
    Random,
}

/// A store with every limit set. The deadline is set for each call by [`begin_call`].
pub(super) fn new_store(
    limits: &Limits,
    grants: Grants,
    log: &Arc<PluginLog>,
) -> crate::Result<Store<HostState>> {
    let data = limits.data_kib.saturating_mul(1 << 10);
    let mut table = ResourceTable::new();
    table.set_max_capacity(MAX_HANDLES);
    let state = HostState {
        table,
        limiter: Limiter::new((limits.memory_mib as usize) << 20),
        clock: CallClock::new(Duration::from_millis(limits.request_ms)),
        log: Arc::clone(log),
        reveal: grants.reveal_credential,
        retained: (0, data),
    };
    let mut store = Store::new(&runtime::runtime()?.engine, state);
    store.limiter(|state| &mut state.limiter);
    store.set_hostcall_fuel(data);
    store.set_max_component_handles(MAX_HANDLES);
    store.epoch_deadline_callback(|mut store| Ok(store.data_mut().clock.tick()));
    Ok(store)
}

/// Starts the clock of a call that may take `limit`.
pub(super) fn begin_call(store: &mut Store<HostState>, limit: Duration) {
    store.data_mut().clock.begin(limit);
    store.set_epoch_deadline(1);
}

impl HostState {
    /// Accounts for guest data that the host keeps after a call, so that a guest cannot fill the host call by call.
    pub(super) fn retain(&mut self, bytes: usize) -> Result<(), GuestFault> {
        let (used, most) = &mut self.retained;
        *used = used.saturating_add(bytes);
        if *used > *most {
            return Err(GuestFault::Retained(*most >> 10));
        }
        Ok(())
    }

    /// Lends a host value to the guest; [`Self::take`] ends it.
    pub(super) fn lend<T: Send + 'static>(&mut self, value: T) -> wasmtime::Result<Resource<T>> {
        Ok(self.table.push(value)?)
    }

    /// Takes a value out of the table: one that was lent, or one that the guest handed over.
    pub(super) fn take<T: 'static>(&mut self, handle: Resource<T>) -> wasmtime::Result<T> {
        Ok(self.table.delete(handle)?)
    }
}

/// Limits over the whole store; wasmtime's own count each memory apart.
pub(super) struct Limiter {
    memory: usize,
    max_memory: usize,
    /// The growth that was allowed last, should it fail nevertheless.
    pending: usize,
    /// Whether a growth was refused.
    pub refused: bool,
}

impl Limiter {
    fn new(max_memory: usize) -> Self {
        Self {
            memory: 0,
            max_memory,
            pending: 0,
            refused: false,
        }
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let growth = desired.saturating_sub(current);
        if growth > self.max_memory.saturating_sub(self.memory) {
            self.refused = true;
            return Ok(false);
        }
        self.memory += growth;
        self.pending = growth;
        Ok(true)
    }

    fn memory_grow_failed(&mut self, _: wasmtime::Error) -> wasmtime::Result<()> {
        self.memory -= std::mem::take(&mut self.pending);
        Ok(())
    }

    fn table_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        Ok(desired <= runtime::MAX_TABLE_ELEMENTS)
    }

    fn instances(&self) -> usize {
        runtime::MAX_CORE_INSTANCES as usize
    }

    fn tables(&self) -> usize {
        runtime::MAX_TABLES as usize
    }

    fn memories(&self) -> usize {
        runtime::MAX_MEMORIES as usize
    }
}

/// Which time ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Overdue {
    /// The call's.
    Call(Duration),
    /// That of all calls of the request together.
    Request(Duration),
}

/// Measures what a guest uses: the processor time of its calls, not the wall's. On a machine whose cores are all busy
/// a call of a microsecond can be off the processor for longer than its limit, through no fault of its own.
///
/// A call that begins and ends within one tick of the epoch costs nothing here. One that meets a tick is charged that
/// tick and watched from then on; over many short calls the charged ticks sum up to the time that they took.
pub(super) struct CallClock {
    limit: Duration,
    /// Of the thread, when the call met its first tick and its last.
    seen: Option<(Duration, Duration)>,
    spent: Duration,
    total: Duration,
    /// Set when a limit is reached.
    pub overdue: Option<Overdue>,
}

impl CallClock {
    fn new(total: Duration) -> Self {
        Self {
            limit: Duration::ZERO,
            seen: None,
            spent: Duration::ZERO,
            total,
            overdue: None,
        }
    }

    fn begin(&mut self, limit: Duration) {
        self.limit = limit;
        self.seen = None;
    }

    fn tick(&mut self) -> UpdateDeadline {
        self.tick_at(thread_time())
    }

    fn tick_at(&mut self, now: Duration) -> UpdateDeadline {
        let first = match self.seen {
            None => {
                self.spent += TICK;
                now
            }
            Some((first, last)) => {
                self.spent += now.saturating_sub(last);
                first
            }
        };
        self.seen = Some((first, now));
        let call = self.limit.saturating_sub(now.saturating_sub(first));
        let request = self.total.saturating_sub(self.spent);
        if call.is_zero() {
            self.overdue = Some(Overdue::Call(self.limit));
        } else if request.is_zero() {
            self.overdue = Some(Overdue::Request(self.total));
        } else {
            let ticks = call.min(request).as_nanos().div_ceil(TICK.as_nanos());
            return UpdateDeadline::Continue(u64::try_from(ticks).unwrap_or(u64::MAX));
        }
        UpdateDeadline::Interrupt
    }
}

/// Processor time of the calling thread.
fn thread_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid place for the answer, and the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn continues(update: UpdateDeadline) -> Option<u64> {
        match update {
            UpdateDeadline::Continue(ticks) => Some(ticks),
            _ => None,
        }
    }

    #[test]
    fn a_call_is_overdue_by_its_own_time_and_not_by_the_walls() {
        let mut clock = CallClock::new(ms(1_000));
        clock.begin(ms(5));
        assert_eq!(
            continues(clock.tick_at(ms(100))),
            Some(5),
            "the first tick starts the watch"
        );
        assert_eq!(
            continues(clock.tick_at(ms(102))),
            Some(3),
            "5 ms on the wall, 2 at work"
        );
        assert_eq!(continues(clock.tick_at(ms(102))), Some(3), "not at work at all");
        assert_eq!(continues(clock.tick_at(ms(105))), None);
        assert_eq!(clock.overdue, Some(Overdue::Call(ms(5))));
    }

    #[test]
    fn short_calls_sum_up_to_the_limit_of_the_request() {
        let mut clock = CallClock::new(ms(3));
        for now in [10, 20] {
            clock.begin(ms(5));
            assert!(continues(clock.tick_at(ms(now))).is_some());
        }
        clock.begin(ms(5));
        assert_eq!(continues(clock.tick_at(ms(30))), None);
        assert_eq!(clock.overdue, Some(Overdue::Request(ms(3))));
    }

    #[test]
    fn memory_is_limited_over_all_memories() {
        let mut limiter = Limiter::new(1 << 20);
        assert!(limiter.memory_growing(0, 1 << 19, None).unwrap());
        assert!(limiter.memory_growing(0, 1 << 19, None).unwrap());
        assert!(!limiter.refused);
        assert!(!limiter.memory_growing(1 << 19, (1 << 19) + 65_536, None).unwrap());
        assert!(limiter.refused);
    }

    #[test]
    fn a_growth_that_failed_is_not_counted() {
        let mut limiter = Limiter::new(1 << 20);
        assert!(limiter.memory_growing(0, 1 << 20, None).unwrap());
        limiter
            .memory_grow_failed(wasmtime::Error::msg("no memory"))
            .unwrap();
        assert!(limiter.memory_growing(0, 1 << 20, None).unwrap());
    }
}
