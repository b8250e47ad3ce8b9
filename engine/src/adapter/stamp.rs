//! Whether an adapter's folder has changed, by a look at its files that reads none of them.

use std::{
    fs::Metadata,
    path::Path,
    time::{Duration, SystemTime},
};

/// What the file system says of the two files of an adapter; none for a file that is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp([Option<FileStamp>; 2]);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileStamp {
    bytes: u64,
    modified: Option<SystemTime>,
    /// Another file under the same name has another number.
    inode: u64,
    /// The last change of content or name; where the system does not tell, the same as `modified`.
    changed: Option<SystemTime>,
}

/// File systems count time in ticks of some milliseconds: two changes within one leave the same stamp.
const TICK: Duration = Duration::from_millis(50);

impl Stamp {
    /// Looks at the folder.
    pub(super) fn of(folder: &Path) -> Self {
        let file = |name: &str| {
            std::fs::metadata(folder.join(name))
                .ok()
                .map(|file| FileStamp::of(&file))
        };
        Self([file("adapter_config.json"), file("adapter_model.safetensors")])
    }

    /// Whether another change would show in the stamp: the last one is not as recent as `now`.
    pub(super) fn is_settled(&self, now: SystemTime) -> bool {
        self.0.iter().flatten().all(|file| {
            // A time to come says nothing about the present.
            file.changed
                .and_then(|changed| now.duration_since(changed).ok())
                .is_none_or(|age| age > TICK)
        })
    }
}

impl FileStamp {
    #[cfg(unix)]
    fn of(file: &Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        let changed = u64::try_from(file.ctime())
            .ok()
            .map(|seconds| SystemTime::UNIX_EPOCH + Duration::new(seconds, file.ctime_nsec() as u32));
        Self {
            bytes: file.len(),
            modified: file.modified().ok(),
            inode: file.ino(),
            changed,
        }
    }

    #[cfg(not(unix))]
    fn of(file: &Metadata) -> Self {
        let modified = file.modified().ok();
        Self {
            bytes: file.len(),
            modified,
            inode: 0,
            changed: modified,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_shows_once_it_is_older_than_a_tick() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("adapter_config.json");
        let none = Stamp::of(folder.path());
        assert!(none.is_settled(SystemTime::now()));
        std::fs::write(&config, "{}").unwrap();
        let first = Stamp::of(folder.path());
        assert_ne!(none, first);
        assert_eq!(first, Stamp::of(folder.path()));
        let now = SystemTime::now();
        assert!(!first.is_settled(now));
        assert!(first.is_settled(now + 2 * TICK));
        // Another file of the same size under the same name.
        std::fs::write(folder.path().join("new"), "[]").unwrap();
        std::fs::rename(folder.path().join("new"), &config).unwrap();
        assert_ne!(first, Stamp::of(folder.path()));
    }
}
