//! A model or an adapter from a source that lists its files: chosen, counted, fetched and put into the cache.

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

/// What the sources that list their files do alike.
pub(super) struct Assembly<'a> {
    pub(super) cache: &'a Cache,
    pub(super) kind: Kind,
    /// The most bytes of all files together.
    pub(super) limit: u64,
    pub(super) progress: &'a dyn Progress,
}

/// Fetches one file to a path, with so many bytes at most.
pub(super) type FetchFile<'a> = dyn Fn(&RemoteFile, &Path, u64) -> Result<FileRecord, Failure> + 'a;

impl Assembly<'_> {
    /// The folder with the files of `there` that are wanted, from the cache or fetched now.
    pub(super) fn run(
        &self,
        key: &Key,
        origin: &str,
        there: &[RemoteFile],
        fetch: &FetchFile<'_>,
    ) -> Result<PathBuf, Failure> {
        match self.cache.claim(key, self.progress)? {
            Claim::Ready(files) => Ok(files),
            Claim::Empty(staging) => self.fill(staging, origin, there, fetch),
        }
    }

    /// The same for an entry that was claimed.
    pub(super) fn fill(
        &self,
        staging: Staging<'_>,
        origin: &str,
        there: &[RemoteFile],
        fetch: &FetchFile<'_>,
    ) -> Result<PathBuf, Failure> {
        let mut wanted = self.kind.choose(there)?;
        self.check(&wanted)?;
        let mut records = Vec::new();
        let mut left = self.limit;
        // The index first: it says what else is wanted.
        if let Some(at) = wanted.iter().position(|file| file.name == INDEX) {
            let record = self.one(&staging, &wanted.remove(at), left, fetch)?;
            left -= record.size;
            records.push(record);
            let path = staging.part(INDEX);
            let index = fs::read(&path).map_err(|error| Error::io(path, error))?;
            wanted.extend(shards(&index, there)?);
            self.check(&wanted)?;
        }
        staging.reserve(self.limit - left + known_bytes(&wanted))?;
        for file in &wanted {
            let record = self.one(&staging, file, left, fetch)?;
            left -= record.size;
            records.push(record);
        }
        staging.commit(&Manifest {
            origin: origin.to_owned(),
            files: records,
        })
    }

    /// Refuses what is too large before anything of it is fetched.
    fn check(&self, wanted: &[RemoteFile]) -> Result<(), Failure> {
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
            && let Some(twin) = self.cache.twin(size, sha256)
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
