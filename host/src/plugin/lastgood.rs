//! The last good set: which components served last, with their bytes, so that a restart does not depend on the folder
//! that they came from.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::{files, load::digest};
use crate::error::{Error, Result};

/// The layout of the manifest.
const FORMAT: u32 = 1;

/// The folder of components and the manifest beside it.
pub(super) struct LastGood {
    components: PathBuf,
    manifest: PathBuf,
}

/// The manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Manifest {
    format: u32,
    slots: BTreeMap<String, Saved>,
}

/// What is remembered of a slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Saved {
    /// SHA-256 of the component that served.
    pub digest: String,
    /// That of the one before it, to which a rollback goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<String>,
    /// What was found last where the slot's component comes from (a file, or the binary). If that is still the same
    /// at the next start, `digest` serves even where it is another one: it was pushed, or rolled back to.
    pub seen: Option<String>,
    /// Where `digest` came from.
    pub source: String,
}

impl LastGood {
    pub(super) fn open(state: &Path) -> Result<Self> {
        let components = state.join("components");
        files::private_folder(&components)?;
        Ok(Self {
            components,
            manifest: state.join("last-good.json"),
        })
    }

    /// What served last; nothing at the first start. A manifest that cannot be read is told and left aside.
    pub(super) fn load(&self) -> BTreeMap<String, Saved> {
        let Ok(text) = fs::read(&self.manifest) else {
            return BTreeMap::new();
        };
        match serde_json::from_slice::<Manifest>(&text) {
            Ok(manifest) if manifest.format == FORMAT => manifest.slots,
            Ok(manifest) => {
                tracing::warn!(
                    "{}: format {} is unknown",
                    self.manifest.display(),
                    manifest.format
                );
                BTreeMap::new()
            }
            Err(error) => {
                tracing::warn!("{}: {error}", self.manifest.display());
                BTreeMap::new()
            }
        }
    }

    /// Keeps a component's bytes under their digest.
    pub(super) fn keep(&self, bytes: &[u8]) -> Result<()> {
        let path = self.path(&digest(bytes));
        if path.exists() {
            Ok(())
        } else {
            files::write_atomic(&path, bytes)
        }
    }

    /// The bytes of a component, as they were kept.
    pub(super) fn bytes(&self, wanted: &str) -> Result<Arc<[u8]>> {
        // The manifest is a file that anybody may have edited: no digest of it becomes a path unseen.
        if wanted.len() != 64 || !wanted.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(Error::Config(format!(
                "{}: `{wanted}` is no digest",
                self.manifest.display()
            )));
        }
        let path = self.path(wanted);
        let bytes = fs::read(&path).map_err(files::io(&path))?;
        if digest(&bytes) != wanted {
            return Err(Error::Config(format!("{}: the file was altered", path.display())));
        }
        Ok(bytes.into())
    }

    /// Writes the manifest, and removes the components that it does not name.
    pub(super) fn save(&self, slots: BTreeMap<String, Saved>) -> Result<()> {
        let named: BTreeSet<_> = slots
            .values()
            .flat_map(|saved| [Some(&saved.digest), saved.previous.as_ref()])
            .flatten()
            .cloned()
            .collect();
        let manifest = Manifest {
            format: FORMAT,
            slots,
        };
        let text = serde_json::to_vec_pretty(&manifest).map_err(|error| Error::Config(error.to_string()))?;
        files::write_atomic(&self.manifest, &text)?;
        for file in fs::read_dir(&self.components)
            .map_err(files::io(&self.components))?
            .flatten()
        {
            let path = file.path();
            let stem = path
                .file_stem()
                .and_then(|stem| stem.to_str())
                .unwrap_or_default();
            if !named.contains(stem) {
                // One that stays behind costs a little space.
                let _ = fs::remove_file(&path);
            }
        }
        Ok(())
    }

    fn path(&self, digest: &str) -> PathBuf {
        self.components.join(digest).with_extension("wasm")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_are_kept_by_digest_and_checked() {
        let folder = tempfile::tempdir().unwrap();
        let store = LastGood::open(folder.path()).unwrap();
        assert_eq!(store.load(), BTreeMap::new());
        let (kept, dropped) = (digest(b"kept"), digest(b"dropped"));
        store.keep(b"kept").unwrap();
        store.keep(b"dropped").unwrap();
        let saved = Saved {
            digest: kept.clone(),
            previous: None,
            seen: Some(kept.clone()),
            source: "builtin".into(),
        };
        let slots = BTreeMap::from([("a".to_owned(), saved)]);
        store.save(slots.clone()).unwrap();
        assert_eq!(store.load(), slots);
        assert_eq!(*store.bytes(&kept).unwrap(), *b"kept");
        assert!(store.bytes(&dropped).is_err(), "the manifest does not name it");

        fs::write(store.path(&kept), b"other").unwrap();
        assert!(store.bytes(&kept).unwrap_err().to_string().contains("altered"));
        assert!(
            store
                .bytes("../../etc/passwd")
                .unwrap_err()
                .to_string()
                .contains("no digest")
        );
        fs::write(folder.path().join("last-good.json"), b"{").unwrap();
        assert_eq!(store.load(), BTreeMap::new());
    }
}
