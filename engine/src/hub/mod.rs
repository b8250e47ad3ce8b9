//! Where models and adapters come from: hub, local paths, S3, and files inside Python packages ("wheel").

pub mod catalogue;
mod files;
mod progress;
mod source;

use std::{path::PathBuf, sync::Arc};

pub use files::Files;
pub use progress::{Progress, Silent};
pub use source::{EmbeddedFiles, Source};

use crate::error::Result;

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
