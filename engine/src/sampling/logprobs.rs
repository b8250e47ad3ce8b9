//! Log probabilities, as they are reported: of the model's raw distribution, before temperature and penalties.

use super::softmax::{Row, Scale};
use crate::ids::TokenId;

/// The log probability that stands for "very unlikely": OpenAI's own constant. Nothing below it is reported, so that
/// every log probability is a finite number.
pub const LOWEST_LOGPROB: f32 = -9999.0;

/// The natural logarithm of `token`'s probability under raw `logits` (`[vocab]`), and of the `top` likeliest tokens'
/// with their ids, best first, equals by id. Each is in [`LOWEST_LOGPROB`]`..=0`, whatever the logits are; masked tokens
/// are not among the top.
pub fn logprobs(logits: &[f32], token: TokenId, top: usize) -> (f32, Vec<(TokenId, f32)>) {
    let mut maxima = Vec::new();
    let row = Row::new(logits, &mut maxima);
    let Some(max) = row.max() else {
        return (LOWEST_LOGPROB, Vec::new());
    };
    // ln(sum of e^(logit - max)), at least 0: the likeliest token is in the sum.
    let rest = Scale::new(max, 1.0).sum(logits).ln();
    let logprob = |logit: f32| {
        let exact = (f64::from(logit.min(f32::MAX)) - f64::from(max) - rest) as f32;
        exact.clamp(LOWEST_LOGPROB, 0.0)
    };
    // `min` above would turn NaN into the likeliest.
    let of_token = logits
        .get(token.0 as usize)
        .filter(|logit| !logit.is_nan())
        .map_or(LOWEST_LOGPROB, |&logit| logprob(logit));

    if top == 0 {
        return (of_token, Vec::new());
    }
    let floor = row.reached_by(top, &mut Vec::new());
    let mut best: Vec<(u32, f32)> = row.at_least(floor).collect();
    best.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    best.truncate(top);
    let best = best
        .into_iter()
        .map(|(id, logit)| (TokenId(id), logprob(logit)))
        .collect();
    (of_token, best)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log_softmax(logits: &[f32], index: usize) -> f64 {
        let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let sum: f64 = logits.iter().map(|&x| (f64::from(x) - max).exp()).sum();
        f64::from(logits[index]) - max - sum.ln()
    }

    #[test]
    fn agrees_with_log_softmax_in_f64() {
        let logits: Vec<f32> = (0..5000).map(|i| (i as f32 * 0.7).sin() * 20.0 + 300.0).collect();
        for index in [0, 1, 17, 2500, 4999] {
            let (found, _) = logprobs(&logits, TokenId(index), 0);
            let right = log_softmax(&logits, index as usize);
            assert!((f64::from(found) - right).abs() < 1e-5, "{found} {right}");
        }
    }

    #[test]
    fn the_top_are_best_first_and_equals_by_id() {
        let mut logits = vec![0.0; 100];
        logits[70] = 3.0;
        logits[20] = 2.0;
        logits[90] = 2.0;
        logits[5] = f32::NEG_INFINITY;
        let (_, top) = logprobs(&logits, TokenId(0), 4);
        let ids: Vec<u32> = top.iter().map(|(id, _)| id.0).collect();
        assert_eq!(ids, [70, 20, 90, 0]);
        for (id, logprob) in top {
            assert!((f64::from(logprob) - log_softmax(&logits, id.0 as usize)).abs() < 1e-6);
        }
        assert_eq!(
            logprobs(&logits, TokenId(0), 1000).1.len(),
            99,
            "all but the masked one"
        );
    }

    #[test]
    fn is_finite_for_every_row() {
        const INF: f32 = f32::INFINITY;
        let rows: [&[f32]; 8] = [
            &[0.0, -INF, 1.0],
            &[f32::NAN, 0.0, f32::NAN],
            &[INF, 0.0, INF],
            &[-INF; 3],
            &[f32::NAN; 3],
            &[f32::MIN, f32::MAX, 0.0],
            &[1e30, -1e30, 0.0],
            &[0.0],
        ];
        for row in rows {
            for token in 0..4 {
                let (logprob, top) = logprobs(row, TokenId(token), 2);
                for value in top.iter().map(|(_, logprob)| *logprob).chain([logprob]) {
                    assert!((LOWEST_LOGPROB..=0.0).contains(&value), "{row:?} {token} {value}");
                }
            }
        }
    }
}
