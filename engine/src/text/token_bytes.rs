//! The bytes that each token stands for, computed once from the tokenizer's decoder.
//!
//! A decoder of the `tokenizers` crate turns a list of tokens into text. Those of generating models do so token by token, but
//! for the space before the first word; so they come down to a table, and to [`Leading`].

use std::collections::HashMap;

use tokenizers::{Decoder, DecoderWrapper};

use crate::{
    error::{Error, Result},
    ids::TokenId,
};

/// What a decoder does to the beginning of a text. SentencePiece puts a space before the first word when it encodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leading {
    /// Nothing.
    Keep,
    /// So many spaces are taken away.
    Strip(usize),
    /// All spaces of the first token are taken away.
    StripToken,
}

/// The table.
#[derive(Debug)]
pub(super) struct TokenBytes {
    /// The bytes of all tokens, one after the other.
    bytes: Vec<u8>,
    /// Where the bytes of each token end.
    ends: Vec<u32>,
    special: Vec<bool>,
    leading: Leading,
}

impl TokenBytes {
    pub(super) fn new(tokenizer: &tokenizers::Tokenizer) -> Result<Self> {
        let decoder = tokenizer.get_decoder().ok_or_else(|| {
            unsupported("has no decoder; one of ByteLevel, ByteFallback or Metaspace was expected")
        })?;
        let plan = Plan::new(decoder)?;
        let added = tokenizer.get_added_vocabulary();
        let size = tokenizer
            .get_vocab(true)
            .values()
            .max()
            .map_or(0, |&id| id as usize + 1);
        let mut table = Self {
            bytes: Vec::new(),
            ends: Vec::with_capacity(size),
            special: Vec::with_capacity(size),
            leading: plan.leading,
        };
        for id in 0..size as u32 {
            // As `tokenizers::Tokenizer::decode` looks a token up.
            let content = tokenizer.id_to_token(id);
            let special = content
                .as_deref()
                .is_some_and(|content| added.is_special_token(content));
            if let Some(content) = content.filter(|_| !special) {
                table.bytes.extend(plan.bytes(content)?);
            }
            table.ends.push(table.bytes.len() as u32);
            table.special.push(special);
        }
        Ok(table)
    }

    /// One more than the highest id.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The bytes of a token; none for special and unknown ones.
    pub(super) fn of(&self, token: TokenId) -> &[u8] {
        let id = token.0 as usize;
        let Some(&end) = self.ends.get(id) else {
            return &[];
        };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start as usize..end as usize]
    }

    pub(super) fn is_special(&self, token: TokenId) -> bool {
        self.special.get(token.0 as usize).copied().unwrap_or(false)
    }

    pub(super) fn leading(&self) -> Leading {
        self.leading
    }
}

/// A decoder as steps on one token.
struct Plan<'a> {
    steps: Vec<&'a DecoderWrapper>,
    /// Byte-level BPE's letters for bytes.
    letters: HashMap<char, u8>,
    leading: Leading,
}

impl<'a> Plan<'a> {
    fn new(decoder: &'a DecoderWrapper) -> Result<Self> {
        let mut plan = Self {
            steps: Vec::new(),
            letters: byte_letters().map(|(byte, letter)| (letter, byte)).collect(),
            leading: Leading::Keep,
        };
        let mut fused = false;
        for step in flatten(decoder) {
            match step {
                DecoderWrapper::Fuse(_) => fused = true,
                // After Fuse the text is one piece.
                DecoderWrapper::Strip(strip) if fused && strip.content == ' ' && strip.stop == 0 => {
                    plan.leading = Leading::Strip(strip.start);
                }
                DecoderWrapper::Metaspace(metaspace) if !fused => {
                    if metaspace.prepend_scheme != tokenizers::pre_tokenizers::metaspace::PrependScheme::Never
                    {
                        plan.leading = Leading::StripToken;
                    }
                    plan.steps.push(step);
                }
                DecoderWrapper::ByteLevel(_)
                | DecoderWrapper::ByteFallback(_)
                | DecoderWrapper::Replace(_)
                    if !fused =>
                {
                    plan.steps.push(step);
                }
                other => {
                    let kind = serde_json::to_value(other).unwrap_or_default();
                    return Err(unsupported(&format!(
                        "decodes by {kind}; ByteLevel, ByteFallback, Metaspace and Replace are supported, and Strip of leading spaces after Fuse"
                    )));
                }
            }
        }
        Ok(plan)
    }

    /// The bytes of a token by its content in the vocabulary.
    fn bytes(&self, content: String) -> Result<Vec<u8>> {
        let mut text = content;
        for step in &self.steps {
            match step {
                DecoderWrapper::ByteLevel(_) => {
                    let bytes: Option<Vec<u8>> = text
                        .chars()
                        .map(|char| self.letters.get(&char).copied())
                        .collect();
                    // Added tokens are spelt out.
                    return Ok(bytes.unwrap_or_else(|| text.into_bytes()));
                }
                DecoderWrapper::ByteFallback(_) => {
                    if let Some(byte) = fallback_byte(&text) {
                        return Ok(vec![byte]);
                    }
                }
                DecoderWrapper::Metaspace(metaspace) => text = text.replace(metaspace.get_replacement(), " "),
                step => {
                    let pieces = step.decode_chain(vec![text]);
                    text = pieces
                        .map_err(|error| Error::Tokenizer(error.to_string()))?
                        .concat();
                }
            }
        }
        Ok(text.into_bytes())
    }
}

/// The decoders of a sequence, of sequences too.
fn flatten(decoder: &DecoderWrapper) -> Vec<&DecoderWrapper> {
    match decoder {
        DecoderWrapper::Sequence(sequence) => sequence.get_decoders().iter().flat_map(flatten).collect(),
        one => vec![one],
    }
}

/// `<0x0A>` is the byte 10.
fn fallback_byte(content: &str) -> Option<u8> {
    let digits = content.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2)
        .then(|| u8::from_str_radix(digits, 16).ok())
        .flatten()
}

/// The letters that byte-level BPE writes bytes as (GPT-2, `bytes_to_unicode`): printable ones stand for themselves, the others for
/// the letters from U+0100 on, in their order.
fn byte_letters() -> impl Iterator<Item = (u8, char)> {
    let mut next = 0x100..;
    (0..=u8::MAX).map(move |byte| match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => (byte, char::from(byte)),
        _ => (
            byte,
            next.next()
                .and_then(char::from_u32)
                .unwrap_or(char::REPLACEMENT_CHARACTER),
        ),
    })
}

fn unsupported(what: &str) -> Error {
    Error::Tokenizer(format!("it {what}"))
}
