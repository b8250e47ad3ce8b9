//! Requests with adapters, among others.

use std::sync::{Arc, Condvar, Mutex};

use heddle_engine::{
    Error, Result,
    adapter::{AdapterSource, LeaseState},
    engine::EngineOptions,
    hub::{Files, Source},
    ids::Generation,
    request::GenerateRequest,
};

use super::{
    harness::{Embedded, Rig, VOCAB, collect, lease, request, tokens, try_collect, until},
    scripted::greedy,
};

/// A source that is slow until it is told not to be, and then has the adapter or has it not.
#[derive(Default)]
pub(crate) struct Slow {
    answer: Mutex<Option<bool>>,
    told: Condvar,
}

impl Slow {
    pub(crate) fn tell(&self, there: bool) {
        *self.answer.lock().unwrap() = Some(there);
        self.told.notify_all();
    }
}

impl AdapterSource for Slow {
    fn fetch(&self, source: &Source, credential: Option<&str>) -> Result<Files> {
        let answer = self.answer.lock().unwrap();
        let answer = self.told.wait_while(answer, |answer| answer.is_none()).unwrap();
        if *answer == Some(false) {
            return Err(Error::AdapterRefused {
                adapter: "slow".to_owned(),
                reason: "it is not there".to_owned(),
            });
        }
        drop(answer);
        Embedded.fetch(source, credential)
    }

    fn check_access(&self, _source: &Source, _credential: Option<&str>) -> Result<()> {
        Ok(())
    }
}

async fn generation(rig: &Rig, name: &str) -> Generation {
    let lease = lease(&rig.engine, name);
    until("the adapter is loaded", || {
        matches!(lease.state(), LeaseState::Ready(_))
    })
    .await;
    let LeaseState::Ready(adapter) = lease.state() else {
        unreachable!()
    };
    adapter.generation
}

pub(crate) fn with(rig: &Rig, name: &str, salt: usize) -> GenerateRequest {
    GenerateRequest {
        adapter: Some(lease(&rig.engine, name)),
        ..request(tokens(salt, 40), 30)
    }
}

#[tokio::test]
async fn each_row_has_its_own_adapter_and_its_own_cache() {
    let rig = Rig::roomy();
    let names = ["caps", "pirate", "json"];
    rig.script.hold();
    // The same prompt for all.
    let streams: Vec<_> = names.iter().map(|name| rig.submit(with(&rig, name, 1))).collect();
    let base = rig.submit(request(tokens(1, 40), 30));
    rig.script.go_on();
    assert_eq!(collect(base).await.ids(), greedy(&tokens(1, 40), 30, None, VOCAB));
    for (name, stream) in names.iter().zip(streams) {
        let generation = generation(&rig, name).await;
        let answer = collect(stream).await;
        assert_eq!(
            answer.ids(),
            greedy(&tokens(1, 40), 30, Some(generation), VOCAB),
            "{name}"
        );
        assert_eq!(answer.cached_tokens, 0);
    }
    assert_eq!(rig.answer(with(&rig, "caps", 1)).await.cached_tokens, 32);
    rig.check();
}

#[tokio::test]
async fn a_request_whose_adapter_is_loading_holds_nobody_up() {
    let source = Arc::new(Slow::default());
    let rig = Rig::with_source(
        100,
        EngineOptions {
            max_running: 1,
            ..EngineOptions::default()
        },
        source.clone(),
    );
    let loading = rig.submit(GenerateRequest {
        choices: 2,
        ..with(&rig, "caps", 1)
    });
    rig.answer(request(tokens(2, 40), 30)).await;
    assert_eq!(rig.engine.health().waiting, 1);
    source.tell(true);
    let answer = collect(loading).await;
    let generation = generation(&rig, "caps").await;
    for choice in &answer.choices {
        assert_eq!(choice.ids(), greedy(&tokens(1, 40), 30, Some(generation), VOCAB));
    }
    rig.check();
}

#[tokio::test]
async fn an_adapter_that_cannot_be_had_is_the_error_of_those_who_asked() {
    let source = Arc::new(Slow::default());
    let rig = Rig::with_source(100, EngineOptions::default(), source.clone());
    let asked: Vec<_> = (0..2).map(|salt| rig.submit(with(&rig, "caps", salt))).collect();
    let cancelled = rig.submit(with(&rig, "caps", 5));
    drop(cancelled);
    until("it is cancelled", || rig.engine.metrics().requests_cancelled == 1).await;
    source.tell(false);
    for stream in asked {
        let error = try_collect(stream).await.unwrap_err();
        assert!(error.to_string().contains("it is not there"), "{error}");
    }
    rig.answer(request(tokens(2, 40), 30)).await;
    rig.check();
}

#[tokio::test]
async fn the_adapters_of_a_step_are_bounded_and_all_get_their_turn() {
    // Each takes 1000 bytes.
    let rig = Rig::new(
        400,
        EngineOptions {
            step_adapter_bytes: 2000,
            ..EngineOptions::default()
        },
    );
    let names = ["caps", "pirate", "json"];
    let mut generations = Vec::new();
    for name in names {
        generations.push(generation(&rig, name).await);
    }
    rig.script.hold();
    let streams: Vec<_> = (0..9)
        .map(|index| rig.submit(with(&rig, names[index % 3], index)))
        .collect();
    rig.script.go_on();
    for (index, stream) in streams.into_iter().enumerate() {
        let right = greedy(&tokens(index, 40), 30, Some(generations[index % 3]), VOCAB);
        assert_eq!(collect(stream).await.ids(), right);
    }
    let most = rig.script.seen().iter().map(|step| step.adapters).max();
    assert_eq!(most, Some(2));
    rig.check();
}
