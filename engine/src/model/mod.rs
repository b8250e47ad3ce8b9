//! The decoder: one configurable model over the [`crate::backend::Backend`] trait, its configuration and its weights.

mod companions;
mod config;
mod decoder;
mod load;
mod weights;

use crate::{
    backend::cpu::CpuOptions,
    batch::Runner,
    ids::TokenId,
    text::{ChatTemplate, Tokenizer},
};

pub use config::{Activation, Architecture, ModelConfig, Module, Rope, RopeScaling};
pub use decoder::Decoder;
pub use load::{load, load_runner};

/// How to load a model.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Which back end computes.
    pub backend: BackendChoice,
    /// Bytes for the KV cache.
    pub kv_bytes: usize,
    /// A shorter context than the model's own.
    pub context: Option<usize>,
}

/// The back ends there are.
#[derive(Debug, Clone)]
pub enum BackendChoice {
    /// candle-core in f32: as plain as possible, what the others are tested against.
    Reference,
    /// Own kernels for the CPU.
    Cpu(CpuOptions),
}

impl Default for BackendChoice {
    fn default() -> Self {
        Self::Cpu(CpuOptions::default())
    }
}

/// A model, ready to run.
pub struct LoadedModel {
    /// Its configuration.
    pub config: ModelConfig,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// Its chat template, if it has one.
    pub chat_template: Option<ChatTemplate>,
    /// The tokens that end a text: all of `generation_config.json` and `config.json`.
    pub eos: Vec<TokenId>,
    /// The weights on a back end, with the KV cache.
    pub runner: Box<dyn Runner>,
    /// In words: `CPU (bf16, avx512, 8 threads)`.
    pub device: String,
}

/// A model without its text side.
pub struct LoadedRunner {
    /// Its configuration.
    pub config: ModelConfig,
    /// The weights on a back end, with the KV cache.
    pub runner: Box<dyn Runner>,
    /// In words: `CPU (bf16, avx512, 8 threads)`.
    pub device: String,
}
