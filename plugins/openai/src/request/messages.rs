//! `messages` of `/v1/chat/completions`, checked and handed on to the chat template.
//!
//! Messages go to the template as they were sent, with all their fields. Only content in parts is rewritten: chat
//! templates of text models take a string, so the texts are joined in their order.

use serde_json::value::RawValue;

use super::read::{self, At};
use crate::{Fault, answer::json};

/// Reads the messages: the JSON array for the template.
pub(super) fn read(at: &At<'_>, value: &RawValue) -> Result<String, Fault> {
    let messages = read::array(at, value)?;
    if messages.is_empty() {
        return Err(Fault::invalid(at.to_string(), format!("`{at}` cannot be empty")));
    }
    // Texts that are handed on were only skipped so far.
    if !read::escapes_are_characters(value) {
        return Err(Fault::invalid(
            at.to_string(),
            format!("`{at}` holds an escape that is no character"),
        ));
    }
    let mut rewritten = Vec::new();
    for (i, message) in messages.iter().enumerate() {
        if let Some(text) = check(&At::Item(at, i), message)? {
            rewritten.push((i, text));
        }
    }
    if rewritten.is_empty() {
        return Ok(value.get().to_owned());
    }
    let mut out = String::with_capacity(value.get().len());
    let mut rewritten = rewritten.into_iter().peekable();
    for (i, message) in messages.iter().enumerate() {
        out.push(if i == 0 { '[' } else { ',' });
        match rewritten.next_if(|&(at, _)| at == i) {
            Some((_, text)) => out += &text,
            None => out += message.get(),
        }
    }
    out.push(']');
    Ok(out)
}

/// Checks a message. Returns it anew if its content came in parts.
fn check(at: &At<'_>, message: &RawValue) -> Result<Option<String>, Fault> {
    let fields = read::object(at, message)?;
    let mut role = false;
    let mut content = None;
    for (name, value) in &fields {
        let at = At::Field(at, name);
        match name.as_ref() {
            "role" if read::is_text(value) => role = true,
            "role" => return Err(Fault::wrong_type(at.to_string(), "a string", read::kind(value))),
            "content" if read::is_array(value) => content = Some(join(&at, value)?),
            "content" if read::is_text(value) || read::is_null(value) => content = None,
            "content" => {
                return Err(Fault::wrong_type(
                    at.to_string(),
                    "a string or an array of parts",
                    read::kind(value),
                ));
            }
            _ => {}
        }
    }
    if !role {
        return Err(Fault::missing(&At::Field(at, "role").to_string()));
    }
    let Some(content) = content else {
        return Ok(None);
    };
    let mut out = String::with_capacity(message.get().len());
    for (name, value) in fields.iter().filter(|(name, _)| name != "content") {
        out.push(if out.is_empty() { '{' } else { ',' });
        json::text(&mut out, name);
        out.push(':');
        out += value.get();
    }
    out += r#","content":"#;
    json::text(&mut out, &content);
    out.push('}');
    Ok(Some(out))
}

/// The texts of content in parts.
fn join(at: &At<'_>, parts: &RawValue) -> Result<String, Fault> {
    let mut joined = String::new();
    for (i, part) in read::array(at, parts)?.into_iter().enumerate() {
        let at = At::Item(at, i);
        let (mut kind, mut text) = (None, None);
        for (name, value) in read::object(&at, part)? {
            match name.as_ref() {
                "type" => kind = Some(read::text(&At::Field(&at, "type"), value)?),
                "text" => text = Some(value),
                _ => {}
            }
        }
        match kind.as_deref() {
            Some("text") => {}
            Some(kind @ ("image_url" | "input_audio" | "file" | "video_url" | "refusal")) => {
                return Err(Fault::unsupported(
                    At::Field(&at, "type").to_string(),
                    format!("`{at}`: parts of the type `{kind}` are not supported, only `text`"),
                ));
            }
            Some(_) => {
                let at = At::Field(&at, "type").to_string();
                let message = format!("`{at}` must be `text`");
                return Err(Fault::invalid(at, message));
            }
            None => return Err(Fault::missing(&At::Field(&at, "type").to_string())),
        }
        let at = At::Field(&at, "text");
        joined += &read::text(&at, text.ok_or_else(|| Fault::missing(&at.to_string()))?)?;
    }
    Ok(joined)
}
