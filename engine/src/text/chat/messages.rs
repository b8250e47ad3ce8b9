//! Messages as clients send them, made into what templates read.
//!
//! Clients write a message's content as a text or as a list of parts, and a tool call's arguments as JSON in a text (OpenAI). Most
//! templates read a text only, some read parts only, and they expect arguments as an object (transformers).

use serde_json::{Value, json};

use super::invalid;
use crate::error::{Error, Result};

/// What a template can read as a message's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// A text.
    Text,
    /// A list of parts.
    Parts,
    /// Both.
    Both,
}

impl Content {
    /// Tries a template out with both.
    pub(super) fn probe(apply: impl Fn(&Value) -> Result<String>) -> Self {
        const PROBE: &str = "probe-of-content";
        let shows = |content: Value| {
            let prompt = apply(&json!([{"role": "user", "content": content}])).unwrap_or_default();
            // A template that knows no parts may write them out as they are.
            prompt.contains(PROBE) && !prompt.contains("'type'") && !prompt.contains("\"type\"")
        };
        match (
            shows(json!(PROBE)),
            shows(json!([{"type": "text", "text": PROBE}])),
        ) {
            (true, true) => Self::Both,
            (false, true) => Self::Parts,
            (_, false) => Self::Text,
        }
    }
}

/// The messages as the template reads them.
pub(super) fn prepare(messages: &Value, content: Content) -> Result<Value> {
    let list = messages
        .as_array()
        .ok_or_else(|| invalid("messages", "must be a list of messages"))?;
    let mut prepared = Vec::with_capacity(list.len());
    for message in list {
        let mut message = message
            .as_object()
            .ok_or_else(|| invalid("messages", "must be a list of objects"))?
            .clone();
        if let Some(value) = message.get_mut("content") {
            match (content, &*value) {
                (Content::Text, Value::Array(parts)) => *value = Value::String(join_parts(parts)?),
                (Content::Parts, Value::String(text)) => *value = json!([{"type": "text", "text": text}]),
                _ => {}
            }
        }
        if let Some(Value::Array(calls)) = message.get_mut("tool_calls") {
            calls.iter_mut().for_each(parse_arguments);
        }
        prepared.push(Value::Object(message));
    }
    Ok(Value::Array(prepared))
}

/// The texts of parts, each in a line of its own (as vLLM joins them).
fn join_parts(parts: &[Value]) -> Result<String> {
    let mut texts = Vec::with_capacity(parts.len());
    for part in parts {
        let text = part.as_str().or_else(|| part.get("text").and_then(Value::as_str));
        texts.push(text.ok_or_else(|| {
            let kind = part
                .get("type")
                .and_then(Value::as_str)
                .unwrap_or("without a type");
            invalid(
                "messages",
                format!("has a part `{kind}`; this model takes parts of type `text`"),
            )
        })?);
    }
    Ok(texts.join("\n"))
}

/// Turns a tool call's arguments from JSON in a text into an object.
fn parse_arguments(call: &mut Value) {
    let Some(arguments) = call.pointer_mut("/function/arguments") else {
        return;
    };
    let parsed = match arguments.as_str().map(str::trim) {
        Some("") => Some(json!({})),
        Some(text) => serde_json::from_str(text).ok(),
        None => None,
    };
    if let Some(object @ Value::Object(_)) = parsed {
        *arguments = object;
    }
}

/// Ends with a space, so that it shows whether the template trims messages.
const MARK: &str = "END_OF_CONTINUED_MESSAGE ";

/// Marks the end of the last message's text.
pub(super) fn mark_end(messages: &mut Value) -> Result<()> {
    let content = messages
        .as_array_mut()
        .and_then(|messages| messages.last_mut())
        .and_then(|message| message.get_mut("content"));
    let text = match content {
        Some(Value::Array(parts)) => parts.iter_mut().rev().find_map(|part| part.get_mut("text")),
        other => other,
    };
    match text {
        Some(Value::String(text)) => {
            text.push_str(MARK);
            Ok(())
        }
        _ => Err(invalid(
            "continue_final_message",
            "needs a last message with a text",
        )),
    }
}

/// Ends the prompt where the mark is. (transformers, `render_jinja_template`.)
pub(super) fn cut_at_mark(mut prompt: String) -> Result<String> {
    let end = prompt.rfind(MARK.trim_end()).ok_or_else(|| {
        Error::Template("the last message cannot be continued: the template leaves out its end".to_owned())
    })?;
    let trims = !prompt[end..].starts_with(MARK);
    prompt.truncate(end);
    if trims {
        prompt.truncate(prompt.trim_end().len());
    }
    Ok(prompt)
}
