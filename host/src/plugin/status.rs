//! What can be said of slots.

use std::{collections::BTreeSet, sync::Arc};

use serde::Serialize;

use super::{Role, Rung, pipeline::Pipeline, plugin::Plugin, registry::Slot};

/// A slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SlotStatus {
    /// Its name.
    pub slot: String,
    /// What serves; none if nothing ever did.
    pub plugin: Option<PluginStatus>,
    /// SHA-256 of what a rollback would go to.
    pub previous: Option<String>,
    /// Components of this slot that requests still use, the one that serves included.
    pub live_generations: usize,
    /// Instances at work.
    pub instances: usize,
    /// The last failure since something was taken.
    pub last_error: Option<SlotError>,
}

/// The last failure of a slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SlotError {
    /// When, in milliseconds since 1970.
    pub time_ms: u64,
    /// SHA-256 of what was refused, if it could be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// On which rung.
    pub rung: Rung,
    /// Why.
    pub message: String,
}

/// A component that serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PluginStatus {
    /// The name that it gives itself.
    pub name: String,
    /// Its version.
    pub version: String,
    /// SHA-256 of the file.
    pub digest: String,
    /// Its size.
    pub bytes: usize,
    /// Where it came from: `builtin`, `api`, a file.
    pub source: String,
    /// What it can do.
    pub roles: Vec<Role>,
    /// What it may do.
    pub grants: Vec<&'static str>,
    /// What it serves.
    pub routes: Vec<String>,
    /// Whether requests start from a configured snapshot.
    pub snapshot: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_reason: Option<String>,
}

impl Slot {
    pub(super) fn status(&self, name: &str, serving: &Pipeline, live: &[Arc<Pipeline>]) -> SlotStatus {
        let components: BTreeSet<_> = live
            .iter()
            .filter_map(|pipeline| pipeline.plugin(name))
            .map(Arc::as_ptr)
            .collect();
        SlotStatus {
            slot: name.to_owned(),
            plugin: serving
                .plugin(name)
                .map(|plugin| plugin_status(plugin, &self.source)),
            previous: self.previous.as_ref().map(|previous| previous.digest.clone()),
            live_generations: components.len(),
            instances: self.settings.limits.concurrency - self.settings.permits.available_permits(),
            last_error: self.last_error.clone(),
        }
    }
}

fn plugin_status(plugin: &Plugin, source: &str) -> PluginStatus {
    PluginStatus {
        name: plugin.name().to_owned(),
        version: plugin.version().to_owned(),
        digest: plugin.digest().to_owned(),
        bytes: plugin.bytes(),
        source: source.to_owned(),
        roles: plugin.roles().to_vec(),
        grants: plugin.grants().names(),
        routes: plugin.routes().collect(),
        snapshot: plugin.unconfigured().is_none(),
        snapshot_reason: plugin.unconfigured().map(str::to_owned),
    }
}
