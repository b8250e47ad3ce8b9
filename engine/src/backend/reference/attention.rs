//! Rotary embedding, the paged KV cache and attention over it.

use super::kernels;
use crate::{
    backend::{AttentionSpec, NormSpec, RopeSpec, Sequence, Step},
    ids::BLOCK_TOKENS,
};

/// Cosines and sines of every position.
pub struct Rope {
    /// Pairs that turn.
    pairs: usize,
    /// `[context, pairs]`.
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Rope {
    pub(in crate::backend) fn new(spec: &RopeSpec) -> Self {
        let angles = (0..spec.context).flat_map(|position| {
            // In f32, as transformers computes them.
            spec.frequencies.iter().map(move |step| position as f32 * step)
        });
        let (cos, sin) = angles
            .map(|angle| {
                let (sin, cos) = f64::from(angle).sin_cos();
                (cos as f32 * spec.amplitude, sin as f32 * spec.amplitude)
            })
            .unzip();
        Self {
            pairs: spec.frequencies.len(),
            cos,
            sin,
        }
    }

    /// Turns one head.
    #[inline(always)]
    pub(in crate::backend) fn turn(&self, position: usize, head: &mut [f32]) {
        let row = position * self.pairs..(position + 1) * self.pairs;
        let (first, rest) = head.split_at_mut(self.pairs);
        let turns = self.cos[row.clone()].iter().zip(&self.sin[row]);
        for ((x, y), (cos, sin)) in first.iter_mut().zip(rest).zip(turns) {
            (*x, *y) = (*x * cos - *y * sin, *y * cos + *x * sin);
        }
    }
}

/// Norms (where there are norms of q and k) and turns the heads of q and k in `[q heads | k heads | v heads]`.
pub(super) fn rope(
    step: &Step,
    attention: &AttentionSpec,
    rope: &Rope,
    norms: Option<(&NormSpec, &NormSpec)>,
    qkv: &mut [f32],
) {
    for (row, position) in qkv.chunks_exact_mut(attention.qkv_width()).zip(&step.positions) {
        let (q, rest) = row.split_at_mut(attention.q_width());
        let k = &mut rest[..attention.kv_width()];
        for (heads, norm) in [(q, norms.map(|(q, _)| q)), (k, norms.map(|(_, k)| k))] {
            for head in heads.chunks_exact_mut(attention.head_dim) {
                if let Some(norm) = norm {
                    kernels::rms_norm_in_place(head, norm);
                }
                rope.turn(*position as usize, head);
            }
        }
    }
}

/// Keys and values of every layer, in blocks.
pub(super) struct KvCache {
    pub(super) blocks: usize,
    layers: Vec<LayerCache>,
}

/// One layer's: `[block, kv head, BLOCK_TOKENS, head_dim]`, so that one head's part of a block is contiguous.
struct LayerCache {
    k: Vec<f32>,
    v: Vec<f32>,
}

impl KvCache {
    pub(super) fn new(layers: usize, blocks: usize, kv_width: usize) -> Self {
        let numbers = blocks * BLOCK_TOKENS * kv_width;
        Self {
            blocks,
            layers: (0..layers)
                .map(|_| LayerCache {
                    k: vec![0.0; numbers],
                    v: vec![0.0; numbers],
                })
                .collect(),
        }
    }

    /// Writes the k and v of each row into its slot.
    pub(super) fn store(&mut self, step: &Step, attention: &AttentionSpec, qkv: &[f32]) {
        let width = attention.head_dim;
        let layer = &mut self.layers[attention.layer];
        for (row, slot) in qkv.chunks_exact(attention.qkv_width()).zip(&step.slots) {
            let (block, offset) = (*slot as usize / BLOCK_TOKENS, *slot as usize % BLOCK_TOKENS);
            let (k, v) = row[attention.q_width()..].split_at(attention.kv_width());
            for head in 0..attention.kv_heads {
                let from = head * width..(head + 1) * width;
                let to = head_of_block(attention, block, head) + offset * width;
                layer.k[to..to + width].copy_from_slice(&k[from.clone()]);
                layer.v[to..to + width].copy_from_slice(&v[from]);
            }
        }
    }

    /// Attention of every row and head, to `[rows, heads, head_dim]`.
    pub(super) fn attend(&self, step: &Step, attention: &AttentionSpec, qkv: &[f32], out: &mut [f32]) {
        let layer = &self.layers[attention.layer];
        let width = attention.head_dim;
        let mut sequence_of_row = Vec::with_capacity(step.rows());
        for sequence in &step.sequences {
            sequence_of_row.extend(sequence.rows.clone().map(|_| sequence));
        }
        let longest = step
            .positions
            .iter()
            .max()
            .map_or(0, |position| *position as usize + 1);
        kernels::for_each_row(out, width, 2 * longest * width, |index, out| {
            let (row, head) = (index / attention.heads, index % attention.heads);
            let q = row * attention.qkv_width() + head * width;
            let keys = Keys {
                attention,
                sequence: sequence_of_row[row],
                kv_head: head * attention.kv_heads / attention.heads,
                position: step.positions[row] as usize,
            };
            layer.attend(&keys, &qkv[q..q + width], out);
        });
    }
}

/// What one query head of one row sees.
struct Keys<'a> {
    attention: &'a AttentionSpec,
    sequence: &'a Sequence,
    kv_head: usize,
    position: usize,
}

impl Keys<'_> {
    /// Where the visible keys (and values) lie, in the order of their positions: one range for each block.
    fn ranges(&self) -> impl Iterator<Item = std::ops::Range<usize>> {
        let first = self.attention.first_visible(self.position);
        let width = self.attention.head_dim;
        (first / BLOCK_TOKENS..=self.position / BLOCK_TOKENS).map(move |index| {
            let begin = first.saturating_sub(index * BLOCK_TOKENS);
            let end = BLOCK_TOKENS.min(self.position + 1 - index * BLOCK_TOKENS);
            let block = self.sequence.blocks[index].0 as usize;
            let base = head_of_block(self.attention, block, self.kv_head);
            base + begin * width..base + end * width
        })
    }
}

impl LayerCache {
    /// `softmax(scale * q @ k^T) @ v`, in the order of the positions.
    fn attend(&self, keys: &Keys<'_>, q: &[f32], out: &mut [f32]) {
        let attention = keys.attention;
        let mut scores = Vec::new();
        for range in keys.ranges() {
            for key in self.k[range].chunks_exact(attention.head_dim) {
                let score = kernels::dot(q, key) * attention.scale;
                scores.push(match attention.soft_cap {
                    Some(cap) => kernels::soft_cap(score, cap),
                    None => score,
                });
            }
        }
        let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut total = 0.0;
        for score in &mut scores {
            *score = (*score - highest).exp();
            total += *score;
        }
        out.fill(0.0);
        let mut weights = scores.iter();
        for range in keys.ranges() {
            let values = self.v[range].chunks_exact(attention.head_dim);
            for (value, weight) in values.zip(weights.by_ref()) {
                kernels::add_scaled(*weight, value, out);
            }
        }
        for out in out {
            *out /= total;
        }
    }
}

/// Where one head's part of a block begins.
fn head_of_block(attention: &AttentionSpec, block: usize, kv_head: usize) -> usize {
    (block * attention.kv_heads + kv_head) * BLOCK_TOKENS * attention.head_dim
}
