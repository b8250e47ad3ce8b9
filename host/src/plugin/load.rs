//! From bytes to a [`Plugin`]: the rungs that one component climbs alone (contract, compile, configure, self-test).

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use sha2::{Digest as _, Sha256};
use wasmtime::{
    Engine, Store,
    component::{Component, Instance, InstancePre, Linker},
};

use super::{
    background::{self, Failed},
    bindings::exports::heddle::plugin::{auth, lifecycle, protocol, stop},
    cache::{Cache, Entry, Source},
    call::{Budget, failure, instantiate},
    contract::{self, Role, Shape},
    imports,
    log::{PluginLog, printable},
    plugin::{Exports, Plugin, Route, Settings},
    report::{CheckReport, Refusal, Rung, milliseconds},
    runtime, snapshot,
    store::{HostState, begin_call},
};
use crate::error::Result;

/// How long a component may take for all of its rungs. A Python inside compiles for 20 seconds on an idle core, twice.
const LIMIT: Duration = Duration::from_secs(180);
/// The most routes of one plugin.
const MAX_ROUTES: usize = 256;
/// The longest texts that a component may say of itself, in bytes.
const MAX_WORD: usize = 64;
const MAX_SENTENCE: usize = 400;

/// Climbs on the background thread.
pub(super) fn load(
    bytes: &Arc<[u8]>,
    settings: &Arc<Settings>,
    cache: Option<&Arc<Cache>>,
) -> (CheckReport, Result<Plugin, Refusal>) {
    let mut report = CheckReport {
        digest: digest(bytes),
        bytes: bytes.len(),
        grants: settings.grants.names(),
        ..CheckReport::default()
    };
    let candidate = Candidate {
        bytes: Arc::clone(bytes),
        digest: report.digest.clone(),
        settings: Arc::clone(settings),
        cache: cache.cloned(),
        log: Arc::new(PluginLog::new(&settings.slot)),
    };
    let mut climbing = report.clone();
    let outcome = background::run(LIMIT, move || {
        let plugin = candidate.climb(&mut climbing);
        climbing.accepted = plugin.is_ok();
        (climbing, plugin)
    });
    outcome.unwrap_or_else(|failed| {
        let seconds = LIMIT.as_secs();
        let reason = match failed {
            Failed::Busy => {
                format!("the compiling thread has been busy with another component for {seconds} s")
            }
            Failed::Overdue => format!("it was not compiled and checked within {seconds} s"),
            Failed::Panicked => "it makes the compiler fail".to_owned(),
        };
        let refused = report.climb(Rung::Compile, |_| Err(Refusal::new(Rung::Compile, reason)));
        (report, refused)
    })
}

/// SHA-256 in hexadecimal.
pub(super) fn digest(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

struct Candidate {
    bytes: Arc<[u8]>,
    digest: String,
    settings: Arc<Settings>,
    cache: Option<Arc<Cache>>,
    log: Arc<PluginLog>,
}

/// A compiled component with an instance that shows that it fits.
struct Compiled {
    component: Component,
    pre: InstancePre<HostState>,
    exports: Exports,
    store: Store<HostState>,
    instance: Instance,
}

impl Candidate {
    fn climb(&self, report: &mut CheckReport) -> Result<Plugin, Refusal> {
        let shape = report.climb(Rung::Contract, |report| self.contract(report))?;
        let linker =
            imports::linker(self.settings.grants).map_err(|e| Refusal::new(Rung::Compile, e.to_string()))?;
        let source = Source {
            digest: &self.digest,
            config: &self.settings.config,
            grants: self.settings.grants,
        };
        let cached = self
            .cache
            .as_ref()
            .and_then(|cache| self.restore(report, &shape, &linker, &cache.load(&source)?));
        let (compiled, unconfigured) = match cached {
            Some(restored) => restored,
            None => {
                let made = self.make(report, &shape, &linker)?;
                if let Some(cache) = &self.cache
                    && let Ok(code) = made.0.component.serialize()
                {
                    cache.store(
                        &source,
                        &Entry {
                            unconfigured: made.1.clone(),
                            code,
                        },
                    );
                }
                made
            }
        };
        report.snapshot = Some(unconfigured.is_none());
        report.snapshot_reason.clone_from(&unconfigured);
        report.climb(Rung::SelfTest, |report| {
            self.self_test(report, shape, compiled, unconfigured)
        })
    }

    fn contract(&self, report: &mut CheckReport) -> Result<Shape, Refusal> {
        let refuse = |reason| Refusal::new(Rung::Contract, reason);
        let shape = contract::read(&self.bytes).map_err(refuse)?;
        report.exports.clone_from(&shape.exports);
        report.imports.clone_from(&shape.imports);
        report.roles.clone_from(&shape.roles);
        contract::check_imports(&shape, self.settings.grants, &self.settings.slot).map_err(refuse)?;
        let Some(wanted) = &self.settings.roles else {
            return Ok(shape);
        };
        match wanted.iter().find(|role| !shape.roles.contains(role)) {
            Some(role) => Err(refuse(format!(
                "the slot `{}` needs a component with the role `{}`; this one has {}",
                self.settings.slot,
                role.name(),
                shape
                    .roles
                    .iter()
                    .map(|role| role.name())
                    .collect::<Vec<_>>()
                    .join(", ")
            ))),
            None => Ok(Shape {
                roles: wanted.clone(),
                ..shape
            }),
        }
    }

    /// What an earlier run of this host compiled and configured.
    fn restore(
        &self,
        report: &mut CheckReport,
        shape: &Shape,
        linker: &Linker<HostState>,
        entry: &Entry,
    ) -> Option<(Compiled, Option<String>)> {
        let start = report.rungs.len();
        let restored = report.climb(Rung::Compile, |_| {
            let engine = engine(Rung::Compile)?;
            // SAFETY: the cache gives only what this installation compiled: the MAC of the entry was verified.
            let component = unsafe { Component::deserialize(engine, &entry.code) };
            let component = component.map_err(|error| Refusal::new(Rung::Compile, format!("{error:#}")))?;
            self.prepare(Rung::Compile, shape, linker, component)
        });
        match restored {
            Ok(compiled) => {
                report.note("compiled and configured by an earlier run");
                Some((compiled, entry.unconfigured.clone()))
            }
            // Whatever is wrong with the entry, the component decides.
            Err(_) => {
                report.rungs.truncate(start);
                None
            }
        }
    }

    /// Compiles, configures, and compiles the configured snapshot.
    fn make(
        &self,
        report: &mut CheckReport,
        shape: &Shape,
        linker: &Linker<HostState>,
    ) -> Result<(Compiled, Option<String>), Refusal> {
        let instrumented = snapshot::instrument(&self.bytes);
        let mut compiled = report.climb(Rung::Compile, |report| {
            let bytes = instrumented
                .as_ref()
                .map_or(&*self.bytes, |instrumented| &instrumented.bytes);
            let component = compile(report, Rung::Compile, bytes)?;
            self.prepare(Rung::Compile, shape, linker, component)
        })?;
        report.climb(Rung::Configure, |report| {
            self.configure(&mut compiled)?;
            let limit = self.settings.budget(Budget::Call);
            let snapshot = instrumented.and_then(|instrumented| {
                instrumented.snapshot(&mut compiled.store, compiled.instance, limit)
            });
            let (bytes, unconfigured) = match &snapshot {
                Ok(bytes) => (bytes.as_slice(), None),
                Err(reason) => (&*self.bytes, Some(printable(reason, MAX_SENTENCE))),
            };
            let component = compile(report, Rung::Configure, bytes)?;
            Ok((
                self.prepare(Rung::Configure, shape, linker, component)?,
                unconfigured,
            ))
        })
    }

    /// Links a component, and instantiates it to see that it fits the pool and the contract's types.
    fn prepare(
        &self,
        rung: Rung,
        shape: &Shape,
        linker: &Linker<HostState>,
        component: Component,
    ) -> Result<Compiled, Refusal> {
        let mismatch = |error: wasmtime::Error| {
            Refusal::new(
                rung,
                format!(
                    "it does not fit the contract (wit/): {}",
                    printable(&format!("{error:#}"), 1_000)
                ),
            )
        };
        let pre = linker.instantiate_pre(&component).map_err(mismatch)?;
        let has = |role| shape.roles.contains(&role);
        let exports = Exports {
            lifecycle: lifecycle::GuestIndices::new(&pre).map_err(mismatch)?,
            auth: has(Role::Auth)
                .then(|| auth::GuestIndices::new(&pre))
                .transpose()
                .map_err(mismatch)?,
            protocol: has(Role::Protocol)
                .then(|| protocol::GuestIndices::new(&pre))
                .transpose()
                .map_err(mismatch)?,
            stop: has(Role::Stop)
                .then(|| stop::GuestIndices::new(&pre))
                .transpose()
                .map_err(mismatch)?,
        };
        let (mut store, instance) = self.instantiate(rung, &pre)?;
        exports.check(&mut store, &instance).map_err(mismatch)?;
        Ok(Compiled {
            component,
            pre,
            exports,
            store,
            instance,
        })
    }

    fn instantiate(
        &self,
        rung: Rung,
        pre: &InstancePre<HostState>,
    ) -> Result<(Store<HostState>, Instance), Refusal> {
        instantiate(pre, &self.settings, &self.log).map_err(|error| Refusal::new(rung, error.to_string()))
    }

    fn configure(&self, compiled: &mut Compiled) -> Result<(), Refusal> {
        let config = &self.settings.config;
        let answer = self.ask(
            Rung::Configure,
            "lifecycle.configure",
            compiled,
            |store, guest| guest.call_configure(store, config),
        )?;
        answer.map_err(|reason| Refusal {
            rung: Rung::Configure,
            reason: format!(
                "it refused its configuration: {}",
                printable(&reason, MAX_SENTENCE)
            ),
            quotes: true,
        })
    }

    fn self_test(
        &self,
        report: &mut CheckReport,
        shape: Shape,
        mut compiled: Compiled,
        unconfigured: Option<String>,
    ) -> Result<Plugin, Refusal> {
        const RUNG: Rung = Rung::SelfTest;
        (compiled.store, compiled.instance) = self.instantiate(RUNG, &compiled.pre)?;
        if unconfigured.is_some() {
            self.configure(&mut compiled)?;
        }
        let descriptor = self.ask(RUNG, "lifecycle.describe", &mut compiled, |store, guest| {
            guest.call_describe(store)
        })?;
        report.name = printable(&descriptor.name, MAX_WORD);
        report.version = printable(&descriptor.version, MAX_WORD);
        report.description = printable(&descriptor.description, MAX_SENTENCE);
        let routes = self.routes(&mut compiled)?;
        report.routes = routes.iter().map(Route::to_string).collect();
        let verdict = self.ask(RUNG, "lifecycle.self-test", &mut compiled, |store, guest| {
            guest.call_self_test(store)
        })?;
        verdict.map_err(|reason| Refusal {
            rung: RUNG,
            reason: format!("its self-test failed: {}", printable(&reason, MAX_SENTENCE)),
            quotes: true,
        })?;
        Ok(Plugin {
            settings: Arc::clone(&self.settings),
            digest: self.digest.clone(),
            bytes: self.bytes.len(),
            name: report.name.clone(),
            version: report.version.clone(),
            roles: shape.roles,
            routes,
            unconfigured,
            pre: compiled.pre,
            exports: compiled.exports,
            log: Arc::clone(&self.log),
        })
    }

    fn routes(&self, compiled: &mut Compiled) -> Result<Vec<Route>, Refusal> {
        const CALL: &str = "protocol.routes";
        let Some(indices) = &compiled.exports.protocol else {
            return Ok(Vec::new());
        };
        let store = &mut compiled.store;
        begin_call(store, self.settings.budget(Budget::Call));
        let routes = indices
            .load(&mut *store, &compiled.instance)
            .and_then(|guest| guest.call_routes(&mut *store));
        let routes = routes.map_err(|error| {
            Refusal::new(
                Rung::SelfTest,
                failure(&self.settings, CALL, &error, store.data()).to_string(),
            )
        })?;
        let routes: Vec<_> = routes
            .into_iter()
            .map(|route| Route {
                method: route.method,
                path: route.path,
            })
            .collect();
        check_routes(&routes).map_err(|reason| Refusal::new(Rung::SelfTest, reason))?;
        Ok(routes)
    }

    /// A call of `lifecycle`.
    fn ask<R>(
        &self,
        rung: Rung,
        call: &'static str,
        compiled: &mut Compiled,
        enter: impl FnOnce(&mut Store<HostState>, &lifecycle::Guest) -> wasmtime::Result<R>,
    ) -> Result<R, Refusal> {
        let store = &mut compiled.store;
        begin_call(store, self.settings.budget(Budget::Call));
        let answer = compiled
            .exports
            .lifecycle
            .load(&mut *store, &compiled.instance)
            .and_then(|guest| enter(store, &guest));
        answer.map_err(|error| {
            Refusal::new(
                rung,
                failure(&self.settings, call, &error, store.data()).to_string(),
            )
        })
    }
}

impl Exports {
    /// Whether every function of every role has the contract's types.
    fn check(&self, store: &mut Store<HostState>, instance: &Instance) -> wasmtime::Result<()> {
        self.lifecycle.load(&mut *store, instance)?;
        self.auth
            .as_ref()
            .map(|auth| auth.load(&mut *store, instance))
            .transpose()?;
        self.protocol
            .as_ref()
            .map(|protocol| protocol.load(&mut *store, instance))
            .transpose()?;
        self.stop
            .as_ref()
            .map(|stop| stop.load(&mut *store, instance))
            .transpose()?;
        Ok(())
    }
}

fn engine(rung: Rung) -> Result<&'static Engine, Refusal> {
    match runtime::runtime() {
        Ok(runtime) => Ok(&runtime.engine),
        Err(error) => Err(Refusal::new(rung, error.to_string())),
    }
}

fn compile(report: &mut CheckReport, rung: Rung, bytes: &[u8]) -> Result<Component, Refusal> {
    let start = Instant::now();
    let component = Component::from_binary(engine(rung)?, bytes);
    *report.compile_ms.get_or_insert(0.0) += milliseconds(start);
    component.map_err(|error| {
        Refusal::new(
            rung,
            format!(
                "it cannot be compiled: {}",
                printable(&format!("{error:#}"), 1_000)
            ),
        )
    })
}

fn check_routes(routes: &[Route]) -> Result<(), String> {
    if routes.is_empty() || routes.len() > MAX_ROUTES {
        return Err(format!(
            "a protocol plugin serves between 1 and {MAX_ROUTES} routes; it names {}",
            routes.len()
        ));
    }
    for (at, route) in routes.iter().enumerate() {
        let shown = printable(&route.to_string(), 200);
        let path = route.path.strip_suffix("/*").unwrap_or(&route.path);
        if route.method.is_empty() || !route.method.bytes().all(|b| b.is_ascii_uppercase()) {
            return Err(format!("the route `{shown}` has no method in upper case"));
        }
        if !route.path.starts_with('/') || !path.bytes().all(|b| b.is_ascii_graphic() && !b"?#*".contains(&b))
        {
            return Err(format!(
                "the route `{shown}` has no path that begins with `/`, without query and without spaces"
            ));
        }
        if routes[..at].contains(route) {
            return Err(format!("the route `{shown}` is there twice"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;

    use super::{
        super::{Grants, Limits},
        *,
    };

    fn check(routes: &[(&str, &str)]) -> Result<(), String> {
        let routes: Vec<_> = routes
            .iter()
            .map(|&(method, path)| Route {
                method: method.into(),
                path: path.into(),
            })
            .collect();
        check_routes(&routes)
    }

    fn try_load(file: &str) -> (CheckReport, Result<Plugin, Refusal>) {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("..")
            .join(file);
        let settings = Settings {
            slot: "test".into(),
            config: "{}".into(),
            grants: Grants::default(),
            limits: Limits::default(),
            roles: None,
            permits: Arc::new(Semaphore::new(4)),
        };
        load(&std::fs::read(path).unwrap().into(), &Arc::new(settings), None)
    }

    #[test]
    fn what_ships_starts_from_a_snapshot() {
        for file in ["plugins/dist/auth-token.wasm", "plugins/dist/stop.wasm"] {
            let (report, plugin) = try_load(file);
            println!("{report}");
            assert_eq!(plugin.unwrap().unconfigured, None, "{report}");
        }
    }

    #[test]
    fn routes_are_checked() {
        assert_eq!(
            check(&[
                ("POST", "/"),
                ("GET", "/"),
                ("GET", "/v1/models/*"),
                ("GET", "/*")
            ]),
            Ok(())
        );
        for bad in [
            ("post", "/"),
            ("", "/"),
            ("GET", "v1"),
            ("GET", "/a b"),
            ("GET", "/a?b"),
            ("GET", "/a*"),
        ] {
            assert!(check(&[bad]).is_err(), "{bad:?}");
        }
        assert!(check(&[]).is_err());
        assert!(
            check(&[("GET", "/"), ("GET", "/")])
                .unwrap_err()
                .contains("twice")
        );
    }
}
