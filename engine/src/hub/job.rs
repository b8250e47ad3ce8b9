//! One fetch: what is wanted of a source's files, counted, brought and put into the cache as one entry.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{
    Progress,
    cache::{Cache, Claim, FileRecord, Key, Manifest, Staging, hash_file},
    failure::Failure,
    part::too_large,
    wanted::{INDEX, Kind, RemoteFile, shards},
};
use crate::error::Error;

/// One fetch: what for, into which cache, how much at most, and who watches.
#[derive(Clone, Copy)]
pub(super) struct Job<'a> {
    pub(super) cache: &'a Cache,
    pub(super) kind: Kind,
    /// The most bytes of all files together.
    pub(super) limit: u64,
    pub(super) progress: &'a dyn Progress,
}

/// Brings one file to a path, with so many bytes at most. How is the source's own business.
pub(super) type FetchFile<'a> = dyn Fn(&RemoteFile, &Path, u64) -> Result<FileRecord, Failure> + 'a;

impl Job<'_> {
    /// The folder with those files of `there` that make what is wanted: from the cache, or brought now.
    pub(super) fn choose(
        &self,
        key: &Key,
        origin: &str,
        there: &[RemoteFile],
        fetch: &FetchFile<'_>,
    ) -> Result<PathBuf, Failure> {
        match self.cache.claim(key, self.progress)? {
            Claim::Ready(files) => Ok(files),
            Claim::Empty(staging) => self.choose_into(staging, origin, there, fetch),
        }
    }

    /// The same for an entry that was claimed.
    pub(super) fn choose_into(
        &self,
        staging: Staging<'_>,
        origin: &str,
        there: &[RemoteFile],
        fetch: &FetchFile<'_>,
    ) -> Result<PathBuf, Failure> {
        let mut wanted = self.kind.choose(there)?;
        self.check_size(&wanted)?;
        if let Some(index) = wanted.iter().find(|file| file.name == INDEX) {
            // It says what else is wanted. The part stays, so that it is not brought again below.
            self.one(&staging, index, self.limit, fetch)?;
            let path = staging.part(INDEX);
            let text = fs::read(&path).map_err(|error| Error::io(path, error))?;
            wanted.extend(shards(&text, there)?);
        }
        self.bring(staging, origin, &wanted, fetch)
    }

    /// Brings exactly these files.
    pub(super) fn bring(
        &self,
        staging: Staging<'_>,
        origin: &str,
        wanted: &[RemoteFile],
        fetch: &FetchFile<'_>,
    ) -> Result<PathBuf, Failure> {
        self.check_size(wanted)?;
        staging.reserve(known_bytes(wanted))?;
        let mut files = Vec::new();
        let mut left = self.limit;
        for file in wanted {
            let record = self.one(&staging, file, left, fetch)?;
            left -= record.size;
            files.push(record);
        }
        staging.commit(&Manifest {
            origin: origin.to_owned(),
            files,
        })
    }

    /// Refuses what is too large before anything of it is brought.
    fn check_size(&self, wanted: &[RemoteFile]) -> Result<(), Failure> {
        match known_bytes(wanted) {
            bytes if bytes > self.limit => Err(too_large(bytes, self.limit)),
            _ => Ok(()),
        }
    }

    fn one(
        &self,
        staging: &Staging<'_>,
        file: &RemoteFile,
        left: u64,
        fetch: &FetchFile<'_>,
    ) -> Result<FileRecord, Failure> {
        let part = staging.part(&file.name);
        if let (Some(size), Some(sha256)) = (file.size, &file.sha256)
            && !part.exists()
            && let Some(twin) = self.cache.twin(&staging.key, size, sha256)
            && hash_file(&twin).is_ok_and(|found| found == *sha256)
            && fs::hard_link(&twin, &part).is_ok()
        {
            return Ok(FileRecord {
                name: file.name.clone(),
                size,
                sha256: sha256.clone(),
            });
        }
        fetch(file, &part, left)
    }
}

fn known_bytes(files: &[RemoteFile]) -> u64 {
    files
        .iter()
        .filter_map(|file| file.size)
        .fold(0, u64::saturating_add)
}
