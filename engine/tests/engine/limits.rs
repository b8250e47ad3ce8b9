//! What is refused, and how.

use heddle_engine::{
    Error,
    engine::EngineOptions,
    ids::{Tenant, TokenId},
    request::{GenerateRequest, Prompt, SamplingParams},
};

use super::harness::{CONTEXT, Rig, VOCAB, collect, request, tokens};

fn refusal(rig: &Rig, request: GenerateRequest) -> Error {
    match rig.engine.submit(request) {
        Ok(_) => panic!("it was taken"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn a_request_that_cannot_be_is_refused_at_once_with_the_name_of_what_is_wrong() {
    let rig = Rig::roomy();
    let good = || request(tokens(1, 5), 5);
    let hot = SamplingParams {
        temperature: -1.0,
        ..SamplingParams::default()
    };
    let cases = [
        (
            "temperature",
            GenerateRequest {
                sampling: hot,
                ..good()
            },
        ),
        ("choices", GenerateRequest { choices: 0, ..good() }),
        (
            "stop_tokens",
            GenerateRequest {
                stop_tokens: vec![TokenId(VOCAB as u32)],
                ..good()
            },
        ),
        (
            "min_tokens",
            GenerateRequest {
                min_tokens: 6,
                ..good()
            },
        ),
        (
            "prompt",
            GenerateRequest {
                prompt: Prompt::Tokens(Vec::new()),
                ..good()
            },
        ),
        (
            "prompt",
            GenerateRequest {
                prompt: Prompt::Text(String::new()),
                ..good()
            },
        ),
        (
            "prompt",
            GenerateRequest {
                prompt: Prompt::Tokens(vec![TokenId(VOCAB as u32)]),
                ..good()
            },
        ),
        (
            "choices",
            GenerateRequest {
                choices: 3,
                max_concurrent: Some(2),
                ..good()
            },
        ),
    ];
    for (name, request) in cases {
        match refusal(&rig, request) {
            Error::InvalidRequest { parameter, message } => assert_eq!(parameter, name, "{message}"),
            other => panic!("{name}: {other}"),
        }
    }
    let long = refusal(&rig, request(tokens(1, CONTEXT), 1));
    assert!(
        matches!(
            long,
            Error::ContextExceeded {
                context: CONTEXT,
                prompt: CONTEXT,
                wanted: 1
            }
        ),
        "{long}"
    );
    rig.check();
}

#[tokio::test]
async fn a_full_queue_refuses_and_takes_again_when_it_is_not() {
    let rig = Rig::new(
        100,
        EngineOptions {
            max_running: 1,
            max_waiting: 2,
            ..EngineOptions::default()
        },
    );
    rig.script.hold();
    let running = rig.submit(request(tokens(1, 5), 5));
    rig.script.wait_for_step(1);
    let waiting: Vec<_> = (2..4)
        .map(|salt| rig.submit(request(tokens(salt, 5), 5)))
        .collect();
    assert_eq!(rig.engine.health().waiting, 2);
    let refused = refusal(&rig, request(tokens(4, 5), 5));
    assert!(
        matches!(
            refused,
            Error::Overloaded {
                waiting: 2,
                retry_after: 1..=60
            }
        ),
        "{refused}"
    );
    rig.script.go_on();
    collect(running).await;
    for stream in waiting {
        collect(stream).await;
    }
    rig.answer(request(tokens(4, 5), 5)).await;
    rig.check();
}

#[tokio::test]
async fn a_tenant_has_no_more_than_its_share() {
    let rig = Rig::roomy();
    let of = |name: &str, choices| GenerateRequest {
        tenant: Tenant(name.to_owned()),
        max_concurrent: Some(2),
        choices,
        ..request(tokens(1, 5), 5)
    };
    rig.script.hold();
    let both = rig.submit(of("a", 2));
    assert!(matches!(
        refusal(&rig, of("a", 1)),
        Error::TenantLimit { limit: 2, .. }
    ));
    let other = rig.submit(of("b", 1));
    rig.script.go_on();
    collect(both).await;
    collect(other).await;
    rig.answer(of("a", 2)).await;
    rig.check();
}
