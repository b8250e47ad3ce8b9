//! What a fetch leaves behind.

use std::{borrow::Cow, path::PathBuf};

use super::EmbeddedFiles;
use crate::error::{Error, Result};

/// Files that were fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Files {
    /// A folder with `config.json`, `model.safetensors` or `adapter_config.json`, `adapter_model.safetensors`.
    Folder(PathBuf),
    /// A GGUF file.
    Gguf(PathBuf),
    /// In the binary.
    Embedded(EmbeddedFiles),
}

impl Files {
    /// Reads one file of the set whole; `Ok(None)` if the set has no such file.
    ///
    /// # Errors
    /// The file exists and cannot be read.
    pub fn read(&self, name: &str) -> Result<Option<Cow<'static, [u8]>>> {
        match self {
            Self::Folder(folder) => {
                let path = folder.join(name);
                match std::fs::read(&path) {
                    Ok(bytes) => Ok(Some(Cow::Owned(bytes))),
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
                    Err(error) => Err(Error::io(path, error)),
                }
            }
            Self::Gguf(_) => Ok(None),
            Self::Embedded(set) => Ok(set
                .files
                .iter()
                .find(|(file, _)| *file == name)
                .map(|(_, bytes)| Cow::Borrowed(*bytes))),
        }
    }
}
