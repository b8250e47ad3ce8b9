//! Many threads that do everything at once.

use super::*;

/// A small generator (SplitMix64), so that a run can be repeated.
struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }
}

/// Threads lease and drop at random over more adapters than fit anywhere, while names go, come and change. At the end no lease is
/// counted and no byte is lost; at no time was more on the device than allowed (the recorder asserts that).
#[test]
fn at_the_end_nothing_is_lost() {
    const ADAPTERS: u64 = 12;
    let limits = AdapterLimits {
        host_bytes: 5 * Made::BYTES,
        loaders: 3,
        negative_ttl: Duration::from_millis(2),
        ..limits(4)
    };
    let setup = Setup::draining(limits, Duration::from_millis(2));
    setup.add(ADAPTERS as u16);
    // One of them cannot be laid out.
    let bad = setup.ready("5").generation().unwrap();
    setup.registry.unregister("5");
    wait_until("5 to be freed", || setup.registry.stats().resident == 0);
    setup.loader.fails.lock().unwrap().insert(bad);
    setup
        .registry
        .register("5", Source::Local(setup.folder("5")))
        .unwrap();

    std::thread::scope(|scope| {
        for thread in 0..4 {
            let setup = &setup;
            scope.spawn(move || {
                let mut random = Random(thread);
                let mut held: Vec<Lease> = Vec::new();
                for _ in 0..400 {
                    let name = random.next(ADAPTERS).to_string();
                    match random.next(12) {
                        0 => {
                            setup.registry.unregister(&name);
                        }
                        1 => {
                            let other = random.next(ADAPTERS).to_string();
                            setup
                                .registry
                                .register(&name, Source::Local(setup.folder(&other)))
                                .unwrap();
                        }
                        2 => {
                            setup.registry.check_integrity().unwrap();
                        }
                        // Waits with nothing in its hands, as one does who must not hold up others.
                        3..=5 => {
                            held.clear();
                            if let Ok(lease) = setup.try_lease(&name) {
                                settled(&lease);
                            }
                        }
                        _ => {
                            if let Ok(lease) = setup.try_lease(&name) {
                                held.push(lease);
                            }
                            if held.len() > 3 {
                                held.swap_remove(random.next(4) as usize);
                            }
                        }
                    }
                }
            });
        }
    });
    setup.rest();
    let stats = setup.registry.stats();
    assert_eq!((stats.leases, stats.loading), (0, 0));
    assert!(
        stats.device_evictions > 0 && stats.host_evictions > 0 && stats.failures > 0,
        "{stats:?}"
    );
    assert!(setup.loader.peak.load(Ordering::SeqCst) <= 4 * Made::BYTES);
    // Without names there is nothing to keep.
    for name in 0..ADAPTERS {
        setup.registry.unregister(&name.to_string());
    }
    wait_until("all to be freed", || {
        let stats = setup.registry.stats();
        stats.device_bytes == 0 && stats.host_bytes == 0
    });
    assert_eq!(setup.loader.live.load(Ordering::SeqCst), 0);
    assert_eq!(setup.registry.slots(), 0);
}

/// Writers replace an adapter's files while readers lease it: every lease is of one whole version, and the last one wins.
#[test]
fn files_that_change_under_load() {
    let setup = Setup::with_adapters(limits(8), 1);
    let versions: Vec<_> = (0..6_u16)
        .map(|seed| {
            setup
                .registry
                .register("version", Source::Local(setup.write(&format!("v{seed}"), seed)))
                .unwrap();
            setup.ready("version").generation().unwrap()
        })
        .collect();
    std::thread::scope(|scope| {
        let (setup, versions) = (&setup, &versions);
        let reader = || {
            for _ in 0..60 {
                // Between the renames of its two files the weights of one version are beside the configuration of another, which is the
                // same here: so every generation is one of those.
                assert!(versions.contains(&generation(&setup.lease("0"))));
            }
        };
        let readers = [scope.spawn(reader), scope.spawn(reader)];
        let mut seed = 0;
        while !readers.iter().all(|reader| reader.is_finished()) {
            seed = (seed + 1) % 6;
            setup.write("0", seed);
            std::thread::sleep(Duration::from_millis(30));
        }
        setup.write("0", 4);
        assert_eq!(generation(&setup.lease("0")), versions[4]);
    });
    setup.rest();
}
