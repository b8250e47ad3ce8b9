//! The configuration: one typed tree.
//!
//! Four layers, each over the one below it: command-line flags, `HEDDLE_*` environment variables, `heddle.toml`, and
//! the defaults that stand here. Every key of the file has a variable: `server.port` is `HEDDLE_SERVER__PORT`.

mod load;

use std::{collections::BTreeMap, fmt, net::IpAddr, path::PathBuf, time::Duration};

use heddle_engine::{
    adapter::AdapterLimits,
    backend::cpu::{self, CpuOptions},
    engine::EngineOptions,
    hub,
    model::BackendChoice,
};
use serde::{Deserialize, Deserializer, de};

pub use load::{Flags, Loaded, load};

use crate::plugin::PluginsConfig;

const MIB: usize = 1 << 20;
const GIB: u64 = 1 << 30;

/// Everything that can be configured.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The listener and the limits of a request.
    pub server: ServerConfig,
    /// The base model.
    pub model: ModelConfig,
    /// Adapters by the name that clients ask for.
    pub adapters: BTreeMap<String, AdapterEntry>,
    /// What adapters may take.
    pub adapter_limits: AdapterLimitsConfig,
    /// Where models and adapters come from.
    pub sources: SourcesConfig,
    /// The plugins.
    pub plugins: PluginsConfig,
    /// The admin API.
    pub admin: AdminConfig,
    /// The engine.
    pub engine: EngineConfig,
    /// The log.
    pub log: LogConfig,
}

/// `[server]`
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerConfig {
    /// The address to listen at.
    pub host: IpAddr,
    /// The port to listen at; 0 takes a free one.
    pub port: u16,
    /// The largest request head (request line and header fields), in KiB.
    pub head_limit_kib: usize,
    /// The largest request body, in MiB.
    pub body_limit_mib: usize,
    /// Seconds in which a request's body must have come.
    pub body_timeout_s: u64,
    /// Seconds in which a connection must send a whole request head: a slow head, or idleness between two requests.
    pub keep_alive_s: u64,
    /// Seconds of silence after which a stream carries a sign of life.
    pub stream_keep_alive_s: u64,
    /// Seconds that running requests have to end when the server is told to stop.
    pub drain_s: u64,
    /// Connections at a time; further ones wait to be accepted.
    pub max_connections: usize,
    /// The most choices of one request, over all its prompts.
    pub max_choices: u32,
    /// The folder of what must outlive a restart: the last good set of plugins, the audit log.
    pub state_dir: PathBuf,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            host: IpAddr::from([127, 0, 0, 1]),
            port: 8080,
            head_limit_kib: 64,
            body_limit_mib: 32,
            body_timeout_s: 30,
            keep_alive_s: 75,
            stream_keep_alive_s: 15,
            drain_s: 30,
            max_connections: 8192,
            max_choices: 128,
            state_dir: default_state_dir(),
        }
    }
}

impl ServerConfig {
    /// The largest request head, in bytes.
    pub fn head_limit(&self) -> usize {
        self.head_limit_kib.saturating_mul(1024)
    }

    /// The largest request body, in bytes.
    pub fn body_limit(&self) -> usize {
        self.body_limit_mib.saturating_mul(MIB)
    }
}

/// `[model]`
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelConfig {
    /// A name of the catalogue (`smollm2-135m`, `pocket`), a path, or a source (`hub:org/name@revision`). None serves
    /// the catalogue's default, or the model in the binary where that is out of reach.
    pub name: Option<String>,
    /// What clients call the model; none takes it from `name`.
    pub served_as: Option<String>,
    /// Further names for it.
    pub aliases: Vec<String>,
    /// A shorter context than the model's own, in tokens.
    pub context: Option<usize>,
    /// Memory for the KV cache, in MiB.
    pub kv_cache_mib: usize,
    /// What computes.
    pub device: Device,
    /// The numbers to compute in.
    pub dtype: Dtype,
    /// The instruction set to compute with, by name; none takes the best that the machine has.
    pub kernels: Option<String>,
    /// Threads that compute; none takes one for each physical core.
    pub threads: Option<usize>,
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self {
            name: None,
            served_as: None,
            aliases: Vec::new(),
            context: None,
            kv_cache_mib: 1024,
            device: Device::Auto,
            dtype: Dtype::Auto,
            kernels: None,
            threads: None,
        }
    }
}

impl ModelConfig {
    /// Bytes for the KV cache.
    pub fn kv_bytes(&self) -> usize {
        self.kv_cache_mib.saturating_mul(MIB)
    }

    /// What the engine is to compute with.
    pub fn backend(&self) -> BackendChoice {
        match self.device {
            Device::Reference => BackendChoice::Reference,
            Device::Auto | Device::Cpu => BackendChoice::Cpu(CpuOptions {
                threads: self.threads,
                kernels: self.kernels.clone(),
                dtype: match self.dtype {
                    Dtype::Auto => cpu::Dtype::Auto,
                    Dtype::Bf16 => cpu::Dtype::Bf16,
                    Dtype::F32 => cpu::Dtype::F32,
                },
            }),
        }
    }
}

/// What computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// The best that this machine has.
    Auto,
    /// The CPU, with kernels for its instructions.
    Cpu,
    /// The reference back end, in f32 on the CPU: slow.
    Reference,
}

/// The numbers that the CPU computes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// `f32` for checkpoints in `f32`, otherwise `bf16`.
    Auto,
    /// Weights as the checkpoint has them (`f32` rounded to `bf16`), keys, values and adapters in `bf16`.
    Bf16,
    /// Everything in `f32`.
    F32,
}

/// An adapter in the file: `name = "source"`, or `name = { source = "...", model = "..." }`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdapterEntry {
    /// Where it comes from.
    pub source: String,
    /// The base model that it belongs to: it is left out when another one is served.
    pub model: Option<String>,
}

impl<'de> Deserialize<'de> for AdapterEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Table {
            source: String,
            model: Option<String>,
        }
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = AdapterEntry;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a source, or a table with `source` and `model`")
            }
            fn visit_str<E: de::Error>(self, source: &str) -> Result<AdapterEntry, E> {
                Ok(AdapterEntry {
                    source: source.to_owned(),
                    model: None,
                })
            }
            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<AdapterEntry, A::Error> {
                let Table { source, model } = Table::deserialize(de::value::MapAccessDeserializer::new(map))?;
                Ok(AdapterEntry { source, model })
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// `[adapter_limits]`
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdapterLimitsConfig {
    /// Memory for adapters on the device, in MiB.
    pub device_mib: usize,
    /// Memory for adapters beside the device, in MiB.
    pub host_mib: usize,
    /// The highest rank taken.
    pub max_rank: usize,
    /// Threads that fetch and read adapters.
    pub loaders: usize,
    /// Seconds for which a failure to load answers at once.
    pub negative_ttl_s: u64,
    /// Seconds for which a caller's access to a remote adapter is taken as checked.
    pub access_ttl_s: u64,
    /// Whether requests may name adapters that are not registered, by their source.
    pub dynamic: bool,
}

impl Default for AdapterLimitsConfig {
    fn default() -> Self {
        Self {
            device_mib: 2048,
            host_mib: 4096,
            max_rank: 512,
            loaders: 4,
            negative_ttl_s: 10,
            access_ttl_s: 60,
            dynamic: true,
        }
    }
}

impl AdapterLimitsConfig {
    /// As the engine takes them.
    pub fn limits(&self) -> AdapterLimits {
        AdapterLimits {
            device_bytes: self.device_mib.saturating_mul(MIB),
            host_bytes: self.host_mib.saturating_mul(MIB),
            max_rank: self.max_rank,
            loaders: self.loaders,
            negative_ttl: Duration::from_secs(self.negative_ttl_s),
            access_ttl: Duration::from_secs(self.access_ttl_s),
            dynamic: self.dynamic,
        }
    }
}

/// `[sources]`
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SourcesConfig {
    /// The folder where downloads are kept.
    pub cache: PathBuf,
    /// The most that it may take, in GiB.
    pub cache_limit_gib: u64,
    /// The most that one model or adapter may take, in GiB.
    pub size_limit_gib: u64,
    /// Folders in which requests may name adapters by their path. Adapters and models of this file lie where they like.
    pub roots: Vec<PathBuf>,
    /// The hub's address; none takes `HF_ENDPOINT`, or the public hub.
    pub hub_endpoint: Option<String>,
    /// The operator's hub token; none takes `HF_TOKEN`.
    pub hub_token: Option<Secret>,
    /// The Python package index; none takes `PIP_INDEX_URL`, or the public index.
    pub index_url: Option<String>,
    /// An S3 endpoint other than AWS.
    pub s3_endpoint: Option<String>,
}

impl Default for SourcesConfig {
    fn default() -> Self {
        Self {
            cache: hub::default_cache_dir(),
            cache_limit_gib: 64,
            size_limit_gib: 32,
            roots: Vec::new(),
            hub_endpoint: None,
            hub_token: None,
            index_url: None,
            s3_endpoint: None,
        }
    }
}

impl SourcesConfig {
    /// As the engine takes them: what is not set here comes from the environment, in the variables that the sources'
    /// own tools read. `roots` are the folders of configured models and adapters.
    pub fn sources(&self, roots: Vec<PathBuf>) -> heddle_engine::hub::SourcesConfig {
        let mut sources = heddle_engine::hub::SourcesConfig::from_env();
        sources.cache.clone_from(&self.cache);
        sources.cache_limit = self.cache_limit_gib.saturating_mul(GIB);
        sources.size_limit = self.size_limit_gib.saturating_mul(GIB);
        sources.local_roots = self.roots.iter().cloned().chain(roots).collect();
        if let Some(endpoint) = &self.hub_endpoint {
            sources.hub_endpoint.clone_from(endpoint);
        }
        if let Some(token) = &self.hub_token {
            sources.hub_token = Some(token.expose().to_owned());
        }
        if let Some(index) = &self.index_url {
            sources.index_url.clone_from(index);
        }
        if let Some(endpoint) = &self.s3_endpoint {
            sources.s3_endpoint = Some(endpoint.clone());
        }
        sources
    }
}

/// `[admin]`
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdminConfig {
    /// Where the admin API listens; `off` for nowhere. Loopback unless a token is set.
    pub listen: AdminListen,
    /// The token that it asks for.
    pub token: Option<Secret>,
}

impl Default for AdminConfig {
    fn default() -> Self {
        Self {
            listen: AdminListen::At(([127, 0, 0, 1], 8081).into()),
            token: None,
        }
    }
}

/// Where the admin API listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdminListen {
    /// Nowhere.
    Off,
    /// At an address.
    At(std::net::SocketAddr),
}

impl<'de> Deserialize<'de> for AdminListen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.as_str() {
            "off" => Ok(Self::Off),
            address => address.parse().map(Self::At).map_err(|_| {
                de::Error::custom(format!(
                    "expected `off` or an address with a port (`127.0.0.1:8081`), found `{address}`"
                ))
            }),
        }
    }
}

/// `[engine]`: see [`EngineOptions`].
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EngineConfig {
    /// Rows of one step, decode and prefill together.
    pub step_tokens: usize,
    /// Sequences that run at a time.
    pub max_running: usize,
    /// Requests that wait at most; beyond it they are answered 429.
    pub max_waiting: usize,
    /// Distinct adapters of one step, in MiB; none for as many as there are.
    pub step_adapter_mib: Option<usize>,
    /// Whether sequences with the same beginning share their KV blocks.
    pub prefix_cache: bool,
    /// Steps after which a waiting request goes before all that came later.
    pub ageing_steps: u64,
}

impl Default for EngineConfig {
    fn default() -> Self {
        let options = EngineOptions::default();
        Self {
            step_tokens: options.step_tokens,
            max_running: options.max_running,
            max_waiting: options.max_waiting,
            step_adapter_mib: None,
            prefix_cache: options.prefix_cache,
            ageing_steps: options.ageing_steps,
        }
    }
}

impl EngineConfig {
    /// As the engine takes them.
    pub fn options(&self) -> EngineOptions {
        EngineOptions {
            step_tokens: self.step_tokens,
            max_running: self.max_running,
            max_waiting: self.max_waiting,
            step_adapter_bytes: self
                .step_adapter_mib
                .map_or(usize::MAX, |mib| mib.saturating_mul(MIB)),
            prefix_cache: self.prefix_cache,
            ageing_steps: self.ageing_steps,
        }
    }
}

/// `[log]`
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// `error`, `warn`, `info`, `debug`, `trace`, or directives (`info,heddle::plugin=debug`).
    pub level: String,
    /// How a line looks.
    pub format: LogFormat,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            level: "info".to_owned(),
            format: LogFormat::Text,
        }
    }
}

/// How a line of the log looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// A secret of the operator's: `Debug` shows nothing of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The secret itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // A token of digits comes out of the environment as a number.
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Secret;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_str<E>(self, text: &str) -> Result<Secret, E> {
                Ok(Secret(text.to_owned()))
            }
            fn visit_u64<E>(self, number: u64) -> Result<Secret, E> {
                Ok(Secret(number.to_string()))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// `$XDG_STATE_HOME/heddle`, else `~/.local/state/heddle`.
fn default_state_dir() -> PathBuf {
    std::env::var_os("XDG_STATE_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .unwrap_or_else(|| home().join(".local/state"))
        .join("heddle")
}

fn home() -> PathBuf {
    std::env::var_os("HOME").map_or_else(std::env::temp_dir, PathBuf::from)
}
