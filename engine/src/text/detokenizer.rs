//! Turning tokens into text as they come.

use super::{Tokenizer, token_bytes::Leading};
use crate::ids::TokenId;

/// Turns tokens into text as they come: text is given out when it is complete UTF-8, and nothing is ever taken back or held
/// longer. Special tokens give none. Bytes that can be no part of UTF-8 become U+FFFD, as [`String::from_utf8_lossy`] has it.
///
/// The work is linear in the bytes: at most three are kept from one token to the next.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    /// The beginning of a character.
    pending: Vec<u8>,
    /// What is still to be done to the beginning of the text.
    leading: Leading,
}

impl Detokenizer {
    /// Begins after a prompt: a space before the first word is a space between it and the prompt.
    pub fn new(tokenizer: &Tokenizer) -> Self {
        Self {
            tokenizer: tokenizer.clone(),
            pending: Vec::new(),
            leading: Leading::Keep,
        }
    }

    /// Begins at the beginning of a text: the space that SentencePiece puts before the first word is left out.
    pub fn at_start(tokenizer: &Tokenizer) -> Self {
        Self {
            leading: tokenizer.leading(),
            ..Self::new(tokenizer)
        }
    }

    /// The text that became complete with this token.
    pub fn push(&mut self, token: TokenId) -> String {
        let bytes = self.tokenizer.bytes(token);
        match self.leading {
            Leading::Keep => self.pending.extend_from_slice(bytes),
            Leading::Strip(spaces) => {
                let first = bytes
                    .iter()
                    .take(spaces)
                    .take_while(|&&byte| byte == b' ')
                    .count();
                self.pending.extend_from_slice(&bytes[first..]);
                self.leading = match spaces - first {
                    0 => Leading::Keep,
                    _ if first < bytes.len() => Leading::Keep,
                    left => Leading::Strip(left),
                };
            }
            Leading::StripToken if self.tokenizer.is_special(token) => {}
            Leading::StripToken => {
                self.pending.extend(bytes.iter().filter(|&&byte| byte != b' '));
                self.leading = Leading::Keep;
            }
        }
        self.take_complete()
    }

    /// What is left, an incomplete character replaced by U+FFFD.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }

    /// Takes out of `pending` all but an incomplete character at its end.
    fn take_complete(&mut self) -> String {
        let mut text = String::new();
        let mut taken = 0;
        for chunk in self.pending.utf8_chunks() {
            text.push_str(chunk.valid());
            taken += chunk.valid().len();
            let invalid = chunk.invalid();
            if invalid.is_empty() {
                break;
            }
            let at_end = taken + invalid.len() == self.pending.len();
            let incomplete = std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
            if at_end && incomplete {
                break;
            }
            text.push(char::REPLACEMENT_CHARACTER);
            taken += invalid.len();
        }
        self.pending.drain(..taken);
        text
    }
}
