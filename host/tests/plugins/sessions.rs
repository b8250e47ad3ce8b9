//! Sessions with the components that ship.

use std::sync::Arc;

use heddle::{
    Error,
    plugin::{
        AuthSession, ProtocolSession, Routed, StopSession,
        bindings::{
            exports::heddle::plugin::{
                auth::Decision,
                protocol::{Call, Generated, Outcome, Problem, ProblemKind},
            },
            heddle::plugin::generation::{Choice, Event, FinishReason, Framing, Prompt, Usage},
        },
        resources::{Credential, Served, Target},
    },
};
use serde_json::{Value, json};

use crate::support::{Fixture, head, start};

/// SHA-256 of `sk-good`: `printf %s sk-good | sha256sum`.
const SK_GOOD: &str = "4c3fe847ba5369a26bb663f9713c893e7e9407c376d5e33038740063b5a09125";

fn credential(secret: &str) -> Credential {
    Credential {
        secret: Some(Arc::from(secret)),
    }
}

fn served() -> Served {
    Served {
        id: "0197".into(),
        created: 1_700_000_000,
        model: "base".into(),
        base_model: "base".into(),
        prompt_tokens: 5,
        prompts: Vec::new(),
        seed: 1,
    }
}

fn protocol(fixture: &Fixture, path: &str) -> ProtocolSession {
    let pipeline = fixture.host.pin();
    let Routed::Plugin(plugin) = pipeline.route("POST", path) else {
        panic!("nobody serves {path}")
    };
    ProtocolSession::open(plugin).unwrap()
}

#[test]
fn a_chat_request_goes_through_openai() {
    let fixture = start("");
    let mut session = protocol(&fixture, "/v1/chat/completions");
    let body = json!({
        "model": "base", "stream": true, "temperature": 0.5, "max_tokens": 7, "stop": ["END"],
        "messages": [{"role": "user", "content": "Hi"}],
    });
    let call = session
        .parse(&head("POST", "/v1/chat/completions"), body.to_string().as_bytes())
        .unwrap()
        .unwrap();
    let Call::Generate(handle) = call else {
        panic!("{call:?}")
    };
    let call = session.take_generation(handle).unwrap();
    let Prompt::Chat(chat) = &call.prompts[0] else {
        panic!("{:?}", call.prompts)
    };
    let messages: Value = serde_json::from_str(&chat.messages).unwrap();
    assert_eq!(messages, json!([{"role": "user", "content": "Hi"}]));
    assert_eq!(call.temperature, Some(0.5));
    assert_eq!(call.max_tokens, Some(7));
    assert_eq!(call.stop, ["END"]);
    assert_eq!(call.framing, Some(Framing::Sse));

    let mut payloads = session.start(served()).unwrap();
    for (text, finish) in [("Hel", None), ("lo", Some(FinishReason::Eos))] {
        let event = Event {
            choice: 0,
            text: text.into(),
            tokens: Vec::new(),
            finish,
        };
        payloads.extend(session.render(&[event]).unwrap());
    }
    let usage = Usage {
        prompt_tokens: 5,
        completion_tokens: 2,
        cached_tokens: 0,
    };
    payloads.extend(session.close(usage).unwrap());
    let chunks: Vec<Value> = payloads
        .iter()
        .filter_map(|payload| serde_json::from_str(&payload.data).ok())
        .collect();
    let text: String = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(text, "Hello");
    assert!(
        chunks
            .iter()
            .all(|chunk| chunk["object"] == "chat.completion.chunk"),
        "{chunks:?}"
    );
    assert_eq!(payloads.last().unwrap().data, "[DONE]");
}

#[test]
fn a_document_and_an_error_have_openais_shape() {
    let fixture = start("");
    let mut session = protocol(&fixture, "/v1/completions");
    let parsed = session
        .parse(
            &head("POST", "/v1/completions"),
            br#"{"model":"base","prompt":"Hi"}"#,
        )
        .unwrap();
    assert!(matches!(parsed, Ok(Call::Generate(_))));
    session.start(served()).unwrap();
    let choice = Choice {
        index: 0,
        text: " there".into(),
        tokens: Vec::new(),
        finish: FinishReason::Length,
        generated: 1,
    };
    let usage = Usage {
        prompt_tokens: 1,
        completion_tokens: 1,
        cached_tokens: 0,
    };
    let reply = session
        .finish(&Outcome::Generated(Generated {
            choices: vec![choice],
            usage,
        }))
        .unwrap();
    let document: Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!(reply.status, 200);
    assert_eq!(document["choices"][0]["text"], " there");
    assert_eq!(document["choices"][0]["finish_reason"], "length");

    let mut session = protocol(&fixture, "/v1/completions");
    let reply = session
        .parse(&head("POST", "/v1/completions"), b"{")
        .unwrap()
        .unwrap_err();
    let document: Value = serde_json::from_slice(&reply.body).unwrap();
    assert!(document["error"]["message"].is_string(), "{document}");
    let problem = Problem {
        status: 404,
        kind: ProblemKind::ModelNotFound,
        code: None,
        message: "no such model".into(),
        parameter: Some("model".into()),
        retry_after: None,
    };
    let reply = session.fail(&head("POST", "/v1/completions"), &problem).unwrap();
    assert_eq!(reply.status, 404);
}

#[test]
fn stop_sequences_are_found_across_pieces() {
    let fixture = start("");
    let pipeline = fixture.host.pin();
    let mut session = StopSession::open(pipeline.stop().unwrap()).unwrap();
    let first = session.matcher(&["END".into()], false).unwrap();
    let second = session.matcher(&["x".into()], true).unwrap();
    let verdict = session.push(first, "the E").unwrap();
    assert_eq!((verdict.emit.as_str(), verdict.stopped), ("the ", None));
    let verdict = session.push(second, "ax").unwrap();
    assert_eq!((verdict.emit.as_str(), verdict.stopped), ("ax", Some(0)));
    assert_eq!(session.flush(first).unwrap(), "E");
}

#[test]
fn auth_by_a_table_of_tokens() {
    let fixture = start(&format!(
        "[slots.auth.config]\nmode = \"tokens\"\ntokens = [{{ sha256 = \"{SK_GOOD}\", tenant = \"acme\", \
         adapters = [\"a-*\"], priority = 3 }}]"
    ));
    let pipeline = fixture.host.pin();
    let mut session = AuthSession::open(pipeline.auth().unwrap()).unwrap();
    let head = head("POST", "/v1/completions");
    let good = credential("sk-good");
    let Ok(Decision::Allow(who)) = session.authenticate(&head, &good).unwrap() else {
        panic!("denied")
    };
    assert_eq!(who.tenant, "acme");
    let target = |adapter: &str| Target {
        operation: "generate".into(),
        adapter: Some(adapter.into()),
        ..Target::default()
    };
    let grant = session
        .authorize(Some(&who), &good, &target("a-1"))
        .unwrap()
        .unwrap();
    assert_eq!((grant.tenant.as_str(), grant.priority), ("acme", 3));
    let denial = session
        .authorize(Some(&who), &good, &target("b-1"))
        .unwrap()
        .unwrap_err();
    assert_eq!(denial.status, 403);

    let mut session = AuthSession::open(pipeline.auth().unwrap()).unwrap();
    let denial = session
        .authenticate(&head, &credential("sk-bad"))
        .unwrap()
        .unwrap_err();
    assert_eq!(denial.status, 401);
    assert!(!denial.message.contains("sk-bad"), "{denial:?}");
}

#[test]
fn routes_tell_a_wrong_method_from_an_unknown_path() {
    let fixture = start("");
    let pipeline = fixture.host.pin();
    assert!(
        matches!(pipeline.route("POST", "/v1/completions"), Routed::Plugin(plugin) if plugin.slot() == "openai")
    );
    assert!(matches!(pipeline.route("GET", "/v1/models"), Routed::Plugin(_)));
    assert!(
        matches!(pipeline.route("GET", "/v1/models/a/b"), Routed::Plugin(_)),
        "a pattern"
    );
    let Routed::WrongMethod(methods) = pipeline.route("GET", "/v1/completions") else {
        panic!()
    };
    assert_eq!(methods, ["POST"]);
    assert!(matches!(pipeline.route("GET", "/nothing"), Routed::Unknown));
}

#[test]
fn instances_are_limited_and_a_free_place_is_used_again() {
    let fixture = start("[slots.stop.limits]\nconcurrency = 2");
    let pipeline = fixture.host.pin();
    let plugin = pipeline.stop().unwrap();
    let sessions: Vec<_> = (0..2).map(|_| StopSession::open(plugin).unwrap()).collect();
    assert_eq!(fixture.slot("stop").instances, 2);
    let Err(Error::PluginBusy { slot, limit }) = StopSession::open(plugin) else {
        panic!("a third instance")
    };
    assert_eq!((slot.as_str(), limit), ("stop", 2));
    drop(sessions);
    StopSession::open(plugin).unwrap();
}

#[test]
fn a_session_starts_as_fresh_as_the_first() {
    let fixture = start("");
    let pipeline = fixture.host.pin();
    for _ in 0..3 {
        let mut session = StopSession::open(pipeline.stop().unwrap()).unwrap();
        let matcher = session.matcher(&["END".into()], false).unwrap();
        assert_eq!(matcher.0, 0);
        assert_eq!(session.push(matcher, "xE").unwrap().emit, "x");
        // Half a stop sequence stays behind, and must not be in the next instance.
    }
}
