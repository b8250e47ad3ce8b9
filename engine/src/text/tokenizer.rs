//! The model's tokenizer.

use std::{fmt, sync::Arc};

use candle_core::quantized::gguf_file;

use super::{
    Detokenizer, gguf,
    token_bytes::{Leading, TokenBytes},
};
use crate::{
    error::{Error, Result},
    hub::Files,
    ids::TokenId,
};

/// The model's tokenizer. Cheap to clone.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

struct Inner {
    tokenizer: tokenizers::Tokenizer,
    bytes: TokenBytes,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`. Truncation and padding that it may ask for are left out: they are for training.
    ///
    /// # Errors
    /// [`Error::Tokenizer`]: it is not one, or it decodes in a way that is not supported (named).
    pub fn from_json(bytes: &[u8]) -> Result<Self> {
        let mut tokenizer =
            tokenizers::Tokenizer::from_bytes(bytes).map_err(|error| Error::Tokenizer(error.to_string()))?;
        tokenizer.with_padding(None);
        tokenizer
            .with_truncation(None)
            .map_err(|error| Error::Tokenizer(error.to_string()))?;
        let bytes = TokenBytes::new(&tokenizer)?;
        Ok(Self {
            inner: Arc::new(Inner { tokenizer, bytes }),
        })
    }

    /// Builds the tokenizer that a GGUF file describes: `tokenizer.ggml.model` is `gpt2` (byte-level BPE) or `llama`
    /// (SentencePiece with byte fallback).
    ///
    /// # Errors
    /// [`Error::Tokenizer`] names the key that is missing or the kind that is not supported.
    pub fn from_gguf(content: &gguf_file::Content) -> Result<Self> {
        let json = gguf::tokenizer_json(&content.metadata)?;
        Self::from_json(&serde_json::to_vec(&json).map_err(|error| Error::Tokenizer(error.to_string()))?)
    }

    /// Reads the tokenizer of a model's files: `tokenizer.json`, or the metadata of the GGUF file.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn from_files(files: &Files) -> Result<Self> {
        if let Files::Gguf(path) = files {
            return Self::from_gguf(&gguf::read(path)?);
        }
        let bytes = files
            .read("tokenizer.json")?
            .ok_or_else(|| Error::Tokenizer("the model has no tokenizer.json".to_owned()))?;
        Self::from_json(&bytes)
    }

    /// Tokenises. `special` adds what the model puts around a text (BOS); a text that a chat template rendered has it
    /// already. Special tokens that are spelt out in the text become those tokens.
    ///
    /// # Errors
    /// [`Error::Tokenize`].
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<TokenId>> {
        let encoding = self
            .inner
            .tokenizer
            .encode_fast(text, special)
            .map_err(|error| Error::Tokenize(error.to_string()))?;
        Ok(encoding.get_ids().iter().copied().map(TokenId).collect())
    }

    /// The text of a whole sequence, special tokens left out, what is not UTF-8 replaced by U+FFFD.
    pub fn decode(&self, tokens: &[TokenId]) -> String {
        let mut detokenizer = Detokenizer::at_start(self);
        let mut text = String::new();
        for &token in tokens {
            text.push_str(&detokenizer.push(token));
        }
        text.push_str(&detokenizer.finish());
        text
    }

    /// The bytes a token stands for; empty for a special token and for one that is not in the vocabulary.
    pub fn token_bytes(&self, token: TokenId) -> Vec<u8> {
        self.bytes(token).to_vec()
    }

    /// The same, borrowed.
    pub(super) fn bytes(&self, token: TokenId) -> &[u8] {
        self.inner.bytes.of(token)
    }

    /// What happens to the space before the first word of a text.
    pub(super) fn leading(&self) -> Leading {
        self.inner.bytes.leading()
    }

    /// Whether it is a special token.
    pub fn is_special(&self, token: TokenId) -> bool {
        self.inner.bytes.is_special(token)
    }

    /// The id of a token by its exact content.
    pub fn id_of(&self, content: &str) -> Option<TokenId> {
        self.inner.tokenizer.token_to_id(content).map(TokenId)
    }

    /// The content of a token as the vocabulary spells it: `<|im_end|>`, `Ġthe`, `<0x0A>`.
    pub fn content_of(&self, token: TokenId) -> Option<String> {
        self.inner.tokenizer.id_to_token(token.0)
    }

    /// One more than the highest id. A model may have more rows of logits than that.
    pub fn vocab_size(&self) -> usize {
        self.inner.bytes.len()
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .finish_non_exhaustive()
    }
}
