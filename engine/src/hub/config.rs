//! Where to look, what to keep, how long to wait.

use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use super::Source;
use crate::error::{Error, Result};

const GIB: u64 = 1 << 30;

/// The longest pause between two attempts, whatever a server asks for.
const LONGEST_PAUSE: Duration = Duration::from_secs(20);

/// Where to look and what to keep.
#[derive(Clone)]
pub struct SourcesConfig {
    /// The cache's folder.
    pub cache: PathBuf,
    /// The most bytes that the cache may take.
    pub cache_limit: u64,
    /// The most bytes of one model or adapter.
    pub size_limit: u64,
    /// The most bytes of one adapter: requests may name adapters, so this is the tighter one.
    pub adapter_size_limit: u64,
    /// Folders that local paths must lie in.
    pub local_roots: Vec<PathBuf>,
    /// The hub's address.
    pub hub_endpoint: String,
    /// The operator's hub token: sent when a caller brings none.
    pub hub_token: Option<String>,
    /// The cache that the hub's own tools keep; what is there is not fetched again.
    pub hub_cache: Option<PathBuf>,
    /// The Python package index (PEP 691 / PEP 503).
    pub index_url: String,
    /// An S3 endpoint other than AWS. Keys and region come from the environment (`AWS_*`).
    pub s3_endpoint: Option<String>,
    /// Asks no source: only what is cached is there.
    pub offline: bool,
    /// How long to wait, how often to try.
    pub patience: Patience,
}

/// How long to wait for a source and how often to try again.
#[derive(Debug, Clone)]
pub struct Patience {
    /// For a connection. A closed network costs this much and no more.
    pub connect: Duration,
    /// For the answer to a question: which commit is `main`, which files are there.
    pub lookup: Duration,
    /// For the next bytes of a file.
    pub read: Duration,
    /// Attempts after the first, when a server is busy or a connection breaks. Bytes that came count as a new start.
    pub retries: u32,
    /// The pause before the second attempt; each further one is twice as long.
    pub backoff: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            lookup: Duration::from_secs(10),
            read: Duration::from_secs(30),
            retries: 4,
            backoff: Duration::from_millis(500),
        }
    }
}

impl Patience {
    /// How long to wait after so many attempts, unless the server said: never longer than [`LONGEST_PAUSE`].
    pub(super) fn pause(&self, attempt: u32, asked: Option<Duration>) -> Duration {
        let own = self.backoff.saturating_mul(1 << attempt.min(10));
        asked.unwrap_or(own).min(LONGEST_PAUSE)
    }
}

impl SourcesConfig {
    /// The public sources, a cache in `cache`, no token and no local root.
    pub fn new(cache: impl Into<PathBuf>) -> Self {
        Self {
            cache: cache.into(),
            cache_limit: 100 * GIB,
            size_limit: 64 * GIB,
            adapter_size_limit: 4 * GIB,
            local_roots: Vec::new(),
            hub_endpoint: "https://huggingface.co".to_owned(),
            hub_token: None,
            hub_cache: None,
            index_url: "https://pypi.org/simple".to_owned(),
            s3_endpoint: None,
            offline: false,
            patience: Patience::default(),
        }
    }

    /// The same with what the environment says, in the variables that the hub's, Python's and S3's own tools read:
    /// `HF_ENDPOINT`, `HF_TOKEN` (or `HUGGING_FACE_HUB_TOKEN`, or the token file), `HF_HOME`, `HF_HUB_CACHE`,
    /// `HF_HUB_OFFLINE`, `PIP_INDEX_URL`, `UV_DEFAULT_INDEX`, `UV_INDEX_URL`, `S3_ENDPOINT_URL`.
    /// Certificates (`SSL_CERT_FILE`), proxies (`HTTPS_PROXY`, `NO_PROXY`) and `AWS_*` are read where they are needed.
    pub fn from_env() -> Self {
        Self::from_variables(&|name| std::env::var(name).ok())
    }

    fn from_variables(variable: &dyn Fn(&str) -> Option<String>) -> Self {
        let first = |names: &[&str]| {
            names
                .iter()
                .filter_map(|name| variable(name))
                .map(|value| value.trim().to_owned())
                .find(|value| !value.is_empty())
        };
        let mut config = Self::new(default_cache_dir());
        let hub_home = first(&["HF_HOME"])
            .map(PathBuf::from)
            .or_else(|| std::env::home_dir().map(|home| home.join(".cache/huggingface")));
        config.hub_cache = first(&["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"])
            .map(PathBuf::from)
            .or_else(|| hub_home.as_ref().map(|home| home.join("hub")));
        let token_file = first(&["HF_TOKEN_PATH"])
            .map(PathBuf::from)
            .or_else(|| hub_home.map(|home| home.join("token")));
        config.hub_token =
            first(&["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"]).or_else(|| read_token(&token_file?));
        if let Some(endpoint) = first(&["HF_ENDPOINT"]) {
            config.hub_endpoint = endpoint;
        }
        if let Some(index) = first(&["PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL"]) {
            config.index_url = index;
        }
        config.s3_endpoint = first(&["S3_ENDPOINT_URL"]);
        config.offline = first(&["HF_HUB_OFFLINE"])
            .is_some_and(|value| matches!(value.to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on"));
        config
    }

    /// Allows the path of a local source that the operator named, on the command line or in the configuration, together
    /// with what links in that folder point to (as in the hub's own cache). Other sources need nothing.
    ///
    /// # Errors
    /// The path does not exist or cannot be read.
    pub fn allow(&mut self, source: &Source) -> Result<()> {
        let Source::Local(path) = source else {
            return Ok(());
        };
        let failed = |error| Error::io(path, error);
        let real = path.canonicalize().map_err(failed)?;
        if real.is_dir() {
            for item in real.read_dir().map_err(failed)? {
                let item = item.map_err(failed)?;
                if item.file_type().map_err(failed)?.is_symlink()
                    && let Ok(target) = item.path().canonicalize()
                {
                    self.local_roots.push(target);
                }
            }
        }
        self.local_roots.push(real);
        Ok(())
    }
}

// Neither the token nor credentials in an address may end up in a log.
impl fmt::Debug for SourcesConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourcesConfig")
            .field("cache", &self.cache)
            .field("cache_limit", &self.cache_limit)
            .field("size_limit", &self.size_limit)
            .field("adapter_size_limit", &self.adapter_size_limit)
            .field("local_roots", &self.local_roots)
            .field("hub_endpoint", &host_of(&self.hub_endpoint))
            .field("hub_token", &self.hub_token.as_ref().map(|_| "(set)"))
            .field("hub_cache", &self.hub_cache)
            .field("index_url", &host_of(&self.index_url))
            .field("s3_endpoint", &self.s3_endpoint.as_deref().map(host_of))
            .field("offline", &self.offline)
            .field("patience", &self.patience)
            .finish()
    }
}

/// The host (and port) of an address, without credentials that may be in it.
pub(super) fn host_of(address: &str) -> String {
    match reqwest::Url::parse(address) {
        Ok(url) => match (url.host_str(), url.port()) {
            (Some(host), Some(port)) => format!("{host}:{port}"),
            (Some(host), None) => host.to_owned(),
            (None, _) => "(no host)".to_owned(),
        },
        Err(_) => "(not an address)".to_owned(),
    }
}

/// `$XDG_CACHE_HOME/heddle`, else `~/.cache/heddle`; in the working folder where there is no home.
pub fn default_cache_dir() -> PathBuf {
    std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| std::env::home_dir().map(|home| home.join(".cache")))
        .map_or_else(|| PathBuf::from(".heddle-cache"), |cache| cache.join("heddle"))
}

fn read_token(path: &Path) -> Option<String> {
    let token = std::fs::read_to_string(path).ok()?.trim().to_owned();
    (!token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(pairs: &[(&str, &str)]) -> SourcesConfig {
        SourcesConfig::from_variables(&|name| {
            pairs
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_environment_is_read_as_the_tools_do() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("token"), "hf_file\n").unwrap();
        let folder = home.path().to_str().unwrap();

        let config = from(&[
            ("HF_HOME", folder),
            ("UV_INDEX_URL", "https://mirror.example/simple"),
        ]);
        assert_eq!(config.hub_token.as_deref(), Some("hf_file"));
        assert_eq!(config.hub_cache.unwrap(), home.path().join("hub"));
        assert_eq!(config.index_url, "https://mirror.example/simple");
        assert!(!config.offline);

        let config = from(&[
            ("HF_HOME", folder),
            ("HF_TOKEN", " hf_variable "),
            ("PIP_INDEX_URL", ""),
            ("HF_HUB_OFFLINE", "1"),
        ]);
        assert_eq!(config.hub_token.as_deref(), Some("hf_variable"));
        assert_eq!(config.index_url, "https://pypi.org/simple");
        assert!(config.offline);
    }

    #[test]
    fn no_secret_is_printed() {
        let config = from(&[
            ("HF_TOKEN", "hf_secret"),
            (
                "PIP_INDEX_URL",
                "https://user:password@mirror.example:8443/simple",
            ),
        ]);
        let text = format!("{config:?}");
        assert!(
            !text.contains("hf_secret") && !text.contains("password"),
            "{text}"
        );
        assert!(text.contains("mirror.example:8443"), "{text}");
    }

    #[test]
    fn pauses_double_and_are_bounded() {
        let patience = Patience::default();
        assert_eq!(patience.pause(0, None), Duration::from_millis(500));
        assert_eq!(patience.pause(2, None), Duration::from_secs(2));
        assert_eq!(patience.pause(30, None), LONGEST_PAUSE);
        assert_eq!(
            patience.pause(0, Some(Duration::from_secs(3))),
            Duration::from_secs(3)
        );
        assert_eq!(patience.pause(0, Some(Duration::from_secs(3600))), LONGEST_PAUSE);
    }
}
