//! The cache on disk.
//!
//! ```text
//! CACHEDIR.TAG               tells backup tools to leave it out
//! lock                       held while room is made
//! size                       the bytes of all entries
//! entries/KEY/entry.json     the manifest: origin, files with size and SHA-256; its time is that of the last use
//! entries/KEY/files/...      the files
//! partial/KEY/...            what is being fetched: NAME.part, and NAME.part.json with the server's word on it
//! locks/KEY                  held while KEY is fetched, used for the first time or evicted
//! revisions/KEY.json         what a branch stood for when it was last looked up
//! ```
//!
//! An entry appears whole, by one rename. Locks are the system's file locks: they hold between threads and between
//! processes, and a process that dies gives them back.

use std::{
    collections::HashSet,
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Read},
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Progress, evict::RESERVED, failure::Failure, wanted::Kind};
use crate::error::{Error, Result};

/// Files up to this size are hashed when a process first uses them; of larger ones only the size is checked.
const HASHED: u64 = 256 << 20;

const MANIFEST: &str = "entry.json";

/// The cache.
#[derive(Debug)]
pub(super) struct Cache {
    pub(super) root: PathBuf,
    /// The most bytes.
    pub(super) limit: u64,
    /// Entries whose files were hashed by this process.
    checked: Mutex<HashSet<Key>>,
    /// Manifests under a shared lock: entries that stay for as long as this process lives.
    pinned: Mutex<Vec<File>>,
}

/// The name of an entry: readable, and unique by a hash of what identifies it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key(pub(super) String);

/// What an entry holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    /// Where it came from, as a source is written.
    pub(super) origin: String,
    pub(super) files: Vec<FileRecord>,
}

/// One file of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileRecord {
    pub(super) name: String,
    pub(super) size: u64,
    /// In lower-case hexadecimal.
    pub(super) sha256: String,
}

/// The right to fill an entry, or the entry that somebody filled before.
pub(super) enum Claim<'a> {
    Ready(PathBuf),
    Empty(Staging<'a>),
}

/// An entry in the making. Dropping it leaves what came for the next attempt.
pub(super) struct Staging<'a> {
    cache: &'a Cache,
    pub(super) key: Key,
    folder: PathBuf,
    _lock: File,
}

impl Key {
    /// The key of what `identity` names, for use as `kind`. Change the version when the layout changes.
    pub(super) fn new(kind: Kind, readable: &str, identity: &[&str]) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(b"heddle cache 1\0");
        hasher.update(kind.name().as_bytes());
        for part in identity {
            hasher.update([0]);
            hasher.update(part.as_bytes());
        }
        let digest = hex::encode(&hasher.finalize()[..12]);
        let readable: String = readable
            .chars()
            .map(|c| {
                if c.is_ascii_alphanumeric() || "._".contains(c) {
                    c
                } else {
                    '-'
                }
            })
            .take(80)
            .collect();
        Self(format!("{}-{digest}", readable.trim_matches(['.', '-'])))
    }

    /// What the keys of one repository's revisions have in common.
    fn family(&self) -> &str {
        self.0.rsplitn(3, '-').last().unwrap_or(&self.0)
    }
}

impl Manifest {
    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }
}

impl Cache {
    /// Opens the cache, making its folders where they are missing. Only this user may look into them.
    pub(super) fn open(root: &Path, limit: u64) -> Result<Self> {
        let make = |folder: &Path| {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(folder)
                .map_err(|error| Error::io(folder, error))
        };
        make(root)?;
        for folder in ["entries", "partial", "locks", "revisions"] {
            make(&root.join(folder))?;
        }
        let tag = root.join("CACHEDIR.TAG");
        if !tag.exists() {
            // https://bford.info/cachedir/
            fs::write(&tag, "Signature: 8a477f597d28d172789f06886806bc55\n")
                .map_err(|error| Error::io(&tag, error))?;
        }
        Ok(Self {
            root: root.to_owned(),
            limit,
            checked: Mutex::default(),
            pinned: Mutex::default(),
        })
    }

    /// The folder with the entry's files, if it is there and sound. Counts as a use.
    pub(super) fn entry(&self, key: &Key) -> Result<Option<PathBuf>> {
        if !self.manifest_path(key).exists() {
            return Ok(None);
        }
        // Against an eviction between the check and the use.
        let _lock = self.lock(key, &|| {})?;
        self.entry_locked(key)
    }

    /// The right to fetch the entry; waits while another thread or process does.
    pub(super) fn claim(&self, key: &Key, progress: &dyn Progress) -> Result<Claim<'_>, Failure> {
        let waiting = || progress.say("somebody else is fetching the same; waiting for it");
        let lock = self.lock(key, &waiting)?;
        if let Some(files) = self.entry_locked(key)? {
            return Ok(Claim::Ready(files));
        }
        let folder = self.partial(key);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .map_err(|error| Error::io(&folder, error))?;
        Ok(Claim::Empty(Staging {
            cache: self,
            key: key.clone(),
            folder,
            _lock: lock,
        }))
    }

    /// Keeps the entry from eviction for as long as this process lives.
    pub(super) fn pin(&self, files: &Path) -> Result<()> {
        let Some(entry) = files.parent().filter(|entry| entry.starts_with(&self.root)) else {
            return Ok(());
        };
        let path = entry.join(MANIFEST);
        let file = File::open(&path)
            .and_then(|file| file.lock_shared().map(|()| file))
            .map_err(|error| Error::io(path, error))?;
        self.pinned
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(file);
        Ok(())
    }

    /// A file with this content in another entry of the same family: a new revision mostly repeats the one before.
    pub(super) fn twin(&self, key: &Key, size: u64, sha256: &str) -> Option<PathBuf> {
        let entries = fs::read_dir(self.root.join("entries")).ok()?;
        let related = entries.flatten().filter(|entry| {
            let name = entry.file_name();
            name.to_str().is_some_and(|name| name.starts_with(key.family()))
        });
        related.map(|entry| entry.path()).find_map(|entry| {
            let manifest = read_manifest(&entry)?;
            let same = manifest
                .files
                .iter()
                .find(|file| file.size == size && file.sha256 == sha256)?;
            let path = entry.join("files").join(&same.name);
            (path.metadata().ok()?.len() == size).then_some(path)
        })
    }

    pub(super) fn entry_folder(&self, key: &Key) -> PathBuf {
        self.root.join("entries").join(&key.0)
    }

    pub(super) fn partial(&self, key: &Key) -> PathBuf {
        self.root.join("partial").join(&key.0)
    }

    fn manifest_path(&self, key: &Key) -> PathBuf {
        self.entry_folder(key).join(MANIFEST)
    }

    fn entry_locked(&self, key: &Key) -> Result<Option<PathBuf>> {
        let folder = self.entry_folder(key);
        let Some(manifest) = read_manifest(&folder) else {
            return Ok(None);
        };
        let files = folder.join("files");
        let first_use = !self.checked().contains(key);
        if !manifest
            .files
            .iter()
            .all(|file| is_sound(&files, file, first_use))
        {
            tracing::warn!(
                entry = key.0,
                "a cached entry is damaged and will be fetched again"
            );
            self.checked().remove(key);
            return Ok(None);
        }
        if first_use {
            self.checked().insert(key.clone());
        }
        // Where the cache cannot be written, the time of use is not noted; the files are as good.
        let _ = File::options()
            .write(true)
            .open(folder.join(MANIFEST))
            .and_then(|file| file.set_modified(SystemTime::now()));
        Ok(Some(files))
    }

    fn checked(&self) -> MutexGuard<'_, HashSet<Key>> {
        self.checked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The exclusive lock on `key`; calls `waiting` before it waits.
    fn lock(&self, key: &Key, waiting: &dyn Fn()) -> Result<File> {
        let path = self.root.join("locks").join(&key.0);
        let failed = |error| Error::io(&path, error);
        loop {
            let file = open_lock(&path).map_err(failed)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    waiting();
                    file.lock().map_err(failed)?;
                }
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
            // Eviction removes the file under the lock: whoever waited holds a lock on nothing and tries again.
            if is_same(&file, &path) {
                return Ok(file);
            }
        }
    }
}

impl Staging<'_> {
    /// Where the file `name` goes while it is fetched.
    pub(super) fn part(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.part"))
    }

    /// Evicts until `bytes` more fit, and notes that they are spoken for.
    pub(super) fn reserve(&self, bytes: u64) -> Result<(), Failure> {
        self.cache.make_room(&self.key, bytes)?;
        let path = self.folder.join(RESERVED);
        fs::write(&path, bytes.to_string()).map_err(|error| Error::io(path, error))?;
        Ok(())
    }

    /// Makes the parts an entry.
    pub(super) fn commit(self, manifest: &Manifest) -> Result<PathBuf, Failure> {
        self.cache.admit(&self.key, manifest.bytes())?;
        let target = self.cache.entry_folder(&self.key);
        // Built beside the parts, so that a crash leaves them.
        let built = self.folder.join("entry");
        let path = built.join(MANIFEST);
        let build = || -> io::Result<()> {
            if built.exists() {
                fs::remove_dir_all(&built)?;
            }
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(built.join("files"))?;
            for file in &manifest.files {
                fs::rename(self.part(&file.name), built.join("files").join(&file.name))?;
            }
            fs::write(&path, serde_json::to_vec_pretty(manifest)?)?;
            File::open(&path)?.sync_all()?;
            File::open(built.join("files"))?.sync_all()?;
            if target.exists() {
                // Damaged, or it would have been used.
                fs::remove_dir_all(&target)?;
            }
            fs::rename(&built, &target)?;
            fs::remove_dir_all(&self.folder)
        };
        build().map_err(|error| Error::io(&target, error))?;
        self.cache.checked().insert(self.key.clone());
        Ok(target.join("files"))
    }
}

impl Drop for Staging<'_> {
    fn drop(&mut self) {
        // What came stays for the next attempt and counts as what it is; nothing more is spoken for.
        let _ = fs::remove_file(self.folder.join(RESERVED));
        // Only where nothing came.
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Opens a lock's file, making it where it is missing.
pub(super) fn open_lock(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
}

/// Whether `path` still names the open file.
pub(super) fn is_same(file: &File, path: &Path) -> bool {
    match (file.metadata(), path.metadata()) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

pub(super) fn read_manifest(entry: &Path) -> Option<Manifest> {
    let manifest: Manifest = serde_json::from_slice(&fs::read(entry.join(MANIFEST)).ok()?).ok()?;
    // Names become paths: whoever could write the manifest must not lead out of the entry.
    manifest
        .files
        .iter()
        .all(|file| is_plain_name(&file.name))
        .then_some(manifest)
}

/// The open manifest, to ask whether the entry is pinned and when it was last used.
pub(super) fn open_manifest(entry: &Path) -> io::Result<File> {
    File::open(entry.join(MANIFEST))
}

/// Whether a name is one component of a path and nothing else.
pub(super) fn is_plain_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\\', '\0'])
}

fn is_sound(folder: &Path, record: &FileRecord, hash: bool) -> bool {
    let path = folder.join(&record.name);
    match path.metadata() {
        Ok(found) if found.len() == record.size => {
            !hash || record.size > HASHED || hash_file(&path).is_ok_and(|sha256| sha256 == record.sha256)
        }
        _ => false,
    }
}

/// The SHA-256 of a file, in lower-case hexadecimal.
pub(super) fn hash_file(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    let mut chunk = vec![0; 1 << 20];
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(hex::encode(hasher.finalize())),
            count => hasher.update(&chunk[..count]),
        }
    }
}
