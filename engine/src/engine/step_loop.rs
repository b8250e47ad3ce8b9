//! The step loop: one thread that owns the scheduler, the model and every request, and repeats plan, run, settle.
//!
//! What can fail is fenced in by how far the damage may reach. A runner that fails, or panics, costs the requests of that step. A
//! panic while one request's token is chosen costs that request. A panic anywhere else in a step means that the loop's own state
//! cannot be trusted: every request fails, and the loop goes on with a new state. What a panic says is never
//! passed on: it may quote a prompt.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::Ordering::Relaxed,
        mpsc::{Receiver, Sender},
    },
};

use super::{
    active::{Active, Gone, Outcome},
    status::Status,
};
use crate::{
    adapter::LeaseState,
    batch::{Batch, DeviceAdapter, LogitRows, Logits, Runner, Span},
    error::{Error, Result},
    ids::{RequestId, SequenceId, Tenant},
    kv::{CacheScope, blocks_for},
    schedule::{AdapterNeed, Limits, NewSequence, PlannedSpan, State, StepAdapter, StepPlan, plan},
};

/// Rows of a prompt in one step when the logits of all of them are wanted: a row of logits is large.
const PROMPT_LOGIT_ROWS: usize = 64;

/// What the loop is told.
#[derive(Debug)]
pub(super) enum Command {
    /// A request, checked.
    Submit(Box<Submission>),
    /// The adapter of a request is no longer loading.
    AdapterSettled(RequestId),
    /// Nobody waits for the request any more.
    Cancel(RequestId),
    /// The caller has found a stop sequence in a choice.
    StopChoice(RequestId, u32),
    /// See [`super::Engine::check_integrity`].
    CheckIntegrity(Sender<Result<(), String>>),
    /// End when the last request has.
    Drain,
    /// End now.
    Close,
}

/// A request as it enters the loop.
#[derive(Debug)]
pub(super) struct Submission {
    pub(super) id: RequestId,
    pub(super) active: Active,
    pub(super) tenant: Tenant,
    pub(super) priority: i32,
    pub(super) cache_salt: Option<String>,
}

/// What does not change while the loop runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fixed {
    pub(super) limits: Limits,
    pub(super) kv_blocks: usize,
    pub(super) vocab: usize,
    pub(super) prefix_cache: bool,
}

pub(super) struct StepLoop {
    fixed: Fixed,
    runner: Box<dyn Runner>,
    state: State,
    requests: HashMap<RequestId, Active>,
    /// Whose each sequence of `state` is: the request and which of its choices.
    owners: HashMap<SequenceId, (RequestId, u32)>,
    commands: Receiver<Command>,
    /// For those who settle adapters.
    sender: Sender<Command>,
    status: Arc<Status>,
    draining: bool,
    closing: bool,
    /// A buffer for one row of logits.
    scratch: Vec<f32>,
}

impl StepLoop {
    pub(super) fn new(
        fixed: Fixed,
        runner: Box<dyn Runner>,
        commands: Receiver<Command>,
        sender: Sender<Command>,
        status: Arc<Status>,
    ) -> Self {
        Self {
            state: State::new(fixed.limits, fixed.kv_blocks),
            fixed,
            runner,
            requests: HashMap::new(),
            owners: HashMap::new(),
            commands,
            sender,
            status,
            draining: false,
            closing: false,
            scratch: Vec::new(),
        }
    }

    /// Runs until it is told to end.
    pub(super) fn run(mut self) {
        let mut busy = false;
        loop {
            let alive = catch_unwind(AssertUnwindSafe(|| {
                self.take_commands(busy);
                if self.closing || (self.draining && self.requests.is_empty()) {
                    return false;
                }
                busy = self.step();
                true
            }));
            self.publish_status();
            match alive {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => self.start_over(),
            }
        }
        self.fail_all(&Error::ShuttingDown);
        while let Ok(command) = self.commands.try_recv() {
            if let Command::Submit(submission) = command {
                submission.active.fail(Error::ShuttingDown);
            }
        }
    }

    // ---- Commands ----

    /// Takes what has come in, and sleeps until something does if there is nothing to compute.
    fn take_commands(&mut self, busy: bool) {
        if !busy {
            self.check_idle();
            match self.commands.recv() {
                Ok(command) => self.take(command),
                Err(_) => self.closing = true,
            }
        }
        while let Ok(command) = self.commands.try_recv() {
            self.take(command);
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Submit(submission) => self.submit(*submission),
            Command::AdapterSettled(id) => self.adapter_settled(id),
            Command::Cancel(id) => self.cancel(id),
            Command::StopChoice(id, choice) => self.stop_choice(id, choice),
            Command::CheckIntegrity(answer) => {
                let _ = answer.send(self.check_integrity());
            }
            Command::Drain => self.draining = true,
            Command::Close => self.closing = true,
        }
    }

    fn submit(&mut self, submission: Submission) {
        let Submission {
            id,
            mut active,
            tenant,
            priority,
            cache_salt,
        } = submission;
        if self.draining {
            return self.end_with(active, Error::ShuttingDown);
        }
        let adapter = match active.lease.as_ref().map(|lease| lease.state()) {
            None => AdapterNeed::Ready(None),
            Some(LeaseState::Ready(adapter)) => {
                let need = AdapterNeed::Ready(Some(step_adapter(&adapter)));
                active.adapter = Some(adapter);
                need
            }
            Some(LeaseState::Loading) => AdapterNeed::Loading,
            Some(LeaseState::Failed(error)) => return self.end_with(active, error),
        };
        let scope = match cache_salt {
            _ if !self.fixed.prefix_cache => CacheScope::Request(id),
            Some(salt) => CacheScope::Salt(salt),
            None => CacheScope::Everyone,
        };
        let wants_prompt = active.wants_prompt();
        // A prompt without a full block leaves nothing to share.
        let shares = wants_prompt || blocks_for(active.prompt().len()) > 1;
        let sequences: Vec<SequenceId> = active.sequences().collect();
        for (&sequence, choice) in sequences.iter().zip(0..) {
            let is_first = choice == 0;
            self.owners.insert(sequence, (id, choice));
            self.state.insert(NewSequence {
                id: sequence,
                tenant: tenant.clone(),
                priority,
                prompt: active.prompt().to_vec(),
                scope: scope.clone(),
                adapter,
                after: (!is_first && shares).then(|| sequences[0]),
                chunk: if is_first && wants_prompt {
                    PROMPT_LOGIT_ROWS
                } else {
                    usize::MAX
                },
                whole_prompt: is_first && wants_prompt,
            });
        }
        if let (AdapterNeed::Loading, Some(lease)) = (adapter, &active.lease) {
            let sender = self.sender.clone();
            lease.on_settled(Box::new(move || {
                let _ = sender.send(Command::AdapterSettled(id));
            }));
        }
        self.requests.insert(id, active);
    }

    fn adapter_settled(&mut self, id: RequestId) {
        let Some(active) = self.requests.get_mut(&id) else {
            return;
        };
        match active.lease.as_ref().map(|lease| lease.state()) {
            Some(LeaseState::Ready(adapter)) => {
                for sequence in active.sequences() {
                    self.state.adapter_ready(sequence, step_adapter(&adapter));
                }
                active.adapter = Some(adapter);
            }
            Some(LeaseState::Failed(error)) => self.fail(id, error),
            Some(LeaseState::Loading) | None => {}
        }
    }

    fn stop_choice(&mut self, id: RequestId, choice: u32) {
        let Some(active) = self.requests.get_mut(&id) else {
            return;
        };
        match active.stop(choice) {
            Ok(Some(sequence)) => self.end_sequence(sequence),
            Ok(None) => {}
            Err(Gone) => self.cancel(id),
        }
    }

    // ---- Steps ----

    /// Plans, runs and settles one step. Returns whether there was anything to compute.
    fn step(&mut self) -> bool {
        let plan = plan(&mut self.state);
        self.note(&plan);
        if plan.spans.is_empty() {
            return false;
        }
        let batch = self.batch(&plan);
        let result = self.forward(&batch);
        let wanted: Vec<usize> = batch.spans.iter().map(logit_rows).collect();
        // Its adapters go before the leases that keep them loaded.
        drop(batch);
        match result {
            Ok(mut logits) => {
                self.status.step_succeeded();
                self.settle(&plan, &wanted, &mut logits);
                self.runner.recycle(logits);
            }
            Err(error) => {
                tracing::error!(%error, "a step failed");
                self.status.step_failed();
                for span in &plan.spans {
                    if let Some(&(id, _)) = self.owners.get(&span.sequence) {
                        self.fail(id, error.clone());
                    }
                }
            }
        }
        true
    }

    /// Counts what the plan did, and ends those that it refused.
    fn note(&mut self, plan: &StepPlan) {
        for admitted in &plan.admitted {
            let owner = self.owners.get(&admitted.sequence);
            if let Some(active) = owner.and_then(|(id, _)| self.requests.get_mut(id))
                && active.start(admitted.reused)
            {
                self.status.prefix_lookups.add(admitted.tokens);
                self.status.prefix_hits.add(admitted.reused);
            }
        }
        self.status.preemptions.add(plan.preempted.len());
        for sequence in &plan.refused {
            if let Some(&(id, _)) = self.owners.get(sequence) {
                let blocks = self.fixed.kv_blocks;
                let reason =
                    format!("it does not fit into the KV cache of {blocks} blocks: ask for fewer tokens");
                self.fail(id, Error::Generation(reason));
            }
        }
    }

    /// The plan as the model reads it.
    fn batch(&self, plan: &StepPlan) -> Batch {
        let mut batch = Batch::default();
        for span in &plan.spans {
            let (Some(sequence), Some((active, choice))) =
                (self.state.running(span.sequence), self.owner(span.sequence))
            else {
                continue;
            };
            let first = batch.tokens.len();
            let end = span.start + span.rows;
            batch
                .tokens
                .extend_from_slice(&sequence.tokens()[span.start..end]);
            batch.spans.push(Span {
                rows: first..batch.tokens.len(),
                start: span.start,
                blocks: sequence.table().blocks()[..blocks_for(end)].to_vec(),
                adapter: active.adapter.clone(),
                logits: active.logit_rows(choice, span),
            });
            let decodes = span.rows == 1 && span.start >= active.prompt().len();
            let counter = if decodes {
                &self.status.decode_tokens
            } else {
                &self.status.prefill_tokens
            };
            counter.add(span.rows);
        }
        batch
    }

    /// Runs the model, holding it to its contract.
    fn forward(&mut self, batch: &Batch) -> Result<Logits> {
        let logits = catch_unwind(AssertUnwindSafe(|| self.runner.forward(batch))).unwrap_or_else(|_| {
            Err(Error::Generation(
                "the back end broke down in this step".to_owned(),
            ))
        })?;
        let (rows, vocab) = (
            batch.spans.iter().map(logit_rows).sum::<usize>(),
            self.fixed.vocab,
        );
        if logits.vocab == vocab && logits.data.len() == rows * vocab {
            return Ok(logits);
        }
        let (values, width) = (logits.data.len(), logits.vocab);
        let found =
            format!("asked for {rows} rows of {vocab} logits, the back end gave {values} in rows of {width}");
        Err(Error::Generation(found))
    }

    /// Gives every sequence what the step computed for it: of each span so many rows of logits as are `wanted`.
    fn settle(&mut self, plan: &StepPlan, wanted: &[usize], logits: &mut Logits) {
        self.state.settle(plan);
        let vocab = self.fixed.vocab;
        let mut rest = logits.data.as_mut_slice();
        for (span, rows) in plan.spans.iter().zip(wanted) {
            let (rows, after) = rest.split_at_mut(rows * vocab);
            rest = after;
            self.advance(span, rows);
        }
    }

    fn advance(&mut self, span: &PlannedSpan, rows: &mut [f32]) {
        // Its request may have broken off with a sibling, just now.
        let Some(&(id, choice)) = self.owners.get(&span.sequence) else {
            return;
        };
        let Some(active) = self.requests.get_mut(&id) else {
            return;
        };
        let (vocab, scratch) = (self.fixed.vocab, &mut self.scratch);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            active.advance(choice, span, rows, vocab, scratch)
        }));
        match outcome {
            Ok(Outcome::Pending) => {}
            Ok(Outcome::Token(token)) => {
                self.status.generated_tokens.add(1);
                self.state.push(span.sequence, token);
            }
            Ok(Outcome::Last) => {
                self.status.generated_tokens.add(1);
                self.end_sequence(span.sequence);
            }
            Ok(Outcome::Ended) => self.end_sequence(span.sequence),
            Ok(Outcome::Cancelled) => self.cancel(id),
            Err(_) => self.fail(
                id,
                Error::Generation("its next token could not be chosen".to_owned()),
            ),
        }
    }

    // ---- Ends ----

    /// One choice has ended; with the last one its request has.
    fn end_sequence(&mut self, sequence: SequenceId) {
        self.state.remove(sequence);
        let Some((id, _)) = self.owners.remove(&sequence) else {
            return;
        };
        if self.requests.get(&id).is_some_and(Active::is_done)
            && let Some(active) = self.requests.remove(&id)
        {
            self.status.requests_done.add(1);
            active.done();
        }
    }

    fn cancel(&mut self, id: RequestId) {
        if self.take_out(id).is_some() {
            self.status.requests_cancelled.add(1);
        }
    }

    fn fail(&mut self, id: RequestId, error: Error) {
        if let Some(active) = self.take_out(id) {
            self.end_with(active, error);
        }
    }

    fn end_with(&self, active: Active, error: Error) {
        self.status.requests_failed.add(1);
        active.fail(error);
    }

    /// Takes a request and its sequences out.
    fn take_out(&mut self, id: RequestId) -> Option<Active> {
        let active = self.requests.remove(&id)?;
        for sequence in active.sequences() {
            self.state.remove(sequence);
            self.owners.remove(&sequence);
        }
        Some(active)
    }

    fn fail_all(&mut self, error: &Error) {
        for (_, active) in std::mem::take(&mut self.requests) {
            self.end_with(active, error.clone());
        }
        for (sequence, _) in std::mem::take(&mut self.owners) {
            self.state.remove(sequence);
        }
    }

    /// Goes on after a panic in the loop itself, which may have left anything half done.
    fn start_over(&mut self) {
        tracing::error!("the step loop broke down: every request fails and it starts over");
        self.status.step_failed();
        self.state = State::new(self.fixed.limits, self.fixed.kv_blocks);
        self.fail_all(&Error::Generation("the step loop broke down".to_owned()));
    }

    // ---- Itself ----

    fn owner(&self, sequence: SequenceId) -> Option<(&Active, u32)> {
        let &(id, choice) = self.owners.get(&sequence)?;
        Some((self.requests.get(&id)?, choice))
    }

    fn publish_status(&self) {
        self.status.running.store(self.state.running_count(), Relaxed);
        self.status.kv_used.store(self.state.pool().used(), Relaxed);
    }

    /// An idle engine holds nothing. If it does, something is lost that no request would ever give back.
    fn check_idle(&mut self) {
        if self.requests.is_empty()
            && let Err(problem) = self.check_integrity()
        {
            tracing::error!(problem, "the idle engine is not in order");
            self.start_over();
        }
    }

    fn check_integrity(&self) -> Result<(), String> {
        self.state.check_integrity()?;
        let (running, waiting) = (self.state.running_count(), self.state.waiting_count());
        let (owned, used) = (self.owners.len(), self.state.pool().used());
        let open: usize = self
            .requests
            .values()
            .map(|active| active.sequences().count())
            .sum();
        if running + waiting != owned || owned != open {
            return Err(format!(
                "{running} sequences run, {waiting} wait, {owned} are owned and {open} are open"
            ));
        }
        if running == 0 && used > 0 {
            return Err(format!("nothing runs and {used} blocks are in use"));
        }
        Ok(())
    }
}

fn step_adapter(adapter: &DeviceAdapter) -> StepAdapter {
    StepAdapter {
        generation: adapter.generation,
        bytes: adapter.bytes,
    }
}

/// Rows of logits that a span asks for.
fn logit_rows(span: &Span) -> usize {
    match span.logits {
        LogitRows::None => 0,
        LogitRows::Last => 1,
        LogitRows::All => span.rows.len(),
    }
}
