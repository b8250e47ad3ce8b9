//! `heddle bench` against a real server. Nothing here depends on how fast either is.

use std::{
    net::TcpListener,
    process::{Command, Output, Stdio},
};

use heddle_tests::{Server, binary};
use serde_json::Value;

const REQUESTS: u64 = 6;
const TOKENS: u64 = 8;

fn bench(args: &[&str]) -> Output {
    Command::new(binary())
        .arg("bench")
        .args(args)
        .output()
        .expect("heddle runs")
}

/// A bench of small requests on a server, as JSON, and its exit code.
fn measure(server: &Server, args: &[&str]) -> (Value, Option<i32>) {
    let url = server.url("");
    let work = [
        url.as_str(),
        "--json",
        "--requests",
        "6",
        "--max-tokens",
        "8",
        "--prompt-words",
        "12",
    ];
    let output = bench(&[&work, args].concat());
    let document = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!(
            "{error} in the output; errors:\n{}",
            String::from_utf8_lossy(&output.stderr)
        )
    });
    (document, output.status.code())
}

/// Checks a run's counts, and that its figures agree with each other.
fn assert_whole(run: &Value) {
    assert_eq!(run["complete"], true, "{run}");
    assert_eq!(run["ok"], REQUESTS, "{run}");
    assert_eq!(run["errors"], 0, "{run}");
    assert_eq!(run["first_error"], Value::Null, "{run}");
    assert_eq!(run["tokens_out"], REQUESTS * TOKENS, "{run}");

    let number = |pointer: &str| {
        let number = run.pointer(pointer).and_then(Value::as_f64);
        let number = number.unwrap_or_else(|| panic!("no number at {pointer} in {run}"));
        assert!(number.is_finite() && number >= 0.0, "{pointer} in {run}");
        number
    };
    // A word has a token at least.
    assert!(number("/tokens_in") >= (REQUESTS * 12) as f64, "{run}");
    let seconds = number("/seconds");
    for (rate, count) in [
        ("/tokens_per_second", REQUESTS * TOKENS),
        ("/requests_per_second", REQUESTS),
    ] {
        let counted = number(rate) * seconds;
        assert!((counted - count as f64).abs() < 1e-6, "{rate} in {run}");
    }
    // A server that is ahead of its client may send a short answer as one event: then nothing is between tokens.
    let between = (!run["inter_token_ms"]["p50"].is_null()).then_some("inter_token_ms");
    for name in ["ttft_ms", "end_to_end_ms"].into_iter().chain(between) {
        let [p50, p90, p99] =
            ["p50", "p90", "p99"].map(|percentile| number(&format!("/{name}/{percentile}")));
        assert!(p50 <= p90 && p90 <= p99, "{name} in {run}");
        assert!(p99 <= seconds * 1000.0, "{name} in {run}");
    }
    assert!(number("/ttft_ms/p50") <= number("/end_to_end_ms/p50"), "{run}");
}

#[test]
fn clients_in_a_closed_loop_are_counted() {
    let server = Server::shared();
    let args = [
        "--clients",
        "3",
        "--warmup",
        "2",
        "--adapters",
        "caps,json",
        "--choose",
        "zipf",
    ];
    let (document, code) = measure(&server, &args);
    assert_eq!(code, Some(0));
    assert_eq!(document["work"]["clients"], 3);
    assert_eq!(document["work"]["adapters"], serde_json::json!(["caps", "json"]));
    assert_eq!(document["runs"].as_array().unwrap().len(), 1);
    assert_eq!(document["ratio"], Value::Null);
    assert_whole(&document["runs"][0]);
}

#[test]
fn an_open_loop_sends_all_of_its_requests() {
    let (document, code) = measure(&Server::shared(), &["--rate", "200"]);
    assert_eq!(code, Some(0));
    assert_eq!(document["work"]["rate"], 200.0);
    assert_eq!(document["runs"][0]["model"], "pocket", "the first of /v1/models");
    assert_whole(&document["runs"][0]);
}

#[test]
fn two_servers_take_turns() {
    let server = Server::shared();
    let (document, code) = measure(&server, &[&server.url("/v1"), "--runs", "2"]);
    assert_eq!(code, Some(0));
    let runs = document["runs"].as_array().unwrap();
    let turns: Vec<_> = runs.iter().map(|run| run["run"].as_u64().unwrap()).collect();
    assert_eq!(turns, [1, 1, 2, 2]);
    runs.iter().for_each(assert_whole);
    for figure in ["tokens_per_second", "ttft_p50_ms"] {
        let median = |server: usize| document["medians"][server]["median"][figure].as_f64().unwrap();
        let ratio = document["ratio"][figure].as_f64().unwrap();
        assert!(
            (ratio * median(1) - median(0)).abs() < 1e-6,
            "{figure} in {document}"
        );
    }
}

#[test]
fn ctrl_c_shows_what_there_is() {
    let server = Server::builder().start();
    let url = server.url("");
    // The first request is sent at once, the others within hours.
    let args = ["bench", &url, "--json", "--rate", "0.0001", "--requests", "3"];
    let child = Command::new(binary())
        .args(args)
        .stdout(Stdio::piped())
        .spawn()
        .expect("heddle runs");
    server.wait_until("the first request", || {
        let metrics = server.get("/metrics").text;
        metrics.contains("heddle_requests_total{route=\"/v1/completions\",status=\"200\"}")
    });
    let killed = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(killed.expect("kill runs").success());
    let output = child.wait_with_output().expect("its output");
    assert_eq!(output.status.code(), Some(130));
    let document: Value = serde_json::from_slice(&output.stdout).expect("a report");
    let run = &document["runs"][0];
    assert_eq!(run["complete"], false);
    assert_eq!(run["errors"], 0);
    assert!(run["ok"].as_u64().expect("a number") <= 1, "{run}");
}

#[test]
fn what_the_server_refuses_is_told() {
    let (document, code) = measure(&Server::shared(), &["--model", "no-such-model"]);
    assert_eq!(code, Some(1));
    let run = &document["runs"][0];
    assert_eq!(run["ok"], 0);
    assert_eq!(run["errors"], REQUESTS);
    assert_eq!(run["first_error"]["status"], 404);
    let text = run["first_error"]["text"].as_str().unwrap();
    assert!(text.contains("no-such-model"), "{text}");
    assert_eq!(run["ttft_ms"], Value::Null);
}

#[test]
fn a_server_that_is_not_there_is_told() {
    // A port that was free a moment ago.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    drop(listener);
    let output = bench(&[&address]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.contains(&format!("no server answers at http://{address}")),
        "{text}"
    );
}

#[test]
fn a_key_is_asked_for_and_sent() {
    let config = r#"
        [plugins.slots.auth.config]
        mode = "tokens"

        [[plugins.slots.auth.config.tokens]]
        sha256 = "d0c04f4b1951e4aeaaec8223ed2039e542f3aae805a6fa7f6d794e5afff5d272"
        subject = "alice"
        tenant = "team-a"
        adapters = ["*"]
    "#;
    let server = Server::builder().config(config).start();
    let output = bench(&[&server.url("")]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("401") && text.contains("--api-key"), "{text}");
    let (document, code) = measure(&server, &["--api-key", "sesame"]);
    assert_eq!(code, Some(0));
    assert_whole(&document["runs"][0]);
}
