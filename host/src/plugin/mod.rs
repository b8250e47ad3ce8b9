//! The plugin host: everything Wasm.
//!
//! A file climbs the rungs of a ladder (`load`, with `contract`, `snapshot` and `cache`; see [`Rung`]) and becomes a
//! [`Plugin`] in a slot. The plugins of all slots make a [`Pipeline`], an immutable value behind one atomic pointer: a
//! request pins it when its head has arrived and keeps it to its last byte. Sessions ([`AuthSession`],
//! [`ProtocolSession`], [`StopSession`]) are fresh instances of a plugin for one request, with their limits (`store`,
//! `call`). `host` owns the slots, `reconcile` changes them.

mod background;
pub mod bindings;
mod cache;
mod call;
mod config;
mod contract;
mod files;
mod grants;
mod imports;
mod load;
mod log;
#[allow(clippy::module_inception, reason = "the type of that name; the folder is about all of them")]
mod plugin;
mod report;
pub mod resources;
mod runtime;
mod session;
mod snapshot;
mod store;

use std::{path::Path, sync::Arc};

pub use config::{Limits, PluginsConfig, SlotConfig};
pub use contract::{MAX_COMPONENT_BYTES, Role};
pub use grants::Grants;
pub use plugin::Plugin;
pub use report::{CheckReport, InstallReport, Rung, RungReport, Verdict};
pub use runtime::{MAX_MEMORY_MIB, instances};
pub use session::{AuthSession, Matcher, ProtocolSession, StopSession};

use crate::error::Result;

/// What a request runs through: an immutable snapshot of all slots. Pinned by each request to its last byte.
pub struct Pipeline {}

impl Pipeline {
    /// Counts up with each commit.
    pub fn generation(&self) -> u64 {
        todo!()
    }
    /// The auth plugin; none is a denial.
    pub fn auth(&self) -> Option<&Arc<Plugin>> {
        todo!()
    }
    /// The stop plugin.
    pub fn stop(&self) -> Option<&Arc<Plugin>> {
        todo!()
    }
    /// Who serves a route.
    pub fn route(&self, method: &str, path: &str) -> Routed<'_> {
        let _ = (method, path);
        todo!()
    }
    /// All plugins: for the banner and `heddle plugin list`.
    pub fn plugins(&self) -> Vec<&Arc<Plugin>> {
        todo!()
    }
}

/// What [`Pipeline::route`] found.
pub enum Routed<'a> {
    /// A plugin serves it.
    Plugin(&'a Arc<Plugin>),
    /// The path is served, with these methods.
    WrongMethod(Vec<String>),
    /// Nobody serves the path.
    Unknown,
}

/// The plugin host: the registry and what changes it.
#[derive(Clone)]
pub struct PluginHost {}

impl PluginHost {
    /// Loads all slots, or the last good set from `state` for slots whose component is broken, and starts watching.
    pub fn start(config: &PluginsConfig, state: &Path) -> Result<Self> {
        let _ = (config, state);
        todo!()
    }
    /// The pipeline for a new request.
    pub fn pin(&self) -> Arc<Pipeline> {
        todo!()
    }
    /// Looks at every slot's source again (SIGHUP).
    pub fn reload_all(&self) {
        todo!()
    }
}
