//! Bias, penalties and masks: what is done to a row of logits before a token is chosen.

use super::History;
use crate::{ids::TokenId, request::SamplingParams};

/// What is done to logits before a token is chosen: steps 1 to 4.
#[derive(Debug)]
pub(super) struct Adjustments {
    bias: Vec<(TokenId, f32)>,
    repetition: f32,
    frequency: f32,
    presence: f32,
    /// Each once.
    allowed: Option<Vec<TokenId>>,
    banned: Vec<TokenId>,
}

impl Adjustments {
    pub(super) fn new(params: &SamplingParams) -> Self {
        Self {
            bias: params
                .logit_bias
                .iter()
                .map(|(&token, &bias)| (token, bias))
                .collect(),
            repetition: params.repetition_penalty,
            frequency: params.frequency_penalty,
            presence: params.presence_penalty,
            allowed: params.allowed_tokens.clone(),
            banned: params.banned_tokens.clone(),
        }
    }

    pub(super) fn apply(&self, logits: &mut [f32], history: &History, scratch: &mut Vec<f32>) {
        for &(token, bias) in &self.bias {
            change(logits, token, |logit| logit + bias);
        }
        if self.repetition != 1.0 {
            for token in history.distinct() {
                change(logits, token, |logit| {
                    if logit > 0.0 {
                        logit / self.repetition
                    } else {
                        logit * self.repetition
                    }
                });
            }
        }
        if self.frequency != 0.0 || self.presence != 0.0 {
            for (token, count) in history.counts() {
                change(logits, token, |logit| {
                    logit - self.frequency * count as f32 - self.presence
                });
            }
        }
        if let Some(allowed) = &self.allowed {
            let logit_of = |token: &TokenId| logits.get(token.0 as usize).copied();
            scratch.clear();
            scratch.extend(
                allowed
                    .iter()
                    .map(|token| logit_of(token).unwrap_or(f32::NEG_INFINITY)),
            );
            logits.fill(f32::NEG_INFINITY);
            for (token, &logit) in allowed.iter().zip(scratch.iter()) {
                set(logits, *token, logit);
            }
        }
        for &token in &self.banned {
            set(logits, token, f32::NEG_INFINITY);
        }
    }
}

/// Changes the logit of a token that is in the vocabulary and not masked. The result is finite: no penalty masks.
fn change(logits: &mut [f32], token: TokenId, change: impl FnOnce(f32) -> f32) {
    if let Some(logit) = logits.get_mut(token.0 as usize)
        && *logit > f32::NEG_INFINITY
    {
        *logit = change(*logit).clamp(f32::MIN, f32::MAX);
    }
}

/// Sets the logit of a token that is in the vocabulary.
fn set(logits: &mut [f32], token: TokenId, to: f32) {
    if let Some(logit) = logits.get_mut(token.0 as usize) {
        *logit = to;
    }
}
