//! The plugin host as the rest of the server sees it.

use std::{path::Path, sync::Arc};

use super::{
    InstallReport, PluginsConfig, pipeline::Pipeline, reconcile, registry::Shared, start, status::SlotStatus,
};
use crate::error::{Error, Result};

/// The plugin host: the registry and what changes it. Clones are the same host; it stops watching with the last one.
#[derive(Clone)]
pub struct PluginHost(pub(super) Arc<Shared>);

impl PluginHost {
    /// Loads all slots, or the last good set from `state` for slots whose component is broken, and starts watching.
    ///
    /// `state` is a folder of this host's alone: the audit log, the last good set, the compiled components.
    ///
    /// # Errors
    /// [`Error::Config`] for a configuration that cannot be, or a `state` that another host uses;
    /// [`Error::PluginRefused`] if a slot has neither a component that works nor one that worked before.
    pub fn start(config: &PluginsConfig, state: &Path) -> Result<Self> {
        start::start(config, state).map(Self)
    }

    /// The pipeline for a new request.
    pub fn pin(&self) -> Arc<Pipeline> {
        self.0.pipeline.load_full()
    }

    /// Looks at every slot's source again (SIGHUP), also where what it holds was refused or rolled back before.
    pub fn reload_all(&self) {
        self.0.mailbox.look_at_all();
    }

    /// Brings a component into a slot, new slots included, and waits for the outcome.
    ///
    /// # Errors
    /// [`Error::Config`] for a name that no slot can have, or if the host is going down. That a component is refused
    /// is no error: the report says so.
    pub fn install(&self, slot: &str, bytes: impl Into<Arc<[u8]>>, actor: &str) -> Result<InstallReport> {
        let reports = self.install_many(vec![(slot.to_owned(), bytes.into())], actor)?;
        reports.into_iter().next().ok_or_else(stopped)
    }

    /// Brings components into several slots in one commit: all of them or none.
    ///
    /// # Errors
    /// As [`Self::install`].
    pub fn install_many(
        &self,
        components: Vec<(String, Arc<[u8]>)>,
        actor: &str,
    ) -> Result<Vec<InstallReport>> {
        self.0
            .mailbox
            .submit(components, actor, true)?
            .recv()
            .map_err(|_| stopped())
    }

    /// Climbs every rung, and looks whether the commit could be.
    ///
    /// # Errors
    /// As [`Self::install`].
    pub fn dry_run(&self, slot: &str, bytes: impl Into<Arc<[u8]>>, actor: &str) -> Result<InstallReport> {
        let reports = self
            .0
            .mailbox
            .submit(vec![(slot.to_owned(), bytes.into())], actor, false)?;
        reports
            .recv()
            .map_err(|_| stopped())?
            .into_iter()
            .next()
            .ok_or_else(stopped)
    }

    /// Puts the component that a slot had before back; the generation that has it. What served is then the one to go
    /// back to. A store of a pointer, but for the first time after a restart, when the component has to be loaded.
    ///
    /// # Errors
    /// [`Error::Config`] if there is no such slot or nothing to go back to; [`Error::PluginRefused`] if the component
    /// does not go with what the other slots have now.
    pub fn rollback(&self, slot: &str, actor: &str) -> Result<u64> {
        reconcile::rollback(&self.0, slot, actor)
    }

    /// All slots, by name.
    pub fn slots(&self) -> Vec<SlotStatus> {
        let mut registry = self.0.registry();
        let live = registry.live();
        let serving = self.pin();
        registry
            .slots
            .iter()
            .map(|(name, slot)| slot.status(name, &serving, &live))
            .collect()
    }

    /// Pipelines that requests still use, the one that serves included.
    pub fn live_generations(&self) -> usize {
        self.0.registry().live().len()
    }

    /// The last lines of the audit log, oldest first.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn audit(&self, limit: usize) -> Result<Vec<serde_json::Value>> {
        self.0.audit.last(limit)
    }
}

fn stopped() -> Error {
    Error::Config("the plugin host is going down".into())
}
