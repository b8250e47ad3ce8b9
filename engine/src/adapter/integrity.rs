//! What the registry counts, and whether its books balance.

use std::collections::HashSet;

use super::{
    lease::Claim,
    state::State,
    tiers::{Budget, Device},
};

/// What the registry holds and has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AdapterStats {
    /// Registered names.
    pub registered: usize,
    /// Adapters on the device.
    pub resident: usize,
    /// Adapters in host memory.
    pub on_host: usize,
    /// Bytes of the device budget: in use, reserved, or being freed.
    pub device_bytes: usize,
    /// The same of the host budget.
    pub host_bytes: usize,
    /// Leases that were given out and not given back.
    pub leases: usize,
    /// Leases among them whose adapter is still loading.
    pub loading: usize,
    /// Adapters read from their files.
    pub reads: u64,
    /// Layouts begun for the device.
    pub layouts: u64,
    /// Adapters evicted from the device to make room.
    pub device_evictions: u64,
    /// Adapters evicted from host memory to make room.
    pub host_evictions: u64,
    /// Loads that failed.
    pub failures: u64,
    /// Access checks that passed at a source.
    pub access_checks: u64,
}

impl State {
    pub(super) fn stats(&self) -> AdapterStats {
        let contents = self.tiers.contents.values();
        let waiting: usize = contents.clone().map(|content| content.waiting.len()).sum();
        AdapterStats {
            registered: self.names.len(),
            resident: contents
                .clone()
                .filter(|content| matches!(content.device, Device::Resident(_)))
                .count(),
            on_host: contents.filter(|content| content.host.is_some()).count(),
            device_bytes: self.tiers.device.used,
            host_bytes: self.tiers.host.used,
            leases: self.leases,
            loading: waiting + self.slots.values().map(|slot| slot.waiting.len()).sum::<usize>(),
            reads: self.counters.reads,
            layouts: self.counters.layouts,
            device_evictions: self.tiers.device.evictions,
            host_evictions: self.tiers.host.evictions,
            failures: self.counters.failures,
            access_checks: self.counters.access_checks,
        }
    }

    /// Compares every sum with what it is the sum of.
    pub(super) fn check(&self) -> Result<(), String> {
        let tiers = &self.tiers;
        let (mut host, mut device, mut ready) = (0, 0, 0);
        for (generation, content) in &tiers.contents {
            let resident = match &content.device {
                Device::Resident(adapter) => Some(adapter.bytes),
                Device::LayingOut | Device::Absent => None,
            };
            let on_host = content.host.as_ref().map(|weights| weights.bytes());
            host += on_host.unwrap_or(0);
            device += resident.unwrap_or(0);
            ready += content.leases;
            ensure(resident.is_some() || content.leases == 0, || {
                format!("{generation} is leased and not there")
            })?;
            ensure(resident.is_some() || on_host.is_some(), || {
                format!("{generation} is kept and nowhere")
            })?;
            ensure(
                content.queued.is_some() == tiers.queue.contains(generation),
                || format!("{generation} is wrong about the queue"),
            )?;
            let in_work = !content.waiting.is_empty() || matches!(content.device, Device::LayingOut);
            ensure(content.idle_host == on_host.filter(|_| !in_work), || {
                format!("{generation} is wrongly listed on the host")
            })?;
            ensure(
                content.idle_device == resident.filter(|_| content.leases == 0),
                || format!("{generation} is wrongly listed on the device"),
            )?;
            ensure(in_work || content.leases > 0 || !content.slots.is_empty(), || {
                format!("{generation} is kept for nobody")
            })?;
            for cell in &content.waiting {
                let (claim, ready) = cell.claim();
                let right = matches!(claim, Claim::Content(claimed) if claimed == *generation) && !ready;
                ensure(right, || {
                    format!("{generation} is waited for by a lease that is not")
                })?;
            }
        }
        for (what, budget, sum) in [("host", &tiers.host, host), ("device", &tiers.device, device)] {
            check_budget(what, budget, sum)?;
        }
        let loading = self.stats().loading;
        ensure(ready + loading <= self.leases, || {
            format!(
                "{ready} leases are ready and {loading} loading, {} were given out",
                self.leases
            )
        })?;
        let named: usize = self.slots.values().map(|slot| slot.names).sum();
        ensure(named == self.names.len(), || {
            format!("{} names point to {named} places", self.names.len())
        })?;
        let queue: HashSet<_> = tiers.queue.iter().collect();
        ensure(queue.len() == tiers.queue.len(), || {
            "the queue holds one adapter twice".to_owned()
        })
    }
}

fn check_budget(what: &str, budget: &Budget, sum: usize) -> Result<(), String> {
    let Budget {
        used,
        reserved,
        dying,
        idle,
        idle_bytes,
        ..
    } = budget;
    ensure(idle.is_empty() == (*idle_bytes == 0), || {
        format!("{what}: {idle_bytes} idle bytes of {}", idle.len())
    })?;
    ensure(idle_bytes + dying + reserved <= *used, || {
        format!("{what}: {idle_bytes} idle, {dying} dying and {reserved} reserved bytes, {used} are counted")
    })?;
    ensure(sum + dying + reserved == *used, || {
        format!("{what}: {sum} bytes are there, {dying} dying and {reserved} reserved, {used} are counted")
    })
}

fn ensure(right: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if right { Ok(()) } else { Err(otherwise()) }
}
