//! What the sandbox costs: the way of a request through `auth`, `openai` and `stop`, and that of a token, beside the
//! same logic called as plain Rust in the same process, sample by sample in turn: the sources of the components are
//! compiled into this benchmark too, against the host's own types.
//!
//! `cargo bench -p heddle --bench plugin_path`. Goals: request p50 under 100 us and p99 under 400 us, token p50 under
//! 3 us.

// A benchmark that cannot run fails by panicking.
#![allow(clippy::unwrap_used)]
#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    missing_docs,
    reason = "the components' modules are used in part"
)]

// What the components' sources know as the SDK.
extern crate self as heddle_plugin;
pub use heddle::plugin::bindings::{
    exports::heddle::plugin::protocol::{Generated, Model, Payload, Problem, ProblemKind, Reply},
    heddle::plugin::generation,
};

#[path = "../../plugins/openai/src/answer/mod.rs"]
mod answer;
#[path = "../../plugins/stop/src/automaton.rs"]
mod automaton;
#[path = "../../plugins/openai/src/fault.rs"]
mod fault;
#[path = "../../plugins/stop/src/matcher.rs"]
mod matcher;
#[path = "../../plugins/auth-token/src/pattern.rs"]
mod pattern;
#[path = "../../plugins/auth-token/src/policy.rs"]
mod policy;
#[path = "../../plugins/openai/src/request/mod.rs"]
mod request;

use std::{
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

pub use fault::Fault;
use heddle::plugin::{
    AuthSession, PluginHost, PluginsConfig, ProtocolSession, Routed, StopSession,
    bindings::exports::heddle::plugin::protocol::Call,
    resources::{Credential, HeadParts, RequestHead, Served, Target},
};
use sha2::{Digest as _, Sha256};

use crate::{
    answer::{Answer, Facts},
    generation::Event,
    policy::{Policy, Wanted},
    request::Api,
};

const PATH: &str = "/v1/chat/completions";
const STOPS: [&str; 2] = ["</s>", "\n\nUser:"];
const TEXT: &str = "hello ";
/// Tokens that are timed together: one is near the resolution of the clock.
const BATCH: usize = 16;

fn main() {
    let folder = tempfile::tempdir().expect("a folder for the state");
    let host =
        PluginHost::start(&PluginsConfig::default(), folder.path()).expect("the components that ship start");
    let input = Input::new();
    println!("body: {} bytes", input.body.len());

    let (mut plugins, mut native) = (Vec::new(), Vec::new());
    for round in 0..5_500 {
        let samples = (timed(|| input.through_plugins(&host)), timed(|| input.natively()));
        // The first ones fill the caches.
        if round >= 500 {
            plugins.push(samples.0);
            native.push(samples.1);
        }
    }
    report("request", "us", 1e6, &mut plugins, &mut native, (100.0, 400.0));

    {
        let mut acc = std::collections::BTreeMap::<&str, Vec<Duration>>::new();
        for _ in 0..3000 {
            let mut t = Instant::now();
            let mut lap = |name: &'static str| {
                let n = Instant::now();
                acc.entry(name).or_default().push(n - t);
                t = Instant::now();
            };
            let pipeline = host.pin();
            lap("0 pin");
            let mut auth = AuthSession::open(pipeline.auth().unwrap()).unwrap();
            lap("1 auth open");
            auth.authenticate(&input.head, &input.credential)
                .unwrap()
                .unwrap();
            lap("2 authenticate");
            let mut protocol = open(&host);
            lap("3 openai open");
            let Call::Generate(handle) = protocol.parse(&input.head, &input.body).unwrap().unwrap() else {
                panic!()
            };
            let call = protocol.take_generation(handle).unwrap();
            lap("4 parse+call");
            auth.authorize(None, &input.credential, &input.target)
                .unwrap()
                .unwrap();
            lap("5 authorize");
            let mut stop = StopSession::open(pipeline.stop().unwrap()).unwrap();
            lap("6 stop open");
            let m = stop.matcher(&call.stop, false).unwrap();
            lap("7 matcher");
            protocol.start(input.served.clone()).unwrap();
            lap("8 start");
            let v = stop.push(m, TEXT).unwrap();
            lap("9 push");
            protocol.render(&[event(v.emit)]).unwrap();
            lap("A render");
            drop(auth);
            lap("B drop auth");
            drop(protocol);
            lap("C drop openai");
            drop(stop);
            lap("D drop stop");
        }
        for (n, mut v) in acc {
            v.sort();
            println!("{n:<16} p50 {:?} p99 {:?}", v[v.len() / 2], v[v.len() * 99 / 100]);
        }
    }
    let (mut sandboxed, mut plain) = (Stream::sandboxed(&host, &input), Plain::new(&input));
    let (mut plugins, mut native) = (Vec::new(), Vec::new());
    for round in 0..11_000 {
        let samples = (
            timed(|| (0..BATCH).for_each(|_| sandboxed.token())) / BATCH as u32,
            timed(|| (0..BATCH).for_each(|_| plain.token())) / BATCH as u32,
        );
        if round >= 1_000 {
            plugins.push(samples.0);
            native.push(samples.1);
        }
    }
    report(
        "token",
        "us",
        1e6,
        &mut plugins,
        &mut native,
        (3.0, f64::INFINITY),
    );
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

fn report(
    what: &str,
    unit: &str,
    scale: f64,
    plugins: &mut [Duration],
    native: &mut [Duration],
    goals: (f64, f64),
) {
    let quantiles = |samples: &mut [Duration]| {
        samples.sort_unstable();
        [0.5, 0.99].map(|q| samples[(samples.len() as f64 * q) as usize].as_secs_f64() * scale)
    };
    let ([p50, p99], [native50, native99]) = (quantiles(plugins), quantiles(native));
    let verdict = if p50 < goals.0 && p99 < goals.1 {
        "within the goals"
    } else {
        "OVER the goals"
    };
    println!(
        "{what:<8} plugins p50 {p50:8.2} {unit}  p99 {p99:8.2} {unit}   native p50 {native50:8.2} {unit}  p99 \
         {native99:8.2} {unit}   ratio {:.1}x   {verdict}",
        p50 / native50
    );
}

/// One request.
struct Input {
    head: RequestHead,
    credential: Credential,
    target: Target,
    body: Vec<u8>,
    served: Served,
    stops: Vec<String>,
}

impl Input {
    fn new() -> Self {
        let question =
            "What is the boiling point of water at 2,000 m \u{2014} and why does \"pressure\" matter?\n";
        let answer = "At 2,000 m water boils at about 93 \u{b0}C because air pressure is lower there.";
        let mut messages = vec![serde_json::json!({"role": "system", "content": "Answer \"briefly\"."})];
        let body = loop {
            let role = if messages.len() % 2 == 1 {
                ("user", question)
            } else {
                ("assistant", answer)
            };
            messages.push(serde_json::json!({"role": role.0, "content": role.1}));
            let body = serde_json::json!({
                "model": "base", "stream": true, "max_tokens": 256, "temperature": 0.7, "stop": STOPS,
                "messages": messages,
            });
            let body = body.to_string().into_bytes();
            if body.len() >= 1_000 {
                break body;
            }
        };
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        Self {
            head: RequestHead(Arc::new(HeadParts {
                method: "POST".into(),
                path: PATH.into(),
                query: None,
                headers: vec![
                    header("content-type", "application/json"),
                    header("user-agent", "bench"),
                ],
                peer: Some("127.0.0.1".into()),
                request_id: "0197c2f4".into(),
            })),
            credential: Credential {
                secret: Some("sk-bench".into()),
            },
            target: Target {
                operation: "generate".into(),
                model: "base".into(),
                adapter: Some("acme/support".into()),
                source: None,
            },
            body,
            served: Served {
                id: "0197c2f4".into(),
                created: 1_764_547_200,
                model: "base".into(),
                base_model: "base".into(),
                prompt_tokens: 250,
                prompts: Vec::new(),
                seed: 7,
            },
            stops: STOPS.map(str::to_owned).to_vec(),
        }
    }

    fn through_plugins(&self, host: &PluginHost) {
        let pipeline = host.pin();
        let mut auth = AuthSession::open(pipeline.auth().expect("auth")).expect("auth opens");
        black_box(
            auth.authenticate(&self.head, &self.credential)
                .expect("authenticate")
                .expect("allowed"),
        );
        let mut protocol = open(host);
        let call = protocol
            .parse(&self.head, &self.body)
            .expect("parse")
            .expect("a good body");
        let Call::Generate(handle) = call else {
            panic!("{call:?}")
        };
        let call = protocol.take_generation(handle).expect("a generation");
        black_box(
            auth.authorize(None, &self.credential, &self.target)
                .expect("authorize")
                .expect("allowed"),
        );
        let mut stop = StopSession::open(pipeline.stop().expect("stop")).expect("stop opens");
        let matcher = stop.matcher(&call.stop, call.keep_stop).expect("a matcher");
        black_box(protocol.start(self.served.clone()).expect("start"));
        let verdict = stop.push(matcher, TEXT).expect("push");
        black_box(protocol.render(&[event(verdict.emit)]).expect("render"));
    }

    fn natively(&self) {
        let policy = Policy::Open {
            tenant: "default".into(),
        };
        let digest = hex::encode(Sha256::digest(
            self.credential.secret.as_deref().unwrap_or_default(),
        ));
        black_box(policy.authenticate(&digest).is_ok());
        let call = request::parse(Api::Chat, &self.body).unwrap_or_else(|_| panic!("a good body"));
        let adapter = self.target.adapter.as_deref().unwrap_or_default();
        black_box(policy.authorize(None, &digest, Wanted::Adapter(adapter)).is_ok());
        let mut matcher = matcher::Matcher::new(call.stop.clone(), call.keep_stop);
        let mut answer = Answer::new(&call, "bench".into());
        black_box(answer.start(self.facts()));
        let (text, _) = matcher.push(TEXT.into());
        black_box(answer.render(vec![event(text)]));
    }

    fn facts(&self) -> Facts {
        Facts {
            id: self.served.id.clone(),
            created: self.served.created,
            model: self.served.model.clone(),
            prompts: Vec::new(),
        }
    }
}

fn open(host: &PluginHost) -> ProtocolSession {
    let pipeline = host.pin();
    let Routed::Plugin(plugin) = pipeline.route("POST", PATH) else {
        panic!("nobody serves {PATH}")
    };
    ProtocolSession::open(plugin).expect("openai opens")
}

fn event(text: String) -> Event {
    Event {
        choice: 0,
        text,
        tokens: Vec::new(),
        finish: None,
    }
}

/// A stream in its sandboxes.
struct Stream {
    stop: StopSession,
    matcher: heddle::plugin::Matcher,
    protocol: ProtocolSession,
}

impl Stream {
    fn sandboxed(host: &PluginHost, input: &Input) -> Self {
        let mut protocol = open(host);
        assert!(protocol.parse(&input.head, &input.body).expect("parse").is_ok());
        protocol.start(input.served.clone()).expect("start");
        let mut stop = StopSession::open(host.pin().stop().expect("stop")).expect("stop opens");
        let matcher = stop.matcher(&input.stops, false).expect("a matcher");
        Self {
            stop,
            matcher,
            protocol,
        }
    }

    fn token(&mut self) {
        let verdict = self.stop.push(self.matcher, black_box(TEXT)).expect("push");
        black_box(self.protocol.render(&[event(verdict.emit)]).expect("render"));
    }
}

/// The same stream without.
struct Plain {
    matcher: matcher::Matcher,
    answer: Answer,
}

impl Plain {
    fn new(input: &Input) -> Self {
        let call = request::parse(Api::Chat, &input.body).unwrap_or_else(|_| panic!("a good body"));
        let mut answer = Answer::new(&call, "bench".into());
        answer.start(input.facts());
        Self {
            matcher: matcher::Matcher::new(input.stops.clone(), false),
            answer,
        }
    }

    fn token(&mut self) {
        let (text, _) = self.matcher.push(black_box(TEXT).into());
        black_box(self.answer.render(vec![event(text)]));
    }
}
