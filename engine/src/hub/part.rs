//! A file that is being fetched: bytes are hashed and counted as they come, and what came outlives an interruption.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{
    cache::FileRecord,
    failure::{Failure, bytes},
    wanted::RemoteFile,
};
use crate::error::Error;

/// What the server said of the bytes that are there: kept beside them, so that a later attempt can go on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State {
    /// A strong ETag.
    pub(super) validator: Option<String>,
    /// The size of the whole file.
    pub(super) total: Option<u64>,
}

/// A file in the making.
pub(super) struct Part {
    path: PathBuf,
    file: File,
    hasher: Sha256,
    len: u64,
    limit: u64,
    expected: RemoteFile,
    state: State,
    /// Whether bytes of an earlier answer are in it.
    resumed: bool,
}

impl Part {
    /// Opens `path` and goes on where an earlier attempt stopped, if what is there can be checked: by an ETag when the
    /// server is asked, or by the hash when all is there. More than `limit` bytes are refused.
    pub(super) fn open(path: &Path, expected: &RemoteFile, limit: u64) -> Result<Self, Failure> {
        if let Some(size) = expected.size
            && size > limit
        {
            return Err(too_large(size, limit));
        }
        let failed = |error| Error::io(path, error);
        let file = open(path).map_err(failed)?;
        let len = file.metadata().map_err(failed)?.len();
        let state = fs::read(state_path(path))
            .ok()
            .and_then(|text| serde_json::from_slice::<State>(&text).ok())
            .unwrap_or_default();
        let mut part = Self {
            path: path.to_owned(),
            file,
            hasher: Sha256::new(),
            len,
            limit,
            expected: expected.clone(),
            state,
            resumed: len > 0,
        };
        let total = part.total();
        let checkable = part.state.validator.is_some() || part.expected.sha256.is_some();
        let fits = part.len <= limit && total.is_none_or(|total| part.len <= total);
        let agrees = part.expected.size.is_none()
            || part.state.total.is_none()
            || part.expected.size == part.state.total;
        if part.len > 0 && checkable && fits && agrees {
            part.hash_what_is_there()?;
        } else {
            part.restart()?;
        }
        Ok(part)
    }

    /// The file's name.
    pub(super) fn name(&self) -> &str {
        &self.expected.name
    }

    /// Bytes that are there.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Whether bytes of an earlier answer are in it.
    pub(super) fn resumed(&self) -> bool {
        self.resumed
    }

    /// The size of the whole file, where it is known.
    pub(super) fn total(&self) -> Option<u64> {
        self.expected.size.or(self.state.total)
    }

    /// The ETag of the file whose first bytes are there.
    pub(super) fn validator(&self) -> Option<&str> {
        self.state.validator.as_deref()
    }

    /// Whether every byte is there.
    pub(super) fn is_complete(&self) -> bool {
        self.total() == Some(self.len)
    }

    /// Throws away what is there. The file is a new one: the old one may be a link to an entry that is in use.
    pub(super) fn restart(&mut self) -> Result<(), Failure> {
        self.len = 0;
        self.resumed = false;
        self.hasher = Sha256::new();
        self.state = State::default();
        let _ = fs::remove_file(state_path(&self.path));
        self.file = fs::remove_file(&self.path)
            .and_then(|()| open(&self.path))
            .map_err(|error| Error::io(&self.path, error))?;
        Ok(())
    }

    /// Notes what the server says of the file whose bytes follow, and refuses what is too large before any comes.
    pub(super) fn expect(&mut self, state: State) -> Result<(), Failure> {
        if let Some(total) = state.total {
            if total > self.limit {
                return Err(too_large(total, self.limit));
            }
            if let Some(size) = self.expected.size
                && size != total
            {
                return Err(Failure::Refused(format!(
                    "it should be of {} and is of {}",
                    bytes(size),
                    bytes(total)
                )));
            }
        }
        self.resumed = self.len > 0;
        if state != self.state {
            let path = state_path(&self.path);
            let text = serde_json::to_vec(&state).unwrap_or_default();
            fs::write(&path, text).map_err(|error| Error::io(path, error))?;
            self.state = state;
        }
        Ok(())
    }

    /// Appends what came.
    pub(super) fn append(&mut self, chunk: &[u8]) -> Result<(), Failure> {
        let len = self.len + chunk.len() as u64;
        if len > self.limit {
            return Err(too_large(len, self.limit));
        }
        self.file
            .write_all(chunk)
            .map_err(|error| Error::io(&self.path, error))?;
        self.hasher.update(chunk);
        self.len = len;
        Ok(())
    }

    /// Checks the whole against what was expected, and puts it on the disk. The error says what is wrong with the bytes:
    /// they are to be thrown away.
    pub(super) fn finish(&mut self) -> Result<FileRecord, String> {
        let name = &self.expected.name;
        let sha256 = hex::encode(self.hasher.finalize_reset());
        if let Some(size) = self.total()
            && size != self.len
        {
            return Err(format!(
                "`{name}` should be of {size} bytes and came with {}",
                self.len
            ));
        }
        if let Some(expected) = &self.expected.sha256
            && *expected != sha256
        {
            return Err(format!(
                "`{name}` should have the SHA-256 {expected} and came with {sha256}"
            ));
        }
        self.file
            .sync_all()
            .map_err(|error| format!("`{name}` could not be written: {error}"))?;
        Ok(FileRecord {
            name: name.clone(),
            size: self.len,
            sha256,
        })
    }

    fn hash_what_is_there(&mut self) -> Result<(), Failure> {
        let mut chunk = vec![0; 1 << 20];
        let mut read = || -> std::io::Result<()> {
            self.file.rewind()?;
            loop {
                match self.file.read(&mut chunk)? {
                    0 => break,
                    count => self.hasher.update(&chunk[..count]),
                }
            }
            self.file.seek(SeekFrom::Start(self.len)).map(drop)
        };
        read().map_err(|error| Error::io(&self.path, error))?;
        Ok(())
    }
}

fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
}

fn state_path(path: &Path) -> PathBuf {
    path.with_added_extension("json")
}

/// The refusal of what is over the limit.
pub(super) fn too_large(size: u64, limit: u64) -> Failure {
    Failure::Refused(format!(
        "it is too large: {} of at most {}; raise the size limit if you want it",
        bytes(size),
        bytes(limit)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The SHA-256 of `abc`, from FIPS 180-2, appendix B.1.
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn file(size: Option<u64>, sha256: Option<&str>) -> RemoteFile {
        RemoteFile {
            name: "x".to_owned(),
            size,
            sha256: sha256.map(str::to_owned),
        }
    }

    #[test]
    fn goes_on_after_an_interruption() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.part");
        let abc = file(Some(3), Some(ABC));
        Part::open(&path, &abc, 10).unwrap().append(b"ab").unwrap();
        let mut part = Part::open(&path, &abc, 10).unwrap();
        assert_eq!((part.len(), part.resumed()), (2, true));
        part.append(b"c").unwrap();
        let record = part.finish().unwrap();
        assert_eq!((record.size, record.sha256.as_str()), (3, ABC));
    }

    #[test]
    fn starts_over_when_nothing_can_tell_whether_the_bytes_fit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.part");
        let unknown = file(None, None);
        Part::open(&path, &unknown, 10).unwrap().append(b"ab").unwrap();
        assert_eq!(Part::open(&path, &unknown, 10).unwrap().len(), 0);
    }

    #[test]
    fn refuses_too_much_and_the_wrong_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.part");
        let abc = file(Some(3), Some(ABC));
        assert!(matches!(Part::open(&path, &abc, 2), Err(Failure::Refused(_))));
        let mut part = Part::open(&path, &file(None, None), 2).unwrap();
        assert!(matches!(part.append(b"abc"), Err(Failure::Refused(_))));

        let mut part = Part::open(&path, &abc, 10).unwrap();
        part.append(b"abd").unwrap();
        let fault = part.finish().unwrap_err();
        assert!(fault.contains(ABC), "{fault}");
    }
}
