//! What a caller asks of the engine and what comes back.

use std::collections::HashMap;

use crate::{
    adapter::Lease,
    error::Error,
    ids::{Tenant, TokenId},
};

/// What the model is to continue.
#[derive(Debug, Clone)]
pub enum Prompt {
    /// Text, tokenised with the model's special tokens.
    Text(String),
    /// Token ids.
    Tokens(Vec<TokenId>),
    /// A conversation, rendered through the model's chat template.
    Chat(ChatPrompt),
}

/// A conversation as the chat template reads it.
#[derive(Debug, Clone, Default)]
pub struct ChatPrompt {
    /// A JSON array of message objects.
    pub messages: serde_json::Value,
    /// A JSON array of tool definitions.
    pub tools: Option<serde_json::Value>,
    /// A JSON object of further template variables; `add_generation_prompt` is true unless it says otherwise.
    pub arguments: Option<serde_json::Value>,
}

/// One request: one prompt, `choices` continuations. The engine validates it in [`crate::engine::Engine::submit`].
#[derive(Debug, Clone)]
pub struct GenerateRequest {
    /// The prompt.
    pub prompt: Prompt,
    /// The adapter, already leased (it may still be loading); none for the base model.
    pub adapter: Option<Lease>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Continuations to generate, at least 1. They share the prompt's KV.
    pub choices: u32,
    /// The most tokens for each choice; none means up to the end of the context. With 0 only the prompt is computed.
    pub max_tokens: Option<u32>,
    /// No end-of-sequence or stop token before this many tokens: those that would end the choice are not sampled.
    pub min_tokens: u32,
    /// Tokens that end a choice, beside the model's own.
    pub stop_tokens: Vec<TokenId>,
    /// Go on over end-of-sequence tokens.
    pub ignore_eos: bool,
    /// Return log probabilities of generated tokens, with this many alternatives (0 is only the token itself).
    pub logprobs: Option<u32>,
    /// Return log probabilities of the prompt's tokens, with this many alternatives.
    pub prompt_logprobs: Option<u32>,
    /// Keep the last so many tokens of the prompt only.
    pub truncate: Option<u32>,
    /// On whose account.
    pub tenant: Tenant,
    /// Higher goes first.
    pub priority: i32,
    /// The most sequences of this tenant's that may run or wait at a time.
    pub max_concurrent: Option<u32>,
    /// Share the prefix cache only with requests that name the same salt: whether a prompt was seen before shows in the time
    /// that it takes.
    pub cache_salt: Option<String>,
}

impl GenerateRequest {
    /// A request for one greedy continuation by the base model.
    pub fn new(prompt: Prompt) -> Self {
        Self {
            prompt,
            adapter: None,
            sampling: SamplingParams::default(),
            choices: 1,
            max_tokens: None,
            min_tokens: 0,
            stop_tokens: Vec::new(),
            ignore_eos: false,
            logprobs: None,
            prompt_logprobs: None,
            truncate: None,
            tenant: Tenant(String::new()),
            priority: 0,
            max_concurrent: None,
            cache_salt: None,
        }
    }
}

/// How tokens are chosen. The defaults change nothing: greedy is `temperature == 0`.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Softmax temperature, `>= 0`; 0 is greedy.
    pub temperature: f32,
    /// Nucleus sampling (Holtzman et al. 2020), `0 < top_p <= 1`.
    pub top_p: f32,
    /// Keep so many of the likeliest tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep tokens at least this likely as a share of the likeliest, `0..=1`.
    pub min_p: f32,
    /// Locally typical sampling (Meister et al. 2023), `0 < typical_p <= 1`.
    pub typical_p: f32,
    /// Over prompt and output (Keskar et al. 2019), `> 0`; 1 changes nothing.
    pub repetition_penalty: f32,
    /// Times the count of the token in the output so far (OpenAI), `-2..=2`.
    pub frequency_penalty: f32,
    /// Once for a token in the output so far (OpenAI), `-2..=2`.
    pub presence_penalty: f32,
    /// Added to the logits.
    pub logit_bias: HashMap<TokenId, f32>,
    /// Only these tokens, if any are named.
    pub allowed_tokens: Option<Vec<TokenId>>,
    /// Never these tokens.
    pub banned_tokens: Vec<TokenId>,
    /// The key of the counter-based generator; the engine draws one if there is none.
    pub seed: Option<u64>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: HashMap::new(),
            allowed_tokens: None,
            banned_tokens: Vec::new(),
            seed: None,
        }
    }
}

/// A token with what is known of its probability.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenInfo {
    /// The token.
    pub id: TokenId,
    /// Natural logarithm of its probability under the model, before temperature and penalties: finite. None for the
    /// first token of a prompt.
    pub logprob: Option<f32>,
    /// The likeliest tokens at its place, best first.
    pub top: Vec<(TokenId, f32)>,
}

/// Why a choice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// An end-of-sequence token or one of the request's stop tokens.
    Eos,
    /// The token limit or the end of the context.
    Length,
    /// The caller ended it with [`crate::engine::GenerationStream::stop_choice`].
    Stopped,
}

/// What comes back, in order. After [`Event::Done`] or [`Event::Failed`] nothing follows.
#[derive(Debug, Clone)]
pub enum Event {
    /// The prompt has been computed. Comes once, before the first text.
    Prefilled {
        /// Prompt tokens whose keys and values came from the prefix cache.
        cached_tokens: usize,
        /// The prompt's tokens, if `prompt_logprobs` asked for them.
        prompt: Vec<TokenInfo>,
    },
    /// One generated token of one choice.
    Token {
        /// Which choice, from 0.
        choice: u32,
        /// The text that became complete with it; may be empty. Special tokens, and the one that ends the choice, give
        /// none.
        text: String,
        /// The token; `logprob` is set if the request asked for it.
        token: TokenInfo,
    },
    /// A choice ended. Text that was held back as incomplete UTF-8 comes first, here.
    Finished {
        /// Which choice.
        choice: u32,
        /// What was left of the text.
        text: String,
        /// Why.
        reason: FinishReason,
        /// Tokens generated, an end-of-sequence token counted.
        generated: usize,
    },
    /// All choices ended.
    Done,
    /// The request failed. Other requests are not affected.
    Failed(Error),
}
