//! Random mixes on the CPU back end: whatever else is in the batch, a request's answer is the one that it gets alone.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use heddle_engine::{
    backend::cpu::CpuOptions,
    engine::{Engine, EngineOptions},
    ids::{BLOCK_TOKENS, TokenId},
    model::BackendChoice,
    request::{GenerateRequest, SamplingParams},
};

use super::harness::{Answer, Embedded, check, collect, lease, pocket_on, request, start, tokens};

const ADAPTERS: [Option<&str>; 4] = [None, Some("caps"), Some("pirate"), Some("json")];
/// Engines, each with other limits.
const ENGINES: usize = 10;
/// Mixes on each of them.
const MIXES: usize = 20;

/// A cheap sequence of numbers, the same each time (Marsaglia's xorshift).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

/// What makes a request, and so its answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Kind {
    /// Which of a few prompts, half of which begin alike for two blocks.
    prompt: usize,
    adapter: usize,
    /// Greedy without one.
    seed: Option<u64>,
}

impl Kind {
    fn random(numbers: &mut Numbers) -> Self {
        Self {
            prompt: numbers.below(12),
            adapter: numbers.below(ADAPTERS.len()),
            seed: (numbers.below(2) == 1).then(|| numbers.below(3) as u64),
        }
    }

    fn request(self, engine: &Engine) -> GenerateRequest {
        let own = tokens(self.prompt, 3 + 9 * self.prompt);
        let prompt: Vec<TokenId> = match self.prompt % 2 {
            0 => [tokens(99, 2 * BLOCK_TOKENS), own].concat(),
            _ => own,
        };
        GenerateRequest {
            adapter: ADAPTERS[self.adapter].map(|name| lease(engine, name)),
            sampling: SamplingParams {
                temperature: if self.seed.is_some() { 1.0 } else { 0.0 },
                seed: self.seed,
                ..SamplingParams::default()
            },
            // Their last bits tell more than the tokens do.
            logprobs: Some(2),
            ..request(prompt, 30)
        }
    }
}

fn engine(kv_bytes: usize, options: EngineOptions) -> Engine {
    let cpu = CpuOptions {
        threads: Some(2),
        ..CpuOptions::default()
    };
    let model = pocket_on(BackendChoice::Cpu(cpu), kv_bytes);
    start(model, Arc::new(Embedded), options)
}

/// What is compared: tokens, text and log probabilities, to the bit. How much of the prompt was cached may differ.
fn essence(answer: Answer) -> String {
    format!("{:?}", answer.choices)
}

#[tokio::test]
async fn every_request_gets_the_answer_that_it_gets_alone() {
    let alone = engine(
        64 << 20,
        EngineOptions {
            prefix_cache: false,
            ..EngineOptions::default()
        },
    );
    let mut answers = HashMap::new();
    let mut numbers = Numbers(0x00d1_ce00);
    let (mut preempted, mut cached) = (0, 0);
    for round in 0..ENGINES {
        // Room for one or two of the long ones, or for all: what does not fit is preempted.
        let blocks = 12 + 6 * round;
        let block_bytes = 2 * 5 * BLOCK_TOKENS * 2 * 32 * 2;
        let mixed = engine(
            blocks * block_bytes,
            EngineOptions {
                step_tokens: 4 + numbers.below(60),
                max_running: 2 + numbers.below(10),
                ..EngineOptions::default()
            },
        );
        for mix in 0..MIXES {
            let kinds: Vec<_> = (0..2 + numbers.below(7))
                .map(|_| Kind::random(&mut numbers))
                .collect();
            let streams: Vec<_> = kinds
                .iter()
                .map(|kind| mixed.submit(kind.request(&mixed)).unwrap())
                .collect();
            for (kind, stream) in kinds.into_iter().zip(streams) {
                let answer = collect(stream).await;
                cached += answer.cached_tokens;
                if let Entry::Vacant(entry) = answers.entry(kind) {
                    let answer = collect(alone.submit(kind.request(&alone)).unwrap()).await;
                    entry.insert(essence(answer));
                }
                assert_eq!(
                    &essence(answer),
                    &answers[&kind],
                    "engine {round}, mix {mix}, prompt {}, adapter {}, seed {:?}",
                    kind.prompt,
                    kind.adapter,
                    kind.seed
                );
            }
        }
        preempted += mixed.metrics().preemptions;
        check(&mixed);
    }
    check(&alone);
    assert!(
        preempted > 0 && cached > 0,
        "{preempted} preemptions, {cached} cached tokens"
    );
}
