//! `adapter_config.json`: what it may say, what it means, and what is refused by name.

use serde_json::{Map, Value};

/// The settings of a LoRA adapter that change what it computes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LoraConfig {
    /// Rank where no pattern says otherwise.
    pub(super) r: usize,
    /// Alpha where no pattern says otherwise.
    pub(super) alpha: f64,
    /// Scale by `alpha / sqrt(r)` (Kalajdzievski 2023) instead of `alpha / r`.
    pub(super) rslora: bool,
    pub(super) targets: Targets,
    pub(super) exclude: Option<Targets>,
    /// Ranks by module, first match wins.
    pub(super) rank_pattern: Vec<(String, usize)>,
    /// Alphas by module, first match wins.
    pub(super) alpha_pattern: Vec<(String, f64)>,
    /// Only these layers.
    pub(super) layers: Option<Vec<u64>>,
    /// Names (regular expressions) of the module list that the layers are counted in; any if empty.
    pub(super) layers_pattern: Vec<String>,
    /// `modules_to_save` holds the output head.
    pub(super) saves_head: bool,
    /// For messages only: the model that it says it was trained on.
    pub(super) base_model: Option<String>,
}

/// Which modules are meant.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Targets {
    /// Whole paths or their ends.
    Names(Vec<String>),
    /// A regular expression that matches the whole path.
    Pattern(String),
    /// Every linear layer but the output head.
    AllLinear,
}

/// Settings that change the result in a way that is not implemented: name, what it is, what to do instead.
const REFUSED: &[(&str, &str, &str)] = &[
    (
        "use_dora",
        "DoRA",
        "train without it, or merge the adapter into the model",
    ),
    ("lora_bias", "a bias on lora_B", "train with `lora_bias=False`"),
    (
        "alora_invocation_tokens",
        "activated LoRA (aLoRA)",
        "train a plain LoRA",
    ),
    (
        "alora_invocation_string",
        "activated LoRA (aLoRA)",
        "train a plain LoRA",
    ),
    (
        "invocation_string",
        "activated LoRA (aLoRA)",
        "train a plain LoRA",
    ),
    (
        "layer_replication",
        "layer replication",
        "serve the enlarged model as a model of its own",
    ),
    (
        "trainable_token_indices",
        "trained tokens of the embedding",
        "train a LoRA on `embed_tokens`",
    ),
    (
        "target_parameters",
        "LoRA on bare parameters",
        "target linear modules",
    ),
    (
        "megatron_config",
        "Megatron's parallel layers",
        "convert it to plain PEFT",
    ),
    ("use_qalora", "QALoRA", "train a plain LoRA"),
    ("arrow_config", "Arrow routing", "serve the adapters one by one"),
    (
        "ensure_weight_tying",
        "tied copies of saved modules",
        "train with `ensure_weight_tying=False`",
    ),
];

/// Settings that do not change what a trained adapter computes. `fan_in_fan_out` tells how the *base* weight is stored; A and B
/// are always `[r, in]` and `[out, r]`. The configurations of initialisations count by `init_lora_weights`.
const WITHOUT_EFFECT: &[&str] = &[
    "auto_mapping",
    "corda_config",
    "eva_config",
    "fan_in_fan_out",
    "inference_mode",
    "loftq_config",
    "lora_dropout",
    "megatron_core",
    "merge_weights",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "task_type",
];

const READ: &[&str] = &[
    "alpha_pattern",
    "base_model_name_or_path",
    "bias",
    "exclude_modules",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "lora_alpha",
    "modules_to_save",
    "peft_type",
    "r",
    "rank_pattern",
    "target_modules",
    "use_rslora",
];

impl LoraConfig {
    /// Reads the file's bytes.
    ///
    /// # Errors
    /// A sentence: which field, what was expected, what was found, what to do.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let value: Value = serde_json::from_slice(bytes)
            .map_err(|error| format!("adapter_config.json is not JSON: {error}"))?;
        let Value::Object(fields) = value else {
            return Err("adapter_config.json holds no JSON object".to_owned());
        };
        let fields = Fields(fields);
        fields.refuse_what_is_not_plain_lora()?;

        let targets = match fields.get("target_modules") {
            None => return Err("adapter_config.json has no `target_modules`: expected a list of module names or a regular expression".to_owned()),
            Some(value) => targets("target_modules", value)?,
        };
        if targets == Targets::Names(Vec::new()) {
            return Err("`target_modules` is empty: the adapter changes no linear module".to_owned());
        }
        let layers = match fields.get("layers_to_transform") {
            None => None,
            Some(value @ Value::Number(_)) => Some(vec![whole("layers_to_transform", value)?]),
            Some(Value::Array(items)) => {
                let layers = items
                    .iter()
                    .map(|item| whole("layers_to_transform", item))
                    .collect::<Result<Vec<_>, _>>()?;
                // An empty list selects nothing in particular: PEFT reads it as no list.
                (!layers.is_empty()).then_some(layers)
            }
            Some(other) => {
                return Err(expected(
                    "layers_to_transform",
                    "a layer's number or a list of them",
                    other,
                ));
            }
        };
        if layers.is_some() && !matches!(targets, Targets::Names(_)) {
            return Err("`layers_to_transform` needs `target_modules` to be a list of names, as in PEFT: put the layers into the expression".to_owned());
        }
        let config = Self {
            // PEFT's own defaults for both.
            r: fields.get("r").map_or(Ok(8), |value| whole("r", value))? as usize,
            alpha: fields
                .get("lora_alpha")
                .map_or(Ok(8.0), |value| number("lora_alpha", value))?,
            rslora: fields.flag("use_rslora")?,
            targets,
            exclude: match fields.get("exclude_modules") {
                None => None,
                Some(value) => Some(targets_of_exclusion(value)?),
            },
            rank_pattern: fields.pattern("rank_pattern", |name, value| Ok(whole(name, value)? as usize))?,
            alpha_pattern: fields.pattern("alpha_pattern", number)?,
            layers,
            layers_pattern: match fields.get("layers_pattern") {
                None => Vec::new(),
                Some(Value::String(name)) if name.is_empty() => Vec::new(),
                Some(Value::String(name)) => vec![name.clone()],
                Some(value) => names("layers_pattern", value)?,
            },
            saves_head: fields.saves_head()?,
            base_model: fields
                .get("base_model_name_or_path")
                .and_then(Value::as_str)
                .map(str::to_owned),
        };
        Ok(config)
    }
}

/// The object's fields. A field that is null is as good as absent, as PEFT writes them.
struct Fields(Map<String, Value>);

impl Fields {
    fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    fn flag(&self, name: &str) -> Result<bool, String> {
        match self.get(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(expected(name, "true or false", other)),
        }
    }

    fn pattern<T>(
        &self,
        name: &str,
        read: impl Fn(&str, &Value) -> Result<T, String>,
    ) -> Result<Vec<(String, T)>, String> {
        match self.get(name) {
            None => Ok(Vec::new()),
            Some(Value::Object(entries)) => entries
                .iter()
                .map(|(key, value)| Ok((key.clone(), read(&format!("{name}.{key}"), value)?)))
                .collect(),
            Some(other) => Err(expected(name, "an object of module names and numbers", other)),
        }
    }

    fn saves_head(&self) -> Result<bool, String> {
        let Some(value) = self.get("modules_to_save") else {
            return Ok(false);
        };
        let saved = names("modules_to_save", value)?;
        match saved.iter().find(|name| *name != "lm_head") {
            Some(other) => Err(format!(
                "`modules_to_save` holds `{other}`: only `lm_head` can be replaced as a whole; train a LoRA on `{other}` if it is a linear module"
            )),
            None => Ok(!saved.is_empty()),
        }
    }

    fn refuse_what_is_not_plain_lora(&self) -> Result<(), String> {
        match self.get("peft_type") {
            Some(Value::String(kind)) if kind == "LORA" => {}
            Some(other) => return Err(expected("peft_type", "\"LORA\"", other)),
            None => return Err("adapter_config.json has no `peft_type`: expected \"LORA\"".to_owned()),
        }
        for (name, what, advice) in REFUSED {
            if self.get(name).is_some_and(is_set) {
                return Err(format!("`{name}` is set: {what} is not supported; {advice}"));
            }
        }
        match self.get("bias") {
            None => {}
            Some(Value::String(bias)) if bias == "none" => {}
            Some(other) => {
                return Err(format!(
                    "{}; trained biases are not supported",
                    expected("bias", "\"none\"", other)
                ));
            }
        }
        self.refuse_changed_base()?;
        // A newer PEFT has switches that are not known here. A switch is a flag or a configuration of its own; numbers and
        // strings only tune what a switch turns on.
        for (name, value) in &self.0 {
            let known = READ.contains(&name.as_str())
                || WITHOUT_EFFECT.contains(&name.as_str())
                || REFUSED.iter().any(|(refused, ..)| refused == name);
            if !known && !matches!(value, Value::Number(_) | Value::String(_)) && is_set(value) {
                return Err(format!(
                    "`{name}` is set, which is not known here: it may change what the adapter computes; remove it from adapter_config.json if it does not"
                ));
            }
        }
        Ok(())
    }

    /// Some initialisations change the base model's weights, so that the adapter does not fit the published ones.
    fn refuse_changed_base(&self) -> Result<(), String> {
        match self.get("init_lora_weights") {
            None | Some(Value::Bool(_)) => Ok(()),
            Some(Value::String(init)) => match init.to_lowercase().as_str() {
                "gaussian" | "eva" | "orthogonal" | "true" | "false" => Ok(()),
                "loftq" => Err(
                    "`init_lora_weights` is \"loftq\": it fits a quantised base model only; merge it into that model and serve the result"
                        .to_owned(),
                ),
                kind if kind.starts_with("pissa") || kind.starts_with("corda") || kind == "olora" => Err(format!(
                    "`init_lora_weights` is \"{init}\": it fits a changed base model; convert it with PEFT's save_pretrained(..., path_initial_model_for_weight_conversion=...)"
                )),
                _ => Err(expected("init_lora_weights", "true, false, \"gaussian\", \"eva\" or \"orthogonal\"", &Value::String(init.clone()))),
            },
            Some(other) => Err(expected("init_lora_weights", "true, false or the name of an initialisation", other)),
        }
    }
}

fn targets(name: &str, value: &Value) -> Result<Targets, String> {
    match value {
        Value::String(text) if text.eq_ignore_ascii_case("all-linear") => Ok(Targets::AllLinear),
        Value::String(pattern) => Ok(Targets::Pattern(pattern.clone())),
        _ => Ok(Targets::Names(names(name, value)?)),
    }
}

/// Exclusion knows no shorthand.
fn targets_of_exclusion(value: &Value) -> Result<Targets, String> {
    match value {
        Value::String(pattern) => Ok(Targets::Pattern(pattern.clone())),
        _ => Ok(Targets::Names(names("exclude_modules", value)?)),
    }
}

fn names(name: &str, value: &Value) -> Result<Vec<String>, String> {
    let Value::Array(items) = value else {
        return Err(expected(name, "a list of names", value));
    };
    items
        .iter()
        .map(|item| {
            item.as_str()
                .map(str::to_owned)
                .ok_or_else(|| expected(name, "a list of names", item))
        })
        .collect()
}

fn whole(name: &str, value: &Value) -> Result<u64, String> {
    value
        .as_u64()
        .ok_or_else(|| expected(name, "a whole number that is not negative", value))
}

fn number(name: &str, value: &Value) -> Result<f64, String> {
    value
        .as_f64()
        .filter(|number| number.is_finite())
        .ok_or_else(|| expected(name, "a number", value))
}

/// Whether a setting is more than a default that switches nothing on.
fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(flag) => *flag,
        Value::Number(_) => true,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    }
}

fn expected(name: &str, wanted: &str, found: &Value) -> String {
    let mut found = found.to_string();
    if found.len() > 80 {
        found = format!("{}…", found.chars().take(80).collect::<String>());
    }
    format!("`{name}` should be {wanted}, found {found}")
}
