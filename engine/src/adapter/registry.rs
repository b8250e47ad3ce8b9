//! The registry: names, what they stand for, and what of it is loaded.

use std::sync::Arc;

use super::Lease;
use crate::{
    batch::AdapterLoader,
    error::Result,
    hub::{Source, Sources},
    ids::Generation,
    model::Module,
};

/// Limits of the registry.
#[derive(Debug, Clone)]
pub struct AdapterLimits {
    /// Bytes of adapters laid out on the device.
    pub device_bytes: usize,
    /// Bytes of adapters in host memory.
    pub host_bytes: usize,
    /// The highest rank taken.
    pub max_rank: usize,
    /// Threads that fetch and read.
    pub loaders: usize,
    /// Seconds for which a failure answers at once.
    pub negative_ttl: std::time::Duration,
    /// Seconds for which a caller's access to a remote adapter is taken as checked.
    pub access_ttl: std::time::Duration,
    /// Whether requests may name adapters that nobody registered, by their source.
    pub dynamic: bool,
}

/// Which adapter a request asks for.
#[derive(Debug, Clone)]
pub struct AdapterRequest {
    /// A registered name, or an id at `source`.
    pub id: String,
    /// `hub`, `local`, `s3`, `wheel`; none looks for a registered name, then at the default source.
    pub source: Option<String>,
    /// The credential for the source: the caller's own.
    pub credential: Option<String>,
}

/// A registered adapter.
#[derive(Debug, Clone)]
pub struct AdapterInfo {
    /// Its name.
    pub name: String,
    /// Where it comes from.
    pub source: Source,
    /// Its identity, once it has been read.
    pub generation: Option<Generation>,
    /// Seconds since 1970-01-01 UTC at which the name was registered.
    pub created: u64,
    /// Whether it is on the device.
    pub resident: bool,
}

/// The registry. Cheap to clone.
#[derive(Clone)]
pub struct AdapterRegistry {}

impl AdapterRegistry {
    /// An empty registry for a model with these modules.
    pub fn new(
        modules: Vec<Module>,
        loader: Arc<dyn AdapterLoader>,
        sources: Arc<Sources>,
        limits: AdapterLimits,
    ) -> Self {
        let _ = (modules, loader, sources, limits);
        todo!()
    }

    /// Gives a name to a source. The same source again changes nothing; another replaces it for requests to come.
    pub fn register(&self, name: &str, source: Source) -> Result<()> {
        let _ = (name, source);
        todo!()
    }

    /// Takes a name away. Running requests keep their lease. False if there was none.
    pub fn unregister(&self, name: &str) -> bool {
        let _ = name;
        todo!()
    }

    /// The registered adapters, by name.
    pub fn list(&self) -> Vec<AdapterInfo> {
        todo!()
    }

    /// Whether `name` is registered.
    pub fn contains(&self, name: &str) -> bool {
        let _ = name;
        todo!()
    }

    /// A lease on what `request` names. Returns at once: loading goes on in the background.
    ///
    /// # Errors
    /// [`crate::Error::UnknownAdapter`], or the recent failure of the same adapter.
    pub fn lease(&self, request: &AdapterRequest) -> Result<Lease> {
        let _ = request;
        todo!()
    }
}
