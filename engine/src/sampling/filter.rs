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

    /// Fills `kept` with the tokens that stay, by id. `scratch` is scratch space.
    pub(super) fn keep(&self, row: Row<'_>, scale: Scale, kept: &mut Vec<Candidate>, scratch: &mut Vec<f32>) {
        let nucleus = self.top_p < 1.0;
        // The mass that top_p is a share of. Top-k, if it is on, comes before and leaves only what it keeps.
        let mut mass = None;
        let floor = if self.top_k > 0 {
            row.reached_by(self.top_k, scratch)
        } else if nucleus {
            let total = scale.sum(row.logits);
            mass = Some(total);
            // Tokens below the share (1 - top_p) / vocab have less than 1 - top_p in all, so the nucleus is above it.
            // Both the nucleus and min-p's set are beginnings of the same order: the higher floor serves both.
            let share = total * (1.0 - self.top_p) / row.logits.len() as f64;
            scale.floor(share.max(self.min_p.into()))
        } else {
            scale.floor(self.min_p.into())
        };
        kept.clear();
        kept.extend(row.at_least(floor).map(|(id, logit)| Candidate {
            id,
            weight: scale.weight(logit),
            key: -f64::from(logit),
        }));
        if self.top_k > 0 && self.top_k < kept.len() {
            kept.select_nth_unstable_by(self.top_k - 1, Candidate::order);
            kept.truncate(self.top_k);
        }
        if nucleus {
            let mass = mass.unwrap_or_else(|| total(kept));
            keep_mass(kept, self.top_p * mass);
        }
        if self.min_p > 0.0 {
            // The likeliest weighs 1 and stays whatever min_p is.
            kept.retain(|candidate| candidate.weight >= self.min_p.min(1.0));
        }
        if self.typical_p < 1.0 {
            keep_typical(kept, self.typical_p);
        }
        kept.sort_unstable_by_key(|candidate| candidate.id);
    }
}

/// The weight of all of them.
pub(super) fn total(kept: &[Candidate]) -> f64 {
    kept.iter().map(|candidate| f64::from(candidate.weight)).sum()
}

/// Keeps the shortest beginning, in the candidates' order, that weighs `mass` or more; at least one. Sorts no more than
/// it must: the first few, then four times as many, and so on.
fn keep_mass(kept: &mut Vec<Candidate>, mass: f64) {
    let mut sorted = 0;
    let mut step = 64;
    let mut sum = 0.0;
    while sorted < kept.len() {
        let end = (sorted + step).min(kept.len());
        if end < kept.len() {
            kept[sorted..].select_nth_unstable_by(end - sorted, Candidate::order);
        }
        kept[sorted..end].sort_unstable_by(Candidate::order);
        for index in sorted..end {
            sum += f64::from(kept[index].weight);
            if sum >= mass {
                kept.truncate(index + 1);
                return;
            }
        }
        sorted = end;
        step *= 4;
    }
}

/// Locally typical sampling (Meister, Pimentel, Wiher and Cotterell, TACL 2023): of the distribution that is left, keeps
/// the tokens whose surprise is nearest to the expected one, until they have the share `typical_p`.
fn keep_typical(kept: &mut Vec<Candidate>, typical_p: f64) {
    let mass = total(kept);
    let surprise = |candidate: &Candidate| mass.ln() - f64::from(candidate.weight).ln();
    let entropy: f64 = kept
        .iter()
        .filter(|candidate| candidate.weight > 0.0)
        .map(|candidate| f64::from(candidate.weight) / mass * surprise(candidate))
        .sum();
    for candidate in kept.iter_mut() {
        candidate.key = (surprise(candidate) - entropy).abs();
    }
    keep_mass(kept, typical_p * mass);
}
