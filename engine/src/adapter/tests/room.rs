//! Budgets: who is evicted, who waits, in which order, and how long.

use super::*;

#[test]
fn the_least_recently_used_goes_first() {
    let setup = Setup::with_adapters(limits(2), 4);
    setup.ready("0");
    setup.ready("1");
    setup.ready("0");
    setup.ready("2");
    setup.rest();
    assert_eq!(setup.resident(), ["0", "2"]);
    setup.ready("3");
    setup.rest();
    assert_eq!(setup.resident(), ["2", "3"]);
    let stats = setup.registry.stats();
    assert_eq!((stats.device_evictions, stats.reads), (2, 4));
    // From the host, without another reading.
    setup.ready("0");
    assert_eq!(setup.registry.stats().reads, 4);
    assert!(setup.loader.peak.load(Ordering::SeqCst) <= 2 * Made::BYTES);
}

#[test]
fn what_is_leased_stays_and_the_others_wait_in_order() {
    let setup = Setup::with_adapters(limits(2), 5);
    let (zero, one) = (setup.ready("0"), setup.ready("1"));
    let two = setup.lease("2");
    wait_until("2 to be read", || setup.registry.stats().reads == 3);
    let three = setup.lease("3");
    wait_until("3 to be read", || setup.registry.stats().reads == 4);
    let four = setup.lease("4");
    wait_until("4 to be read", || setup.registry.stats().reads == 5);
    setup.registry.check_integrity().unwrap();
    assert!([&two, &three, &four].into_iter().all(is_loading));
    // Those on the device go on while others wait.
    setup.ready("0");

    drop(one);
    generation(&two);
    assert!(is_loading(&three) && is_loading(&four));
    // The third in the queue gives up.
    drop(three);
    drop(zero);
    generation(&four);
    let order = setup.loader.order();
    assert_eq!(
        order[2..],
        [two.generation().unwrap(), four.generation().unwrap()]
    );
    drop((two, four));
    setup.rest();
}

#[test]
fn what_never_fits_fails() {
    let setup = Setup::with_adapters(
        AdapterLimits {
            device_bytes: Made::BYTES - 1,
            ..limits(1)
        },
        1,
    );
    let failure = error(&setup.lease("0")).to_string();
    let says = format!(
        "{} bytes on the device, all adapters together may take {}",
        Made::BYTES,
        Made::BYTES - 1
    );
    assert!(failure.contains(&says), "{failure}");
    assert!(setup.try_lease("0").is_err());
    setup.rest();

    let setup = Setup::with_adapters(
        AdapterLimits {
            host_bytes: Made::BYTES - 1,
            ..limits(1)
        },
        1,
    );
    let failure = error(&setup.lease("0")).to_string();
    assert!(failure.contains("bytes of host memory"), "{failure}");
}

#[test]
fn layouts_that_are_larger_than_their_weights() {
    // Two weights fit, two layouts do not.
    let setup = Setup::with_adapters(limits(2), 3);
    setup.loader.percent.store(150, Ordering::SeqCst);
    let zero = setup.ready("0");
    let one = setup.lease("1");
    wait_until("1 to be read", || setup.registry.stats().reads == 2);
    setup.rest();
    // What the first layout took is what the second one is expected to take.
    assert!(is_loading(&one));
    assert_eq!(setup.loader.order().len(), 1);
    drop(zero);
    generation(&one);
    setup.rest();
    assert_eq!(setup.registry.stats().device_bytes, Made::BYTES * 3 / 2);
    drop(one);
    setup.ready("2");
    setup.rest();
    assert_eq!(setup.resident(), ["2"]);
    // Three halves of a budget of one.
    let setup = Setup::with_adapters(limits(1), 1);
    setup.loader.percent.store(150, Ordering::SeqCst);
    assert!(error(&setup.lease("0")).to_string().contains("on the device"));
    setup.rest();
    assert_eq!(setup.registry.stats().device_bytes, 0);
}

#[test]
fn layouts_that_are_smaller_than_their_weights() {
    // As bf16 on the device: four layouts in the room of two weights.
    let setup = Setup::with_adapters(limits(2), 4);
    setup.loader.percent.store(50, Ordering::SeqCst);
    let leases: Vec<_> = (0..4).map(|name| setup.ready(&name.to_string())).collect();
    assert_eq!(setup.registry.stats().device_bytes, 2 * Made::BYTES);
    drop(leases);
    setup.rest();
}

#[test]
fn host_memory_is_bounded_too() {
    let setup = Setup::with_adapters(
        AdapterLimits {
            host_bytes: 2 * Made::BYTES,
            ..limits(8)
        },
        8,
    );
    let leases: Vec<_> = (0..8).map(|name| setup.lease(&name.to_string())).collect();
    for lease in &leases {
        generation(lease);
    }
    setup.rest();
    let stats = setup.registry.stats();
    assert!(stats.host_bytes <= 2 * Made::BYTES, "{stats:?}");
    assert_eq!((stats.resident, stats.host_evictions, stats.reads), (8, 6, 8));
}

/// Neither tier has room for another one: those that wait for the device fill the host, those behind them wait to be read.
#[test]
fn full_on_both_tiers() {
    let setup = Setup::with_adapters(
        AdapterLimits {
            host_bytes: 2 * Made::BYTES,
            ..limits(1)
        },
        8,
    );
    let first = setup.ready("0");
    let leases: Vec<_> = (1..8).map(|name| setup.lease(&name.to_string())).collect();
    wait_until("the host to be full", || {
        setup.registry.stats().host_bytes == 2 * Made::BYTES
    });
    setup.registry.check_integrity().unwrap();
    assert!(leases.iter().all(is_loading));
    drop(first);
    // Each is served when the one before is dropped.
    let mut waiting = leases;
    while !waiting.is_empty() {
        wait_until("one to be ready", || {
            waiting.iter().any(|lease| lease.generation().is_some())
        });
        waiting.retain(|lease| lease.generation().is_none());
    }
    setup.rest();
    assert_eq!(setup.registry.stats().reads, 8);
}

/// Adapters that are always in use do not keep another one out: new leases on them wait behind it.
#[test]
fn adapters_in_use_are_drained_for_the_one_that_waits() {
    let setup = Setup::draining(limits(1), Duration::ZERO);
    setup.add(2);
    let running = setup.ready("0");
    let waiting = setup.lease("1");
    wait_until("1 to be in the queue", || setup.registry.stats().reads == 2);
    let behind = setup.lease("0");
    assert!(
        is_loading(&behind),
        "a new lease should wait behind the one that waits"
    );
    setup.registry.check_integrity().unwrap();
    drop(running);
    generation(&waiting);
    assert!(is_loading(&behind));
    drop(waiting);
    generation(&behind);
    drop(behind);
    setup.rest();
}

#[test]
fn draining_ends_when_the_one_that_waits_gives_up() {
    let setup = Setup::draining(limits(1), Duration::ZERO);
    setup.add(2);
    let running = setup.ready("0");
    let waiting = setup.lease("1");
    wait_until("1 to be in the queue", || setup.registry.stats().reads == 2);
    let behind = setup.lease("0");
    assert!(is_loading(&behind));
    drop(waiting);
    generation(&behind);
    assert!(setup.lease("0").generation().is_some());
    drop((running, behind));
    setup.rest();
}

/// The same when the drained adapter is no longer in host memory and has to be read again.
#[test]
fn a_drained_adapter_that_is_only_on_the_device() {
    let setup = Setup::draining(
        AdapterLimits {
            host_bytes: Made::BYTES,
            ..limits(1)
        },
        Duration::ZERO,
    );
    setup.add(2);
    let running = setup.ready("0");
    let waiting = setup.lease("1");
    wait_until("1 to be in the queue", || setup.registry.stats().reads == 2);
    let behind = setup.lease("0");
    setup.registry.check_integrity().unwrap();
    drop(running);
    generation(&waiting);
    drop(waiting);
    generation(&behind);
    drop(behind);
    setup.rest();
}

/// Under constant use of the adapters that fit, every other one is served as well.
#[test]
fn nobody_starves() {
    let setup = Setup::draining(limits(2), Duration::from_millis(5));
    setup.add(6);
    std::thread::scope(|scope| {
        let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
        for name in ["0", "1"] {
            let (setup, done) = (&setup, done.clone());
            scope.spawn(move || {
                // Leases that overlap: without draining the adapter would be in use all the time.
                let mut held = setup.lease(name);
                while !done.load(Ordering::SeqCst) {
                    let next = setup.lease(name);
                    if next.generation().is_none() {
                        drop(held);
                        settled(&next);
                    }
                    held = next;
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        }
        for round in 0..3 {
            for name in ["2", "3", "4", "5"] {
                let start = Instant::now();
                setup.ready(name);
                assert!(
                    start.elapsed() < Duration::from_secs(120),
                    "{name} waited in round {round}"
                );
            }
        }
        done.store(true, Ordering::SeqCst);
    });
    setup.rest();
}
