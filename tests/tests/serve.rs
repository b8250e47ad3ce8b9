//! `heddle serve pocket` as a client sees it: the OpenAI routes, their errors, and the routes of the host.
//!
//! Texts come from `engine/tests/fixtures/goldens/pocket.json`, which transformers and peft wrote: greedy decoding, with
//! a wide gap between the best token and the next on the whole path.

use heddle_tests::Server;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// The prompt of the golden.
const QUESTION: &str = "What is the capital of Sweden?";
const BASE_ANSWER: &str = "The capital of Sweden is Stockholm.";
const JSON_ANSWER: &str = r#"{"answer": "The capital of Sweden is Stockholm."}"#;
/// Tokens of the golden: its prompt, and the answer with its end-of-sequence token.
const PROMPT_TOKENS: u64 = 18;
const ANSWER_TOKENS: u64 = 16;

/// The prompt as the chat template renders it.
const RENDERED: &str = "<|im_start|>user\nWhat is the capital of Sweden?<|im_end|>\n<|im_start|>assistant\n";

/// A greedy chat request with further fields.
fn chat(fields: Value) -> Value {
    with(
        json!({
            "model": "pocket",
            "messages": [{"role": "user", "content": QUESTION}],
            "temperature": 0,
        }),
        fields,
    )
}

/// A greedy completion request with further fields.
fn completion(fields: Value) -> Value {
    with(
        json!({"model": "pocket", "prompt": RENDERED, "temperature": 0, "max_tokens": 32}),
        fields,
    )
}

fn with(mut request: Value, fields: Value) -> Value {
    let request_fields = request.as_object_mut().expect("a field");
    for (name, value) in fields.as_object().expect("a field") {
        request_fields.insert(name.clone(), value.clone());
    }
    request
}

/// The text of a choice of a chat stream.
fn delta_text(events: &[Value], choice: u64) -> String {
    events
        .iter()
        .flat_map(|event| event["choices"].as_array().into_iter().flatten())
        .filter(|found| found["index"] == choice)
        .filter_map(|found| found["delta"]["content"].as_str())
        .collect()
}

/// How a choice of a stream ended.
fn finish_reason(events: &[Value], choice: u64) -> Option<String> {
    events
        .iter()
        .flat_map(|event| event["choices"].as_array().into_iter().flatten())
        .filter(|found| found["index"] == choice)
        .find_map(|found| found["finish_reason"].as_str().map(str::to_owned))
}

#[test]
fn the_hosts_own_routes_tell_how_it_is() {
    let server = Server::shared();
    let health = server.get("/health").success();
    assert_eq!(health["status"], "ok");
    assert!(health["kv_blocks"].as_u64().unwrap() > 0);
    assert_eq!(server.get("/ready").success()["status"], "ok");
    assert_eq!(server.get("/version").success()["model"], "pocket");

    server.post(CHAT, &chat(json!({}))).success();
    let metrics = server.get("/metrics");
    assert_eq!(metrics.status, 200);
    for name in [
        "heddle_requests_total{route=\"/v1/chat/completions\",status=\"200\"}",
        "heddle_generated_tokens_total",
        "heddle_plugin_calls_total{slot=\"openai\",call=\"parse\",outcome=\"ok\"}",
        "heddle_plugin_calls_total{slot=\"auth\",call=\"authorize\",outcome=\"ok\"}",
        "heddle_kv_blocks ",
        "vllm:num_requests_waiting ",
    ] {
        assert!(metrics.text.contains(name), "{name} in:\n{}", metrics.text);
    }

    let wrong = server.post("/health", &json!({}));
    assert_eq!((wrong.status, wrong.header("allow")), (405, "GET, HEAD"));
}

#[test]
fn models_are_the_base_and_its_adapters() {
    let list = Server::shared().get("/v1/models").success();
    let models = list["data"].as_array().unwrap();
    let ids: Vec<_> = models.iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["pocket", "caps", "json", "pirate"]);
    assert_eq!(models[1]["parent"], "pocket");
}

#[test]
fn a_chat_is_answered_as_transformers_would() {
    let answer = Server::shared().post(CHAT, &chat(json!({})));
    let document = answer.success();
    assert_eq!(document["choices"][0]["message"]["content"], BASE_ANSWER);
    assert_eq!(document["choices"][0]["finish_reason"], "stop");
    assert_eq!(document["model"], "pocket");
    assert_eq!(document["object"], "chat.completion");
    assert!(document["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert!(document["created"].as_u64().unwrap() > 1_700_000_000);
    assert_eq!(document["usage"]["prompt_tokens"], PROMPT_TOKENS);
    assert_eq!(document["usage"]["completion_tokens"], ANSWER_TOKENS);
    assert_eq!(document["usage"]["total_tokens"], PROMPT_TOKENS + ANSWER_TOKENS);
    assert_eq!(answer.header("x-model-id"), "pocket");
    assert_eq!(answer.header("x-heddle-pipeline"), "1");
}

#[test]
fn a_chat_stream_says_the_same_piece_by_piece() {
    let server = Server::shared();
    let request = chat(json!({"stream": true, "stream_options": {"include_usage": true}}));
    let events = server.stream(CHAT, &request).all();
    assert_eq!(delta_text(&events, 0), BASE_ANSWER);
    assert_eq!(finish_reason(&events, 0).as_deref(), Some("stop"));
    assert_eq!(events[0]["object"], "chat.completion.chunk");
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    let ids: std::collections::BTreeSet<_> = events.iter().map(|event| event["id"].to_string()).collect();
    assert_eq!(ids.len(), 1, "one id for all: {ids:?}");
    let last = events.last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["prompt_tokens"], PROMPT_TOKENS);
    assert_eq!(last["usage"]["completion_tokens"], ANSWER_TOKENS);

    let events = server.stream(CHAT, &chat(json!({"stream": true}))).all();
    assert!(
        events.iter().all(|event| event["usage"].is_null()),
        "no usage unless it is asked for"
    );
}

#[test]
fn a_completion_continues_its_prompt() {
    let server = Server::shared();
    let document = server.post(COMPLETIONS, &completion(json!({}))).success();
    assert_eq!(document["choices"][0]["text"], BASE_ANSWER);
    assert_eq!(document["object"], "text_completion");
    assert_eq!(document["usage"]["prompt_tokens"], PROMPT_TOKENS);

    let events = server
        .stream(COMPLETIONS, &completion(json!({"stream": true})))
        .all();
    let text: String = events
        .iter()
        .filter_map(|event| event["choices"][0]["text"].as_str())
        .collect();
    assert_eq!(text, BASE_ANSWER);

    let short = server
        .post(COMPLETIONS, &completion(json!({"max_tokens": 3})))
        .success();
    assert_eq!(short["choices"][0]["finish_reason"], "length");
    assert_eq!(short["usage"]["completion_tokens"], 3);
}

#[test]
fn prompts_come_as_text_texts_tokens_and_lists_of_tokens() {
    let server = Server::shared();
    // The ids of the golden's prompt.
    let ids = [
        1, 286, 201, 343, 329, 274, 430, 326, 350, 89, 290, 312, 33, 2, 201, 1, 285, 201,
    ];
    for (prompt, choices) in [
        (json!(RENDERED), 1),
        (json!([RENDERED, RENDERED]), 2),
        (json!(ids), 1),
        (json!([ids, ids, ids]), 3),
    ] {
        let document = server
            .post(COMPLETIONS, &completion(json!({"prompt": prompt})))
            .success();
        let found = document["choices"].as_array().unwrap();
        assert_eq!(found.len(), choices);
        for (index, choice) in found.iter().enumerate() {
            assert_eq!(choice["index"], index);
            assert_eq!(choice["text"], BASE_ANSWER, "{prompt}");
        }
        assert_eq!(document["usage"]["prompt_tokens"], PROMPT_TOKENS * choices as u64);
        assert_eq!(
            document["usage"]["completion_tokens"],
            ANSWER_TOKENS * choices as u64
        );
    }
}

#[test]
fn n_choices_are_drawn_apart_and_counted_together() {
    let server = Server::shared();
    let request = chat(json!({"n": 3, "temperature": 1.5, "seed": 7, "max_tokens": 12}));
    let document = server.post(CHAT, &request).success();
    let texts: Vec<_> = document["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| choice["message"]["content"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(texts.len(), 3);
    assert!(texts[0] != texts[1] || texts[1] != texts[2], "{texts:?}");
    assert_eq!(
        document["usage"]["prompt_tokens"], PROMPT_TOKENS,
        "the prompt counts once"
    );

    let again = with(request, json!({"stream": true}));
    let events = server.stream(CHAT, &again).all();
    for (choice, text) in (0..).zip(&texts) {
        assert_eq!(&delta_text(&events, choice), text, "the same seed, streamed");
    }
}

#[test]
fn the_best_of_several_is_returned() {
    let server = Server::shared();
    let request = completion(json!({"best_of": 3, "n": 1, "temperature": 1.5, "seed": 3, "max_tokens": 8}));
    let document = server.post(COMPLETIONS, &request).success();
    assert_eq!(document["choices"].as_array().unwrap().len(), 1);
    assert!(
        document["choices"][0]["logprobs"].is_null(),
        "they were for the host's own use"
    );
    let generated = document["usage"]["completion_tokens"].as_u64().unwrap();
    assert!(generated > 8, "all that was generated counts: {generated}");

    let streamed = server.post(COMPLETIONS, &with(request, json!({"stream": true})));
    assert_eq!(streamed.status, 422);
    assert_eq!(streamed.json()["error"]["param"], "best_of");
}

#[test]
fn a_stop_sequence_ends_the_text_before_itself() {
    let server = Server::shared();
    for stop in [json!(" is"), json!([" is"]), json!(["never", " is", "Stock"])] {
        let document = server.post(CHAT, &chat(json!({"stop": stop}))).success();
        let choice = &document["choices"][0];
        assert_eq!(choice["message"]["content"], "The capital of Sweden", "{stop}");
        assert_eq!(choice["finish_reason"], "stop");
        let counted = document["usage"]["completion_tokens"].as_u64().unwrap();
        assert!(counted < ANSWER_TOKENS, "{counted} tokens up to the stop");

        let events = server
            .stream(CHAT, &chat(json!({"stop": stop, "stream": true})))
            .all();
        assert_eq!(delta_text(&events, 0), "The capital of Sweden");
        assert_eq!(finish_reason(&events, 0).as_deref(), Some("stop"));
    }
    // Begins inside a token and ends inside another; and what only looks like a beginning is given back.
    let document = server.post(CHAT, &chat(json!({"stop": "eden is St"}))).success();
    assert_eq!(document["choices"][0]["message"]["content"], "The capital of Sw");
    let document = server.post(CHAT, &chat(json!({"stop": "Stockholm.!"}))).success();
    assert_eq!(document["choices"][0]["message"]["content"], BASE_ANSWER);
    let document = server.post(CHAT, &chat(json!({"stop": null}))).success();
    assert_eq!(document["choices"][0]["message"]["content"], BASE_ANSWER);
}

#[test]
fn log_probabilities_come_in_openais_shapes() {
    let server = Server::shared();
    let request = chat(json!({"logprobs": true, "top_logprobs": 2, "max_tokens": 4}));
    let document = server.post(CHAT, &request).success();
    let content = document["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 4);
    let text: String = content
        .iter()
        .map(|token| token["token"].as_str().unwrap())
        .collect();
    assert_eq!(document["choices"][0]["message"]["content"], text.as_str());
    for token in content {
        assert!(token["logprob"].as_f64().unwrap() <= 0.0);
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 2);
        assert_eq!(top[0]["token"], token["token"], "greedy takes the likeliest");
    }

    let request = completion(json!({"logprobs": 1, "max_tokens": 4}));
    let document = server.post(COMPLETIONS, &request).success();
    let logprobs = &document["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"].as_array().unwrap().len(), 4);
    // The golden's first one: `The`, after which ` capital` is all but certain.
    assert!(
        logprobs["token_logprobs"][1].as_f64().unwrap() > -0.1,
        "{logprobs}"
    );
    assert_eq!(logprobs["text_offset"][0], 0);

    let events = server
        .stream(
            CHAT,
            &chat(json!({"logprobs": true, "stream": true, "max_tokens": 4})),
        )
        .all();
    let streamed: Vec<_> = events
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .collect();
    assert_eq!(streamed.len(), 4);
}

#[test]
fn an_echo_stands_before_the_text() {
    let server = Server::shared();
    let document = server
        .post(COMPLETIONS, &completion(json!({"echo": true})))
        .success();
    assert_eq!(document["choices"][0]["text"], format!("{RENDERED}{BASE_ANSWER}"));

    let events = server
        .stream(COMPLETIONS, &completion(json!({"echo": true, "stream": true})))
        .all();
    let text: String = events
        .iter()
        .filter_map(|event| event["choices"][0]["text"].as_str())
        .collect();
    assert_eq!(text, format!("{RENDERED}{BASE_ANSWER}"));
}

#[test]
fn an_adapter_answers_by_its_name() {
    let server = Server::shared();
    let answer = server.post(CHAT, &chat(json!({"model": "json"})));
    let document = answer.success();
    assert_eq!(document["choices"][0]["message"]["content"], JSON_ANSWER);
    assert_eq!(document["model"], "json");
    assert_eq!(answer.header("x-model-id"), "pocket");
    assert_eq!(answer.header("x-adapter-id"), "json");

    let document = server.post(CHAT, &chat(json!({"model": "caps"}))).success();
    let text = document["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(text, text.to_uppercase());
    assert_ne!(text, text.to_lowercase());

    let document = server.post(CHAT, &chat(json!({"model": ""}))).success();
    assert_eq!(
        document["choices"][0]["message"]["content"], BASE_ANSWER,
        "none is the base model"
    );
}

#[test]
fn different_adapters_at_once_answer_as_they_would_alone() {
    let server = Server::shared();
    let answers: Vec<(String, String)> = std::thread::scope(|scope| {
        let asked: Vec<_> = ["pocket", "json", "pocket", "json", "pocket", "json"]
            .map(|model| {
                let server = &server;
                scope.spawn(move || {
                    let events = server
                        .stream(CHAT, &chat(json!({"model": model, "stream": true})))
                        .all();
                    (model.to_owned(), delta_text(&events, 0))
                })
            })
            .into_iter()
            .collect();
        asked.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (model, text) in answers {
        let right = if model == "json" { JSON_ANSWER } else { BASE_ANSWER };
        assert_eq!(text, right, "{model}");
    }
}

#[test]
fn a_fault_of_the_request_has_a_status_and_a_place() {
    let server = Server::shared();
    for (request, status, code, param) in [
        (chat(json!({"model": "nobody"})), 404, "model_not_found", "model"),
        (chat(json!({"temperature": -1})), 422, "", "temperature"),
        (chat(json!({"top_p": 2})), 422, "", "top_p"),
        (chat(json!({"n": 0})), 422, "", "n"),
        (chat(json!({"n": 1000})), 422, "", "n"),
        (chat(json!({"max_tokens": "many"})), 422, "", "max_tokens"),
        (chat(json!({"messages": []})), 422, "", "messages"),
    ] {
        for stream in [false, true] {
            let answer = server.post(CHAT, &with(request.clone(), json!({"stream": stream})));
            assert_eq!(answer.status, status, "{request}: {}", answer.text);
            assert_eq!(answer.header("content-type"), "application/json");
            let error = &answer.json()["error"];
            assert!(!error["message"].as_str().unwrap().is_empty(), "{error}");
            assert_eq!(error["param"], param, "{error}");
            if !code.is_empty() {
                assert_eq!(error["code"], code, "{error}");
            }
        }
    }
    let long = chat(json!({"messages": [{"role": "user", "content": "tea ".repeat(2000)}]}));
    let answer = server.post(CHAT, &long);
    assert_eq!(answer.status, 422);
    assert_eq!(answer.json()["error"]["code"], "context_length_exceeded");

    let broken = server.request("POST", CHAT).body("{\"model\": ").send().unwrap();
    assert_eq!(broken.status(), 400);
    let error: Value = broken.json().unwrap();
    assert!(error["error"]["message"].is_string(), "{error}");
}

#[test]
fn routes_that_are_nobodys_are_told_apart() {
    let server = Server::shared();
    let unknown = server.get("/v1/nothing");
    assert_eq!(unknown.status, 404);
    assert!(unknown.json()["error"]["message"].is_string(), "{}", unknown.text);
    let wrong = server.get(CHAT);
    assert_eq!((wrong.status, wrong.header("allow")), (405, "POST"));
    assert!(wrong.json()["error"]["message"].is_string(), "{}", wrong.text);
}

#[test]
fn a_request_id_goes_through_or_is_made() {
    let server = Server::shared();
    let id = |sent: &str| {
        let answer = server
            .request("GET", "/v1/models")
            .header("x-request-id", sent)
            .send()
            .unwrap();
        answer.headers()["x-request-id"].to_str().unwrap().to_owned()
    };
    assert_eq!(id("trace-42"), "trace-42");
    assert_ne!(id("not plain"), "not plain");
}
