//! A host in a folder of its own.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    thread,
    time::{Duration, Instant},
};

use heddle::plugin::{
    PluginHost, PluginsConfig, SlotStatus,
    resources::{HeadParts, RequestHead},
};
use tempfile::TempDir;

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A component that ships (`stop`), or one of the tests' (`hostile`).
pub(crate) fn component(name: &str) -> PathBuf {
    let file = format!("{name}.wasm");
    let shipped = root().join("plugins/dist").join(&file);
    if shipped.exists() {
        shipped
    } else {
        root().join("tests/components").join(file)
    }
}

pub(crate) fn bytes(name: &str) -> Vec<u8> {
    let path = component(name);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A host with its state and its watched folder.
pub(crate) struct Fixture {
    pub host: PluginHost,
    pub config: PluginsConfig,
    pub folder: TempDir,
}

/// A host with the `[plugins]` of a `heddle.toml`; `{NAME}` in it is the path of a component.
pub(crate) fn start(toml: &str) -> Fixture {
    try_start(toml).unwrap()
}

pub(crate) fn try_start(toml: &str) -> heddle::Result<Fixture> {
    let folder = tempfile::tempdir().unwrap();
    let mut config: PluginsConfig = toml::from_str(&with_paths(toml)).unwrap();
    config.directory = Some(folder.path().join("plugins"));
    warm(&folder.path().join("state"));
    let host = PluginHost::start(&config, &folder.path().join("state"))?;
    Ok(Fixture { host, config, folder })
}

impl Fixture {
    pub(crate) fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    pub(crate) fn plugins(&self) -> PathBuf {
        self.folder.path().join("plugins")
    }

    /// Takes the host down and starts it again with the same folders.
    pub(crate) fn restart(self) -> heddle::Result<Fixture> {
        let Fixture { host, config, folder } = self;
        drop(host);
        let host = PluginHost::start(&config, &folder.path().join("state"))?;
        Ok(Fixture { host, config, folder })
    }

    /// Publishes a file in the watched folder, as one should: whole.
    pub(crate) fn publish(&self, slot: &str, bytes: &[u8]) {
        let temporary = self.plugins().join(format!(".{slot}.tmp"));
        fs::write(&temporary, bytes).unwrap();
        fs::rename(temporary, self.plugins().join(format!("{slot}.wasm"))).unwrap();
    }

    pub(crate) fn slot(&self, name: &str) -> SlotStatus {
        self.host
            .slots()
            .into_iter()
            .find(|slot| slot.slot == name)
            .unwrap_or_else(|| panic!("no slot `{name}`"))
    }

    pub(crate) fn digest(&self, slot: &str) -> String {
        self.slot(slot).plugin.unwrap().digest
    }

    /// Waits until something holds.
    pub(crate) fn eventually(&self, what: &str, holds: impl Fn(&PluginHost) -> bool) {
        let start = Instant::now();
        while !holds(&self.host) {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "{what}: {:#?}",
                self.host.slots()
            );
            thread::sleep(Duration::from_millis(10));
        }
    }
}

fn with_paths(toml: &str) -> String {
    let mut text = toml.to_owned();
    for folder in ["plugins/dist", "tests/components"] {
        for file in fs::read_dir(root().join(folder)).unwrap().flatten() {
            let path = file.path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            text = text.replace(&format!("{{{name}}}"), path.to_str().unwrap());
        }
    }
    text
}

/// Hands a state folder what the default slots compile to, so that each test does not compile it again.
fn warm(state: &Path) {
    static WARM: OnceLock<TempDir> = OnceLock::new();
    let warm = WARM.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        PluginHost::start(&PluginsConfig::default(), folder.path()).unwrap();
        folder
    });
    let cache = state.join("cache");
    fs::create_dir_all(&cache).unwrap();
    for file in fs::read_dir(warm.path().join("cache")).unwrap().flatten() {
        fs::copy(file.path(), cache.join(file.file_name())).unwrap();
    }
}

pub(crate) fn head(method: &str, path: &str) -> RequestHead {
    RequestHead(Arc::new(HeadParts {
        method: method.into(),
        path: path.into(),
        query: None,
        headers: vec![
            ("user-agent".into(), "test".into()),
            ("Authorization".into(), "Bearer secret".into()),
        ],
        peer: Some("127.0.0.1".into()),
        request_id: "req-1".into(),
    }))
}
