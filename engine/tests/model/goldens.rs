//! Goldens of transformers and peft in f32 (`golden.json` beside each tiny model; `made_with` in it says which versions).
//!
//! Each case is computed three ways that must agree with it: in one chunk, in odd chunks, and with the prompt in one chunk and
//! the answer token by token. The golden's own tokens are fed, and at each position the likeliest token must be the
//! golden's, so that one difference does not hide the next.

use std::path::Path;

use heddle_engine::{
    Error,
    backend::cpu::Dtype,
    batch::DeviceAdapter,
    hub::{Files, catalogue},
    model::{BackendChoice, LoadOptions, load_runner},
};
use serde::Deserialize;

use crate::harness::{Harness, argmax, backends, fixtures, log_probability};

/// Logits and log probabilities of two f32 computations of the same model differ by less.
const TOLERANCE: f32 = 1e-3;

#[derive(Deserialize)]
pub(crate) struct Golden {
    #[serde(default)]
    pub(crate) adapter: Option<String>,
    #[serde(default)]
    pub(crate) input_ids: Vec<u32>,
    prompt_logprobs: Vec<Option<f32>>,
    /// Ids and logits at the prompt's last position and the next four.
    top: Vec<(Vec<u32>, Vec<f32>)>,
    pub(crate) greedy_ids: Vec<u32>,
}

#[derive(Deserialize)]
struct TinyGoldens {
    cases: Vec<Golden>,
}

impl Golden {
    /// Checks the logits of every position of prompt and answer.
    fn check(&self, logits: &[Vec<f32>], what: &str) {
        let text = [self.input_ids.as_slice(), &self.greedy_ids].concat();
        let prompt = self.input_ids.len();
        for (position, expected) in self.prompt_logprobs.iter().enumerate() {
            let Some(expected) = expected else { continue };
            let got = log_probability(&logits[position - 1], text[position]);
            assert!(
                (got - expected).abs() < TOLERANCE,
                "{what}: log probability {got} at {position}, expected {expected}"
            );
        }
        for (index, (ids, expected)) in self.top.iter().enumerate() {
            let row = &logits[prompt - 1 + index];
            for (id, expected) in ids.iter().zip(expected) {
                let got = row[*id as usize];
                assert!(
                    (got - expected).abs() < TOLERANCE,
                    "{what}: logit {got} of {id} after {index} tokens, expected {expected}"
                );
            }
        }
        for (index, expected) in self.greedy_ids.iter().enumerate() {
            let row = &logits[prompt - 1 + index];
            let got = argmax(row);
            // Where the golden's own best two are closer than two computations differ, either is right.
            let behind = row[got as usize] - row[*expected as usize];
            assert!(
                behind < TOLERANCE,
                "{what}: token {got} at {index}, expected {expected}, which is {behind} behind"
            );
        }
    }

    /// Computes and checks the case the three ways.
    pub(crate) fn hold(&self, model: &mut Harness, adapter: Option<&DeviceAdapter>, what: &str) {
        let text = [self.input_ids.as_slice(), &self.greedy_ids].concat();
        let fed = &text[..text.len() - 1];
        self.check(
            &model.logits(fed, adapter, &[fed.len()]),
            &format!("{what}, one chunk"),
        );
        self.check(
            &model.logits(fed, adapter, &[1, 7, 3, 17, 5]),
            &format!("{what}, odd chunks"),
        );
        let mut decode = vec![1; self.greedy_ids.len()];
        decode[0] = self.input_ids.len();
        self.check(&model.logits(fed, adapter, &decode), &format!("{what}, decode"));
    }
}

/// The goldens of a tiny model.
pub(crate) fn tiny_cases(folder: &Path) -> Vec<Golden> {
    let json = std::fs::read(folder.join("golden.json")).unwrap();
    serde_json::from_slice::<TinyGoldens>(&json).unwrap().cases
}

/// Holds all cases of a tiny model that fit `fits`, with the model loaded for `context`.
fn hold_tiny(name: &str, context: Option<usize>, fits: impl Fn(&Golden) -> bool) {
    for backend in backends() {
        hold_tiny_on(name, &backend, context, &fits);
    }
}

/// The same on one back end.
fn hold_tiny_on(name: &str, backend: &BackendChoice, context: Option<usize>, fits: impl Fn(&Golden) -> bool) {
    let folder = fixtures().join("tiny").join(name);
    let mut model = Harness::open(&folder, backend, context);
    let mut held = 0;
    for (index, case) in tiny_cases(&folder)
        .iter()
        .enumerate()
        .filter(|(_, case)| fits(case))
    {
        let adapter = match &case.adapter {
            None => None,
            Some(adapter) => match model.read_adapter(&folder.join("adapters").join(adapter)) {
                Ok(weights) => Some(model.place(&weights)),
                // What is not plain LoRA is refused by name when it is loaded.
                Err(Error::AdapterRefused { .. }) if matches!(adapter.as_str(), "dora" | "lora_bias") => {
                    continue;
                }
                Err(error) => panic!("{name}: {error}"),
            },
        };
        case.hold(
            &mut model,
            adapter.as_ref(),
            &format!("{name} on {backend:?}, case {index}, adapter {:?}", case.adapter),
        );
        held += 1;
    }
    assert!(held >= 3, "{name}: only {held} cases were held");
}

macro_rules! tiny {
    ($($test:ident: $name:literal),* $(,)?) => {
        $(#[test]
        fn $test() {
            hold_tiny($name, None, |_| true);
        })*
    };
}

tiny! {
    llama: "llama",
    llama_with_grouped_queries_and_tied_embeddings: "llama-gqa-tied",
    llama_with_stretched_rope_in_shards: "llama3-rope",
    mistral_with_sliding_window: "mistral",
    qwen2: "qwen2",
    qwen3: "qwen3",
    gemma: "gemma",
    gemma2: "gemma2",
    gemma3: "gemma3",
    phi3: "phi3",
}

/// The goldens never cross the original context of 32: transformers computes those that end before it with the short
/// factors, those that begin after it with the long ones. Here the context that the model is loaded with decides.
#[test]
fn phi3_with_longrope() {
    let within = |case: &Golden| case.input_ids.len() + case.greedy_ids.len() <= 32;
    hold_tiny("phi3-longrope", Some(32), within);
    hold_tiny("phi3-longrope", None, |case| !within(case));
}

#[derive(Deserialize)]
struct PocketGoldens {
    prompts: Vec<PocketPrompt>,
    results: std::collections::BTreeMap<String, Vec<Golden>>,
}

#[derive(Deserialize)]
struct PocketPrompt {
    input_ids: Vec<u32>,
}

/// The model that is embedded in the binary, read as embedded files, with its three adapters.
#[test]
fn pocket() {
    for backend in backends().into_iter().filter(is_quick) {
        let what = format!("pocket on {backend:?}");
        each_of_pocket(backend, |model, adapter, name, index, case| {
            case.hold(model, adapter, &format!("{what}, {name}, case {index}"));
        });
    }
}

/// In `bf16`, logits are less than 1 off, which is what transformers' own differ by from its `f32`, and at least 95 % of the
/// likeliest tokens are the same.
#[test]
fn pocket_in_bf16() {
    for mut backend in backends().into_iter().filter(is_quick) {
        let BackendChoice::Cpu(options) = &mut backend else {
            continue;
        };
        options.dtype = Dtype::Bf16;
        let what = format!("pocket on {backend:?}");
        let (mut same, mut positions) = (0, 0);
        each_of_pocket(backend, |model, adapter, _, _, case| {
            let text = [case.input_ids.as_slice(), &case.greedy_ids].concat();
            let rows = model.logits(&text[..text.len() - 1], adapter, &[text.len() - 1]);
            let rows = &rows[case.input_ids.len() - 1..];
            for (row, (ids, expected)) in rows.iter().zip(&case.top) {
                for (id, expected) in ids.iter().zip(expected) {
                    let got = row[*id as usize];
                    assert!((got - expected).abs() < 1.0, "{what}: {got}, not {expected}");
                }
            }
            positions += rows.len();
            same += (rows.iter().zip(&case.greedy_ids))
                .filter(|(row, expected)| argmax(row) == **expected)
                .count();
        });
        assert!(same * 100 >= positions * 95, "{what}: {same} of {positions}");
    }
}

/// The portable kernels take their time.
fn is_quick(backend: &BackendChoice) -> bool {
    match backend {
        BackendChoice::Cpu(options) => options.kernels.as_deref() != Some("portable"),
        BackendChoice::Reference => true,
    }
}

/// Calls `hold` with the model, the adapter and its name, and the number and the text of each golden of pocket.
fn each_of_pocket(
    backend: BackendChoice,
    mut hold: impl FnMut(&mut Harness, Option<&DeviceAdapter>, &str, usize, &Golden),
) {
    let goldens = std::fs::read(fixtures().join("goldens/pocket.json")).unwrap();
    let goldens: PocketGoldens = serde_json::from_slice(&goldens).unwrap();
    let options = LoadOptions {
        backend,
        kv_bytes: 16 << 20,
        context: None,
    };
    let mut model = Harness::new(
        load_runner(&Files::Embedded(catalogue::embedded("pocket").unwrap()), &options).unwrap(),
    );
    let adapters = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/pocket/adapters");
    for (name, cases) in goldens.results {
        let adapter = (name != "base").then(|| {
            let weights = model.read_adapter(&adapters.join(&name)).unwrap();
            model.place(&weights)
        });
        for (index, (mut case, prompt)) in cases.into_iter().zip(&goldens.prompts).enumerate() {
            case.input_ids.clone_from(&prompt.input_ids);
            hold(&mut model, adapter.as_ref(), &name, index, &case);
        }
    }
}
