//! Changing what serves, while it serves.

use std::{fs, thread, time::Duration};

use heddle::{
    Error,
    plugin::{PluginsConfig, Rung, StopSession, Verdict, verify_audit},
};
use sha2::{Digest as _, Sha256};

use crate::support::{Fixture, bytes, start, try_start};

fn digest(name: &str) -> String {
    hex::encode(Sha256::digest(bytes(name)))
}

fn is(fixture: &Fixture, slot: &str, name: &str) -> bool {
    fixture.digest(slot) == digest(name)
}

#[test]
fn a_running_request_keeps_what_it_pinned() {
    let fixture = start("");
    let pinned = fixture.host.pin();
    let mut old = StopSession::open(pinned.stop().unwrap()).unwrap();
    let matcher = old.matcher(&["END".into()], false).unwrap();
    let report = fixture.host.install("stop", bytes("stop-b"), "test").unwrap();
    assert_eq!(
        (report.verdict, report.generation),
        (Verdict::Committed, Some(2)),
        "{}",
        report.check
    );
    assert_eq!(fixture.host.pin().generation(), 2);
    assert_eq!(pinned.stop().unwrap().digest(), digest("stop"));
    assert_eq!(old.push(matcher, "text E").unwrap().emit, "text ");
    assert_eq!(fixture.host.live_generations(), 2);
    assert_eq!(fixture.slot("stop").live_generations, 2);
    assert_eq!(fixture.slot("auth").live_generations, 1);
    drop((pinned, old));
    assert_eq!(
        fixture.host.live_generations(),
        1,
        "the last stream of it has ended"
    );
    let again = fixture.host.install("stop", bytes("stop-b"), "test").unwrap();
    assert_eq!(again.verdict, Verdict::Unchanged);
}

#[test]
fn several_change_together_or_not_at_all() {
    let fixture = start("");
    let both = |auth: &str| {
        vec![
            ("auth".to_owned(), bytes(auth).into()),
            ("stop".to_owned(), bytes("stop-b").into()),
        ]
    };
    let reports = fixture.host.install_many(both("foreign"), "test").unwrap();
    assert_eq!([reports[0].verdict, reports[1].verdict], [Verdict::Refused; 2]);
    assert_eq!(reports[1].refused.as_ref().unwrap().rung, Rung::Commit);
    assert!(is(&fixture, "stop", "stop"));
    let reports = fixture.host.install_many(both("auth-token-b"), "test").unwrap();
    assert_eq!(
        [reports[0].generation, reports[1].generation],
        [Some(2); 2],
        "{}",
        reports[0].check
    );
    assert!(is(&fixture, "stop", "stop-b") && is(&fixture, "auth", "auth-token-b"));
}

#[test]
fn a_rollback_goes_back_and_a_second_one_forth() {
    let fixture = start("");
    let nothing = fixture.host.rollback("stop", "test").unwrap_err();
    assert!(nothing.to_string().contains("no component before"), "{nothing}");
    assert!(fixture.host.rollback("nowhere", "test").is_err());
    fixture.host.install("stop", bytes("stop-b"), "test").unwrap();
    assert_eq!(fixture.host.rollback("stop", "test").unwrap(), 3);
    assert!(is(&fixture, "stop", "stop"));
    assert_eq!(fixture.slot("stop").previous, Some(digest("stop-b")));
    assert_eq!(fixture.host.rollback("stop", "test").unwrap(), 4);
    assert!(is(&fixture, "stop", "stop-b"));
}

#[test]
fn the_watched_folder_is_followed() {
    let fixture = start("");
    fixture.publish("stop", &bytes("stop-b"));
    fixture.eventually("stop-b from the folder", |_| is(&fixture, "stop", "stop-b"));
    assert!(fixture.slot("stop").plugin.unwrap().source.ends_with("stop.wasm"));

    // A broken file leaves the slot as it is, and the others free to change.
    fixture.publish("stop", b"not a component");
    fixture.eventually("the refusal", |_| fixture.slot("stop").last_error.is_some());
    let error = fixture.slot("stop").last_error.unwrap();
    assert_eq!(error.rung, Rung::Contract);
    assert!(is(&fixture, "stop", "stop-b"));
    fixture.publish("auth", &bytes("auth-token-b"));
    fixture.eventually("auth beside a broken stop", |_| {
        is(&fixture, "auth", "auth-token-b")
    });

    // The next good file heals it.
    fixture.publish("stop", &bytes("stop"));
    fixture.eventually("stop again", |_| is(&fixture, "stop", "stop"));
    assert_eq!(fixture.slot("stop").last_error, None);
    // A file that goes away takes nothing away.
    fs::remove_file(fixture.plugins().join("stop.wasm")).unwrap();
    fixture.host.reload_all();
    thread::sleep(Duration::from_millis(100));
    assert!(is(&fixture, "stop", "stop"));
}

#[test]
fn a_rollback_holds_against_the_file_until_it_changes_or_a_reload_is_asked_for() {
    let fixture = start("");
    fixture.publish("stop", &bytes("stop-b"));
    fixture.eventually("stop-b from the folder", |_| is(&fixture, "stop", "stop-b"));
    fixture.host.rollback("stop", "test").unwrap();
    // The same bytes again are no change.
    fixture.publish("stop", &bytes("stop-b"));
    thread::sleep(Duration::from_millis(900));
    assert!(is(&fixture, "stop", "stop"));
    let fixture = fixture.restart().unwrap();
    assert!(is(&fixture, "stop", "stop"), "nor is a restart");
    fixture.host.reload_all();
    fixture.eventually("a reload", |_| is(&fixture, "stop", "stop-b"));
}

#[test]
fn a_configured_file_is_followed_too() {
    let elsewhere = tempfile::tempdir().unwrap();
    let file = elsewhere.path().join("mine.wasm");
    fs::write(&file, bytes("stop")).unwrap();
    let fixture = start(&format!("[slots.stop]\ncomponent = \"{}\"", file.display()));
    assert!(is(&fixture, "stop", "stop"));
    fs::write(&file, bytes("stop-b")).unwrap();
    fixture.eventually("the file", |_| is(&fixture, "stop", "stop-b"));
}

#[test]
fn a_restart_with_a_broken_folder_serves_what_served_last() {
    let fixture = start("");
    fixture.host.install("stop", bytes("stop-b"), "test").unwrap();
    let fixture = fixture.restart().unwrap();
    assert!(is(&fixture, "stop", "stop-b"), "what was pushed is still there");
    for slot in ["stop", "auth", "openai"] {
        fs::write(fixture.plugins().join(format!("{slot}.wasm")), b"broken").unwrap();
    }
    let fixture = fixture.restart().unwrap();
    assert!(
        is(&fixture, "stop", "stop-b")
            && is(&fixture, "auth", "auth-token")
            && is(&fixture, "openai", "openai")
    );
    let error = fixture.slot("auth").last_error;
    assert!(error.is_none_or(|error| error.rung == Rung::Contract));
    // The rollback of before the restart is still possible: from the disk.
    fixture.host.rollback("stop", "test").unwrap();
    assert!(is(&fixture, "stop", "stop"));
    let log = fixture.host.audit(100).unwrap();
    let refused = log
        .iter()
        .filter(|line| line["verdict"] == "refused" && line["actor"] == "start")
        .count();
    assert_eq!(refused, 3, "{log:#?}");
}

#[test]
fn a_first_start_with_a_broken_component_fails_and_never_falls_back_to_open_auth() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("auth.wasm");
    fs::write(&file, b"broken").unwrap();
    let Err(Error::PluginRefused { slot, rung, .. }) =
        try_start(&format!("[slots.auth]\ncomponent = \"{}\"", file.display())).map(|_| ())
    else {
        panic!("it started");
    };
    assert_eq!((slot.as_str(), rung), ("auth", "contract"));
}

#[test]
fn a_folder_whose_components_do_not_go_together_does_not_stop_a_restart() {
    let fixture = start("");
    fs::write(fixture.plugins().join("second.wasm"), bytes("openai")).unwrap();
    let fixture = fixture.restart().unwrap();
    assert_eq!(fixture.host.pin().plugins().len(), 3);
    assert!(fixture.host.pin().plugin("second").is_none());
}

#[test]
fn a_state_folder_belongs_to_one_host() {
    let fixture = start("");
    let second = heddle::plugin::PluginHost::start(&PluginsConfig::default(), &fixture.state());
    assert!(second.is_err_and(|error| error.to_string().contains("another heddle")));
}

#[test]
fn the_audit_log_tells_everything_and_no_secret() {
    let fixture = start("[slots.auth]\ncomponent = \"{hostile}\"\nconfig = { tenant = \"hunter2\" }");
    fixture
        .host
        .install("auth", bytes("auth-token"), "alice")
        .unwrap();
    fixture.host.install("auth", b"broken".to_vec(), "bob").unwrap();
    fixture.host.rollback("auth", "carol").unwrap();
    let path = fixture.state().join("audit.jsonl");
    assert_eq!(
        verify_audit(&path).unwrap(),
        6,
        "three slots at the start, and three changes"
    );
    let log = fixture.host.audit(3).unwrap();
    let facts: Vec<_> = log
        .iter()
        .map(|line| ["actor", "action", "verdict"].map(|field| line[field].as_str().unwrap().to_owned()))
        .collect();
    assert_eq!(
        facts,
        [
            ["alice", "install", "committed"],
            ["bob", "install", "refused"],
            ["carol", "rollback", "committed"]
        ]
    );
    assert_eq!(log[0]["to"], digest("auth-token"));
    assert_eq!(log[1]["rung"], "contract");
    assert_eq!(log[2]["from"], digest("auth-token"));
    assert!(log[0]["ms"]["compile"].as_f64().unwrap() > 0.0);
    assert!(!fs::read_to_string(&path).unwrap().contains("hunter2"));
}

#[test]
fn memory_is_flat_over_many_reloads() {
    /// Resident memory, in KiB.
    fn resident() -> i64 {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
    let fixture = start("");
    let components = [bytes("stop-b"), bytes("stop")];
    let mut reload = |n: usize| {
        let report = fixture
            .host
            .install("stop", components[n % 2].clone(), "test")
            .unwrap();
        assert_eq!(report.verdict, Verdict::Committed, "{}", report.check);
        let pipeline = fixture.host.pin();
        let mut session = StopSession::open(pipeline.stop().unwrap()).unwrap();
        let matcher = session.matcher(&["END".into()], false).unwrap();
        session.push(matcher, "text").unwrap();
    };
    (0..40).for_each(&mut reload);
    let before = resident();
    (40..240).for_each(&mut reload);
    let growth = resident() - before;
    println!("200 reloads: {before} KiB before, {growth:+} KiB");
    assert_eq!(fixture.host.live_generations(), 1);
    // Other tests of this process run beside it: what matters is that it does not grow with each reload.
    assert!(growth < 200 * 400, "{growth} KiB over 200 reloads");
}
