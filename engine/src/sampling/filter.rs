//! Which tokens stay: top-k, nucleus, min-p and locally typical. Each looks only as far down the row as it must.

use std::cmp::Ordering;

use super::softmax::{Row, Scale};

/// A token that may be chosen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub(super) id: u32,
    /// Its probability, not normalised.
    pub(super) weight: f32,
    /// The lowest goes first: its negated logit, or its distance from the typical.
    key: f64,
}

impl Candidate {
    /// By key, equals by id, so that what stays does not depend on how it was found.
    fn order(&self, other: &Self) -> Ordering {
        self.key.total_cmp(&other.key).then(self.id.cmp(&other.id))
    }
}

/// The four limits; each is off at the value that [`crate::request::SamplingParams`] has as its default.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) top_k: usize,
    pub(super) top_p: f64,
    pub(super) min_p: f32,
    pub(super) typical_p: f64,
}

impl Limits {
    /// Whether every token stays.
    pub(super) fn are_off(&self) -> bool {
        self.top_k == 0 && self.top_p >= 1.0 && self.min_p <= 0.0 && self.typical_p >= 1.0
    }
}

/// The tokens that stay, by id. The buffers are kept from token to token.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    kept: Vec<Candidate>,
    /// Where selection may change the order.
    scratch: Vec<Candidate>,
    maxima: Vec<f32>,
}

impl Candidates {
    /// Applies the limits to a row.
    pub(super) fn keep(&mut self, limits: &Limits, row: Row<'_>, scale: Scale) -> &[Candidate] {
        let nucleus = limits.top_p < 1.0;
        // The mass that top_p is a share of. Top-k, if it is on, comes before and leaves only what it keeps.
        let mut mass = None;
        let floor = if limits.top_k > 0 {
            row.reached_by(limits.top_k, &mut self.maxima)
        } else if nucleus {
            let all = scale.sum(row.logits);
            mass = Some(all);
            // Tokens below the share (1 - top_p) / vocab have less than 1 - top_p in all, so the nucleus is above it.
            // Both the nucleus and min-p's set are beginnings of the same order: the higher floor serves both.
            let share = all * (1.0 - limits.top_p) / row.logits.len() as f64;
            scale.floor(share.max(limits.min_p.into()))
        } else {
            scale.floor(limits.min_p.into())
        };
        self.kept.clear();
        self.kept.extend(row.at_least(floor).map(|(id, logit)| Candidate {
            id,
            weight: scale.weight(logit),
            key: -f64::from(logit),
        }));
        if limits.top_k > 0 && limits.top_k < self.kept.len() {
            self.keep_first(limits.top_k);
        }
        if nucleus {
            let mass = mass.unwrap_or_else(|| total(&self.kept));
            self.keep_mass(limits.top_p * mass);
        }
        if limits.min_p > 0.0 {
            // The likeliest weighs 1 and stays whatever min_p is.
            let least = limits.min_p.min(1.0);
            self.kept.retain(|candidate| candidate.weight >= least);
        }
        if limits.typical_p < 1.0 {
            self.keep_typical(limits.typical_p, scale);
        }
        &self.kept
    }

    /// Keeps the first `count` in the candidates' order.
    fn keep_first(&mut self, count: usize) {
        self.scratch.clone_from(&self.kept);
        let (_, last, _) = self.scratch.select_nth_unstable_by(count - 1, Candidate::order);
        let last = *last;
        self.kept.retain(|candidate| candidate.order(&last).is_le());
    }

    /// Keeps the shortest beginning, in the candidates' order, that weighs `mass` or more; at least one. Halves the part
    /// that its end lies in until it is short: linear in the candidates, however flat the distribution.
    fn keep_mass(&mut self, mut mass: f64) {
        self.scratch.clone_from(&self.kept);
        let mut part = self.scratch.as_mut_slice();
        while part.len() > 64 {
            let middle = part.len() / 2;
            part.select_nth_unstable_by(middle, Candidate::order);
            let (before, after) = part.split_at_mut(middle);
            let weight = total(before);
            if weight >= mass {
                part = before;
            } else {
                mass -= weight;
                part = after;
            }
        }
        part.sort_unstable_by(Candidate::order);
        let last = part.iter().find(|candidate| {
            mass -= f64::from(candidate.weight);
            mass <= 0.0
        });
        // Rounding may leave a little of the mass over.
        if let Some(last) = last.or(part.last()) {
            self.kept.retain(|candidate| candidate.order(last).is_le());
        }
    }

    /// Locally typical sampling (Meister, Pimentel, Wiher and Cotterell, TACL 2023): of the distribution that is left, keeps
    /// the tokens whose surprise is nearest to the expected one, until they have the share `typical_p`.
    fn keep_typical(&mut self, typical_p: f64, scale: Scale) {
        let mass = total(&self.kept);
        // -ln of the probability. The key is still the negated logit.
        let surprise = |candidate: &Candidate| mass.ln() - f64::from(scale.exponent(-candidate.key as f32));
        let likely = self.kept.iter().filter(|candidate| candidate.weight > 0.0);
        let entropy: f64 = likely
            .map(|candidate| f64::from(candidate.weight) / mass * surprise(candidate))
            .sum();
        for candidate in &mut self.kept {
            candidate.key = (surprise(candidate) - entropy).abs();
        }
        self.keep_mass(typical_p * mass);
    }
}

/// The weight of all of them.
pub(super) fn total(candidates: &[Candidate]) -> f64 {
    candidates
        .iter()
        .map(|candidate| f64::from(candidate.weight))
        .sum()
}
