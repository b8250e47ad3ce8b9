//! What distinguishes one decoder from another, read from `config.json` ([`ModelConfig::from_json`]) or GGUF metadata.

mod gguf;
mod json;
mod modules;
mod rope;

pub(crate) use gguf::{GgufTensors, whole_number};
pub use modules::Module;
pub use rope::{Rope, RopeScaling};

/// The families of decoders that can be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// Llama 1 to 3, SmolLM2 and everything else that says `LlamaForCausalLM`.
    Llama,
    /// Mistral: Llama with a sliding window.
    Mistral,
    /// Qwen 2 and 2.5: biases on q, k and v.
    Qwen2,
    /// Qwen 3: norms on q and k.
    Qwen3,
    /// Gemma 1.
    Gemma,
    /// Gemma 2: norms after attention and MLP too, soft caps, a window in every other layer.
    Gemma2,
    /// Gemma 3, text only: norms on q and k, two rope bases.
    Gemma3,
    /// Phi-3 and Phi-4-mini: fused projections, partial rotary, longrope.
    Phi3,
}

impl Architecture {
    /// Every architecture with its name in `architectures`, in `model_type` and in GGUF.
    const NAMES: [(Self, &'static str, &'static str, &'static str); 8] = [
        (Self::Llama, "LlamaForCausalLM", "llama", "llama"),
        (Self::Mistral, "MistralForCausalLM", "mistral", ""),
        (Self::Qwen2, "Qwen2ForCausalLM", "qwen2", "qwen2"),
        (Self::Qwen3, "Qwen3ForCausalLM", "qwen3", "qwen3"),
        (Self::Gemma, "GemmaForCausalLM", "gemma", "gemma"),
        (Self::Gemma2, "Gemma2ForCausalLM", "gemma2", "gemma2"),
        (Self::Gemma3, "Gemma3ForCausalLM", "gemma3_text", "gemma3"),
        (Self::Phi3, "Phi3ForCausalLM", "phi3", "phi3"),
    ];

    /// The architecture of a `config.json`, by its class name or its model type.
    fn by_class_or_type(name: &str) -> Option<Self> {
        Self::NAMES
            .iter()
            .find(|(_, class, model_type, _)| *class == name || *model_type == name)
            .map(|(architecture, ..)| *architecture)
    }

    /// The class names, for messages.
    fn supported() -> String {
        Self::NAMES.map(|(_, class, ..)| class).join(", ")
    }

    /// Whether it is one of Google's, which share many conventions.
    fn is_gemma(self) -> bool {
        matches!(self, Self::Gemma | Self::Gemma2 | Self::Gemma3)
    }
}

/// The nonlinearity of the gated MLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU by the error function.
    Gelu,
    /// GELU by the tanh approximation.
    GeluTanh,
}

/// The configuration of a decoder. Everything that differs between architectures is a field here: the model code asks
/// these, never [`ModelConfig::architecture`].
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// The family, for messages and for the names of tensors.
    pub architecture: Architecture,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Decoder layers.
    pub layers: usize,
    /// The longest context in tokens.
    pub context: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head. Not always `hidden / heads`.
    pub head_dim: usize,
    /// Inner width of the MLP.
    pub ff: usize,
    /// The nonlinearity of the MLP.
    pub activation: Activation,
    /// Added to the mean square in every norm.
    pub norm_eps: f32,
    /// Norms scale by `1 + w` instead of `w` (Gemma).
    pub norm_plus_one: bool,
    /// The outputs of attention and MLP are normed before they are added to the residual stream (Gemma 2 and 3).
    pub post_norms: bool,
    /// Each head of q and k is normed before rope (Qwen 3, Gemma 3).
    pub qk_norm: bool,
    /// q, k and v have biases.
    pub qkv_bias: bool,
    /// The attention's output projection has a bias.
    pub o_bias: bool,
    /// The projections of the MLP have biases.
    pub mlp_bias: bool,
    /// Rotary embedding of layers without a window, and of all where there is no `local_rope`.
    pub rope: Rope,
    /// Rotary embedding of layers with a window, where it differs (Gemma 3).
    pub local_rope: Option<Rope>,
    /// For each layer the keys that a query sees, itself included; none sees all.
    pub windows: Vec<Option<usize>>,
    /// Scores are multiplied by it before the soft cap: usually `1 / sqrt(head_dim)`.
    pub attention_scale: f32,
    /// `cap * tanh(score / cap)` before the softmax.
    pub attention_soft_cap: Option<f32>,
    /// `cap * tanh(logit / cap)` on the output.
    pub logit_soft_cap: Option<f32>,
    /// Embeddings are multiplied by it (Gemma: `sqrt(hidden)`).
    pub embedding_scale: f32,
    /// The output head is the embedding.
    pub tied_embeddings: bool,
    /// The checkpoint keeps q, k, v in one `qkv_proj` and gate, up in one `gate_up_proj` (Phi-3). PEFT then targets those.
    pub fused_projections: bool,
}

impl ModelConfig {
    /// Width of all query heads together.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of all key heads together, and of all value heads.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}
