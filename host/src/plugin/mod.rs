//! The plugin host: everything Wasm.

pub mod bindings;
mod config;
pub mod resources;
mod session;

use std::{path::Path, sync::Arc};

pub use config::{Limits, PluginsConfig, SlotConfig};
pub use session::{AuthSession, Matcher, ProtocolSession, StopSession};

use crate::error::Result;

/// A component in a slot, compiled, configured, ready to be instantiated.
pub struct Plugin {}

impl Plugin {
    /// The slot: `openai`.
    pub fn slot(&self) -> &str {
        todo!()
    }
    /// SHA-256 of the component, in hexadecimal.
    pub fn digest(&self) -> &str {
        todo!()
    }
    /// The name that the component gives itself: `auth-token`.
    pub fn name(&self) -> &str {
        todo!()
    }
    /// The version that the component gives itself.
    pub fn version(&self) -> &str {
        todo!()
    }
    /// The routes that it serves: `POST /v1/chat/completions`.
    pub fn routes(&self) -> impl Iterator<Item = String> + '_ {
        std::iter::empty()
    }
}

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
