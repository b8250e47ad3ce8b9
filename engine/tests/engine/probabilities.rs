//! Log probabilities of generated and of prompt tokens.

use heddle_engine::{
    engine::EngineOptions,
    ids::{BLOCK_TOKENS, TokenId},
    request::{GenerateRequest, SamplingParams, TokenInfo},
};

use super::{
    harness::{Rig, VOCAB, collect, request, tokens},
    scripted::{Failure, logits_after},
};

/// The logarithms of the softmax, in f64.
fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - max).exp()).sum();
    logits
        .iter()
        .map(|&logit| f64::from(logit - max) - sum.ln())
        .collect()
}

/// Holds what is said of a token against the model's distribution after `before`.
fn check(info: &TokenInfo, before: &[TokenId], top: usize) {
    let right = log_softmax(&logits_after(before, None, VOCAB));
    let near = |found: f32, token: TokenId| {
        let right = right[token.0 as usize];
        assert!((f64::from(found) - right).abs() < 1e-4, "{found} is not {right}");
    };
    near(info.logprob.unwrap(), info.id);
    assert_eq!(info.top.len(), top);
    let mut best: Vec<usize> = (0..VOCAB).collect();
    best.sort_by(|&a, &b| right[b].total_cmp(&right[a]));
    for ((token, logprob), best) in info.top.iter().zip(best) {
        assert_eq!(token.0 as usize, best);
        near(*logprob, *token);
    }
}

#[tokio::test]
async fn of_generated_tokens_are_the_models_whatever_the_sampling() {
    let rig = Rig::roomy();
    let prompt = tokens(1, 12);
    for top in [0, 5] {
        let sampling = SamplingParams {
            temperature: 2.0,
            repetition_penalty: 1.5,
            banned_tokens: vec![TokenId(5)],
            seed: Some(3),
            ..SamplingParams::default()
        };
        let sampled = GenerateRequest {
            logprobs: Some(top),
            sampling,
            ..request(prompt.clone(), 20)
        };
        let answer = rig.answer(sampled).await;
        let mut before = prompt.clone();
        for token in &answer.choices[0].tokens {
            check(token, &before, top as usize);
            before.push(token.id);
        }
    }
    let plain = rig.answer(request(prompt, 3)).await;
    assert!(
        plain.choices[0]
            .tokens
            .iter()
            .all(|token| token.logprob.is_none() && token.top.is_empty())
    );
    rig.check();
}

#[tokio::test]
async fn of_the_prompt_come_with_it_even_if_the_cache_has_it() {
    // More than one chunk of rows whose logits are wanted, and more than one step.
    let prompt = tokens(1, 150);
    let rig = Rig::new(
        400,
        EngineOptions {
            step_tokens: 70,
            ..EngineOptions::default()
        },
    );
    let plain = rig.answer(request(prompt.clone(), 5)).await;
    for choices in [1, 3] {
        let asked = GenerateRequest {
            prompt_logprobs: Some(2),
            choices,
            ..request(prompt.clone(), 5)
        };
        let answer = rig.answer(asked).await;
        assert_eq!(answer.cached_tokens, 0);
        assert_eq!(answer.prompt.len(), prompt.len());
        assert_eq!(
            answer.prompt[0],
            TokenInfo {
                id: prompt[0],
                logprob: None,
                top: Vec::new()
            }
        );
        for (place, info) in answer.prompt.iter().enumerate().skip(1) {
            assert_eq!(info.id, prompt[place]);
            check(info, &prompt[..place], 2);
        }
        assert!(answer.choices.iter().all(|choice| choice.ids() == plain.ids()));
    }
    assert_eq!(
        rig.answer(request(prompt, 5)).await.cached_tokens,
        9 * BLOCK_TOKENS
    );
    rig.check();
}

#[tokio::test]
async fn of_the_prompt_only_take_no_token() {
    let rig = Rig::roomy();
    let prompt = tokens(1, 1);
    let asked = GenerateRequest {
        prompt_logprobs: Some(0),
        ..request(prompt, 0)
    };
    let answer = rig.answer(asked).await;
    assert_eq!((answer.prompt.len(), answer.choices[0].generated), (1, 0));
    rig.check();
}

#[tokio::test]
async fn of_the_prompt_survive_a_preemption() {
    // Blocks for one of the two; the second, of higher priority, takes the first one's place in the middle of its prompt.
    let options = EngineOptions {
        step_tokens: 16,
        max_running: 1,
        ..EngineOptions::default()
    };
    let rig = Rig::new(20, options);
    let prompt = tokens(1, 100);
    rig.script.hold();
    let first = rig.submit(GenerateRequest {
        prompt_logprobs: Some(0),
        ..request(prompt.clone(), 3)
    });
    rig.script.wait_for_step(1);
    let second = rig.submit(GenerateRequest {
        priority: 1,
        ..request(tokens(2, 100), 3)
    });
    rig.script.go_on();
    let answer = collect(first).await;
    collect(second).await;
    assert_eq!(rig.engine.metrics().preemptions, 1);
    assert_eq!(answer.prompt.len(), prompt.len());
    for (place, info) in answer.prompt.iter().enumerate().skip(1) {
        check(info, &prompt[..place], 0);
    }
    rig.check();
}

#[tokio::test]
async fn are_finite_even_if_the_models_are_not() {
    let rig = Rig::roomy();
    rig.script.fail(&[Some(Failure::NotNumbers); 3]);
    let asked = GenerateRequest {
        logprobs: Some(3),
        prompt_logprobs: Some(3),
        ..request(tokens(1, 5), 3)
    };
    let answer = rig.answer(asked).await;
    let generated = answer.choices[0].tokens.iter();
    for token in answer.prompt.iter().skip(1).chain(generated) {
        assert!(token.logprob.unwrap().is_finite());
        assert!(token.top.iter().all(|(_, logprob)| logprob.is_finite()));
    }
    rig.check();
}
