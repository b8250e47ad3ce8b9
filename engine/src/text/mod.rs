//! Text: tokenizer, incremental detokenisation, chat templates.

use crate::{error::Result, ids::TokenId, request::ChatPrompt};

/// The model's tokenizer. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Tokenizer {}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    pub fn from_json(bytes: &[u8]) -> Result<Self> {
        let _ = bytes;
        todo!()
    }

    /// From a GGUF header.
    pub fn from_gguf(content: &candle_core::quantized::gguf_file::Content) -> Result<Self> {
        let _ = content;
        todo!()
    }

    /// Tokenises. `special` adds what the model puts around a text (BOS).
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<TokenId>> {
        let _ = (text, special);
        todo!()
    }

    /// The bytes a token stands for; empty for a special token.
    pub fn token_bytes(&self, token: TokenId) -> Vec<u8> {
        let _ = token;
        todo!()
    }

    /// Whether it is a special token.
    pub fn is_special(&self, token: TokenId) -> bool {
        let _ = token;
        todo!()
    }

    /// The id of a token by its exact content.
    pub fn id_of(&self, content: &str) -> Option<TokenId> {
        let _ = content;
        todo!()
    }
}

/// Turns tokens into text as they come: text is given out when it is complete UTF-8.
#[derive(Debug)]
pub struct Detokenizer {}

impl Detokenizer {
    /// Begins after a prompt.
    pub fn new(tokenizer: &Tokenizer) -> Self {
        let _ = tokenizer;
        todo!()
    }

    /// The text that became complete with this token.
    pub fn push(&mut self, token: TokenId) -> String {
        let _ = token;
        todo!()
    }

    /// What is left, incomplete sequences replaced by U+FFFD.
    pub fn finish(&mut self) -> String {
        todo!()
    }
}

/// A chat template (Jinja, as transformers renders it).
#[derive(Debug, Clone)]
pub struct ChatTemplate {}

impl ChatTemplate {
    /// Compiles a template. `bos` and `eos` are the texts of the special tokens that templates read.
    pub fn new(source: &str, bos: Option<&str>, eos: Option<&str>) -> Result<Self> {
        let _ = (source, bos, eos);
        todo!()
    }

    /// Renders a conversation.
    pub fn render(&self, chat: &ChatPrompt) -> Result<String> {
        let _ = chat;
        todo!()
    }
}
