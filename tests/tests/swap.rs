//! Components are swapped 200 times while 16 clients stream: no failed request, no truncated stream, every stream ends
//! under the components it began with, and memory stays flat.

mod common;

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use common::{admin_server, component, install, resident_kib, stream_chat};
use heddle_tests::Server;
use serde_json::json;

/// The slots that ship, and what is swapped in each: the shipped build and its twin, which differ in their version.
const SLOTS: [&str; 3] = ["stop", "openai", "auth-token"];
const SWAPS: usize = 200;
const CLIENTS: usize = 16;

#[test]
fn two_hundred_swaps_under_sixteen_streams() {
    let server = admin_server("");
    let done = AtomicBool::new(false);
    let streams = AtomicUsize::new(0);
    let (memory, seen) = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (server, done, streams) = (&server, &done, &streams);
                scope.spawn(move || {
                    let mut seen = BTreeSet::new();
                    let mut round = 0;
                    while !done.load(Ordering::Relaxed) {
                        round += 1;
                        let answer = stream_chat(server, &format!("Tell me story {client} of {round}."), 40);
                        // One component served the whole stream, whatever was committed meanwhile.
                        assert_eq!(answer.fingerprints.len(), 1, "{:?}", answer.fingerprints);
                        assert_eq!(answer.finish.as_deref(), Some("length"));
                        assert_eq!(answer.completion_tokens, 40);
                        seen.extend(answer.fingerprints);
                        streams.fetch_add(1, Ordering::Relaxed);
                    }
                    seen
                })
            })
            .collect();
        // A panic of this thread must not leave the clients running for ever.
        let memory = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| swap(&server)));
        done.store(true, Ordering::Relaxed);
        let mut seen = BTreeSet::new();
        for client in clients {
            seen.extend(client.join().expect("a client saw a broken stream"));
        }
        (
            memory.unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            seen,
        )
    });
    assert_eq!(seen.len(), 2, "streams ran under both builds: {seen:?}");
    assert!(streams.load(Ordering::Relaxed) >= CLIENTS);

    let middle = |values: &[u64]| {
        let mut values = values.to_vec();
        values.sort_unstable();
        values[values.len() / 2]
    };
    let (early, late) = (middle(&memory[50..100]), middle(&memory[SWAPS - 50..]));
    println!(
        "{} streams; resident after 50 swaps {early} KiB, at the end {late} KiB",
        streams.into_inner()
    );
    // Noise of the allocator's and of the streams themselves; a generation that stays would cost megabytes each.
    assert!(
        late < early + early / 10 + 16 * 1024,
        "memory grew from {early} to {late} KiB"
    );
}

/// Swaps slot after slot, and asks after each swap of `openai` whether the next request uses it. Returns the resident
/// memory in KiB after each swap.
fn swap(server: &Server) -> Vec<u64> {
    let mut memory = Vec::with_capacity(SWAPS);
    for round in 0..SWAPS {
        let name = SLOTS[round % SLOTS.len()];
        let twin = (round / SLOTS.len()).is_multiple_of(2);
        let slot = if name == "auth-token" { "auth" } else { name };
        let answer = install(server, slot, component(name, twin));
        assert_eq!(answer.status, 200, "swap {round} of {slot}: {}", answer.text);
        if name == "openai" {
            let next = server
                .post(
                    "/v1/chat/completions",
                    &json!({"model": "pocket", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}),
                )
                .success();
            let fingerprint = next["system_fingerprint"].as_str().expect("a fingerprint");
            assert_eq!(
                fingerprint.ends_with("+b"),
                twin,
                "the next request after swap {round} got {fingerprint}"
            );
        }
        memory.push(resident_kib(server));
    }
    memory
}
