//! What the tests of swaps and of hostile components share.

// Each test binary uses a part of it.
#![allow(dead_code)]

use std::{collections::BTreeSet, path::PathBuf};

use heddle_tests::{Answer, Server};
use serde_json::json;

/// The admin token of [`admin_server`].
const TOKEN: &str = "operator";

/// A server with an admin API.
pub(crate) fn admin_server(config: &str) -> Server {
    Server::builder()
        .config(config)
        .env("HEDDLE_ADMIN__LISTEN", "127.0.0.1:0")
        .env("HEDDLE_ADMIN__TOKEN", TOKEN)
        .start()
}

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A shipped component, or its twin.
pub(crate) fn component(name: &str, twin: bool) -> Vec<u8> {
    let path = if twin {
        root().join(format!("tests/components/{name}-b.wasm"))
    } else {
        root().join(format!("plugins/dist/{name}.wasm"))
    };
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Puts a component into a slot.
pub(crate) fn install(server: &Server, slot: &str, bytes: Vec<u8>) -> Answer {
    server.admin("POST", &format!("/admin/plugins/{slot}"), TOKEN, bytes)
}

/// The server's resident memory.
pub(crate) fn resident_kib(server: &Server) -> u64 {
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("the server's status");
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .expect("VmRSS");
    line.split_whitespace()
        .nth(1)
        .and_then(|kib| kib.parse().ok())
        .expect("a number")
}

/// A streamed chat, read to its end.
pub(crate) struct Streamed {
    pub(crate) text: String,
    pub(crate) fingerprints: BTreeSet<String>,
    pub(crate) finish: Option<String>,
    pub(crate) completion_tokens: u64,
}

/// Streams a chat of exactly `tokens` tokens. Its stop sequence never comes, so that the stop component is at work.
pub(crate) fn stream_chat(server: &Server, prompt: &str, tokens: u32) -> Streamed {
    let events = server
        .stream(
            "/v1/chat/completions",
            &json!({
                "model": "pocket",
                "messages": [{"role": "user", "content": prompt}],
                "max_tokens": tokens,
                "ignore_eos": true,
                "temperature": 0,
                "stop": ["\u{1}never"],
                "stream": true,
                "stream_options": {"include_usage": true},
            }),
        )
        .all();
    let mut streamed = Streamed {
        text: String::new(),
        fingerprints: BTreeSet::new(),
        finish: None,
        completion_tokens: 0,
    };
    for event in &events {
        assert!(event.get("error").is_none(), "{event}");
        if let Some(fingerprint) = event["system_fingerprint"].as_str() {
            streamed.fingerprints.insert(fingerprint.to_owned());
        }
        if let Some(choice) = event["choices"].get(0) {
            streamed
                .text
                .push_str(choice["delta"]["content"].as_str().unwrap_or_default());
            if let Some(finish) = choice["finish_reason"].as_str() {
                streamed.finish = Some(finish.to_owned());
            }
        }
        if let Some(tokens) = event["usage"]["completion_tokens"].as_u64() {
            streamed.completion_tokens = tokens;
        }
    }
    streamed
}
