//! Loading of files that PEFT wrote, and refusal of files that are not what they should be.

// The expected values are as numpy prints them.
#![allow(clippy::excessive_precision)]

use std::path::{Path, PathBuf};

use safetensors::Dtype;
use serde_json::{Value, json};

use super::*;
use crate::{
    adapter::{
        Projection,
        made::{Made, Tensor, modules},
    },
    model::ModelConfig,
};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny")
}

fn tiny(architecture: &str) -> Vec<Module> {
    let config = std::fs::read(fixtures().join(architecture).join("config.json")).unwrap();
    ModelConfig::from_json(&config).unwrap().modules()
}

fn load_tiny(architecture: &str, adapter: &str) -> Result<LoraWeights> {
    let folder = fixtures().join(architecture).join("adapters").join(adapter);
    load(adapter, &Files::Folder(folder), &tiny(architecture), 64)
}

fn load_made(made: &Made) -> Result<LoraWeights> {
    let folder = made.write();
    load("made", &Files::Folder(folder.path().to_owned()), &modules(), 8)
}

fn refusal(result: Result<LoraWeights>) -> String {
    match result {
        Err(Error::AdapterRefused { reason, .. }) => reason,
        other => panic!("not refused: {other:?}"),
    }
}

/// The three adapters that every tiny model has (see make_tiny: a is r 4 alpha 8 on q and v in f32, b is r 8 alpha 16 rsLoRA
/// on all linear modules in bf16, c is r 16 alpha 8 on o and down in f16).
#[test]
fn every_tiny_adapter_loads() {
    use Projection::{Down, Gate, K, O, Q, Up, V};
    let dense = [
        "gemma",
        "gemma2",
        "gemma3",
        "llama",
        "llama-gqa-tied",
        "llama3-rope",
        "mistral",
        "phi3",
        "phi3-longrope",
        "qwen2",
        "qwen3",
    ];
    for architecture in dense {
        let modules = tiny(architecture);
        let layers = modules.iter().filter_map(|module| module.layer).max().unwrap() + 1;
        let fused = architecture.starts_with("phi3");
        for (adapter, rank, scale, projections) in [
            // Phi-3 has no q_proj or v_proj: there the adapter is on qkv_proj.
            ("a", 4, 2.0, if fused { vec![Q, K, V] } else { vec![Q, V] }),
            (
                "b",
                8,
                (16.0 / 8_f64.sqrt()) as f32,
                vec![Q, K, V, O, Gate, Up, Down],
            ),
            ("c", 16, 0.5, vec![O, Down]),
        ] {
            let weights = load_tiny(architecture, adapter).unwrap();
            let sites: Vec<_> = (0..layers)
                .flat_map(|layer| {
                    projections
                        .iter()
                        .map(move |&projection| LoraSite::Layer(layer, projection))
                })
                .collect();
            assert_eq!(
                weights.pairs.keys().copied().collect::<Vec<_>>(),
                sites,
                "{architecture}/{adapter}"
            );
            for pair in weights.pairs.values() {
                assert_eq!((pair.rank, pair.scale), (rank, scale), "{architecture}/{adapter}");
                assert_eq!(pair.a.len(), pair.rank * pair.in_features);
                assert_eq!(pair.b.len(), pair.rank * pair.out_features);
                assert!(pair.a.iter().any(|&value| value != 0.0) && pair.b.iter().any(|&value| value != 0.0));
            }
            let again = load_tiny(architecture, adapter).unwrap();
            assert_eq!(weights.generation, again.generation);
        }
    }
}

#[test]
fn rank_and_alpha_patterns() {
    let weights = load_tiny("llama", "rank_pattern").unwrap();
    let of = |layer, projection| {
        let pair = &weights.pairs[&LoraSite::Layer(layer, projection)];
        (pair.rank, pair.scale)
    };
    for layer in 0..2 {
        assert_eq!(of(layer, Projection::Q), (2, 8.0));
        assert_eq!(of(layer, Projection::K), (4, 2.0));
        assert_eq!(of(layer, Projection::O), (4, 2.0));
    }
    assert_eq!(of(0, Projection::V), (4, 2.0));
    assert_eq!(of(1, Projection::V), (8, 1.0));
}

#[test]
fn some_layers_only() {
    let weights = load_tiny("llama", "layers_subset").unwrap();
    assert_eq!(weights.pairs.len(), 7);
    assert!(
        weights
            .pairs
            .keys()
            .all(|site| matches!(site, LoraSite::Layer(1, _)))
    );
    let weights = load_tiny("llama", "regex_target").unwrap();
    let sites: Vec<_> = weights.pairs.keys().copied().collect();
    assert_eq!(
        sites,
        [
            LoraSite::Layer(0, Projection::Up),
            LoraSite::Layer(0, Projection::Down)
        ]
    );
}

#[test]
fn embedding_and_head() {
    let weights = load_tiny("llama", "embed").unwrap();
    let pair = &weights.pairs[&LoraSite::Embed];
    assert_eq!((pair.rank, pair.in_features, pair.out_features), (4, 384, 64));
    // Read with Python's struct from the file.
    assert_eq!(
        (pair.a[0], pair.a[4 * 384 - 1]),
        (0.319_169_998_168_945_3, 0.588_584_780_693_054_2)
    );

    let weights = load_tiny("llama", "lm_head").unwrap();
    let pair = &weights.pairs[&LoraSite::LmHead];
    assert_eq!((pair.rank, pair.in_features, pair.out_features), (4, 64, 384));

    let weights = load_tiny("llama", "modules_to_save").unwrap();
    let head = weights.lm_head.as_ref().unwrap();
    assert_eq!(head.len(), 384 * 64);
    assert_eq!(
        (head[0], head[384 * 64 - 1]),
        (-0.240_957_245_230_674_74, -0.298_782_646_656_036_4)
    );
    assert_eq!(weights.pairs.len(), 4);
    assert_eq!(weights.bytes(), 4 * (384 * 64 + 4 * (4 * 64 + 64 * 4)));
}

#[test]
fn a_fused_module_is_a_pair_for_each_part() {
    let weights = load_tiny("phi3", "b").unwrap();
    let of = |projection| &weights.pairs[&LoraSite::Layer(1, projection)];
    let (q, k, v) = (of(Projection::Q), of(Projection::K), of(Projection::V));
    assert_eq!((q.out_features, k.out_features, v.out_features), (64, 32, 32));
    assert!(q.a == k.a && k.a == v.a);
    // The first column of qkv_proj.lora_B [128, 8] at rows 0, 63, 64, 95, 96 and 127, read with Python's struct.
    assert_eq!((q.b[0], q.b[63 * 8]), (-0.053_710_937_5, -0.412_109_375));
    assert_eq!((k.b[0], k.b[31 * 8]), (-0.781_25, -0.287_109_375));
    assert_eq!((v.b[0], v.b[31 * 8]), (0.496_093_75, -0.279_296_875));
}

#[test]
fn what_is_not_plain_lora_is_refused_by_name() {
    assert!(refusal(load_tiny("llama", "dora")).contains("DoRA"));
    assert!(refusal(load_tiny("llama", "lora_bias")).contains("`lora_bias`"));
}

/// The examples were trained on SmolLM2-135M-Instruct; values were read with Python's struct.
#[test]
fn the_example_adapters_load() {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 576,
        "intermediate_size": 1536, "max_position_embeddings": 8192, "num_attention_heads": 9, "num_hidden_layers": 30,
        "num_key_value_heads": 3, "rms_norm_eps": 1e-5, "rope_theta": 100000, "tie_word_embeddings": true, "vocab_size": 49152,
    });
    let modules = ModelConfig::from_json(config.to_string().as_bytes())
        .unwrap()
        .modules();
    let load = |name: &str| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../examples/adapters")
            .join(name);
        let plan = Plan::new(name, &Files::Folder(folder), &modules, 512).unwrap();
        let bytes = plan.bytes();
        let weights = plan.read().unwrap();
        assert_eq!(weights.bytes(), bytes);
        weights
    };
    for (name, rank, scale, pairs) in [
        ("caps", 8, 2.0, 7 * 30),
        ("pirate", 16, 2.0, 7 * 30),
        ("json", 4, 1.0, 4 * 30),
        ("sentiment", 64, 2.0, 2 * 30),
    ] {
        let weights = load(name);
        assert_eq!(weights.pairs.len(), pairs, "{name}");
        assert!(
            weights
                .pairs
                .values()
                .all(|pair| (pair.rank, pair.scale) == (rank, scale)),
            "{name}"
        );
    }
    let json = load("json");
    let b = &json.pairs[&LoraSite::Layer(29, Projection::O)].b;
    assert_eq!((b[0], b[b.len() - 1]), (-0.010_925_292_968_75, 0.009_521_484_375));
    let a = &load("sentiment").pairs[&LoraSite::Layer(0, Projection::Q)].a;
    assert_eq!((a[0], a[a.len() - 1]), (0.008_422_851_562_5, 0.022_827_148_437_5));

    let robot = load("robot");
    assert_eq!(robot.pairs.len(), 2 * 20);
    for layer in 10..30 {
        let of = |projection| &robot.pairs[&LoraSite::Layer(layer, projection)];
        assert_eq!((of(Projection::O).rank, of(Projection::O).scale), (8, 2.0));
        assert_eq!((of(Projection::Down).rank, of(Projection::Down).scale), (4, 3.0));
    }
    let a = &robot.pairs[&LoraSite::Layer(10, Projection::Down)].a;
    assert_eq!(
        (a[0], a[a.len() - 1]),
        (0.001_165_390_014_648_437_5, -0.002_546_310_424_804_687_5)
    );
}

#[test]
fn an_adapter_of_another_model_is_refused() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/adapters/json");
    let reason = refusal(load("json", &Files::Folder(folder), &tiny("llama"), 64));
    assert!(
        reason.contains("[4, 576]") && reason.contains("[4, 64]"),
        "{reason}"
    );
    assert!(reason.contains("SmolLM2-135M-Instruct"), "{reason}");
}

#[test]
fn the_same_values_in_another_format_are_the_same_generation() {
    let made = Made::new();
    let first = load_made(&made).unwrap();
    let mut other = Made::new();
    for tensor in &mut other.tensors {
        tensor.dtype = Dtype::BF16;
    }
    other.config["lora_dropout"] = json!(0.5);
    other.config["target_modules"] = json!(["down_proj", "qkv_proj"]);
    assert_eq!(first, load_made(&other).unwrap());
    other.config["lora_alpha"] = json!(5);
    assert_ne!(first.generation, load_made(&other).unwrap().generation);
}

#[test]
fn copies_of_the_base_weights_are_only_checked() {
    let mut made = Made::new();
    made.config["target_modules"] = json!(["embed_tokens", "lm_head"]);
    made.tensors = vec![
        Tensor::new("model.embed_tokens.lora_embedding_A", [2, 6]),
        Tensor::new("model.embed_tokens.lora_embedding_B", [4, 2]),
        Tensor::new("model.embed_tokens.base_layer.weight", [6, 4]),
        Tensor::new("lm_head.lora_A.weight", [2, 4]),
        Tensor::new("lm_head.lora_B.weight", [6, 2]),
        Tensor::new("lm_head.base_layer.weight", [6, 4]),
    ];
    let weights = load_made(&made).unwrap();
    assert_eq!(
        weights.pairs.keys().copied().collect::<Vec<_>>(),
        [LoraSite::Embed, LoraSite::LmHead]
    );
    assert_eq!(weights.lm_head, None);
    made.tensors[2].shape = vec![7, 4];
    assert!(refusal(load_made(&made)).contains("another vocabulary"));
}

/// Each setting on a good adapter, and what the refusal must say.
#[test]
fn settings_that_are_refused() {
    let cases = [
        ("peft_type", json!("LOHA"), "LOHA"),
        ("peft_type", Value::Null, "peft_type"),
        ("use_dora", json!(true), "DoRA"),
        ("bias", json!("all"), "bias"),
        ("bias", json!("lora_only"), "bias"),
        ("lora_bias", json!(true), "lora_bias"),
        ("alora_invocation_tokens", json!([1, 2]), "aLoRA"),
        ("layer_replication", json!([[0, 2], [1, 2]]), "layer replication"),
        (
            "init_lora_weights",
            json!("pissa"),
            "path_initial_model_for_weight_conversion",
        ),
        (
            "init_lora_weights",
            json!("pissa_niter_16"),
            "path_initial_model_for_weight_conversion",
        ),
        ("init_lora_weights", json!("olora"), "changed base"),
        ("init_lora_weights", json!("corda"), "changed base"),
        ("init_lora_weights", json!("loftq"), "quantised"),
        ("init_lora_weights", json!("lora_ga"), "lora_ga"),
        ("trainable_token_indices", json!([5]), "trained tokens"),
        (
            "target_parameters",
            json!(["experts.gate_up_proj"]),
            "bare parameters",
        ),
        ("megatron_config", json!({"x": 1}), "Megatron"),
        ("use_qalora", json!(true), "QALoRA"),
        ("arrow_config", json!({"top_k": 2}), "Arrow"),
        ("ensure_weight_tying", json!(true), "ensure_weight_tying"),
        ("use_something_new", json!(true), "use_something_new"),
        ("something_new_config", json!({"a": 1}), "something_new_config"),
        ("modules_to_save", json!(["embed_tokens"]), "embed_tokens"),
        ("modules_to_save", json!(["lm_head"]), "1 tensor missing"),
        ("target_modules", Value::Null, "target_modules"),
        ("target_modules", json!([]), "target_modules"),
        ("target_modules", json!([1]), "target_modules"),
        ("target_modules", json!("(q_proj"), "target_modules"),
        ("target_modules", json!(["down_proj"]), "is not selected by"),
        (
            "target_modules",
            json!(["qkv_proj", "down_proj", "lm_head"]),
            "2 tensors missing",
        ),
        (
            "layers_to_transform",
            json!([0]),
            "`model.layers.1.mlp.down_proj` is not selected",
        ),
        ("layers_to_transform", json!("0"), "layers_to_transform"),
        ("exclude_modules", json!(["qkv_proj"]), "is not selected by"),
        ("r", json!(3), "ranks 2 and 2, the configuration says 3"),
        ("r", json!(0), "rank 0: ranks 1 to 8"),
        ("r", json!(9), "rank 9: ranks 1 to 8"),
        ("r", json!("2"), "`r` should be a whole number"),
        (
            "rank_pattern",
            json!({"down_proj": 1}),
            "the configuration says 1",
        ),
        ("rank_pattern", json!({"(down_proj": 1}), "rank_pattern"),
        (
            "alpha_pattern",
            json!({"down_proj": "x"}),
            "alpha_pattern.down_proj",
        ),
        ("lora_alpha", json!(1e300), "lora_alpha"),
    ];
    for (setting, value, says) in cases {
        let mut made = Made::new();
        made.config[setting] = value.clone();
        let reason = refusal(load_made(&made));
        assert!(reason.contains(says), "{setting} = {value}: {reason}");
    }
}

#[test]
fn settings_that_change_nothing_are_taken() {
    let good = load_made(&Made::new()).unwrap();
    let cases = [
        ("fan_in_fan_out", json!(true)),
        ("lora_dropout", json!(0.1)),
        ("init_lora_weights", json!("gaussian")),
        ("init_lora_weights", json!(false)),
        ("eva_config", json!({"rho": 2})),
        ("megatron_core", json!("megatron.core")),
        ("lora_alpha", json!(4.0)),
        ("some_new_size", json!(16)),
        ("some_new_flag", json!(false)),
        ("some_new_config", json!({})),
        ("target_modules", json!("all-linear")),
        ("modules_to_save", json!([])),
        ("layers_to_transform", json!([0, 1])),
    ];
    for (setting, value) in cases {
        let mut made = Made::new();
        made.config[setting] = value.clone();
        assert_eq!(load_made(&made).unwrap(), good, "{setting} = {value}");
    }
}

/// Each change to the tensors of a good adapter, and what the refusal must say.
#[test]
fn tensors_that_are_refused() {
    type Change = fn(&mut Vec<Tensor>);
    let cases: &[(Change, &str)] = &[
        (
            |tensors| tensors.push(Tensor::new("model.layers.0.mlp.gate.lora_A.weight", [2, 4])),
            "no such module",
        ),
        (
            |tensors| tensors.push(Tensor::new("model.layers.2.mlp.down_proj.lora_A.weight", [2, 6])),
            "layer 2, this model has 2",
        ),
        (
            |tensors| {
                tensors.push(Tensor::new(
                    "model.layers.0.mlp.down_proj.lora_magnitude_vector",
                    [4, 1],
                ))
            },
            "DoRA",
        ),
        (
            |tensors| tensors.push(Tensor::new("model.layers.0.mlp.down_proj.lora_B.bias", [4, 1])),
            "biases",
        ),
        (
            |tensors| {
                tensors.push(Tensor::new(
                    "model.layers.0.mlp.experts.0.w1.lora_A.weight",
                    [2, 4],
                ))
            },
            "experts",
        ),
        (
            |tensors| tensors.push(Tensor::new("lm_head.weight", [6, 4])),
            "save_embedding_layers",
        ),
        (
            |tensors| {
                tensors.push(Tensor::new(
                    "model.layers.0.mlp.down_proj.lora_A.default.weight",
                    [2, 6],
                ))
            },
            "not a tensor that LoRA has there",
        ),
        (
            |tensors| {
                tensors.push(Tensor {
                    name: "layers.0.q.lora_A.weight".to_owned(),
                    ..Tensor::new("", [2, 4])
                })
            },
            "begin with `base_model.model.`",
        ),
        (
            |tensors| drop(tensors.remove(0)),
            "1 tensor missing, such as `base_model.model.model.layers.0.self_attn.qkv_proj.lora_A.weight`",
        ),
        (|tensors| tensors.clear(), "8 tensors missing"),
        (|tensors| tensors[0].shape = vec![2, 5], "[2, 5]: expected [2, 4]"),
        (|tensors| tensors[1].shape = vec![7, 2], "[7, 2]: expected [8, 2]"),
        (|tensors| tensors[0].shape = vec![3, 4], "ranks 3 and 2"),
        (|tensors| tensors[0].shape = vec![8], "[8]"),
        (|tensors| tensors[0].dtype = Dtype::F64, "F64"),
        (|tensors| tensors[0].dtype = Dtype::I32, "I32"),
        (|tensors| tensors[3].special = Some(f32::NAN), "NaN at element 1"),
        (
            |tensors| tensors[3].special = Some(f32::INFINITY),
            "inf at element 1",
        ),
        (
            |tensors| (tensors[3].dtype, tensors[3].special) = (Dtype::F16, Some(f32::NEG_INFINITY)),
            "-inf at element 1",
        ),
        (
            |tensors| (tensors[3].dtype, tensors[3].special) = (Dtype::BF16, Some(f32::NAN)),
            "NaN at element 1",
        ),
    ];
    for (change, says) in cases {
        let mut made = Made::new();
        change(&mut made.tensors);
        let reason = refusal(load_made(&made));
        assert!(reason.contains(says), "expected {says:?}: {reason}");
    }
}

#[test]
fn files_that_are_refused() {
    let made = Made::new();
    let folder = made.write();
    let load = || load("x", &Files::Folder(folder.path().to_owned()), &modules(), 8);
    let weights = folder.path().join(WEIGHTS);
    let good = std::fs::read(&weights).unwrap();
    load().unwrap();

    for (bytes, says) in [
        (&good[..good.len() - 1], "incomplete"),
        (&good[..20], "its header would take"),
        (&good[..5], "it has 5 bytes"),
        (&[0xff; 64][..], "its header would take"),
        (&[&good[..], b"x"].concat()[..], "incomplete"),
    ] {
        std::fs::write(&weights, bytes).unwrap();
        let reason = refusal(load());
        assert!(reason.contains(says), "{reason}");
    }
    std::fs::remove_file(&weights).unwrap();
    assert!(refusal(load()).contains("there is no adapter_model.safetensors"));
    std::fs::write(folder.path().join("adapter_model.bin"), b"").unwrap();
    assert!(refusal(load()).contains("pickle"));
    std::fs::write(folder.path().join("adapter_config.json"), b"[1]").unwrap();
    assert!(refusal(load()).contains("no JSON object"));
    std::fs::write(folder.path().join("adapter_config.json"), b"{").unwrap();
    assert!(refusal(load()).contains("not JSON"));
    std::fs::remove_file(folder.path().join("adapter_config.json")).unwrap();
    assert!(refusal(load()).contains("there is no adapter_config.json"));
    let gguf = super::load("x", &Files::Gguf("x.gguf".into()), &modules(), 8);
    assert!(refusal(gguf).contains("GGUF"));
}

#[test]
fn adapters_in_the_binary_load() {
    static FILES: &[(&str, &[u8])] = &[
        (
            "adapter_config.json",
            include_bytes!("../../../assets/pocket/adapters/caps/adapter_config.json"),
        ),
        (
            WEIGHTS,
            include_bytes!("../../../assets/pocket/adapters/caps/adapter_model.safetensors"),
        ),
    ];
    let config = include_bytes!("../../../assets/pocket/config.json");
    let modules = ModelConfig::from_json(config).unwrap().modules();
    let embedded = Files::Embedded(crate::hub::EmbeddedFiles {
        name: "caps",
        files: FILES,
    });
    let weights = load("caps", &embedded, &modules, 64).unwrap();
    assert_eq!(weights.pairs.len(), 5 * 7);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/pocket/adapters/caps");
    assert_eq!(
        weights,
        load("caps", &Files::Folder(folder), &modules, 64).unwrap()
    );
}
