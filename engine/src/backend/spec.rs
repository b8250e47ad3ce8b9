//! What the model hands a back end at load.

use super::HostTensor;
use crate::adapter::LoraSite;

/// A root mean square norm: `x / sqrt(mean(x^2) + eps) * weight`.
#[derive(Debug, Clone, PartialEq)]
pub struct NormSpec {
    /// `[width]`. Where an architecture scales by `1 + w`, the one has been added.
    pub weight: Vec<f32>,
    /// Added to the mean square.
    pub eps: f32,
}

/// One or more projections of the same input, stacked by output rows: q, k, v or gate, up or a single one.
#[derive(Debug)]
pub struct LinearSpec<'a> {
    /// Input width.
    pub in_features: usize,
    /// The projections, in the order of their rows.
    pub parts: Vec<LinearPart>,
    /// The weights, each `[out, in]`, to be stacked in this order: one for all parts where the checkpoint fuses them, or
    /// one for each. They may have different number types.
    pub weights: Vec<HostTensor<'a>>,
    /// `[all outputs]`.
    pub bias: Option<Vec<f32>>,
}

impl LinearSpec<'_> {
    /// Output width of all parts together.
    pub fn out_features(&self) -> usize {
        self.parts.iter().map(|part| part.out_features).sum()
    }
}

/// One of the projections of a [`LinearSpec`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinearPart {
    /// What adapters know it by.
    pub site: LoraSite,
    /// Its rows.
    pub out_features: usize,
}

/// An output head.
#[derive(Debug)]
pub struct HeadSpec<'a, Embedding> {
    /// Its matrix.
    pub weight: HeadWeight<'a, Embedding>,
    /// `cap * tanh(logit / cap)`.
    pub soft_cap: Option<f32>,
}

/// The matrix of an output head.
#[derive(Debug)]
pub enum HeadWeight<'a, Embedding> {
    /// The input embedding's, without its scale.
    Tied(&'a Embedding),
    /// Its own, `[vocab, hidden]`.
    Own(HostTensor<'a>),
}

/// A rotary embedding of the pairs `(i, i + n)` of a head, `n` the number of frequencies. Dimensions from `2 n` on pass
/// unchanged. At position `p` pair `i` turns by `p * frequencies[i]`; both results are multiplied by `amplitude`.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeSpec {
    /// Radians for each position.
    pub frequencies: Vec<f32>,
    /// Multiplies cosines and sines.
    pub amplitude: f32,
    /// Positions run below this.
    pub context: usize,
}

/// The attention of one layer.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionSpec {
    /// The layer, from 0: which part of the KV cache.
    pub layer: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads. Query head `h` reads `h / (heads / kv_heads)`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Scores are multiplied by it.
    pub scale: f32,
    /// Then `cap * tanh(score / cap)`.
    pub soft_cap: Option<f32>,
    /// A query at `p` sees keys at `p - window + 1` and later; none: all from 0.
    pub window: Option<usize>,
}

impl AttentionSpec {
    /// Width of the query heads together.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of the key heads together, and of the value heads.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Width of a row of `[q heads | k heads | v heads]`.
    pub fn qkv_width(&self) -> usize {
        self.q_width() + 2 * self.kv_width()
    }

    /// The first position that a query at `position` sees.
    pub fn first_visible(&self, position: usize) -> usize {
        self.window
            .map_or(0, |window| (position + 1).saturating_sub(window))
    }
}
