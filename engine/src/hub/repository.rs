//! Repositories on the hub: its API for the commit and the files, its own tools' cache, and access by token.

use std::path::PathBuf;

use reqwest::Url;
use serde::Deserialize;

use super::{
    Source, SourcesConfig,
    cache::{Cache, Key},
    config::host_of,
    failure::Failure,
    http::{Authorization, Http, Request, parse_address},
    job::Job,
    revisions::Revision,
    wanted::{INDEX, Kind, RemoteFile, shards},
};

/// The most bytes of an answer of the API: a repository with tens of thousands of files.
const ANSWER: u64 = 32 << 20;

/// One repository, as one caller sees it.
pub(super) struct Repository<'a> {
    pub(super) http: &'a Http,
    pub(super) cache: &'a Cache,
    pub(super) config: &'a SourcesConfig,
    pub(super) source: &'a Source,
    pub(super) repo: &'a str,
    pub(super) revision: Option<&'a str>,
    /// The caller's own credential; without one the operator's token is used.
    pub(super) credential: Option<&'a str>,
}

/// What the hub says of a revision: `GET /api/models/{repo}/revision/{revision}?blobs=true`.
#[derive(Debug, Deserialize)]
struct Info {
    /// The commit.
    sha: String,
    private: Option<bool>,
    /// `false`, or how access is granted: `"auto"`, `"manual"`.
    #[serde(default)]
    gated: serde_json::Value,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Debug, Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    lfs: Option<Lfs>,
}

#[derive(Debug, Deserialize)]
struct Lfs {
    sha256: Option<String>,
    size: Option<u64>,
}

impl Info {
    fn is_gated(&self) -> bool {
        !matches!(
            self.gated,
            serde_json::Value::Null | serde_json::Value::Bool(false)
        )
    }

    /// The files at the top: what lies deeper is other formats.
    fn files(&self) -> Vec<RemoteFile> {
        self.siblings
            .iter()
            .filter(|sibling| !sibling.rfilename.contains('/'))
            .map(|sibling| {
                let lfs = sibling.lfs.as_ref();
                RemoteFile {
                    name: sibling.rfilename.clone(),
                    size: sibling.size.or_else(|| lfs?.size),
                    sha256: lfs.and_then(|lfs| lfs.sha256.clone()),
                }
            })
            .collect()
    }
}

impl Repository<'_> {
    /// Fetches the files at the revision, or takes them from a cache. A branch is looked up each time; when the hub is
    /// out of reach, the revision that was last seen does.
    pub(super) fn fetch(&self, job: &Job<'_>) -> Result<PathBuf, Failure> {
        // A commit never changes.
        if self.revision.is_some_and(is_commit)
            && let Some((files, _)) = self.cached(job.kind)?
        {
            return Ok(files);
        }
        let info = match self.look_up() {
            Ok(info) => info,
            Err(Failure::Unreachable(reason)) => {
                let Some((files, commit)) = self.cached(job.kind)? else {
                    return Err(Failure::Unreachable(reason));
                };
                let commit = &commit[..commit.len().min(12)];
                let repo = self.repo;
                job.progress.say(&format!(
                    "{reason}; using commit {commit} of `{repo}`, which is cached"
                ));
                return Ok(files);
            }
            Err(failure) => return Err(failure),
        };
        let files = self.files_at(&info, job)?;
        self.cache.remember(
            self.source,
            Revision {
                source: self.source.to_string(),
                // Where the hub does not say, it is public if it was shown to somebody without a token.
                public: !info.is_gated() && !info.private.unwrap_or(self.token().is_some()),
                version: info.sha,
                operator: self.credential.is_none(),
            },
        );
        Ok(files)
    }

    /// The files at a commit that the hub has shown to this caller.
    fn files_at(&self, info: &Info, job: &Job<'_>) -> Result<PathBuf, Failure> {
        // Before anything else: files that are here already are nobody's proof.
        if info.is_gated() {
            self.prove_access(job.kind.config(), &info.sha)?;
        }
        let there = info.files();
        let key = self.key(job.kind, &info.sha);
        if let Some(files) = self.cache.entry(&key)? {
            return Ok(files);
        }
        if let Some(files) = self.of_hub_tools(job.kind, &info.sha, Some(&there)) {
            return Ok(files);
        }
        let origin = format!("hub:{}@{}", self.repo, info.sha);
        job.choose(&key, &origin, &there, &|file, path, left| {
            let request = self.request(self.file_url(&info.sha, &file.name)?);
            self.http
                .download(&request, file, path, left, job.progress)
                .map_err(|failure| self.explain(failure))
        })
    }

    /// Whether the caller may see the repository, by the hub's own word; without it, only what is known to be public.
    pub(super) fn check_access(&self) -> Result<(), Failure> {
        match self.look_up() {
            Ok(info) if info.is_gated() => {
                let files = info.files();
                let probe = [Kind::Adapter, Kind::Model]
                    .map(Kind::config)
                    .into_iter()
                    .find(|name| files.iter().any(|file| file.name == *name));
                match probe {
                    Some(name) => self.prove_access(name, &info.sha),
                    None => Ok(()),
                }
            }
            Ok(_) => Ok(()),
            Err(Failure::Unreachable(reason)) => match self.cache.recall(self.source) {
                Some(seen) if seen.may_be_seen(self.credential) => Ok(()),
                _ => Err(Failure::Unreachable(reason)),
            },
            Err(failure) => Err(failure),
        }
    }

    /// The files and their commit as far as they are here already, without asking the hub.
    pub(super) fn cached(&self, kind: Kind) -> Result<Option<(PathBuf, String)>, Failure> {
        if let Some(seen) = self.cache.recall(self.source)
            && seen.may_be_seen(self.credential)
        {
            let files = match self.cache.entry(&self.key(kind, &seen.version))? {
                Some(files) => Some(files),
                None => self.of_hub_tools(kind, &seen.version, None),
            };
            if let Some(files) = files {
                return Ok(Some((files, seen.version)));
            }
        }
        // The hub's own tools fetched it as the operator.
        if self.credential.is_some() {
            return Ok(None);
        }
        let commit = match self.revision.filter(|revision| is_commit(revision)) {
            Some(commit) => Some(commit.to_owned()),
            None => self.hub_tools_commit(),
        };
        Ok(commit.and_then(|commit| Some((self.of_hub_tools(kind, &commit, None)?, commit))))
    }

    fn key(&self, kind: Kind, commit: &str) -> Key {
        let readable = format!("hub-{}-{}", self.repo, &commit[..commit.len().min(8)]);
        Key::new(
            kind,
            &readable,
            &["hub", &self.config.hub_endpoint, self.repo, commit],
        )
    }

    fn look_up(&self) -> Result<Info, Failure> {
        if self.config.offline {
            return Err(Failure::Unreachable("the server is set to be offline".to_owned()));
        }
        let mut url = self.url(&["api", "models"], &["revision", self.revision.unwrap_or("main")])?;
        url.set_query(Some("blobs=true"));
        let reply = self
            .http
            .get(&self.request(url), ANSWER)
            .map_err(|failure| self.explain(failure))?;
        let host = host_of(&self.config.hub_endpoint);
        let info: Info = serde_json::from_slice(&reply.body).map_err(|error| {
            Failure::Refused(format!("{host} did not answer as the hub's API does: {error}"))
        })?;
        // It becomes a path in the hub's own cache.
        if !is_commit(&info.sha) {
            return Err(Failure::Refused(format!("{host} named a commit that is none")));
        }
        Ok(info)
    }

    /// The API shows gated repositories to everybody; their files are the test.
    fn prove_access(&self, file: &str, commit: &str) -> Result<(), Failure> {
        let request = self.request(self.file_url(commit, file)?);
        self.http
            .get(&request, ANSWER)
            .map(drop)
            .map_err(|failure| self.explain(failure))
    }

    /// Says what the hub's bare statuses mean for this repository.
    fn explain(&self, failure: Failure) -> Failure {
        match failure {
            Failure::Forbidden(reason) if self.token().is_some() => Failure::Forbidden(format!(
                "{reason}: the token may not see `{}`, or there is no such repository",
                self.repo
            )),
            Failure::Forbidden(reason) => Failure::Forbidden(format!(
                "{reason}: `{}` is private or gated, or there is no such repository; a token is needed",
                self.repo
            )),
            Failure::NotFound(reason) => Failure::NotFound(format!(
                "{reason}: there is no `{}` with a revision `{}` that this token may see",
                self.repo,
                self.revision.unwrap_or("main")
            )),
            other => other,
        }
    }

    fn token(&self) -> Option<&str> {
        self.credential.or(self.config.hub_token.as_deref())
    }

    fn request(&self, url: Url) -> Request<'_> {
        Request {
            url,
            authorization: self.token().map_or(Authorization::None, Authorization::Bearer),
            accept: "*/*",
        }
    }

    fn file_url(&self, commit: &str, name: &str) -> Result<Url, Failure> {
        self.url(&[], &["resolve", commit, name])
    }

    /// The endpoint, `before`, the repository, `after`; each part escaped, so that a slash in a revision is `%2F`.
    fn url(&self, before: &[&str], after: &[&str]) -> Result<Url, Failure> {
        let mut url = parse_address(&self.config.hub_endpoint)?;
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty()
                .extend(before)
                .extend(self.repo.split('/'))
                .extend(after);
        }
        Ok(url)
    }

    fn hub_tools_cache(&self) -> Option<(hf_hub::Cache, hf_hub::Repo)> {
        let cache = hf_hub::Cache::new(self.config.hub_cache.clone()?);
        let revision = self.revision.unwrap_or("main").to_owned();
        let repo = hf_hub::Repo::with_revision(self.repo.to_owned(), hf_hub::RepoType::Model, revision);
        Some((cache, repo))
    }

    /// The commit that the hub's own tools noted for the revision.
    fn hub_tools_commit(&self) -> Option<String> {
        let (cache, repo) = self.hub_tools_cache()?;
        let noted = cache
            .path()
            .join(repo.folder_name())
            .join("refs")
            .join(repo.revision());
        let commit = std::fs::read_to_string(noted).ok()?.trim().to_owned();
        is_commit(&commit).then_some(commit)
    }

    /// The folder in which the hub's own tools keep that commit, if everything is there that is wanted of `there`:
    /// with the sizes that the hub says, where it was asked.
    fn of_hub_tools(&self, kind: Kind, commit: &str, there: Option<&[RemoteFile]>) -> Option<PathBuf> {
        let (cache, repo) = self.hub_tools_cache()?;
        let folder = cache.repo(repo).pointer_path(commit);
        let listed;
        let there = match there {
            Some(there) => there,
            None => {
                listed = super::local::listing(&folder)?;
                &listed
            }
        };
        let mut wanted = kind.choose(there).ok()?;
        if wanted.iter().any(|file| file.name == INDEX) {
            let index = std::fs::read(folder.join(INDEX)).ok()?;
            wanted.extend(shards(&index, there).ok()?);
        }
        let is_there = |file: &RemoteFile| {
            let found = folder.join(&file.name).metadata();
            found.is_ok_and(|found| file.size.is_none_or(|size| found.len() == size))
        };
        wanted.iter().all(is_there).then_some(folder)
    }
}

/// Whether a revision is a whole commit: SHA-1 or SHA-256 in hexadecimal.
fn is_commit(revision: &str) -> bool {
    matches!(revision.len(), 40 | 64) && revision.bytes().all(|b| b.is_ascii_hexdigit())
}
