//! What comes with a model's weights: tokenizer, chat template, the tokens that end a text.

use std::collections::BTreeSet;

use candle_core::quantized::gguf_file::{Content, Value as GgufValue};
use serde_json::Value;

use super::{config::whole_number, load::path_of};
use crate::{
    error::{Error, Result},
    hub::Files,
    ids::TokenId,
    text::{ChatTemplate, Tokenizer},
};

/// What is read beside the weights.
pub(super) struct Companions {
    pub(super) tokenizer: Tokenizer,
    pub(super) chat_template: Option<ChatTemplate>,
    pub(super) eos: Vec<TokenId>,
}

/// Reads them from the files beside the weights, or from a GGUF header.
pub(super) fn read(files: &Files, gguf: Option<&Content>) -> Result<Companions> {
    match gguf {
        Some(content) => from_gguf(content),
        None => from_files(files),
    }
}

fn from_files(files: &Files) -> Result<Companions> {
    let Some(tokenizer) = files.read("tokenizer.json")? else {
        return Err(Error::Model {
            path: path_of(files),
            reason: "there is no `tokenizer.json`".to_owned(),
        });
    };
    let tokenizer = Tokenizer::from_json(&tokenizer)?;
    let tokenizer_config = json(files, "tokenizer_config.json")?;
    // An added token is a string, or an object that holds it.
    let special = |key: &str| match tokenizer_config.get(key)? {
        Value::String(text) => Some(text.clone()),
        token => token.get("content")?.as_str().map(str::to_owned),
    };
    let (bos, eos) = (special("bos_token"), special("eos_token"));
    let mut ends = BTreeSet::new();
    for file in ["generation_config.json", "config.json"] {
        ends.extend(token_ids(json(files, file)?.get("eos_token_id")));
    }
    ends.extend(eos.as_deref().and_then(|eos| tokenizer.id_of(eos)));
    let template = match files.read("chat_template.jinja")? {
        Some(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
        None => template_of(tokenizer_config.get("chat_template")),
    };
    Ok(Companions {
        chat_template: template
            .map(|source| ChatTemplate::new(&source, bos.as_deref(), eos.as_deref()))
            .transpose()?,
        eos: ends.into_iter().collect(),
        tokenizer,
    })
}

/// `chat_template` is a string, or a list of named ones of which `default` is meant.
fn template_of(value: Option<&Value>) -> Option<String> {
    match value? {
        Value::String(source) => Some(source.clone()),
        Value::Array(named) => named
            .iter()
            .find(|one| one.get("name").and_then(Value::as_str) == Some("default"))
            .and_then(|one| one.get("template")?.as_str())
            .map(str::to_owned),
        _ => None,
    }
}

/// One id or a list of them.
fn token_ids(value: Option<&Value>) -> Vec<TokenId> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok()).map(TokenId);
    match value {
        Some(Value::Array(ids)) => ids.iter().filter_map(id).collect(),
        Some(one) => id(one).into_iter().collect(),
        None => Vec::new(),
    }
}

/// A JSON object that may be absent.
fn json(files: &Files, name: &str) -> Result<Value> {
    let Some(bytes) = files.read(name)? else {
        return Ok(Value::Null);
    };
    serde_json::from_slice(&bytes).map_err(|error| Error::Model {
        path: path_of(files).join(name),
        reason: error.to_string(),
    })
}

fn from_gguf(content: &Content) -> Result<Companions> {
    let id = |key: &str| content.metadata.get(key).and_then(whole_number);
    let text = |id: usize| match content.metadata.get("tokenizer.ggml.tokens")? {
        GgufValue::Array(tokens) => tokens.get(id)?.to_string().ok().cloned(),
        _ => None,
    };
    let eos = id("tokenizer.ggml.eos_token_id");
    // A base model's end of text and a chat model's end of turn, where they differ.
    let ends: BTreeSet<_> = [
        eos,
        id("tokenizer.ggml.eot_token_id"),
        id("tokenizer.ggml.eom_token_id"),
    ]
    .into_iter()
    .flatten()
    .filter_map(|id| u32::try_from(id).ok().map(TokenId))
    .collect();
    let bos = id("tokenizer.ggml.bos_token_id").and_then(text);
    let template = match content.metadata.get("tokenizer.chat_template") {
        Some(GgufValue::String(source)) => Some(ChatTemplate::new(
            source,
            bos.as_deref(),
            eos.and_then(text).as_deref(),
        )?),
        _ => None,
    };
    Ok(Companions {
        tokenizer: Tokenizer::from_gguf(content)?,
        chat_template: template,
        eos: ends.into_iter().collect(),
    })
}
