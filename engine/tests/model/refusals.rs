//! What a model's files may not be, and what the error says of it.

use std::{collections::BTreeMap, path::Path};

use candle_core::{Device, Tensor};
use heddle_engine::{
    Result,
    hub::Files,
    model::{BackendChoice, LoadOptions, LoadedRunner, load_runner},
};
use tempfile::TempDir;

use crate::harness::fixtures;

/// A copy of a tiny model with changed tensors.
struct Changed {
    folder: TempDir,
}

impl Changed {
    fn new(name: &str, change: impl FnOnce(&mut BTreeMap<String, Tensor>)) -> Self {
        let from = fixtures().join("tiny").join(name);
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(from.join("config.json"), folder.path().join("config.json")).unwrap();
        let tensors = candle_core::safetensors::load(from.join("model.safetensors"), &Device::Cpu).unwrap();
        let mut tensors: BTreeMap<_, _> = tensors.into_iter().collect();
        change(&mut tensors);
        let tensors = tensors.into_iter().collect();
        candle_core::safetensors::save(&tensors, folder.path().join("model.safetensors")).unwrap();
        Self { folder }
    }

    fn load(&self) -> Result<LoadedRunner> {
        load(self.folder.path(), 1 << 20, None)
    }
}

fn load(folder: &Path, kv_bytes: usize, context: Option<usize>) -> Result<LoadedRunner> {
    let options = LoadOptions {
        backend: BackendChoice::Reference,
        kv_bytes,
        context,
    };
    load_runner(&Files::Folder(folder.to_owned()), &options)
}

fn refused(model: Result<LoadedRunner>, words: &[&str]) {
    let error = model.err().expect("the model was taken").to_string();
    for word in words {
        assert!(error.contains(word), "`{word}` is not in: {error}");
    }
}

fn zeros(shape: &[usize]) -> Tensor {
    Tensor::zeros(shape, candle_core::DType::F32, &Device::Cpu).unwrap()
}

#[test]
fn tensors_that_nothing_reads_are_named() {
    let name = "model.layers.1.self_attn.q_norm.weight";
    let model = Changed::new("llama", |tensors| {
        tensors.insert(name.to_owned(), zeros(&[16]));
    });
    refused(model.load(), &[name, "1 tensors"]);
}

#[test]
fn missing_tensors_are_named() {
    let name = "model.layers.1.mlp.up_proj.weight";
    let model = Changed::new("llama", |tensors| {
        tensors.remove(name);
    });
    refused(model.load(), &[name, "[128, 64]"]);
}

#[test]
fn wrong_shapes_are_told_with_the_right_ones() {
    let name = "model.layers.0.self_attn.k_proj.weight";
    let model = Changed::new("llama", |tensors| {
        tensors.insert(name.to_owned(), zeros(&[32, 64]));
    });
    refused(model.load(), &[name, "[32, 64]", "[64, 64]"]);
}

#[test]
fn number_types_that_cannot_be_computed_with_are_named() {
    let name = "model.norm.weight";
    let model = Changed::new("llama", |tensors| {
        let whole = zeros(&[64]).to_dtype(candle_core::DType::I64).unwrap();
        tensors.insert(name.to_owned(), whole);
    });
    refused(model.load(), &[name, "I64", "BF16"]);
}

/// Old Llama checkpoints carry the rotary frequencies, and some tied ones the head as well.
#[test]
fn harmless_tensors_are_passed_over() {
    let model = Changed::new("llama-gqa-tied", |tensors| {
        let frequencies = "model.layers.0.self_attn.rotary_emb.inv_freq";
        tensors.insert(frequencies.to_owned(), zeros(&[8]));
        tensors.insert("lm_head.weight".to_owned(), zeros(&[384, 64]));
    });
    model.load().unwrap();
}

#[test]
fn architectures_that_are_not_supported_are_named() {
    for (name, class) in [
        ("mixtral", "MixtralForCausalLM"),
        ("qwen3-moe", "Qwen3MoeForCausalLM"),
    ] {
        let folder = fixtures().join("tiny").join(name);
        refused(load(&folder, 1 << 20, None), &[class, "LlamaForCausalLM"]);
    }
}

#[test]
fn limits_that_do_not_fit_are_told() {
    let folder = fixtures().join("tiny/llama");
    refused(load(&folder, 100, None), &["100 bytes", "allow it more"]);
    refused(load(&folder, 1 << 20, Some(257)), &["257", "256"]);
    assert_eq!(load(&folder, 1 << 20, Some(100)).unwrap().config.context, 100);
}

#[test]
fn damaged_files_are_refused() {
    let model = Changed::new("llama", |_| {});
    let path = model.folder.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    refused(model.load(), &["model.safetensors"]);
    std::fs::remove_file(&path).unwrap();
    refused(
        model.load(),
        &["model.safetensors", "model.safetensors.index.json"],
    );
}
