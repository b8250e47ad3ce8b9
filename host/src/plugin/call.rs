//! One instance and the way into it: every call is timed, and the first error is the last call.

use std::{sync::Arc, time::Duration};

use tokio::sync::OwnedSemaphorePermit;
use wasmtime::{
    PoolConcurrencyLimitError, Store, Trap,
    component::{Instance, InstancePre, ResourceTableError},
};

use super::{
    log::PluginLog,
    plugin::{Plugin, Settings},
    runtime,
    store::{GuestFault, HostState, Overdue, begin_call, new_store},
};
use crate::error::{Error, Result};

/// How wasmtime says that a call carried more data than the store allows; it has no type for it.
const DATA_EXHAUSTED: &str = "fuel allocated for hostcalls";

/// How long a call may take.
#[derive(Debug, Clone, Copy)]
pub(super) enum Budget {
    /// `call_ms`: once or a few times in a request.
    Call,
    /// `token_ms`: for each token.
    Token,
}

impl Settings {
    pub(super) fn budget(&self, budget: Budget) -> Duration {
        Duration::from_millis(match budget {
            Budget::Call => self.limits.call_ms,
            Budget::Token => self.limits.token_ms,
        })
    }
}

/// An instance at work for one request, with the exports `G` of one role.
pub(super) struct Session<G> {
    // Before the permit: an instance ends before its place is free.
    store: Store<HostState>,
    guest: G,
    settings: Arc<Settings>,
    dead: bool,
    _permit: OwnedSemaphorePermit,
}

impl<G> Session<G> {
    /// A fresh, configured instance.
    ///
    /// # Errors
    /// [`Error::PluginBusy`] if there are too many, else what [`Self::call`] says.
    pub(super) fn open(
        plugin: &Plugin,
        load: impl FnOnce(&Plugin, &mut Store<HostState>, &Instance) -> wasmtime::Result<G>,
    ) -> Result<Self> {
        let settings = Arc::clone(&plugin.settings);
        let permit = Arc::clone(&settings.permits)
            .try_acquire_owned()
            .map_err(|_| Error::PluginBusy {
                slot: settings.slot.clone(),
                limit: settings.limits.concurrency,
            })?;
        let (mut store, instance) = instantiate(&plugin.pre, &settings, &plugin.log)?;
        if plugin.unconfigured.is_some() {
            configure(plugin, &mut store, &instance)?;
        }
        let guest = load(plugin, &mut store, &instance)
            .map_err(|error| failure(&settings, "instantiate", &error, store.data()))?;
        Ok(Self {
            store,
            guest,
            settings,
            dead: false,
            _permit: permit,
        })
    }

    /// Calls into the instance.
    ///
    /// # Errors
    /// [`Error::PluginOverdue`] or [`Error::PluginTrap`]. The instance is never entered again after one: its memory may
    /// be half written.
    pub(super) fn call<R>(
        &mut self,
        call: &'static str,
        budget: Budget,
        enter: impl FnOnce(&mut Store<HostState>, &G) -> wasmtime::Result<R>,
    ) -> Result<R> {
        if self.dead {
            return Err(self.misuse(call, "an earlier call failed, and with it the instance"));
        }
        begin_call(&mut self.store, self.settings.budget(budget));
        enter(&mut self.store, &self.guest).map_err(|error| {
            self.dead = true;
            failure(&self.settings, call, &error, self.store.data())
        })
    }

    /// Takes a value that the guest handed over out of the table.
    pub(super) fn take<T: 'static>(
        &mut self,
        call: &'static str,
        handle: wasmtime::component::Resource<T>,
    ) -> Result<T> {
        let taken = self.store.data_mut().take(handle);
        taken.map_err(|error| failure(&self.settings, call, &error, self.store.data()))
    }

    /// A call that cannot be made.
    pub(super) fn misuse(&self, call: &'static str, reason: &str) -> Error {
        Error::PluginTrap {
            slot: self.settings.slot.clone(),
            call,
            reason: reason.into(),
        }
    }
}

/// A fresh instance with its limits. Start functions of the component run within the time of a call.
pub(super) fn instantiate(
    pre: &InstancePre<HostState>,
    settings: &Settings,
    log: &Arc<PluginLog>,
) -> Result<(Store<HostState>, Instance)> {
    let mut store = new_store(&settings.limits, settings.grants, log)?;
    begin_call(&mut store, settings.budget(Budget::Call));
    match pre.instantiate(&mut store) {
        Ok(instance) => Ok((store, instance)),
        Err(error) if error.is::<PoolConcurrencyLimitError>() => Err(Error::PluginBusy {
            slot: settings.slot.clone(),
            limit: runtime::runtime()?.instances.unwrap_or(0) as usize,
        }),
        Err(error) => Err(failure(settings, "instantiate", &error, store.data())),
    }
}

/// Configures an instance of a component that could not be snapshotted.
fn configure(plugin: &Plugin, store: &mut Store<HostState>, instance: &Instance) -> Result<()> {
    const CALL: &str = "lifecycle.configure";
    let settings = &plugin.settings;
    begin_call(store, settings.budget(Budget::Call));
    let configured = plugin
        .exports
        .lifecycle
        .load(&mut *store, instance)
        .and_then(|guest| guest.call_configure(&mut *store, &settings.config));
    match configured {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(Error::PluginTrap {
            slot: settings.slot.clone(),
            call: CALL,
            reason: "it refused the configuration that it took when it was loaded".into(),
        }),
        Err(error) => Err(failure(settings, CALL, &error, store.data())),
    }
}

/// An error without guest data. The whole of it goes to the plugin log, for who writes the plugin.
pub(super) fn failure(
    settings: &Settings,
    call: &'static str,
    error: &wasmtime::Error,
    state: &HostState,
) -> Error {
    tracing::debug!(
        target: "plugin",
        slot = settings.slot,
        call,
        "{}",
        super::log::printable(&format!("{error:?}"), 4 << 10)
    );
    let slot = settings.slot.clone();
    if let Some(overdue) = state.clock.overdue {
        let (Overdue::Call(limit) | Overdue::Request(limit)) = overdue;
        return Error::PluginOverdue {
            slot,
            call,
            limit_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
        };
    }
    let mut reason = if let Some(trap) = error.downcast_ref::<Trap>() {
        trap.to_string().trim_start_matches("wasm trap: ").to_owned()
    } else if let Some(fault) = error.downcast_ref::<GuestFault>() {
        fault.to_string()
    } else if let Some(ResourceTableError::Full) = error.downcast_ref::<ResourceTableError>() {
        "it holds too many handles".to_owned()
    } else {
        // Texts of wasmtime's, which tell of sizes and indices and never of contents.
        match error.root_cause().to_string() {
            cause if cause.contains(DATA_EXHAUSTED) => {
                format!(
                    "it handed over more than {} KiB in one call",
                    settings.limits.data_kib
                )
            }
            cause => cause,
        }
    };
    if state.limiter.refused {
        reason = format!(
            "{reason} (it was refused more than {} MiB of memory)",
            settings.limits.memory_mib
        );
    }
    Error::PluginTrap { slot, call, reason }
}
