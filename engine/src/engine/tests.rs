//! Faults that no request can cause: the loop is given what the handle never lets through.

use std::sync::{Arc, mpsc};

use tokio::sync::mpsc::UnboundedReceiver;

use super::{
    active::{Active, Choice, Rules},
    gate::Gate,
    status::{Health, Status},
    step_loop::{Command, Fixed, StepLoop, Submission},
};
use crate::{
    batch::{AdapterLoader, Batch, LogitRows, Logits, Runner},
    error::Result,
    ids::{RequestId, SequenceId, Tenant, TokenId},
    request::{Event, SamplingParams},
    sampling::{History, Sampler},
    schedule::Limits,
    text::{Detokenizer, Tokenizer},
};

const VOCAB: usize = 1536;
/// For a million tokens and more.
const BLOCKS: usize = 100_000;

/// Finds token 7 the likeliest, whatever it is asked.
struct Seven;

impl Runner for Seven {
    fn forward(&mut self, batch: &Batch) -> Result<Logits> {
        let mut row = vec![0.0; VOCAB];
        row[7] = 1.0;
        let rows = batch
            .spans
            .iter()
            .filter(|span| span.logits != LogitRows::None)
            .count();
        Ok(Logits {
            data: row.repeat(rows),
            vocab: VOCAB,
        })
    }

    fn kv_blocks(&self) -> usize {
        BLOCKS
    }

    fn adapter_loader(&self) -> Arc<dyn AdapterLoader> {
        unreachable!("nobody asks for an adapter")
    }
}

struct Rig {
    commands: mpsc::Sender<Command>,
    gate: Arc<Gate>,
    status: Arc<Status>,
    tokenizer: Tokenizer,
    thread: std::thread::JoinHandle<()>,
}

impl Rig {
    fn new() -> Self {
        let (commands, receiver) = mpsc::channel();
        let status = Arc::new(Status::default());
        let fixed = Fixed {
            limits: Limits {
                step_tokens: 64,
                max_running: 8,
                step_adapter_bytes: usize::MAX,
                ageing_steps: 100,
            },
            kv_blocks: BLOCKS,
            vocab: VOCAB,
            prefix_cache: true,
        };
        let step_loop = StepLoop::new(fixed, Box::new(Seven), receiver, commands.clone(), status.clone());
        Self {
            commands,
            gate: Gate::new(10),
            status,
            tokenizer: Tokenizer::from_json(include_bytes!("../../assets/pocket/tokenizer.json")).unwrap(),
            thread: std::thread::spawn(move || step_loop.run()),
        }
    }

    /// Submits a request for `max_tokens`, whose choice is told not to sample `ends` before the second.
    fn submit(&self, id: u64, prompt: &[u32], max_tokens: usize, ends: &[u32]) -> UnboundedReceiver<Event> {
        let (events, receiver) = tokio::sync::mpsc::unbounded_channel();
        let tokens = |ids: &[u32]| ids.iter().copied().map(TokenId).collect::<Vec<_>>();
        let (place, mut permits) = self.gate.enter(&Tenant(String::new()), 1, None).unwrap();
        let choice = Choice::new(
            SequenceId(id),
            Sampler::new(&SamplingParams::default(), 0, 0),
            History::new(&tokens(prompt)),
            Detokenizer::new(&self.tokenizer),
            permits.pop().unwrap(),
        );
        let rules = Rules {
            max_tokens,
            min_tokens: 1,
            ends: tokens(ends),
            logprobs: None,
            prompt_logprobs: None,
        };
        let submission = Submission {
            id: RequestId(id),
            active: Active::new(events, None, tokens(prompt), rules, vec![choice], place),
            tenant: Tenant(String::new()),
            priority: 0,
            cache_salt: None,
        };
        self.commands.send(Command::Submit(Box::new(submission))).unwrap();
        receiver
    }

    fn health(&self) -> Health {
        self.status.health(self.gate.waiting(), BLOCKS)
    }

    /// Everything is given back, and the loop ends when it is told to.
    fn end(self) {
        let (answer, answered) = mpsc::channel();
        self.commands.send(Command::CheckIntegrity(answer)).unwrap();
        answered.recv().unwrap().unwrap();
        assert_eq!(self.gate.waiting(), 0);
        self.commands.send(Command::Drain).unwrap();
        self.thread.join().unwrap();
        let health = self.status.health(0, BLOCKS);
        assert_eq!((health.running, health.kv_used), (0, 0));
    }
}

/// The last event of a request, and how many tokens came before it.
fn last(mut events: UnboundedReceiver<Event>) -> (usize, Option<Event>) {
    let (mut tokens, mut last) = (0, None);
    while let Some(event) = events.blocking_recv() {
        tokens += usize::from(matches!(event, Event::Token { .. }));
        last = Some(event);
    }
    (tokens, last)
}

#[test]
fn a_panic_over_one_requests_token_is_that_requests_error() {
    let rig = Rig::new();
    let good = rig.submit(1, &[1, 2, 3], 400, &[]);
    // There is no such token to be banned.
    let bad = rig.submit(2, &[4, 5, 6], 400, &[u32::MAX]);
    assert!(matches!(last(bad), (0, Some(Event::Failed(_)))));
    assert!(matches!(last(good), (400, Some(Event::Done))));
    assert!(rig.health().alive, "no step failed");
    rig.end();
}

#[test]
fn a_panic_of_the_loop_itself_fails_everyone_and_it_goes_on() {
    let rig = Rig::new();
    let mut running = rig.submit(1, &[1, 2, 3], 1_000_000, &[]);
    while !matches!(running.blocking_recv(), Some(Event::Token { .. })) {}
    // A sequence without a prompt cannot be.
    let bad = rig.submit(2, &[], 10, &[]);
    assert!(matches!(last(running), (_, Some(Event::Failed(_)))));
    assert!(
        last(bad).1.is_none(),
        "its stream says that the engine broke down"
    );
    assert!(matches!(
        last(rig.submit(3, &[1, 2, 3], 5, &[])),
        (5, Some(Event::Done))
    ));
    rig.end();
}
