//! Compiled components on disk, so that a restart does not compile.
//!
//! A compiled component is native code: whoever can write one that is loaded owns the server. So each entry carries a
//! MAC (HMAC-SHA256, RFC 2104) under a key that this installation made for itself, and an entry that does not verify
//! is not loaded but made again. An entry holds a configured snapshot, and with it what the operator's configuration
//! holds: the folder is 0700, its files 0600.

use std::{
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use super::{contract, files, runtime};
use crate::error::Result;

/// Entries that are kept; the oldest go first.
const MAX_ENTRIES: usize = 64;
/// Names the layout of an entry, and all that goes into its name.
const DOMAIN: &str = "heddle compiled component 1";
const MAC_BYTES: usize = 32;
const SUFFIX: &str = "cwasm";

/// A block of SHA-256: the longest key that HMAC takes as it is.
type Key = [u8; 64];

/// The folder and its key.
pub(super) struct Cache {
    folder: PathBuf,
    key: Key,
}

/// What an entry is made from: everything that decides what the compiled code is.
pub(super) struct Source<'a> {
    /// SHA-256 of the component, in hexadecimal.
    pub digest: &'a str,
    /// What was handed to `configure`.
    pub config: &'a str,
    /// What it could use while it was configured.
    pub grants: super::Grants,
}

/// A verified entry.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Why this is not a configured snapshot; none if it is one.
    pub unconfigured: Option<String>,
    /// Code that this installation compiled.
    pub code: Vec<u8>,
}

impl Cache {
    /// Opens the folder, and makes it and its key where they are missing.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        files::private_folder(folder)?;
        Ok(Self {
            key: open_key(&folder.join("key"))?,
            folder: folder.to_owned(),
        })
    }

    /// Looks an entry up. One that does not verify is removed.
    pub(super) fn load(&self, source: &Source<'_>) -> Option<Entry> {
        let name = self.name(source)?;
        let path = self.path(&name);
        let bytes = fs::read(&path).ok()?;
        let entry = self.verify(&name, &bytes);
        if entry.is_none() {
            tracing::warn!(
                path = %path.display(),
                "this compiled component was altered or comes from elsewhere: it is not loaded, but compiled again"
            );
            // It would only be refused again.
            let _ = fs::remove_file(&path);
        }
        entry
    }

    /// Keeps an entry. A cache that cannot be written costs time at the next start and nothing else.
    pub(super) fn store(&self, source: &Source<'_>, entry: &Entry) {
        let Some(name) = self.name(source) else { return };
        let reason = entry.unconfigured.as_deref().map(str::as_bytes);
        let mut body = vec![u8::from(reason.is_some())];
        let reason = reason.unwrap_or_default();
        body.extend(u32::try_from(reason.len()).unwrap_or(0).to_le_bytes());
        body.extend(reason);
        body.extend(&entry.code);
        let mut bytes = self
            .mac(&[name.as_bytes(), &body])
            .finalize()
            .into_bytes()
            .to_vec();
        bytes.append(&mut body);
        if let Err(error) = files::write_atomic(&self.path(&name), &bytes) {
            tracing::warn!("a compiled component could not be kept: {error}");
        }
        self.prune();
    }

    fn verify(&self, name: &str, bytes: &[u8]) -> Option<Entry> {
        let (mac, body) = bytes.split_at_checked(MAC_BYTES)?;
        self.mac(&[name.as_bytes(), body]).verify_slice(mac).ok()?;
        let (&unconfigured, rest) = body.split_first()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (reason, code) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        let reason = String::from_utf8_lossy(reason).into_owned();
        Some(Entry {
            unconfigured: (unconfigured != 0).then_some(reason),
            code: code.to_vec(),
        })
    }

    /// A name that says nothing about the configuration to who has not the key.
    fn name(&self, source: &Source<'_>) -> Option<String> {
        let mut compatibility = DefaultHasher::new();
        runtime::runtime()
            .ok()?
            .engine
            .precompile_compatibility_hash()
            .hash(&mut compatibility);
        let (grants, compatibility) = (source.grants.to_string(), compatibility.finish().to_string());
        let cpu = cpu_features();
        let parts = [
            source.digest,
            source.config,
            &grants,
            contract::VERSION,
            &compatibility,
            &cpu,
        ];
        Some(hex::encode(
            self.mac(&parts.map(str::as_bytes)).finalize().into_bytes(),
        ))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name).with_extension(SUFFIX)
    }

    /// Parts are written with their lengths: two lists of parts never give the same bytes.
    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new(&self.key.into());
        for part in [DOMAIN.as_bytes()].iter().chain(parts) {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac
    }

    fn prune(&self) {
        let Ok(folder) = fs::read_dir(&self.folder) else {
            return;
        };
        let mut entries: Vec<_> = folder
            .flatten()
            .filter(|entry| entry.path().extension().is_some_and(|suffix| suffix == SUFFIX))
            .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
            .collect();
        entries.sort();
        for (_, path) in entries.iter().rev().skip(MAX_ENTRIES) {
            // Another try comes with the next entry.
            let _ = fs::remove_file(path);
        }
    }
}

/// Reads the key; makes a new one if there is none, or if somebody else may have read it.
fn open_key(path: &Path) -> Result<Key> {
    let private = fs::metadata(path).is_ok_and(|file| file.mode() & 0o077 == 0);
    if private && let Ok(key) = fs::read(path).map_err(files::io(path))?.try_into() {
        return Ok(key);
    }
    let mut key: Key = [0; 64];
    getrandom::fill(&mut key)
        .map_err(|error| crate::Error::Config(format!("the system gives no random bytes: {error}")))?;
    files::write_atomic(path, &key)?;
    Ok(key)
}

/// What the processor can do: compiled code of another machine may hold instructions that this one has not.
fn cpu_features() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = info
        .lines()
        .find(|line| line.starts_with("flags") || line.starts_with("Features"));
    format!("{} {}", std::env::consts::ARCH, line.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::{super::Grants, *};

    const SOURCE: Source<'_> = Source {
        digest: "00",
        config: "{}",
        grants: Grants::NONE,
    };

    fn entry() -> Entry {
        Entry {
            unconfigured: None,
            code: b"native code".to_vec(),
        }
    }

    fn only_entry(folder: &Path) -> PathBuf {
        let mut files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
        files
            .find(|path| path.extension().is_some_and(|suffix| suffix == SUFFIX))
            .unwrap()
    }

    #[test]
    fn an_entry_comes_back_and_only_for_what_it_was_made_from() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path()).unwrap();
        cache.store(&SOURCE, &entry());
        assert_eq!(cache.load(&SOURCE), Some(entry()));
        assert_eq!(
            Cache::open(folder.path()).unwrap().load(&SOURCE),
            Some(entry()),
            "the key is kept"
        );
        assert_eq!(
            cache.load(&Source {
                config: "{ }",
                ..SOURCE
            }),
            None
        );
        assert_eq!(
            cache.load(&Source {
                digest: "01",
                ..SOURCE
            }),
            None
        );
        assert_eq!(
            cache.load(&Source {
                grants: Grants::default(),
                ..SOURCE
            }),
            None
        );

        let unconfigured = Entry {
            unconfigured: Some("why".into()),
            ..entry()
        };
        cache.store(&SOURCE, &unconfigured);
        assert_eq!(cache.load(&SOURCE), Some(unconfigured));
    }

    #[test]
    fn an_altered_entry_is_refused_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path()).unwrap();
        cache.store(&SOURCE, &entry());
        let path = only_entry(folder.path());
        let good = fs::read(&path).unwrap();
        for at in [0, MAC_BYTES, good.len() - 1] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&path, bad).unwrap();
            assert_eq!(cache.load(&SOURCE), None, "byte {at}");
            assert!(!path.exists());
        }
        fs::write(&path, &good[..20]).unwrap();
        assert_eq!(cache.load(&SOURCE), None, "cut off");
    }

    #[test]
    fn an_entry_of_another_installation_is_refused() {
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let cache = Cache::open(here.path()).unwrap();
        cache.store(&SOURCE, &entry());
        let name = only_entry(here.path());
        let other = Cache::open(there.path()).unwrap();
        other.store(
            &SOURCE,
            &Entry {
                code: b"their code".to_vec(),
                ..entry()
            },
        );
        fs::copy(only_entry(there.path()), name).unwrap();
        assert_eq!(cache.load(&SOURCE), None);
    }

    #[test]
    fn a_key_that_others_could_read_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path()).unwrap();
        let key = folder.path().join("key");
        assert_eq!(fs::metadata(&key).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(folder.path()).unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
        assert_ne!(Cache::open(folder.path()).unwrap().key, cache.key);
    }
}
