//! What comes back is right, alone and in company, and ends when it should.

use heddle_engine::{
    engine::{EngineOptions, GenerationStream},
    ids::{BLOCK_TOKENS, TokenId},
    request::{ChatPrompt, Event, FinishReason, GenerateRequest, Prompt, SamplingParams},
};

use super::{
    harness::{Answer, CONTEXT, EOS, Rig, VOCAB, collect, next, request, token_of, tokens, until},
    scripted::greedy,
};

/// Submits all at once and takes the answers in order.
async fn together(rig: &Rig, requests: Vec<GenerateRequest>) -> Vec<Answer> {
    rig.script.hold();
    let streams: Vec<_> = requests.into_iter().map(|request| rig.submit(request)).collect();
    rig.script.go_on();
    let mut answers = Vec::new();
    for stream in streams {
        answers.push(collect(stream).await);
    }
    answers
}

/// Sixteen prompts of all lengths, half of which begin alike.
fn prompts() -> Vec<Vec<TokenId>> {
    let beginning = tokens(99, 2 * BLOCK_TOKENS);
    let prompt = |index: usize| match index % 2 {
        0 => [beginning.clone(), tokens(index, 1 + index)].concat(),
        _ => tokens(index, 1 + index * 5),
    };
    (0..16).map(prompt).collect()
}

#[tokio::test]
async fn greedy_tokens_are_those_of_the_model_in_any_company() {
    for (blocks, options) in [
        (400, EngineOptions::default()),
        (
            400,
            EngineOptions {
                prefix_cache: false,
                ..EngineOptions::default()
            },
        ),
        // Long prompts come in chunks, and few run at a time.
        (
            400,
            EngineOptions {
                step_tokens: 7,
                max_running: 5,
                ..EngineOptions::default()
            },
        ),
        // Blocks for two or three of them.
        (14, EngineOptions::default()),
    ] {
        let rig = Rig::new(blocks, options.clone());
        let requests = prompts().into_iter().map(|prompt| request(prompt, 60)).collect();
        let answers = together(&rig, requests).await;
        for (prompt, answer) in prompts().iter().zip(&answers) {
            assert_eq!(
                answer.ids(),
                greedy(prompt, 60, None, VOCAB),
                "{blocks} blocks, {options:?}"
            );
            assert_eq!(answer.choices[0].reason, Some(FinishReason::Length));
        }
        let metrics = rig.engine.metrics();
        assert_eq!(metrics.generated_tokens, 16 * 60);
        assert_eq!(metrics.preemptions > 0, blocks == 14, "{metrics:?}");
        assert_eq!(metrics.prefix_hits > 0, options.prefix_cache, "{metrics:?}");
        assert!(
            rig.script
                .seen()
                .iter()
                .all(|step| step.rows <= options.step_tokens)
        );
        rig.check();
    }
}

#[tokio::test]
async fn seeded_samples_are_the_same_alone_and_in_company() {
    let sampling = SamplingParams {
        temperature: 1.0,
        top_p: 0.9,
        seed: Some(7),
        ..SamplingParams::default()
    };
    let requests = || -> Vec<GenerateRequest> {
        let sampled = |prompt| GenerateRequest {
            sampling: sampling.clone(),
            ..request(prompt, 40)
        };
        prompts().into_iter().map(sampled).collect()
    };
    let rig = Rig::roomy();
    let mut alone = Vec::new();
    for request in requests() {
        alone.push(rig.answer(request).await.ids());
    }
    let crowded = Rig::new(14, EngineOptions::default());
    let answers = together(&crowded, requests()).await;
    for (alone, answer) in alone.iter().zip(&answers) {
        assert_eq!(&answer.ids(), alone);
    }
    assert!(crowded.engine.metrics().preemptions > 0);
    assert_ne!(
        alone[1],
        greedy(&prompts()[1], 40, None, VOCAB),
        "it is not greedy"
    );
    rig.check();
    crowded.check();
}

#[tokio::test]
async fn a_seed_is_drawn_where_none_is_given_and_repeats_the_answer() {
    let rig = Rig::roomy();
    let sampled = |seed| GenerateRequest {
        sampling: SamplingParams {
            temperature: 1.0,
            seed,
            ..SamplingParams::default()
        },
        ..request(tokens(1, 5), 20)
    };
    let first = rig.submit(sampled(None));
    let seed = first.seed();
    let first = collect(first).await.ids();
    assert_eq!(rig.answer(sampled(Some(seed))).await.ids(), first);
    let second = rig.submit(sampled(None));
    assert_ne!(second.seed(), seed);
    assert_ne!(collect(second).await.ids(), first);
    rig.check();
}

#[tokio::test]
async fn choices_share_the_prompt_and_nothing_else() {
    for prefix_cache in [true, false] {
        let rig = Rig::new(
            400,
            EngineOptions {
                prefix_cache,
                ..EngineOptions::default()
            },
        );
        let prompt = tokens(3, 5 * BLOCK_TOKENS + 2);
        let sampling = SamplingParams {
            temperature: 1.0,
            seed: Some(1),
            ..SamplingParams::default()
        };
        let three = GenerateRequest {
            choices: 3,
            sampling: sampling.clone(),
            ..request(prompt.clone(), 10)
        };
        let answer = rig.answer(three.clone()).await;
        assert_eq!(answer.choices.len(), 3);
        assert_eq!(
            rig.engine.metrics().prefill_tokens,
            82 + 2 * 2,
            "two full prompts were not computed"
        );
        let ids: Vec<_> = answer.choices.iter().map(|choice| choice.ids()).collect();
        assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
        // The first choice is what a request for one gets.
        let one = GenerateRequest {
            choices: 1,
            ..three.clone()
        };
        assert_eq!(rig.answer(one).await.ids(), ids[0]);
        let again = rig.answer(three).await;
        assert_eq!(again.choices, answer.choices);
        assert_eq!(
            again.cached_tokens,
            if prefix_cache { 5 * BLOCK_TOKENS } else { 0 }
        );

        let greedy_three = GenerateRequest {
            choices: 3,
            ..request(prompt.clone(), 10)
        };
        for choice in rig.answer(greedy_three).await.choices {
            assert_eq!(choice.ids(), greedy(&prompt, 10, None, VOCAB));
        }
        rig.check();
    }
}

#[tokio::test]
async fn salts_keep_the_prefix_cache_apart() {
    let rig = Rig::roomy();
    let salted = |salt: Option<&str>| GenerateRequest {
        cache_salt: salt.map(str::to_owned),
        ..request(tokens(1, 40), 1)
    };
    for (salt, cached) in [
        (None, 0),
        (Some("a"), 0),
        (Some("b"), 0),
        (Some("a"), 32),
        (None, 32),
    ] {
        assert_eq!(rig.answer(salted(salt)).await.cached_tokens, cached, "{salt:?}");
    }
    rig.check();
}

#[tokio::test]
async fn the_next_turn_finds_the_answer_in_the_cache() {
    let rig = Rig::roomy();
    let prompt = tokens(1, 20);
    let answer = rig.answer(request(prompt.clone(), 30)).await;
    let next = [prompt, answer.ids(), tokens(2, 5)].concat();
    // 20 tokens and 29 of the answer were computed: three full blocks.
    assert_eq!(rig.answer(request(next, 1)).await.cached_tokens, 48);
    rig.check();
}

#[tokio::test]
async fn ends_with_the_models_token_or_the_requests_own() {
    let rig = Rig::roomy();
    let prompt = tokens(1, 5);
    let plain = greedy(&prompt, 20, None, VOCAB);
    rig.script.force(5 + 8, EOS);
    let until_eos = GenerateRequest {
        ignore_eos: false,
        ..request(prompt.clone(), 20)
    };
    let answer = rig.answer(until_eos.clone()).await;
    assert_eq!(answer.ids(), [&plain[..8], &[EOS]].concat());
    let choice = &answer.choices[0];
    assert_eq!((choice.reason, choice.generated), (Some(FinishReason::Eos), 9));
    assert_eq!(
        choice.text,
        rig.engine.tokenizer().decode(&plain[..8]),
        "the last token gives no text"
    );

    // Over it, and not before its time.
    let over = rig.answer(request(prompt.clone(), 20)).await;
    assert_eq!((over.ids()[8], over.ids().len()), (EOS, 20));
    let late = rig
        .answer(GenerateRequest {
            min_tokens: 9,
            ..until_eos.clone()
        })
        .await;
    assert_eq!(
        (late.ids().len(), late.choices[0].reason),
        (20, Some(FinishReason::Length))
    );
    assert_eq!(late.ids()[..8], plain[..8]);
    assert_ne!(late.ids()[8], EOS);

    let stop = GenerateRequest {
        stop_tokens: vec![plain[3]],
        ..until_eos.clone()
    };
    let answer = rig.answer(stop.clone()).await;
    assert_eq!(answer.ids(), plain[..4]);
    assert_eq!(answer.choices[0].reason, Some(FinishReason::Eos));
    assert_eq!(answer.choices[0].text, rig.engine.tokenizer().decode(&plain[..3]));
    let late = rig
        .answer(GenerateRequest {
            min_tokens: 4,
            ..stop
        })
        .await;
    assert_ne!(late.ids()[3], plain[3], "a stop token waits for `min_tokens` too");
    rig.check();
}

#[tokio::test]
async fn ends_at_max_tokens_and_at_the_end_of_the_context() {
    let rig = Rig::roomy();
    for max_tokens in [0, 1, 17] {
        let answer = rig.answer(request(tokens(1, 5), max_tokens)).await;
        let choice = &answer.choices[0];
        assert_eq!(
            (choice.reason, choice.generated),
            (Some(FinishReason::Length), max_tokens as usize)
        );
    }
    let unbounded = GenerateRequest {
        max_tokens: None,
        ..request(tokens(1, CONTEXT - 3), 1)
    };
    let answer = rig.answer(unbounded).await;
    assert_eq!(
        (answer.choices[0].reason, answer.choices[0].generated),
        (Some(FinishReason::Length), 3)
    );
    rig.check();

    // The cache holds less than the context: it is the context then.
    let small = Rig::new(3, EngineOptions::default());
    assert_eq!(small.engine.context(), 48);
    let unbounded = GenerateRequest {
        max_tokens: None,
        ..request(tokens(1, 30), 1)
    };
    let answer = small.answer(unbounded).await;
    assert_eq!(answer.ids(), greedy(&tokens(1, 30), 18, None, VOCAB));
    small.check();
}

#[tokio::test]
async fn truncation_comes_before_every_check() {
    let rig = Rig::roomy();
    let long = tokens(1, 4 * CONTEXT);
    let truncated = GenerateRequest {
        truncate: Some(20),
        ..request(long.clone(), 5)
    };
    let stream = rig.submit(truncated);
    assert_eq!(stream.prompt_tokens(), 20);
    assert_eq!(
        collect(stream).await.ids(),
        greedy(&long[long.len() - 20..], 5, None, VOCAB)
    );
    let short = GenerateRequest {
        truncate: Some(20),
        ..request(tokens(1, 3), 5)
    };
    assert_eq!(rig.submit(short).prompt_tokens(), 3);
    until("the dropped one is gone", || rig.engine.health().running == 0).await;
    rig.check();
}

#[tokio::test]
async fn text_and_conversations_are_tokenised() {
    let rig = Rig::roomy();
    let text = "Where do polar bears live?";
    let of_text = rig.engine.tokenizer().encode(text, true).unwrap();
    let answer = rig.answer(GenerateRequest {
        prompt: Prompt::Text(text.to_owned()),
        ..request(Vec::new(), 5)
    });
    assert_eq!(answer.await.ids(), greedy(&of_text, 5, None, VOCAB));

    // The prompt's ids as transformers has them: fixtures/goldens/pocket.json.
    let ids = [
        1, 286, 201, 724, 344, 322, 1052, 299, 605, 85, 1029, 33, 2, 201, 1, 285, 201,
    ]
    .map(TokenId);
    let chat = ChatPrompt {
        messages: serde_json::json!([{"role": "user", "content": text}]),
        ..ChatPrompt::default()
    };
    let stream = rig.submit(GenerateRequest {
        prompt: Prompt::Chat(chat),
        ..request(Vec::new(), 5)
    });
    assert_eq!(stream.prompt_tokens(), ids.len());
    assert_eq!(collect(stream).await.ids(), greedy(&ids, 5, None, VOCAB));
    rig.check();
}

#[tokio::test]
async fn a_caller_ends_one_choice_and_the_others_go_on() {
    let rig = Rig::roomy();
    rig.script.hold_at(20);
    let mut stream = rig.submit(GenerateRequest {
        choices: 3,
        ..request(tokens(1, 40), 50)
    });
    for _ in 0..10 {
        token_of(&mut stream, 1).await;
    }
    rig.script.wait_for_step(20);
    stream.stop_choice(1);
    stream.stop_choice(1);
    stream.stop_choice(77);
    rig.script.go_on();
    let mut ends = Vec::new();
    while let Some(event) = next(&mut stream).await {
        if let Event::Finished {
            choice,
            reason,
            generated,
            ..
        } = event
        {
            ends.push((choice, reason, generated));
        }
    }
    ends.sort_by_key(|end| end.0);
    assert_eq!(ends.len(), 3);
    assert_eq!((ends[0].1, ends[0].2), (FinishReason::Length, 50));
    assert_eq!(ends[1].1, FinishReason::Stopped);
    assert!((10..=20).contains(&ends[1].2), "{}", ends[1].2);
    assert_eq!((ends[2].1, ends[2].2), (FinishReason::Length, 50));
    rig.check();
}

#[tokio::test]
async fn a_choice_that_is_ended_before_its_prompt_is_computed_still_ends_in_order() {
    let rig = Rig::new(
        400,
        EngineOptions {
            step_tokens: 16,
            ..EngineOptions::default()
        },
    );
    rig.script.hold();
    let stream = rig.submit(GenerateRequest {
        choices: 2,
        ..request(tokens(1, 100), 5)
    });
    rig.script.wait_for_step(1);
    stream.stop_choice(0);
    rig.script.go_on();
    let answer = collect(stream).await;
    assert_eq!(
        (answer.choices[0].reason, answer.choices[0].generated),
        (Some(FinishReason::Stopped), 0)
    );
    assert_eq!(answer.choices[1].ids(), greedy(&tokens(1, 100), 5, None, VOCAB));
    rig.check();
}

/// One request of 20 tokens and one of two choices, held in a step when each choice of the second has a token.
async fn both_generate(rig: &Rig) -> (GenerationStream, GenerationStream) {
    rig.script.hold();
    let other = rig.submit(request(tokens(2, 30), 20));
    let mut two = rig.submit(GenerateRequest {
        choices: 2,
        ..request(tokens(1, 100), 400)
    });
    // The second may come too late for the first step; by the fifth each of its choices has a token all the same.
    rig.script.wait_for_step(1);
    rig.script.hold_at(6);
    rig.script.wait_for_step(6);
    token_of(&mut two, 1).await;
    (other, two)
}

#[tokio::test]
async fn dropping_the_stream_frees_everything() {
    let rig = Rig::new(
        400,
        EngineOptions {
            max_running: 3,
            ..EngineOptions::default()
        },
    );
    let (other, dropped) = both_generate(&rig).await;
    let waits = rig.submit(request(tokens(3, 30), 20));
    assert_eq!(
        (rig.engine.health().waiting, rig.engine.metrics().requests_done),
        (1, 0)
    );
    drop(dropped);
    drop(waits);
    rig.script.go_on();
    assert_eq!(
        collect(other).await.ids(),
        greedy(&tokens(2, 30), 20, None, VOCAB)
    );
    until("both are gone", || rig.engine.metrics().requests_cancelled == 2).await;
    rig.check();
}

/// Stop sequence found, stream dropped, both before the loop looks: the sequence once stayed in the scheduler, which then planned
/// for ever.
#[tokio::test]
async fn a_choice_that_is_ended_and_dropped_at_once_is_gone() {
    let rig = Rig::roomy();
    let (other, stream) = both_generate(&rig).await;
    stream.stop_choice(0);
    stream.stop_choice(1);
    drop(stream);
    rig.script.go_on();
    assert_eq!(
        collect(other).await.ids(),
        greedy(&tokens(2, 30), 20, None, VOCAB)
    );
    until("it is gone", || rig.engine.metrics().requests_cancelled == 1).await;
    until("its sequences are gone", || {
        let health = rig.engine.health();
        (health.running, health.kv_used) == (0, 0)
    })
    .await;
    assert_eq!(
        collect(rig.submit(request(tokens(3, 30), 5))).await.ids(),
        greedy(&tokens(3, 30), 5, None, VOCAB)
    );
    rig.check();
}
