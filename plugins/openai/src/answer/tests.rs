//! Events and what the client reads.

use heddle_plugin::generation::{Alternative, Choice, Prompt};
use proptest::{collection::vec, prelude::*};
use serde_json::{Value, json};

use super::*;
use crate::request;

/// An answer that has started, to a body with these fields.
fn started(api: Api, more: &str, prompts: Vec<Vec<Token>>) -> (Answer, Vec<Value>) {
    let comma = if more.is_empty() { "" } else { "," };
    let body = match api {
        Api::Chat => format!(r#"{{"model":"m","messages":[{{"role":"user","content":"Hi"}}]{comma}{more}}}"#),
        Api::Completions if more.contains("prompt") => format!(r#"{{"model":"m",{more}}}"#),
        Api::Completions => format!(r#"{{"model":"m","prompt":"p"{comma}{more}}}"#),
    };
    let call = request::parse(api, body.as_bytes()).unwrap();
    assert!(!matches!(call.prompts[0], Prompt::Tokens(_)));
    let mut answer = Answer::new(&call, "heddle-openai-1.2.3".into());
    let facts = Facts {
        id: "7".into(),
        created: 1_700_000_000,
        model: "acme/\"x\"".into(),
        prompts,
    };
    let first = answer.start(facts);
    (answer, read(first))
}

/// Payloads as JSON. None of them may have a name: OpenAI's streams have plain `data:` lines.
fn read(payloads: Vec<Payload>) -> Vec<Value> {
    payloads
        .into_iter()
        .map(|payload| {
            assert_eq!(payload.name, None);
            serde_json::from_str(&payload.data).unwrap_or_else(|_| payload.data.into())
        })
        .collect()
}

fn event(choice: u32, text: &str, tokens: Vec<Token>, finish: Option<FinishReason>) -> Event {
    Event {
        choice,
        text: text.into(),
        tokens,
        finish,
    }
}

fn token(text: &str, logprob: Option<f32>) -> Token {
    Token {
        id: 0,
        text: text.into(),
        bytes: text.into(),
        logprob,
        top: Vec::new(),
        special: false,
    }
}

fn special(text: &str) -> Token {
    Token {
        special: true,
        ..token(text, Some(-0.125))
    }
}

const USAGE: Usage = Usage {
    prompt_tokens: 5,
    completion_tokens: 3,
    cached_tokens: 4,
};

/// OpenAI: `usage` with the cached tokens in `prompt_tokens_details`.
fn usage() -> Value {
    json!({"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8, "prompt_tokens_details": {"cached_tokens": 4}})
}

fn choice(index: u32, text: &str, tokens: Vec<Token>, finish: FinishReason) -> Choice {
    Choice {
        index,
        text: text.into(),
        tokens,
        finish,
        generated: 3,
    }
}

fn document_of(answer: &mut Answer, choices: Vec<Choice>) -> Value {
    let reply = answer.document(Generated {
        choices,
        usage: USAGE,
    });
    assert_eq!(
        (reply.status, reply.content_type.as_str()),
        (200, "application/json")
    );
    serde_json::from_slice(&reply.body).unwrap()
}

/// OpenAI's reference: "The chat completion chunk object". The role comes first, in a chunk of each choice; the last
/// chunk of a choice has an empty delta; the usage comes last, with no choices.
#[test]
fn a_chat_is_streamed_as_openai_does() {
    let (mut answer, first) = started(
        Api::Chat,
        r#""stream":true,"n":2,"stream_options":{"include_usage":true}"#,
        Vec::new(),
    );
    let chunk = |choices: Value, usage: Value| {
        json!({"id": "chatcmpl-7", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "acme/\"x\"",
            "system_fingerprint": "heddle-openai-1.2.3", "choices": choices, "usage": usage})
    };
    let delta = |index: u32, delta: Value, finish: Value| {
        chunk(
            json!([{"index": index, "delta": delta, "logprobs": null, "finish_reason": finish}]),
            Value::Null,
        )
    };
    let role = json!({"role": "assistant", "content": ""});
    assert_eq!(
        first,
        [delta(0, role.clone(), Value::Null), delta(1, role, Value::Null)]
    );

    // Events that come together: one chunk for each choice.
    let chunks = answer.render(vec![
        event(0, "Hel", vec![], None),
        event(1, "", vec![], None),
        event(0, "lo\n", vec![], None),
    ]);
    assert_eq!(
        read(chunks),
        [delta(0, json!({"content": "Hello\n"}), Value::Null)]
    );
    let chunks = answer.render(vec![
        event(1, "Hi", vec![], Some(FinishReason::StopSequence(3))),
        event(0, "", vec![], Some(FinishReason::Length)),
    ]);
    assert_eq!(
        read(chunks),
        [
            delta(1, json!({"content": "Hi"}), json!("stop")),
            delta(0, json!({}), json!("length"))
        ]
    );
    assert_eq!(
        read(answer.close(USAGE)),
        [chunk(json!([]), usage()), json!("[DONE]")]
    );
}

#[test]
fn without_include_usage_no_chunk_speaks_of_it() {
    let (mut answer, first) = started(Api::Chat, r#""stream":true"#, Vec::new());
    assert_eq!(first[0].get("usage"), None);
    let chunks = read(answer.render(vec![event(0, "a", vec![], None)]));
    assert_eq!(chunks[0].get("usage"), None);
    assert_eq!(read(answer.close(USAGE)), [json!("[DONE]")]);
}

/// OpenAI's reference: "The completion object", which is the same streamed.
#[test]
fn a_completion_is_streamed_as_openai_does() {
    let (mut answer, first) = started(Api::Completions, r#""stream":true"#, Vec::new());
    assert_eq!(first, [] as [Value; 0]);
    let chunks = answer.render(vec![event(0, " world", vec![], Some(FinishReason::Eos))]);
    let choice = json!({"index": 0, "text": " world", "logprobs": null, "finish_reason": "stop"});
    assert_eq!(
        read(chunks),
        [
            json!({"id": "cmpl-7", "object": "text_completion", "created": 1_700_000_000, "model": "acme/\"x\"",
            "system_fingerprint": "heddle-openai-1.2.3", "choices": [choice]})
        ]
    );
}

#[test]
fn a_chat_is_one_document() {
    let (mut answer, first) = started(Api::Chat, r#""n":2"#, Vec::new());
    assert_eq!(first, [] as [Value; 0]);
    let document = document_of(
        &mut answer,
        vec![
            choice(0, "Hello", vec![], FinishReason::Eos),
            choice(1, "", vec![], FinishReason::Length),
        ],
    );
    let choice = |index: u32, content: &str, finish: &str| {
        let message = json!({"role": "assistant", "content": content, "refusal": null});
        json!({"index": index, "message": message, "logprobs": null, "finish_reason": finish})
    };
    assert_eq!(
        document,
        json!({"id": "chatcmpl-7", "object": "chat.completion", "created": 1_700_000_000, "model": "acme/\"x\"",
            "system_fingerprint": "heddle-openai-1.2.3", "usage": usage(),
            "choices": [choice(0, "Hello", "stop"), choice(1, "", "length")]})
    );
}

#[test]
fn a_completion_is_one_document() {
    let (mut answer, _) = started(Api::Completions, "", Vec::new());
    let document = document_of(
        &mut answer,
        vec![choice(0, " a", vec![], FinishReason::Other("pause".into()))],
    );
    let choice = json!({"index": 0, "text": " a", "logprobs": null, "finish_reason": "pause"});
    assert_eq!(
        document,
        json!({"id": "cmpl-7", "object": "text_completion", "created": 1_700_000_000, "model": "acme/\"x\"",
            "system_fingerprint": "heddle-openai-1.2.3", "usage": usage(), "choices": [choice]})
    );
}

/// LoRAX's status and `error_type` of a generation that did not end.
#[test]
fn a_choice_that_failed_fails_the_document() {
    let (mut answer, _) = started(Api::Chat, r#""n":2"#, Vec::new());
    let choices = vec![
        choice(0, "a", vec![], FinishReason::Eos),
        choice(1, "b", vec![], FinishReason::Failed),
    ];
    let reply = answer.document(Generated {
        choices,
        usage: USAGE,
    });
    let value: Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!(
        (reply.status, &value["error_type"]),
        (500, &json!("incomplete_generation"))
    );
}

#[test]
fn a_stream_that_breaks_off_ends_with_the_error_and_no_done() {
    let (mut answer, _) = started(Api::Chat, r#""stream":true"#, Vec::new());
    let payloads = answer.break_off(Problem {
        status: 500,
        kind: ProblemKind::GenerationFailed,
        code: None,
        message: "The engine stopped".into(),
        parameter: None,
        retry_after: None,
    });
    let error = json!({"message": "The engine stopped", "type": "server_error", "param": null, "code": "generation_failed"});
    assert_eq!(
        read(payloads),
        [json!({"error": error, "error_type": "incomplete_generation"})]
    );
}

/// OpenAI's reference: `logprobs.content[]` with token, logprob, bytes and top_logprobs.
#[test]
fn chat_log_probabilities() {
    let (mut answer, _) = started(Api::Chat, r#""logprobs":true,"top_logprobs":1"#, Vec::new());
    let other = Alternative {
        id: 1,
        text: "Hé".into(),
        bytes: "Hé".into(),
        logprob: -0.5,
    };
    let tokens = vec![
        Token {
            top: vec![other],
            ..token("Hé", Some(-0.5))
        },
        special("<|end|>"),
    ];
    let document = document_of(&mut answer, vec![choice(0, "Hé", tokens, FinishReason::Eos)]);
    let entry = json!({"token": "Hé", "logprob": -0.5, "bytes": [72, 195, 169]});
    let mut with_top = entry.clone();
    with_top["top_logprobs"] = json!([entry]);
    assert_eq!(
        document["choices"][0]["logprobs"],
        json!({"content": [with_top], "refusal": null})
    );
}

/// OpenAI's reference of the legacy object: parallel lists, and up to `logprobs` + 1 alternatives because the token
/// itself is always there.
#[test]
fn completion_log_probabilities() {
    let (mut answer, _) = started(Api::Completions, r#""logprobs":1"#, Vec::new());
    let other = |text: &str, logprob| Alternative {
        id: 1,
        text: text.into(),
        bytes: text.into(),
        logprob,
    };
    let tokens = vec![
        Token {
            top: vec![other(" the", -0.25)],
            ..token(" a", Some(-1.5))
        },
        // A character over two tokens, whose texts are the same replacement.
        Token {
            text: "\u{fffd}".into(),
            bytes: vec![0xc3],
            top: vec![other("\u{fffd}", -0.5)],
            ..token("", Some(-0.5))
        },
        Token {
            text: "\u{fffd}".into(),
            bytes: vec![0xa9],
            ..token("", Some(f32::NEG_INFINITY))
        },
        token("!", Some(-2.0)),
    ];
    let document = document_of(&mut answer, vec![choice(0, " aé!", tokens, FinishReason::Length)]);
    let least = f64::from(f32::MIN);
    let logprobs = &document["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!([" a", "\u{fffd}", "\u{fffd}", "!"]));
    assert_eq!(
        logprobs["token_logprobs"][2].as_f64().map(|value| value as f32),
        Some(f32::MIN)
    );
    assert!(
        logprobs["token_logprobs"][2]
            .as_f64()
            .is_some_and(|value| value <= least * 0.99)
    );
    assert_eq!(logprobs["top_logprobs"][0], json!({" the": -0.25, " a": -1.5}));
    assert_eq!(logprobs["top_logprobs"][1], json!({"\u{fffd}": -0.5}));
    assert_eq!(logprobs["top_logprobs"][3], json!({"!": -2.0}));
    // In characters: " a" is two, é one.
    assert_eq!(logprobs["text_offset"], json!([0, 2, 3, 3]));
}

/// OpenAI: `echo` with `logprobs` gives the prompt's tokens too; the first has no probability.
#[test]
fn an_echo_has_the_prompts_log_probabilities() {
    let more = r#""echo":true,"logprobs":0,"n":2,"prompt":["One","Two"]"#;
    let prompts = vec![
        vec![special("<s>"), token("One", Some(-1.0))],
        vec![
            Token {
                logprob: None,
                ..special("<s>")
            },
            token("Two", Some(-2.0)),
        ],
    ];
    let (mut answer, _) = started(Api::Completions, more, prompts.clone());
    let choices = vec![
        choice(1, "One a", vec![token(" a", Some(-0.5))], FinishReason::Length),
        choice(2, "Two b", vec![token(" b", Some(-0.75))], FinishReason::Length),
    ];
    let document = document_of(&mut answer, choices);
    let logprobs = |i: usize| document["choices"][i]["logprobs"].clone();
    assert_eq!(logprobs(0)["tokens"], json!(["<s>", "One", " a"]));
    assert_eq!(logprobs(1)["tokens"], json!(["<s>", "Two", " b"]));
    assert_eq!(logprobs(1)["token_logprobs"], json!([null, -2.0, -0.75]));
    assert_eq!(
        logprobs(1)["top_logprobs"],
        json!([null, {"Two": -2.0}, {" b": -0.75}])
    );
    assert_eq!(logprobs(1)["text_offset"], json!([0, 0, 3]));

    // Streamed: the same, the prompt's tokens with the prompt's text.
    let (mut answer, _) = started(Api::Completions, &format!("{more},\"stream\":true"), prompts);
    let chunks = read(answer.render(vec![event(2, "Two", vec![], None)]));
    assert_eq!(
        chunks[0]["choices"][0]["logprobs"]["tokens"],
        json!(["<s>", "Two"])
    );
    let chunks = read(answer.render(vec![event(2, " b", vec![token(" b", Some(-0.75))], None)]));
    assert_eq!(chunks[0]["choices"][0]["logprobs"]["text_offset"], json!([3]));
}

/// Tokens are given out with their text: not before it, and not if it is cut with a stop sequence.
#[test]
fn log_probabilities_keep_step_with_the_text() {
    let (mut answer, _) = started(
        Api::Completions,
        r#""stream":true,"logprobs":0,"stop":"<end>""#,
        Vec::new(),
    );
    let mut tokens_of = |text: &str, tokens: Vec<Token>, finish| {
        let chunks = read(answer.render(vec![event(0, text, tokens, finish)]));
        let texts = chunks
            .first()
            .map(|chunk| chunk["choices"][0]["logprobs"]["tokens"].clone());
        texts.unwrap_or(Value::Null)
    };
    let t = |text: &str| token(text, Some(-1.0));
    assert_eq!(tokens_of("Hi", vec![t("Hi")], None), json!(["Hi"]));
    // Held back: nothing to send.
    assert_eq!(tokens_of("", vec![t("<e")], None), Value::Null);
    // It was no stop sequence after all.
    assert_eq!(tokens_of("<ex", vec![t("x")], None), json!(["<e", "x"]));
    // ` a<` is cut: it is given out because ` a` is seen; the rest of the sequence is not.
    assert_eq!(tokens_of(" a", vec![t(" a<")], None), json!([" a<"]));
    let stopped = Some(FinishReason::StopSequence(0));
    assert_eq!(tokens_of("", vec![t("end"), t(">")], stopped), json!([]));
}

proptest! {
    /// However the text is held back and the events come together, a stream adds up to the document.
    #[test]
    fn a_stream_adds_up_to_the_document(
        pieces in vec("[aé<]{1,3}", 1..12),
        batches in vec((0_usize..4, 0_usize..6), 0..12),
        cut in proptest::option::of(0_usize..24),
    ) {
        let tokens: Vec<Token> = pieces.iter().map(|piece| token(piece, Some(-1.0))).collect();
        let whole = pieces.concat();
        let cut = cut.filter(|&cut| whole.is_char_boundary(cut) && cut < whole.len());
        let text = &whole[..cut.unwrap_or(whole.len())];
        let finish = if cut.is_some() { FinishReason::StopSequence(0) } else { FinishReason::Eos };

        let (mut answer, _) = started(Api::Completions, r#""logprobs":0"#, Vec::new());
        let document = document_of(&mut answer, vec![choice(0, text, tokens.clone(), finish.clone())]);
        let document = &document["choices"][0];

        // Each batch brings some tokens, and shows as much of the text as it likes of what those tokens hold.
        let (mut answer, _) = started(Api::Completions, r#""stream":true,"logprobs":0"#, Vec::new());
        let (mut come, mut shown, mut chunks) = (0, 0, Vec::new());
        for (new, show) in batches {
            let next = (come + new).min(tokens.len());
            let held: usize = pieces[..next].iter().map(String::len).sum();
            let until = (shown + show).min(held).min(text.len());
            let until = (shown..=until).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(shown);
            chunks.extend(read(answer.render(vec![
                event(0, &text[shown..until], tokens[come..next].to_vec(), None),
            ])));
            (come, shown) = (next, until);
        }
        chunks.extend(read(answer.render(vec![
            event(0, &text[shown..], tokens[come..].to_vec(), Some(finish)),
        ])));

        let field = |name: &str| -> Vec<Value> {
            let lists = chunks.iter().map(|chunk| chunk["choices"][0]["logprobs"][name].as_array());
            lists.flatten().flatten().cloned().collect()
        };
        for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            prop_assert_eq!(&Value::from(field(name)), &document["logprobs"][name], "{}", name);
        }
        let texts = chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str());
        prop_assert_eq!(texts.collect::<String>(), text);
    }
}
