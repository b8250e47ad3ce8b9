//! From a body to what is asked for.

mod fields;
mod messages;
mod prompt;
mod read;
#[cfg(test)]
mod tests;
mod unsupported;

use heddle_plugin::generation::Prompt;

use crate::Fault;

/// Which of the two ways to ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// `/v1/completions`.
    Completions,
    /// `/v1/chat/completions`.
    Chat,
}

/// A request, read and checked.
#[derive(Clone, PartialEq)]
#[cfg_attr(test, derive(Debug))]
pub struct Call {
    /// How it was asked.
    pub api: Api,
    /// `model`, as written.
    pub model: String,
    /// `adapter_source`.
    pub adapter_source: Option<String>,
    /// `api_token`.
    pub api_token: Option<String>,
    /// At least one.
    pub prompts: Vec<Prompt>,
    /// Whether to stream.
    pub stream: bool,
    /// `stream_options.include_usage`.
    pub include_usage: bool,
    /// `max_tokens` or `max_completion_tokens`.
    pub max_tokens: Option<u32>,
    /// `min_tokens`.
    pub min_tokens: Option<u32>,
    /// `n`: choices for each prompt.
    pub choices: u32,
    /// `best_of`.
    pub best_of: Option<u32>,
    /// `temperature`; 1 if it is not given.
    pub temperature: f32,
    /// `top_p`.
    pub top_p: Option<f32>,
    /// `top_k`; 0 keeps all.
    pub top_k: Option<u32>,
    /// `min_p`.
    pub min_p: Option<f32>,
    /// `typical_p`.
    pub typical_p: Option<f32>,
    /// `repetition_penalty`.
    pub repetition_penalty: Option<f32>,
    /// `frequency_penalty`.
    pub frequency_penalty: Option<f32>,
    /// `presence_penalty`.
    pub presence_penalty: Option<f32>,
    /// `logit_bias`.
    pub logit_bias: Vec<(u32, f32)>,
    /// `seed`.
    pub seed: Option<u64>,
    /// `stop`.
    pub stop: Vec<String>,
    /// `include_stop_str_in_output`.
    pub keep_stop: bool,
    /// `stop_token_ids`.
    pub stop_tokens: Vec<u32>,
    /// `ignore_eos`, `ignore_eos_token`.
    pub ignore_eos: bool,
    /// Log probabilities, with this many alternatives.
    pub logprobs: Option<u32>,
    /// `echo`.
    pub echo: bool,
    /// `truncate_prompt_tokens`.
    pub truncate: Option<u32>,
}

/// Reads a body.
///
/// # Errors
/// 400 if it is not JSON, 422 if a field is missing, of the wrong type, out of range or not supported. A wrong type is
/// found first, in the order of the body; then ranges are checked in the order in which LoRAX does.
pub fn parse(api: Api, body: &[u8]) -> Result<Call, Fault> {
    let text = std::str::from_utf8(body).map_err(|e| {
        Fault::syntax(format!(
            "The body is not JSON: it is not UTF-8 from byte {} on",
            e.valid_up_to()
        ))
    })?;
    let mut fields = fields::Fields::default();
    for (name, value) in read::body(text)? {
        if !read::is_null(value) {
            fields.set(api, &name, value)?;
        }
    }
    fields.check(api)
}
