//! What one caller may see says nothing of another.

use super::*;

fn ask(setup: &Setup, credential: Option<&str>) -> Result<Lease> {
    setup.registry.lease(&AdapterRequest {
        id: "org/private".to_owned(),
        source: Some("hub".to_owned()),
        credential: credential.map(str::to_owned),
    })
}

fn setup(access_ttl: Duration) -> Setup {
    let setup = Setup::new(AdapterLimits {
        access_ttl,
        ..limits(4)
    });
    let folder = setup.write("private", 1);
    setup.source.publish("org/private", &folder);
    setup.source.allow("org/private", Some("anna's"));
    setup.source.allow("org/private", Some("ben's"));
    setup
}

#[test]
fn each_caller_is_checked_at_the_source() {
    let setup = setup(Duration::from_secs(60));
    let anna = ask(&setup, Some("anna's")).unwrap();
    let loaded = generation(&anna);
    assert_eq!((setup.source.checks(), setup.source.fetches()), (1, 1));
    // Known for a while.
    assert_eq!(ask(&setup, Some("anna's")).unwrap().generation(), Some(loaded));
    assert_eq!(setup.source.checks(), 1);
    // That it is loaded opens it to nobody else.
    for credential in [None, Some("carl's"), Some("")] {
        let failure = error(&ask(&setup, credential).unwrap());
        assert!(
            matches!(failure, Error::Fetch { forbidden: true, .. }),
            "{failure}"
        );
        assert!(matches!(
            ask(&setup, credential),
            Err(Error::Fetch { forbidden: true, .. })
        ));
    }
    assert_eq!(setup.source.checks(), 4);
    // Another one who may see it is checked, and need not wait for another reading.
    let ben = ask(&setup, Some("ben's")).unwrap();
    assert_eq!(generation(&ben), loaded);
    assert_eq!((setup.source.checks(), setup.source.fetches()), (5, 1));
    let stats = setup.registry.stats();
    assert_eq!((stats.reads, stats.layouts, stats.access_checks), (1, 1, 2));
}

#[test]
fn access_expires() {
    let setup = setup(Duration::from_millis(100));
    let anna = ask(&setup, Some("anna's")).unwrap();
    generation(&anna);
    setup.source.forbid("org/private", Some("anna's"));
    std::thread::sleep(Duration::from_millis(150));
    let failure = error(&ask(&setup, Some("anna's")).unwrap());
    assert!(matches!(failure, Error::Fetch { forbidden: true, .. }));
    // What runs goes on.
    assert!(matches!(anna.state(), LeaseState::Ready(_)));
    assert_eq!(setup.source.checks(), 2);
}

#[test]
fn a_check_does_not_hold_the_caller_up() {
    let setup = setup(Duration::from_millis(10));
    generation(&ask(&setup, Some("anna's")).unwrap());
    std::thread::sleep(Duration::from_millis(30));
    setup.source.gate.close();
    let leases: Vec<_> = (0..5).map(|_| ask(&setup, Some("anna's")).unwrap()).collect();
    assert!(leases.iter().all(is_loading));
    setup.source.gate.open();
    for lease in &leases {
        generation(lease);
    }
    // One check for all who asked together.
    assert_eq!((setup.source.checks(), setup.source.fetches()), (2, 1));
}

#[test]
fn a_registered_name_is_the_operators() {
    let setup = setup(Duration::from_secs(60));
    setup
        .registry
        .register(
            "public",
            Source::Hub {
                repo: "org/private".to_owned(),
                revision: None,
            },
        )
        .unwrap();
    setup.ready("public");
    assert_eq!(setup.source.checks(), 0);
    // By its source it is still for those only who may see it there.
    let failure = error(&ask(&setup, Some("carl's")).unwrap());
    assert!(matches!(failure, Error::Fetch { forbidden: true, .. }));
    let anna = ask(&setup, Some("anna's")).unwrap();
    generation(&anna);
    assert_eq!(setup.registry.stats().device_bytes, Made::BYTES);
}

#[test]
fn many_callers_leave_nothing_behind() {
    let setup = setup(Duration::from_millis(20));
    for index in 0..200 {
        let credential = format!("caller {index}");
        setup.source.allow("org/private", Some(&credential));
        generation(&ask(&setup, Some(&credential)).unwrap());
    }
    assert_eq!(setup.source.fetches(), 1);
    std::thread::sleep(Duration::from_millis(50));
    // Expired ones are forgotten at the next lease; one stands for the content, and one is new.
    generation(&ask(&setup, Some("anna's")).unwrap());
    assert!(setup.registry.slots() <= 2, "{} are left", setup.registry.slots());
    assert_eq!(setup.source.fetches(), 1);
}

#[test]
fn strangers_names_are_forgotten() {
    let setup = Setup::new(AdapterLimits {
        negative_ttl: Duration::from_millis(20),
        ..limits(4)
    });
    setup.source.allow("org/x", None);
    let mut leases = Vec::new();
    for index in 0..200 {
        let request = AdapterRequest {
            id: format!("org/x{index}"),
            source: None,
            credential: None,
        };
        leases.push(setup.registry.lease(&request).unwrap());
    }
    for lease in &leases {
        error(lease);
    }
    drop(leases);
    std::thread::sleep(Duration::from_millis(50));
    assert!(setup.try_lease("").is_err());
    let last = setup.lease("org/last");
    error(&last);
    assert!(setup.registry.slots() <= 1, "{} are left", setup.registry.slots());
}

#[test]
fn credentials_do_not_show() {
    let request = AdapterRequest {
        id: "a/b".to_owned(),
        source: None,
        credential: Some("hf_secret".to_owned()),
    };
    assert!(!format!("{request:?}").contains("secret"));
}
