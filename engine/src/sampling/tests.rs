//! Every step against a plain implementation in `f64` that follows transformers' processors line by line.

use std::collections::HashMap;

use proptest::prelude::*;

use super::{filter::Candidate, softmax::Row, *};

/// What is kept and with which probability, by id, as `Sampler` has it before it draws.
fn distribution(params: &SamplingParams, logits: &[f32], history: &History) -> Vec<(u32, f64)> {
    let mut sampler = Sampler::new(params, 0, 0);
    let mut logits = logits.to_vec();
    sampler.adjust.apply(&mut logits, history, &mut sampler.scratch);
    let row = Row::new(&logits, &mut sampler.maxima);
    let scale = Scale::new(row.max().unwrap(), params.temperature);
    let kept = sampler.candidates.keep(&sampler.limits, row, scale);
    let total = filter::total(kept);
    let share = |candidate: &Candidate| (candidate.id, f64::from(candidate.weight) / total);
    kept.iter().map(share).filter(|&(_, p)| p > 0.0).collect()
}

/// transformers' processors, `-inf` for what is removed, on the whole vocabulary in `f64`.
mod naive {
    use super::*;

    fn softmax(scores: &[f64]) -> Vec<f64> {
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / sum).collect()
    }

    /// Removes all but the shortest beginning of `order` with a probability of `mass`.
    fn keep(scores: &mut [f64], order: &[usize], mass: f64) {
        let probabilities = softmax(scores);
        let mut sum = 0.0;
        for &index in order {
            if sum >= mass {
                scores[index] = f64::NEG_INFINITY;
            }
            sum += probabilities[index];
        }
    }

    fn order(keys: &[f64]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_by(|&a, &b| keys[a].total_cmp(&keys[b]));
        order
    }

    pub(super) fn adjusted(
        params: &SamplingParams,
        logits: &[f32],
        prompt: &[u32],
        output: &[u32],
    ) -> Vec<f64> {
        let mut scores: Vec<f64> = logits.iter().map(|&logit| logit.into()).collect();
        for (token, &bias) in &params.logit_bias {
            scores[token.0 as usize] += f64::from(bias);
        }
        for (id, score) in scores.iter_mut().enumerate() {
            let id = id as u32;
            if prompt.contains(&id) || output.contains(&id) {
                let penalty = f64::from(params.repetition_penalty);
                *score = if *score < 0.0 {
                    *score * penalty
                } else {
                    *score / penalty
                };
            }
            // https://platform.openai.com/docs/api-reference: mu[j] -> mu[j] - c[j] * alpha_frequency -
            // float(c[j] > 0) * alpha_presence
            let count = output.iter().filter(|&&token| token == id).count();
            *score -= count as f64 * f64::from(params.frequency_penalty);
            *score -= f64::from(u8::from(count > 0)) * f64::from(params.presence_penalty);
            let token = TokenId(id);
            let allowed = params
                .allowed_tokens
                .as_ref()
                .is_none_or(|allowed| allowed.contains(&token));
            if !allowed || params.banned_tokens.contains(&token) {
                *score = f64::NEG_INFINITY;
            }
        }
        scores
    }

    pub(super) fn distribution(params: &SamplingParams, mut scores: Vec<f64>) -> Vec<(u32, f64)> {
        for score in &mut scores {
            *score /= f64::from(params.temperature);
        }
        let descending = |scores: &[f64]| order(&scores.iter().map(|score| -score).collect::<Vec<_>>());
        if params.top_k > 0 {
            for &index in descending(&scores).iter().skip(params.top_k as usize) {
                scores[index] = f64::NEG_INFINITY;
            }
        }
        if params.top_p < 1.0 {
            let order = descending(&scores);
            keep(&mut scores, &order, params.top_p.into());
        }
        if params.min_p > 0.0 {
            let probabilities = softmax(&scores);
            let most = probabilities.iter().copied().fold(0.0, f64::max);
            for (score, probability) in scores.iter_mut().zip(probabilities) {
                if probability < f64::from(params.min_p) * most {
                    *score = f64::NEG_INFINITY;
                }
            }
        }
        if params.typical_p < 1.0 {
            let probabilities = softmax(&scores);
            let entropy: f64 = probabilities
                .iter()
                .filter(|&&p| p > 0.0)
                .map(|p| -p * p.ln())
                .sum();
            let order = order(
                &probabilities
                    .iter()
                    .map(|p| (-p.ln() - entropy).abs())
                    .collect::<Vec<_>>(),
            );
            keep(&mut scores, &order, params.typical_p.into());
        }
        let probabilities = softmax(&scores).into_iter().enumerate();
        probabilities
            .filter(|&(_, p)| p > 0.0)
            .map(|(id, p)| (id as u32, p))
            .collect()
    }
}

fn history(prompt: &[u32], output: &[u32]) -> History {
    let prompt: Vec<TokenId> = prompt.iter().copied().map(TokenId).collect();
    let mut history = History::new(&prompt);
    for &token in output {
        history.push(TokenId(token));
    }
    history
}

/// Logits that are no two alike, in no order, most of them unlikely.
fn row(vocab: usize) -> Vec<f32> {
    let spread = |i: usize| (i * 7919 + 13) % vocab;
    (0..vocab)
        .map(|i| 12.0 * (1.0 - (spread(i) as f32 / vocab as f32).sqrt()) - 3.0)
        .collect()
}

fn params(temperature: f32) -> SamplingParams {
    SamplingParams {
        temperature,
        ..SamplingParams::default()
    }
}

/// The same tokens with the same probabilities. A token may be missing on one side where rounding decides about it: its
/// probability is part of `slack`.
fn assert_same(found: &[(u32, f64)], right: &[(u32, f64)], slack: f64) {
    let found: HashMap<u32, f64> = found.iter().copied().collect();
    let right: HashMap<u32, f64> = right.iter().copied().collect();
    for (id, p) in &right {
        let q = found.get(id).copied().unwrap_or(0.0);
        assert!((p - q).abs() < 1e-6 + slack, "token {id}: {q}, not {p}");
    }
    for (id, q) in &found {
        assert!(
            right.contains_key(id) || *q < 1e-6 + slack,
            "token {id} is kept with {q}"
        );
    }
}

#[test]
fn each_limit_keeps_what_transformers_keeps() {
    type Limit = (&'static str, fn(&mut SamplingParams));
    let limits: [Limit; 12] = [
        ("none", |_| ()),
        ("top_k 1", |p| p.top_k = 1),
        ("top_k 50", |p| p.top_k = 50),
        ("top_k above the vocabulary", |p| p.top_k = 100_000),
        ("top_p 0.1", |p| p.top_p = 0.1),
        ("top_p 0.95", |p| p.top_p = 0.95),
        ("min_p 0.05", |p| p.min_p = 0.05),
        ("min_p 1", |p| p.min_p = 1.0),
        ("typical_p 0.3", |p| p.typical_p = 0.3),
        ("top_k and top_p", |p| (p.top_k, p.top_p) = (40, 0.7)),
        ("top_p and min_p", |p| (p.top_p, p.min_p) = (0.9, 0.02)),
        ("all", |p| {
            (p.top_k, p.top_p, p.min_p, p.typical_p) = (400, 0.9, 0.01, 0.8)
        }),
    ];
    for vocab in [3, 32, 1000, 4099] {
        for temperature in [0.25, 1.0, 1.7] {
            for (name, set) in &limits {
                let mut params = params(temperature);
                set(&mut params);
                let logits = row(vocab);
                let found = distribution(&params, &logits, &history(&[], &[]));
                let right = naive::distribution(&params, naive::adjusted(&params, &logits, &[], &[]));
                // Tokens that weigh less than the smallest f32 are not kept, and not missed.
                let right: Vec<_> = right.into_iter().filter(|&(_, p)| p > 1e-30).collect();
                let ids = |kept: &[(u32, f64)]| kept.iter().map(|&(id, _)| id).collect::<Vec<_>>();
                assert_eq!(
                    ids(&found),
                    ids(&right),
                    "{name}, {vocab} tokens, temperature {temperature}"
                );
                assert_same(&found, &right, 0.0);
            }
        }
    }
}

#[test]
fn top_k_keeps_exactly_so_many_of_equals() {
    let mut params = params(1.0);
    params.top_k = 7;
    let kept = distribution(&params, &[1.5; 1000], &history(&[], &[]));
    assert_eq!(kept, (0..7).map(|id| (id, 1.0 / 7.0)).collect::<Vec<_>>());
}

#[test]
fn penalties_follow_their_definitions() {
    let mut params = params(1.0);
    params.repetition_penalty = 2.0;
    params.frequency_penalty = 0.5;
    params.presence_penalty = 0.25;
    params.logit_bias = HashMap::from([(TokenId(5), -3.0), (TokenId(9), 1.0)]);
    let mut logits = vec![1.0, -1.0, 4.0, -4.0, 8.0, 2.0];
    // Token 0 is in the prompt, 1 in the prompt and once in the output, 2 twice in the output; 9 is not in the vocabulary.
    Sampler::new(&params, 0, 0).adjust.apply(
        &mut logits,
        &history(&[0, 1, 0, 8], &[2, 1, 2, 7]),
        &mut Vec::new(),
    );
    assert_eq!(
        logits,
        [
            1.0 / 2.0,
            -2.0 - 0.5 - 0.25,
            4.0 / 2.0 - 2.0 * 0.5 - 0.25,
            -4.0,
            8.0,
            2.0 - 3.0,
        ]
    );
}

#[test]
fn greedy_takes_the_lowest_of_equals_and_no_nan() {
    const INF: f32 = f32::INFINITY;
    let greedy = |logits: &[f32]| {
        Sampler::new(&params(0.0), 0, 0)
            .sample(&mut logits.to_vec(), &history(&[], &[]))
            .0
    };
    assert_eq!(greedy(&[0.0, 2.0, 2.0, 1.0]), 1);
    assert_eq!(greedy(&[f32::NAN, -5.0, f32::NAN, -4.0]), 3);
    assert_eq!(greedy(&[0.0, INF, f32::MAX, INF]), 1);
    assert_eq!(greedy(&[-INF, f32::NAN]), 1);
    assert_eq!(greedy(&[-INF, -INF, f32::MIN]), 2);
    assert_eq!(greedy(&[-INF; 3]), 0);
    let mut long = vec![-1.0; 5000];
    (long[4321], long[4999]) = (-0.5, -0.5);
    assert_eq!(greedy(&long), 4321);
}

#[test]
fn a_row_that_is_not_finite_still_gives_a_token() {
    const INF: f32 = f32::INFINITY;
    for temperature in [f32::MIN_POSITIVE, 1e-6, 1.0, 1e30] {
        let mut params = params(temperature);
        for limits in [(0, 1.0, 0.0, 1.0), (2, 0.9, 0.1, 0.9), (0, 1.0, 0.0, 0.5)] {
            (params.top_k, params.top_p, params.min_p, params.typical_p) = limits;
            let sample = |row: &[f32]| {
                Sampler::new(&params, 1, 0)
                    .sample(&mut row.to_vec(), &history(&[], &[]))
                    .0
            };
            assert_eq!(sample(&[f32::NAN, 1.0, -INF]), 1);
            assert_eq!(sample(&[-INF, f32::NAN, -INF]), 1);
            assert_eq!(sample(&[-INF, INF, f32::NAN]), 1);
            assert_eq!(sample(&[f32::MIN, f32::MAX]), 1);
        }
    }
}

/// Chi-square of 20,000 draws against the exact probabilities of the kept tokens; 32.9 is the 0.1 % point for 12 degrees of
/// freedom, the most that a case has.
#[test]
fn draws_follow_the_distribution() {
    let logits: Vec<f32> = (0..13).map(|i| (i as f32 * 1.3).cos() * 1.5).collect();
    let limits: [fn(&mut SamplingParams); 4] = [
        |_| (),
        |p| p.top_k = 6,
        |p| p.top_p = 0.8,
        |p| (p.typical_p, p.temperature) = (0.7, 1.4),
    ];
    for set in limits {
        let mut params = params(0.8);
        set(&mut params);
        let right = naive::distribution(&params, naive::adjusted(&params, &logits, &[], &[]));
        let mut sampler = Sampler::new(&params, 42, 1);
        let mut history = history(&[], &[]);
        let mut counts = HashMap::<u32, u32>::new();
        for _ in 0..20_000 {
            let token = sampler.sample(&mut logits.clone(), &history);
            history.push(token);
            *counts.entry(token.0).or_default() += 1;
        }
        let mut chi = 0.0;
        for &(id, p) in &right {
            let count = counts.remove(&id).unwrap_or(0);
            chi += (f64::from(count) - 20_000.0 * p).powi(2) / (20_000.0 * p);
        }
        assert!(counts.is_empty(), "{counts:?} are not among {right:?}");
        assert!(chi < 32.9, "{chi}");
    }
}

/// With a limit that keeps all, candidates are gathered; without, the row is drawn from in place.
#[test]
fn drawing_from_the_row_and_from_candidates_is_the_same() {
    let logits = row(3000);
    let (plain, mut all) = (params(1.5), params(1.5));
    all.top_k = 3000;
    let (mut plain, mut all) = (Sampler::new(&plain, 3, 0), Sampler::new(&all, 3, 0));
    let mut history = history(&[], &[]);
    for _ in 0..500 {
        let token = plain.sample(&mut logits.clone(), &history);
        assert_eq!(token, all.sample(&mut logits.clone(), &history));
        history.push(token);
    }
}

#[test]
fn a_sample_depends_on_its_position_only() {
    let logits = row(200);
    let mut first = Sampler::new(&params(2.0), 9, 4);
    let mut history = history(&[1, 2], &[]);
    let mut histories = Vec::new();
    let mut tokens = Vec::new();
    for _ in 0..50 {
        histories.push(history.clone());
        let token = first.sample(&mut logits.clone(), &history);
        tokens.push(token);
        history.push(token);
    }
    // Another sampler, in the reverse order: what preemption and speculation amount to.
    let mut second = Sampler::new(&params(2.0), 9, 4);
    for (history, token) in histories.iter().zip(&tokens).rev() {
        assert_eq!(second.sample(&mut logits.clone(), history), *token);
    }
    let mut other_choice = Sampler::new(&params(2.0), 9, 5);
    let other: Vec<_> = histories
        .iter()
        .map(|history| other_choice.sample(&mut logits.clone(), history))
        .collect();
    assert_ne!(other, tokens);
}

fn any_params() -> impl Strategy<Value = SamplingParams> {
    let id = || (0..60_u32).prop_map(TokenId);
    let limits = (
        prop_oneof![Just(0.0_f32), 0.05..3.0_f32],
        prop_oneof![Just(0_u32), 1..60_u32],
        prop_oneof![Just(1.0_f32), 0.01..1.0_f32],
        prop_oneof![Just(0.0_f32), 0.0..=1.0_f32],
        prop_oneof![2 => Just(1.0_f32), 1 => 0.01..1.0_f32],
    );
    let penalties = (0.3..3.0_f32, -2.0..2.0_f32, -2.0..2.0_f32);
    let tokens = (
        proptest::collection::hash_map(id(), -100.0..100.0_f32, 0..5),
        proptest::option::of(proptest::collection::vec(id(), 1..30)),
        proptest::collection::vec(id(), 0..10),
    );
    (limits, penalties, tokens).prop_map(
        |(
            (temperature, top_k, top_p, min_p, typical_p),
            (repetition_penalty, frequency_penalty, presence_penalty),
            (logit_bias, allowed_tokens, banned_tokens),
        )| SamplingParams {
            temperature,
            top_p,
            top_k,
            min_p,
            typical_p,
            repetition_penalty,
            frequency_penalty,
            presence_penalty,
            logit_bias,
            allowed_tokens,
            banned_tokens,
            seed: None,
        },
    )
}

proptest! {
    #[test]
    fn any_parameters_keep_what_transformers_keeps(
        params in any_params(),
        // A vocabulary of 50: some of the ids above are not in it.
        logits in proptest::collection::vec(-20.0..20.0_f32, 50),
        prompt in proptest::collection::vec(0..50_u32, 0..20),
        output in proptest::collection::vec(0..50_u32, 0..20),
        seed: u64,
    ) {
        let history = history(&prompt, &output);
        let mut known = params.clone();
        known.logit_bias.retain(|token, _| token.0 < 50);
        let scores = naive::adjusted(&known, &logits, &prompt, &output);
        let possible = scores.iter().any(|&score| score > f64::NEG_INFINITY);
        let token = Sampler::new(&params, seed, 0).sample(&mut logits.clone(), &history);
        prop_assert!((token.0 as usize) < logits.len());
        if !possible {
            return Ok(());
        }
        prop_assert!(!params.banned_tokens.contains(&token));
        prop_assert!(params.allowed_tokens.as_ref().is_none_or(|allowed| allowed.contains(&token)));
        let best = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if params.temperature == 0.0 || params.top_k == 1 {
            prop_assert!(scores[token.0 as usize] > best - 1e-4);
        }
        if params.temperature > 0.0 {
            let found = distribution(&params, &logits, &history);
            if params.typical_p == 1.0 {
                // Locally typical sampling may leave the likeliest token out; nothing else may.
                prop_assert!(found.iter().any(|&(id, _)| scores[id as usize] > best - 1e-4));
            }
            // Where rounding decides whether a token stays, the two may differ by it and all it renormalises.
            let right = naive::distribution(&known, scores.clone());
            let kept = |kept: &[(u32, f64)]| kept.iter().filter(|&&(_, p)| p > 1e-30).count();
            if kept(&found) == kept(&right) {
                assert_same(&found, &right, 1e-4);
            } else {
                prop_assert!(kept(&found).abs_diff(kept(&right)) <= 1, "{found:?}\n{right:?}");
            }
        }
    }
}
