//! What is refused before it runs, and what the report says.

use heddle::plugin::{Limits, Rung, SlotConfig, Verdict, check, check_with};

use crate::support::{bytes, start};

#[test]
fn what_is_no_component_of_the_contract_is_refused_with_a_sentence() {
    let stop = bytes("stop");
    let core_module = b"\0asm\x01\0\0\0".to_vec();
    for (what, bytes, reason) in [
        ("cut off", stop[..stop.len() / 2].to_vec(), "damaged or cut off"),
        ("cut off early", stop[..20].to_vec(), "damaged or cut off"),
        ("core module", core_module, "core WebAssembly module"),
        ("text", b"# A plugin\n".to_vec(), "does not begin with"),
        (
            "foreign",
            bytes("foreign"),
            "does not export `heddle:plugin/lifecycle`",
        ),
        (
            "needs a grant",
            bytes("needs-clock"),
            "imports `clock`, which is not granted",
        ),
    ] {
        let report = check(&bytes, None, &Limits::default());
        let failed = report.failed().unwrap();
        assert_eq!(failed.rung, Rung::Contract, "{what}: {report}");
        assert!(failed.note.as_ref().unwrap().contains(reason), "{what}: {report}");
    }
}

#[test]
fn a_damaged_component_is_refused_whatever_byte_it_is() {
    // Not all bytes are looked at before the compiler sees them, and it must take none of it badly.
    let stop = bytes("stop");
    for at in (0..stop.len()).step_by(stop.len() / 12) {
        let mut damaged = stop.clone();
        damaged[at] ^= 0xff;
        let report = check(&damaged, None, &Limits::default());
        println!(
            "byte {at}: {}",
            report
                .failed()
                .map_or("taken", |failed| failed.note.as_deref().unwrap())
        );
    }
}

#[test]
fn what_is_granted_is_taken() {
    let config = SlotConfig {
        grants: Some(vec!["log".into(), "clock".into()]),
        ..SlotConfig::default()
    };
    let report = check_with("hour", &bytes("needs-clock"), &config);
    assert!(report.accepted, "{report}");
    assert_eq!(report.grants, ["log", "clock"]);
}

#[test]
fn the_report_says_everything() {
    let report = check(&bytes("openai"), None, &Limits::default());
    assert!(report.accepted, "{report}");
    assert_eq!(report.name, "openai");
    assert_eq!(report.snapshot, Some(true), "{:?}", report.snapshot_reason);
    assert!(report.compile_ms.unwrap() > 0.0);
    assert!(
        report.routes.contains(&"POST /v1/chat/completions".to_owned()),
        "{:?}",
        report.routes
    );
    let rungs: Vec<_> = report.rungs.iter().map(|rung| rung.rung).collect();
    assert_eq!(
        rungs,
        [Rung::Contract, Rung::Compile, Rung::Configure, Rung::SelfTest]
    );
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["rungs"][3]["rung"], "self-test");
    let text = report.to_string();
    assert!(
        text.contains("POST /v1/chat/completions") && text.ends_with("accepted"),
        "{text}"
    );
}

#[test]
fn two_plugins_cannot_serve_one_route() {
    let fixture = start("");
    let report = fixture.host.install("second", bytes("openai"), "test").unwrap();
    assert_eq!(report.verdict, Verdict::Refused);
    let refused = report.refused.unwrap();
    assert_eq!(refused.rung, Rung::Commit);
    let note = refused.note.unwrap();
    assert!(
        note.contains("`openai`") && note.contains("`second`") && note.contains("/v1/"),
        "{note}"
    );
    assert_eq!(fixture.host.pin().generation(), 1, "nothing changed");
}

#[test]
fn a_slot_keeps_its_role() {
    let fixture = start("");
    let report = fixture.host.install("auth", bytes("stop"), "test").unwrap();
    let refused = report.refused.unwrap();
    assert_eq!(refused.rung, Rung::Contract);
    assert!(refused.note.unwrap().contains("role `auth`"));
    assert!(fixture.host.pin().auth().is_some());
}
