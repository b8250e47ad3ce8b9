//! A component in its slot.

use std::{fmt, sync::Arc};

use tokio::sync::Semaphore;
use wasmtime::component::InstancePre;

use super::{
    bindings::exports::heddle::plugin::{auth, lifecycle, protocol, stop},
    config::Limits,
    contract::Role,
    grants::Grants,
    log::PluginLog,
    store::HostState,
};

/// What holds for every component of a slot.
#[derive(Debug)]
pub(super) struct Settings {
    /// The slot's name.
    pub slot: String,
    /// What is handed to `configure`: a JSON object.
    pub config: String,
    pub grants: Grants,
    pub limits: Limits,
    /// The roles that are used, each of which a component must have; none is whatever it has.
    pub roles: Option<Vec<Role>>,
    /// Instances at work, over all components that the slot has had.
    pub permits: Arc<Semaphore>,
}

/// A route that a plugin serves.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Route {
    pub method: String,
    pub path: String,
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.path)
    }
}

/// A component in a slot, compiled, configured, ready to be instantiated.
pub struct Plugin {
    pub(super) settings: Arc<Settings>,
    pub(super) digest: String,
    pub(super) bytes: usize,
    pub(super) name: String,
    pub(super) version: String,
    pub(super) roles: Vec<Role>,
    pub(super) routes: Vec<Route>,
    /// Why `configure` has to run in each instance; none if they start from a snapshot.
    pub(super) unconfigured: Option<String>,
    pub(super) pre: InstancePre<HostState>,
    pub(super) exports: Exports,
    pub(super) log: Arc<PluginLog>,
}

/// Where the component's functions are.
pub(super) struct Exports {
    pub lifecycle: lifecycle::GuestIndices,
    pub auth: Option<auth::GuestIndices>,
    pub protocol: Option<protocol::GuestIndices>,
    pub stop: Option<stop::GuestIndices>,
}

impl Plugin {
    /// The slot: `openai`.
    pub fn slot(&self) -> &str {
        &self.settings.slot
    }

    /// SHA-256 of the component, in hexadecimal.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Size of the component in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The name that the component gives itself: `auth-token`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The version that the component gives itself.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// What it can do.
    pub fn roles(&self) -> &[Role] {
        &self.roles
    }

    /// What it may do.
    pub fn grants(&self) -> Grants {
        self.settings.grants
    }

    /// The routes that it serves: `POST /v1/chat/completions`.
    pub fn routes(&self) -> impl Iterator<Item = String> + '_ {
        self.routes.iter().map(Route::to_string)
    }

    /// Why `configure` runs in each instance; none if each starts from a configured snapshot.
    pub fn unconfigured(&self) -> Option<&str> {
        self.unconfigured.as_deref()
    }

    pub(super) fn has(&self, role: Role) -> bool {
        self.roles.contains(&role)
    }
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plugin")
            .field("slot", &self.slot())
            .field("digest", &self.digest)
            .finish_non_exhaustive()
    }
}
