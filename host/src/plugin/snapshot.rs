//! The memory of a configured component, made into a component that starts configured.
//!
//! `wasmtime-wizer` rewrites a component in two steps: it adds exports that read every global and every memory, and,
//! after the component has run, writes what they held into a new one. This module is the reader in between. What lives
//! outside of globals and memories is not kept: a component whose `configure` leaves a handle to a host resource behind
//! cannot be snapshotted, and what `configure` draws from `random` is the same in every instance.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use futures_util::FutureExt as _;
use wasmtime::{
    Store,
    component::{ComponentNamedList, Instance, Lift, TypedFunc, WasmList},
};
use wasmtime_wizer::{ComponentContext, ComponentInstanceState, Wizer};

use super::store::{HostState, begin_call};

/// A component that can be read after it has run.
pub(super) struct Instrumented<'a> {
    context: ComponentContext<'a>,
    /// The component to run.
    pub bytes: Vec<u8>,
}

/// Prepares a component for [`Instrumented::snapshot`]. The error says why that is impossible.
pub(super) fn instrument(component: &[u8]) -> Result<Instrumented<'_>, String> {
    guarded(|| wizer().instrument_component(component))
        .map(|(context, bytes)| Instrumented { context, bytes })
}

impl Instrumented<'_> {
    /// A component with the memory that `instance` (of [`Self::bytes`]) has now. The error says why that is impossible.
    pub(super) fn snapshot(
        &self,
        store: &mut Store<HostState>,
        instance: Instance,
        limit: Duration,
    ) -> Result<Vec<u8>, String> {
        if !store.data().table.is_empty() {
            return Err(
                "`configure` keeps handles to resources of the host, which no snapshot can hold".into(),
            );
        }
        let mut reader = Reader {
            store,
            instance,
            limit,
            memories: HashMap::new(),
            error: None,
        };
        let bytes = guarded(|| {
            // Nothing in it waits: the reader's calls are synchronous.
            wizer()
                .snapshot_component(&self.context, &mut reader)
                .now_or_never()
                .unwrap_or_else(|| Err(wasmtime::Error::msg("the snapshot waits for something")))
        })?;
        match reader.error {
            None => Ok(bytes),
            Some(error) => Err(format!("its state cannot be read: {error}")),
        }
    }
}

fn wizer() -> Wizer {
    let mut wizer = Wizer::new();
    // `configure` stays: the interface is the same before and after.
    wizer.keep_init_func(true);
    wizer
}

/// The rewriting asserts what it cannot handle; that must not end the host.
fn guarded<T>(rewrite: impl FnOnce() -> wasmtime::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(rewrite)) {
        Ok(result) => result.map_err(|error| error.root_cause().to_string()),
        Err(_) => Err("it is built in a way that the snapshot tool does not know".into()),
    }
}

/// Reads globals and memories through the exports that `instrument` added. The trait has no errors: the first one is
/// kept aside, and everything reads as empty after it.
struct Reader<'a> {
    store: &'a mut Store<HostState>,
    instance: Instance,
    limit: Duration,
    /// Each memory is asked for twice, and each reading grows it: the first one is kept.
    memories: HashMap<String, Vec<u8>>,
    error: Option<wasmtime::Error>,
}

impl Reader<'_> {
    fn call<R: Lift + 'static>(&mut self, instance: &str, func: &str) -> Option<R>
    where
        (R,): ComponentNamedList + Lift,
    {
        if self.error.is_some() {
            return None;
        }
        let mut call = || -> wasmtime::Result<R> {
            let missing = || wasmtime::Error::msg("an accessor is missing");
            let instance = self
                .instance
                .get_export_index(&mut *self.store, None, instance)
                .ok_or_else(missing)?;
            let func = self
                .instance
                .get_export_index(&mut *self.store, Some(&instance), func)
                .ok_or_else(missing)?;
            let func: TypedFunc<(), (R,)> = self.instance.get_typed_func(&mut *self.store, func)?;
            begin_call(self.store, self.limit);
            Ok(func.call(&mut *self.store, ())?.0)
        };
        call().map_err(|error| self.error = Some(error)).ok()
    }
}

impl ComponentInstanceState for Reader<'_> {
    async fn call_func_ret_list_u8(
        &mut self,
        instance: &str,
        func: &str,
        contents: impl FnOnce(&[u8]) + Send,
    ) {
        if !self.memories.contains_key(func) {
            let list = self.call::<WasmList<u8>>(instance, func);
            let bytes = list.map(|list| list.as_le_slice(&*self.store).to_vec());
            self.memories.insert(func.to_owned(), bytes.unwrap_or_default());
        }
        contents(&self.memories[func]);
    }

    async fn call_func_ret_s32(&mut self, instance: &str, func: &str) -> i32 {
        self.call(instance, func).unwrap_or_default()
    }

    async fn call_func_ret_s64(&mut self, instance: &str, func: &str) -> i64 {
        self.call(instance, func).unwrap_or_default()
    }

    async fn call_func_ret_f32(&mut self, instance: &str, func: &str) -> u32 {
        self.call::<f32>(instance, func).unwrap_or_default().to_bits()
    }

    async fn call_func_ret_f64(&mut self, instance: &str, func: &str) -> u64 {
        self.call::<f64>(instance, func).unwrap_or_default().to_bits()
    }
}
