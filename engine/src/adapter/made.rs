//! Adapters made for tests: small, good, and to be spoilt.

use std::path::Path;

use safetensors::{Dtype, tensor::TensorView};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{LoraSite, Projection};
use crate::model::Module;

/// Two layers of a fused attention and a down projection; vocabulary 6, hidden 4.
pub(super) fn modules() -> Vec<Module> {
    let module = |path: String, layer, in_features, out_features, parts| Module {
        path,
        layer,
        in_features,
        out_features,
        parts,
    };
    let mut modules = vec![module(
        "model.embed_tokens".to_owned(),
        None,
        6,
        4,
        vec![(LoraSite::Embed, 0..4)],
    )];
    for layer in 0..2 {
        let site = |projection| LoraSite::Layer(layer, projection);
        let fused = vec![
            (site(Projection::Q), 0..4),
            (site(Projection::K), 4..6),
            (site(Projection::V), 6..8),
        ];
        modules.push(module(
            format!("model.layers.{layer}.self_attn.qkv_proj"),
            Some(layer),
            4,
            8,
            fused,
        ));
        let down = vec![(site(Projection::Down), 0..4)];
        modules.push(module(
            format!("model.layers.{layer}.mlp.down_proj"),
            Some(layer),
            6,
            4,
            down,
        ));
    }
    modules.push(module(
        "lm_head".to_owned(),
        None,
        4,
        6,
        vec![(LoraSite::LmHead, 0..6)],
    ));
    modules
}

/// An adapter of rank 2 on all linear modules of [`modules`], to be spoilt.
pub(super) struct Made {
    pub(super) config: Value,
    pub(super) tensors: Vec<Tensor>,
}

pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    /// What stands at element 1.
    pub(super) special: Option<f32>,
    /// Added to every element, so that adapters differ.
    pub(super) seed: u16,
}

impl Tensor {
    pub(super) fn new(path: &str, shape: [usize; 2]) -> Self {
        Self {
            name: format!("base_model.model.{path}"),
            dtype: Dtype::F32,
            shape: shape.to_vec(),
            special: None,
            seed: 0,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let elements: usize = self.shape.iter().product();
        let mut values: Vec<f32> = (0..elements)
            .map(|index| index as f32 * 0.5 - 1.0 + f32::from(self.seed))
            .collect();
        if let Some(special) = self.special {
            values[1] = special;
        }
        let each = |value: &f32| match self.dtype {
            Dtype::F16 => half::f16::from_f32(*value).to_le_bytes().to_vec(),
            Dtype::BF16 => half::bf16::from_f32(*value).to_le_bytes().to_vec(),
            Dtype::F64 => f64::from(*value).to_le_bytes().to_vec(),
            _ => value.to_le_bytes().to_vec(),
        };
        values.iter().flat_map(each).collect()
    }
}

impl Made {
    pub(super) fn new() -> Self {
        let mut tensors = Vec::new();
        for layer in 0..2 {
            let path = format!("model.layers.{layer}");
            tensors.push(Tensor::new(
                &format!("{path}.self_attn.qkv_proj.lora_A.weight"),
                [2, 4],
            ));
            tensors.push(Tensor::new(
                &format!("{path}.self_attn.qkv_proj.lora_B.weight"),
                [8, 2],
            ));
            tensors.push(Tensor::new(
                &format!("{path}.mlp.down_proj.lora_A.weight"),
                [2, 6],
            ));
            tensors.push(Tensor::new(
                &format!("{path}.mlp.down_proj.lora_B.weight"),
                [4, 2],
            ));
        }
        let config = json!({
            "peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["qkv_proj", "down_proj"],
            "base_model_name_or_path": "made/model", "bias": "none", "use_dora": false, "modules_to_save": null,
        });
        Self { config, tensors }
    }

    /// The same with other weights.
    pub(super) fn seeded(seed: u16) -> Self {
        let mut made = Self::new();
        made.tensors.iter_mut().for_each(|tensor| tensor.seed = seed);
        made
    }

    /// Bytes of its weights in f32: in each of two layers, `qkv_proj` as three pairs that share `a` [2, 4] and `down_proj`.
    pub(super) const BYTES: usize = 4 * 2 * (3 * 2 * 4 + 8 * 2 + 2 * 6 + 4 * 2);

    pub(super) fn write(&self) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        self.write_to(folder.path());
        folder
    }

    /// Writes its files into a folder, each at once.
    pub(super) fn write_to(&self, folder: &Path) {
        std::fs::create_dir_all(folder).unwrap();
        let bytes: Vec<_> = self.tensors.iter().map(Tensor::bytes).collect();
        let views = self.tensors.iter().zip(&bytes).map(|(tensor, bytes)| {
            (
                tensor.name.clone(),
                TensorView::new(tensor.dtype, tensor.shape.clone(), bytes).unwrap(),
            )
        });
        let weights = safetensors::serialize(views, None).unwrap();
        for (name, content) in [
            ("adapter_config.json", self.config.to_string().into_bytes()),
            ("adapter_model.safetensors", weights),
        ] {
            std::fs::write(folder.join("new"), content).unwrap();
            std::fs::rename(folder.join("new"), folder.join(name)).unwrap();
        }
    }
}
