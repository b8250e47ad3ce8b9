//! The host's side of the contract's resources: plain values that a plugin sees through handles.

use std::sync::Arc;

use super::bindings::heddle::plugin::generation::{Framing, Prompt, Token};

/// The head of a request (`http.request-head`).
#[derive(Debug, Clone)]
pub struct RequestHead(pub Arc<HeadParts>);

/// What a request's head holds.
#[derive(Debug)]
pub struct HeadParts {
    /// In upper case.
    pub method: String,
    /// Without the query.
    pub path: String,
    /// Behind the `?`.
    pub query: Option<String>,
    /// Header fields, credentials left out.
    pub headers: Vec<(String, String)>,
    /// The client's address.
    pub peer: Option<String>,
    /// The id of the request.
    pub request_id: String,
}

/// A secret of the caller's (`http.credential`). Its `Debug` shows nothing of it.
#[derive(Clone, Default)]
pub struct Credential {
    /// The secret.
    pub secret: Option<Arc<str>>,
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.secret.is_some() {
            "Credential(present)"
        } else {
            "Credential(absent)"
        })
    }
}

/// A generation as a protocol plugin asks for it (`generation.request`): nothing is validated yet.
#[derive(Debug, Clone, Default)]
pub struct GenerationCall {
    /// The prompts, at least one.
    pub prompts: Vec<Prompt>,
    /// `model`, as written.
    pub model: String,
    /// An adapter named apart from `model`.
    pub adapter: Option<String>,
    /// Where the adapter comes from.
    pub adapter_source: Option<String>,
    /// The body's `api_token`.
    pub api_token: Credential,
    /// How the answer is framed.
    pub framing: Option<Framing>,
    /// Limits and choices.
    pub max_tokens: Option<u32>,
    /// See `set-min-tokens`.
    pub min_tokens: u32,
    /// See `set-choices`.
    pub choices: Option<u32>,
    /// See `set-best-of`.
    pub best_of: Option<u32>,
    /// See `set-temperature`.
    pub temperature: Option<f32>,
    /// See `set-top-p`.
    pub top_p: Option<f32>,
    /// See `set-top-k`.
    pub top_k: Option<u32>,
    /// See `set-min-p`.
    pub min_p: Option<f32>,
    /// See `set-typical-p`.
    pub typical_p: Option<f32>,
    /// See `set-repetition-penalty`.
    pub repetition_penalty: Option<f32>,
    /// See `set-frequency-penalty`.
    pub frequency_penalty: Option<f32>,
    /// See `set-presence-penalty`.
    pub presence_penalty: Option<f32>,
    /// See `set-logit-bias`.
    pub logit_bias: Vec<(u32, f32)>,
    /// See `set-seed`.
    pub seed: Option<u64>,
    /// See `set-stop`.
    pub stop: Vec<String>,
    /// See `set-stop`.
    pub keep_stop: bool,
    /// See `set-stop-tokens`.
    pub stop_tokens: Vec<u32>,
    /// See `set-ignore-eos`.
    pub ignore_eos: bool,
    /// See `set-logprobs`.
    pub logprobs: Option<u32>,
    /// See `set-prompt-logprobs`.
    pub prompt_logprobs: Option<u32>,
    /// See `set-echo`.
    pub echo: bool,
    /// See `set-truncate`.
    pub truncate: Option<u32>,
}

/// What serves a request (`generation.served`).
#[derive(Debug, Clone)]
pub struct Served {
    /// Unique, without a prefix.
    pub id: String,
    /// Seconds since 1970-01-01 UTC.
    pub created: u64,
    /// The adapter's name, or the base model's.
    pub model: String,
    /// The base model's name.
    pub base_model: String,
    /// Tokens of all prompts.
    pub prompt_tokens: u32,
    /// Tokens of each prompt, if asked for.
    pub prompts: Vec<Vec<Token>>,
    /// The seed.
    pub seed: u64,
}

/// What is asked for (`access.target`).
#[derive(Debug, Clone, Default)]
pub struct Target {
    /// `generate` or `models`.
    pub operation: String,
    /// `model`, as written.
    pub model: String,
    /// The adapter it resolved to.
    pub adapter: Option<String>,
    /// Where that comes from.
    pub source: Option<String>,
}

/// What the caller may have (`access.grant`).
#[derive(Debug, Clone, Default)]
pub struct Grant {
    /// On whose account.
    pub tenant: String,
    /// Higher goes first.
    pub priority: i32,
    /// The most tokens of one choice.
    pub max_tokens: Option<u32>,
    /// The most sequences at a time.
    pub max_concurrent: Option<u32>,
    /// Whether the caller's own credential is used at the adapter's source.
    pub callers_credential: bool,
}
