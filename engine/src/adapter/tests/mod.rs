//! The registry with real files, a source that can be told to fail, and a loader that records.

mod access;
mod lifecycle;
mod room;
mod stress;

use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use tempfile::TempDir;

use super::{
    AdapterLimits, AdapterRegistry, AdapterRequest, AdapterSource, Lease, LeaseState, LoraWeights,
    made::{Made, modules},
};
use crate::{
    batch::{AdapterLoader, DeviceAdapter},
    error::{Error, Result},
    hub::{Files, Source},
    ids::Generation,
};

/// A registry with everything around it.
struct Setup {
    registry: AdapterRegistry,
    source: Arc<TestSource>,
    loader: Arc<Recorder>,
    folders: TempDir,
    /// Whether closed gates stay closed when the setup goes.
    gates_stay: AtomicBool,
}

fn limits(adapters_on_device: usize) -> AdapterLimits {
    AdapterLimits {
        device_bytes: adapters_on_device * Made::BYTES,
        host_bytes: 100 * Made::BYTES,
        max_rank: 8,
        loaders: 2,
        negative_ttl: Duration::from_secs(60),
        access_ttl: Duration::from_secs(60),
        dynamic: true,
    }
}

impl Setup {
    fn new(limits: AdapterLimits) -> Self {
        Self::draining(limits, Duration::from_secs(60))
    }

    fn draining(limits: AdapterLimits, drain_after: Duration) -> Self {
        let source = Arc::new(TestSource::default());
        let loader = Arc::new(Recorder::new(limits.device_bytes));
        let registry = AdapterRegistry::start(modules(), loader.clone(), source.clone(), limits, drain_after);
        Self {
            registry,
            source,
            loader,
            folders: tempfile::tempdir().unwrap(),
            gates_stay: AtomicBool::new(false),
        }
    }

    /// A setup with the adapters `0`, `1`, ... registered, each of other content, on disk.
    fn with_adapters(limits: AdapterLimits, adapters: u16) -> Self {
        let setup = Self::new(limits);
        setup.add(adapters);
        setup
    }

    fn add(&self, adapters: u16) {
        for seed in 0..adapters {
            let folder = self.write(&seed.to_string(), seed);
            self.registry
                .register(&seed.to_string(), Source::Local(folder))
                .unwrap();
        }
        settle_clock();
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.folders.path().join(name)
    }

    fn write(&self, name: &str, seed: u16) -> PathBuf {
        let folder = self.folder(name);
        Made::seeded(seed).write_to(&folder);
        folder
    }

    fn lease(&self, name: &str) -> Lease {
        self.try_lease(name).unwrap()
    }

    fn try_lease(&self, name: &str) -> Result<Lease> {
        self.registry.lease(&AdapterRequest {
            id: name.to_owned(),
            source: None,
            credential: None,
        })
    }

    /// A lease that is ready.
    fn ready(&self, name: &str) -> Lease {
        let lease = self.lease(name);
        generation(&lease);
        lease
    }

    fn resident(&self) -> Vec<String> {
        self.registry
            .list()
            .into_iter()
            .filter(|info| info.resident)
            .map(|info| info.name)
            .collect()
    }

    /// Waits until the loaders have nothing to do, and checks that all is accounted for.
    fn rest(&self) {
        wait_until("the loaders to rest", || {
            let stats = self.registry.stats();
            self.loader.live.load(Ordering::SeqCst) == stats.device_bytes
        });
        self.registry.check_integrity().unwrap();
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.registry.check_integrity().unwrap();
        }
        if !self.gates_stay.load(Ordering::SeqCst) {
            self.source.gate.open();
            self.loader.gate.open();
        }
    }
}

/// Files that were written just now cannot show whether they change again. Waits until they can.
fn settle_clock() {
    std::thread::sleep(Duration::from_millis(80));
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(
            start.elapsed() < Duration::from_secs(120),
            "waited too long for {what}"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until the lease is settled.
fn settled(lease: &Lease) -> LeaseState {
    let (send, receive) = mpsc::channel();
    lease.on_settled(Box::new(move || send.send(()).unwrap()));
    receive
        .recv_timeout(Duration::from_secs(20))
        .expect("the lease should be settled");
    lease.state()
}

fn generation(lease: &Lease) -> Generation {
    match settled(lease) {
        LeaseState::Ready(adapter) => adapter.generation,
        other => panic!("expected an adapter, found {other:?}"),
    }
}

fn error(lease: &Lease) -> Error {
    match settled(lease) {
        LeaseState::Failed(error) => error,
        other => panic!("expected a failure, found {other:?}"),
    }
}

fn is_loading(lease: &Lease) -> bool {
    matches!(lease.state(), LeaseState::Loading)
}

/// Holds threads up while it is closed.
struct Gate {
    closed: Mutex<bool>,
    change: Condvar,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            closed: Mutex::new(false),
            change: Condvar::new(),
        }
    }
}

impl Gate {
    fn close(&self) {
        *self.closed.lock().unwrap() = true;
    }

    fn open(&self) {
        *self.closed.lock().unwrap() = false;
        self.change.notify_all();
    }

    fn pass(&self) {
        let mut closed = self.closed.lock().unwrap();
        while *closed {
            closed = self.change.wait(closed).unwrap();
        }
    }
}

/// Local folders as they are; hub repositories from folders that a test names, with a table of who may see them.
#[derive(Default)]
struct TestSource {
    gate: Gate,
    fetches: AtomicUsize,
    checks: AtomicUsize,
    repositories: Mutex<HashMap<String, PathBuf>>,
    allowed: Mutex<HashSet<(String, Option<String>)>>,
    /// Folders whose fetch panics.
    panics: Mutex<HashSet<PathBuf>>,
}

impl TestSource {
    fn allow(&self, repo: &str, credential: Option<&str>) {
        self.allowed
            .lock()
            .unwrap()
            .insert((repo.to_owned(), credential.map(str::to_owned)));
    }

    fn forbid(&self, repo: &str, credential: Option<&str>) {
        self.allowed
            .lock()
            .unwrap()
            .remove(&(repo.to_owned(), credential.map(str::to_owned)));
    }

    fn publish(&self, repo: &str, folder: &Path) {
        self.repositories
            .lock()
            .unwrap()
            .insert(repo.to_owned(), folder.to_owned());
    }

    fn fetches(&self) -> usize {
        self.fetches.load(Ordering::SeqCst)
    }

    fn checks(&self) -> usize {
        self.checks.load(Ordering::SeqCst)
    }
}

fn refused(what: &str, not_found: bool) -> Error {
    Error::Fetch {
        what: what.to_owned(),
        source_name: "the test".to_owned(),
        reason: "no".to_owned(),
        not_found,
        forbidden: !not_found,
    }
}

impl AdapterSource for TestSource {
    fn fetch(&self, source: &Source, _: Option<&str>) -> Result<Files> {
        self.fetches.fetch_add(1, Ordering::SeqCst);
        self.gate.pass();
        match source {
            Source::Local(folder) => {
                assert!(!self.panics.lock().unwrap().contains(folder), "the test's panic");
                Ok(Files::Folder(folder.clone()))
            }
            Source::Hub { repo, .. } => match self.repositories.lock().unwrap().get(repo) {
                Some(folder) => Ok(Files::Folder(folder.clone())),
                None => Err(refused(repo, true)),
            },
            other => Err(refused(&format!("{other:?}"), true)),
        }
    }

    fn check_access(&self, source: &Source, credential: Option<&str>) -> Result<()> {
        self.checks.fetch_add(1, Ordering::SeqCst);
        self.gate.pass();
        let Source::Hub { repo, .. } = source else {
            panic!("access is checked at remote sources only, not at {source:?}");
        };
        if self
            .allowed
            .lock()
            .unwrap()
            .contains(&(repo.clone(), credential.map(str::to_owned)))
        {
            Ok(())
        } else {
            Err(refused(repo, false))
        }
    }
}

/// A loader that keeps nothing but a count of bytes, and knows when they are freed.
struct Recorder {
    gate: Gate,
    /// What layouts take, as a percentage of the weights.
    percent: AtomicUsize,
    limit: usize,
    /// Bytes of layouts that exist.
    live: Arc<AtomicUsize>,
    /// The most bytes at a time.
    peak: AtomicUsize,
    /// What was laid out, in order.
    order: Mutex<Vec<Generation>>,
    fails: Mutex<HashSet<Generation>>,
    panics: Mutex<HashSet<Generation>>,
}

impl Recorder {
    fn new(limit: usize) -> Self {
        Self {
            gate: Gate::default(),
            percent: AtomicUsize::new(100),
            limit,
            live: Arc::default(),
            peak: AtomicUsize::new(0),
            order: Mutex::default(),
            fails: Mutex::default(),
            panics: Mutex::default(),
        }
    }

    fn order(&self) -> Vec<Generation> {
        self.order.lock().unwrap().clone()
    }
}

struct Layout {
    bytes: usize,
    live: Arc<AtomicUsize>,
}

impl Drop for Layout {
    fn drop(&mut self) {
        self.live.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

impl AdapterLoader for Recorder {
    fn load(&self, weights: &LoraWeights) -> Result<DeviceAdapter> {
        self.gate.pass();
        let generation = weights.generation;
        self.order.lock().unwrap().push(generation);
        assert!(
            !self.panics.lock().unwrap().contains(&generation),
            "the test's panic"
        );
        if self.fails.lock().unwrap().contains(&generation) {
            return Err(Error::Backend {
                backend: "test",
                reason: "out of memory".to_owned(),
            });
        }
        let percent = self.percent.load(Ordering::SeqCst);
        let bytes = weights.bytes() * percent / 100;
        let live = self.live.fetch_add(bytes, Ordering::SeqCst) + bytes;
        self.peak.fetch_max(live, Ordering::SeqCst);
        if percent <= 100 {
            // One that is alone is tried, whatever the weights take: only the layout tells what it needs.
            assert!(
                live <= self.limit || live == bytes,
                "{live} bytes are on the device, {} were allowed",
                self.limit
            );
        }
        let inner = Arc::new(Layout {
            bytes,
            live: self.live.clone(),
        });
        Ok(DeviceAdapter {
            generation,
            bytes,
            inner,
        })
    }
}
