//! Components that loop, allocate, recurse, trap or answer 100 MB: each is ended or refused with a clear error, while 16
//! other streams run on undisturbed.
//!
//! `tests/components/hostile.wasm` does what its configuration says: `ACT-in-HOOK`.

mod common;

use std::{
    fmt::Write,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use common::{admin_server, component, install, root, stream_chat};
use heddle_tests::Server;
use serde_json::json;

/// Modes that show when a request comes: the request ends with an error in the API's shape or the host's.
const AT_WORK: [&str; 14] = [
    "loop-in-parse",
    "alloc-in-parse",
    "recurse-in-parse",
    "trap-in-parse",
    "panic-in-parse",
    "leak-in-parse",
    "loop-in-call",
    "trap-in-start",
    "loop-in-finish",
    "trap-in-finish",
    "huge-reply",
    "huge-finish",
    "garbage-reply",
    "call-other",
];

/// Modes for which the component is not taken at all.
const REFUSED: [&str; 8] = [
    "fail-configure",
    "fail-self-test",
    "loop-in-configure",
    "loop-in-self-test",
    "alloc-in-configure",
    "trap-in-configure",
    "huge-error",
    "trap-in-routes",
];

fn slot(config: &mut String, mode: &str) {
    let hostile = root().join("tests/components/hostile.wasm");
    write!(
        config,
        "[plugins.slots.{mode}]\ncomponent = '{}'\nroles = ['protocol']\nconfig = {{ mode = '{mode}', routes = ['POST /{mode}'] }}\n",
        hostile.display()
    )
    .expect("a string");
}

#[test]
fn sixteen_streams_run_on_undisturbed() {
    let mut config = String::new();
    for mode in AT_WORK {
        slot(&mut config, mode);
    }
    let server = admin_server(&config);

    // The same streams with nobody in the way: the right answers.
    let expected: Vec<String> = (0..16)
        .map(|client| stream_chat(&server, &format!("Tell me story {client}."), 48).text)
        .collect();

    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..16)
            .map(|client| {
                let (server, done, expected) = (&server, &done, &expected[client]);
                scope.spawn(move || {
                    let mut rounds = 0;
                    while !done.load(Ordering::Relaxed) || rounds == 0 {
                        let answer = stream_chat(server, &format!("Tell me story {client}."), 48);
                        assert_eq!(&answer.text, expected);
                        assert_eq!(answer.finish.as_deref(), Some("length"));
                        rounds += 1;
                    }
                })
            })
            .collect();

        let attack = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for mode in AT_WORK {
                let start = Instant::now();
                let answer = server.post(&format!("/{mode}"), &json!("a prompt"));
                assert!(answer.status >= 500, "{mode}: {} {}", answer.status, answer.text);
                // In the component's own words where its `fail` still works, in the host's where not.
                assert!(!answer.text.is_empty(), "{mode} says nothing");
                assert!(!answer.text.contains("a prompt"), "{mode}: {}", answer.text);
                assert!(
                    start.elapsed() < Duration::from_secs(20),
                    "{mode} took {:?}",
                    start.elapsed()
                );
            }
            for mode in REFUSED {
                assert_eq!(
                    server.post(&format!("/{mode}"), &json!("a prompt")).status,
                    404,
                    "{mode} was taken"
                );
            }
            let shipped = component("stop", false);
            let refusals: [(&str, Vec<u8>); 6] = [
                ("cut off", shipped[..shipped.len() / 2].to_vec()),
                ("empty", Vec::new()),
                ("text", b"not a component".to_vec()),
                ("a core module", b"\0asm\x01\0\0\0".to_vec()),
                ("needs the clock", fixture("needs-clock")),
                ("of another contract", fixture("foreign")),
            ];
            for (what, bytes) in refusals {
                let answer = install(&server, "stop", bytes);
                assert_eq!(answer.status, 422, "{what}: {}", answer.text);
                assert!(
                    answer.text.len() > 40,
                    "{what} is refused with a reason: {}",
                    answer.text
                );
            }
        }));
        done.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().expect("a stream was disturbed");
        }
        if let Err(panic) = attack {
            std::panic::resume_unwind(panic);
        }
    });
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn what_cannot_be_configured_is_refused_with_the_reason() {
    for mode in REFUSED {
        let mut config = String::new();
        slot(&mut config, mode);
        let start = Instant::now();
        let (status, log) = Server::builder().config(&config).fail();
        assert_eq!(status.code(), Some(1), "{mode}: {log}");
        assert!(log.contains("was refused at"), "{mode}: {log}");
        assert!(log.len() < 16 * 1024, "{mode}: a log of {} bytes", log.len());
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "{mode} took {:?}",
            start.elapsed()
        );
    }
}

#[test]
fn a_failing_auth_component_denies() {
    for mode in [
        "loop-in-authenticate",
        "trap-in-authenticate",
        "alloc-in-authenticate",
        "garbage-denial",
        "trap-in-authorize",
        "loop-in-authorize",
    ] {
        let hostile = root().join("tests/components/hostile.wasm");
        let server = admin_server(&format!(
            "[plugins.slots.auth]\ncomponent = '{}'\nroles = ['auth']\nconfig = {{ mode = '{mode}' }}\n",
            hostile.display()
        ));
        let answer = server.post(
            "/v1/chat/completions",
            &json!({"model": "pocket", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}),
        );
        assert!(
            answer.status == 403 || answer.status == 401 || answer.status >= 500,
            "{mode}: {}",
            answer.status
        );
        assert!(answer.json().get("choices").is_none(), "{mode}: {}", answer.text);
    }
}

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(root().join(format!("tests/components/{name}.wasm"))).expect("a built fixture")
}
