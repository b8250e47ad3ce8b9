//! Strict loading of adapters in the PEFT format: `adapter_config.json` and `adapter_model.safetensors`.
//!
//! Strict means that an adapter either does here exactly what it does in PEFT, or is refused with a sentence. Every tensor of the
//! file must belong to a module of the model that the configuration selects, and every selected module must have its tensors,
//! in the model's shapes and with the rank that the configuration says. The rules of selection are PEFT's own (`targets`).
//!
//! PEFT copies the base weight of a targeted embedding or output head into the file (`base_layer.weight`). LoRA freezes it, so
//! only its shape is checked, which shows a changed vocabulary; the values are the base model's.

mod config;
mod targets;
mod tensors;
#[cfg(test)]
mod tests;

use std::{borrow::Cow, collections::BTreeMap, ops::Range};

use safetensors::tensor::TensorInfo;

use self::{
    config::LoraConfig,
    targets::{Matcher, is_embedding, is_head},
    tensors::{TensorFile, WEIGHTS, check_type},
};
use super::{LoraPair, LoraSite, LoraWeights, generation};
use crate::{
    error::{Error, Result},
    hub::Files,
    model::Module,
};

/// What PEFT puts before the path of a module.
const PREFIX: &str = "base_model.model.";

/// The largest `adapter_config.json` that is read.
const MAX_CONFIG: usize = 1 << 20;

/// Reads and checks an adapter. `name` is for messages only.
///
/// # Errors
/// [`Error::AdapterRefused`] says what was found, what was expected and what to do; [`Error::Io`] if a file cannot be read.
pub fn load(name: &str, files: &Files, modules: &[Module], max_rank: usize) -> Result<LoraWeights> {
    Plan::new(name, files, modules, max_rank)?.read()
}

/// An adapter whose configuration and header have been read and fit the model. Nothing of its weights is in memory yet.
pub struct Plan {
    name: String,
    file: TensorFile,
    pairs: Vec<PlannedPair>,
    head: Option<(String, TensorInfo)>,
    bytes: usize,
}

/// The tensors of one module.
struct PlannedPair {
    a: (String, TensorInfo),
    b: (String, TensorInfo),
    rank: usize,
    scale: f32,
    in_features: usize,
    /// The sites, with their rows of `b`.
    parts: Vec<(LoraSite, Range<usize>)>,
}

impl Plan {
    /// Checks everything that can be checked without the weights.
    ///
    /// # Errors
    /// As [`load`].
    pub fn new(name: &str, files: &Files, modules: &[Module], max_rank: usize) -> Result<Self> {
        plan(name, files, modules, max_rank).map_err(|problem| problem.into_error(name))
    }

    /// What [`Plan::read`] will take, in bytes of memory.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reads the weights.
    ///
    /// # Errors
    /// A weight is not finite, or the file cannot be read.
    pub fn read(mut self) -> Result<LoraWeights> {
        self.read_weights()
            .map_err(|problem| problem.into_error(&self.name))
    }

    fn read_weights(&mut self) -> Result<LoraWeights, Problem> {
        let mut pairs = BTreeMap::new();
        for planned in &self.pairs {
            let a = self.file.read_f32(&planned.a.0, &planned.a.1)?;
            let b = self.file.read_f32(&planned.b.0, &planned.b.1)?;
            let pair = |rows: &Range<usize>, a, b| LoraPair {
                rank: planned.rank,
                in_features: planned.in_features,
                out_features: rows.len(),
                scale: planned.scale,
                a,
                b,
            };
            match &planned.parts[..] {
                [(site, rows)] => {
                    pairs.insert(*site, pair(rows, a, b));
                }
                // The checkpoint fuses projections: each gets its rows of `b`, and the same `a`.
                parts => {
                    for (site, rows) in parts {
                        let b = b[rows.start * planned.rank..rows.end * planned.rank].to_vec();
                        pairs.insert(*site, pair(rows, a.clone(), b));
                    }
                }
            }
        }
        let lm_head = match &self.head {
            Some((name, info)) => Some(self.file.read_f32(name, info)?),
            None => None,
        };
        Ok(LoraWeights {
            generation: generation(&pairs, lm_head.as_deref()),
            pairs,
            lm_head,
        })
    }
}

fn plan(name: &str, files: &Files, modules: &[Module], max_rank: usize) -> Result<Plan, Problem> {
    let config = read_config(files)?;
    let Some(file) = TensorFile::open(files)? else {
        return Err(no_weights(files));
    };
    let matcher = Matcher::new(&config)?;
    let mut left = file.tensors.clone();
    let mut missing = Vec::new();
    let mut pairs = Vec::new();
    for module in modules {
        let path = &module.path;
        if !matcher.is_target(module)? {
            continue;
        }
        let (a, b) = if is_embedding(module) {
            (
                format!("{PREFIX}{path}.lora_embedding_A"),
                format!("{PREFIX}{path}.lora_embedding_B"),
            )
        } else {
            (
                format!("{PREFIX}{path}.lora_A.weight"),
                format!("{PREFIX}{path}.lora_B.weight"),
            )
        };
        let rank = matcher.rank(path)?;
        if !(1..=max_rank).contains(&rank) {
            return Err(format!(
                "the configuration gives `{path}` rank {rank}: ranks 1 to {max_rank} are served"
            )
            .into());
        }
        match (left.remove_entry(&a), left.remove_entry(&b)) {
            (Some(a), Some(b)) => {
                check_pair(module, rank, (&a.0, &a.1), (&b.0, &b.1), &config)?;
                pairs.push(PlannedPair {
                    a,
                    b,
                    rank,
                    scale: matcher.scale(path, rank)?,
                    in_features: module.in_features,
                    parts: module.parts.clone(),
                });
            }
            (found_a, found_b) => {
                missing.extend(
                    [(a, found_a), (b, found_b)]
                        .into_iter()
                        .filter_map(|(name, found)| found.is_none().then_some(name)),
                );
            }
        }
        if (is_embedding(module) || is_head(module))
            && let Some((name, info)) = left.remove_entry(&format!("{PREFIX}{path}.base_layer.weight"))
        {
            check_whole(&name, &info, module)?;
        }
    }
    let mut head = None;
    if config.saves_head {
        let module = modules.iter().find(|module| is_head(module));
        let name = format!("{PREFIX}lm_head.weight");
        match (module, left.remove_entry(&name)) {
            (Some(module), Some((name, info))) => {
                check_whole(&name, &info, module)?;
                check_type(&name, &info)?;
                head = Some((name, info));
            }
            (None, _) => {
                return Err(
                    "`modules_to_save` holds `lm_head`, which this model does not have"
                        .to_owned()
                        .into(),
                );
            }
            (_, None) => missing.push(name),
        }
    }
    check_nothing_left(&left, &missing, modules, &matcher, &config)?;
    if pairs.is_empty() && head.is_none() {
        return Err(nothing_selected(&config, modules));
    }
    let floats = |pair: &PlannedPair| -> usize {
        pair.parts
            .iter()
            .map(|(_, rows)| pair.rank * (pair.in_features + rows.len()))
            .sum()
    };
    let bytes = 4
        * (pairs.iter().map(floats).sum::<usize>()
            + head
                .iter()
                .map(|(_, info)| info.shape.iter().product::<usize>())
                .sum::<usize>());
    Ok(Plan {
        name: name.to_owned(),
        file,
        pairs,
        head,
        bytes,
    })
}

fn read_config(files: &Files) -> Result<LoraConfig, Problem> {
    if let Files::Gguf(path) = files {
        return Err(format!(
            "{} is a GGUF file: expected a folder with adapter_config.json and {WEIGHTS}, as PEFT saves them",
            path.display()
        )
        .into());
    }
    let Some(config) = files.read("adapter_config.json")? else {
        return Err(
            "there is no adapter_config.json: expected a folder as PEFT's save_pretrained writes it"
                .to_owned()
                .into(),
        );
    };
    let config: Cow<'_, [u8]> = config;
    if config.len() > MAX_CONFIG {
        return Err(format!(
            "adapter_config.json has {} bytes: at most {MAX_CONFIG} are read",
            config.len()
        )
        .into());
    }
    Ok(LoraConfig::parse(&config)?)
}

fn no_weights(files: &Files) -> Problem {
    let pickle = matches!(files, Files::Folder(folder) if folder.join("adapter_model.bin").exists());
    if pickle {
        format!(
            "it has adapter_model.bin, a Python pickle, which can run code when it is read; convert it to {WEIGHTS} (load it in PEFT and save_pretrained with safe_serialization=True)"
        )
        .into()
    } else {
        format!("there is no {WEIGHTS}: expected a folder as PEFT's save_pretrained writes it").into()
    }
}

/// A pair's types and shapes: `a` is `[rank, in]`, `b` is `[out, rank]`.
fn check_pair(
    module: &Module,
    rank: usize,
    (a_name, a): (&str, &TensorInfo),
    (b_name, b): (&str, &TensorInfo),
    config: &LoraConfig,
) -> Result<(), String> {
    check_type(a_name, a)?;
    check_type(b_name, b)?;
    let foreign = |name: &str, found: &[usize], expected: [usize; 2]| {
        format!(
            "`{name}` has shape {found:?}: expected {expected:?} in this model; {}",
            trained_on(config)
        )
    };
    let (&[a_rank, a_in], &[b_out, b_rank]) = (&a.shape[..], &b.shape[..]) else {
        return Err(foreign(a_name, &a.shape, [rank, module.in_features]));
    };
    if a_in != module.in_features {
        return Err(foreign(a_name, &a.shape, [a_rank, module.in_features]));
    }
    if b_out != module.out_features {
        return Err(foreign(b_name, &b.shape, [module.out_features, b_rank]));
    }
    if a_rank != rank || b_rank != rank {
        return Err(format!(
            "`{a_name}` and `lora_B` have ranks {a_rank} and {b_rank}, the configuration says {rank}: correct `r` or `rank_pattern` in adapter_config.json"
        ));
    }
    Ok(())
}

/// A weight that is saved whole: the output head `[out, in]`, the embedding `[vocab, hidden]`.
fn check_whole(name: &str, info: &TensorInfo, module: &Module) -> Result<(), String> {
    let expected = if is_embedding(module) {
        [module.in_features, module.out_features]
    } else {
        [module.out_features, module.in_features]
    };
    if info.shape == expected {
        return Ok(());
    }
    Err(format!(
        "`{name}` has shape {:?}: expected {expected:?} in this model; the adapter was trained with another vocabulary, which is not supported",
        info.shape
    ))
}

/// Refuses tensors that nothing reads and modules that have none.
fn check_nothing_left(
    left: &BTreeMap<String, TensorInfo>,
    missing: &[String],
    modules: &[Module],
    matcher: &Matcher<'_>,
    config: &LoraConfig,
) -> Result<(), String> {
    if let Some((name, info)) = left.first_key_value() {
        let reason = why_left(name, modules, matcher, config)?;
        return Err(format!(
            "{} belong to nothing that the configuration selects in this model, the first is `{name}` ({} {:?}): {reason}",
            count(left.len(), "tensor"),
            info.dtype,
            info.shape,
        ));
    }
    if missing.is_empty() {
        return Ok(());
    }
    let first: Vec<_> = missing.iter().take(3).map(|name| format!("`{name}`")).collect();
    Err(format!(
        "the configuration selects modules whose tensors are not there: {} missing, such as {}; the file is incomplete, or {}",
        count(missing.len(), "tensor"),
        first.join(", "),
        trained_on(config)
    ))
}

/// What a tensor that nothing reads tells of its adapter.
fn why_left(
    name: &str,
    modules: &[Module],
    matcher: &Matcher<'_>,
    config: &LoraConfig,
) -> Result<String, String> {
    let Some(path) = name.strip_prefix(PREFIX) else {
        return Ok(format!(
            "expected names that begin with `{PREFIX}`, as PEFT's save_pretrained writes them"
        ));
    };
    if path.contains("lora_magnitude_vector") {
        return Ok(
            "it is a part of DoRA, which is not supported; merge the adapter into the model".to_owned(),
        );
    }
    if path.ends_with(".bias") {
        return Ok("trained biases are not supported".to_owned());
    }
    if path.contains(".experts.") {
        return Ok("adapters on the experts of a mixture are not supported".to_owned());
    }
    let owner = modules.iter().find(|module| {
        path.strip_prefix(module.path.as_str())
            .is_some_and(|rest| rest.starts_with('.'))
    });
    if let Some(module) = owner {
        return Ok(if matcher.is_target(module)? {
            format!(
                "`{}` is selected, but this is not a tensor that LoRA has there",
                module.path
            )
        } else if is_head(module) || is_embedding(module) {
            format!(
                "a whole `{}` is not selected by `target_modules` or `modules_to_save`; save with `save_embedding_layers=False` if it was not trained",
                module.path
            )
        } else {
            format!(
                "`{}` is not selected by `target_modules`, `layers_to_transform` and `exclude_modules`; correct adapter_config.json",
                module.path
            )
        });
    }
    let layers = modules
        .iter()
        .filter_map(|module| module.layer)
        .max()
        .map_or(0, |last| last + 1);
    let layer = path.split('.').find_map(|part| part.parse::<u32>().ok());
    Ok(match layer {
        Some(layer) if layer >= layers => {
            format!(
                "it is for layer {layer}, this model has {layers}; {}",
                trained_on(config)
            )
        }
        _ => {
            let example = modules
                .iter()
                .find(|module| module.layer.is_some())
                .map_or("lm_head", |module| &module.path);
            format!(
                "this model has no such module (it has `{example}`, for example); {}",
                trained_on(config)
            )
        }
    })
}

fn nothing_selected(config: &LoraConfig, modules: &[Module]) -> Problem {
    let example = modules
        .iter()
        .find(|module| module.layer.is_some())
        .map_or("lm_head", |module| &module.path);
    format!(
        "its `target_modules` select no module of this model, so it would change nothing; modules are named like `{example}`; {}",
        trained_on(config)
    )
    .into()
}

fn trained_on(config: &LoraConfig) -> String {
    match &config.base_model {
        Some(base) => {
            let base: String = base.chars().take(200).collect();
            format!("the adapter says that it was trained on `{base}`: use it with that model")
        }
        None => "the adapter was trained on another model".to_owned(),
    }
}

fn count(number: usize, what: &str) -> String {
    if number == 1 {
        format!("1 {what}")
    } else {
        format!("{number} {what}s")
    }
}

/// What goes wrong below: a refusal, which gets the adapter's name on its way out, or an error that has all it needs.
enum Problem {
    Refused(String),
    Other(Error),
}

impl Problem {
    fn into_error(self, name: &str) -> Error {
        match self {
            Self::Refused(reason) => Error::AdapterRefused {
                adapter: name.to_owned(),
                reason,
            },
            Self::Other(error) => error,
        }
    }
}

impl From<String> for Problem {
    fn from(reason: String) -> Self {
        Self::Refused(reason)
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}
