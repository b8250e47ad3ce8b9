//! The tokenizer that a GGUF file describes, as a `tokenizer.json`.
//!
//! The file holds the vocabulary, and names the rules by which a text is cut before merging (`tokenizer.ggml.pre`); the rules
//! themselves are llama.cpp's (`src/llama-vocab.cpp`) and, where a model has one, those of its own `tokenizer.json`.

use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    io::BufReader,
    path::Path,
};

use candle_core::quantized::gguf_file::{self, Value};
use serde_json::{Map, json};

use crate::error::{Error, Result};

type Metadata = HashMap<String, Value>;

const TOKENS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";

/// SentencePiece's space.
const SPACE: &str = "\u{2581}";

/// Reads the header of a GGUF file.
pub(super) fn read(path: &Path) -> Result<gguf_file::Content> {
    let file = File::open(path).map_err(|error| Error::io(path, error))?;
    gguf_file::Content::read(&mut BufReader::new(file)).map_err(|error| Error::Model {
        path: path.to_owned(),
        reason: error.to_string(),
    })
}

/// The text of a key, if the file has it.
pub(super) fn text<'a>(metadata: &'a Metadata, key: &str) -> Option<&'a str> {
    metadata.get(key)?.to_string().ok().map(String::as_str)
}

/// The content of the token that a key gives the id of: `tokenizer.ggml.bos_token_id`.
pub(super) fn token<'a>(metadata: &'a Metadata, key: &str) -> Option<&'a str> {
    let id = metadata.get(key)?.to_u64().ok()?;
    let tokens = metadata.get(TOKENS)?.to_vec().ok()?;
    tokens
        .get(usize::try_from(id).ok()?)?
        .to_string()
        .ok()
        .map(String::as_str)
}

/// The `tokenizer.json` of the file's tokenizer.
pub(super) fn tokenizer_json(metadata: &Metadata) -> Result<serde_json::Value> {
    let vocabulary = Vocabulary::read(metadata)?;
    let (parts, add_bos) = match required_text(metadata, "tokenizer.ggml.model")? {
        "gpt2" => byte_level_bpe(metadata, &vocabulary)?,
        "llama" => sentence_piece(metadata, &vocabulary)?,
        other => {
            return Err(Error::Tokenizer(format!(
                "tokenizer.ggml.model `{other}` is not supported; `gpt2` and `llama` are"
            )));
        }
    };
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": vocabulary.added(),
        "normalizer": parts.normalizer,
        "pre_tokenizer": parts.pre_tokenizer,
        "post_processor": post_processor(metadata, &vocabulary, add_bos)?,
        "decoder": parts.decoder,
        "model": parts.model,
    }))
}

/// What the kinds of tokenizers differ in.
struct Parts {
    normalizer: serde_json::Value,
    pre_tokenizer: serde_json::Value,
    decoder: serde_json::Value,
    model: serde_json::Value,
}

/// The vocabulary: contents by id, with their types.
struct Vocabulary<'a> {
    tokens: Vec<&'a str>,
    types: Vec<i64>,
}

impl<'a> Vocabulary<'a> {
    fn read(metadata: &'a Metadata) -> Result<Self> {
        let tokens = strings(metadata, TOKENS)?;
        let types = match metadata.get("tokenizer.ggml.token_type") {
            Some(types) => numbers(types).unwrap_or_default(),
            None => vec![1.0; tokens.len()],
        };
        if types.len() != tokens.len() {
            return Err(Error::Tokenizer(format!(
                "tokenizer.ggml.token_type has {} numbers for {} tokens",
                types.len(),
                tokens.len()
            )));
        }
        Ok(Self {
            tokens,
            types: types.into_iter().map(|number| number as i64).collect(),
        })
    }

    /// The tokens that are looked for before anything else: control (3) and unknown (2), which are special, and user-defined (4).
    fn added(&self) -> Vec<serde_json::Value> {
        let typed = self.tokens.iter().zip(&self.types).enumerate();
        typed
            .filter(|(_, (_, kind))| matches!(kind, 2..=4))
            .map(|(id, (content, kind))| {
                json!({
                    "id": id,
                    "content": content,
                    "single_word": false,
                    "lstrip": false,
                    "rstrip": false,
                    "normalized": false,
                    "special": *kind != 4,
                })
            })
            .collect()
    }

    fn ids(&self) -> Map<String, serde_json::Value> {
        let ids = self.tokens.iter().zip(0_u32..);
        ids.map(|(&content, id)| (content.to_owned(), id.into()))
            .collect()
    }
}

/// Byte-level BPE. Returns whether BOS comes first by default, too.
fn byte_level_bpe(metadata: &Metadata, vocabulary: &Vocabulary<'_>) -> Result<(Parts, bool)> {
    /// GPT-2's rule, which `ByteLevel` has built in.
    const GPT_2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
    let byte_level = |regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex});
    let split = |regex: &str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
    let sequence = |steps: &[serde_json::Value]| json!({"type": "Sequence", "pretokenizers": steps});
    let pre = text(metadata, "tokenizer.ggml.pre").unwrap_or("default");
    let (pre_tokenizer, llama_3, nfc) = match pre {
        "smollm" => {
            let digits = json!({"type": "Digits", "individual_digits": true});
            (sequence(&[digits, byte_level(true)]), false, false)
        }
        "llama-bpe" | "llama-v3" | "llama3" => {
            let rule = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
            (sequence(&[split(rule), byte_level(false)]), true, false)
        }
        "qwen2" => {
            let rule = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
            (sequence(&[split(rule), byte_level(false)]), false, true)
        }
        "gpt-2" => (byte_level(true), false, false),
        // What llama.cpp does with files that name no rule.
        "default" => {
            let rules = [r"[\p{P}\$\+<=>\^~\|]+", GPT_2, r"\p{N}+", "[0-9][0-9][0-9]"];
            let mut steps: Vec<_> = rules.into_iter().map(split).collect();
            steps.push(byte_level(false));
            (sequence(&steps), false, false)
        }
        other => {
            return Err(Error::Tokenizer(format!(
                "tokenizer.ggml.pre `{other}` is not supported; smollm, llama-bpe, qwen2, gpt-2 and default are"
            )));
        }
    };
    let parts = Parts {
        normalizer: if nfc { json!({"type": "NFC"}) } else { json!(null) },
        pre_tokenizer,
        decoder: json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
        model: json!({
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            // A word that is a token as a whole is not put together by merges.
            "ignore_merges": llama_3,
            "vocab": vocabulary.ids(),
            "merges": strings(metadata, MERGES)?,
        }),
    };
    Ok((parts, llama_3))
}

/// SentencePiece's BPE with byte fallback, as transformers converts it (`LlamaConverter`). Returns whether BOS comes first by
/// default, too.
fn sentence_piece(metadata: &Metadata, vocabulary: &Vocabulary<'_>) -> Result<(Parts, bool)> {
    let scores = metadata
        .get(SCORES)
        .and_then(numbers)
        .ok_or_else(|| missing(SCORES))?;
    if scores.len() != vocabulary.tokens.len() {
        return Err(Error::Tokenizer(format!(
            "{SCORES} has {} numbers for {} tokens",
            scores.len(),
            vocabulary.tokens.len()
        )));
    }
    let unknown = token(metadata, "tokenizer.ggml.unknown_token_id").or(vocabulary.tokens.first().copied());
    let prefix = flag(metadata, "tokenizer.ggml.add_space_prefix").unwrap_or(true);
    let to_space = json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE});
    let from_space = json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "});
    let normalizers = [json!({"type": "Prepend", "prepend": SPACE}), to_space];
    let decoders = [
        from_space,
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
        json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}),
    ];
    let parts = Parts {
        normalizer: json!({"type": "Sequence", "normalizers": normalizers[usize::from(!prefix)..]}),
        pre_tokenizer: json!(null),
        decoder: json!({"type": "Sequence", "decoders": decoders[..decoders.len() - usize::from(!prefix)]}),
        model: json!({
            "type": "BPE",
            "dropout": null,
            "unk_token": unknown,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": true,
            "byte_fallback": true,
            "ignore_merges": false,
            "vocab": vocabulary.ids(),
            "merges": merges_by_score(vocabulary, &scores),
        }),
    };
    Ok((parts, true))
}

/// SentencePiece merges the pair whose union has the highest score. As a list of merges that is every way to cut a token in two
/// tokens, by falling score (transformers, `generate_merges`).
fn merges_by_score<'a>(vocabulary: &Vocabulary<'a>, scores: &[f64]) -> Vec<[&'a str; 2]> {
    // Control, user-defined and unused tokens, and bytes, are not put together from others.
    let normal = |id: &usize| vocabulary.types[*id] == 1;
    let by_content: HashMap<&str, usize> = (0..vocabulary.tokens.len())
        .filter(normal)
        .map(|id| (vocabulary.tokens[id], id))
        .collect();
    let mut merges = Vec::new();
    for id in (0..vocabulary.tokens.len()).filter(normal) {
        let content = vocabulary.tokens[id];
        for (middle, _) in content.char_indices().skip(1) {
            let (left, right) = content.split_at(middle);
            if let (Some(&left_id), Some(&right_id)) = (by_content.get(left), by_content.get(right)) {
                merges.push((scores[id], id, left_id, right_id, [left, right]));
            }
        }
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2, a.3).cmp(&(b.1, b.2, b.3))));
    merges.into_iter().map(|merge| merge.4).collect()
}

/// Puts BOS and EOS around a text, as the file says.
fn post_processor(
    metadata: &Metadata,
    vocabulary: &Vocabulary<'_>,
    add_bos: bool,
) -> Result<serde_json::Value> {
    let add_bos = flag(metadata, "tokenizer.ggml.add_bos_token").unwrap_or(add_bos);
    let add_eos = flag(metadata, "tokenizer.ggml.add_eos_token").unwrap_or(false);
    if !add_bos && !add_eos {
        return Ok(json!(null));
    }
    let mut specials = BTreeMap::new();
    let mut special = |key: &str| -> Result<serde_json::Value> {
        let content = token(metadata, key).ok_or_else(|| missing(key))?;
        let id = vocabulary.tokens.iter().position(|&other| other == content);
        specials.insert(
            content.to_owned(),
            json!({"id": content, "ids": [id], "tokens": [content]}),
        );
        Ok(json!({"SpecialToken": {"id": content, "type_id": 0}}))
    };
    let mut single = vec![json!({"Sequence": {"id": "A", "type_id": 0}})];
    if add_bos {
        single.insert(0, special("tokenizer.ggml.bos_token_id")?);
    }
    if add_eos {
        single.push(special("tokenizer.ggml.eos_token_id")?);
    }
    let pair = [
        single.clone(),
        vec![json!({"Sequence": {"id": "B", "type_id": 0}})],
    ]
    .concat();
    Ok(json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": specials}))
}

fn missing(key: &str) -> Error {
    Error::Tokenizer(format!("the GGUF file has no `{key}`"))
}

fn required_text<'a>(metadata: &'a Metadata, key: &str) -> Result<&'a str> {
    text(metadata, key).ok_or_else(|| missing(key))
}

fn flag(metadata: &Metadata, key: &str) -> Option<bool> {
    metadata.get(key)?.to_bool().ok()
}

fn strings<'a>(metadata: &'a Metadata, key: &str) -> Result<Vec<&'a str>> {
    let values = metadata
        .get(key)
        .and_then(|value| value.to_vec().ok())
        .ok_or_else(|| missing(key))?;
    let texts = values
        .iter()
        .map(|value| value.to_string().ok().map(String::as_str));
    texts
        .collect::<Option<_>>()
        .ok_or_else(|| Error::Tokenizer(format!("`{key}` is not a list of texts")))
}

/// An array of numbers of any kind.
fn numbers(value: &Value) -> Option<Vec<f64>> {
    let number = |value: &Value| match value {
        Value::F32(number) => Some((*number).into()),
        Value::F64(number) => Some(*number),
        Value::I8(number) => Some((*number).into()),
        Value::I16(number) => Some((*number).into()),
        Value::I32(number) => Some((*number).into()),
        other => other.to_u64().ok().map(|number| number as f64),
    };
    value.to_vec().ok()?.iter().map(number).collect()
}
