//! Random workloads through [`plan`], with memory in place of a model.
//!
//! Keys and values are digests here: the one at a position depends on every token before it and on the adapter, and is kept
//! in the block and place that the table names. So a block that is shared wrongly, reused too early or overwritten is
//! found at once, by the value that is in it.
//!
//! To repeat a workload that failed: `HEDDLE_SEED=... cargo test -p heddle-engine simulation`.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{
    AdapterNeed, Limits, NewSequence, Sequence, State, StepAdapter, StepPlan, plan, sequence::Seniority,
};
use crate::{
    ids::{BLOCK_TOKENS, Generation, RequestId, SequenceId, Tenant, TokenId},
    kv::CacheScope,
};

const WORKLOADS: u64 = 100_000;

/// SplitMix64 (Steele, Lea and Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn within(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// What stands for a position's keys and values, given those of the position before.
fn digest(before: u64, token: TokenId) -> u64 {
    mix(before ^ mix(u64::from(token.0) + 1))
}

/// What the digests of a sequence begin with.
fn origin(adapter: Option<StepAdapter>) -> u64 {
    adapter.map_or(1, |adapter| mix(u64::from(adapter.generation.0[0]) + 2))
}

/// The token that the model would choose after a position.
fn choice(digest: u64) -> TokenId {
    TokenId((digest % 5) as u32)
}

/// One sequence to come.
struct Job {
    new: NewSequence,
    /// The tick it arrives in, the one its adapter is there, and the one it is cancelled in.
    arrives: u64,
    loaded: u64,
    cancelled: Option<u64>,
    adapter: Option<StepAdapter>,
    /// Tokens to generate.
    output: usize,
    /// The digest of each token that it has or is to get.
    expected: Vec<u64>,
    tokens: Vec<TokenId>,
    generated: usize,
}

struct Workload {
    limits: Limits,
    kv_blocks: usize,
    jobs: BTreeMap<u64, Job>,
    /// Of so many steps one fails.
    fails: Option<usize>,
}

impl Workload {
    fn draw(random: &mut Random) -> Self {
        let step_tokens = random.within(2, 40);
        let limits = Limits {
            step_tokens,
            max_running: random.within(1, 8),
            step_adapter_bytes: [usize::MAX, 25, 10][random.below(3)],
            ageing_steps: [0, 5, 20, 1000][random.below(4)],
        };
        let kv_blocks = random.within(3, 12);
        let adapters: Vec<StepAdapter> = (0..4)
            .map(|number| StepAdapter {
                generation: Generation([number; 32]),
                bytes: random.within(1, 20),
            })
            .collect();
        let prefix_cache = !random.one_in(4);
        let priorities = if random.one_in(2) { 1 } else { 3 };
        let rush = random.within(1, 25);
        let mut jobs = BTreeMap::new();
        for request in 0..random.within(1, 7) as u64 {
            // Few different beginnings, so that they meet in the cache.
            let beginning = random.below(3) as u32;
            let shared = random.below(50);
            let own = random.within(1, 20);
            let own_tokens = (0..own).map(|_| TokenId(random.below(5) as u32));
            let prompt: Vec<TokenId> = (0..shared as u32)
                .map(|place| TokenId(beginning + place % 7))
                .chain(own_tokens)
                .collect();
            let adapter = (!random.one_in(3)).then(|| adapters[random.below(adapters.len())]);
            let arrives = random.below(rush) as u64;
            let loads = adapter.is_some() && random.one_in(3);
            let loaded = arrives + if loads { random.within(1, 30) as u64 } else { 0 };
            let tenant = Tenant(["", "a", "b"][random.below(3)].to_owned());
            let priority = random.below(priorities) as i32;
            let scope = match (prefix_cache, random.one_in(8)) {
                (false, _) => CacheScope::Request(RequestId(request)),
                (true, true) => CacheScope::Salt("salt".to_owned()),
                (true, false) => CacheScope::Everyone,
            };
            let whole_prompt = random.one_in(10);
            let choices = if random.one_in(3) {
                random.within(2, 4) as u64
            } else {
                1
            };
            let cancelled = random.one_in(8).then(|| arrives + random.below(30) as u64);
            for choice in 0..choices {
                let id = request * 10 + choice;
                let new = NewSequence {
                    id: SequenceId(id),
                    tenant: tenant.clone(),
                    priority,
                    prompt: prompt.clone(),
                    scope: scope.clone(),
                    adapter: if loads {
                        AdapterNeed::Loading
                    } else {
                        AdapterNeed::Ready(adapter)
                    },
                    after: (choice > 0).then_some(SequenceId(request * 10)),
                    chunk: if whole_prompt { 6 } else { usize::MAX },
                    whole_prompt: whole_prompt && choice == 0,
                };
                let output = if random.one_in(12) {
                    0
                } else {
                    random.within(1, 20)
                };
                jobs.insert(id, Job::new(new, arrives, loaded, cancelled, adapter, output));
            }
        }
        let fails = random.one_in(6).then_some(20);
        Self {
            limits,
            kv_blocks,
            jobs,
            fails,
        }
    }
}

impl Job {
    fn new(
        new: NewSequence,
        arrives: u64,
        loaded: u64,
        cancelled: Option<u64>,
        adapter: Option<StepAdapter>,
        output: usize,
    ) -> Self {
        // The right answer, computed as if it were alone.
        let mut tokens = new.prompt.clone();
        let mut expected = Vec::new();
        let mut last = origin(adapter);
        for place in 0..new.prompt.len() + output {
            last = digest(last, tokens[place]);
            expected.push(last);
            if place + 1 >= new.prompt.len() {
                tokens.push(choice(last));
            }
        }
        Self {
            new,
            arrives,
            loaded,
            cancelled,
            adapter,
            output,
            expected,
            tokens,
            generated: 0,
        }
    }

    fn longest(&self) -> usize {
        self.new.prompt.len() + self.output
    }
}

/// A KV cache of digests.
struct Memory(Vec<[u64; BLOCK_TOKENS]>);

impl Memory {
    /// Computes rows of a sequence as a model does: reads all that went before, writes its own.
    fn compute(&mut self, sequence: &Sequence, job: &Job, start: usize, rows: usize, state: &State) {
        let id = sequence.id();
        let blocks = sequence.table().blocks();
        for place in 0..start {
            let found = self.0[blocks[place / BLOCK_TOKENS].0 as usize][place % BLOCK_TOKENS];
            assert_eq!(
                found, job.expected[place],
                "{id:?} reads what is not its own at {place}"
            );
        }
        let mut last = start
            .checked_sub(1)
            .map_or(origin(sequence.adapter()), |before| job.expected[before]);
        for place in start..start + rows {
            let block = blocks[place / BLOCK_TOKENS];
            assert_eq!(
                state.pool().users(block),
                1,
                "{id:?} writes to a block that others read"
            );
            last = digest(last, sequence.tokens()[place]);
            self.0[block.0 as usize][place % BLOCK_TOKENS] = last;
        }
    }
}

/// What happened in the workloads: proof that they were hard enough.
#[derive(Debug, Default)]
struct Tally {
    steps: u64,
    finished: u64,
    preempted: u64,
    by_priority: u64,
    refused: u64,
    reused: u64,
    aged: u64,
    turns: u64,
    failed: u64,
}

struct Simulation {
    state: State,
    memory: Memory,
    jobs: BTreeMap<u64, Job>,
    limits: Limits,
    /// The step in which each aged sequence that waits must have started.
    deadlines: HashMap<SequenceId, u64>,
    tally: Tally,
}

impl Simulation {
    /// Runs a workload to its end.
    fn run(seed: u64) -> Tally {
        let mut random = Random(seed);
        let workload = Workload::draw(&mut random);
        let state = State::new(workload.limits, workload.kv_blocks);
        let mut simulation = Self {
            memory: Memory(vec![[0; BLOCK_TOKENS]; workload.kv_blocks]),
            limits: state.limits,
            state,
            jobs: workload.jobs,
            deadlines: HashMap::new(),
            tally: Tally::default(),
        };
        let last_event = simulation
            .jobs
            .values()
            .map(|job| job.loaded.max(job.arrives))
            .max()
            .unwrap_or(0);
        let patience = last_event + 1 + simulation.bound(simulation.jobs.keys().copied().map(SequenceId));
        let mut tick = 0;
        while !simulation.jobs.is_empty() {
            assert!(tick <= patience, "no end after {tick} steps");
            simulation.events(tick);
            let fails = workload.fails.is_some_and(|n| random.one_in(n));
            simulation.step(fails);
            tick += 1;
        }
        let state = &simulation.state;
        assert_eq!(
            (state.pool().used(), state.running_count(), state.waiting_count()),
            (0, 0, 0)
        );
        assert_eq!(state.accounts.sequences(), 0);
        simulation.tally
    }

    /// What comes from outside.
    fn events(&mut self, tick: u64) {
        for job in self.jobs.values() {
            if job.arrives == tick {
                self.state.insert(job.new.clone());
            }
            if let (AdapterNeed::Loading, Some(adapter)) = (job.new.adapter, job.adapter)
                && job.loaded == tick
            {
                self.state.adapter_ready(job.new.id, adapter);
            }
        }
        let cancelled: Vec<u64> = self
            .jobs
            .iter()
            .filter(|(_, job)| job.cancelled == Some(tick))
            .map(|(&id, _)| id)
            .collect();
        for id in cancelled {
            self.end(SequenceId(id));
        }
    }

    fn end(&mut self, id: SequenceId) {
        assert!(self.state.remove(id), "{id:?} is gone");
        self.jobs.remove(&id.0);
        self.deadlines.remove(&id);
    }

    fn step(&mut self, fails: bool) {
        let could_start = self.could_start();
        let ran: Vec<SequenceId> = self.state.running.iter().map(Sequence::id).collect();
        let plan = plan(&mut self.state);
        self.check_limits(&plan);
        self.check_order(&plan, &could_start);
        self.check_bound();
        self.tally.steps += 1;
        self.tally.preempted += plan.preempted.len() as u64;
        self.tally.by_priority +=
            u64::from(plan.preempted.iter().any(|id| ran.contains(id)) && !plan.admitted.is_empty());
        self.tally.reused += plan
            .admitted
            .iter()
            .map(|admitted| admitted.reused as u64)
            .sum::<u64>();
        for id in &plan.refused {
            let job = self
                .jobs
                .remove(&id.0)
                .expect("a sequence that is refused was there");
            let blocks = self.state.pool().len();
            assert!(job.longest() > blocks * BLOCK_TOKENS, "{id:?} would have fitted");
            self.tally.refused += 1;
            self.deadlines.remove(id);
        }
        if fails {
            self.tally.failed += 1;
            for span in &plan.spans {
                self.end(span.sequence);
            }
        } else {
            self.compute(&plan);
        }
        self.state.check_integrity().unwrap();
    }

    fn compute(&mut self, plan: &StepPlan) {
        for span in &plan.spans {
            let sequence = self
                .state
                .running(span.sequence)
                .expect("a planned sequence runs");
            self.memory.compute(
                sequence,
                &self.jobs[&span.sequence.0],
                span.start,
                span.rows,
                &self.state,
            );
        }
        self.state.settle(plan);
        for span in plan.spans.iter().filter(|span| span.complete) {
            let job = self
                .jobs
                .get_mut(&span.sequence.0)
                .expect("a planned sequence was asked for");
            if job.generated == job.output {
                self.end(span.sequence);
                self.tally.finished += 1;
            } else {
                let token = job.tokens[span.start + span.rows];
                job.generated += 1;
                self.state.push(span.sequence, token);
            }
        }
    }

    /// Those that wait and could run, with their place in the order of the coming step. What their tenants were served is
    /// left out: it moves while sequences start.
    fn could_start(&self) -> Vec<(SequenceId, Seniority)> {
        let ready = self
            .state
            .waiting
            .iter()
            .filter(|sequence| sequence.after.is_none());
        ready
            .map(|sequence| (sequence.id, self.seniority(sequence, self.state.step + 1)))
            .collect()
    }

    fn seniority(&self, sequence: &Sequence, step: u64) -> Seniority {
        sequence.seniority(step, self.limits.ageing_steps, 0)
    }

    fn check_limits(&mut self, plan: &StepPlan) {
        let rows: usize = plan.spans.iter().map(|span| span.rows).sum();
        assert!(rows <= self.limits.step_tokens, "{rows} rows");
        let mut adapters: Vec<StepAdapter> = Vec::new();
        for span in &plan.spans {
            let sequence = self
                .state
                .running(span.sequence)
                .expect("a planned sequence runs");
            assert_eq!(span.start, sequence.computed());
            assert!(span.rows >= 1 && span.rows <= sequence.chunk);
            assert!(sequence.table().capacity() >= span.start + span.rows);
            adapters.extend(sequence.adapter().filter(|adapter| !adapters.contains(adapter)));
        }
        let bytes: usize = adapters.iter().map(|adapter| adapter.bytes).sum();
        assert!(
            bytes <= self.limits.step_adapter_bytes || adapters.len() == 1,
            "{bytes} bytes of adapters"
        );
        let running = self.state.running.iter().filter_map(|sequence| sequence.adapter);
        self.tally.turns += u64::from(running.into_iter().any(|adapter| !adapters.contains(&adapter)));
        if plan.spans.is_empty() {
            assert_eq!(
                self.state.running_count(),
                0,
                "sequences run and nothing is computed"
            );
            assert!(
                self.state.waiting.iter().all(|sequence| sequence.after.is_some()),
                "nobody starts"
            );
        }
    }

    /// Nobody starts before one that could and has aged earlier or is of higher priority.
    fn check_order(&self, plan: &StepPlan, could_start: &[(SequenceId, Seniority)]) {
        let class = |seniority: &Seniority| {
            (
                seniority.young,
                seniority.priority,
                if seniority.young { 0 } else { seniority.arrival },
            )
        };
        let admitted: Vec<SequenceId> = plan.admitted.iter().map(|admitted| admitted.sequence).collect();
        let (started, left): (Vec<_>, Vec<_>) = could_start
            .iter()
            .filter(|(id, _)| !plan.refused.contains(id))
            .partition(|(id, _)| admitted.contains(id));
        for (started, its) in &started {
            for (left, other) in &left {
                assert!(class(its) <= class(other), "{started:?} started before {left:?}");
            }
        }
        // And nobody is preempted while one of a lower class runs on.
        for running in &self.state.running {
            for lost in self
                .state
                .waiting
                .iter()
                .filter(|waiting| plan.preempted.contains(&waiting.id))
            {
                let step = self.state.step;
                let (its, other) = (self.seniority(running, step), self.seniority(lost, step));
                assert!(class(&its) <= class(&other), "{:?} lost its place", lost.id);
            }
        }
    }

    /// Every aged sequence starts within the bound that the module states.
    fn check_bound(&mut self) {
        let step = self.state.step;
        let waiting = &self.state.waiting;
        self.deadlines
            .retain(|id, _| waiting.iter().any(|sequence| sequence.id == *id));
        for sequence in self
            .state
            .waiting
            .iter()
            .filter(|sequence| sequence.after.is_none())
        {
            if let Some(&deadline) = self.deadlines.get(&sequence.id) {
                assert!(step <= deadline, "{:?} has waited beyond the bound", sequence.id);
            } else if self.state.is_aged(sequence) {
                let own = self.order_of(sequence.id);
                let running = self.state.running.iter().map(Sequence::id);
                let earlier = self
                    .jobs
                    .values()
                    .map(|job| job.new.id)
                    .filter(|&id| self.order_of(id) < own);
                let ahead: HashSet<SequenceId> = running.chain(earlier).collect();
                self.deadlines
                    .insert(sequence.id, step + self.bound(ahead.into_iter()));
                self.tally.aged += 1;
            }
        }
    }

    /// A number that grows with arrival.
    fn order_of(&self, id: SequenceId) -> (u64, SequenceId) {
        (self.jobs[&id.0].arrives, id)
    }

    /// `G * sum of (N(s) + 1 + 4 * ceil(C / c))` over these.
    fn bound(&self, ids: impl Iterator<Item = SequenceId>) -> u64 {
        let ahead: Vec<&Job> = ids.map(|id| &self.jobs[&id.0]).collect();
        let longest = ahead.iter().map(|job| job.longest()).max().unwrap_or(0);
        let guaranteed = self.limits.step_tokens - self.limits.max_running + 1;
        let chunk = ahead
            .iter()
            .map(|job| job.new.chunk)
            .min()
            .unwrap_or(1)
            .min(guaranteed);
        let adapters: BTreeMap<Generation, usize> = ahead
            .iter()
            .filter_map(|job| job.adapter)
            .map(|adapter| (adapter.generation, adapter.bytes))
            .collect();
        let fit = adapters.values().sum::<usize>() <= self.limits.step_adapter_bytes;
        let turn = if fit { 1 } else { adapters.len() };
        let turns: usize = ahead
            .iter()
            .map(|job| job.output - job.generated + 1 + 4 * longest.div_ceil(chunk))
            .sum();
        (turn * turns) as u64
    }
}

/// Names the workload when it fails.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the workload of HEDDLE_SEED={} failed", self.0);
        }
    }
}

#[test]
fn every_workload_ends_in_bounds_and_loses_nothing() {
    if let Some(seed) = std::env::var("HEDDLE_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
    {
        println!("{:?}", Simulation::run(seed));
        return;
    }
    let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let run = |thread: u64| {
        let seeds = (thread..WORKLOADS).step_by(threads as usize);
        seeds
            .map(|seed| {
                let _named = Named(seed);
                Simulation::run(seed)
            })
            .fold(Tally::default(), Tally::plus)
    };
    let tally = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || run(thread)))
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().expect("a workload failed"))
            .fold(Tally::default(), Tally::plus)
    });
    println!("{tally:?}");
    // Not one of the rules may have gone untried.
    for (what, count) in [
        ("preemptions", tally.preempted),
        ("preemptions for a higher priority", tally.by_priority),
        ("refusals", tally.refused),
        ("reused positions", tally.reused),
        ("aged waits", tally.aged),
        ("adapters that took turns", tally.turns),
        ("failed steps", tally.failed),
    ] {
        assert!(count > WORKLOADS / 100, "only {count} {what}");
    }
    assert!(tally.finished > WORKLOADS);
}

impl Tally {
    fn plus(self, other: Self) -> Self {
        Self {
            steps: self.steps + other.steps,
            finished: self.finished + other.finished,
            preempted: self.preempted + other.preempted,
            by_priority: self.by_priority + other.by_priority,
            refused: self.refused + other.refused,
            reused: self.reused + other.reused,
            aged: self.aged + other.aged,
            turns: self.turns + other.turns,
            failed: self.failed + other.failed,
        }
    }
}
