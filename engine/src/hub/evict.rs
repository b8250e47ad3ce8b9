//! Keeping the cache within its limit: whole entries go, the longest unused first, never one that is in use.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use super::{
    cache::{Cache, Key, is_same, open_lock, open_manifest, read_manifest},
    failure::{Failure, bytes},
};
use crate::error::Error;

/// The file in a partial entry that says how many bytes it will take.
pub(super) const RESERVED: &str = "reserved";

/// The file with the bytes of all entries: counting ten thousand of them takes most of a second.
const TALLY: &str = "size";

/// An entry used so recently may be about to be read: whoever asked for it has its path and no lock.
const GRACE: Duration = Duration::from_secs(60);

/// Something that takes room.
struct Held {
    key: Key,
    folder: PathBuf,
    bytes: u64,
    used: SystemTime,
    complete: bool,
}

impl Cache {
    /// Evicts until `needed` bytes for the entry `key` fit, whatever of it is there already.
    pub(super) fn make_room(&self, key: &Key, needed: u64) -> Result<(), Failure> {
        self.room(key, needed, false)
    }

    /// The same for an entry that is about to be put in place: from here on it counts.
    pub(super) fn admit(&self, key: &Key, bytes: u64) -> Result<(), Failure> {
        self.room(key, bytes, true)
    }

    fn room(&self, key: &Key, needed: u64, counts: bool) -> Result<(), Failure> {
        if needed > self.limit {
            return Err(Failure::Refused(format!(
                "it takes {} and the whole cache may take {}: raise the cache's limit",
                bytes(needed),
                bytes(self.limit)
            )));
        }
        let path = self.root.join("lock");
        let lock = open_lock(&path).and_then(|file| file.lock().map(|()| file));
        let _lock: File = lock.map_err(|error| Error::io(path, error))?;
        let partial: Vec<_> = self.partial_entries().filter(|item| item.key != *key).collect();
        let taken = sum(&partial).saturating_add(needed);
        let entries = match self.tally() {
            Some(entries) if entries.saturating_add(taken) <= self.limit => entries,
            _ => self.evict(key, partial, needed)?,
        };
        if counts {
            // Noted before the entry is there: a crash in between leaves too high a number, which the next count mends.
            self.set_tally(entries + needed);
        }
        Ok(())
    }

    /// Counts everything, evicts what has to go, and returns the bytes of the entries that stay. It makes a little more
    /// room than needed, so that a full cache is not counted for each entry that comes.
    fn evict(&self, key: &Key, partial: Vec<Held>, needed: u64) -> Result<u64, Failure> {
        let mut held: Vec<_> = self
            .entries()
            .filter(|item| item.key != *key)
            .chain(partial)
            .collect();
        held.sort_by_key(|item| item.used);
        let comfortable = self.limit - self.limit / 10;
        let mut total = sum(&held);
        held.retain(|item| {
            let stays = total.saturating_add(needed) <= comfortable || !self.discard(item);
            if !stays {
                tracing::info!(entry = item.key.0, bytes = item.bytes, "evicted from the cache");
                total -= item.bytes;
            }
            stays
        });
        let entries = held
            .iter()
            .filter(|item| item.complete)
            .map(|item| item.bytes)
            .sum();
        self.set_tally(entries);
        if total.saturating_add(needed) > self.limit {
            return Err(Failure::Refused(format!(
                "the cache is full: {} of {} are in use and {} more are needed; raise the cache's limit or try again in a minute",
                bytes(total),
                bytes(self.limit),
                bytes(needed)
            )));
        }
        Ok(entries)
    }

    /// The bytes of all entries, as last noted.
    fn tally(&self) -> Option<u64> {
        fs::read_to_string(self.root.join(TALLY))
            .ok()?
            .trim()
            .parse()
            .ok()
    }

    fn set_tally(&self, bytes: u64) {
        let path = self.root.join(TALLY);
        if fs::write(&path, bytes.to_string()).is_err() {
            // No number is better than a wrong one: it is counted anew.
            let _ = fs::remove_file(path);
        }
    }

    fn entries(&self) -> impl Iterator<Item = Held> {
        children(&self.root.join("entries")).map(|(name, folder)| {
            let used = open_manifest(&folder).and_then(|file| file.metadata()?.modified());
            Held {
                bytes: read_manifest(&folder).map_or_else(|| size_of(&folder), |manifest| manifest.bytes()),
                key: Key(name),
                folder,
                used: used.unwrap_or(SystemTime::UNIX_EPOCH),
                complete: true,
            }
        })
    }

    fn partial_entries(&self) -> impl Iterator<Item = Held> {
        children(&self.root.join("partial")).map(|(name, folder)| {
            let reserved = fs::read_to_string(folder.join(RESERVED))
                .ok()
                .and_then(|text| text.parse().ok());
            Held {
                bytes: size_of(&folder).max(reserved.unwrap_or(0)),
                key: Key(name),
                used: newest(&folder),
                folder,
                complete: false,
            }
        })
    }

    /// Removes it unless it is in use.
    fn discard(&self, item: &Held) -> bool {
        // Held while it is fetched.
        let lock_path = self.root.join("locks").join(&item.key.0);
        let Ok(lock) = open_lock(&lock_path) else {
            return false;
        };
        if lock.try_lock().is_err() || !is_same(&lock, &lock_path) {
            return false;
        }
        if item.complete
            && let Ok(manifest) = open_manifest(&item.folder)
        {
            // Shared by whoever runs a model from it.
            if manifest.try_lock().is_err() {
                return false;
            }
            let used = manifest.metadata().and_then(|data| data.modified());
            if used.is_ok_and(|used| used.elapsed().is_ok_and(|since| since < GRACE)) {
                return false;
            }
        }
        // Without its manifest it is no entry any more, should the rest fail.
        let _ = fs::remove_file(item.folder.join("entry.json"));
        let removed = fs::remove_dir_all(&item.folder).is_ok();
        let _ = fs::remove_file(&lock_path);
        removed
    }
}

fn sum(items: &[Held]) -> u64 {
    items.iter().map(|item| item.bytes).sum()
}

fn children(folder: &Path) -> impl Iterator<Item = (String, PathBuf)> + use<> {
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|item| Some((item.file_name().into_string().ok()?, item.path())))
}

fn size_of(folder: &Path) -> u64 {
    children(folder)
        .map(|(_, path)| match path.symlink_metadata() {
            Ok(data) if data.is_dir() => size_of(&path),
            Ok(data) => data.len(),
            Err(_) => 0,
        })
        .sum()
}

fn newest(folder: &Path) -> SystemTime {
    children(folder)
        .filter_map(|(_, path)| path.metadata().ok()?.modified().ok())
        .max()
        .unwrap_or(SystemTime::UNIX_EPOCH)
}
