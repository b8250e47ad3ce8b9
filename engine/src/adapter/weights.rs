//! An adapter in host memory, by the model's own sites: what PEFT loading makes and back ends lay out.

use std::collections::BTreeMap;

use crate::ids::Generation;

/// A linear map of a decoder layer. Fused projections of a checkpoint (Phi-3's `qkv_proj`, `gate_up_proj`) are several:
/// a LoRA on one is a pair for each part, with the same `a` and that part's rows of `b`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Projection {
    /// Query.
    Q,
    /// Key.
    K,
    /// Value.
    V,
    /// Attention output.
    O,
    /// Gate of the gated MLP.
    Gate,
    /// Up.
    Up,
    /// Down.
    Down,
}

/// Where a low-rank pair applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LoraSite {
    /// The input embedding: `a` is `[rank, vocab]`, `b` is `[hidden, rank]`.
    Embed,
    /// A projection of a layer.
    Layer(u32, Projection),
    /// The output head.
    LmHead,
}

/// `y += scale * b @ (a @ x)`.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraPair {
    /// The true rank, 1 to 512.
    pub rank: usize,
    /// Columns of `a`.
    pub in_features: usize,
    /// Rows of `b`.
    pub out_features: usize,
    /// `lora_alpha / r`, or `lora_alpha / sqrt(r)` with rsLoRA.
    pub scale: f32,
    /// `[rank, in_features]`, row-major.
    pub a: Vec<f32>,
    /// `[out_features, rank]`, row-major.
    pub b: Vec<f32>,
}

/// A whole adapter.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraWeights {
    /// Its identity.
    pub generation: Generation,
    /// The low-rank pairs.
    pub pairs: BTreeMap<LoraSite, LoraPair>,
    /// A whole output head in place of the model's (`modules_to_save: ["lm_head"]`), `[vocab, hidden]`.
    pub lm_head: Option<Vec<f32>>,
}

impl LoraWeights {
    /// Bytes of the weights in memory.
    pub fn bytes(&self) -> usize {
        let pairs: usize = self.pairs.values().map(|pair| pair.a.len() + pair.b.len()).sum();
        4 * (pairs + self.lm_head.as_ref().map_or(0, Vec::len))
    }
}
