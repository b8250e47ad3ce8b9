//! The sources behind one face.

use std::sync::Arc;

use super::{
    Files, Progress, Source, SourcesConfig, cache::Cache, catalogue, config::host_of, failure::Failure,
    http::Http, job::Job, local, repository::Repository, s3::Prefix, wanted::Kind, wheel::Member,
};
use crate::error::{Error, Result};

/// The sources, with their cache.
///
/// All calls block, for as long as a download takes, and must come from plain threads: on an async runtime's worker
/// they would hold up everything else, and the HTTP client panics there. The registry's loaders are plain threads; a host
/// that serves asynchronously uses `spawn_blocking`.
#[derive(Debug)]
pub struct Sources {
    config: SourcesConfig,
    cache: Cache,
    http: Http,
}

/// A model of the catalogue, and which of its sources it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// Its files.
    pub files: Files,
    /// Where they came from.
    pub source: Source,
    /// The catalogue's entry.
    pub entry: catalogue::Entry,
}

impl Sources {
    /// Opens the cache.
    ///
    /// # Errors
    /// [`Error::Io`]: its folder cannot be made.
    pub fn new(config: SourcesConfig) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            cache: Cache::open(&config.cache, config.cache_limit)?,
            http: Http::new(config.patience.clone()),
            config,
        }))
    }

    /// The configuration.
    pub fn config(&self) -> &SourcesConfig {
        &self.config
    }

    /// Fetches a model's files. They stay in the cache for as long as this process lives.
    ///
    /// # Errors
    /// [`Error::Fetch`] says why not, [`Error::Io`] what is wrong with the cache.
    pub fn fetch_model(&self, source: &Source, progress: &dyn Progress) -> Result<Files> {
        let files = self.fetch(source, Kind::Model, None, progress)?;
        self.keep(&files)?;
        Ok(files)
    }

    /// Fetches an adapter's files, with the caller's credential if there is one; without, the operator's own is used.
    /// They are not evicted within a minute: read them at once.
    ///
    /// # Errors
    /// As for [`Sources::fetch_model`].
    pub fn fetch_adapter(
        &self,
        source: &Source,
        credential: Option<&str>,
        progress: &dyn Progress,
    ) -> Result<Files> {
        self.fetch(source, Kind::Adapter, credential, progress)
    }

    /// Asks the source whether `credential` may see `source`, without fetching: for each request to a private adapter.
    /// Only the hub knows callers; the other sources are the operator's own, and it is the operator's rules that decide.
    ///
    /// # Errors
    /// [`Error::Fetch`], with `forbidden` or `not_found` if the source said so. A hub that is out of reach allows only
    /// what it said to be public when it was last asked.
    pub fn check_access(&self, source: &Source, credential: Option<&str>) -> Result<()> {
        let checked = match source {
            Source::Hub { repo, revision } => self
                .repository(source, repo, revision.as_deref(), credential)
                .check_access(),
            Source::Local(path) => {
                let limit = self.limit(Kind::Adapter);
                local::find(path, &self.config.local_roots, Kind::Adapter, limit).map(drop)
            }
            Source::S3 { .. } | Source::Wheel { .. } | Source::Embedded(_) => Ok(()),
        };
        checked.map_err(|failure| failure.of(source, &self.name_of(source)))
    }

    /// Whether the source's files are here: a fetch would not need the network. A branch may have moved since.
    pub fn cached(&self, source: &Source) -> bool {
        [Kind::Model, Kind::Adapter]
            .into_iter()
            .any(|kind| matches!(self.cached_files(source, kind), Ok(Some(_))))
    }

    /// Fetches a model of the catalogue from the first of its sources that can give it, and says what fails and what is
    /// tried next. A source that is cached comes first, and then nothing is asked: what was served yesterday is
    /// served today, and a second start needs no network.
    ///
    /// # Errors
    /// [`Error::InvalidSource`]: there is no such entry. [`Error::Fetch`]: no source gave it.
    pub fn fetch_catalogue(&self, name: &str, progress: &dyn Progress) -> Result<Fetched> {
        let entry = catalogue::find(name).ok_or_else(|| Error::InvalidSource {
            text: name.to_owned(),
            reason: format!("models known by name are {}", catalogue::names().join(", ")),
        })?;
        for source in &entry.sources {
            if let Ok(Some(files)) = self.cached_files(source, Kind::Model) {
                self.keep(&files)?;
                return Ok(Fetched {
                    files,
                    source: source.clone(),
                    entry,
                });
            }
        }
        let mut last = None;
        for source in &entry.sources {
            if let Some(error) = &last {
                progress.say(&format!("{error}; trying {}", self.name_of(source)));
            }
            match self.fetch_model(source, progress) {
                Ok(files) => {
                    return Ok(Fetched {
                        files,
                        source: source.clone(),
                        entry,
                    });
                }
                Err(error) => last = Some(error),
            }
        }
        // An entry has a source.
        Err(last.unwrap_or(Error::UnknownAdapter(name.to_owned())))
    }

    /// Fetches [`catalogue::DEFAULT`], or says why not and takes the embedded [`catalogue::FALLBACK`].
    ///
    /// # Errors
    /// None in practice: the fallback is in the binary.
    pub fn fetch_default(&self, progress: &dyn Progress) -> Result<Fetched> {
        self.fetch_catalogue(catalogue::DEFAULT, progress)
            .or_else(|error| {
                progress.say(&format!(
                    "{error}; running on `{}`, the tiny model in the binary, instead of `{}`",
                    catalogue::FALLBACK,
                    catalogue::DEFAULT
                ));
                self.fetch_catalogue(catalogue::FALLBACK, progress)
            })
    }

    fn fetch(
        &self,
        source: &Source,
        kind: Kind,
        credential: Option<&str>,
        progress: &dyn Progress,
    ) -> Result<Files> {
        let job = Job {
            cache: &self.cache,
            kind,
            limit: self.limit(kind),
            progress,
        };
        let fetched = match source {
            Source::Hub { repo, revision } => self
                .repository(source, repo, revision.as_deref(), credential)
                .fetch(&job)
                .map(Files::Folder),
            Source::Local(path) => local::find(path, &self.config.local_roots, kind, job.limit),
            Source::S3 { bucket, prefix } => self.prefix(source, bucket, prefix).fetch(&job),
            Source::Wheel {
                package,
                version,
                member,
                sha256,
            } => self
                .member(package, version, member, sha256.as_deref())
                .fetch(&job),
            Source::Embedded(set) => Ok(Files::Embedded(*set)),
        };
        fetched.map_err(|failure| failure.of(source, &self.name_of(source)))
    }

    /// The files, if they are here: what would be fetched now, or was the last time.
    fn cached_files(&self, source: &Source, kind: Kind) -> Result<Option<Files>, Failure> {
        match source {
            Source::Hub { repo, revision } => {
                let found = self
                    .repository(source, repo, revision.as_deref(), None)
                    .cached(kind)?;
                Ok(found.map(|(folder, _)| Files::Folder(folder)))
            }
            Source::Local(path) => {
                local::find(path, &self.config.local_roots, kind, self.limit(kind)).map(Some)
            }
            Source::S3 { bucket, prefix } => self.prefix(source, bucket, prefix).cached(kind),
            Source::Wheel {
                package,
                version,
                member,
                sha256,
            } => self
                .member(package, version, member, sha256.as_deref())
                .cached(kind),
            Source::Embedded(set) => Ok(Some(Files::Embedded(*set))),
        }
    }

    /// Keeps a model's files from eviction.
    fn keep(&self, files: &Files) -> Result<()> {
        match files {
            Files::Folder(folder) => self.cache.pin(folder),
            Files::Gguf(file) => file.parent().map_or(Ok(()), |folder| self.cache.pin(folder)),
            Files::Embedded(_) => Ok(()),
        }
    }

    fn limit(&self, kind: Kind) -> u64 {
        match kind {
            Kind::Model => self.config.size_limit,
            Kind::Adapter => self.config.adapter_size_limit.min(self.config.size_limit),
        }
    }

    /// Where a source is, for messages.
    fn name_of(&self, source: &Source) -> String {
        match source {
            Source::Hub { .. } => format!("the hub ({})", host_of(&self.config.hub_endpoint)),
            Source::Local(_) => "the local folders".to_owned(),
            Source::S3 { .. } => "S3".to_owned(),
            Source::Wheel { package, version, .. } => {
                format!(
                    "the package {package} {version} ({})",
                    host_of(&self.config.index_url)
                )
            }
            Source::Embedded(_) => "this binary".to_owned(),
        }
    }

    fn repository<'a>(
        &'a self,
        source: &'a Source,
        repo: &'a str,
        revision: Option<&'a str>,
        credential: Option<&'a str>,
    ) -> Repository<'a> {
        Repository {
            http: &self.http,
            cache: &self.cache,
            config: &self.config,
            source,
            repo,
            revision,
            credential: credential.filter(|credential| !credential.is_empty()),
        }
    }

    fn prefix<'a>(&'a self, source: &'a Source, bucket: &'a str, prefix: &'a str) -> Prefix<'a> {
        Prefix {
            cache: &self.cache,
            config: &self.config,
            source,
            bucket,
            prefix,
        }
    }

    fn member<'a>(
        &'a self,
        package: &'a str,
        version: &'a str,
        member: &'a str,
        sha256: Option<&'a str>,
    ) -> Member<'a> {
        Member {
            http: &self.http,
            cache: &self.cache,
            config: &self.config,
            package,
            version,
            member,
            sha256,
        }
    }
}
