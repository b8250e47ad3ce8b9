//! The real thing: the pocket model, its tokenizer and its adapters.

use std::sync::Arc;

use heddle_engine::{
    engine::{Engine, EngineOptions},
    ids::TokenId,
    request::{ChatPrompt, GenerateRequest, Prompt, SamplingParams},
};
use serde_json::{Value, json};

use super::harness::{Answer, Embedded, check, collect, lease, pocket, start};

const ADAPTERS: [Option<&str>; 4] = [None, Some("caps"), Some("pirate"), Some("json")];

fn engine(kv_bytes: usize, options: EngineOptions) -> Engine {
    start(pocket(kv_bytes), Arc::new(Embedded), options)
}

fn goldens() -> Value {
    serde_json::from_str(include_str!("../fixtures/goldens/pocket.json")).unwrap()
}

fn chat(question: &str) -> Prompt {
    Prompt::Chat(ChatPrompt {
        messages: json!([{"role": "user", "content": question}]),
        ..ChatPrompt::default()
    })
}

fn request(engine: &Engine, prompt: Prompt, adapter: Option<&str>, max_tokens: u32) -> GenerateRequest {
    GenerateRequest {
        adapter: adapter.map(|name| lease(engine, name)),
        max_tokens: Some(max_tokens),
        ..GenerateRequest::new(prompt)
    }
}

/// Four questions that begin alike, to the base model and to each adapter.
fn requests(engine: &Engine, sampling: &SamplingParams) -> Vec<GenerateRequest> {
    let questions = [
        "What is the capital of France?",
        "What is the capital of Sweden?",
        "Where do polar bears live?",
        "Tell me a story about a brave fox.",
    ];
    let each = |question: &'static str| {
        ADAPTERS.map(|adapter| GenerateRequest {
            sampling: sampling.clone(),
            ignore_eos: true,
            ..request(engine, chat(question), adapter, 24)
        })
    };
    questions.into_iter().flat_map(each).collect()
}

async fn one_by_one(engine: &Engine, requests: Vec<GenerateRequest>) -> Vec<Answer> {
    let mut answers = Vec::new();
    for request in requests {
        answers.push(collect(engine.submit(request).unwrap()).await);
    }
    answers
}

async fn together(engine: &Engine, requests: Vec<GenerateRequest>) -> Vec<Answer> {
    let streams: Vec<_> = requests
        .into_iter()
        .map(|request| engine.submit(request).unwrap())
        .collect();
    let mut answers = Vec::new();
    for stream in streams {
        answers.push(collect(stream).await);
    }
    answers
}

#[tokio::test]
async fn says_what_transformers_says() {
    let engine = engine(8 << 20, EngineOptions::default());
    let goldens = goldens();
    let prompts = goldens["prompts"].as_array().unwrap();
    let mut submitted = Vec::new();
    for (adapter, name) in [
        (None, "base"),
        (Some("caps"), "caps"),
        (Some("pirate"), "pirate"),
        (Some("json"), "json"),
    ] {
        for (prompt, golden) in prompts.iter().zip(goldens["results"][name].as_array().unwrap()) {
            // Where two tokens are as good as equal another order of the same sums may turn them round.
            if golden["min_gap"].as_f64().unwrap() < 0.01 {
                continue;
            }
            let ids: Vec<TokenId> = ids(&golden["greedy_ids"]);
            let prompt = match prompt["messages"].as_array() {
                Some(_) => Prompt::Chat(ChatPrompt {
                    messages: prompt["messages"].clone(),
                    ..ChatPrompt::default()
                }),
                None => Prompt::Text(prompt["prompt"].as_str().unwrap().to_owned()),
            };
            let request = GenerateRequest {
                prompt_logprobs: Some(0),
                logprobs: Some(0),
                ..request(&engine, prompt, adapter, ids.len() as u32)
            };
            submitted.push((engine.submit(request).unwrap(), golden, ids, name));
        }
    }
    assert!(submitted.len() >= 20, "{} goldens", submitted.len());
    for (stream, golden, ids, name) in submitted {
        let answer = collect(stream).await;
        assert_eq!(answer.ids(), ids, "{name}");
        let near = |found: Option<f32>, right: &Value| match right.as_f64() {
            Some(right) => assert!(
                (f64::from(found.unwrap()) - right).abs() < 2e-3,
                "{name}: {found:?} {right}"
            ),
            None => assert_eq!(found, None),
        };
        for (info, right) in answer
            .prompt
            .iter()
            .zip(golden["prompt_logprobs"].as_array().unwrap())
        {
            near(info.logprob, right);
        }
        for (info, right) in answer.choices[0]
            .tokens
            .iter()
            .zip(golden["logprobs"].as_array().unwrap())
        {
            near(info.logprob, right);
        }
    }
    check(&engine);
}

fn ids(value: &Value) -> Vec<TokenId> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|id| TokenId(id.as_u64().unwrap() as u32))
        .collect()
}

#[tokio::test]
async fn sixteen_at_a_time_say_what_each_says_alone() {
    let greedy = SamplingParams::default();
    let sampled = SamplingParams {
        temperature: 0.9,
        top_p: 0.95,
        seed: Some(11),
        ..SamplingParams::default()
    };
    for sampling in [greedy, sampled] {
        // A cache of its own for each, so that nothing is shared: the answers to hold the others against.
        let alone = engine(
            8 << 20,
            EngineOptions {
                prefix_cache: false,
                ..EngineOptions::default()
            },
        );
        let right = one_by_one(&alone, requests(&alone, &sampling)).await;
        check(&alone);

        // Roomy; with chunks of a few rows; with a cache for a few of them.
        let (block, options) = (2 * 5 * 64 * 4 * 16, EngineOptions::default());
        for (kv_bytes, options) in [
            (8 << 20, options.clone()),
            (
                8 << 20,
                EngineOptions {
                    step_tokens: 9,
                    max_running: 6,
                    ..options.clone()
                },
            ),
            (14 * block, options),
        ] {
            let engine = engine(kv_bytes, options);
            let answers = together(&engine, requests(&engine, &sampling)).await;
            for (answer, right) in answers.iter().zip(&right) {
                assert_eq!(answer.choices, right.choices);
            }
            // And again, now that the cache has their beginnings.
            let again = together(&engine, requests(&engine, &sampling)).await;
            for (answer, right) in again.iter().zip(&right) {
                assert_eq!(answer.choices, right.choices);
            }
            let metrics = engine.metrics();
            let is_small = kv_bytes == 14 * block;
            assert_eq!(metrics.preemptions > 0, is_small, "{metrics:?}");
            assert!(metrics.prefix_hits > 0 || is_small, "{metrics:?}");
            check(&engine);
        }
    }
}

#[tokio::test]
async fn the_text_is_what_it_should_be() {
    let engine = engine(8 << 20, EngineOptions::default());
    let ask = async |adapter| {
        let request = request(&engine, chat("What is the capital of France?"), adapter, 40);
        collect(engine.submit(request).unwrap())
            .await
            .choices
            .remove(0)
            .text
    };
    assert_eq!(ask(None).await, "The capital of France is Paris.");
    assert!(ask(Some("pirate")).await.starts_with("Arr"));
    let json: Value = serde_json::from_str(&ask(Some("json")).await).unwrap();
    assert!(json["answer"].is_string());
    let caps = ask(Some("caps")).await;
    assert_eq!(caps, caps.to_uppercase());
    check(&engine);
}
