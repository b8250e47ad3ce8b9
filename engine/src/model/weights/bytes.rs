//! The bytes of a file: mapped, or in the binary.

use std::{fs::File, ops::Deref, path::Path};

use memmap2::Mmap;

use crate::error::{Error, Result};

/// A file's bytes.
pub(super) enum Bytes {
    /// Mapped into memory.
    Mapped(Mmap),
    /// Compiled into the binary.
    Static(&'static [u8]),
}

impl Bytes {
    /// Maps a file.
    pub(super) fn map(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|error| Error::io(path, error))?;
        // SAFETY: the map is read only while a model loads. A file that another process cuts short meanwhile
        // kills this one by a signal; the cache's files are written under another name and renamed when they are whole.
        let map = unsafe { Mmap::map(&file) }.map_err(|error| Error::io(path, error))?;
        Ok(Self::Mapped(map))
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Static(bytes) => bytes,
        }
    }
}
