//! From files to a model that runs.

use std::path::{Path, PathBuf};

use candle_core::quantized::{GgmlDType, gguf_file::Content};
use half::bf16;

use super::{
    BackendChoice, Decoder, LoadOptions, LoadedModel, LoadedRunner, ModelConfig, companions,
    config::GgufTensors, weights::Checkpoint,
};
use crate::{
    backend::{
        Backend,
        cpu::{Cpu, Dtype},
        reference::Reference,
    },
    error::{Error, Result},
    hub::Files,
};

/// Reads a model's files and lays it out on a back end.
///
/// # Errors
/// [`crate::Error::Model`] names the file, what was expected and what was found: unknown architectures and tensors
/// that nothing reads are errors.
pub fn load(files: &Files, options: &LoadOptions) -> Result<LoadedModel> {
    let opened = open(files, options)?;
    let companions = companions::read(files, opened.gguf.as_ref())?;
    let LoadedRunner {
        config,
        runner,
        device,
    } = lay_out(opened, options)?;
    Ok(LoadedModel {
        config,
        tokenizer: companions.tokenizer,
        chat_template: companions.chat_template,
        eos: companions.eos,
        runner,
        device,
    })
}

/// The same without tokenizer and chat template, for callers that speak in tokens.
///
/// # Errors
/// As [`load`].
pub fn load_runner(files: &Files, options: &LoadOptions) -> Result<LoadedRunner> {
    lay_out(open(files, options)?, options)
}

/// A model's files, with the configuration read.
struct Opened {
    config: ModelConfig,
    checkpoint: Checkpoint,
    /// The header, of a GGUF file.
    gguf: Option<Content>,
}

fn open(files: &Files, options: &LoadOptions) -> Result<Opened> {
    let mut opened = match files {
        Files::Gguf(path) => open_gguf(path)?,
        Files::Folder(_) | Files::Embedded(_) => {
            let path = path_of(files);
            let refused = |reason| Error::Model { path, reason };
            let json = match files.read("config.json")? {
                Some(json) => json,
                None => return Err(refused("there is no `config.json`".to_owned())),
            };
            Opened {
                config: ModelConfig::from_json(&json).map_err(refused)?,
                checkpoint: Checkpoint::open_safetensors(files)?,
                gguf: None,
            }
        }
    };
    if let Some(context) = options.context {
        let own = opened.config.context;
        if context == 0 || context > own {
            return Err(opened.checkpoint.error(format!(
                "a context of {context} tokens was asked for: this model's is {own}, and a shorter one may be chosen"
            )));
        }
        opened.config.context = context;
    }
    Ok(opened)
}

fn open_gguf(path: &Path) -> Result<Opened> {
    let (checkpoint, content, architecture) = Checkpoint::open_gguf(path)?;
    let vocab = match checkpoint.shape("model.embed_tokens.weight") {
        Some([vocab, _]) => *vocab,
        _ => return Err(checkpoint.error("there is no matrix `token_embd.weight`")),
    };
    let first = |name: &str| checkpoint.has(&format!("model.layers.0.{name}"));
    let divisors = |name: &str| match checkpoint.shape(name) {
        Some([len]) => {
            let divisors = checkpoint.vector(name, *len)?;
            Ok::<_, Error>(Some(divisors.into_iter().map(f64::from).collect()))
        }
        _ => Ok(None),
    };
    let tensors = GgufTensors {
        vocab,
        tied_embeddings: !checkpoint.has("lm_head.weight"),
        qkv_bias: first("self_attn.q_proj.bias") || first("self_attn.qkv_proj.bias"),
        o_bias: first("self_attn.o_proj.bias"),
        mlp_bias: first("mlp.down_proj.bias"),
        qk_norm: first("self_attn.q_norm.weight"),
        rope_divisors: [
            divisors("rope_freqs.weight")?,
            divisors("rope_factors_short.weight")?,
            divisors("rope_factors_long.weight")?,
        ],
    };
    let config = ModelConfig::from_gguf(architecture, &content.metadata, &tensors)
        .map_err(|reason| checkpoint.error(reason))?;
    Ok(Opened {
        config,
        checkpoint,
        gguf: Some(content),
    })
}

fn lay_out(opened: Opened, options: &LoadOptions) -> Result<LoadedRunner> {
    let Opened {
        config, checkpoint, ..
    } = opened;
    match &options.backend {
        BackendChoice::Reference => {
            let backend = Reference::new(&config, options.kv_bytes)?;
            on(backend, config, &checkpoint)
        }
        BackendChoice::Cpu(cpu) => {
            let full = match cpu.dtype {
                Dtype::Auto => checkpoint.dtype("model.embed_tokens.weight") == Some(GgmlDType::F32),
                Dtype::Bf16 => false,
                Dtype::F32 => true,
            };
            if full {
                on(
                    Cpu::<f32>::new(&config, options.kv_bytes, cpu)?,
                    config,
                    &checkpoint,
                )
            } else {
                on(
                    Cpu::<bf16>::new(&config, options.kv_bytes, cpu)?,
                    config,
                    &checkpoint,
                )
            }
        }
    }
}

/// Lays a checkpoint out on a back end.
fn on<B: Backend>(backend: B, config: ModelConfig, checkpoint: &Checkpoint) -> Result<LoadedRunner> {
    let device = backend.describe();
    let runner = Box::new(Decoder::load(backend, &config, checkpoint)?);
    Ok(LoadedRunner {
        config,
        runner,
        device,
    })
}

/// What messages call a set of files.
pub(super) fn path_of(files: &Files) -> PathBuf {
    match files {
        Files::Folder(path) | Files::Gguf(path) => path.clone(),
        Files::Embedded(set) => PathBuf::from(set.name),
    }
}
