//! GGUF: the tiny models, written as llama.cpp's converter writes them, give the same goldens.

use std::{collections::BTreeMap, fs::File, path::Path};

use candle_core::{
    Device, Tensor,
    quantized::{
        GgmlDType, QTensor,
        gguf_file::{self, Value},
    },
};
use heddle_engine::{
    hub::Files,
    model::{BackendChoice, LoadOptions, load_runner},
};
use serde_json::Value as Json;

use crate::{
    goldens::{Golden, tiny_cases},
    harness::{Harness, backends, fixtures},
};

/// llama.cpp's names (`gguf-py/gguf/tensor_mapping.py`) for the parts of a layer.
const PARTS: [(&str, &str); 12] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// A model of the fixtures.
struct Model {
    config: Json,
    tensors: BTreeMap<String, Tensor>,
}

impl Model {
    fn read(folder: &Path) -> Self {
        let mut tensors = BTreeMap::new();
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            if path
                .extension()
                .is_some_and(|extension| extension == "safetensors")
            {
                tensors.extend(candle_core::safetensors::load(path, &Device::Cpu).unwrap());
            }
        }
        let config = serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
        Self { config, tensors }
    }

    fn number(&self, key: &str) -> f64 {
        self.config[key].as_f64().unwrap_or_else(|| panic!("{key}"))
    }

    fn head_dim(&self) -> f64 {
        self.config["head_dim"]
            .as_f64()
            .unwrap_or_else(|| self.number("hidden_size") / self.number("num_attention_heads"))
    }

    /// The metadata that `convert_hf_to_gguf.py` writes.
    fn metadata(&self, arch: &str) -> Vec<(String, Value)> {
        let whole = |number: f64| Value::U32(number as u32);
        let mut metadata = vec![("general.architecture".to_owned(), Value::String(arch.to_owned()))];
        for (key, from) in [
            ("block_count", "num_hidden_layers"),
            ("context_length", "max_position_embeddings"),
            ("embedding_length", "hidden_size"),
            ("feed_forward_length", "intermediate_size"),
            ("attention.head_count", "num_attention_heads"),
            ("attention.head_count_kv", "num_key_value_heads"),
        ] {
            metadata.push((format!("{arch}.{key}"), whole(self.number(from))));
        }
        for (key, from) in [
            ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
            ("rope.freq_base", "rope_theta"),
            ("attn_logit_softcapping", "attn_logit_softcapping"),
            ("final_logit_softcapping", "final_logit_softcapping"),
        ] {
            if let Some(number) = self.config[from].as_f64() {
                metadata.push((format!("{arch}.{key}"), Value::F32(number as f32)));
            }
        }
        let turning = self.head_dim() * self.config["partial_rotary_factor"].as_f64().unwrap_or(1.0);
        metadata.push((format!("{arch}.attention.key_length"), whole(self.head_dim())));
        metadata.push((format!("{arch}.rope.dimension_count"), whole(turning)));
        if let Some(window) = self.config["sliding_window"].as_f64() {
            metadata.push((format!("{arch}.attention.sliding_window"), whole(window)));
        }
        if arch == "gemma3" {
            // Real models have every sixth layer full, which is what absence means; the tiny one has its fourth.
            metadata.push((format!("{arch}.attention.sliding_window_pattern"), Value::U32(4)));
        }
        if arch == "phi3" && self.config["rope_scaling"].is_object() {
            let original = self.number("original_max_position_embeddings");
            let stretched = self.number("max_position_embeddings") / original;
            let factor = (1.0 + stretched.ln() / original.ln()).sqrt();
            let key = |key: &str| format!("{arch}.rope.scaling.{key}");
            metadata.push((key("original_context_length"), whole(original)));
            metadata.push((key("attn_factor"), Value::F32(factor as f32)));
        }
        metadata
    }

    /// The tensors under llama.cpp's names and with its changes.
    fn converted(&self, arch: &str) -> Vec<(String, QTensor)> {
        let mut converted = Vec::new();
        for (name, tensor) in &self.tensors {
            let mut tensor = tensor.to_dtype(candle_core::DType::F32).unwrap();
            if arch == "llama" && name.contains("q_proj") {
                tensor = interleaved(&tensor, self.number("num_attention_heads") as usize);
            }
            if arch == "llama" && name.contains("k_proj") {
                tensor = interleaved(&tensor, self.number("num_key_value_heads") as usize);
            }
            if arch.starts_with("gemma") && name.ends_with("norm.weight") {
                tensor = (tensor + 1.0).unwrap();
            }
            // GGUF has no key for the scale of the query: llama.cpp knows those of the real models, which is the width
            // of a head. The tiny models' differs, so it goes into what makes the query.
            if let Some(scalar) = self.config["query_pre_attn_scalar"].as_f64() {
                let last = if arch == "gemma3" {
                    "q_norm.weight"
                } else {
                    "q_proj.weight"
                };
                if name.ends_with(last) {
                    tensor = (tensor * (self.head_dim() / scalar).sqrt()).unwrap();
                }
            }
            converted.push((llama_cpp_name(name, arch), tensor));
        }
        converted.extend(self.rope_factors(arch));
        converted
            .into_iter()
            .map(|(name, tensor)| (name, QTensor::quantize(&tensor, GgmlDType::F32).unwrap()))
            .collect()
    }

    fn rope_factors(&self, arch: &str) -> Vec<(String, Tensor)> {
        let scaling = &self.config["rope_scaling"];
        if !scaling.is_object() {
            return Vec::new();
        }
        let tensor = |name: &str, factors: Vec<f32>| {
            let factors = Tensor::new(factors, &Device::Cpu).unwrap();
            (format!("{name}.weight"), factors)
        };
        let list = |key: &str| -> Vec<f32> {
            let factors = scaling[key].as_array().unwrap();
            factors
                .iter()
                .map(|factor| factor.as_f64().unwrap() as f32)
                .collect()
        };
        if arch == "phi3" {
            return vec![
                tensor("rope_factors_short", list("short_factor")),
                tensor("rope_factors_long", list("long_factor")),
            ];
        }
        // `LlamaModel.generate_extra_tensors`.
        let number = |key: &str| scaling[key].as_f64().unwrap();
        let (factor, original) = (number("factor"), number("original_max_position_embeddings"));
        let (low, high) = (number("low_freq_factor"), number("high_freq_factor"));
        let pairs = self.head_dim() as usize / 2;
        let factors = (0..pairs).map(|pair| {
            let frequency = self.number("rope_theta").powf(-(pair as f64) / pairs as f64);
            let wavelength = 2.0 * std::f64::consts::PI / frequency;
            let factor = if wavelength < original / high {
                1.0
            } else if wavelength > original / low {
                factor
            } else {
                let smooth = (original / wavelength - low) / (high - low);
                1.0 / ((1.0 - smooth) / factor + smooth)
            };
            factor as f32
        });
        vec![tensor("rope_freqs", factors.collect())]
    }
}

/// `LlamaModel.permute`.
fn interleaved(tensor: &Tensor, heads: usize) -> Tensor {
    let (rows, cols) = tensor.dims2().unwrap();
    let pairs = tensor.reshape((heads, 2, rows / heads / 2, cols)).unwrap();
    pairs.transpose(1, 2).unwrap().reshape((rows, cols)).unwrap()
}

fn llama_cpp_name(name: &str, arch: &str) -> String {
    match name {
        "model.embed_tokens.weight" => return "token_embd.weight".to_owned(),
        "model.norm.weight" => return "output_norm.weight".to_owned(),
        "lm_head.weight" => return "output.weight".to_owned(),
        _ => {}
    }
    let (layer, rest) = name
        .strip_prefix("model.layers.")
        .unwrap()
        .split_once('.')
        .unwrap();
    let (part, kind) = rest.rsplit_once('.').unwrap();
    let sandwich = matches!(arch, "gemma2" | "gemma3");
    let part = match part {
        "post_attention_layernorm" if sandwich => "post_attention_norm",
        "pre_feedforward_layernorm" | "post_attention_layernorm" => "ffn_norm",
        "post_feedforward_layernorm" => "post_ffw_norm",
        part => PARTS.iter().find(|(theirs, _)| *theirs == part).unwrap().1,
    };
    format!("blk.{layer}.{part}.{kind}")
}

/// Converts a tiny model and holds its base cases.
fn hold(name: &str, arch: &str, context: Option<usize>, fits: impl Fn(&Golden) -> bool) {
    let folder = fixtures().join("tiny").join(name);
    let model = Model::read(&folder);
    let (metadata, tensors) = (model.metadata(arch), model.converted(arch));
    let target = tempfile::tempdir().unwrap();
    let path = target.path().join("model.gguf");
    let metadata: Vec<_> = metadata
        .iter()
        .map(|(key, value)| (key.as_str(), value))
        .collect();
    let tensors: Vec<_> = tensors
        .iter()
        .map(|(name, tensor)| (name.as_str(), tensor))
        .collect();
    gguf_file::write(&mut File::create(&path).unwrap(), &metadata, &tensors).unwrap();

    for backend in backends() {
        hold_file(name, &path, backend, context, &fits);
    }
}

/// Holds the base cases of a converted model on one back end.
fn hold_file(
    name: &str,
    path: &Path,
    backend: BackendChoice,
    context: Option<usize>,
    fits: impl Fn(&Golden) -> bool,
) {
    let folder = fixtures().join("tiny").join(name);
    let what = format!("{name} as GGUF on {backend:?}");
    let options = LoadOptions {
        backend,
        kv_bytes: 16 << 20,
        context,
    };
    let mut model = Harness::new(load_runner(&Files::Gguf(path.to_owned()), &options).unwrap());
    let cases: Vec<_> = tiny_cases(&folder)
        .into_iter()
        .filter(|case| case.adapter.is_none() && fits(case))
        .collect();
    assert!(!cases.is_empty());
    for (index, case) in cases.iter().enumerate() {
        case.hold(&mut model, None, &format!("{what}, case {index}"));
    }
}

#[test]
fn converted_models_give_the_same_goldens() {
    for (name, arch) in [
        ("llama-gqa-tied", "llama"),
        ("llama3-rope", "llama"),
        ("qwen2", "qwen2"),
        ("qwen3", "qwen3"),
        ("gemma", "gemma"),
        ("gemma2", "gemma2"),
        ("gemma3", "gemma3"),
        ("phi3", "phi3"),
    ] {
        hold(name, arch, None, |_| true);
    }
    let within = |case: &Golden| case.input_ids.len() + case.greedy_ids.len() <= 32;
    hold("phi3-longrope", "phi3", Some(32), within);
    hold("phi3-longrope", "phi3", None, |case| !within(case));
}
