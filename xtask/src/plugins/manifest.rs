//! `manifest.json`: which component came from which sources.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The name of the file.
const FILE: &str = "manifest.json";

/// What stands beside the components of a folder.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Manifest {
    /// See [`super::toolchain::Toolchain`].
    pub(super) toolchain: String,
    /// By the name of the component.
    pub(super) components: BTreeMap<String, Entry>,
}

/// One component.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    /// The version that it says of itself.
    pub(super) version: String,
    /// [`hash_sources`] of all that it was made of.
    pub(super) sources: String,
    /// Of the component.
    pub(super) sha256: String,
    /// Size of the component.
    pub(super) bytes: usize,
    /// The interfaces that it imports: what has to be granted.
    pub(super) imports: Vec<String>,
    /// The interfaces that it exports: its roles.
    pub(super) exports: Vec<String>,
}

impl Manifest {
    /// The manifest of a folder; none if the folder has none.
    pub(super) fn read(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(FILE);
        if !path.exists() {
            return Ok(None);
        }
        let text = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let manifest = serde_json::from_slice(&text).with_context(|| format!("in {}", path.display()))?;
        Ok(Some(manifest))
    }

    /// Writes it into its folder.
    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        write(&folder.join(FILE), &text)
    }
}

/// Writes a whole file or nothing: a server may be watching.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let partial = path.with_extension("partial");
    fs::write(&partial, bytes)
        .and_then(|()| fs::rename(&partial, path))
        .with_context(|| format!("writing {}", path.display()))
}

/// In lower-case hexadecimal.
pub(super) fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// One hash over everything that a component is made of: the contract, the workspace's manifest and lock file, and
/// the packages' folders. Each file goes in with the lengths of its path and contents.
pub(super) fn hash_sources(root: &Path, folders: &[PathBuf]) -> Result<String> {
    let mut files = vec![root.join("plugins/Cargo.toml"), root.join("plugins/Cargo.lock")];
    collect(&root.join("wit"), &mut files)?;
    for folder in folders {
        collect(folder, &mut files)?;
    }
    // By the path as it is hashed, so that the order is the same everywhere.
    let mut named = files
        .into_iter()
        .map(|path| {
            let name = path.strip_prefix(root)?.to_string_lossy().replace('\\', "/");
            Ok((name, path))
        })
        .collect::<Result<Vec<_>>>()?;
    named.sort();
    let mut hash = Sha256::new();
    hash.update(b"heddle component sources v1\0");
    for (name, path) in named {
        let text = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name.as_bytes());
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(&text);
    }
    Ok(hex::encode(hash.finalize()))
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn every_input_counts_and_the_place_of_the_repository_does_not() {
        let base = [
            ("plugins/Cargo.toml", "a"),
            ("plugins/Cargo.lock", "b"),
            ("plugins/sdk/src/lib.rs", "c"),
            ("wit/x.wit", "d"),
        ];
        let hash = |files: &[(&str, &str)]| {
            let root = tree(files);
            hash_sources(root.path(), &[root.path().join("plugins/sdk")]).unwrap()
        };
        let expected = hash(&base);
        assert_eq!(hash(&base), expected);
        for i in 0..base.len() {
            let mut changed = base;
            changed[i].1 = "other";
            assert_ne!(hash(&changed), expected, "{} does not count", changed[i].0);
        }
        let mut renamed = base;
        renamed[2].0 = "plugins/sdk/src/lib2.rs";
        assert_ne!(hash(&renamed), expected);
    }
}
