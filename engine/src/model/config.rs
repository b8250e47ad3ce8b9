//! What distinguishes one decoder from another, read from `config.json` or GGUF metadata.

use std::ops::Range;

use crate::adapter::LoraSite;

/// The configuration of a decoder. Everything that differs between architectures is a field here.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Rows of the embedding.
    pub vocab: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Decoder layers.
    pub layers: usize,
    /// The longest context in tokens.
    pub context: usize,
}

/// A linear module of the checkpoint, by the name that PEFT knows it by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// `model.layers.0.self_attn.q_proj`, `model.embed_tokens`, `lm_head`.
    pub path: String,
    /// The layer it is in, if any.
    pub layer: Option<u32>,
    /// Input width. For the embedding: the vocabulary.
    pub in_features: usize,
    /// Output width. For the embedding: the hidden width.
    pub out_features: usize,
    /// The sites it stands for, with their rows of the output: more than one where the checkpoint fuses projections.
    pub parts: Vec<(LoraSite, Range<usize>)>,
}

impl ModelConfig {
    /// Every module that an adapter may target, as the checkpoint names them.
    pub fn modules(&self) -> Vec<Module> {
        todo!()
    }
}
