//! The decoder: embedding, layers of attention and gated MLP, output head, written once over [`Backend`].

use std::sync::Arc;

use super::{Activation, ModelConfig, Rope, weights::Checkpoint};
use crate::{
    adapter::{LoraSite, Projection},
    backend::{
        AttentionSpec, Backend, HeadSpec, HeadWeight, LinearPart, LinearSpec, NormSpec, RopeSpec, Step,
        StepLimits,
    },
    batch::{AdapterLoader, Batch, Logits, Runner},
    error::Result,
};

/// A model on a back end.
pub struct Decoder<B: Backend> {
    backend: B,
    network: Network<B>,
    activations: Activations<B>,
    limits: StepLimits,
}

/// The weights.
struct Network<B: Backend> {
    embedding: B::Embedding,
    rope: B::Rope,
    /// For layers with a window, where it differs.
    local_rope: Option<B::Rope>,
    activation: Activation,
    layers: Vec<Layer<B>>,
    final_norm: B::Norm,
    head: B::Head,
}

/// One layer's weights.
struct Layer<B: Backend> {
    attention: AttentionSpec,
    input_norm: B::Norm,
    qkv: B::Linear,
    /// Of each head of q and k.
    qk_norms: Option<(B::Norm, B::Norm)>,
    o: B::Linear,
    /// Of the attention's output.
    post_attention_norm: Option<B::Norm>,
    mlp_norm: B::Norm,
    gate_up: B::Linear,
    down: B::Linear,
    /// Of the MLP's output.
    post_mlp_norm: Option<B::Norm>,
}

/// The buffers that a step works in, `[rows, ...]`.
struct Activations<B: Backend> {
    /// The residual stream, `hidden`.
    residual: B::Buffer,
    /// Normed, the input of what comes next, `hidden`.
    normed: B::Buffer,
    /// `[q heads | k heads | v heads]`.
    qkv: B::Buffer,
    /// What attention gives, `q heads`.
    attended: B::Buffer,
    /// What is added to the stream next, `hidden`.
    delta: B::Buffer,
    /// `[gate | up]`.
    gate_up: B::Buffer,
    /// `activation(gate) * up`, `ff`.
    inner: B::Buffer,
}

impl<B: Backend> Decoder<B> {
    /// Lays a checkpoint out on a back end.
    ///
    /// # Errors
    /// A tensor is missing, has another shape than the configuration says, or belongs to no part of the model.
    pub(super) fn load(mut backend: B, config: &ModelConfig, checkpoint: &Checkpoint) -> Result<Self> {
        let loader = Loader { config, checkpoint };
        let network = loader.network(&mut backend)?;
        checkpoint.finish()?;
        Ok(Self {
            activations: Activations {
                residual: backend.buffer(config.hidden)?,
                normed: backend.buffer(config.hidden)?,
                qkv: backend.buffer(config.q_width() + 2 * config.kv_width())?,
                attended: backend.buffer(config.q_width())?,
                delta: backend.buffer(config.hidden)?,
                gate_up: backend.buffer(2 * config.ff)?,
                inner: backend.buffer(config.ff)?,
            },
            limits: StepLimits {
                vocab: config.vocab,
                context: config.context,
                kv_blocks: backend.kv_blocks(),
            },
            network,
            backend,
        })
    }
}

impl<B: Backend> Runner for Decoder<B> {
    fn forward(&mut self, batch: &Batch) -> Result<Logits> {
        let step = Step::new(batch, self.limits)?;
        if step.rows() == 0 {
            return Ok(Logits {
                data: Vec::new(),
                vocab: self.limits.vocab,
            });
        }
        let (network, activations) = (&self.network, &mut self.activations);
        self.backend
            .run(&step, |backend| network.compute(backend, &step, activations))?;
        self.backend
            .logits(&step, &self.activations.normed, &self.network.head)
    }

    fn recycle(&mut self, logits: Logits) {
        self.backend.recycle(logits);
    }

    fn kv_blocks(&self) -> usize {
        self.backend.kv_blocks()
    }

    fn adapter_loader(&self) -> Arc<dyn AdapterLoader> {
        self.backend.adapter_loader()
    }
}

impl<B: Backend> Network<B> {
    /// From the step's tokens to `normed`, the input of the head.
    fn compute(&self, backend: &mut B, step: &Step, on: &mut Activations<B>) -> Result<()> {
        backend.embed(step, &self.embedding, &mut on.residual)?;
        let input_norms = self.layers.iter().map(|layer| &layer.input_norm);
        let mut norms = input_norms.chain([&self.final_norm]);
        if let Some(first) = norms.next() {
            backend.apply_norm(step, &on.residual, first, &mut on.normed)?;
        }
        for (layer, next_norm) in self.layers.iter().zip(norms) {
            let rope = match (&self.local_rope, layer.attention.window) {
                (Some(local), Some(_)) => local,
                _ => &self.rope,
            };
            let qk_norms = layer.qk_norms.as_ref().map(|(q, k)| (q, k));
            backend.apply_linear(step, &on.normed, &layer.qkv, &mut on.qkv)?;
            backend.rope_and_store(step, &layer.attention, rope, qk_norms, &mut on.qkv)?;
            backend.attend(step, &layer.attention, &on.qkv, &mut on.attended)?;
            backend.apply_linear(step, &on.attended, &layer.o, &mut on.delta)?;
            let post = layer.post_attention_norm.as_ref();
            backend.add_norm(
                step,
                &on.delta,
                post,
                &mut on.residual,
                &layer.mlp_norm,
                &mut on.normed,
            )?;

            backend.apply_linear(step, &on.normed, &layer.gate_up, &mut on.gate_up)?;
            backend.gated_activation(step, self.activation, &on.gate_up, &mut on.inner)?;
            backend.apply_linear(step, &on.inner, &layer.down, &mut on.delta)?;
            let post = layer.post_mlp_norm.as_ref();
            backend.add_norm(step, &on.delta, post, &mut on.residual, next_norm, &mut on.normed)?;
        }
        Ok(())
    }
}

/// Finds the tensors of each part by the configuration.
struct Loader<'a> {
    config: &'a ModelConfig,
    checkpoint: &'a Checkpoint,
}

impl Loader<'_> {
    fn network<B: Backend>(&self, backend: &mut B) -> Result<Network<B>> {
        let Self { config, checkpoint } = self;
        let table = checkpoint.matrix("model.embed_tokens.weight", config.vocab, config.hidden)?;
        let embedding = backend.embedding(&table, config.embedding_scale)?;
        const HEAD: &str = "lm_head.weight";
        let weight = if config.tied_embeddings {
            // Some tied checkpoints store the matrix twice.
            checkpoint.ignore(HEAD);
            HeadWeight::Tied(&embedding)
        } else {
            HeadWeight::Own(checkpoint.matrix(HEAD, config.vocab, config.hidden)?)
        };
        let head = backend.head(HeadSpec {
            weight,
            soft_cap: config.logit_soft_cap,
        })?;
        let layers = (0..config.layers)
            .map(|layer| self.layer(backend, layer))
            .collect::<Result<_>>()?;
        Ok(Network {
            rope: backend.rope(self.rope(&config.rope))?,
            local_rope: config
                .local_rope
                .as_ref()
                .map(|local| backend.rope(self.rope(local)))
                .transpose()?,
            activation: config.activation,
            final_norm: self.norm(backend, "model.norm", config.hidden)?,
            layers,
            embedding,
            head,
        })
    }

    fn layer<B: Backend>(&self, backend: &mut B, layer: usize) -> Result<Layer<B>> {
        use Projection::{Down, Gate, K, O, Q, Up, V};
        let config = self.config;
        let at = |name: &str| format!("model.layers.{layer}.{name}");
        let stream_norm = |backend: &mut B, name| self.norm(backend, &at(name), config.hidden);
        // Where outputs are normed too, transformers calls the norm before the MLP by another name.
        let (post_attention_norm, mlp_norm, post_mlp_norm) = if config.post_norms {
            (
                Some(stream_norm(backend, "post_attention_layernorm")?),
                stream_norm(backend, "pre_feedforward_layernorm")?,
                Some(stream_norm(backend, "post_feedforward_layernorm")?),
            )
        } else {
            (None, stream_norm(backend, "post_attention_layernorm")?, None)
        };
        let qk_norms = if config.qk_norm {
            Some((
                self.norm(backend, &at("self_attn.q_norm"), config.head_dim)?,
                self.norm(backend, &at("self_attn.k_norm"), config.head_dim)?,
            ))
        } else {
            None
        };
        Ok(Layer {
            attention: AttentionSpec {
                layer,
                heads: config.heads,
                kv_heads: config.kv_heads,
                head_dim: config.head_dim,
                scale: config.attention_scale,
                soft_cap: config.attention_soft_cap,
                window: config.windows[layer],
            },
            input_norm: stream_norm(backend, "input_layernorm")?,
            qkv: backend.linear(self.linear(layer, &[Q, K, V])?)?,
            qk_norms,
            o: backend.linear(self.linear(layer, &[O])?)?,
            post_attention_norm,
            mlp_norm,
            gate_up: backend.linear(self.linear(layer, &[Gate, Up])?)?,
            down: backend.linear(self.linear(layer, &[Down])?)?,
            post_mlp_norm,
        })
    }

    fn norm<B: Backend>(&self, backend: &mut B, name: &str, width: usize) -> Result<B::Norm> {
        let mut weight = self.checkpoint.vector(&format!("{name}.weight"), width)?;
        if self.config.norm_plus_one {
            weight.iter_mut().for_each(|weight| *weight += 1.0);
        }
        backend.norm(NormSpec {
            weight,
            eps: self.config.norm_eps,
        })
    }

    /// The projections of one input, from however many tensors the checkpoint keeps them in.
    fn linear(&self, layer: usize, projections: &[Projection]) -> Result<LinearSpec<'_>> {
        let config = self.config;
        let width = |of: &[Projection]| of.iter().map(|of| config.projection_shape(*of).1).sum::<usize>();
        let in_features = config.projection_shape(projections[0]).0;
        let has_bias = match projections[0] {
            Projection::Q | Projection::K | Projection::V => config.qkv_bias,
            Projection::O => config.o_bias,
            Projection::Gate | Projection::Up | Projection::Down => config.mlp_bias,
        };
        let mut weights = Vec::new();
        let mut bias = has_bias.then(Vec::new);
        for (module, parts) in config.layer_modules() {
            if !projections.contains(&parts[0]) {
                continue;
            }
            let (name, rows) = (format!("model.layers.{layer}.{module}"), width(parts));
            weights.push(
                self.checkpoint
                    .matrix(&format!("{name}.weight"), rows, in_features)?,
            );
            if let Some(bias) = &mut bias {
                bias.extend(self.checkpoint.vector(&format!("{name}.bias"), rows)?);
            }
        }
        Ok(LinearSpec {
            in_features,
            parts: projections
                .iter()
                .map(|projection| LinearPart {
                    site: LoraSite::Layer(layer as u32, *projection),
                    out_features: width(&[*projection]),
                })
                .collect(),
            weights,
            bias,
        })
    }

    fn rope(&self, rope: &Rope) -> RopeSpec {
        RopeSpec {
            frequencies: rope.inverse_frequencies(self.config.context),
            amplitude: rope.amplitude(),
            context: self.config.context,
        }
    }
}
