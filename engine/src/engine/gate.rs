//! Who may come in: the bounded queue and the limits of tenants.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    error::{Error, Result},
    ids::Tenant,
};

/// Counts the requests that wait and the sequences of each tenant.
#[derive(Debug)]
pub(super) struct Gate {
    max_waiting: usize,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    waiting: usize,
    /// Sequences that wait or run. A tenant without one has no entry.
    tenants: HashMap<Tenant, u32>,
    /// When a request last left the queue while others waited, and how long it takes from one to the next.
    left: Option<Instant>,
    interval: Duration,
}

/// A place in the queue; it is free again when this is dropped.
#[derive(Debug)]
pub(super) struct QueuePlace(Arc<Gate>);

/// The right to have one sequence; given back when this is dropped.
#[derive(Debug)]
pub(super) struct Permit {
    gate: Arc<Gate>,
    tenant: Tenant,
}

impl Gate {
    pub(super) fn new(max_waiting: usize) -> Arc<Self> {
        Arc::new(Self {
            max_waiting,
            counts: Mutex::default(),
        })
    }

    /// Lets a request of so many sequences in, if the queue has a place and the tenant, whose limit is `limit`, may have so
    /// many more.
    pub(super) fn enter(
        self: &Arc<Self>,
        tenant: &Tenant,
        sequences: u32,
        limit: Option<u32>,
    ) -> Result<(QueuePlace, Vec<Permit>)> {
        let mut counts = self.counts();
        let retry_after = counts.retry_after();
        if counts.waiting >= self.max_waiting {
            return Err(Error::Overloaded {
                waiting: counts.waiting,
                retry_after,
            });
        }
        let of_tenant = counts.tenants.get(tenant).copied().unwrap_or(0);
        if let Some(limit) = limit {
            if sequences > limit {
                return Err(Error::InvalidRequest {
                    parameter: "choices",
                    message: format!("asks for {sequences} at a time, and this tenant may have {limit}"),
                });
            }
            if of_tenant.saturating_add(sequences) > limit {
                return Err(Error::TenantLimit { limit, retry_after });
            }
        }
        counts.tenants.insert(tenant.clone(), of_tenant + sequences);
        counts.waiting += 1;
        let permit = |_| Permit {
            gate: self.clone(),
            tenant: tenant.clone(),
        };
        Ok((QueuePlace(self.clone()), (0..sequences).map(permit).collect()))
    }

    /// Requests that wait.
    pub(super) fn waiting(&self) -> usize {
        self.counts().waiting
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        // Counts are whole after every statement that changes them, so a panic elsewhere does not spoil them.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    /// Seconds in which a quarter of the queue is likely to be gone, so that those who are refused do not all meet again.
    fn retry_after(&self) -> u32 {
        let wait = self.interval * (self.waiting as u32 / 4 + 1);
        (wait.as_secs_f64().ceil() as u32).clamp(1, 60)
    }

    fn leave(&mut self) {
        self.waiting -= 1;
        let now = Instant::now();
        if let Some(left) = self.left {
            self.interval = (self.interval * 7 + (now - left)) / 8;
        }
        self.left = (self.waiting > 0).then_some(now);
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        self.0.counts().leave();
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut counts = self.gate.counts();
        if let Some(count) = counts.tenants.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                counts.tenants.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> Tenant {
        Tenant(name.to_owned())
    }

    #[test]
    fn the_queue_is_bounded_and_places_come_back() {
        let gate = Gate::new(2);
        let first = gate.enter(&tenant("a"), 1, None).unwrap();
        let _second = gate.enter(&tenant("b"), 1, None).unwrap();
        let Err(Error::Overloaded {
            waiting: 2,
            retry_after,
        }) = gate.enter(&tenant("a"), 1, None)
        else {
            panic!("a third request came in");
        };
        assert!((1..=60).contains(&retry_after));
        let (place, permits) = first;
        drop(place);
        assert_eq!(gate.waiting(), 1);
        assert!(gate.enter(&tenant("a"), 1, None).is_ok());
        drop(permits);
        assert_eq!(gate.waiting(), 1);
    }

    #[test]
    fn a_tenant_has_at_most_its_limit() {
        let gate = Gate::new(100);
        let (_place, mut permits) = gate.enter(&tenant("a"), 2, Some(3)).unwrap();
        assert!(matches!(
            gate.enter(&tenant("a"), 2, Some(3)),
            Err(Error::TenantLimit { limit: 3, .. })
        ));
        assert!(
            gate.enter(&tenant("b"), 2, Some(3)).is_ok(),
            "others are not concerned"
        );
        permits.pop();
        let (place, more) = gate.enter(&tenant("a"), 2, Some(3)).unwrap();
        drop((permits, more, place));
        assert!(gate.enter(&tenant("a"), 3, Some(3)).is_ok());
        assert!(matches!(
            gate.enter(&tenant("a"), 4, Some(3)),
            Err(Error::InvalidRequest {
                parameter: "choices",
                ..
            })
        ));
    }

    #[test]
    fn those_that_left_are_forgotten() {
        let gate = Gate::new(10);
        for number in 0..100 {
            drop(gate.enter(&tenant(&number.to_string()), 1, Some(1)).unwrap());
        }
        assert_eq!((gate.waiting(), gate.counts().tenants.len()), (0, 0));
    }
}
