//! A lease keeps an adapter's generation loaded for as long as a request needs it.

use std::{
    fmt, mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{registry::Shared, slots::SlotKey};
use crate::{batch::DeviceAdapter, error::Error, ids::Generation};

/// Where an adapter that was asked for stands.
#[derive(Debug, Clone)]
pub enum LeaseState {
    /// Being fetched, read or laid out, or waiting for room on the device.
    Loading,
    /// On the device.
    Ready(DeviceAdapter),
    /// Could not be had.
    Failed(Error),
}

/// A claim on one generation of an adapter. Cheap to clone; the adapter may be evicted when the last clone is gone.
///
/// The bytes of a [`DeviceAdapter`] are counted for as long as a lease on it lives: whoever takes one out of
/// [`LeaseState::Ready`] keeps the lease until it is done with it.
#[derive(Clone)]
pub struct Lease {
    guard: Arc<Guard>,
}

impl Lease {
    pub(super) fn new(cell: Arc<LeaseCell>, shared: Arc<Shared>) -> Self {
        Self {
            guard: Arc::new(Guard { cell, shared }),
        }
    }

    /// Where it stands now.
    pub fn state(&self) -> LeaseState {
        self.guard.cell.lock().state.clone()
    }

    /// What the request called the adapter.
    pub fn name(&self) -> &str {
        &self.guard.cell.name
    }

    /// The identity of the adapter's content, once it is ready.
    pub fn generation(&self) -> Option<Generation> {
        match &self.guard.cell.lock().state {
            LeaseState::Ready(adapter) => Some(adapter.generation),
            _ => None,
        }
    }

    /// Calls `then` once it is no longer loading: at once if it already is not, else on a loader's thread, which does nothing
    /// else until it returns. It is not called if the last clone of the lease is dropped before.
    pub fn on_settled(&self, then: Box<dyn FnOnce() + Send>) {
        let mut cell = self.guard.cell.lock();
        if matches!(cell.state, LeaseState::Loading) {
            cell.then.push(then);
        } else {
            drop(cell);
            then();
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("name", &self.name())
            .field("state", &self.state())
            .finish()
    }
}

/// Gives the claim back with the last clone.
struct Guard {
    cell: Arc<LeaseCell>,
    shared: Arc<Shared>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.shared.release(&self.cell);
    }
}

/// What is called when a lease is settled.
pub(super) type Callback = Box<dyn FnOnce() + Send>;

/// What a lease and the registry share. The registry's own lock is always taken before the cell's.
pub(super) struct LeaseCell {
    pub(super) name: String,
    cell: Mutex<Cell>,
}

struct Cell {
    state: LeaseState,
    claim: Claim,
    then: Vec<Callback>,
}

/// What the registry keeps for a lease. Changed under the registry's lock only.
#[derive(Clone)]
pub(super) enum Claim {
    /// Nothing: it failed, or was given back.
    None,
    /// A place among those that wait for the adapter to be read.
    Slot(Arc<SlotKey>),
    /// A generation, which it waits for if it is not ready.
    Content(Generation),
}

impl LeaseCell {
    pub(super) fn new(name: &str) -> Arc<Self> {
        let cell = Cell {
            state: LeaseState::Loading,
            claim: Claim::None,
            then: Vec::new(),
        };
        Arc::new(Self {
            name: name.to_owned(),
            cell: Mutex::new(cell),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Cell> {
        // Nothing that can panic runs under this lock.
        self.cell.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_claim(&self, claim: Claim) {
        self.lock().claim = claim;
    }

    /// The claim, and whether the adapter is on the device for it.
    pub(super) fn claim(&self) -> (Claim, bool) {
        let cell = self.lock();
        (cell.claim.clone(), matches!(cell.state, LeaseState::Ready(_)))
    }

    /// The adapter is there. What is pushed into `callbacks` is to be called without a lock.
    pub(super) fn ready(&self, adapter: &DeviceAdapter, callbacks: &mut Vec<Callback>) {
        let mut cell = self.lock();
        cell.state = LeaseState::Ready(adapter.clone());
        cell.claim = Claim::Content(adapter.generation);
        callbacks.append(&mut cell.then);
    }

    /// The adapter cannot be had.
    pub(super) fn fail(&self, error: &Error, callbacks: &mut Vec<Callback>) {
        let mut cell = self.lock();
        cell.state = LeaseState::Failed(error.clone());
        cell.claim = Claim::None;
        callbacks.append(&mut cell.then);
    }

    /// Takes the claim back, and whether it was ready. Under the registry's lock, while the registry still has the adapter: so this
    /// hold on it is not the last.
    pub(super) fn close(&self) -> (Claim, bool) {
        let mut cell = self.lock();
        let state = mem::replace(&mut cell.state, LeaseState::Loading);
        (
            mem::replace(&mut cell.claim, Claim::None),
            matches!(state, LeaseState::Ready(_)),
        )
    }
}
