//! Rotary embedding, the paged KV cache and attention over it.

use std::{cell::RefCell, ops::Range};

use super::{
    elementwise::{self, Norm},
    memory::{Arena, Array},
    pool::{Cut, Parts, Pool},
    simd::{Kernel, LANES, Level, Number, Simd},
};
use crate::{
    backend::{AttentionSpec, Sequence, Step, reference::Rope},
    ids::BLOCK_TOKENS,
};

/// Rows of a sequence that one task attends for together.
const ROWS: usize = 8;

const _: () = assert!(BLOCK_TOKENS == LANES, "a block of keys is a vector");

/// Keys and values of every layer, in blocks.
pub(super) struct KvCache<E> {
    pub(super) blocks: usize,
    layers: Vec<LayerCache<E>>,
}

/// One layer's.
struct LayerCache<E> {
    /// `[block, kv head, head_dim]` of the keys of a block's positions: a vector of scores is a sum of products with them.
    k: Array<[E; LANES]>,
    /// `[block, kv head, position, head_dim / LANES rounded up]`.
    v: Array<[E; LANES]>,
}

/// Vectors that a value takes.
fn value_vectors(head_dim: usize) -> usize {
    head_dim.div_ceil(LANES)
}

/// Bytes of one block of one layer.
pub(super) fn block_bytes<E>(kv_heads: usize, head_dim: usize) -> usize {
    kv_heads * (head_dim + BLOCK_TOKENS * value_vectors(head_dim)) * size_of::<[E; LANES]>()
}

impl<E: Number> KvCache<E> {
    /// # Errors
    /// There is no memory.
    pub(super) fn new(
        layers: usize,
        blocks: usize,
        kv_heads: usize,
        head_dim: usize,
    ) -> std::io::Result<Self> {
        let heads = blocks * kv_heads;
        let mut arena = Arena::new(0);
        let mut layer = || {
            Ok(LayerCache {
                k: arena.zeros(heads * head_dim)?,
                v: arena.zeros(heads * BLOCK_TOKENS * value_vectors(head_dim))?,
            })
        };
        Ok(Self {
            blocks,
            layers: (0..layers).map(|_| layer()).collect::<std::io::Result<_>>()?,
        })
    }

    /// Norms (where there are norms of q and k) and turns the heads of q and k in `[q heads | k heads | v heads]`, and writes k
    /// and v into their slots.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn rope_and_store(
        &mut self,
        pool: &mut Pool,
        level: Level,
        step: &Step,
        attention: &AttentionSpec,
        rope: &Rope,
        norms: Option<(&Norm, &Norm)>,
        qkv: &mut [f32],
    ) {
        let width = attention.qkv_width();
        let cut = pool.cut(step.rows(), 8 * width);
        let layer = &mut self.layers[attention.layer];
        let (qkv, k, v) = (
            Parts::new(qkv),
            Parts::new(&mut layer.k),
            Parts::new(&mut layer.v),
        );
        pool.run(cut.pieces(), |task| {
            for row in cut.piece(task) {
                // SAFETY: a row is in one piece.
                let qkv = unsafe { qkv.part(row * width..(row + 1) * width) };
                let position = step.positions[row] as usize;
                level.run(Turn {
                    attention,
                    rope,
                    norms,
                    position,
                    qkv,
                });
                let slot = step.slots[row] as usize;
                store(attention, slot, &qkv[attention.q_width()..], k, v);
            }
        });
    }

    /// Attention of every row and head, to `[rows, heads, head_dim]`.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn attend(
        &self,
        pool: &mut Pool,
        level: Level,
        step: &Step,
        tasks: &[(usize, Range<usize>)],
        attention: &AttentionSpec,
        qkv: &[f32],
        out: &mut [f32],
    ) {
        let layer = &self.layers[attention.layer];
        let out = Parts::new(out);
        let keys: usize = step.positions.iter().map(|position| *position as usize + 1).sum();
        let attend = |task: usize| {
            let (sequence, rows) = &tasks[task / attention.kv_heads];
            level.run(Attend {
                layer,
                attention,
                sequence: &step.sequences[*sequence],
                rows: rows.clone(),
                kv_head: task % attention.kv_heads,
                qkv,
                out,
            });
        };
        let count = tasks.len() * attention.kv_heads;
        if pool.cut(keys, 2 * attention.q_width()).pieces() == 1 {
            (0..count).for_each(attend);
        } else {
            pool.run(count, attend);
        }
    }
}

/// The tasks of a step's attention, for each head of keys: a sequence and some of its rows.
pub(super) fn cut_sequences(step: &Step, tasks: &mut Vec<(usize, Range<usize>)>) {
    tasks.clear();
    for (index, sequence) in step.sequences.iter().enumerate() {
        let cut = Cut::of(sequence.rows.len(), ROWS);
        let begin = sequence.rows.start;
        tasks.extend((0..cut.pieces()).map(|piece| {
            let rows = cut.piece(piece);
            (index, begin + rows.start..begin + rows.end)
        }));
    }
}

/// Writes the `[k heads | v heads]` of one row.
fn store<E: Number>(
    attention: &AttentionSpec,
    slot: usize,
    kv: &[f32],
    to_k: Parts<'_, [E; LANES]>,
    to_v: Parts<'_, [E; LANES]>,
) {
    let (block, offset) = (slot / BLOCK_TOKENS, slot % BLOCK_TOKENS);
    let (k, v) = kv.split_at(attention.kv_width());
    let (dim, vectors) = (attention.head_dim, value_vectors(attention.head_dim));
    for head in 0..attention.kv_heads {
        let place = block * attention.kv_heads + head;
        for (i, x) in k[head * dim..(head + 1) * dim].iter().enumerate() {
            let vector: *mut [E; LANES] = to_k.pointer(place * dim + i);
            // SAFETY: a lane of a vector in the cache. Two rows of a step never have the same slot, so never the same lane.
            unsafe { vector.cast::<E>().add(offset).write(E::of(*x)) };
        }
        let at = (place * BLOCK_TOKENS + offset) * vectors;
        // SAFETY: two rows of a step never have the same slot.
        let to = unsafe { to_v.part(at..at + vectors) };
        for (to, x) in to
            .as_flattened_mut()
            .iter_mut()
            .zip(&v[head * dim..(head + 1) * dim])
        {
            *to = E::of(*x);
        }
    }
}

/// Norms and turns the heads of one row.
struct Turn<'a> {
    attention: &'a AttentionSpec,
    rope: &'a Rope,
    norms: Option<(&'a Norm, &'a Norm)>,
    position: usize,
    qkv: &'a mut [f32],
}

impl Kernel for Turn<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let attention = self.attention;
        let (q, rest) = self.qkv.split_at_mut(attention.q_width());
        let k = &mut rest[..attention.kv_width()];
        for (heads, norm) in [(q, self.norms.map(|(q, _)| q)), (k, self.norms.map(|(_, k)| k))] {
            for head in heads.chunks_exact_mut(attention.head_dim) {
                if let Some(norm) = norm {
                    elementwise::norm_in_place(simd, head, norm);
                }
                self.rope.turn(self.position, head);
            }
        }
    }
}

/// One task: the query heads of some rows of a sequence that read one head of keys.
struct Attend<'a, E> {
    layer: &'a LayerCache<E>,
    attention: &'a AttentionSpec,
    sequence: &'a Sequence,
    rows: Range<usize>,
    kv_head: usize,
    qkv: &'a [f32],
    out: Parts<'a, f32>,
}

thread_local! {
    /// Scores, then weights, of a task's queries, kept for the next.
    static SCORES: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

impl<E: Number> Kernel for Attend<'_, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        // Taken, and not borrowed: a closure would not be compiled for the instruction set.
        let mut scores = SCORES.take();
        self.compute(simd, &mut scores);
        SCORES.set(scores);
    }
}

impl<'a, E: Number> Attend<'a, E> {
    /// `softmax(scale * q @ k^T) @ v` for every query, a query being a head of a row. Sums run in the order of the positions, by
    /// their places in the blocks, so that a query's do not depend on what it is computed with.
    #[inline(always)]
    fn compute<S: Simd>(&self, simd: S, scores: &mut Vec<f32>) {
        let queries = self.rows.len() * self.group();
        let blocks = self.blocks();
        let width = blocks.len() * LANES;
        scores.resize(queries * width, 0.0);
        let mut query = 0;
        while query < queries {
            let tile = (queries - query).min(4);
            let scores = &mut scores[query * width..(query + tile) * width];
            match tile {
                4 => self.tile::<S, 4>(simd, query, &blocks, scores),
                3 => self.tile::<S, 3>(simd, query, &blocks, scores),
                2 => self.tile::<S, 2>(simd, query, &blocks, scores),
                _ => self.tile::<S, 1>(simd, query, &blocks, scores),
            }
            query += tile;
        }
    }

    /// The same for the queries from `first`.
    #[inline(always)]
    fn tile<S: Simd, const M: usize>(
        &self,
        simd: S,
        first: usize,
        blocks: &Range<usize>,
        scores: &mut [f32],
    ) {
        self.score::<S, M>(simd, first, blocks, scores);
        let width = blocks.len() * LANES;
        let mut scales = [0.0; M];
        for (index, scores) in scores.chunks_exact_mut(width).enumerate() {
            let visible = self.visible(first + index, blocks);
            scales[index] = soften(simd, scores, visible);
        }
        let vectors = value_vectors(self.attention.head_dim);
        let mut vector = 0;
        while vector + 4 <= vectors {
            self.weigh::<S, M, 4>(simd, first, blocks, scores, scales, vector);
            vector += 4;
        }
        while vector < vectors {
            self.weigh::<S, M, 1>(simd, first, blocks, scores, scales, vector);
            vector += 1;
        }
    }

    /// Scores of every position of the blocks.
    #[inline(always)]
    fn score<S: Simd, const M: usize>(
        &self,
        simd: S,
        first: usize,
        blocks: &Range<usize>,
        scores: &mut [f32],
    ) {
        let dim = self.attention.head_dim;
        let q: [&[f32]; M] = std::array::from_fn(|index| self.query(first + index));
        assert!(q.iter().all(|q| q.len() == dim));
        let width = blocks.len() * LANES;
        for (place, block) in blocks.clone().enumerate() {
            let at = self.place(block) * dim;
            let mut sums = [simd.splat(0.0); M];
            for (i, keys) in self.layer.k[at..at + dim].iter().enumerate() {
                let keys = E::load(simd, keys);
                for (sum, q) in sums.iter_mut().zip(q) {
                    *sum = simd.fma(keys, simd.splat(q[i]), *sum);
                }
            }
            for (index, sum) in sums.into_iter().enumerate() {
                let mut score = simd.mul(sum, simd.splat(self.attention.scale));
                if let Some(cap) = self.attention.soft_cap {
                    let cap = simd.splat(cap);
                    score = simd.mul(cap, simd.tanh(simd.div(score, cap)));
                }
                let (vectors, _) = scores[index * width..(index + 1) * width].as_chunks_mut::<LANES>();
                simd.store(score, &mut vectors[place]);
            }
        }
    }

    /// Adds the values up, `N` vectors of them from `vector` on.
    #[inline(always)]
    fn weigh<S: Simd, const M: usize, const N: usize>(
        &self,
        simd: S,
        first: usize,
        blocks: &Range<usize>,
        weights: &[f32],
        scales: [f32; M],
        vector: usize,
    ) {
        let vectors = value_vectors(self.attention.head_dim);
        let width = blocks.len() * LANES;
        let (begin, end) = (
            self.visible(first, blocks).start,
            self.visible(first + M - 1, blocks).end,
        );
        let mut sums = [[simd.splat(0.0); N]; M];
        for (place, block) in blocks.clone().enumerate() {
            let at = self.place(block) * BLOCK_TOKENS * vectors;
            let values = &self.layer.v[at..at + BLOCK_TOKENS * vectors];
            // What has not been written yet is not read.
            let positions = begin.saturating_sub(place * LANES)..LANES.min(end.saturating_sub(place * LANES));
            for position in positions {
                let values = &values[position * vectors + vector..position * vectors + vector + N];
                let values: [S::F; N] = std::array::from_fn(|i| E::load(simd, &values[i]));
                for (index, sums) in sums.iter_mut().enumerate() {
                    let weight = simd.splat(weights[index * width + place * LANES + position]);
                    for (sum, values) in sums.iter_mut().zip(values) {
                        *sum = simd.fma(values, weight, *sum);
                    }
                }
            }
        }
        for (index, sums) in sums.into_iter().enumerate() {
            // SAFETY: one query at a time.
            let out = unsafe { self.out(first + index) };
            for (sum, to) in sums.into_iter().zip(out.chunks_mut(LANES).skip(vector)) {
                let mut padded = [0.0; LANES];
                simd.store(simd.mul(sum, simd.splat(scales[index])), &mut padded);
                to.copy_from_slice(&padded[..to.len()]);
            }
        }
    }

    /// Query heads for each head of keys.
    fn group(&self) -> usize {
        self.attention.heads / self.attention.kv_heads
    }

    /// Row and head of a query.
    fn row_and_head(&self, query: usize) -> (usize, usize) {
        let group = self.group();
        (
            self.rows.start + query / group,
            self.kv_head * group + query % group,
        )
    }

    fn query(&self, query: usize) -> &[f32] {
        let (row, head) = self.row_and_head(query);
        let at = row * self.attention.qkv_width() + head * self.attention.head_dim;
        &self.qkv[at..at + self.attention.head_dim]
    }

    /// Where the result of a query goes.
    ///
    /// # Safety
    /// The caller holds no others. (Each row and head is in one task.)
    unsafe fn out(&self, query: usize) -> &'a mut [f32] {
        let (row, head) = self.row_and_head(query);
        let at = (row * self.attention.heads + head) * self.attention.head_dim;
        // SAFETY: the caller sees to it.
        unsafe { self.out.part(at..at + self.attention.head_dim) }
    }

    /// The position of a row in the sequence.
    fn position(&self, row: usize) -> usize {
        self.sequence.start + row - self.sequence.rows.start
    }

    /// The blocks of the sequence that some row sees.
    fn blocks(&self) -> Range<usize> {
        let first = self.attention.first_visible(self.position(self.rows.start));
        first / BLOCK_TOKENS..self.position(self.rows.end - 1) / BLOCK_TOKENS + 1
    }

    /// The positions that a query sees, counted from the first of `blocks`.
    fn visible(&self, query: usize, blocks: &Range<usize>) -> Range<usize> {
        let position = self.position(self.row_and_head(query).0);
        let begin = blocks.start * BLOCK_TOKENS;
        self.attention.first_visible(position) - begin..position + 1 - begin
    }

    /// Where this head's part of a block of the sequence is.
    fn place(&self, block: usize) -> usize {
        self.sequence.blocks[block].0 as usize * self.attention.kv_heads + self.kv_head
    }
}

/// Turns scores into weights that are not normalised, 0 for what is not visible, and returns what normalises them.
#[inline(always)]
fn soften<S: Simd>(simd: S, scores: &mut [f32], visible: Range<usize>) -> f32 {
    scores[..visible.start].fill(f32::NEG_INFINITY);
    scores[visible.end..].fill(f32::NEG_INFINITY);
    let (vectors, _) = scores.as_chunks_mut::<LANES>();
    let mut greatest = simd.splat(f32::NEG_INFINITY);
    for vector in &*vectors {
        greatest = simd.max(simd.load(vector), greatest);
    }
    let greatest = simd.splat(simd.greatest(greatest));
    for vector in vectors.iter_mut() {
        let weights = simd.exp(simd.sub(simd.load(vector), greatest));
        simd.store(weights, vector);
    }
    scores[..visible.start].fill(0.0);
    scores[visible.end..].fill(0.0);
    let (vectors, _) = scores.as_chunks::<LANES>();
    let mut total = simd.splat(0.0);
    for vector in vectors {
        total = simd.add(total, simd.load(vector));
    }
    simd.sum(total).recip()
}
