//! A checkpoint's tensors: safetensors or GGUF, under the names that transformers gives them.
//!
//! Whatever the format, a [`Checkpoint`] is a table of tensors in mapped files. Each is asked for by name and shape; what
//! nobody asked for is an error at the end, because a tensor that is not read means a model that is not computed.

mod bytes;
mod gguf;
mod safetensors;

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    path::{Path, PathBuf},
};

use candle_core::quantized::GgmlDType;

use crate::{
    backend::{HostTensor, RowOrder},
    error::{Error, Result},
};

use bytes::Bytes;

/// The tensors of a model's files.
pub(crate) struct Checkpoint {
    /// The folder or file, for messages.
    path: PathBuf,
    files: Vec<Bytes>,
    tensors: BTreeMap<String, Entry>,
    /// The names that were asked for.
    read: RefCell<BTreeSet<String>>,
}

/// Where a tensor lies.
struct Entry {
    shape: Vec<usize>,
    dtype: GgmlDType,
    file: usize,
    range: Range<usize>,
    order: RowOrder,
}

impl Checkpoint {
    fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            files: Vec::new(),
            tensors: BTreeMap::new(),
            read: RefCell::default(),
        }
    }

    /// An error of this checkpoint.
    pub(crate) fn error(&self, reason: impl Into<String>) -> Error {
        Error::Model {
            path: self.path.clone(),
            reason: reason.into(),
        }
    }

    /// Whether there is such a tensor.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The shape of a tensor, if there is one.
    pub(crate) fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|entry| entry.shape.as_slice())
    }

    /// The number type of a tensor, if there is one.
    pub(crate) fn dtype(&self, name: &str) -> Option<GgmlDType> {
        self.tensors.get(name).map(|entry| entry.dtype)
    }

    /// A matrix of exactly this shape.
    ///
    /// # Errors
    /// There is none, or its shape is another.
    pub(crate) fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<HostTensor<'_>> {
        let entry = self.entry(name, &[rows, cols])?;
        Ok(HostTensor {
            rows,
            cols,
            dtype: entry.dtype,
            data: &self.files[entry.file][entry.range.clone()],
            order: entry.order,
        })
    }

    /// A vector of exactly this length, in f32.
    ///
    /// # Errors
    /// There is none, or its shape is another.
    pub(crate) fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>> {
        let entry = self.entry(name, &[len])?;
        let column = HostTensor {
            rows: len,
            cols: 1,
            dtype: entry.dtype,
            data: &self.files[entry.file][entry.range.clone()],
            order: entry.order,
        };
        column
            .to_f32()
            .map_err(|reason| self.error(format!("tensor `{name}`: {reason}")))
    }

    /// Counts a tensor as read that the model has no use for.
    pub(crate) fn ignore(&self, name: &str) {
        self.read.borrow_mut().insert(name.to_owned());
    }

    /// Checks that everything was read.
    ///
    /// # Errors
    /// Names the tensors that were not.
    pub(crate) fn finish(&self) -> Result<()> {
        let read = self.read.borrow();
        let unread: Vec<&str> = self
            .tensors
            .keys()
            .map(String::as_str)
            // Older checkpoints carry the rotary frequencies, which the configuration gives.
            .filter(|name| !read.contains(*name) && !name.ends_with(".rotary_emb.inv_freq"))
            .collect();
        if unread.is_empty() {
            return Ok(());
        }
        let shown = unread[..unread.len().min(8)].join(", ");
        Err(self.error(format!(
            "{} tensors belong to no part of this architecture, so the model would be computed wrongly: {shown}{}",
            unread.len(),
            if unread.len() > 8 { ", ..." } else { "" }
        )))
    }

    fn entry(&self, name: &str, shape: &[usize]) -> Result<&Entry> {
        let entry = self.tensors.get(name).ok_or_else(|| {
            self.error(format!(
                "there is no tensor `{name}`: expected one of shape {shape:?}"
            ))
        })?;
        if entry.shape != shape {
            return Err(self.error(format!(
                "tensor `{name}` has shape {:?}: expected {shape:?} by the configuration",
                entry.shape
            )));
        }
        self.read.borrow_mut().insert(name.to_owned());
        Ok(entry)
    }
}
