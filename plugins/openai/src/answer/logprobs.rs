//! Log probabilities, in step with the text that is shown.
//!
//! Tokens come as they are generated, text may be held back as the possible start of a stop sequence. A token is given
//! out when some of its text is shown. After a stop sequence the tokens that only made up the sequence are dropped, as
//! their text is; otherwise every token is given out. Special tokens add no text and are left out of what
//! was generated, as OpenAI does.

use std::collections::VecDeque;

use heddle_plugin::generation::{FinishReason, Token};

use super::json;
use crate::request::Api;

/// The tokens of one choice.
#[derive(Debug, Default)]
pub(super) struct Track {
    waiting: VecDeque<Token>,
    /// Bytes of text that were shown.
    shown: usize,
    /// Bytes of the tokens that were given out.
    released: usize,
    /// Characters of the tokens that were given out: the next `text_offset`.
    offset: usize,
}

/// A token that is given out, and at which character of the choice it starts.
#[derive(Debug)]
pub(super) struct Placed {
    token: Token,
    offset: usize,
}

/// How much text a token adds.
fn added(token: &Token) -> &[u8] {
    if token.special { &[] } else { &token.bytes }
}

impl Track {
    /// The prompt's tokens, for `echo`: all of them, special ones too.
    pub(super) fn echo(&mut self, prompt: Vec<Token>) {
        self.waiting.extend(prompt);
    }

    /// Tokens that were generated.
    pub(super) fn add(&mut self, tokens: Vec<Token>) {
        self.waiting
            .extend(tokens.into_iter().filter(|token| !token.special));
    }

    /// Counts text that is shown now, and gives out the tokens behind it.
    pub(super) fn show(&mut self, text: &str, finish: Option<&FinishReason>) -> Vec<Placed> {
        self.shown += text.len();
        let mut placed = Vec::new();
        while let Some(token) = self.waiting.front() {
            // As soon as some of its text is seen; at the end whatever is left, unless it belongs to what was cut.
            let due = match finish {
                None | Some(FinishReason::StopSequence(_)) => self.released < self.shown,
                Some(_) => true,
            };
            let length = added(token).len();
            let Some(token) = due.then(|| self.waiting.pop_front()).flatten() else {
                break;
            };
            let offset = self.offset;
            self.released += length;
            self.offset += added(&token).iter().filter(|&&byte| byte & 0xc0 != 0x80).count();
            placed.push(Placed { token, offset });
        }
        placed
    }
}

/// The `logprobs` of a choice.
pub(super) fn write(out: &mut String, api: Api, tokens: &[Placed]) {
    match api {
        Api::Chat => {
            *out += r#"{"content":"#;
            json::list(out, ['[', ']'], tokens, |out, Placed { token, .. }| {
                *out += r#"{"token":"#;
                entry(out, &token.text, &token.bytes, token.logprob.unwrap_or_default());
                *out += r#","top_logprobs":"#;
                json::list(out, ['[', ']'], &token.top, |out, other| {
                    *out += r#"{"token":"#;
                    entry(out, &other.text, &other.bytes, other.logprob);
                    out.push('}');
                });
                out.push('}');
            });
            *out += r#","refusal":null}"#;
        }
        Api::Completions => {
            *out += r#"{"tokens":"#;
            json::list(out, ['[', ']'], tokens, |out, placed| {
                json::text(out, &placed.token.text)
            });
            *out += r#","token_logprobs":"#;
            json::list(out, ['[', ']'], tokens, |out, placed| {
                match placed.token.logprob {
                    Some(value) => json::logprob(out, value),
                    None => *out += "null",
                }
            });
            *out += r#","top_logprobs":"#;
            json::list(out, ['[', ']'], tokens, |out, placed| {
                likeliest(out, &placed.token)
            });
            *out += r#","text_offset":"#;
            json::list(out, ['[', ']'], tokens, |out, placed| {
                json::integer(out, placed.offset as u64)
            });
            out.push('}');
        }
    }
}

/// The rest of an entry of chat's, after its `"token":`.
fn entry(out: &mut String, text: &str, bytes: &[u8], logprob: f32) {
    json::text(out, text);
    *out += r#","logprob":"#;
    json::logprob(out, logprob);
    *out += r#","bytes":"#;
    json::list(out, ['[', ']'], bytes, |out, &byte| json::integer(out, byte));
}

/// An item of completions' `top_logprobs`: the likeliest tokens by their texts, and always the token itself.
fn likeliest(out: &mut String, token: &Token) {
    let Some(own) = token.logprob else {
        *out += "null";
        return;
    };
    let mut seen: Vec<&str> = Vec::with_capacity(token.top.len() + 1);
    let all = token.top.iter().map(|other| (other.text.as_str(), other.logprob));
    let all = all.chain([(token.text.as_str(), own)]).filter(|&(text, _)| {
        // Different tokens can have the same text; the likelier one comes first.
        let new = !seen.contains(&text);
        seen.push(text);
        new
    });
    json::list(out, ['{', '}'], all, |out, (text, logprob)| {
        json::text(out, text);
        out.push(':');
        json::logprob(out, logprob);
    });
}
