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
            exclude: config.exclude.as_ref().map(|exclude| Selector::new("exclude_modules", exclude)).transpose()?,
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
            Some(layers) => Ok(self.layer_of(&module.path)?.is_some_and(|layer| layers.contains(&layer))),
        }
    }

    /// The rank that the configuration gives to the module at `path`.
    pub(super) fn rank(&self, path: &str) -> Result<usize, String> {
        Ok(lookup(&self.ranks, path)?.unwrap_or(self.config.r))
    }

    /// What its update is multiplied by. Computed in f64 as Python does.
    pub(super) fn scale(&self, path: &str, rank: usize) -> Result<f32, String> {
        let alpha = lookup(&self.alphas, path)?.unwrap_or(self.config.alpha);
        let divisor = if self.config.rslora { (rank as f64).sqrt() } else { rank as f64 };
        let scale = (alpha / divisor) as f32;
        if scale.is_finite() { Ok(scale) } else { Err(format!("`lora_alpha` is {alpha}: too large for a 32-bit float")) }
    }

    fn layer_of(&self, path: &str) -> Result<Option<u64>, String> {
        for pattern in &self.layer {
            if let Some(found) = pattern.captures(path).map_err(|error| too_costly("layers_pattern", &error))? {
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
            Targets::Pattern(pattern) => Self::Pattern(setting, compile(setting, &format!(r"\A(?:{pattern})\z"))?),
            Targets::AllLinear => Self::AllLinear,
        })
    }

    fn selects(&self, module: &Module) -> Result<bool, String> {
        match self {
            Self::Names(names) => Ok(names.iter().any(|name| ends_with(&module.path, name))),
            Self::Pattern(setting, pattern) => {
                pattern.is_match(&module.path).map_err(|error| too_costly(setting, &error))
            }
            Self::AllLinear => Ok(!is_head(module) && !is_embedding(module)),
        }
    }
}

/// Whether `path` is `name` or ends in `.name`.
fn ends_with(path: &str, name: &str) -> bool {
    path.strip_suffix(name).is_some_and(|before| before.is_empty() || before.ends_with('.'))
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
                let same = key.bytes().zip(end).all(|(wanted, found)| wanted == b'.' || wanted == *found);
                Ok(same && before.last().is_none_or(|last| *last == b'.'))
            }
            Self::Pattern(pattern) => {
                pattern.is_match(path).map_err(|error| too_costly("rank_pattern or alpha_pattern", &error))
            }
        }
    }
}

fn keys<'c, T: Copy>(setting: &str, patterns: &'c [(String, T)]) -> Result<Vec<(Key<'c>, T)>, String> {
    let mut keys = Vec::with_capacity(patterns.len());
    for (key, value) in patterns {
        let plain = key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.');
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
