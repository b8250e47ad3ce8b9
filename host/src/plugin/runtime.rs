//! The process's one `wasmtime::Engine`, its pool of instances and its clock.
//!
//! One engine serves everything, tests and checks included: types of one engine must never meet those of another, and
//! what an engine keeps for compiling is kept once.

use std::{sync::OnceLock, thread, time::Duration};

use wasmtime::{Config, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

use crate::error::{Error, Result};

/// The most linear memory that a plugin's limits may allow, in MiB: a slot of the pool is this large.
pub const MAX_MEMORY_MIB: u32 = 256;
/// The most core instances that one component is made of. Rust guests have 3, those of Python about 40.
pub(super) const MAX_CORE_INSTANCES: u32 = 40;
/// The most linear memories of one component. Guests with QuickJS have 2.
pub(super) const MAX_MEMORIES: u32 = 2;
/// The most tables of one component.
pub(super) const MAX_TABLES: u32 = 8;
/// The most elements of one table. Rust guests have a few hundred, those of Python above 100,000.
pub(super) const MAX_TABLE_ELEMENTS: usize = 200_000;

/// Steps of the epoch clock.
pub(super) const TICK: Duration = Duration::from_millis(1);

/// Guests run on the caller's stack, a tokio worker's of 2 MiB: this leaves the rest to the host functions.
const MAX_STACK: usize = 512 << 10;
/// Memory of a used slot that is cleared by hand rather than given back to the system: about what a small component
/// touches in a request. More would be cleared for nothing.
const KEEP_RESIDENT: usize = 128 << 10;
/// Mappings that a live instance needs: the guard before and behind its memory, the image, the heap, a table.
const MAPPINGS_PER_INSTANCE: u32 = 5;
/// The largest pool: each slot reserves more than 4 GiB of the 128 TiB of address space.
const MAX_INSTANCES: u32 = 10_000;

/// The engine and how many instances it can hold.
pub(super) struct Runtime {
    /// The engine.
    pub engine: Engine,
    /// Live instances of the pool; none if instances are allocated as they come.
    pub instances: Option<u32>,
}

/// The process's engine; the first call makes it and starts its clock.
pub(super) fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    RUNTIME
        .get_or_init(|| start().map_err(|error| format!("{error:#}")))
        .as_ref()
        .map_err(|error| Error::Config(format!("WebAssembly cannot run on this machine: {error}")))
}

/// How many instances are alive, and how many can be. None where instances are not pooled or none was made yet.
pub fn instances() -> Option<(u64, u32)> {
    let runtime = runtime().ok()?;
    let live = runtime.engine.pooling_allocator_metrics()?.component_instances();
    Some((live, runtime.instances?))
}

fn start() -> wasmtime::Result<Runtime> {
    let mut wanted = pool_size(max_map_count());
    let runtime = loop {
        // A pool needs terabytes of address space, which `ulimit -v`, a small kernel or an emulator may deny.
        match Engine::new(&config(Some(wanted))) {
            Ok(engine) => {
                break Runtime {
                    engine,
                    instances: Some(wanted),
                };
            }
            Err(error) if wanted > 64 => {
                tracing::debug!("no pool of {wanted} plugin instances: {error:#}");
                wanted /= 4;
            }
            Err(error) => {
                tracing::warn!("plugin instances are not pooled, which makes each request slower: {error:#}");
                break Runtime {
                    engine: Engine::new(&config(None))?,
                    instances: None,
                };
            }
        }
    };
    let engine = runtime.engine.weak();
    thread::Builder::new()
        .name("heddle-epoch".into())
        .spawn(move || {
            while let Some(engine) = engine.upgrade() {
                thread::sleep(TICK);
                engine.increment_epoch();
            }
        })?;
    Ok(runtime)
}

fn config(pool: Option<u32>) -> Config {
    let mut config = Config::new();
    config
        .epoch_interruption(true)
        .concurrency_support(false)
        // Compiling must not take the cores that serve: it gets one thread of its own, see `background`.
        .parallel_compilation(false)
        .max_wasm_stack(MAX_STACK)
        .wasm_memory64(false)
        .wasm_multi_memory(false)
        .wasm_relaxed_simd(false)
        // A trap is told by its kind; addresses in the compiled code help nobody.
        .generate_address_map(false);
    if let Some(instances) = pool {
        let mut pool = PoolingAllocationConfig::new();
        pool.total_component_instances(instances)
            .total_memories(instances)
            .total_tables(instances.saturating_mul(2))
            .total_core_instances(instances.saturating_mul(4))
            // All calls are synchronous: no fibers, no stacks.
            .total_stacks(0)
            .max_core_instances_per_component(MAX_CORE_INSTANCES)
            .max_memories_per_component(MAX_MEMORIES)
            .max_tables_per_component(MAX_TABLES)
            .table_elements(MAX_TABLE_ELEMENTS)
            .max_memory_size((MAX_MEMORY_MIB as usize) << 20)
            .linear_memory_keep_resident(KEEP_RESIDENT)
            .table_keep_resident(4 << 10);
        config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    } else {
        config.allocation_strategy(InstanceAllocationStrategy::OnDemand);
    }
    config
}

/// The kernel's limit on mappings of one process, which is what limits live instances.
fn max_map_count() -> u32 {
    std::fs::read_to_string("/proc/sys/vm/max_map_count")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(65_530)
}

/// Three quarters of the mappings go to the pool; the model, the allocator and the threads have the rest.
fn pool_size(max_map_count: u32) -> u32 {
    (max_map_count / 4 * 3 / MAPPINGS_PER_INSTANCE).clamp(64, MAX_INSTANCES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_fits_the_kernels_mappings() {
        // 65,530 is Linux's default; 3/4 of it at 5 mappings each.
        assert_eq!(pool_size(65_530), 9_829);
        assert_eq!(pool_size(1_048_576), MAX_INSTANCES);
        assert_eq!(pool_size(0), 64);
    }

    #[test]
    fn there_is_one_engine_and_its_clock_runs() {
        let first = runtime().unwrap();
        assert!(Engine::same(&first.engine, &runtime().unwrap().engine));
        let (_, capacity) = instances().expect("this machine can hold a pool");
        assert!(capacity >= 64, "{capacity}");
    }
}
