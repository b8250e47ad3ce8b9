//! Fields that are known and cannot be honoured. They are refused by name unless they ask for what happens anyway.

use serde_json::value::RawValue;

use super::{
    Api,
    read::{self, At},
};
use crate::Fault;

/// Refuses a field that no setter took, if it is one of these.
pub(super) fn refuse(api: Api, name: &str, value: &RawValue) -> Result<(), Fault> {
    let text = value.get();
    let harmless = match name {
        // `response_format` of the type `text`, and tools that nobody may call, change nothing.
        "response_format" => {
            let at = At::Body(name);
            let fields = read::object(&at, value)?;
            let kind = fields
                .iter()
                .rfind(|(name, _)| name == "type")
                .map(|(_, kind)| *kind);
            let kind = kind.ok_or_else(|| Fault::missing("response_format.type"))?;
            read::text(&At::Field(&at, "type"), kind)? == "text"
        }
        "tools" | "functions" => read::array(&At::Body(name), value)?.is_empty(),
        "tool_choice" | "function_call" => matches!(text, "\"none\"" | "\"auto\""),
        "modalities" => {
            let at = At::Body(name);
            let kinds = read::array(&at, value)?;
            kinds.iter().all(|kind| kind.get() == "\"text\"")
        }
        "audio" | "prediction" | "web_search_options" | "reasoning_effort" => false,
        // Of `/v1/completions` alone.
        "echo" if api == Api::Chat => text == "false",
        "suffix" => text == "\"\"",
        // Structured output as vLLM and others ask for it.
        "guided_json" | "guided_regex" | "guided_choice" | "guided_grammar" | "structured_outputs"
        | "grammar" => false,
        // The rest of vLLM's that changes what comes out.
        "prompt_logprobs" | "bad_words" | "allowed_token_ids" | "chat_template" | "documents"
        | "logits_processors" => false,
        "use_beam_search" | "return_tokens_as_token_ids" | "return_token_ids" => text == "false",
        "skip_special_tokens" => text == "true",
        "length_penalty" => read::number(&At::Body(name), value)? == 1.0,
        _ => true,
    };
    if harmless {
        return Ok(());
    }
    Err(Fault::unsupported(
        name,
        match name {
            "response_format" => "`response_format` is supported with the type `text` only".to_owned(),
            "modalities" => "`modalities` is supported as [\"text\"] only".to_owned(),
            "echo" | "suffix" if api == Api::Chat => format!("`{name}` is not supported with messages"),
            "tool_choice" | "function_call" => format!("`{name}` is supported as `none` or `auto` only"),
            _ => format!("`{name}` is not supported"),
        },
    ))
}
