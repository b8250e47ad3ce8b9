//! How the next token is chosen.
//!
//! A row of logits goes through these steps, in the order in which transformers and vLLM have them:
//!
//! 1. `logit_bias` is added.
//! 2. `repetition_penalty` over prompt and output: a positive logit is divided by it, a negative one multiplied (Keskar et
//!    al., "CTRL", 2019).
//! 3. `frequency_penalty` times a token's count in the output, and `presence_penalty` once, are subtracted (OpenAI).
//! 4. Tokens that are banned, or not among the allowed ones, are masked. A mask commutes with 1 to 3.
//! 5. `temperature` 0 ends here: the token with the highest logit, the lowest id of equals.
//! 6. `temperature` divides.
//! 7. `top_k`, `top_p`, `min_p` and `typical_p`, each over the distribution that the one before left. (vLLM has `min_p`
//!    before `top_k`; transformers has it here.) Of tokens that are equally likely the lower ids stay, so `top_k` keeps
//!    exactly so many and `top_k` 1 is greedy.
//! 8. One of those that are left is drawn by its probability, in the order of ids, with a number that depends on the seed,
//!    the choice and the position only (see [`random`]).
//!
//! So a sample depends on nothing but logits, parameters, history, seed and choice: not on the batch, not on preemption, and
//! speculation that samples each position with its own number is exact.

mod adjust;
mod filter;
mod history;
mod logprobs;
mod random;
mod softmax;
#[cfg(test)]
mod tests;

use crate::{ids::TokenId, request::SamplingParams};
use adjust::Adjustments;
use filter::{Candidate, Candidates, Limits};
use softmax::{Row, Scale};

pub use history::History;
pub use logprobs::{LOWEST_LOGPROB, logprobs};

/// Chooses tokens for one sequence: one choice of one request. Its buffers are kept from token to token.
#[derive(Debug)]
pub struct Sampler {
    adjust: Adjustments,
    temperature: f32,
    limits: Limits,
    seed: u64,
    choice: u32,
    maxima: Vec<f32>,
    scratch: Vec<f32>,
    sums: Vec<f64>,
    candidates: Candidates,
}

impl Sampler {
    /// Prepares to sample with `params`, which the engine has validated. The same `seed`, `choice`, history and logits
    /// give the same token, whatever ran before or beside it.
    pub fn new(params: &SamplingParams, seed: u64, choice: u32) -> Self {
        Self {
            adjust: Adjustments::new(params),
            temperature: params.temperature,
            limits: Limits {
                top_k: params.top_k as usize,
                top_p: params.top_p.into(),
                min_p: params.min_p,
                typical_p: params.typical_p.into(),
            },
            seed,
            choice,
            maxima: Vec::new(),
            scratch: Vec::new(),
            sums: Vec::new(),
            candidates: Candidates::default(),
        }
    }

    /// Chooses the next token. `logits` is one row, `[vocab]`; it serves as scratch space and is worthless afterwards.
    ///
    /// Tokens whose logit is `-inf` or NaN are never chosen while another is left: `-inf` is how a grammar, or a ban on
    /// end-of-sequence tokens, masks them. If none is left it is the lowest id that is not `-inf`, or token 0.
    pub fn sample(&mut self, logits: &mut [f32], history: &History) -> TokenId {
        self.adjust.apply(logits, history, &mut self.scratch);
        let row = Row::new(logits, &mut self.maxima);
        let chosen = match row.max() {
            Some(max) if self.temperature > 0.0 => {
                let scale = Scale::new(max, self.temperature);
                let number = random::uniform(self.seed, self.choice, history.position());
                if self.limits.are_off() {
                    Some(draw_from_row(row, scale, number, &mut self.sums))
                } else {
                    Some(draw(self.candidates.keep(&self.limits, row, scale), number))
                }
            }
            Some(_) => row.argmax(),
            None => logits.iter().position(|logit| logit.is_nan()),
        };
        TokenId(chosen.unwrap_or(0) as u32)
    }
}

/// The candidate in whose share of the whole weight `number`, in `[0, 1)`, falls.
fn draw(kept: &[Candidate], number: f64) -> usize {
    let mut left = number * filter::total(kept);
    let mut chosen = 0;
    for candidate in kept.iter().filter(|candidate| candidate.weight > 0.0) {
        chosen = candidate.id as usize;
        left -= f64::from(candidate.weight);
        if left < 0.0 {
            break;
        }
    }
    chosen
}

/// The same over every token of a row: first the span of tokens is found by the sums of the spans, then the token in it.
fn draw_from_row(row: Row<'_>, scale: Scale, number: f64, sums: &mut Vec<f64>) -> usize {
    const SPAN: usize = 1024;
    sums.clear();
    sums.extend(row.logits.chunks(SPAN).map(|span| scale.sum(span)));
    let mut left = number * sums.iter().sum::<f64>();
    let mut chosen = 0;
    for (span, &sum) in sums.iter().enumerate().filter(|&(_, &sum)| sum > 0.0) {
        chosen = span;
        if left < sum {
            break;
        }
        left -= sum;
    }
    let first = chosen * SPAN;
    let span = row.logits.iter().enumerate().skip(first).take(SPAN);
    for (id, weight) in span
        .map(|(id, &logit)| (id, scale.weight(logit)))
        .filter(|&(_, weight)| weight > 0.0)
    {
        chosen = id;
        left -= f64::from(weight);
        if left < 0.0 {
            break;
        }
    }
    chosen
}
