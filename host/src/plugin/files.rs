//! Files of the state folder: private, and either old or new but never half.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::error::{Error, Result};

/// An error with its file.
pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    |source| Error::Io { path, source }
}

/// Makes a folder that only its owner can enter; one that exists loses the access of others.
pub(super) fn private_folder(path: &Path) -> Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(io(path))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(io(path))
}

/// Writes a file that only its owner can read: the whole of it is on the disk before it takes the name.
pub(super) fn write_atomic(path: &Path, bytes: &[u8]) -> Result<()> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let temporary = path.with_extension(format!("tmp-{}-{number}", std::process::id()));
    let write = || {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        match path.parent() {
            Some(folder) => File::open(folder)?.sync_all(),
            None => Ok(()),
        }
    };
    write().map_err(|error| {
        // Best effort: the error that is reported is the first one.
        let _ = fs::remove_file(&temporary);
        io(path)(error)
    })
}
