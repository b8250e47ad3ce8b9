//! Bodies that are refused, and what is said about them.

use super::{
    super::{Api::Chat as C, Api::Completions as P, parse},
    HI, body,
};

#[test]
fn what_is_not_json_is_a_400() {
    // api.md: 400 for what is not JSON, in OpenAI's shape.
    let table: [(&[u8], &str); 6] = [
        (
            b"",
            "The body is not JSON: EOF while parsing a value at line 1 column 0",
        ),
        (
            b"{",
            "The body is not JSON: EOF while parsing an object at line 1 column 1",
        ),
        (
            b"{\"model\":\"m\",}",
            "The body is not JSON: trailing comma at line 1 column 14",
        ),
        (
            b"{\"model\":nul}",
            "The body is not JSON: expected ident at line 1 column 13",
        ),
        (
            b"{} {}",
            "The body is not JSON: trailing characters at line 1 column 4",
        ),
        (
            b"{\"a\":\"\xff\"}",
            "The body is not JSON: it is not UTF-8 from byte 6 on",
        ),
    ];
    for (body, message) in table {
        let fault = parse(C, body).unwrap_err();
        assert_eq!((fault.status, fault.code.as_deref()), (400, Some("invalid_json")));
        assert_eq!(fault.message, message);
    }
    let fault = parse(C, b"[1]").unwrap_err();
    assert_eq!(
        (fault.status, fault.message.as_str()),
        (422, "The body must be a JSON object")
    );
}

#[test]
fn faults_name_the_field() {
    // Code as OpenAI has it; sentences of ranges as LoRAX has them.
    let [missing, wrong, invalid, unsupported] = [
        "missing_required_parameter",
        "invalid_type",
        "invalid_value",
        "unsupported_parameter",
    ];
    #[rustfmt::skip]
    let table = [
        (C, r#""temperature":-1"#, "temperature", invalid, "`temperature` must be non-negative"),
        (C, r#""temperature":"hot""#, "temperature", wrong, "`temperature` must be a number, not a string"),
        (C, r#""temperature":1e39"#, "temperature", invalid, "`temperature` must be a finite number"),
        (C, r#""temperature":1e999"#, "temperature", invalid, "`temperature` must be a finite number"),
        (P, r#""top_p":0"#, "top_p", invalid, "`top_p` must be > 0.0 and <= 1.0"),
        (P, r#""top_p":1.01"#, "top_p", invalid, "`top_p` must be > 0.0 and <= 1.0"),
        (P, r#""typical_p":0"#, "typical_p", invalid, "`typical_p` must be > 0.0 and <= 1.0"),
        (P, r#""min_p":-0.1"#, "min_p", invalid, "`min_p` must be >= 0.0 and <= 1.0"),
        (P, r#""top_k":-2"#, "top_k", invalid, "`top_k` must be >= 0 and <= 4294967295. Given: -2"),
        (P, r#""top_k":1.5"#, "top_k", wrong, "`top_k` must be an integer, not a fraction"),
        (P, r#""repetition_penalty":0"#, "repetition_penalty", invalid, "`repetition_penalty` must be strictly positive"),
        (P, r#""frequency_penalty":2.1"#, "frequency_penalty", invalid, "`frequency_penalty` must be >= -2.0 and <= 2.0"),
        (P, r#""presence_penalty":-3"#, "presence_penalty", invalid, "`presence_penalty` must be >= -2.0 and <= 2.0"),
        (C, r#""n":0"#, "n", invalid, "`n` must be >= 1 and <= 128. Given: 0"),
        (C, r#""n":129"#, "n", invalid, "`n` must be >= 1 and <= 128. Given: 129"),
        (C, r#""n":-1"#, "n", invalid, "`n` must be >= 1 and <= 128. Given: -1"),
        (P, r#""n":2,"best_of":1"#, "best_of", invalid, "`best_of` must be at least `n`"),
        (P, r#""best_of":2,"stream":true"#, "best_of", invalid, "`best_of` > `n` is not supported when streaming tokens"),
        (C, r#""max_tokens":0"#, "max_tokens", invalid, "`max_tokens` must be strictly positive"),
        (C, r#""max_completion_tokens":-1"#, "max_completion_tokens", invalid, "`max_completion_tokens` must be strictly positive"),
        (C, r#""max_completion_tokens":2,"max_tokens":1"#, "max_tokens", invalid, "`max_tokens` and `max_completion_tokens` are the same limit: give one of them"),
        (C, r#""max_tokens":2,"min_tokens":3"#, "min_tokens", invalid, "`min_tokens` must not be more than `max_tokens`"),
        (P, r#""stop":"""#, "stop", invalid, "`stop` cannot be empty"),
        (P, r#""stop":["a",""]"#, "stop[1]", invalid, "`stop[1]` cannot be empty"),
        (P, r#""stop":["a",7]"#, "stop[1]", wrong, "`stop[1]` must be a string, not a number"),
        (P, r#""stop":7"#, "stop", wrong, "`stop` must be a string or an array of strings, not a number"),
        (P, r#""stop":"\ud800""#, "stop", invalid, "`stop` holds an escape that is no character"),
        (C, r#""logit_bias":{"x":1}"#, "logit_bias", invalid, "the names in `logit_bias` must be token ids"),
        (C, r#""logit_bias":{"-1":1}"#, "logit_bias", invalid, "the names in `logit_bias` must be token ids"),
        (C, r#""logit_bias":{"1":101}"#, "logit_bias.1", invalid, "`logit_bias.1` must be >= -100 and <= 100"),
        (C, r#""logit_bias":[1]"#, "logit_bias", wrong, "`logit_bias` must be an object, not an array"),
        (C, r#""logprobs":3"#, "logprobs", wrong, "`logprobs` must be true or false, not a number"),
        (P, r#""logprobs":true"#, "logprobs", wrong, "`logprobs` must be an integer, not a boolean"),
        (P, r#""logprobs":21"#, "logprobs", invalid, "`logprobs` must be >= 0 and <= 20. Given: 21"),
        (C, r#""top_logprobs":3"#, "top_logprobs", invalid, "`top_logprobs` needs `logprobs` to be true"),
        (C, r#""stream":1"#, "stream", wrong, "`stream` must be true or false, not a number"),
        (C, r#""stream_options":{"include_usage":true}"#, "stream_options", invalid, "`stream_options` is only allowed when `stream` is true"),
        (C, r#""stream":true,"stream_options":{"include_usage":1}"#, "stream_options.include_usage", wrong, "`stream_options.include_usage` must be true or false, not a number"),
        (P, r#""stop_token_ids":[1,-1]"#, "stop_token_ids[1]", invalid, "`stop_token_ids[1]` must be a token id"),
        (P, r#""seed":0.5"#, "seed", wrong, "`seed` must be an integer, not a fraction"),
        (C, r#""add_generation_prompt":true,"continue_final_message":true"#, "continue_final_message", invalid, "`continue_final_message` and `add_generation_prompt` cannot both be true"),
        (C, r#""tools":[{"type":"function"}]"#, "tools", unsupported, "`tools` is not supported"),
        (C, r#""tool_choice":"required""#, "tool_choice", unsupported, "`tool_choice` is supported as `none` or `auto` only"),
        (C, r#""tool_choice":{"type":"function"}"#, "tool_choice", unsupported, "`tool_choice` is supported as `none` or `auto` only"),
        (C, r#""functions":[{}]"#, "functions", unsupported, "`functions` is not supported"),
        (C, r#""response_format":{"type":"json_schema","json_schema":{}}"#, "response_format", unsupported, "`response_format` is supported with the type `text` only"),
        (C, r#""response_format":{}"#, "response_format.type", missing, "`response_format.type` is required"),
        (C, r#""modalities":["text","audio"]"#, "modalities", unsupported, "`modalities` is supported as [\"text\"] only"),
        (C, r#""audio":{}"#, "audio", unsupported, "`audio` is not supported"),
        (C, r#""echo":true"#, "echo", unsupported, "`echo` is not supported with messages"),
        (P, r#""suffix":"x""#, "suffix", unsupported, "`suffix` is not supported"),
        (P, r#""guided_regex":"x""#, "guided_regex", unsupported, "`guided_regex` is not supported"),
        (P, r#""prompt_logprobs":1"#, "prompt_logprobs", unsupported, "`prompt_logprobs` is not supported"),
        (P, r#""prompt":[]"#, "prompt", invalid, "`prompt` cannot be empty"),
        (P, r#""prompt":["a",1]"#, "prompt[1]", wrong, "`prompt[1]` must be a string, not a number"),
        (P, r#""prompt":[1,"a"]"#, "prompt[1]", wrong, "`prompt[1]` must be an integer, not a string"),
        (P, r#""prompt":[[1],[]]"#, "prompt[1]", invalid, "`prompt[1]` cannot be empty"),
        (P, r#""prompt":[[1],[2,-3]]"#, "prompt[1][1]", invalid, "`prompt[1][1]` must be a token id"),
        (P, r#""prompt":{"a":1}"#, "prompt", wrong, "`prompt` must be a string, an array of strings, an array of tokens or an array of arrays of tokens, not an object"),
        (C, r#""messages":[]"#, "messages", invalid, "`messages` cannot be empty"),
        (C, r#""messages":"Hi""#, "messages", wrong, "`messages` must be an array, not a string"),
        (C, r#""messages":["Hi"]"#, "messages[0]", wrong, "`messages[0]` must be an object, not a string"),
        (C, r#""messages":[{"content":"a"}]"#, "messages[0].role", missing, "`messages[0].role` is required"),
        (C, r#""messages":[{"role":"user"},{"role":7}]"#, "messages[1].role", wrong, "`messages[1].role` must be a string, not a number"),
        (C, r#""messages":[{"role":"user","content":7}]"#, "messages[0].content", wrong, "`messages[0].content` must be a string or an array of parts, not a number"),
        (C, r#""messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url"}]}]"#, "messages[0].content[1].type", unsupported, "`messages[0].content[1]`: parts of the type `image_url` are not supported, only `text`"),
        (C, r#""messages":[{"role":"user","content":[{"text":"a"}]}]"#, "messages[0].content[0].type", missing, "`messages[0].content[0].type` is required"),
        (C, r#""messages":[{"role":"user","content":[{"type":"text"}]}]"#, "messages[0].content[0].text", missing, "`messages[0].content[0].text` is required"),
        (C, r#""messages":[{"role":"user","content":"\udc00\ud800"}]"#, "messages", invalid, "`messages` holds an escape that is no character"),
    ];
    for (api, more, parameter, code, message) in table {
        let body = body(api, more);
        let fault = parse(api, body.as_bytes()).expect_err(&body);
        assert_eq!(fault.message, message, "{body}");
        assert_eq!(
            (
                fault.status,
                fault.parameter.as_deref(),
                fault.code.as_deref(),
                fault.error_type.as_ref()
            ),
            (422, Some(parameter), Some(code), "validation"),
            "{body}"
        );
    }
}

#[test]
fn required_fields_are_required_and_null_does_not_stand_for_them() {
    for (api, body, parameter) in [
        (C, format!(r#"{{"messages":{HI}}}"#), "model"),
        (C, format!(r#"{{"messages":{HI},"model":null}}"#), "model"),
        (C, r#"{"model":"m","messages":null}"#.into(), "messages"),
        (P, format!(r#"{{"model":"m","messages":{HI}}}"#), "prompt"),
        (P, r#"{"model":"m","prompt":null}"#.into(), "prompt"),
    ] {
        let fault = parse(api, body.as_bytes()).unwrap_err();
        assert_eq!(
            (fault.status, fault.parameter.as_deref()),
            (422, Some(parameter)),
            "{body}"
        );
    }
}

/// LoRAX's order: best_of, temperature, repetition, frequency and presence penalty, top_p, typical_p, top_k,
/// max_tokens, stop. So of many faults the same one is told.
#[test]
fn ranges_are_checked_in_loraxs_order() {
    let faults = [
        (r#""n":2,"best_of":1"#, "best_of"),
        (r#""temperature":-1"#, "temperature"),
        (r#""repetition_penalty":0"#, "repetition_penalty"),
        (r#""frequency_penalty":9"#, "frequency_penalty"),
        (r#""presence_penalty":9"#, "presence_penalty"),
        (r#""top_p":9"#, "top_p"),
        (r#""typical_p":9"#, "typical_p"),
        (r#""top_k":-9"#, "top_k"),
        (r#""max_tokens":0"#, "max_tokens"),
    ];
    let stops = format!(r#""stop":[{}"x"]"#, r#""x","#.repeat(64));
    for first in 0..=faults.len() {
        // The rest in reverse: the order in the body must not matter.
        let mut fields: Vec<&str> = faults[first..].iter().map(|&(field, _)| field).rev().collect();
        fields.insert(0, &stops);
        let fault = parse(P, body(P, &fields.join(",")).as_bytes()).unwrap_err();
        let expected = faults.get(first).map_or("stop", |&(_, parameter)| parameter);
        assert_eq!(fault.parameter.as_deref(), Some(expected));
    }
}
