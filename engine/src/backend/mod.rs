//! Back ends: what the decoder is computed with.
//!
//! [`Backend`] is the set of fused operations that [`crate::model::Decoder`] is written over. A back end owns its
//! memory: activations ([`Backend::Buffer`]), weights in whatever layout its kernels like, the KV cache. The model code
//! only passes handles around, so that one text of the decoder serves a plain loop, packed tiles and captured graphs.
//!
//! # What an author of a back end must uphold
//! - **Loading.** Weights come as [`HostTensor`]s, once, borrowed from a mapped file. Whatever packing pays is done
//!   then. Projections that read the same input come as one [`LinearSpec`] and are computed by one call.
//! - **Buffers** are made once, at load, and are `[rows of the step, width]`. If a step has more rows than there is
//!   room for, they grow in [`Backend::run`], before its operations: no operation allocates device memory.
//! - **Steps.** Everything that differs from step to step is in [`Step`]: tokens, positions, block tables, segments of
//!   adapters, wanted rows. `run` is told the step before any operation, so that tables can be uploaded once. Each step
//!   issues the same operations in the same order with the same handles; a back end may record them
//!   for the first step of a shape and replay the recording for later ones, without calling the closure.
//! - **Adapters** are laid out by [`Backend::adapter_loader`], from loader threads, while steps run. An operation that
//!   applies adapters looks them up by its [`LoraSite`] in the step's segments. Rows without an adapter, and steps without
//!   segments, must cost nothing extra. Pairs have their true rank, any from 1 to 512, and differ between segments
//!   and between sites. The memory is freed with the last clone of the [`DeviceAdapter`]; a step holds clones
//!   until `run` and [`Backend::logits`] have returned, so a back end that works asynchronously must hold its own.
//! - **Rows are independent.** A row's result depends on its sequence and its adapter, not on the other rows of the
//!   step, nor on how the sequence was cut into spans. The reference back end keeps this to the bit, and the golden tests
//!   hold every back end to it in the tokens it generates. So: sums run in an order that does not depend on the number
//!   of rows.
//! - **Order.** Within a step keys and values are written before they are attended to: a span's later rows see its
//!   earlier ones. Two spans of a step never write the same block, but may read the same ones (shared prefixes).
//! - **Failure.** An operation that fails leaves the step's blocks in any state; the caller forgets them. The back
//!   end must stay usable for the next step.
//!
//! [`LoraSite`]: crate::adapter::LoraSite
//! [`DeviceAdapter`]: crate::batch::DeviceAdapter

pub mod cpu;
pub mod reference;

mod host;
#[cfg(test)]
mod ranks;
mod spec;
mod step;

use std::sync::Arc;

use crate::{
    batch::{AdapterLoader, Logits},
    error::{Error, Result},
};

pub use host::{HostTensor, RowOrder};
pub use spec::{AttentionSpec, HeadSpec, HeadWeight, LinearPart, LinearSpec, NormSpec, RopeSpec};
pub use step::{Segment, Sequence, Step, StepLimits};

/// Sets how many threads compute on the CPU, for the whole process: once, before the first model is loaded. Without it
/// there is one for each core.
///
/// # Errors
/// They run already.
pub fn use_threads(count: usize) -> Result<()> {
    rayon::ThreadPoolBuilder::new()
        .num_threads(count)
        .build_global()
        .map_err(|error| Error::Backend {
            backend: "CPU",
            reason: error.to_string(),
        })
}

/// A back end. See the [module](self) for what its authors must uphold.
pub trait Backend: Sized + Send + 'static {
    /// Activations, `[rows of the step, width]`.
    type Buffer: Send;
    /// The weight of a norm.
    type Norm: Send;
    /// One or more stacked projections of the same input, with their biases and the sites that adapters know them by.
    type Linear: Send;
    /// The input embedding.
    type Embedding: Send;
    /// The output head.
    type Head: Send;
    /// The tables of a rotary embedding.
    type Rope: Send;

    /// In words: `reference (CPU, f32)`.
    fn describe(&self) -> String;

    /// Blocks that the KV cache holds.
    fn kv_blocks(&self) -> usize;

    /// Lays adapters out for this back end.
    fn adapter_loader(&self) -> Arc<dyn AdapterLoader>;

    /// Makes a buffer of this many columns.
    fn buffer(&mut self, width: usize) -> Result<Self::Buffer>;

    /// Takes in the weight of a norm.
    fn norm(&mut self, spec: NormSpec) -> Result<Self::Norm>;

    /// Takes in a linear map.
    fn linear(&mut self, spec: LinearSpec<'_>) -> Result<Self::Linear>;

    /// Takes in the input embedding, `[vocab, hidden]`; its rows are multiplied by `scale` when they are read.
    fn embedding(&mut self, table: &HostTensor<'_>, scale: f32) -> Result<Self::Embedding>;

    /// Takes in the output head.
    fn head(&mut self, spec: HeadSpec<'_, Self::Embedding>) -> Result<Self::Head>;

    /// Takes in a rotary embedding.
    fn rope(&mut self, spec: RopeSpec) -> Result<Self::Rope>;

    /// Computes a step: calls `operations`, or replays what it recorded of them for an earlier step of the same shape.
    fn run(&mut self, step: &Step, operations: impl FnOnce(&mut Self) -> Result<()>) -> Result<()>;

    /// `out = scale * (embedding[token] + LoRA)`.
    fn embed(&mut self, step: &Step, embedding: &Self::Embedding, out: &mut Self::Buffer) -> Result<()>;

    /// `out = norm(x)`.
    fn apply_norm(
        &mut self,
        step: &Step,
        x: &Self::Buffer,
        norm: &Self::Norm,
        out: &mut Self::Buffer,
    ) -> Result<()>;

    /// `residual += delta`, or `residual += post(delta)` where there is a `post`; then `out = norm(residual)`.
    fn add_norm(
        &mut self,
        step: &Step,
        delta: &Self::Buffer,
        post: Option<&Self::Norm>,
        residual: &mut Self::Buffer,
        norm: &Self::Norm,
        out: &mut Self::Buffer,
    ) -> Result<()>;

    /// `out = x @ weight^T + bias + LoRA`, for all the stacked projections. Columns of `out` are in the order of the
    /// spec's parts.
    fn apply_linear(
        &mut self,
        step: &Step,
        x: &Self::Buffer,
        linear: &Self::Linear,
        out: &mut Self::Buffer,
    ) -> Result<()>;

    /// Takes `[q heads | k heads | v heads]`: norms each head of q and k where there are `norms` (of q, of k), turns q
    /// and k by their positions, leaves q in its place and writes k and v into the step's blocks of this layer.
    fn rope_and_store(
        &mut self,
        step: &Step,
        attention: &AttentionSpec,
        rope: &Self::Rope,
        norms: Option<(&Self::Norm, &Self::Norm)>,
        qkv: &mut Self::Buffer,
    ) -> Result<()>;

    /// Causal attention of q (in its place in `qkv`) over the sequence's blocks, to `[rows, q heads]`.
    fn attend(
        &mut self,
        step: &Step,
        attention: &AttentionSpec,
        qkv: &Self::Buffer,
        out: &mut Self::Buffer,
    ) -> Result<()>;

    /// `out = activation(gate) * up` of `[gate | up]`.
    fn gated_activation(
        &mut self,
        step: &Step,
        activation: crate::model::Activation,
        gate_up: &Self::Buffer,
        out: &mut Self::Buffer,
    ) -> Result<()>;

    /// The logits of the step's wanted rows, on the host: `cap * tanh((x @ head^T + LoRA) / cap)`, without the cap where
    /// there is none; an adapter that brings a whole head of its own takes the head's place. Called once, after `run`.
    fn logits(&mut self, step: &Step, x: &Self::Buffer, head: &Self::Head) -> Result<Logits>;

    /// Takes back what [`logits`](Self::logits) returned: its memory may serve the next step.
    fn recycle(&mut self, _: Logits) {}
}
