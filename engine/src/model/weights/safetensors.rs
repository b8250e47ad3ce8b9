//! Checkpoints in safetensors: one file, or shards with an index.

use std::collections::BTreeSet;

use candle_core::quantized::GgmlDType;
use safetensors::{Dtype, SafeTensors};

use super::{Bytes, Checkpoint, Entry};
use crate::{backend::RowOrder, error::Result, hub::Files};

impl Checkpoint {
    /// Opens `model.safetensors`, or the shards that `model.safetensors.index.json` names.
    ///
    /// # Errors
    /// There is neither; a file is not safetensors; a number type is not supported; two files hold the same tensor.
    pub(crate) fn open_safetensors(files: &Files) -> Result<Self> {
        let mut checkpoint = Self::new(&crate::model::load::path_of(files));
        for name in shard_names(files, &checkpoint)? {
            let bytes = match files {
                Files::Folder(folder) => Bytes::map(&folder.join(&name))?,
                Files::Embedded(set) => match set.files.iter().find(|(file, _)| *file == name) {
                    Some((_, bytes)) => Bytes::Static(bytes),
                    None => return Err(checkpoint.error(format!("there is no file `{name}`"))),
                },
                Files::Gguf(_) => return Err(checkpoint.error("this is a GGUF file, not safetensors")),
            };
            checkpoint.add_shard(&name, bytes)?;
        }
        Ok(checkpoint)
    }

    fn add_shard(&mut self, name: &str, bytes: Bytes) -> Result<()> {
        let (header, metadata) =
            SafeTensors::read_metadata(&bytes).map_err(|error| self.error(format!("{name}: {error}")))?;
        // The header is preceded by its length in eight bytes.
        let data = header + 8;
        for (tensor, info) in metadata.tensors() {
            let dtype = match info.dtype {
                Dtype::F32 => GgmlDType::F32,
                Dtype::F16 => GgmlDType::F16,
                Dtype::BF16 => GgmlDType::BF16,
                other => {
                    return Err(self.error(format!(
                        "{name}: tensor `{tensor}` is {other:?}; supported are F32, F16 and BF16"
                    )));
                }
            };
            let entry = Entry {
                shape: info.shape.clone(),
                dtype,
                file: self.files.len(),
                range: data + info.data_offsets.0..data + info.data_offsets.1,
                order: RowOrder::Plain,
            };
            if self.tensors.insert(tensor.clone(), entry).is_some() {
                return Err(self.error(format!("{name}: tensor `{tensor}` is in another shard too")));
            }
        }
        self.files.push(bytes);
        Ok(())
    }
}

/// The files that hold the tensors.
fn shard_names(files: &Files, checkpoint: &Checkpoint) -> Result<Vec<String>> {
    const SINGLE: &str = "model.safetensors";
    const INDEX: &str = "model.safetensors.index.json";
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: std::collections::HashMap<String, String>,
    }
    let has_single = match files {
        Files::Folder(folder) => folder.join(SINGLE).is_file(),
        Files::Embedded(set) => set.files.iter().any(|(file, _)| *file == SINGLE),
        Files::Gguf(_) => false,
    };
    if has_single {
        return Ok(vec![SINGLE.to_owned()]);
    }
    let Some(index) = files.read(INDEX)? else {
        return Err(checkpoint.error(format!("there is neither `{SINGLE}` nor `{INDEX}`")));
    };
    let index: Index =
        serde_json::from_slice(&index).map_err(|error| checkpoint.error(format!("{INDEX}: {error}")))?;
    let names: BTreeSet<String> = index.weight_map.into_values().collect();
    if let Some(name) = names
        .iter()
        .find(|name| name.contains(['/', '\\']) || name.starts_with('.'))
    {
        return Err(checkpoint.error(format!("{INDEX}: `{name}` is not the name of a file beside it")));
    }
    Ok(names.into_iter().collect())
}
