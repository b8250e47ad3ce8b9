//! Prefixes in S3 buckets, with the operator's keys: `AWS_*` in the environment, or the machine's own role.

use std::path::{Path, PathBuf};

use futures_util::StreamExt;
use object_store::{
    BackoffConfig, ClientOptions, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, RetryConfig,
    aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey},
};
use sha2::{Digest, Sha256};

use super::{
    Files, Progress, Source, SourcesConfig,
    cache::{Cache, Claim, FileRecord, Key},
    failure::{Failure, deepest},
    http::{is_loopback, parse_address},
    job::{FetchFile, Job},
    part::{Part, State},
    revisions::Revision,
    wanted::{Kind, RemoteFile},
};

/// A prefix in a bucket: a folder, or one GGUF object.
pub(super) struct Prefix<'a> {
    pub(super) cache: &'a Cache,
    pub(super) config: &'a SourcesConfig,
    pub(super) source: &'a Source,
    pub(super) bucket: &'a str,
    pub(super) prefix: &'a str,
}

impl Prefix<'_> {
    /// Fetches the objects, or takes them from the cache: they are listed each time, and fetched again when one of
    /// them changed. When S3 is out of reach, what was last fetched does.
    pub(super) fn fetch(&self, job: &Job<'_>) -> Result<Files, Failure> {
        match self.fetch_listed(job) {
            Err(Failure::Unreachable(reason)) => match self.cached(job.kind)? {
                Some(files) => {
                    let source = self.source;
                    job.progress.say(&format!(
                        "{reason}; using the files of `{source}` that are cached"
                    ));
                    Ok(files)
                }
                None => Err(Failure::Unreachable(reason)),
            },
            other => other,
        }
    }

    /// The files as they were last fetched, without asking.
    pub(super) fn cached(&self, kind: Kind) -> Result<Option<Files>, Failure> {
        let Some(seen) = self.cache.recall(self.source) else {
            return Ok(None);
        };
        let folder = self.cache.entry(&self.key(kind, &seen.version))?;
        Ok(folder.map(|folder| self.files(folder)))
    }

    fn fetch_listed(&self, job: &Job<'_>) -> Result<Files, Failure> {
        if self.config.offline {
            return Err(Failure::Unreachable("the server is set to be offline".to_owned()));
        }
        let store = self.store()?;
        // One thread, this one: the call blocks anyway.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| crate::Error::io("the runtime for S3", error))?;
        let objects = runtime.block_on(self.list(&store, job.kind))?;
        let fetch = |file: &RemoteFile, path: &Path, left: u64| {
            let object = objects
                .iter()
                .find(|object| object.location.filename() == Some(&file.name));
            let object = object.ok_or_else(|| Failure::NotFound(format!("`{}` is not listed", file.name)))?;
            let part = Part::open(path, file, left)?;
            runtime.block_on(self.download(&store, object, part, job.progress))
        };
        let there: Vec<_> = objects.iter().filter_map(remote_file).collect();
        let version = version_of(&objects);
        let folder = self.bring(job, &version, &there, &fetch)?;
        self.cache.remember(
            self.source,
            Revision {
                source: self.source.to_string(),
                version,
                public: false,
                operator: true,
            },
        );
        Ok(self.files(folder))
    }

    fn bring(
        &self,
        job: &Job<'_>,
        version: &str,
        there: &[RemoteFile],
        fetch: &FetchFile<'_>,
    ) -> Result<PathBuf, Failure> {
        let key = self.key(job.kind, version);
        let origin = self.source.to_string();
        if !self.is_gguf() {
            return job.choose(&key, &origin, there, fetch);
        }
        match self.cache.claim(&key, job.progress)? {
            Claim::Ready(folder) => Ok(folder),
            Claim::Empty(staging) => job.bring(staging, &origin, there, fetch),
        }
    }

    fn is_gguf(&self) -> bool {
        self.prefix.ends_with(".gguf")
    }

    fn files(&self, folder: PathBuf) -> Files {
        match self.prefix.rsplit('/').next() {
            Some(name) if self.is_gguf() => Files::Gguf(folder.join(name)),
            _ => Files::Folder(folder),
        }
    }

    fn key(&self, kind: Kind, version: &str) -> Key {
        let readable = format!("s3-{}-{}", self.bucket, self.prefix);
        let endpoint = self.config.s3_endpoint.as_deref().unwrap_or_default();
        Key::new(
            kind,
            &readable,
            &["s3", endpoint, self.bucket, self.prefix, version],
        )
    }

    fn store(&self) -> Result<AmazonS3, Failure> {
        let patience = &self.config.patience;
        let mut client = ClientOptions::new()
            .with_connect_timeout(patience.connect)
            .with_read_timeout(patience.read)
            // A large object takes as long as it takes.
            .with_timeout_disabled();
        let retry = RetryConfig {
            backoff: BackoffConfig {
                init_backoff: patience.backoff,
                ..BackoffConfig::default()
            },
            max_retries: patience.retries as usize,
            ..RetryConfig::default()
        };
        let mut builder = AmazonS3Builder::from_env().with_bucket_name(self.bucket);
        if let Some(endpoint) = &self.config.s3_endpoint {
            // Refuses plain HTTP to other machines.
            client = client.with_allow_http(is_loopback(&parse_address(endpoint)?));
            builder = builder.with_endpoint(endpoint);
            // Another endpoint than AWS has no machine roles to ask for keys: without keys, requests go unsigned.
            let has_keys = [
                AmazonS3ConfigKey::AccessKeyId,
                AmazonS3ConfigKey::WebIdentityTokenFile,
                AmazonS3ConfigKey::ContainerCredentialsRelativeUri,
                AmazonS3ConfigKey::ContainerCredentialsFullUri,
            ]
            .iter()
            .any(|key| builder.get_config_value(key).is_some());
            if !has_keys {
                builder = builder.with_skip_signature(true);
            }
        }
        builder
            .with_client_options(client)
            .with_retry(retry)
            .build()
            .map_err(|error| Failure::Refused(format!("S3 is not set up: {}", deepest(&error))))
    }

    /// The objects of the prefix itself, not of what lies deeper, in the order of their names.
    async fn list(&self, store: &AmazonS3, kind: Kind) -> Result<Vec<ObjectMeta>, Failure> {
        let prefix = object_store::path::Path::from(self.prefix);
        let mut objects = if self.is_gguf() {
            vec![store.head(&prefix).await.map_err(|error| self.explain(error))?]
        } else {
            match store.list_with_delimiter(Some(&prefix)).await {
                Ok(listed) => listed.objects,
                // The library tells apart why an object, not why a listing was refused.
                Err(error) => {
                    let refusal = match store.head(&prefix.join(kind.config())).await {
                        Ok(_) => Failure::Forbidden(format!(
                            "the server's keys may read bucket `{}` but not list it",
                            self.bucket
                        )),
                        Err(other) => self.explain(other),
                    };
                    return Err(match refusal {
                        Failure::Unreachable(_) => self.explain(error),
                        refusal => refusal,
                    });
                }
            }
        };
        objects.retain(|object| object.location.filename().is_some_and(matters));
        objects.sort_by(|one, other| one.location.cmp(&other.location));
        if objects.is_empty() {
            return Err(Failure::NotFound(format!(
                "bucket `{}` holds no model or adapter under `{}`",
                self.bucket, self.prefix
            )));
        }
        Ok(objects)
    }

    async fn download(
        &self,
        store: &AmazonS3,
        object: &ObjectMeta,
        mut part: Part,
        progress: &dyn Progress,
    ) -> Result<FileRecord, Failure> {
        if part.validator() != object.e_tag.as_deref() {
            part.restart()?;
        }
        part.expect(State {
            validator: object.e_tag.clone(),
            total: Some(object.size),
        })?;
        progress.begin(part.name(), Some(object.size), part.len());
        let mut failures = 0;
        while !part.is_complete() {
            let before = part.len();
            match self.go_on(store, object, &mut part, progress).await {
                Ok(()) => {}
                Err(Failure::Unreachable(reason)) => {
                    failures = if part.len() > before { 1 } else { failures + 1 };
                    if failures > self.config.patience.retries {
                        return Err(Failure::Unreachable(reason));
                    }
                    tokio::time::sleep(self.config.patience.pause(failures - 1, None)).await;
                }
                Err(failure) => return Err(failure),
            }
        }
        progress.end();
        part.finish().map_err(Failure::Refused)
    }

    /// One request: the rest of the object, if it is still the one that was listed.
    async fn go_on(
        &self,
        store: &AmazonS3,
        object: &ObjectMeta,
        part: &mut Part,
        progress: &dyn Progress,
    ) -> Result<(), Failure> {
        let options = GetOptions {
            if_match: object.e_tag.clone(),
            range: (part.len() > 0).then_some(GetRange::Offset(part.len())),
            ..GetOptions::default()
        };
        let answer = store
            .get_opts(&object.location, options)
            .await
            .map_err(|error| self.explain(error))?;
        let mut chunks = answer.into_stream();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|error| self.explain(error))?;
            part.append(&chunk)?;
            progress.advance(chunk.len() as u64);
        }
        Ok(())
    }

    fn explain(&self, error: object_store::Error) -> Failure {
        let place = format!("bucket `{}`, `{}`", self.bucket, self.prefix);
        match error {
            object_store::Error::NotFound { .. } => {
                Failure::NotFound(format!("{place}: there is no such bucket or object"))
            }
            object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
                Failure::Forbidden(format!("{place}: the server's keys may not read it"))
            }
            object_store::Error::Precondition { .. } => {
                Failure::Refused(format!("{place}: it changed while it was fetched; try again"))
            }
            other => Failure::Unreachable(format!("{place}: {}", deepest(&other))),
        }
    }
}

/// Whether a file may be part of a model or an adapter: a changed README changes neither.
fn matters(name: &str) -> bool {
    [".safetensors", ".json", ".gguf", ".jinja", ".model", ".txt"]
        .iter()
        .any(|end| name.ends_with(end))
}

fn remote_file(object: &ObjectMeta) -> Option<RemoteFile> {
    Some(RemoteFile {
        name: object.location.filename()?.to_owned(),
        size: Some(object.size),
        sha256: None,
    })
}

/// What stands for the state of the prefix: names, sizes and ETags.
fn version_of(objects: &[ObjectMeta]) -> String {
    let mut hasher = Sha256::new();
    for object in objects {
        let etag = object
            .e_tag
            .clone()
            .unwrap_or_else(|| object.last_modified.to_rfc3339());
        hasher.update(format!("{}\0{}\0{etag}\0", object.location, object.size));
    }
    hex::encode(hasher.finalize())
}
