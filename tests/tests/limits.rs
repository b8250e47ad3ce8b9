//! Limits, authentication, disconnects, shutdown: what must hold when clients and operators are in the way.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use heddle_tests::Server;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const CHAT: &str = "/v1/chat/completions";

/// A word that occurs in no log by chance.
const CANARY: &str = "xylophone-canary";

fn chat(content: &str) -> Value {
    json!({
        "model": "pocket",
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
    })
}

/// A stream that runs to the end of the model's context of 512 tokens.
fn long_chat() -> Value {
    let mut request = chat("Tell me a story.");
    request["ignore_eos"] = json!(true);
    request["stream"] = json!(true);
    request
}

/// A stream that does not come to its end while a test does something, however slowly the test runs.
fn endless_chat() -> Value {
    let mut request = long_chat();
    request["n"] = json!(100);
    request
}

#[test]
fn tokens_decide_who_may_do_what() {
    let hash = |token: &str| hex::encode(Sha256::digest(token.as_bytes()));
    let server = Server::builder()
        .config(&format!(
            "[plugins.slots.auth.config]
             mode = 'tokens'
             tokens = [
               {{ sha256 = '{}', tenant = 'acme', subject = 'all', adapters = ['*'] }},
               {{ sha256 = '{}', tenant = 'acme', subject = 'json', adapters = ['json'], base = false, max_tokens = 2 }},
             ]",
            hash("sk-all"),
            hash("sk-json")
        ))
        .start();
    let status = |token: &str, model: &str| {
        let mut request = chat("hello");
        request["model"] = json!(model);
        server.post_as(token, CHAT, &request).status
    };
    assert_eq!(status("sk-all", "pocket"), 200);
    assert_eq!(status("sk-all", "json"), 200);
    assert_eq!(status("sk-json", "json"), 200);
    assert_eq!(status("sk-json", "caps"), 403);
    assert_eq!(status("sk-json", "pocket"), 403);
    assert_eq!(status("sk-wrong", "pocket"), 401);

    let nobody = server.post(CHAT, &chat("hello"));
    assert_eq!(nobody.status, 401);
    assert_eq!(nobody.header("www-authenticate"), "Bearer");
    assert_eq!(nobody.json()["error"]["code"], "invalid_api_key");
    assert_eq!(server.get("/v1/models").status, 401);
    assert_eq!(
        server.get("/health").status,
        200,
        "the host's own routes are open"
    );

    let mut request = chat("hello");
    request["model"] = json!("json");
    request["api_token"] = json!("sk-json");
    assert_eq!(
        server.post(CHAT, &request).status,
        200,
        "the token in the body counts, too"
    );
    request["max_tokens"] = json!(20);
    let capped = server.post_as("sk-json", CHAT, &request).success();
    assert_eq!(capped["usage"]["completion_tokens"], 2, "the grant's limit");

    for secret in ["sk-all", "sk-json", "sk-wrong"] {
        assert!(!server.log().contains(secret), "{}", server.log());
    }
}

#[test]
fn a_client_that_goes_away_frees_its_sequence() {
    let server = Server::builder().start();
    let idle = || server.health("running") == 0 && server.health("kv_used") == 0;
    let mut events = server.stream(CHAT, &endless_chat());
    assert!(events.next().is_some());
    server.wait_until("a running sequence", || server.health("running") > 0);
    drop(events);
    server.wait_until("an idle engine that holds no block", idle);
    server.wait_for_log("cancelled");

    // Before the first byte, too: a document that nobody waits for any more.
    let mut request = endless_chat();
    request["stream"] = json!(false);
    let body = request.to_string();
    let mut socket = TcpStream::connect(server.address()).unwrap();
    write!(
        socket,
        "POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    server.wait_until("a running sequence", || server.health("running") > 0);
    drop(socket);
    server.wait_until("an idle engine that holds no block", idle);
}

#[test]
fn a_running_stream_is_drained_and_nothing_new_is_taken() {
    let mut server = Server::builder().start();
    let mut events = server.stream(CHAT, &long_chat());
    assert!(events.next().is_some());
    server.signal("TERM");
    server.wait_for_log("shutting down");
    server.wait_until("the listener to be closed", || {
        TcpStream::connect(server.address()).is_err()
    });
    let rest: Vec<_> = events.collect();
    assert_eq!(
        rest.last().map(|event| event.data.as_str()),
        Some("[DONE]"),
        "the stream came to its end"
    );
    let status = server.wait();
    assert!(status.success(), "{status}");
    server.wait_for_log("stopped");
}

#[test]
fn what_does_not_end_in_time_is_broken_off_with_an_error() {
    let mut server = Server::builder().config("server.drain_s = 0").start();
    let mut events = server.stream(CHAT, &endless_chat());
    assert!(events.next().is_some());
    server.signal("INT");
    let last = events.last().expect("a last event").json();
    assert!(last["error"]["message"].is_string(), "{last}");
    assert!(server.wait().success());
}

#[test]
fn a_second_signal_stops_at_once() {
    let mut server = Server::builder().start();
    let mut events = server.stream(CHAT, &endless_chat());
    assert!(events.next().is_some());
    server.signal("TERM");
    server.wait_for_log("shutting down");
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(130));
}

#[test]
fn bodies_have_limits() {
    let server = Server::builder()
        .config("server.body_limit_mib = 1\nserver.body_timeout_s = 1\nserver.head_limit_kib = 16")
        .start();
    let large = server.post(CHAT, &chat(&"x".repeat(2 << 20)));
    assert_eq!(large.status, 413);
    assert!(large.json()["error"]["message"].is_string(), "{}", large.text);

    // Without a length in the head, so that it shows only as it comes.
    let chunks = std::io::Cursor::new("x".repeat(2 << 20));
    let body = reqwest::blocking::Body::new(chunks);
    let large = server.request("POST", CHAT).body(body).send().unwrap();
    assert_eq!(large.status(), 413);

    let mut socket = TcpStream::connect(server.address()).unwrap();
    write!(
        socket,
        "POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{{"
    )
    .unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("\"error\""), "{answer}");

    let mut socket = TcpStream::connect(server.address()).unwrap();
    write!(
        socket,
        "GET /health HTTP/1.1\r\nx: {}\r\n\r\n",
        "y".repeat(20 << 10)
    )
    .unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
}

#[test]
fn a_slow_head_is_cut_off() {
    let server = Server::builder().config("server.keep_alive_s = 1").start();
    let mut socket = TcpStream::connect(server.address()).unwrap();
    write!(socket, "GET /health HTTP/1.1\r\n").unwrap();
    let start = Instant::now();
    let mut answer = Vec::new();
    // A reset is as good as an end.
    let _ = socket.read_to_end(&mut answer);
    // By the limit of 1 s, not the 75 s that it would be.
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}

#[test]
fn the_log_holds_no_prompt_answer_or_token() {
    let server = Server::builder()
        .config("log = { level = 'debug', format = 'text' }")
        .start();
    let answer = server.post_as("sk-secret-token", CHAT, &chat(CANARY)).success();
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(text.len() > 8);
    let broken = server
        .request("POST", CHAT)
        .body(format!("{{\"{CANARY}\": "))
        .send()
        .unwrap();
    assert_eq!(broken.status(), 400);
    let mut request = chat("hello");
    request["model"] = json!(CANARY);
    assert_eq!(server.post(CHAT, &request).status, 404);
    server.get(&format!("/{CANARY}?q={CANARY}"));

    server.wait_until("four lines", || server.log().matches("route=").count() >= 4);
    let log = server.log();
    for hidden in [CANARY, text, "sk-secret-token"] {
        assert!(!log.contains(hidden), "`{hidden}` in:\n{log}");
    }
    assert!(!server.get("/metrics").text.contains(CANARY));
    let line = log
        .lines()
        .find(|line| line.contains("route=/v1/chat/completions"))
        .unwrap();
    for field in [
        "request_id=",
        "status=200",
        "model=\"pocket\"",
        "duration_ms=",
        "completion_tokens=",
    ] {
        assert!(line.contains(field), "`{field}` in `{line}`");
    }
}

#[test]
fn the_log_is_json_where_machines_read_it() {
    let server = Server::builder()
        .arg("--log-format=text")
        .env("HEDDLE_LOG__FORMAT", "json")
        .start();
    assert!(
        server.output().contains("serves pocket"),
        "flags go over the environment"
    );
    drop(server);
    let (status, log) = Server::builder()
        .env("HEDDLE_LOG__FORMAT", "json")
        .env("HEDDLE_LOG__LEVEL", "no-such=level=x")
        .fail();
    assert_eq!(status.code(), Some(2));
    assert!(log.contains("log.level"), "{log}");
}

#[test]
fn a_fault_of_the_configuration_stops_the_start_and_says_where_it_is() {
    for (builder, says) in [
        (
            Server::builder().config("server.prot = 1"),
            vec!["heddle.toml", "server.prot"],
        ),
        (
            Server::builder().env("HEDDLE_SERVER__DRAIN_S", "x"),
            vec!["HEDDLE_SERVER__DRAIN_S"],
        ),
        (
            Server::builder().arg("--adapter=a=./no/such/folder"),
            vec!["adapter `a`", "no/such/folder"],
        ),
        (Server::builder().arg("--no-such-flag"), vec!["--no-such-flag"]),
        (
            Server::builder().env("HEDDLE_ADMIN__LISTEN", "0.0.0.0:0"),
            vec!["admin.token"],
        ),
    ] {
        let (status, log) = builder.fail();
        assert_eq!(status.code(), Some(2), "{log}");
        for part in says {
            assert!(log.contains(part), "`{part}` in `{log}`");
        }
        assert!(!log.contains("panicked"), "{log}");
    }
}

#[test]
fn the_admin_api_wants_its_token() {
    let server = Server::builder()
        .env("HEDDLE_ADMIN__LISTEN", "127.0.0.1:0")
        .start();
    let admin = server.admin_url();
    let port = admin.rsplit(':').next().unwrap();
    let token = std::fs::read_to_string(server.folder().join(format!("state/admin-{port}.token"))).unwrap();
    let client = reqwest::blocking::Client::builder().no_proxy().build().unwrap();
    let url = format!("{admin}/admin/plugins");
    assert_eq!(client.get(&url).send().unwrap().status(), 401);
    assert_eq!(
        client.get(&url).bearer_auth("guess").send().unwrap().status(),
        401
    );
    let list: Value = client
        .get(&url)
        .bearer_auth(token)
        .send()
        .unwrap()
        .json()
        .unwrap();
    let slots: Vec<_> = list["slots"]
        .as_array()
        .unwrap()
        .iter()
        .map(|plugin| plugin["slot"].as_str().unwrap())
        .collect();
    assert_eq!(slots, ["auth", "openai", "stop"]);
}

#[test]
fn a_reload_by_signal_keeps_serving() {
    let server = Server::builder().start();
    let mut events = server.stream(CHAT, &long_chat());
    assert!(events.next().is_some());
    server.signal("HUP");
    server.wait_for_log("SIGHUP");
    server.post(CHAT, &chat("hello")).success();
    assert_eq!(events.last().map(|event| event.data), Some("[DONE]".to_owned()));
}
