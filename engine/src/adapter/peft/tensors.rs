//! A safetensors file, read tensor by tensor: nothing but its header is read before it is known to fit.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::PathBuf,
};

use half::{
    f16,
    slice::{HalfBitsSliceExt, HalfFloatSliceExt},
};
use safetensors::{Dtype, tensor::Metadata, tensor::TensorInfo};

use super::Problem;
use crate::{error::Error, hub::Files};

/// The name of the weights file.
pub(super) const WEIGHTS: &str = "adapter_model.safetensors";

/// No adapter has a header near this size; it bounds what is read from a file that claims one.
const MAX_HEADER: u64 = 16 << 20;

/// An open file whose header is consistent: offsets without gaps, sizes that agree with the shapes, no byte left over.
pub(super) struct TensorFile {
    bytes: Bytes,
    /// Where the tensors' data begin.
    start: u64,
    /// The tensors by name.
    pub(super) tensors: BTreeMap<String, TensorInfo>,
}

enum Bytes {
    /// Held open, so that header and data come from the same file even if another takes its name meanwhile.
    File(PathBuf, File),
    Embedded(&'static [u8]),
}

impl TensorFile {
    /// Opens `adapter_model.safetensors` of the set; none if the set has no such file.
    pub(super) fn open(files: &Files) -> Result<Option<Self>, Problem> {
        let (mut bytes, length) = match files {
            Files::Folder(folder) => {
                let path = folder.join(WEIGHTS);
                let file = match File::open(&path) {
                    Ok(file) => file,
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
                    Err(error) => return Err(Error::io(path, error).into()),
                };
                let length = file.metadata().map_err(|error| Error::io(&path, error))?.len();
                (Bytes::File(path, file), length)
            }
            Files::Gguf(_) => return Ok(None),
            Files::Embedded(set) => match set.files.iter().find(|(name, _)| *name == WEIGHTS) {
                Some((_, content)) => (Bytes::Embedded(content), content.len() as u64),
                None => return Ok(None),
            },
        };
        let mut size = [0; 8];
        if length < 8 {
            return Err(not_safetensors(&format!("it has {length} bytes")));
        }
        bytes.read(0, &mut size)?;
        let header = u64::from_le_bytes(size);
        if header > MAX_HEADER || header + 8 > length {
            return Err(not_safetensors(&format!(
                "its header would take {header} of {length} bytes"
            )));
        }
        let mut json = vec![0; header as usize];
        bytes.read(8, &mut json)?;
        let metadata: Metadata =
            serde_json::from_slice(&json).map_err(|error| not_safetensors(&error.to_string()))?;
        let start = 8 + header;
        let expected = start + metadata.data_len() as u64;
        if expected != length {
            return Err(not_safetensors(&format!(
                "its header tells of {expected} bytes, the file has {length}; it may be incomplete"
            )));
        }
        let tensors = metadata
            .tensors()
            .into_iter()
            .map(|(name, info)| (name, info.clone()))
            .collect();
        Ok(Some(Self {
            bytes,
            start,
            tensors,
        }))
    }

    /// Reads one tensor as f32.
    ///
    /// # Errors
    /// It has another type than F32, F16 or BF16, or an element that is not finite.
    pub(super) fn read_f32(&mut self, name: &str, info: &TensorInfo) -> Result<Vec<f32>, Problem> {
        let elements: usize = info.shape.iter().product();
        let mut values = vec![0.0; elements];
        let mut buffer = vec![0; CHUNK * 4];
        let mut bits = vec![0_u16; CHUNK];
        let mut at = self.start + info.data_offsets.0 as u64;
        for (index, values) in values.chunks_mut(CHUNK).enumerate() {
            let width = if info.dtype == Dtype::F32 { 4 } else { 2 };
            let bytes = &mut buffer[..values.len() * width];
            self.bytes.read(at, bytes)?;
            at += bytes.len() as u64;
            match info.dtype {
                Dtype::F32 => {
                    for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<4>().0) {
                        *value = f32::from_le_bytes(*bytes);
                    }
                }
                Dtype::F16 => {
                    for (bits, bytes) in bits.iter_mut().zip(bytes.as_chunks::<2>().0) {
                        *bits = u16::from_le_bytes(*bytes);
                    }
                    bits[..values.len()]
                        .reinterpret_cast::<f16>()
                        .convert_to_f32_slice(values);
                }
                Dtype::BF16 => {
                    for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<2>().0) {
                        *value = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
                    }
                }
                other => return Err(wrong_type(name, other).into()),
            }
            if let Some(place) = values.iter().position(|value| !value.is_finite()) {
                return Err(format!(
                    "`{name}` holds {} at element {}: its training diverged or the file is damaged",
                    values[place],
                    index * CHUNK + place
                )
                .into());
            }
        }
        Ok(values)
    }
}

/// Elements that are read at a time: their bytes stay in the cache until they are widened.
const CHUNK: usize = 32 * 1024;

/// Refuses a type that cannot be read without loss.
pub(super) fn check_type(name: &str, info: &TensorInfo) -> Result<(), String> {
    match info.dtype {
        Dtype::F32 | Dtype::F16 | Dtype::BF16 => Ok(()),
        other => Err(wrong_type(name, other)),
    }
}

fn wrong_type(name: &str, found: Dtype) -> String {
    format!("`{name}` has type {found}: expected F32, F16 or BF16; save the adapter in one of them")
}

fn not_safetensors(reason: &str) -> Problem {
    format!("{WEIGHTS} is not a whole safetensors file: {reason}").into()
}

impl Bytes {
    fn read(&mut self, at: u64, into: &mut [u8]) -> Result<(), Error> {
        match self {
            Self::File(path, file) => file
                .seek(SeekFrom::Start(at))
                .and_then(|_| file.read_exact(into))
                .map_err(|error| Error::io(path.clone(), error)),
            // The header was checked against the length.
            Self::Embedded(content) => {
                into.copy_from_slice(&content[at as usize..at as usize + into.len()]);
                Ok(())
            }
        }
    }
}
