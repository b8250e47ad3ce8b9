//! The `[plugins]` part of `heddle.toml`.

use std::{collections::BTreeMap, path::PathBuf};

use serde::Deserialize;

use super::Role;

/// Slots by name, and what holds for all of them. The default slots are `openai`, `auth` (the component `auth-token`)
/// and `stop`, each from the binary.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PluginsConfig {
    /// A folder that is watched: `NAME.wasm` in it replaces the component of the slot `NAME`.
    pub directory: Option<PathBuf>,
    /// Live generations of a slot that streams may keep.
    pub max_live_generations: usize,
    /// The slots.
    pub slots: BTreeMap<String, SlotConfig>,
}

impl Default for PluginsConfig {
    fn default() -> Self {
        Self {
            directory: None,
            max_live_generations: 8,
            slots: BTreeMap::new(),
        }
    }
}

/// One slot.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SlotConfig {
    /// A component that ships (`auth-token`), or a file (`./my-auth.wasm`). None keeps what ships under the slot's name.
    pub component: Option<String>,
    /// The roles that are used of the component: `auth`, `protocol`, `stop`. None is all that it has; in the default
    /// slots it is the one that the slot is for.
    pub roles: Option<Vec<Role>>,
    /// Handed to `configure`.
    pub config: toml::Table,
    /// `log` (granted unless `grants` is given), `clock`, `random`, `reveal-credential`.
    pub grants: Option<Vec<String>>,
    /// Limits.
    pub limits: Limits,
}

/// Limits of one plugin.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Linear memory of one instance, in MiB.
    pub memory_mib: u32,
    /// Milliseconds for a call of parse, authenticate, authorize, finish, configure.
    pub call_ms: u64,
    /// Milliseconds for a call of push or render.
    pub token_ms: u64,
    /// Milliseconds for all calls of one request.
    pub request_ms: u64,
    /// Data handed between host and plugin in one call, in KiB.
    pub data_kib: usize,
    /// Instances at a time; beyond it requests are answered 503.
    pub concurrency: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_mib: 64,
            call_ms: 50,
            token_ms: 5,
            request_ms: 2_000,
            data_kib: 4 * 1024,
            concurrency: 512,
        }
    }
}
