//! What breaks, and how far.

use std::time::Duration;

use heddle_engine::{Error, engine::EngineOptions};

use super::{
    harness::{Rig, VOCAB, collect, request, tokens, try_collect, until},
    scripted::{Failure, greedy},
};

#[tokio::test]
async fn a_step_that_fails_costs_its_requests_and_no_others() {
    for failure in [Failure::Error, Failure::Panic, Failure::Short] {
        let rig = Rig::new(
            100,
            EngineOptions {
                max_running: 2,
                ..EngineOptions::default()
            },
        );
        rig.script.hold();
        let first = rig.submit(request(tokens(0, 20), 5));
        rig.script.wait_for_step(1);
        let second = rig.submit(request(tokens(1, 20), 5));
        let waiting = rig.submit(request(tokens(7, 20), 5));
        // The first has the first step to itself; the second step is for both, and there is no place for the third.
        rig.script.fail(&[None, Some(failure)]);
        rig.script.go_on();
        for stream in [first, second] {
            let error = try_collect(stream).await.unwrap_err();
            assert!(
                matches!(error, Error::Generation(_) | Error::Backend { .. }),
                "{error}"
            );
        }
        assert_eq!(
            collect(waiting).await.ids(),
            greedy(&tokens(7, 20), 5, None, VOCAB)
        );
        // The first step's block is in the cache, and what the second may have left in its blocks is not.
        for (salt, cached) in [(0, 16), (1, 0)] {
            let answer = rig.answer(request(tokens(salt, 20), 5)).await;
            assert_eq!(
                (answer.cached_tokens, answer.ids()),
                (cached, greedy(&tokens(salt, 20), 5, None, VOCAB))
            );
        }
        assert_eq!(rig.engine.metrics().requests_failed, 2);
        rig.check();
    }
}

#[tokio::test]
async fn health_tells_of_failures_in_a_row_and_of_recovery() {
    let rig = Rig::roomy();
    rig.script
        .fail(&[Failure::Error, Failure::Panic, Failure::Error].map(Some));
    for failures in 1..=3 {
        try_collect(rig.submit(request(tokens(1, 5), 5)))
            .await
            .unwrap_err();
        assert_eq!(rig.engine.health().alive, failures < 3, "after {failures}");
    }
    rig.answer(request(tokens(1, 5), 5)).await;
    assert!(rig.engine.health().alive);
    assert_eq!(rig.engine.metrics().failed_steps, 3);
    rig.check();
}

#[tokio::test]
async fn an_idle_engine_sleeps() {
    let source = std::sync::Arc::new(super::adapters::Slow::default());
    let rig = Rig::with_source(100, EngineOptions::default(), source.clone());
    rig.answer(request(tokens(1, 5), 5)).await;
    // It also sleeps while all that wait are waiting for adapters.
    let waits = rig.submit(super::adapters::with(&rig, "caps", 1));
    let (steps, ticks) = (rig.script.seen().len(), rig.script.ticks());
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(rig.script.seen().len(), steps);
    if let (Some(before), Some(after)) = (ticks, rig.script.ticks()) {
        assert!(
            after - before <= 5,
            "{} ticks of 50 in half a second",
            after - before
        );
    }
    source.tell(true);
    collect(waits).await;
    rig.check();
}

#[tokio::test]
async fn shutdown_lets_the_running_ones_end() {
    let rig = Rig::roomy();
    let streams: Vec<_> = (0..4)
        .map(|salt| rig.submit(request(tokens(salt, 20), 50)))
        .collect();
    let engine = rig.engine.clone();
    let shutdown = tokio::spawn(async move { engine.shutdown(Duration::from_secs(30)).await });
    for (salt, stream) in streams.into_iter().enumerate() {
        assert_eq!(
            collect(stream).await.ids(),
            greedy(&tokens(salt, 20), 50, None, VOCAB)
        );
    }
    shutdown.await.unwrap();
    let health = rig.engine.health();
    assert!(!health.alive && !health.accepting, "{health:?}");
    assert!(matches!(
        rig.engine.submit(request(tokens(1, 5), 5)),
        Err(Error::ShuttingDown)
    ));
    // Once more does no harm.
    rig.engine.shutdown(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn shutdown_cancels_what_takes_too_long() {
    let rig = Rig::new(
        100,
        EngineOptions {
            max_running: 1,
            ..EngineOptions::default()
        },
    );
    rig.script.hold();
    let running = rig.submit(request(tokens(1, 20), 400));
    let waiting = rig.submit(request(tokens(2, 20), 400));
    rig.script.wait_for_step(1);
    let engine = rig.engine.clone();
    let shutdown = tokio::spawn(async move { engine.shutdown(Duration::from_millis(50)).await });
    until("it takes no more", || !rig.engine.health().accepting).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    rig.script.go_on();
    shutdown.await.unwrap();
    for stream in [running, waiting] {
        assert!(matches!(try_collect(stream).await, Err(Error::ShuttingDown)));
    }
    assert_eq!(rig.engine.health().waiting, 0);
}

#[tokio::test]
async fn dropping_the_last_handle_ends_the_engine() {
    let Rig { engine, script } = Rig::roomy();
    script.hold();
    let stream = engine.submit(request(tokens(1, 20), 400)).unwrap();
    script.wait_for_step(1);
    let second = engine.clone();
    drop(engine);
    assert!(second.health().alive);
    drop(second);
    script.go_on();
    assert!(matches!(try_collect(stream).await, Err(Error::ShuttingDown)));
}
