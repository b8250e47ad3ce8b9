//! What a sequence has said so far, as the penalties and the generator read it.

use std::{collections::HashMap, sync::Arc};

use crate::ids::TokenId;

/// The tokens of one sequence: which were in the prompt, how often each was generated, and how many were generated.
///
/// Clones share the prompt's part, so the choices of one request are clones of one history.
#[derive(Debug, Clone)]
pub struct History {
    /// The prompt's tokens, each once, ascending.
    prompt: Arc<[TokenId]>,
    /// How often each token was generated.
    output: HashMap<TokenId, u32>,
    position: u64,
}

impl History {
    /// Begins after a prompt.
    pub fn new(prompt: &[TokenId]) -> Self {
        // One bit for each id up to the highest: a prompt of 100,000 tokens must not cost the step loop a sort.
        let words = prompt.iter().max().map_or(0, |token| token.0 as usize / 64 + 1);
        let mut seen = vec![0_u64; words];
        for token in prompt {
            seen[token.0 as usize / 64] |= 1 << (token.0 % 64);
        }
        let distinct = seen.iter().enumerate().flat_map(|(index, &word)| {
            (0..64)
                .filter(move |bit| word >> bit & 1 == 1)
                .map(move |bit| TokenId(index as u32 * 64 + bit))
        });
        Self {
            prompt: distinct.collect(),
            output: HashMap::new(),
            position: 0,
        }
    }

    /// Takes the generated token in.
    pub fn push(&mut self, token: TokenId) {
        *self.output.entry(token).or_default() += 1;
        self.position += 1;
    }

    /// Tokens generated so far: the position that the next sample is drawn for.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// How often `token` was generated. The prompt does not count.
    pub fn count(&self, token: TokenId) -> u32 {
        self.output.get(&token).copied().unwrap_or(0)
    }

    /// Every generated token with its count, in no order.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (TokenId, u32)> + '_ {
        self.output.iter().map(|(&token, &count)| (token, count))
    }

    /// Every token of prompt and output once, in no order.
    pub(crate) fn distinct(&self) -> impl Iterator<Item = TokenId> + '_ {
        let generated = self.output.keys().copied();
        self.prompt
            .iter()
            .copied()
            .chain(generated.filter(|token| self.prompt.binary_search(token).is_err()))
    }
}
