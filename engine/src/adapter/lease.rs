//! A lease keeps an adapter's generation loaded for as long as a request needs it.

use crate::{batch::DeviceAdapter, error::Error};

/// Where an adapter that was asked for stands.
#[derive(Debug, Clone)]
pub enum LeaseState {
    /// Being fetched, read or laid out.
    Loading,
    /// On the device.
    Ready(DeviceAdapter),
    /// Could not be had.
    Failed(Error),
}

/// A claim on one generation of an adapter. Cheap to clone; the adapter may be evicted when the last clone is gone.
#[derive(Debug, Clone)]
pub struct Lease {}

impl Lease {
    /// Where it stands now.
    pub fn state(&self) -> LeaseState {
        todo!()
    }

    /// Calls `then` once it is no longer loading: at once if it already is not. Called on a loader's thread.
    pub fn on_settled(&self, then: Box<dyn FnOnce() + Send>) {
        let _ = then;
        todo!()
    }
}
