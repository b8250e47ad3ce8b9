//! Components that misbehave: each ends its own request with a clear error, in time, while others go on.

use std::time::{Duration, Instant};

use heddle::{
    Error,
    plugin::{
        AuthSession, CheckReport, ProtocolSession, Routed, Rung, SlotConfig, StopSession,
        bindings::{
            exports::heddle::plugin::protocol::Call,
            heddle::plugin::generation::{Event, FinishReason},
        },
        check_with,
        resources::{Credential, Served, Target},
    },
};

use crate::support::{Fixture, bytes, head, start};

/// Modes that show when a protocol plugin is at work, and their limits.
const MODES: &[(&str, &str)] = &[
    ("loop-in-parse", ""),
    ("alloc-in-parse", "memory_mib = 16"),
    ("recurse-in-parse", ""),
    ("panic-in-parse", ""),
    ("log-in-parse", ""),
    ("leak-in-parse", ""),
    ("huge-reply", "memory_mib = 256, call_ms = 2000"),
    ("many-render", "memory_mib = 256, token_ms = 2000"),
    ("loop-in-render", ""),
];

/// A host with a slot for each mode, beside those that ship.
fn zoo() -> Fixture {
    let slots = MODES.iter().enumerate().map(|(n, (mode, limits))| {
        format!(
            "[slots.{mode}]\ncomponent = \"{{hostile}}\"\nroles = [\"protocol\"]\nlimits = {{ {limits} }}\n\
             config = {{ mode = \"{mode}\", routes = [\"POST /hostile/{n}\"] }}\n"
        )
    });
    start(&slots.collect::<String>())
}

fn open(fixture: &Fixture, mode: &str) -> ProtocolSession {
    ProtocolSession::open(fixture.host.pin().plugin(mode).unwrap()).unwrap()
}

/// Does the worst that a mode can in a request; the error.
fn provoke(session: &mut ProtocolSession, mode: &str) -> Error {
    match session.parse(&head("POST", "/hostile"), b"Hi") {
        Err(error) => error,
        Ok(Err(reply)) => panic!("{mode}: a reply of {} bytes", reply.body.len()),
        Ok(Ok(call)) => {
            assert!(matches!(call, Call::Generate(_)), "{mode}: {call:?}");
            let served = Served {
                id: String::new(),
                created: 0,
                model: String::new(),
                base_model: String::new(),
                prompt_tokens: 0,
                prompts: Vec::new(),
                seed: 0,
            };
            session.start(served).unwrap();
            let event = Event {
                choice: 0,
                text: "x".into(),
                tokens: Vec::new(),
                finish: Some(FinishReason::Eos),
            };
            session.render(&[event]).expect_err(mode)
        }
    }
}

#[test]
fn every_misdeed_ends_its_own_request() {
    let fixture = zoo();
    for &(mode, _) in MODES {
        let start = Instant::now();
        let mut session = open(&fixture, mode);
        let error = provoke(&mut session, mode);
        let took = start.elapsed();
        println!("{mode:<18} {took:>9.1?}  {error}");
        let text = error.to_string();
        match mode {
            "loop-in-parse" => assert!(
                matches!(error, Error::PluginOverdue { limit_ms: 50, .. }),
                "{text}"
            ),
            "loop-in-render" => assert!(
                matches!(error, Error::PluginOverdue { limit_ms: 5, .. }),
                "{text}"
            ),
            "recurse-in-parse" => assert!(text.contains("call stack exhausted"), "{text}"),
            "alloc-in-parse" => assert!(text.contains("refused more than 16 MiB"), "{text}"),
            "leak-in-parse" => assert!(text.contains("too many handles"), "{text}"),
            "huge-reply" | "many-render" => {
                assert!(text.contains("more than 4096 KiB in one call"), "{text}")
            }
            "log-in-parse" => assert!(text.contains("50 ms"), "{text}"),
            _ => assert!(matches!(error, Error::PluginTrap { .. }), "{text}"),
        }
        assert!(
            !text.contains("SECRET"),
            "a panic message reached the client: {text}"
        );
        // Limits are in processor time; what the machine does meanwhile is not the plugin's.
        assert!(took < Duration::from_secs(10), "{mode} took {took:?}");

        // The session is dead, and says so without entering the instance.
        let again = session
            .parse(&head("POST", "/hostile"), b"Hi")
            .unwrap_err()
            .to_string();
        assert!(again.contains("an earlier call failed"), "{again}");
        // Others go on.
        let pipeline = fixture.host.pin();
        let mut stop = StopSession::open(pipeline.stop().unwrap()).unwrap();
        let matcher = stop.matcher(&["END".into()], false).unwrap();
        assert_eq!(stop.push(matcher, "text").unwrap().emit, "text");
    }
    assert_eq!(
        fixture.slot("loop-in-parse").instances,
        0,
        "every place is free again"
    );
}

#[test]
fn a_loop_holds_up_nobody_else() {
    let fixture = start(
        "[slots.looping]\ncomponent = \"{hostile}\"\nroles = [\"protocol\"]\nlimits = { call_ms = 400 }\n\
         config = { mode = \"loop-in-parse\", routes = [\"POST /looping\"] }",
    );
    let pipeline = fixture.host.pin();
    let looping = std::thread::spawn({
        let pipeline = fixture.host.pin();
        move || {
            let mut session = ProtocolSession::open(pipeline.plugin("looping").unwrap()).unwrap();
            session.parse(&head("POST", "/looping"), b"").map(|_| ())
        }
    });
    let mut served = 0;
    while !looping.is_finished() {
        let mut stop = StopSession::open(pipeline.stop().unwrap()).unwrap();
        let matcher = stop.matcher(&["END".into()], false).unwrap();
        stop.push(matcher, "text").unwrap();
        served += 1;
    }
    assert!(matches!(
        looping.join().unwrap(),
        Err(Error::PluginOverdue { limit_ms: 400, .. })
    ));
    assert!(served > 10, "{served} requests beside a loop of 400 ms");
}

#[test]
fn auth_that_fails_is_an_error_and_never_a_grant() {
    for mode in ["trap-in-authenticate", "loop-in-authorize"] {
        let fixture = start(&format!(
            "[slots.auth]\ncomponent = \"{{hostile}}\"\nconfig = {{ mode = \"{mode}\" }}"
        ));
        let pipeline = fixture.host.pin();
        let mut session = AuthSession::open(pipeline.auth().unwrap()).unwrap();
        let credential = Credential {
            secret: Some("sk-1".into()),
        };
        let authenticated = session.authenticate(&head("POST", "/"), &credential);
        let authorized = session.authorize(None, &credential, &Target::default());
        assert!(authorized.is_err(), "{mode}: {authorized:?}");
        assert_eq!(authenticated.is_err(), mode == "trap-in-authenticate");
    }
}

#[test]
fn many_short_calls_reach_the_limit_of_the_request() {
    let fixture = start("[slots.stop]\ncomponent = \"{hostile}\"\nlimits = { request_ms = 20 }\nconfig = {}");
    let pipeline = fixture.host.pin();
    let mut session = StopSession::open(pipeline.stop().unwrap()).unwrap();
    let matcher = session.matcher(&[], false).unwrap();
    let text = "x".repeat(100_000);
    let start = Instant::now();
    let error = loop {
        match session.push(matcher, &text) {
            Ok(_) => assert!(
                start.elapsed() < Duration::from_secs(20),
                "no limit for the request"
            ),
            Err(error) => break error,
        }
    };
    assert!(
        matches!(error, Error::PluginOverdue { limit_ms: 20, .. }),
        "{error}"
    );
}

fn check(mode: &str) -> CheckReport {
    let config: SlotConfig = toml::from_str(&format!(
        "config = {{ mode = \"{mode}\" }}\nlimits = {{ memory_mib = 16 }}"
    ))
    .unwrap();
    check_with("hostile", &bytes("hostile"), &config)
}

#[test]
fn what_misbehaves_at_load_is_refused_on_the_rung_where_it_does() {
    for (mode, rung, reason) in [
        (
            "fail-configure",
            Rung::Configure,
            "hostile does not want to be configured",
        ),
        ("loop-in-configure", Rung::Configure, "longer than 50 ms"),
        ("alloc-in-configure", Rung::Configure, "refused more than 16 MiB"),
        ("fail-self-test", Rung::SelfTest, "hostile does not work"),
        ("loop-in-self-test", Rung::SelfTest, "longer than 50 ms"),
        ("garbage-routes", Rung::SelfTest, "route"),
    ] {
        let report = check(mode);
        let failed = report
            .failed()
            .unwrap_or_else(|| panic!("{mode} was taken: {report}"));
        let note = failed.note.clone().unwrap_or_default();
        println!("{mode:<20} {note}");
        assert_eq!(failed.rung, rung, "{mode}: {report}");
        assert!(note.contains(reason), "{mode}: {note}");
        assert!(note.len() < 1_000, "{mode}: a note of {} bytes", note.len());
        assert!(!report.accepted);
    }
}

#[test]
fn garbage_in_answers_stays_data() {
    // What it means is for the exchange to judge; here it must arrive without a panic.
    let fixture = start(
        "[slots.auth]\ncomponent = \"{hostile}\"\nconfig = { mode = \"garbage-denial\" }\n\
         [slots.g]\ncomponent = \"{hostile}\"\nroles = [\"protocol\"]\n\
         config = { mode = \"garbage-reply\", routes = [\"POST /g\"] }",
    );
    let pipeline = fixture.host.pin();
    let mut auth = AuthSession::open(pipeline.auth().unwrap()).unwrap();
    let denial = auth
        .authenticate(&head("POST", "/"), &Credential::default())
        .unwrap()
        .unwrap_err();
    assert_eq!(denial.status, 200);
    let Routed::Plugin(plugin) = pipeline.route("POST", "/g") else {
        panic!()
    };
    let reply = ProtocolSession::open(plugin)
        .unwrap()
        .parse(&head("POST", "/g"), b"")
        .unwrap()
        .unwrap_err();
    assert_eq!(reply.status, 65_535);
}
