//! The configuration of a GGUF file, from its metadata and its tensors, by llama.cpp's keys and rules.

use std::collections::HashMap;

use candle_core::quantized::gguf_file::Value;

use super::{Activation, Architecture, ModelConfig, Rope, RopeScaling};

type Result<T> = std::result::Result<T, String>;

/// What the tensors of a GGUF file say of the model.
pub(crate) struct GgufTensors {
    /// Rows of the embedding.
    pub(crate) vocab: usize,
    /// There is no output head.
    pub(crate) tied_embeddings: bool,
    /// q, k, v have biases.
    pub(crate) qkv_bias: bool,
    /// The attention's output has a bias.
    pub(crate) o_bias: bool,
    /// The MLP has biases.
    pub(crate) mlp_bias: bool,
    /// There are norms of q and k.
    pub(crate) qk_norm: bool,
    /// `rope_freqs`, `rope_factors_short`, `rope_factors_long`.
    pub(crate) rope_divisors: [Option<Vec<f64>>; 3],
}

impl Architecture {
    /// The architecture of a GGUF file.
    pub(crate) fn of_gguf(metadata: &HashMap<String, Value>) -> Result<Self> {
        let name = metadata
            .get("general.architecture")
            .and_then(|value| value.to_string().ok())
            .ok_or("the GGUF file does not say `general.architecture`")?;
        Self::NAMES
            .iter()
            .find(|(.., gguf)| gguf == name)
            .map(|(architecture, ..)| *architecture)
            .ok_or_else(|| {
                let supported: Vec<_> = Self::NAMES
                    .iter()
                    .map(|(.., gguf)| *gguf)
                    .filter(|name| !name.is_empty())
                    .collect();
                format!(
                    "the GGUF architecture `{name}` is not supported; supported are {}",
                    supported.join(", ")
                )
            })
    }

    fn gguf_name(self) -> &'static str {
        Self::NAMES
            .iter()
            .find(|(architecture, ..)| *architecture == self)
            .map_or("", |(.., gguf)| gguf)
    }
}

impl ModelConfig {
    /// The configuration of a GGUF file.
    ///
    /// # Errors
    /// A sentence that names the key.
    pub(crate) fn from_gguf(
        architecture: Architecture,
        metadata: &HashMap<String, Value>,
        tensors: &GgufTensors,
    ) -> Result<Self> {
        let keys = Keys {
            prefix: architecture.gguf_name(),
            metadata,
        };
        let gemma = architecture.is_gemma();
        let sandwich = matches!(architecture, Architecture::Gemma2 | Architecture::Gemma3);
        let hidden = keys.required("embedding_length")?;
        let layers = keys.required("block_count")?;
        let heads = keys.required("attention.head_count")?;
        let head_dim = keys
            .usize("attention.key_length")?
            .unwrap_or(hidden / heads.max(1));
        let rope = rope(keys, head_dim, tensors)?;
        // llama.cpp knows the 27B models, which scale by the width of a head's share of the stream, by their layers.
        let scaled_by_share = matches!(
            (architecture, layers),
            (Architecture::Gemma2, 46) | (Architecture::Gemma3, 62)
        );
        let query_scalar = if scaled_by_share {
            hidden / heads.max(1)
        } else {
            head_dim
        };
        let config = Self {
            architecture,
            vocab: tensors.vocab,
            hidden,
            layers,
            context: keys.required("context_length")?,
            heads,
            kv_heads: keys.usize("attention.head_count_kv")?.unwrap_or(heads),
            head_dim,
            ff: keys.required("feed_forward_length")?,
            activation: if gemma {
                Activation::GeluTanh
            } else {
                Activation::Silu
            },
            norm_eps: keys.f64("attention.layer_norm_rms_epsilon")?.unwrap_or(1e-5) as f32,
            // The converter has added the one.
            norm_plus_one: false,
            post_norms: sandwich,
            qk_norm: tensors.qk_norm,
            qkv_bias: tensors.qkv_bias,
            o_bias: tensors.o_bias,
            mlp_bias: tensors.mlp_bias,
            local_rope: (architecture == Architecture::Gemma3)
                .then(|| -> Result<Rope> {
                    Ok(Rope {
                        theta: keys.f64("rope.freq_base_swa")?.unwrap_or(1e4),
                        rotary_dim: rope.rotary_dim,
                        scaling: RopeScaling::None,
                    })
                })
                .transpose()?,
            rope,
            windows: windows(keys, architecture, layers)?,
            attention_scale: (1.0 / (query_scalar as f64).sqrt()) as f32,
            attention_soft_cap: soft_cap(keys, architecture, "attn_logit_softcapping", 50.0)?,
            logit_soft_cap: soft_cap(keys, architecture, "final_logit_softcapping", 30.0)?,
            embedding_scale: if gemma { (hidden as f64).sqrt() as f32 } else { 1.0 },
            tied_embeddings: tensors.tied_embeddings,
            fused_projections: architecture == Architecture::Phi3,
        };
        config.check()?;
        Ok(config)
    }
}

fn soft_cap(keys: Keys<'_>, architecture: Architecture, key: &str, default: f32) -> Result<Option<f32>> {
    let given = keys.f64(key)?.map(|cap| cap as f32);
    Ok(match architecture {
        Architecture::Gemma2 => Some(given.unwrap_or(default)),
        _ => given,
    })
}

/// Which layers have a window: all but the last of each period, by llama.cpp's rule.
fn windows(keys: Keys<'_>, architecture: Architecture, layers: usize) -> Result<Vec<Option<usize>>> {
    let window = keys
        .usize("attention.sliding_window")?
        .filter(|window| *window > 0);
    let pattern = keys.get(
        "attention.sliding_window_pattern",
        "a number or a list of booleans, one for each layer",
        |value| match value {
            Value::Array(layers) => layers
                .iter()
                .map(|layer| layer.to_bool().ok())
                .collect::<Option<Vec<_>>>(),
            period => whole_number(period).map(|period| by_period(period, layers)),
        },
    )?;
    let pattern = match (pattern, architecture) {
        (_, Architecture::Gemma2) => by_period(2, layers),
        (Some(pattern), _) => pattern,
        (None, Architecture::Gemma3) => by_period(6, layers),
        (None, Architecture::Phi3) => vec![true; layers],
        (None, _) => vec![false; layers],
    };
    if pattern.len() != layers {
        return Err(format!(
            "the pattern of windows is of {} layers, the model of {layers}",
            pattern.len()
        ));
    }
    Ok(pattern
        .into_iter()
        .map(|has_window| window.filter(|_| has_window))
        .collect())
}

fn by_period(period: usize, layers: usize) -> Vec<bool> {
    (0..layers)
        .map(|layer| period == 0 || layer % period < period - 1)
        .collect()
}

fn rope(keys: Keys<'_>, head_dim: usize, tensors: &GgufTensors) -> Result<Rope> {
    let factor = match keys.f64("rope.scaling.factor")? {
        Some(factor) => Some(factor),
        None => keys.f64("rope.scale_linear")?,
    };
    let attention_factor = keys.f64("rope.scaling.attn_factor")?.unwrap_or(1.0);
    let original = keys.usize("rope.scaling.original_context_length")?;
    let kind = keys.str("rope.scaling.type")?;
    let required = |what: Option<f64>| what.ok_or("`rope.scaling.factor` is missing");
    let scaling = match (&tensors.rope_divisors, kind) {
        ([Some(divisors), ..], _) => RopeScaling::Divided {
            divisors: divisors.clone(),
        },
        ([_, Some(short), Some(long)], _) => RopeScaling::LongRope {
            short: short.clone(),
            long: long.clone(),
            original: original.ok_or("`rope.scaling.original_context_length` is missing")?,
            attention_factor,
        },
        (_, None | Some("linear")) => match factor {
            Some(factor) if factor != 0.0 => RopeScaling::Linear { factor },
            _ => RopeScaling::None,
        },
        (_, Some("none")) => RopeScaling::None,
        (_, Some("yarn")) => {
            let factor = required(factor)?;
            RopeScaling::Yarn {
                factor,
                original: original.ok_or("`rope.scaling.original_context_length` is missing")?,
                beta_fast: keys.f64("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: keys.f64("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                truncate: true,
                attention_factor: attention_factor * super::rope::yarn_attention_factor(factor, None, None),
            }
        }
        (_, Some(other)) => return Err(format!("the GGUF rope scaling `{other}` is not supported")),
    };
    Ok(Rope {
        theta: keys.f64("rope.freq_base")?.unwrap_or(1e4),
        rotary_dim: keys.usize("rope.dimension_count")?.unwrap_or(head_dim),
        scaling,
    })
}

/// The architecture's metadata.
#[derive(Clone, Copy)]
struct Keys<'a> {
    prefix: &'static str,
    metadata: &'a HashMap<String, Value>,
}

impl<'a> Keys<'a> {
    fn get<T>(
        self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let key = format!("{}.{key}", self.prefix);
        match self.metadata.get(&key) {
            None => Ok(None),
            Some(value) => read(value)
                .map(Some)
                .ok_or_else(|| format!("the GGUF key `{key}` is {value:?}: expected {expected}")),
        }
    }

    fn usize(self, key: &str) -> Result<Option<usize>> {
        self.get(key, "a whole number", whole_number)
    }

    fn f64(self, key: &str) -> Result<Option<f64>> {
        self.get(key, "a number", |value| match value {
            Value::F32(number) => Some(f64::from(*number)),
            Value::F64(number) => Some(*number),
            other => whole_number(other).map(|number| number as f64),
        })
    }

    fn str(self, key: &str) -> Result<Option<&'a str>> {
        self.get(key, "a string", |value| match value {
            Value::String(text) => Some(text.as_str()),
            _ => None,
        })
    }

    fn required(self, key: &str) -> Result<usize> {
        self.usize(key)?
            .ok_or_else(|| format!("the GGUF key `{}.{key}` is missing", self.prefix))
    }
}

/// A whole number of any of GGUF's types.
pub(crate) fn whole_number(value: &Value) -> Option<usize> {
    match value {
        Value::U8(number) => Some(usize::from(*number)),
        Value::U16(number) => Some(usize::from(*number)),
        Value::U32(number) => usize::try_from(*number).ok(),
        Value::U64(number) => usize::try_from(*number).ok(),
        Value::I8(number) => usize::try_from(*number).ok(),
        Value::I16(number) => usize::try_from(*number).ok(),
        Value::I32(number) => usize::try_from(*number).ok(),
        Value::I64(number) => usize::try_from(*number).ok(),
        _ => None,
    }
}
