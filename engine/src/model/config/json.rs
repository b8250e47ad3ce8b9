//! `config.json` as transformers writes it: the keys of version 4 (`torch_dtype`, `rope_theta`, `rope_scaling`) and of
//! version 5 (`dtype`, `rope_parameters`).

use serde_json::{Map, Value};

use super::{
    Activation, Architecture, ModelConfig, Rope, RopeScaling,
    rope::{longrope_attention_factor, yarn_attention_factor},
};

/// What is wrong with a configuration; the caller knows the file.
type Result<T> = std::result::Result<T, String>;

impl ModelConfig {
    /// Reads a `config.json`. Absent keys mean what they mean in transformers' configuration classes.
    ///
    /// # Errors
    /// A sentence that names the key, or the architecture and what is supported.
    pub fn from_json(bytes: &[u8]) -> Result<Self> {
        let json = serde_json::from_slice::<Map<String, Value>>(bytes)
            .map_err(|error| format!("config.json is not a JSON object: {error}"))?;
        let json = Object(&json);
        let architecture = architecture(json)?;
        let gemma = architecture.is_gemma();

        let hidden = json.required_usize("hidden_size")?;
        let heads = json.required_usize("num_attention_heads")?;
        let layers = json.required_usize("num_hidden_layers")?;
        let context = json.required_usize("max_position_embeddings")?;
        let head_dim = match (json.usize("head_dim")?, architecture) {
            (Some(width), _) => width,
            (None, Architecture::Qwen3) => 128,
            (None, _) if gemma => 256,
            (None, _) => hidden / heads.max(1),
        };
        let attention_bias = json.bool("attention_bias")?.unwrap_or(false);
        let default_theta = if architecture == Architecture::Gemma3 {
            1e6
        } else {
            1e4
        };
        let rotary_share = json.f64("partial_rotary_factor")?;
        let rope_reader = RopeReader {
            json,
            head_dim,
            context,
            rotary_share,
        };
        let (rope, local_rope) = rope_reader.read(architecture, default_theta)?;

        let query_scalar = match architecture {
            Architecture::Gemma2 | Architecture::Gemma3 => {
                json.f64("query_pre_attn_scalar")?.unwrap_or(256.0)
            }
            _ => head_dim as f64,
        };
        let soft_cap = |key, default| {
            // An explicit null switches the cap off, an absent key leaves Gemma 2's own.
            match (json.0.contains_key(key), architecture) {
                (false, Architecture::Gemma2) => Ok(Some(default)),
                (_, Architecture::Gemma2 | Architecture::Gemma3) => {
                    json.f64(key).map(|cap| cap.map(|cap| cap as f32))
                }
                _ => Ok(None),
            }
        };
        let config = Self {
            architecture,
            vocab: json.required_usize("vocab_size")?,
            hidden,
            layers,
            context,
            heads,
            kv_heads: json.usize("num_key_value_heads")?.unwrap_or(heads),
            head_dim,
            ff: json.required_usize("intermediate_size")?,
            activation: activation(json, gemma)?,
            norm_eps: json
                .f64("rms_norm_eps")?
                .unwrap_or(if architecture == Architecture::Phi3 {
                    1e-5
                } else {
                    1e-6
                }) as f32,
            norm_plus_one: gemma,
            post_norms: matches!(architecture, Architecture::Gemma2 | Architecture::Gemma3),
            qk_norm: matches!(architecture, Architecture::Qwen3 | Architecture::Gemma3),
            qkv_bias: architecture == Architecture::Qwen2 || attention_bias,
            o_bias: architecture != Architecture::Qwen2 && attention_bias,
            mlp_bias: architecture == Architecture::Llama && json.bool("mlp_bias")?.unwrap_or(false),
            rope,
            local_rope,
            windows: windows(json, architecture, layers)?,
            attention_scale: (1.0 / query_scalar.sqrt()) as f32,
            attention_soft_cap: soft_cap("attn_logit_softcapping", 50.0)?,
            logit_soft_cap: soft_cap("final_logit_softcapping", 30.0)?,
            embedding_scale: if gemma { (hidden as f64).sqrt() as f32 } else { 1.0 },
            tied_embeddings: json.bool("tie_word_embeddings")?.unwrap_or(gemma),
            fused_projections: architecture == Architecture::Phi3,
        };
        config.check()?;
        Ok(config)
    }

    /// Refuses what could not be computed with.
    pub(super) fn check(&self) -> Result<()> {
        for (name, value) in [
            ("the vocabulary", self.vocab),
            ("the hidden width", self.hidden),
            ("the number of layers", self.layers),
            ("the context", self.context),
            ("the number of attention heads", self.heads),
            ("the number of key and value heads", self.kv_heads),
            ("the width of a head", self.head_dim),
            ("the inner width of the MLP", self.ff),
        ] {
            if value == 0 {
                return Err(format!("{name} is 0"));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(format!(
                "{} attention heads cannot share {} key and value heads evenly",
                self.heads, self.kv_heads
            ));
        }
        for rope in std::iter::once(&self.rope).chain(&self.local_rope) {
            let turning = rope.rotary_dim;
            if turning > self.head_dim || !turning.is_multiple_of(2) {
                return Err(format!(
                    "{turning} rotary dimensions were asked for: expected an even number up to the width of a head, {}",
                    self.head_dim
                ));
            }
            let lists: &[&Vec<f64>] = match &rope.scaling {
                RopeScaling::LongRope { short, long, .. } => &[short, long],
                RopeScaling::Divided { divisors } => &[divisors],
                _ => &[],
            };
            if let Some(list) = lists.iter().find(|list| list.len() != turning / 2) {
                return Err(format!(
                    "rope is stretched by {} factors: expected {}, one for each pair of the {turning} rotary dimensions",
                    list.len(),
                    turning / 2
                ));
            }
        }
        Ok(())
    }
}

fn architecture(json: Object<'_>) -> Result<Architecture> {
    let class = match json.0.get("architectures") {
        Some(Value::Array(names)) => names.first().and_then(Value::as_str),
        _ => None,
    };
    let model_type = json.0.get("model_type").and_then(Value::as_str);
    let name = class
        .or(model_type)
        .ok_or("config.json has neither `architectures` nor `model_type`")?;
    Architecture::by_class_or_type(name).ok_or_else(|| {
        format!(
            "the architecture `{name}` is not supported; supported are {}",
            Architecture::supported()
        )
    })
}

fn activation(json: Object<'_>, gemma: bool) -> Result<Activation> {
    // Gemma's own checkpoints say `hidden_act: gelu` and mean the tanh approximation; `hidden_activation` is the
    // key that was added to say so.
    let name = if gemma {
        json.str("hidden_activation")?
    } else {
        json.str("hidden_act")?
    };
    match name {
        None if gemma => Ok(Activation::GeluTanh),
        None | Some("silu" | "swish") => Ok(Activation::Silu),
        Some("gelu_pytorch_tanh" | "gelu_new") => Ok(Activation::GeluTanh),
        Some("gelu") => Ok(Activation::Gelu),
        Some(other) => Err(format!(
            "the activation `{other}` is not supported; supported are silu, gelu, gelu_pytorch_tanh"
        )),
    }
}

/// The window of each layer: from `layer_types` where the file has them, otherwise by the architecture's rule.
fn windows(json: Object<'_>, architecture: Architecture, layers: usize) -> Result<Vec<Option<usize>>> {
    let absent_default = match architecture {
        Architecture::Mistral | Architecture::Gemma2 | Architecture::Gemma3 => Some(4096),
        _ => None,
    };
    let window = match json.0.contains_key("sliding_window") {
        true => json.usize("sliding_window")?,
        false => absent_default,
    };
    let switched_on = match architecture {
        Architecture::Qwen2 | Architecture::Qwen3 => json.bool("use_sliding_window")?.unwrap_or(false),
        Architecture::Llama | Architecture::Gemma => false,
        _ => true,
    };
    let Some(window) = window.filter(|_| switched_on) else {
        return Ok(vec![None; layers]);
    };
    if window == 0 {
        return Err("`sliding_window` is 0".to_owned());
    }
    if let Some(types) = json.0.get("layer_types").and_then(Value::as_array) {
        if types.len() != layers {
            return Err(format!("`layer_types` names {} layers of {layers}", types.len()));
        }
        return types
            .iter()
            .map(|kind| match kind.as_str() {
                Some("sliding_attention") => Ok(Some(window)),
                Some("full_attention") => Ok(None),
                _ => Err(format!("the layer type {kind} is not supported")),
            })
            .collect();
    }
    let pattern = match json.usize("sliding_window_pattern")? {
        Some(pattern) => Some(pattern),
        None => json.usize("_sliding_window_pattern")?,
    };
    let first_windowed = json.usize("max_window_layers")?.unwrap_or(28);
    let has_window = |layer: usize| match architecture {
        Architecture::Gemma2 => layer.is_multiple_of(2),
        Architecture::Gemma3 => !(layer + 1).is_multiple_of(pattern.unwrap_or(6)),
        Architecture::Qwen2 | Architecture::Qwen3 => layer >= first_windowed,
        _ => true,
    };
    Ok((0..layers)
        .map(|layer| has_window(layer).then_some(window))
        .collect())
}

/// Reads the rotary embedding's keys.
struct RopeReader<'a> {
    json: Object<'a>,
    head_dim: usize,
    context: usize,
    rotary_share: Option<f64>,
}

impl RopeReader<'_> {
    /// The rope of full layers, and that of windowed layers where it differs.
    fn read(&self, architecture: Architecture, default_theta: f64) -> Result<(Rope, Option<Rope>)> {
        let parameters = self.json.object("rope_parameters")?;
        if architecture != Architecture::Gemma3 {
            let parameters = parameters.or(self.json.object("rope_scaling")?);
            return Ok((self.rope(parameters, "rope_theta", default_theta)?, None));
        }
        // Version 5 keeps one set of parameters for each type of layer, version 4 a second base beside the first.
        if let Some(by_type) = parameters
            && let Some(full) = by_type.object("full_attention")?
        {
            let local = by_type.object("sliding_attention")?;
            return Ok((
                self.rope(Some(full), "rope_theta", default_theta)?,
                Some(self.rope(local, "rope_local_base_freq", 1e4)?),
            ));
        }
        let parameters = parameters.or(self.json.object("rope_scaling")?);
        let full = self.rope(parameters, "rope_theta", default_theta)?;
        let local = self.rope(None, "rope_local_base_freq", 1e4)?;
        Ok((full, Some(local)))
    }

    fn rope(&self, parameters: Option<Object<'_>>, theta_key: &str, default_theta: f64) -> Result<Rope> {
        let own = |key| parameters.map_or(Ok(None), |object| object.f64(key));
        let theta = match own("rope_theta")? {
            Some(theta) => theta,
            None => self.json.f64(theta_key)?.unwrap_or(default_theta),
        };
        let share = own("partial_rotary_factor")?.or(self.rotary_share).unwrap_or(1.0);
        Ok(Rope {
            theta,
            rotary_dim: (self.head_dim as f64 * share) as usize,
            scaling: parameters.map_or(Ok(RopeScaling::None), |object| self.scaling(object))?,
        })
    }

    fn scaling(&self, parameters: Object<'_>) -> Result<RopeScaling> {
        let kind = match parameters.str("rope_type")? {
            Some(kind) => Some(kind),
            None => parameters.str("type")?,
        };
        let factor = || parameters.required_f64("factor");
        let original = || -> Result<usize> {
            match parameters.usize("original_max_position_embeddings")? {
                Some(original) => Ok(original),
                None => Ok(self
                    .json
                    .usize("original_max_position_embeddings")?
                    .unwrap_or(self.context)),
            }
        };
        match kind {
            None | Some("default") => Ok(RopeScaling::None),
            Some("linear") => Ok(RopeScaling::Linear { factor: factor()? }),
            Some("llama3") => Ok(RopeScaling::Llama3 {
                factor: factor()?,
                low: parameters.required_f64("low_freq_factor")?,
                high: parameters.required_f64("high_freq_factor")?,
                original: original()?,
            }),
            Some("yarn") => Ok(RopeScaling::Yarn {
                factor: factor()?,
                original: original()?,
                beta_fast: parameters.f64("beta_fast")?.unwrap_or(32.0),
                beta_slow: parameters.f64("beta_slow")?.unwrap_or(1.0),
                truncate: parameters.bool("truncate")?.unwrap_or(true),
                attention_factor: match parameters.f64("attention_factor")? {
                    Some(given) => given,
                    None => yarn_attention_factor(
                        factor()?,
                        parameters.f64("mscale")?,
                        parameters.f64("mscale_all_dim")?,
                    ),
                },
            }),
            Some("longrope" | "su") => {
                let original = original()?;
                let stretched = self.context as f64 / original.max(1) as f64;
                Ok(RopeScaling::LongRope {
                    short: parameters.required_list("short_factor")?,
                    long: parameters.required_list("long_factor")?,
                    original,
                    attention_factor: parameters
                        .f64("attention_factor")?
                        .unwrap_or_else(|| longrope_attention_factor(stretched, original)),
                })
            }
            Some(other) => Err(format!(
                "the rope scaling `{other}` is not supported; supported are linear, llama3, yarn, longrope"
            )),
        }
    }
}

/// A JSON object, read by key. A key with null is absent.
#[derive(Clone, Copy)]
struct Object<'a>(&'a Map<String, Value>);

impl<'a> Object<'a> {
    fn get<T>(
        self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match read(value) {
                Some(read) => Ok(Some(read)),
                None => Err(format!("`{key}` is {value}: expected {expected}")),
            },
        }
    }

    fn usize(self, key: &str) -> Result<Option<usize>> {
        self.get(key, "a whole number", |value| {
            value.as_u64().and_then(|n| usize::try_from(n).ok())
        })
    }

    fn f64(self, key: &str) -> Result<Option<f64>> {
        self.get(key, "a number", Value::as_f64)
    }

    fn bool(self, key: &str) -> Result<Option<bool>> {
        self.get(key, "true or false", Value::as_bool)
    }

    fn str(self, key: &str) -> Result<Option<&'a str>> {
        self.get(key, "a string", Value::as_str)
    }

    fn object(self, key: &str) -> Result<Option<Object<'a>>> {
        Ok(self.get(key, "an object", Value::as_object)?.map(Object))
    }

    fn required_usize(self, key: &str) -> Result<usize> {
        self.usize(key)?.ok_or_else(|| format!("`{key}` is missing"))
    }

    fn required_f64(self, key: &str) -> Result<f64> {
        self.f64(key)?.ok_or_else(|| format!("`{key}` is missing"))
    }

    fn required_list(self, key: &str) -> Result<Vec<f64>> {
        self.get(key, "a list of numbers", |value| {
            value.as_array()?.iter().map(Value::as_f64).collect()
        })?
        .ok_or_else(|| format!("`{key}` is missing"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A small model's configuration with some keys replaced.
    fn config(changes: Value) -> Result<ModelConfig> {
        let mut json = json!({
            "architectures": ["LlamaForCausalLM"], "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24,
            "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096,
        });
        for (key, value) in changes.as_object().unwrap() {
            json[key] = value.clone();
        }
        ModelConfig::from_json(&serde_json::to_vec(&json).unwrap())
    }

    #[test]
    fn absent_keys_mean_what_they_mean_in_transformers() {
        let llama = config(json!({})).unwrap();
        assert_eq!((llama.head_dim, llama.norm_eps, llama.rope.theta), (4, 1e-6, 1e4));
        assert!(!llama.tied_embeddings && !llama.qkv_bias);
        let gemma = config(json!({"architectures": ["Gemma2ForCausalLM"]})).unwrap();
        assert_eq!(
            (gemma.attention_soft_cap, gemma.logit_soft_cap),
            (Some(50.0), Some(30.0))
        );
        assert_eq!(gemma.windows, [Some(4096), None, Some(4096), None]);
        assert!(gemma.tied_embeddings && gemma.norm_plus_one && gemma.post_norms);
        let qwen = config(json!({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 128})).unwrap();
        assert!(qwen.qkv_bias && !qwen.o_bias);
        assert_eq!(
            qwen.windows, [None; 4],
            "Qwen's window is off unless `use_sliding_window` is true"
        );
    }

    #[test]
    fn an_explicit_null_is_not_an_absent_key() {
        let gemma = json!({"architectures": ["Gemma2ForCausalLM"], "attn_logit_softcapping": null});
        assert_eq!(config(gemma).unwrap().attention_soft_cap, None);
        let mistral = json!({"architectures": ["MistralForCausalLM"], "sliding_window": null});
        assert_eq!(config(mistral).unwrap().windows, [None; 4]);
        assert_eq!(
            config(json!({"architectures": ["MistralForCausalLM"]}))
                .unwrap()
                .windows,
            [Some(4096); 4]
        );
    }

    /// transformers 5 moved the rotary keys into `rope_parameters`.
    #[test]
    fn both_generations_of_rope_keys_mean_the_same() {
        let old = json!({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}});
        let new = json!({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}});
        assert_eq!(config(old).unwrap(), config(new).unwrap());
        let gemma = |rope: Value| {
            let mut json = rope;
            json["architectures"] = json!(["Gemma3ForCausalLM"]);
            config(json).unwrap()
        };
        let old = json!({"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 8}});
        let new = json!({"rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        }});
        assert_eq!(gemma(old.clone()), gemma(new));
        let config = gemma(old);
        assert_eq!(config.rope.scaling, RopeScaling::Linear { factor: 8.0 });
        assert_eq!(config.local_rope.unwrap().theta, 1e4);
    }

    #[test]
    fn refusals_name_what_was_found() {
        let refused = |changes: Value, words: &[&str]| {
            let error = config(changes).unwrap_err();
            for word in words {
                assert!(error.contains(word), "{error}");
            }
        };
        refused(
            json!({"architectures": ["FalconForCausalLM"]}),
            &["FalconForCausalLM", "LlamaForCausalLM", "Phi3ForCausalLM"],
        );
        refused(
            json!({"hidden_size": "wide"}),
            &["hidden_size", "wide", "whole number"],
        );
        refused(json!({"vocab_size": null}), &["vocab_size", "missing"]);
        refused(json!({"num_key_value_heads": 3}), &["4 attention heads", "3"]);
        refused(json!({"hidden_act": "relu"}), &["relu", "silu"]);
        refused(
            json!({"rope_scaling": {"type": "dynamic", "factor": 2}}),
            &["dynamic", "yarn"],
        );
        let lists = json!({"type": "longrope", "short_factor": [1.0], "long_factor": [1.0, 1.0]});
        refused(json!({"rope_scaling": lists}), &["1 factors", "expected 2"]);
    }
}
