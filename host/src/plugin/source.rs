//! Where the components of slots come from, and how a file is read that somebody may be writing.

use std::{
    collections::BTreeMap,
    fs,
    io::Read as _,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use super::{
    builtin::{self, BUILTINS},
    contract::MAX_COMPONENT_BYTES,
    load::digest,
};
use crate::error::{Error, Result};

/// Between two readings of a file that must be the same.
const PAUSE: Duration = Duration::from_millis(40);
/// Readings before a file counts as one that is still being written.
const READINGS: usize = 25;

/// Where a slot's component comes from by configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Home {
    /// The binary.
    Builtin(&'static str),
    /// A file, which is watched.
    File(PathBuf),
    /// Nowhere: the slot was made by the admin API or by a file in the watched folder.
    Nowhere,
}

impl Home {
    /// Reads `component` of a slot.
    pub(super) fn parse(slot: &str, component: Option<&str>) -> Result<Self> {
        let component = component.unwrap_or(slot);
        if let Some(builtin) = builtin::find(component) {
            return Ok(Self::Builtin(builtin.name));
        }
        if component.contains('/') || component.ends_with(".wasm") {
            return Ok(Self::File(component.into()));
        }
        let names: Vec<_> = BUILTINS
            .iter()
            .map(|builtin| format!("`{}`", builtin.name))
            .collect();
        Err(Error::Config(format!(
            "the slot `{slot}` wants the component `{component}`, which is not one of those in the binary ({}); a \
             file is given by its path, such as `./{component}.wasm`",
            names.join(", ")
        )))
    }
}

/// Tells whether a file may have changed, without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    bytes: u64,
    inode: u64,
    modified: (i64, i64),
}

impl Stamp {
    /// Of what is at `path` now; none if nothing is.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let file = fs::metadata(path).ok()?;
        let modified = (file.mtime(), file.mtime_nsec());
        Some(Self {
            bytes: file.len(),
            inode: file.ino(),
            modified,
        })
    }
}

/// What a look at a file found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// The bytes with the digest that the caller knows.
    Same,
    /// Other bytes, and their digest.
    Other(Arc<[u8]>, String),
}

/// Reads a file until two readings are the same. The error is a sentence.
pub(super) fn look(path: &Path, known: Option<&str>) -> Result<Look, String> {
    let first = read(path)?;
    if known == Some(digest(&first).as_str()) {
        return Ok(Look::Same);
    }
    let again = || {
        thread::sleep(PAUSE);
        read(path)
    };
    match settle(first, again)? {
        Some(bytes) => {
            let digest = digest(&bytes);
            Ok(Look::Other(bytes.into(), digest))
        }
        None => Err(format!(
            "{}: the file is still being written; it is read again when it changes",
            path.display()
        )),
    }
}

/// Reads until two readings are the same; none if they go on to differ.
fn settle(
    mut last: Vec<u8>,
    mut again: impl FnMut() -> Result<Vec<u8>, String>,
) -> Result<Option<Vec<u8>>, String> {
    for _ in 1..READINGS {
        let next = again()?;
        if next == last {
            return Ok(Some(next));
        }
        last = next;
    }
    Ok(None)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let fault = |error: std::io::Error| format!("{}: {error}", path.display());
    // Before it is opened: opening a pipe would wait for a writer.
    if !fs::metadata(path).map_err(fault)?.is_file() {
        return Err(format!("{}: this is not a file", path.display()));
    }
    let mut bytes = Vec::new();
    let most = MAX_COMPONENT_BYTES as u64 + 1;
    fs::File::open(path)
        .map_err(fault)?
        .take(most)
        .read_to_end(&mut bytes)
        .map_err(fault)?;
    Ok(bytes)
}

/// The components of the watched folder: `NAME.wasm` by name. Others, and hidden files, are left alone.
pub(super) fn in_folder(folder: &Path) -> BTreeMap<String, PathBuf> {
    let Ok(files) = fs::read_dir(folder) else {
        return BTreeMap::new();
    };
    let paths = files.flatten().map(|file| file.path());
    paths
        .filter_map(|path| {
            let slot = path.file_name()?.to_str()?.strip_suffix(".wasm")?.to_owned();
            is_slot_name(&slot).then_some((slot, path))
        })
        .collect()
}

/// Names that a slot can have: they stand in paths, in TOML and in logs.
pub(super) fn is_slot_name(name: &str) -> bool {
    let inside = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
    (1..=64).contains(&name.len()) && name.bytes().all(inside) && !name.starts_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_component_is_a_name_of_the_binarys_or_a_path() {
        assert_eq!(
            Home::parse("auth", Some("auth-token")).unwrap(),
            Home::Builtin("auth-token")
        );
        assert_eq!(Home::parse("stop", None).unwrap(), Home::Builtin("stop"));
        assert_eq!(
            Home::parse("auth", Some("./a.wasm")).unwrap(),
            Home::File("./a.wasm".into())
        );
        let error = Home::parse("auth", Some("auth-tokn")).unwrap_err().to_string();
        assert!(
            error.contains("`auth-tokn`") && error.contains("`auth-token`"),
            "{error}"
        );
    }

    #[test]
    fn a_file_is_taken_when_two_readings_are_the_same() {
        let mut growing = [b"ab".to_vec(), b"abc".to_vec(), b"abc".to_vec(), b"abcd".to_vec()].into_iter();
        let whole = settle(b"a".to_vec(), || Ok(growing.next().unwrap())).unwrap();
        assert_eq!(whole, Some(b"abc".to_vec()));
        let mut n = 0;
        let never = settle(Vec::new(), || {
            n += 1;
            Ok(vec![0; n])
        });
        assert_eq!(never, Ok(None));
    }

    #[test]
    fn a_file_that_is_known_is_not_read_twice_and_a_folder_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.wasm");
        fs::write(&path, b"bytes").unwrap();
        let name = digest(b"bytes");
        assert_eq!(look(&path, Some(&name)), Ok(Look::Same));
        assert_eq!(look(&path, None), Ok(Look::Other(b"bytes".to_vec().into(), name)));
        assert!(look(folder.path(), None).unwrap_err().contains("not a file"));
        assert!(look(&folder.path().join("b"), None).is_err());
    }

    #[test]
    fn only_names_that_fit_become_slots() {
        let folder = tempfile::tempdir().unwrap();
        for name in [
            "auth.wasm",
            ".auth.wasm",
            "auth.wasm.tmp",
            "A B.wasm",
            "-x.wasm",
            "x_1.wasm",
        ] {
            fs::write(folder.path().join(name), b"").unwrap();
        }
        assert_eq!(
            in_folder(folder.path()).into_keys().collect::<Vec<_>>(),
            ["auth", "x_1"]
        );
    }
}
