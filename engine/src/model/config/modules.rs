//! The linear modules of a checkpoint, by the names that PEFT knows them by.

use std::ops::Range;

use super::ModelConfig;
use crate::adapter::{LoraSite, Projection};

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
        let mut modules = vec![Module {
            path: "model.embed_tokens".to_owned(),
            layer: None,
            in_features: self.vocab,
            out_features: self.hidden,
            parts: vec![(LoraSite::Embed, 0..self.hidden)],
        }];
        for layer in 0..self.layers as u32 {
            for (name, projections) in self.layer_modules() {
                let mut parts = Vec::new();
                let mut rows = 0;
                for &projection in *projections {
                    let (_, out) = self.projection_shape(projection);
                    parts.push((LoraSite::Layer(layer, projection), rows..rows + out));
                    rows += out;
                }
                modules.push(Module {
                    path: format!("model.layers.{layer}.{name}"),
                    layer: Some(layer),
                    in_features: self.projection_shape(projections[0]).0,
                    out_features: rows,
                    parts,
                });
            }
        }
        modules.push(Module {
            path: "lm_head".to_owned(),
            layer: None,
            in_features: self.hidden,
            out_features: self.vocab,
            parts: vec![(LoraSite::LmHead, 0..self.vocab)],
        });
        modules
    }

    /// The linear modules of one layer, below `model.layers.N`, with the projections that each holds, in order.
    pub(crate) fn layer_modules(&self) -> &'static [(&'static str, &'static [Projection])] {
        use Projection::{Down, Gate, K, O, Q, Up, V};
        if self.fused_projections {
            &[
                ("self_attn.qkv_proj", &[Q, K, V]),
                ("self_attn.o_proj", &[O]),
                ("mlp.gate_up_proj", &[Gate, Up]),
                ("mlp.down_proj", &[Down]),
            ]
        } else {
            &[
                ("self_attn.q_proj", &[Q]),
                ("self_attn.k_proj", &[K]),
                ("self_attn.v_proj", &[V]),
                ("self_attn.o_proj", &[O]),
                ("mlp.gate_proj", &[Gate]),
                ("mlp.up_proj", &[Up]),
                ("mlp.down_proj", &[Down]),
            ]
        }
    }

    /// Input and output width of a projection.
    pub fn projection_shape(&self, projection: Projection) -> (usize, usize) {
        match projection {
            Projection::Q => (self.hidden, self.q_width()),
            Projection::K | Projection::V => (self.hidden, self.kv_width()),
            Projection::O => (self.q_width(), self.hidden),
            Projection::Gate | Projection::Up => (self.hidden, self.ff),
            Projection::Down => (self.ff, self.hidden),
        }
    }
}
