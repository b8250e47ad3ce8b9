//! Bodies and what is read from them. Where a row's expectation comes from is said in front of it.

mod faults;

use heddle_plugin::generation::Chat;
use proptest::{collection::vec, prelude::*, sample::select};

use super::{Api::Chat as C, Api::Completions as P, *};

const HI: &str = r#"[{"role":"user","content":"Hi"}]"#;

/// A body with a model, a prompt or messages, and these fields.
fn body(api: Api, more: &str) -> String {
    let comma = if more.is_empty() { "" } else { "," };
    match api {
        Api::Completions => format!(r#"{{"model":"m","prompt":"p"{comma}{more}}}"#),
        Api::Chat => format!(r#"{{"model":"m","messages":{HI}{comma}{more}}}"#),
    }
}

fn read(api: Api, more: &str) -> Call {
    let body = body(api, more);
    parse(api, body.as_bytes()).unwrap_or_else(|fault| panic!("{body}: {}", fault.message))
}

fn chat_prompt(messages: &str, arguments: Option<&str>) -> Vec<Prompt> {
    vec![Prompt::Chat(Chat {
        messages: messages.into(),
        tools: None,
        arguments: arguments.map(Into::into),
    })]
}

/// What the plainest body gives.
fn plain(api: Api) -> Call {
    Call {
        api,
        model: "m".into(),
        adapter_source: None,
        api_token: None,
        prompts: match api {
            Api::Completions => vec![Prompt::Text("p".into())],
            Api::Chat => chat_prompt(HI, None),
        },
        stream: false,
        include_usage: false,
        max_tokens: None,
        min_tokens: None,
        choices: 1,
        best_of: None,
        temperature: 1.0,
        top_p: None,
        top_k: None,
        min_p: None,
        typical_p: None,
        repetition_penalty: None,
        frequency_penalty: None,
        presence_penalty: None,
        logit_bias: Vec::new(),
        seed: None,
        stop: Vec::new(),
        keep_stop: false,
        stop_tokens: Vec::new(),
        ignore_eos: false,
        logprobs: None,
        echo: false,
        truncate: None,
    }
}

#[test]
fn fields_of_both_routes() {
    for api in [P, C] {
        let plain = || plain(api);
        let table = [
            // OpenAI's reference: temperature defaults to 1, n to 1; no limit where LoRAX has none.
            ("", plain()),
            (
                r#""temperature":0"#,
                Call {
                    temperature: 0.0,
                    ..plain()
                },
            ),
            (
                r#""temperature":0.5,"top_p":0.9"#,
                Call {
                    temperature: 0.5,
                    top_p: Some(0.9),
                    ..plain()
                },
            ),
            // LoRAX: no upper bound of the temperature, top_p up to 1.
            (
                r#""temperature":7e0,"top_p":1"#,
                Call {
                    temperature: 7.0,
                    top_p: Some(1.0),
                    ..plain()
                },
            ),
            (
                r#""n":3,"seed":7"#,
                Call {
                    choices: 3,
                    seed: Some(7),
                    ..plain()
                },
            ),
            (
                r#""seed":18446744073709551615"#,
                Call {
                    seed: Some(u64::MAX),
                    ..plain()
                },
            ),
            (
                r#""seed":-1"#,
                Call {
                    seed: Some(u64::MAX),
                    ..plain()
                },
            ),
            (
                r#""n":2,"best_of":5"#,
                Call {
                    choices: 2,
                    best_of: Some(5),
                    ..plain()
                },
            ),
            (
                r#""best_of":2,"n":2,"stream":true"#,
                Call {
                    choices: 2,
                    best_of: Some(2),
                    stream: true,
                    ..plain()
                },
            ),
            (
                r#""max_tokens":16"#,
                Call {
                    max_tokens: Some(16),
                    ..plain()
                },
            ),
            (
                r#""max_completion_tokens":16"#,
                Call {
                    max_tokens: Some(16),
                    ..plain()
                },
            ),
            (
                r#""max_completion_tokens":16,"max_tokens":16"#,
                Call {
                    max_tokens: Some(16),
                    ..plain()
                },
            ),
            // Pydantic, so vLLM: a whole number may be written as a float.
            (
                r#""max_tokens":16.0"#,
                Call {
                    max_tokens: Some(16),
                    ..plain()
                },
            ),
            (
                r#""max_tokens":99999999999"#,
                Call {
                    max_tokens: Some(u32::MAX),
                    ..plain()
                },
            ),
            (
                r#""stream":true"#,
                Call {
                    stream: true,
                    ..plain()
                },
            ),
            (
                r#""stream":true,"stream_options":{"include_usage":true,"include_obfuscation":false}"#,
                Call {
                    stream: true,
                    include_usage: true,
                    ..plain()
                },
            ),
            (
                r#""stream":true,"stream_options":{"include_usage":null}"#,
                Call {
                    stream: true,
                    ..plain()
                },
            ),
            // A string, an array or null.
            (
                r#""stop":"\n""#,
                Call {
                    stop: vec!["\n".into()],
                    ..plain()
                },
            ),
            (
                r#""stop":["a","é"]"#,
                Call {
                    stop: vec!["a".into(), "é".into()],
                    ..plain()
                },
            ),
            (r#""stop":[]"#, plain()),
            (
                r#""frequency_penalty":-2,"presence_penalty":2"#,
                Call {
                    frequency_penalty: Some(-2.0),
                    presence_penalty: Some(2.0),
                    ..plain()
                },
            ),
            (
                r#""logit_bias":{"50256":-100,"0":1.5}"#,
                Call {
                    logit_bias: vec![(50256, -100.0), (0, 1.5)],
                    ..plain()
                },
            ),
            // LoRAX's own.
            (
                r#""adapter_source":"hub","api_token":"t""#,
                Call {
                    adapter_source: Some("hub".into()),
                    api_token: Some("t".into()),
                    ..plain()
                },
            ),
            (
                r#""repetition_penalty":1.1"#,
                Call {
                    repetition_penalty: Some(1.1),
                    ..plain()
                },
            ),
            (
                r#""ignore_eos_token":true"#,
                Call {
                    ignore_eos: true,
                    ..plain()
                },
            ),
            // vLLM's own.
            (
                r#""ignore_eos":true,"min_tokens":4"#,
                Call {
                    ignore_eos: true,
                    min_tokens: Some(4),
                    ..plain()
                },
            ),
            (
                r#""top_k":40,"min_p":0.05"#,
                Call {
                    top_k: Some(40),
                    min_p: Some(0.05),
                    ..plain()
                },
            ),
            (
                r#""top_k":-1"#,
                Call {
                    top_k: Some(0),
                    ..plain()
                },
            ),
            (
                r#""typical_p":0.9"#,
                Call {
                    typical_p: Some(0.9),
                    ..plain()
                },
            ),
            (
                r#""stop_token_ids":[1,2]"#,
                Call {
                    stop_tokens: vec![1, 2],
                    ..plain()
                },
            ),
            (
                r#""stop":"a","include_stop_str_in_output":true"#,
                Call {
                    stop: vec!["a".into()],
                    keep_stop: true,
                    ..plain()
                },
            ),
            (
                r#""truncate_prompt_tokens":8"#,
                Call {
                    truncate: Some(8),
                    ..plain()
                },
            ),
            // Accepted without effect.
            (
                r#""user":"u","metadata":{"a":"b"},"store":true,"service_tier":"auto""#,
                plain(),
            ),
            (r#""unknown":{"deep":[1,{"x":null}]}"#, plain()),
            // Known, and asking for what happens anyway.
            (
                r#""response_format":{"type":"text"},"tools":[],"tool_choice":"none""#,
                plain(),
            ),
            (
                r#""tool_choice":"auto","modalities":["text"],"skip_special_tokens":true"#,
                plain(),
            ),
            // JSON.parse and Python: the last of a name counts.
            (
                r#""n":9,"n":2"#,
                Call {
                    choices: 2,
                    ..plain()
                },
            ),
            (
                r#""\u006e":2"#,
                Call {
                    choices: 2,
                    ..plain()
                },
            ),
        ];
        for (more, expected) in table {
            assert_eq!(read(api, more), expected, "{api:?} {more}");
        }
    }
}

/// `lorax-client` and generated clients send every optional field as null.
#[test]
fn null_is_the_same_as_leaving_out() {
    let names = "
        adapter_source api_token stream stream_options max_tokens max_completion_tokens min_tokens n
        best_of temperature top_p top_k min_p typical_p repetition_penalty frequency_penalty
        presence_penalty logit_bias seed stop include_stop_str_in_output stop_token_ids ignore_eos
        ignore_eos_token logprobs top_logprobs echo suffix truncate_prompt_tokens add_generation_prompt
        continue_final_message guideline chat_template_kwargs response_format tools tool_choice
        functions function_call parallel_tool_calls modalities audio prediction user metadata
        guided_json
    ";
    let nulls: Vec<String> = names
        .split_whitespace()
        .map(|name| format!(r#""{name}":null"#))
        .collect();
    for api in [P, C] {
        assert_eq!(read(api, &nulls.join(",")), plain(api));
    }
}

#[test]
fn prompts_come_in_four_forms() {
    let text = |text: &str| Prompt::Text(text.into());
    // OpenAI's reference of /v1/completions.
    let table = [
        (r#""""#, vec![text("")]),
        (r#""a \"b\" \ud83e\udd80""#, vec![text("a \"b\" 🦀")]),
        (r#"["a","b"]"#, vec![text("a"), text("b")]),
        ("[ 1, 2 ,3 ]", vec![Prompt::Tokens(vec![1, 2, 3])]),
        (
            "[[1,2],[3]]",
            vec![Prompt::Tokens(vec![1, 2]), Prompt::Tokens(vec![3])],
        ),
    ];
    for (prompt, expected) in table {
        let body = format!(r#"{{"model":"m","prompt":{prompt}}}"#);
        assert_eq!(
            parse(P, body.as_bytes()).map(|call| call.prompts),
            Ok(expected),
            "{prompt}"
        );
    }
    let many = format!(r#"{{"model":"m","prompt":[{}"x"]}}"#, r#""x","#.repeat(2048));
    let fault = parse(P, many.as_bytes()).unwrap_err();
    assert_eq!(fault.message, "`prompt` supports up to 2048 prompts. Given: 2049");
}

#[test]
fn messages_go_to_the_template_as_they_were_sent() {
    // Each: messages, what the template gets (the same unless it says otherwise).
    let same = [
        HI,
        r#"[ {"role":"system","content":"Be brief."} , {"role":"user","content":null} ]"#,
        r#"[{"role":"assistant","tool_calls":[{"id":"1","type":"function"}]},{"role":"tool","tool_call_id":"1","content":"4"}]"#,
        r#"[{"role":"user","name":"Ann","content":"a\u00e9 \ud83e\udd80 \\ud83e"}]"#,
        r#"[{"role":"whatever","content":"","extra":[1,{"a":[]}]}]"#,
    ];
    for messages in same {
        let body = format!(r#"{{"model":"m","messages":{messages}}}"#);
        assert_eq!(
            parse(C, body.as_bytes()).map(|c| c.prompts),
            Ok(chat_prompt(messages, None)),
            "{messages}"
        );
    }
    let joined = [
        (
            r#"[{"role":"user","content":[{"type":"text","text":"a\n"},{"text":"b \"c\"","type":"text"}],"name":"Ann"},{"role":"user","content":"d"}]"#,
            r#"[{"role":"user","name":"Ann","content":"a\nb \"c\""},{"role":"user","content":"d"}]"#,
        ),
        (
            r#"[{"content":[],"role":"user"}]"#,
            r#"[{"role":"user","content":""}]"#,
        ),
    ];
    for (messages, expected) in joined {
        let body = format!(r#"{{"model":"m","messages":{messages}}}"#);
        assert_eq!(
            parse(C, body.as_bytes()).map(|c| c.prompts),
            Ok(chat_prompt(expected, None)),
            "{messages}"
        );
    }
}

#[test]
fn template_arguments_are_gathered() {
    // vLLM: add_generation_prompt, continue_final_message, chat_template_kwargs. LoRAX: guideline.
    let table = [
        ("", None),
        (
            r#""add_generation_prompt":true"#,
            Some(r#"{"add_generation_prompt":true}"#),
        ),
        (
            r#""add_generation_prompt":false"#,
            Some(r#"{"add_generation_prompt":false}"#),
        ),
        (
            r#""continue_final_message":true"#,
            Some(r#"{"add_generation_prompt":false,"continue_final_message":true}"#),
        ),
        (r#""chat_template_kwargs":{ }"#, None),
        (
            r#""chat_template_kwargs":{ "a":{"b":{}} }"#,
            Some(r#"{"a":{"b":{}}}"#),
        ),
        (
            r#""chat_template_kwargs":{"x":1},"add_generation_prompt":false,"guideline":"\"g\"""#,
            Some(r#"{"x":1,"add_generation_prompt":false,"guideline":"\"g\""}"#),
        ),
    ];
    for (more, expected) in table {
        assert_eq!(read(C, more).prompts, chat_prompt(HI, expected), "{more}");
    }
}

#[test]
fn log_probabilities_are_asked_for_in_each_routes_way() {
    // OpenAI's reference: a count on completions, a flag and a count on chat.
    let table = [
        (P, r#""logprobs":0"#, Some(0)),
        (P, r#""logprobs":5"#, Some(5)),
        (C, r#""logprobs":true"#, Some(0)),
        (C, r#""logprobs":true,"top_logprobs":20"#, Some(20)),
        (C, r#""logprobs":false"#, None),
        (C, r#""logprobs":false,"top_logprobs":0"#, None),
    ];
    for (api, more, expected) in table {
        assert_eq!(read(api, more).logprobs, expected, "{more}");
    }
    assert!(read(P, r#""echo":true"#).echo);
    assert!(!read(C, r#""echo":false"#).echo);
}

#[test]
fn deep_and_long_bodies_are_read_without_harm() {
    let deep = format!(r#""unknown":{}{}"#, "[".repeat(200_000), "]".repeat(200_000));
    assert_eq!(read(C, &deep), plain(C));
    let long = format!(r#"{{"model":"m","prompt":[{}7]}}"#, "7,".repeat(200_000));
    let call = parse(P, long.as_bytes()).unwrap();
    assert_eq!(call.prompts, [Prompt::Tokens(vec![7; 200_001])]);
}

proptest! {
    /// No body may make the component trap; what the template gets is JSON.
    #[test]
    fn no_body_panics(
        start in select(vec!["", r#"{"model":"m","messages":"#, r#"{"model":"m","prompt":"#]),
        pieces in vec(select(vec![
            "{", "}", "[", "]", ",", ":", "\"", "\\", "\\u", "d83e", "\\ud83e\\udd80", "é", "\u{0}", " ", "null", "true",
            "-", "0", "1e999", "17", "0.5", "\"role\":\"user\"", "\"content\":", "\"type\":\"text\"", "\"text\":", "\"x\"",
            "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}", "\"stop\":", "\"logit_bias\":{",
            "\"chat_template_kwargs\":{", "\"stream\":true",
        ]), 0..24),
        broken in vec(any::<u8>(), 0..2),
    ) {
        let mut body = format!("{start}{}", pieces.concat()).into_bytes();
        body.extend(broken);
        for api in [P, C] {
            if let Ok(call) = parse(api, &body)
                && let Prompt::Chat(chat) = &call.prompts[0]
            {
                let messages = serde_json::from_str::<serde_json::Value>(&chat.messages);
                prop_assert!(messages.is_ok_and(|messages| messages.is_array()));
                let arguments = chat.arguments.as_deref().map(serde_json::from_str::<serde_json::Value>);
                prop_assert!(arguments.is_none_or(|arguments| arguments.is_ok_and(|value| value.is_object())));
            }
        }
    }
}
