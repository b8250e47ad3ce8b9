//! Which modules a configuration means, with which rank and which alpha: PEFT's own rules, to the letter.
//!
//! They are those of `check_target_module_exists` and `get_pattern_key` in PEFT 0.18, where `re.match` is bound to the
//! beginning of a path only and `re.fullmatch` to both ends.

use fancy_regex::{Regex, RegexBuilder};

use super::config::{LoraConfig, Targets};
use crate::{adapter::LoraSite, model::Module};

/// A configuration with its expressions compiled.
pub(super) struct Matcher<'c> {
    config: &'c LoraConfig,
    targets: Selector<'c>,
    exclude: Option<Selector<'c>>,
    layer: Vec<Regex>,
    ranks: Vec<(Key<'c>, usize)>,
    alphas: Vec<(Key<'c>, f64)>,
}

impl<'c> Matcher<'c> {
    pub(super) fn new(config: &'c LoraConfig) -> Result<Self, String> {
        let mut layer = Vec::new();
        if config.layers.is_some() {
            if config.layers_pattern.is_empty() {
                layer.push(compile("layers_to_transform", r"\A.*\.[^.]*\.(\d+)\.")?);
            }
            for pattern in &config.layers_pattern {
                layer.push(compile("layers_pattern", &format!(r"\A.*\.{pattern}\.(\d+)\."))?);
            }
        }
        Ok(Self {
            config,
            targets: Selector::new("target_modules", &config.targets)?,
            exclude: config
                .exclude
                .as_ref()
                .map(|exclude| Selector::new("exclude_modules", exclude))
                .transpose()?,
            layer,
            ranks: keys("rank_pattern", &config.rank_pattern)?,
            alphas: keys("alpha_pattern", &config.alpha_pattern)?,
        })
    }

    /// Whether the adapter has a low-rank pair for `module`.
    pub(super) fn is_target(&self, module: &Module) -> Result<bool, String> {
        if let Some(exclude) = &self.exclude
            && exclude.selects(module)?
        {
            return Ok(false);
        }
        // A module that is saved whole has no pair beside it.
        if self.config.saves_head && is_head(module) {
            return Ok(false);
        }
        if !self.targets.selects(module)? {
            return Ok(false);
        }
        match &self.config.layers {
            None => Ok(true),
            // A name that is a whole path is meant whatever the layers are.
            Some(_) if self.targets.names_whole(module) => Ok(true),
            Some(layers) => Ok(self
                .layer_of(&module.path)?
                .is_some_and(|layer| layers.contains(&layer))),
        }
    }

    /// The rank that the configuration gives to the module at `path`.
    pub(super) fn rank(&self, path: &str) -> Result<usize, String> {
        Ok(lookup(&self.ranks, path)?.unwrap_or(self.config.r))
    }

    /// What its update is multiplied by. Computed in f64 as Python does.
    pub(super) fn scale(&self, path: &str, rank: usize) -> Result<f32, String> {
        let alpha = lookup(&self.alphas, path)?.unwrap_or(self.config.alpha);
        let divisor = if self.config.rslora {
            (rank as f64).sqrt()
        } else {
            rank as f64
        };
        let scale = (alpha / divisor) as f32;
        if scale.is_finite() {
            Ok(scale)
        } else {
            Err(format!("`lora_alpha` is {alpha}: too large for a 32-bit float"))
        }
    }

    fn layer_of(&self, path: &str) -> Result<Option<u64>, String> {
        for pattern in &self.layer {
            if let Some(found) = pattern
                .captures(path)
                .map_err(|error| too_costly("layers_pattern", &error))?
            {
                return Ok(found.get(1).and_then(|digits| digits.as_str().parse().ok()));
            }
        }
        Ok(None)
    }
}

/// Whether the module is the output head.
pub(super) fn is_head(module: &Module) -> bool {
    module.parts.iter().any(|(site, _)| *site == LoraSite::LmHead)
}

/// Whether the module is the input embedding.
pub(super) fn is_embedding(module: &Module) -> bool {
    module.parts.iter().any(|(site, _)| *site == LoraSite::Embed)
}

enum Selector<'c> {
    Names(&'c [String]),
    Pattern(&'static str, Regex),
    AllLinear,
}

impl<'c> Selector<'c> {
    fn new(setting: &'static str, targets: &'c Targets) -> Result<Self, String> {
        Ok(match targets {
            Targets::Names(names) => Self::Names(names),
            Targets::Pattern(pattern) => {
                Self::Pattern(setting, compile(setting, &format!(r"\A(?:{pattern})\z"))?)
            }
            Targets::AllLinear => Self::AllLinear,
        })
    }

    fn selects(&self, module: &Module) -> Result<bool, String> {
        match self {
            Self::Names(names) => Ok(names.iter().any(|name| ends_with(&module.path, name))),
            Self::Pattern(setting, pattern) => pattern
                .is_match(&module.path)
                .map_err(|error| too_costly(setting, &error)),
            Self::AllLinear => Ok(!is_head(module) && !is_embedding(module)),
        }
    }

    fn names_whole(&self, module: &Module) -> bool {
        matches!(self, Self::Names(names) if names.contains(&module.path))
    }
}

/// Whether `path` is `name` or ends in `.name`.
fn ends_with(path: &str, name: &str) -> bool {
    path.strip_suffix(name)
        .is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

/// A key of `rank_pattern` or `alpha_pattern`: an expression that matches the end of a path from a dot on.
enum Key<'c> {
    /// Letters, digits, `_` and `.` only, which is nearly every key: hundreds are common, one for each module.
    Plain(&'c str),
    Pattern(Regex),
}

impl Key<'_> {
    fn matches(&self, path: &str) -> Result<bool, String> {
        match self {
            Self::Plain(key) => {
                let Some(start) = path.len().checked_sub(key.len()) else {
                    return Ok(false);
                };
                let (before, end) = path.as_bytes().split_at(start);
                // In an expression, a dot stands for any character.
                let same = key
                    .bytes()
                    .zip(end)
                    .all(|(wanted, found)| wanted == b'.' || wanted == *found);
                Ok(same && before.last().is_none_or(|last| *last == b'.'))
            }
            Self::Pattern(pattern) => pattern
                .is_match(path)
                .map_err(|error| too_costly("rank_pattern or alpha_pattern", &error)),
        }
    }
}

fn keys<'c, T: Copy>(setting: &str, patterns: &'c [(String, T)]) -> Result<Vec<(Key<'c>, T)>, String> {
    let mut keys = Vec::with_capacity(patterns.len());
    for (key, value) in patterns {
        let plain = key
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.');
        let key = if plain {
            Key::Plain(key)
        } else {
            Key::Pattern(compile(setting, &format!(r"\A(.*\.)?({key})$"))?)
        };
        keys.push((key, *value));
    }
    Ok(keys)
}

fn lookup<T: Copy>(keys: &[(Key<'_>, T)], path: &str) -> Result<Option<T>, String> {
    for (key, value) in keys {
        if key.matches(path)? {
            return Ok(Some(*value));
        }
    }
    Ok(None)
}

fn compile(setting: &str, pattern: &str) -> Result<Regex, String> {
    // The pattern comes from a stranger: a costly one may not hold a loader up.
    RegexBuilder::new(pattern)
        .backtrack_limit(100_000)
        .build()
        .map_err(|error| format!("`{setting}` holds an expression that cannot be read: {error}"))
}

fn too_costly(setting: &str, error: &fancy_regex::Error) -> String {
    format!("`{setting}` holds an expression that cannot be matched: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::Projection;

    /// Numbered in the tests below.
    const PATHS: [&str; 11] = [
        "model.embed_tokens",
        "model.layers.0.self_attn.q_proj",
        "model.layers.0.self_attn.v_proj",
        "model.layers.0.mlp.down_proj",
        "model.layers.1.self_attn.q_proj",
        "model.layers.1.self_attn.v_proj",
        "model.layers.1.mlp.down_proj",
        "model.layers.11.self_attn.q_proj",
        "model.layers.11.self_attn.v_proj",
        "model.layers.11.mlp.down_proj",
        "lm_head",
    ];

    fn modules() -> Vec<Module> {
        let module = |path: &&str| {
            let layer = path.split('.').nth(2).and_then(|layer| layer.parse().ok());
            let site = match (*path, layer) {
                ("lm_head", _) => LoraSite::LmHead,
                (_, None) => LoraSite::Embed,
                (_, Some(layer)) => LoraSite::Layer(layer, Projection::Q),
            };
            Module {
                path: (*path).to_owned(),
                layer,
                in_features: 4,
                out_features: 4,
                parts: vec![(site, 0..4)],
            }
        };
        PATHS.iter().map(module).collect()
    }

    fn config(fields: &str) -> LoraConfig {
        let mut json: serde_json::Value = serde_json::from_str(fields).unwrap();
        json["peft_type"] = "LORA".into();
        LoraConfig::parse(json.to_string().as_bytes()).unwrap()
    }

    /// The expected modules are what `check_target_module_exists` of PEFT 0.18.0 answers for each path.
    #[test]
    fn selects_what_peft_selects() {
        let cases: &[(&str, &[usize])] = &[
            (r#"{"target_modules": ["q_proj", "v_proj"]}"#, &[1, 2, 4, 5, 7, 8]),
            (r#"{"target_modules": ["proj"]}"#, &[]),
            (
                r#"{"target_modules": ["self_attn.q_proj", "lm_head"]}"#,
                &[1, 4, 7, 10],
            ),
            (r#"{"target_modules": ["model.layers.1.mlp.down_proj"]}"#, &[6]),
            (r#"{"target_modules": ["1.mlp.down_proj"]}"#, &[6]),
            (r#"{"target_modules": "q_proj"}"#, &[]),
            (r#"{"target_modules": ".*\\.q_proj"}"#, &[1, 4, 7]),
            (
                r#"{"target_modules": ".*\\.(q|v)_proj|lm_head"}"#,
                &[1, 2, 4, 5, 7, 8, 10],
            ),
            (
                r#"{"target_modules": "model\\.layers\\.(?!0\\.)\\d+\\..*_proj"}"#,
                &[4, 5, 6, 7, 8, 9],
            ),
            // As Unsloth writes it.
            (
                r#"{"target_modules": "(?:.*?(?:language|text).*?(?:self_attn|mlp).*?(?:q_proj|v_proj).*?)|(?:\\bmodel\\.layers\\.[\\d]{1,}\\.(?:self_attn|mlp)\\.(?:(?:q_proj|v_proj)))"}"#,
                &[1, 2, 4, 5, 7, 8],
            ),
            (
                r#"{"target_modules": ["q_proj"], "layers_to_transform": 1}"#,
                &[4],
            ),
            (
                r#"{"target_modules": ["q_proj"], "layers_to_transform": [1, 11]}"#,
                &[4, 7],
            ),
            (
                r#"{"target_modules": ["q_proj", "lm_head"], "layers_to_transform": [1]}"#,
                &[4, 10],
            ),
            (
                r#"{"target_modules": ["q_proj"], "layers_to_transform": []}"#,
                &[1, 4, 7],
            ),
            (
                r#"{"target_modules": ["q_proj"], "layers_to_transform": [1], "layers_pattern": "layers"}"#,
                &[4],
            ),
            (
                r#"{"target_modules": ["q_proj"], "layers_to_transform": [1], "layers_pattern": ["h", "layers"]}"#,
                &[4],
            ),
            (
                r#"{"target_modules": ["q_proj"], "layers_to_transform": [1], "layers_pattern": "h"}"#,
                &[],
            ),
            (
                r#"{"target_modules": ["q_proj", "v_proj"], "exclude_modules": ["0.self_attn.q_proj"]}"#,
                &[2, 4, 5, 7, 8],
            ),
            (
                r#"{"target_modules": ["q_proj", "v_proj"], "exclude_modules": ["attn.q_proj"]}"#,
                &[1, 2, 4, 5, 7, 8],
            ),
            (
                r#"{"target_modules": ["q_proj", "v_proj"], "exclude_modules": ".*layers\\.1\\..*"}"#,
                &[1, 2, 7, 8],
            ),
            (
                r#"{"target_modules": ["q_proj", "lm_head"], "modules_to_save": ["lm_head"]}"#,
                &[1, 4, 7],
            ),
            // PEFT resolves the shorthand to every nn.Linear but the output head.
            (
                r#"{"target_modules": "All-Linear"}"#,
                &[1, 2, 3, 4, 5, 6, 7, 8, 9],
            ),
            (
                r#"{"target_modules": "all-linear", "exclude_modules": ["q_proj", "v_proj"]}"#,
                &[3, 6, 9],
            ),
        ];
        let modules = modules();
        for (fields, expected) in cases {
            let config = config(fields);
            let matcher = Matcher::new(&config).unwrap();
            let found: Vec<_> = (0..PATHS.len())
                .filter(|&index| matcher.is_target(&modules[index]).unwrap())
                .collect();
            assert_eq!(found, *expected, "{fields}");
        }
    }

    /// The expected modules are what `get_pattern_key` of PEFT 0.18.0 answers for each path.
    #[test]
    fn patterns_match_what_peft_matches() {
        let cases: &[(&str, &[usize])] = &[
            (r"q_proj", &[1, 4, 7]),
            (r"layers.1.self_attn.v_proj", &[5]),
            (r"^model.layers.0.mlp.down_proj", &[3]),
            (r"^layers.0.mlp.down_proj", &[]),
            (r"self_attn.*", &[1, 2, 4, 5, 7, 8]),
            (r"layers.[01].mlp.down_proj", &[3, 6]),
            (r".layers.1.self_attn.v_proj", &[]),
            (r"1.self_attn.v.proj", &[5]),
            (r"roj", &[]),
            (r"(?!lm)l.*head", &[]),
            (r"down_proj$", &[3, 6, 9]),
        ];
        for (pattern, expected) in cases {
            let patterns = [((*pattern).to_owned(), 3)];
            let keys = keys("rank_pattern", &patterns).unwrap();
            let found: Vec<_> = (0..PATHS.len())
                .filter(|&index| lookup(&keys, PATHS[index]).unwrap() == Some(3))
                .collect();
            assert_eq!(found, *expected, "{pattern}");
        }
    }

    #[test]
    fn the_first_pattern_wins() {
        let config = config(
            r#"{"target_modules": ["q_proj"], "r": 4, "lora_alpha": 8,
                "rank_pattern": {"layers.1.self_attn.q_proj": 2, "q_proj": 16}, "alpha_pattern": {"q_proj": 4}}"#,
        );
        let matcher = Matcher::new(&config).unwrap();
        assert_eq!(matcher.rank(PATHS[1]).unwrap(), 16);
        assert_eq!(matcher.rank(PATHS[4]).unwrap(), 2);
        assert_eq!(matcher.rank(PATHS[3]).unwrap(), 4);
        assert_eq!(matcher.scale(PATHS[4], 2).unwrap(), 2.0);
        assert_eq!(matcher.scale(PATHS[3], 4).unwrap(), 2.0);
    }

    #[test]
    fn rslora_divides_by_the_root_of_the_rank() {
        let config =
            config(r#"{"target_modules": ["q_proj"], "r": 64, "lora_alpha": 16, "use_rslora": true}"#);
        assert_eq!(Matcher::new(&config).unwrap().scale(PATHS[1], 64).unwrap(), 2.0);
    }

    #[test]
    fn a_costly_expression_is_given_up() {
        let config = config(r#"{"target_modules": "(?=(a|.|.)*(a|.|.)*(a|.|.)*\\1x)(.|.)*y"}"#);
        let error = Matcher::new(&config)
            .unwrap()
            .is_target(&modules()[1])
            .unwrap_err();
        assert!(error.contains("target_modules"), "{error}");
    }
}
