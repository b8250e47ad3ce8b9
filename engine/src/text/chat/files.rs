//! Where a model's chat template is found.

use std::borrow::Cow;

use candle_core::quantized::gguf_file;
use minijinja::Value;
use serde_json::Value as Json;

use super::{ChatTemplate, DEFAULT, TOOL_USE};
use crate::{
    error::{Error, Result},
    hub::Files,
    text::gguf,
};

/// The special tokens that templates know by name.
const SPECIAL: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

impl ChatTemplate {
    /// The chat template of a model's files, or of a GGUF file; none if it has none.
    ///
    /// As transformers looks for it: `chat_template.jinja`, `chat_template.json`, then `tokenizer_config.json`, which may hold one
    /// template or a list of named ones. With more than one, `tool_use` is for conversations with tools. The special tokens come
    /// from `tokenizer_config.json` and `special_tokens_map.json`.
    ///
    /// # Errors
    /// A file is not what it should be, or the template does not compile.
    pub fn from_files(files: &Files) -> Result<Option<Self>> {
        if let Files::Gguf(path) = files {
            return Self::from_gguf(&gguf::read(path)?);
        }
        let config = read_json(files, "tokenizer_config.json")?.unwrap_or_default();
        let mut templates = match read_text(files, "chat_template.jinja")? {
            Some(source) => vec![(DEFAULT.to_owned(), source)],
            None => match read_json(files, "chat_template.json")? {
                Some(file) => named_templates(file.get("chat_template"))?,
                None => named_templates(config.get("chat_template"))?,
            },
        };
        if let Some(source) = read_text(files, "additional_chat_templates/tool_use.jinja")? {
            templates.push((TOOL_USE.to_owned(), source));
        }
        if templates.is_empty() {
            return Ok(None);
        }
        let map = read_json(files, "special_tokens_map.json")?.unwrap_or_default();
        Self::compile(templates, special_tokens(&[&map, &config])).map(Some)
    }

    /// The chat template in a GGUF file's metadata; none if it has none.
    ///
    /// # Errors
    /// The template does not compile.
    pub fn from_gguf(content: &gguf_file::Content) -> Result<Option<Self>> {
        const KEY: &str = "tokenizer.chat_template";
        let metadata = &content.metadata;
        let template = |name: &str, key: &str| Some((name.to_owned(), gguf::text(metadata, key)?.to_owned()));
        let templates = [
            template(DEFAULT, KEY),
            template(TOOL_USE, &format!("{KEY}.{TOOL_USE}")),
        ];
        let templates: Vec<_> = templates.into_iter().flatten().collect();
        if templates.is_empty() {
            return Ok(None);
        }
        let ids = [
            ("bos_token", "tokenizer.ggml.bos_token_id"),
            ("eos_token", "tokenizer.ggml.eos_token_id"),
            ("unk_token", "tokenizer.ggml.unknown_token_id"),
            ("pad_token", "tokenizer.ggml.padding_token_id"),
        ];
        let tokens = ids
            .iter()
            .filter_map(|(name, key)| Some(((*name).to_owned(), gguf::token(metadata, key)?.into())));
        Self::compile(templates, tokens.collect()).map(Some)
    }
}

/// A template, or a list of `{"name", "template"}`.
fn named_templates(value: Option<&Json>) -> Result<Vec<(String, String)>> {
    let wrong =
        || Error::Template("`chat_template` is neither a template nor a list of named ones".to_owned());
    match value {
        None | Some(Json::Null) => Ok(Vec::new()),
        Some(Json::String(source)) => Ok(vec![(DEFAULT.to_owned(), source.clone())]),
        Some(Json::Array(list)) => {
            let text = |entry: &Json, key| entry.get(key).and_then(Json::as_str).map(str::to_owned);
            let named = |entry| Some((text(entry, "name")?, text(entry, "template")?));
            list.iter().map(|entry| named(entry).ok_or_else(wrong)).collect()
        }
        Some(_) => Err(wrong()),
    }
}

/// The special tokens by name; later files win.
fn special_tokens(files: &[&Json]) -> Vec<(String, Value)> {
    // A token is a text, or an object with its content.
    let content = |token: &Json| {
        token
            .as_str()
            .or_else(|| token.get("content")?.as_str())
            .map(Value::from)
    };
    let mut tokens = Vec::new();
    for file in files {
        for name in SPECIAL {
            if let Some(token) = file.get(name).and_then(content) {
                tokens.push((name.to_owned(), token));
            }
        }
        if let Some(Json::Array(additional)) = file.get("additional_special_tokens") {
            let additional: Vec<Value> = additional.iter().filter_map(content).collect();
            tokens.push(("additional_special_tokens".to_owned(), Value::from(additional)));
        }
        if let Some(Json::Object(extra)) = file.get("extra_special_tokens") {
            tokens.extend(
                extra
                    .iter()
                    .filter_map(|(name, token)| Some((name.clone(), content(token)?))),
            );
        }
    }
    tokens
}

fn read_text(files: &Files, name: &str) -> Result<Option<String>> {
    let text = |bytes: Cow<'static, [u8]>| {
        String::from_utf8(bytes.into_owned()).map_err(|_| Error::Template(format!("{name} is not UTF-8")))
    };
    files.read(name)?.map(text).transpose()
}

fn read_json(files: &Files, name: &str) -> Result<Option<Json>> {
    let json = |bytes: Cow<'static, [u8]>| {
        serde_json::from_slice(&bytes)
            .map_err(|error| Error::Template(format!("{name} is not JSON: {error}")))
    };
    files.read(name)?.map(json).transpose()
}
