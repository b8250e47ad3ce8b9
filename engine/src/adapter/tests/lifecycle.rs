//! From a name to the device and back: loading, joining, replacing, failing.

use super::*;

#[test]
fn cold_then_hot() {
    let setup = Setup::with_adapters(limits(4), 2);
    let first = setup.lease("0");
    assert_eq!(first.name(), "0");
    let generation = generation(&first);
    assert_eq!(first.generation(), Some(generation));
    // Already on the device: ready without a thread.
    let second = setup.lease("0");
    assert_eq!(second.generation(), Some(generation));
    let stats = setup.registry.stats();
    assert_eq!(
        (stats.reads, stats.layouts, stats.leases, stats.loading),
        (1, 1, 2, 0)
    );
    assert_eq!((stats.device_bytes, stats.host_bytes), (Made::BYTES, Made::BYTES));
    let info = &setup.registry.list()[0];
    assert_eq!(
        (info.name.as_str(), info.generation, info.resident),
        ("0", Some(generation), true)
    );
    assert_ne!(super::generation(&setup.lease("1")), generation);

    let clone = first.clone();
    drop(first);
    assert_eq!(setup.registry.stats().leases, 2);
    drop((clone, second));
    setup.rest();
    // Nobody needs the room: it stays.
    assert_eq!(
        (setup.registry.stats().leases, setup.resident()),
        (0, vec!["0".to_owned(), "1".to_owned()])
    );
}

#[test]
fn loads_of_the_same_adapter_are_joined() {
    let setup = Setup::with_adapters(limits(4), 1);
    setup.source.gate.close();
    let leases: Vec<_> = (0..50).map(|_| setup.lease("0")).collect();
    assert!(leases.iter().all(is_loading));
    assert_eq!(setup.registry.stats().loading, 50);
    setup.source.gate.open();
    for lease in &leases {
        generation(lease);
    }
    let stats = setup.registry.stats();
    assert_eq!((stats.reads, stats.layouts, setup.source.fetches()), (1, 1, 1));
}

#[test]
fn the_same_content_under_two_names_is_loaded_once() {
    let setup = Setup::with_adapters(limits(1), 1);
    setup
        .registry
        .register("twin", Source::Local(setup.write("twin", 0)))
        .unwrap();
    let (one, other) = (setup.ready("0"), setup.ready("twin"));
    assert_eq!(one.generation(), other.generation());
    assert_eq!(setup.registry.stats().device_bytes, Made::BYTES);
    // One name goes, the other keeps it.
    assert!(setup.registry.unregister("0"));
    drop((one, other));
    assert_eq!(setup.resident(), ["twin"]);
}

#[test]
fn a_replaced_adapter_stays_with_its_leases() {
    let setup = Setup::with_adapters(limits(4), 2);
    setup
        .registry
        .register("x", Source::Local(setup.folder("0")))
        .unwrap();
    let created = setup.registry.list()[2].created;
    let old = setup.ready("x");
    setup
        .registry
        .register("x", Source::Local(setup.folder("0")))
        .unwrap();
    assert_eq!(setup.registry.list()[2].created, created);
    assert_eq!(setup.ready("x").generation(), old.generation());

    setup.registry.unregister("0");
    setup
        .registry
        .register("x", Source::Local(setup.folder("1")))
        .unwrap();
    let new = setup.ready("x");
    assert_ne!(new.generation(), old.generation());
    assert!(matches!(old.state(), LeaseState::Ready(_)));
    assert_eq!(setup.registry.stats().device_bytes, 2 * Made::BYTES);
    // Nothing stands for the old one any more: it goes with its last lease, from the device and from the host.
    drop(old);
    setup.rest();
    wait_until("the old one to be freed", || {
        setup.registry.stats().device_bytes == Made::BYTES
    });
    assert_eq!(setup.registry.stats().host_bytes, Made::BYTES);
}

#[test]
fn files_that_change_are_read_again() {
    let setup = Setup::with_adapters(limits(4), 1);
    let old = setup.ready("0");
    assert_eq!(setup.ready("0").generation(), old.generation());
    assert_eq!(setup.registry.stats().reads, 1);
    setup.write("0", 7);
    let new = setup.ready("0");
    assert_ne!(new.generation(), old.generation());
    assert!(matches!(old.state(), LeaseState::Ready(_)));
    // The content of before is the generation of before.
    setup.write("0", 0);
    assert_eq!(setup.ready("0").generation(), old.generation());
    // Written anew without a change: read again, and found to be the same.
    setup.write("0", 0);
    assert_eq!(setup.ready("0").generation(), old.generation());
}

#[test]
fn a_link_that_points_elsewhere_is_a_change() {
    let setup = Setup::new(limits(4));
    let (one, other, link) = (
        setup.write("one", 1),
        setup.write("other", 2),
        setup.folder("link"),
    );
    std::os::unix::fs::symlink(&one, &link).unwrap();
    settle_clock();
    setup.registry.register("x", Source::Local(link.clone())).unwrap();
    let old = setup.ready("x");
    std::os::unix::fs::symlink(&other, setup.folder("new")).unwrap();
    std::fs::rename(setup.folder("new"), &link).unwrap();
    assert_ne!(setup.ready("x").generation(), old.generation());
}

#[test]
fn bad_files_leave_the_good_adapter_in_service() {
    let setup = Setup::with_adapters(limits(4), 1);
    let good = setup.ready("0").generation();
    let weights = setup.folder("0").join("adapter_model.safetensors");
    std::fs::write(&weights, b"half a file").unwrap();
    settle_clock();
    assert_eq!(setup.ready("0").generation(), good);
    let failure = setup.registry.list()[0].failure.clone().unwrap();
    assert!(failure.to_string().contains("safetensors"), "{failure}");
    // It is not read again and again.
    let reads = setup.source.fetches();
    assert_eq!(setup.lease("0").generation(), good);
    assert_eq!(setup.source.fetches(), reads);
    // The repair is seen at once, whatever is remembered of the failure.
    setup.write("0", 3);
    assert_ne!(setup.ready("0").generation(), good);
    assert!(setup.registry.list()[0].failure.is_none());
}

#[test]
fn unregistering_frees_with_the_last_lease() {
    let setup = Setup::with_adapters(limits(4), 2);
    let (first, second) = (setup.ready("0"), setup.ready("0"));
    assert!(setup.registry.unregister("0"));
    assert!(!setup.registry.unregister("0"));
    assert!(!setup.registry.contains("0"));
    drop(first);
    setup.rest();
    assert_eq!(setup.registry.stats().device_bytes, Made::BYTES);
    drop(second);
    wait_until("the memory to be freed", || {
        setup.registry.stats().device_bytes == 0
    });
    assert_eq!(setup.registry.stats().host_bytes, 0);
    assert_eq!(setup.loader.live.load(Ordering::SeqCst), 0);
}

#[test]
fn unregistering_while_loading() {
    let setup = Setup::with_adapters(limits(4), 1);
    setup.source.gate.close();
    let lease = setup.lease("0");
    assert!(setup.registry.unregister("0"));
    setup.source.gate.open();
    // The request came before.
    generation(&lease);
    drop(lease);
    wait_until("the memory to be freed", || {
        setup.registry.stats().host_bytes == 0
    });
}

#[test]
fn a_failure_answers_at_once_for_a_while() {
    let setup = Setup::new(AdapterLimits {
        negative_ttl: Duration::from_millis(150),
        ..limits(4)
    });
    setup
        .registry
        .register(
            "x",
            Source::Hub {
                repo: "a/b".to_owned(),
                revision: None,
            },
        )
        .unwrap();
    assert!(matches!(
        error(&setup.lease("x")),
        Error::Fetch { not_found: true, .. }
    ));
    for _ in 0..10 {
        assert!(matches!(
            setup.try_lease("x"),
            Err(Error::Fetch { not_found: true, .. })
        ));
    }
    assert_eq!(setup.source.fetches(), 1);
    setup.source.publish("a/b", &setup.write("b", 1));
    std::thread::sleep(Duration::from_millis(200));
    setup.ready("x");
    assert_eq!(setup.source.fetches(), 2);
}

#[test]
fn corrected_files_are_not_held_to_the_failure() {
    let setup = Setup::with_adapters(limits(4), 1);
    std::fs::remove_file(setup.folder("0").join("adapter_config.json")).unwrap();
    let failure = error(&setup.lease("0"));
    assert!(failure.to_string().contains("adapter_config.json"), "{failure}");
    assert!(setup.try_lease("0").is_err());
    setup.write("0", 0);
    setup.ready("0");
}

#[test]
fn a_failure_is_that_adapters_alone() {
    let setup = Setup::with_adapters(
        AdapterLimits {
            loaders: 1,
            ..limits(8)
        },
        5,
    );
    let generations: Vec<_> = (0..5)
        .map(|name| setup.ready(&name.to_string()).generation().unwrap())
        .collect();
    for name in 0..5 {
        setup.registry.unregister(&name.to_string());
    }
    wait_until("all to be freed", || setup.registry.stats().resident == 0);
    setup.add(5);
    setup.loader.fails.lock().unwrap().insert(generations[0]);
    setup.loader.panics.lock().unwrap().insert(generations[1]);
    setup.source.panics.lock().unwrap().insert(setup.folder("2"));
    std::fs::write(setup.folder("3").join("adapter_config.json"), b"{}").unwrap();
    let leases: Vec<_> = (0..5).map(|name| setup.lease(&name.to_string())).collect();
    assert!(matches!(error(&leases[0]), Error::Backend { .. }));
    for index in [1, 2] {
        let error = error(&leases[index]).to_string();
        assert!(
            error.contains(&format!("`{index}`")) && error.contains("the test's panic"),
            "{error}"
        );
    }
    assert!(matches!(error(&leases[3]), Error::AdapterRefused { .. }));
    generation(&leases[4]);
    drop(leases);
    setup.rest();
    // The one loader thread is still there, and what was mended works.
    assert!(matches!(setup.try_lease("0"), Err(Error::Backend { .. })));
    setup.write("3", 3);
    setup.ready("3");
}

#[test]
fn what_nobody_registered() {
    let setup = Setup::new(AdapterLimits {
        dynamic: false,
        ..limits(4)
    });
    let folder = setup.write("x", 1);
    let request = |source: Option<&str>| AdapterRequest {
        id: folder.to_str().unwrap().to_owned(),
        source: source.map(str::to_owned),
        credential: None,
    };
    assert!(matches!(
        setup.registry.lease(&request(None)),
        Err(Error::UnknownAdapter(_))
    ));
    assert!(matches!(
        setup.registry.lease(&request(Some("local"))),
        Err(Error::UnknownAdapter(_))
    ));

    let setup = Setup::new(limits(4));
    settle_clock();
    // Neither a path nor a bare name is an id at the default source.
    let named = AdapterRequest {
        id: "nobody".to_owned(),
        ..request(None)
    };
    for request in [request(None), named] {
        assert!(matches!(
            setup.registry.lease(&request),
            Err(Error::UnknownAdapter(_))
        ));
    }
    assert!(matches!(
        setup.registry.lease(&request(Some("nowhere"))),
        Err(Error::InvalidRequest { .. })
    ));
    let lease = setup.registry.lease(&request(Some("local"))).unwrap();
    generation(&lease);
    assert!(setup.registry.list().is_empty());
    drop(lease);
    // It stays for the next one.
    let again = setup.registry.lease(&request(Some("local"))).unwrap();
    assert!(again.generation().is_some());
}

#[test]
fn names_that_cannot_be() {
    let setup = Setup::new(limits(4));
    for name in ["", "a\nb", &"x".repeat(257)] {
        let result = setup.registry.register(name, Source::Local("x".into()));
        assert!(matches!(result, Err(Error::InvalidRequest { .. })), "{name:?}");
    }
}

#[test]
fn a_lease_that_is_dropped_is_not_loaded_for() {
    let setup = Setup::with_adapters(
        AdapterLimits {
            loaders: 1,
            ..limits(4)
        },
        2,
    );
    setup.source.gate.close();
    let first = setup.lease("0");
    wait_until("the loader to be busy", || setup.source.fetches() == 1);
    let (called, call) = mpsc::channel::<()>();
    let second = setup.lease("1");
    second.on_settled(Box::new(move || called.send(()).unwrap()));
    drop(second);
    setup.source.gate.open();
    generation(&first);
    setup.rest();
    assert_eq!(setup.source.fetches(), 1);
    // The callback went with the lease.
    assert!(call.recv_timeout(Duration::from_secs(1)).is_err());
}

#[test]
fn callbacks_may_do_anything() {
    let setup = Setup::with_adapters(
        AdapterLimits {
            loaders: 1,
            ..limits(4)
        },
        3,
    );
    // Held up until the callback is there: one that comes late is called by its own thread.
    setup.source.gate.close();
    let lease = setup.lease("0");
    lease.on_settled(Box::new(|| panic!("the test's panic in a callback")));
    setup.source.gate.open();
    generation(&lease);
    // Takes and drops leases on the loader's own thread.
    let (send, receive) = mpsc::channel();
    let (registry, other) = (setup.registry.clone(), lease.clone());
    let second = setup.lease("1");
    second.on_settled(Box::new(move || {
        drop(other);
        let request = AdapterRequest {
            id: "2".to_owned(),
            source: None,
            credential: None,
        };
        send.send(registry.lease(&request).unwrap()).unwrap();
    }));
    generation(&receive.recv_timeout(Duration::from_secs(20)).unwrap());
}

#[test]
fn closing_fails_what_waits_and_keeps_what_is_ready() {
    let setup = Setup::with_adapters(limits(4), 2);
    let ready = setup.ready("0");
    setup.source.gate.close();
    let waiting = setup.lease("1");
    let (source, loader) = (setup.source.clone(), setup.loader.clone());
    assert!(is_loading(&waiting));
    setup.gates_stay.store(true, Ordering::SeqCst);
    drop(setup);
    assert!(matches!(
        settled(&waiting),
        LeaseState::Failed(Error::ShuttingDown)
    ));
    assert!(matches!(ready.state(), LeaseState::Ready(_)));
    source.gate.open();
    assert_eq!(loader.live.load(Ordering::SeqCst), Made::BYTES);
    drop((ready, waiting));
    // The last lease gone, all memory goes with the loaders.
    wait_until("the memory to be freed", || {
        loader.live.load(Ordering::SeqCst) == 0
    });
}

/// Ten thousand names cost a lease nothing: all structures on its way are maps.
#[test]
fn ten_thousand_registered_adapters() {
    let setup = Setup::with_adapters(limits(4), 2);
    for index in 0..10_000 {
        let repo = format!("org/adapter-{index}");
        setup
            .registry
            .register(
                &repo,
                Source::Hub {
                    repo: repo.clone(),
                    revision: None,
                },
            )
            .unwrap();
    }
    let held = setup.ready("0");
    let start = Instant::now();
    for _ in 0..10_000 {
        assert_eq!(setup.lease("0").generation(), held.generation());
    }
    let each = start.elapsed() / 10_000;
    println!("a lease among 10,000 names takes {each:?}");
    // It is some microseconds; walking the names would be a hundred times that.
    assert!(each < Duration::from_micros(200), "{each:?}");
    assert_eq!(setup.registry.list().len(), 10_002);
}
