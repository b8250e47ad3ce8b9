//! How the next token is chosen.

mod history;

use crate::{ids::TokenId, request::SamplingParams};

pub use history::History;

/// The log probability that stands for "very unlikely": OpenAI's own constant. Nothing below it is reported, so that
/// every log probability is a finite number.
pub const LOWEST_LOGPROB: f32 = -9999.0;

/// Chooses tokens for one sequence: one choice of one request.
#[derive(Debug)]
pub struct Sampler {}

impl Sampler {
    /// Prepares to sample with `params`, which the engine has validated. The same `seed`, `choice`, history and logits
    /// give the same token, whatever ran before or beside it.
    pub fn new(params: &SamplingParams, seed: u64, choice: u32) -> Self {
        let _ = (params, seed, choice);
        todo!()
    }

    /// Chooses the next token. `logits` is one row, `[vocab]`; it serves as scratch space and is worthless afterwards.
    ///
    /// Tokens whose logit is `-inf` are never chosen while another is left: that is how a grammar, or a ban on
    /// end-of-sequence tokens, masks them.
    pub fn sample(&mut self, logits: &mut [f32], history: &History) -> TokenId {
        let _ = (logits, history);
        todo!()
    }
}

/// The natural logarithm of `token`'s probability under raw `logits` (`[vocab]`), and of the `top` likeliest tokens'
/// with their ids, best first, equals by id. Each is in [`LOWEST_LOGPROB`]`..=0`.
pub fn logprobs(logits: &[f32], token: TokenId, top: usize) -> (f32, Vec<(TokenId, f32)>) {
    let _ = (logits, token, top);
    todo!()
}
