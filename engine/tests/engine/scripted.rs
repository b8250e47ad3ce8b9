//! A model that is a hash function: its logits at a position depend on every token up to it, as they are found in the
//! blocks of the KV cache, and on the adapter.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex},
};

use heddle_engine::{
    Error, Result,
    adapter::LoraWeights,
    batch::{AdapterLoader, Batch, DeviceAdapter, LogitRows, Logits, Runner},
    ids::{BLOCK_TOKENS, Generation, TokenId},
};

use super::harness::PATIENCE;

pub(crate) struct Scripted {
    vocab: usize,
    cells: Vec<[u64; BLOCK_TOKENS]>,
    script: Arc<Script>,
}

/// What a test does to the model while it runs, and what it sees of it.
#[derive(Default)]
pub(crate) struct Script {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    /// Steps from this one on wait, if any do.
    hold_at: Option<usize>,
    /// Steps that have begun.
    begun: usize,
    /// What becomes of the steps to come, the next one last.
    failures: Vec<Option<Failure>>,
    /// Tokens that are by far the likeliest after so many positions.
    forced: HashMap<usize, TokenId>,
    seen: Vec<Step>,
    /// The thread that steps, as `/proc` knows it.
    thread: Option<PathBuf>,
}

/// How a step goes wrong.
#[derive(Clone, Copy)]
pub(crate) enum Failure {
    Error,
    Panic,
    /// Fewer logits than were asked for.
    Short,
    /// Logits that are no numbers.
    NotNumbers,
}

/// A step as the model saw it.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) rows: usize,
    /// Distinct adapters.
    pub(crate) adapters: usize,
}

impl Script {
    /// Lets no step begin to compute until [`Script::go_on`].
    pub(crate) fn hold(&self) {
        self.hold_at(1);
    }

    /// The same from the step of that number on, the first one being 1.
    pub(crate) fn hold_at(&self, step: usize) {
        self.inner.lock().unwrap().hold_at = Some(step);
        self.changed.notify_all();
    }

    pub(crate) fn go_on(&self) {
        self.inner.lock().unwrap().hold_at = None;
        self.changed.notify_all();
    }

    /// Waits until so many steps have begun since the start.
    pub(crate) fn wait_for_step(&self, count: usize) {
        let inner = self.inner.lock().unwrap();
        let (inner, waited) = self
            .changed
            .wait_timeout_while(inner, PATIENCE, |inner| inner.begun < count)
            .unwrap();
        assert!(
            !waited.timed_out(),
            "step {count} never began, {} did",
            inner.begun
        );
    }

    /// Makes the next steps fail, one each, where something is said of them.
    pub(crate) fn fail(&self, failures: &[Option<Failure>]) {
        self.inner.lock().unwrap().failures = failures.iter().rev().copied().collect();
    }

    /// Makes a token the likeliest after so many positions.
    pub(crate) fn force(&self, position: usize, token: TokenId) {
        self.inner.lock().unwrap().forced.insert(position, token);
    }

    /// Clock ticks that the stepping thread has computed for, where the system tells.
    pub(crate) fn ticks(&self) -> Option<u64> {
        let thread = self.inner.lock().unwrap().thread.clone()?;
        let stat = std::fs::read_to_string(Path::new("/proc").join(thread).join("stat")).ok()?;
        // proc(5): the name ends with the last parenthesis; user and system time are fields 14 and 15.
        let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
        Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
    }

    pub(crate) fn seen(&self) -> Vec<Step> {
        self.inner.lock().unwrap().seen.clone()
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// What stands for the keys and values of a position.
fn cell(token: TokenId, position: usize, adapter: Option<Generation>) -> u64 {
    let adapter = adapter.map_or(0, |generation| {
        u64::from_le_bytes(generation.0[..8].try_into().unwrap())
    });
    mix(u64::from(token.0) + 1).wrapping_add(mix(position as u64).wrapping_mul(3)) ^ mix(adapter)
}

/// Attention over all positions so far.
fn attend(cells: impl Iterator<Item = u64>) -> u64 {
    cells.fold(0, |sum, cell| mix(sum.rotate_left(7) ^ cell))
}

fn logits(state: u64, vocab: usize) -> impl Iterator<Item = f32> {
    (0..vocab as u64).map(move |token| (mix(state ^ mix(token + 99)) >> 40) as f32 / (1 << 21) as f32)
}

/// The logits after a text, computed without blocks, steps or batches: what the engine must come to.
pub(crate) fn logits_after(tokens: &[TokenId], adapter: Option<Generation>, vocab: usize) -> Vec<f32> {
    let cells = tokens
        .iter()
        .enumerate()
        .map(|(position, &token)| cell(token, position, adapter));
    logits(attend(cells), vocab).collect()
}

/// The greedy continuation of a prompt.
pub(crate) fn greedy(
    prompt: &[TokenId],
    count: usize,
    adapter: Option<Generation>,
    vocab: usize,
) -> Vec<TokenId> {
    let mut tokens = prompt.to_vec();
    for _ in 0..count {
        let logits = logits_after(&tokens, adapter, vocab);
        // The first of equals, as the sampler has it.
        let best = (0..vocab)
            .rev()
            .max_by(|&a, &b| logits[a].total_cmp(&logits[b]))
            .unwrap();
        tokens.push(TokenId(best as u32));
    }
    tokens.split_off(prompt.len())
}

impl Scripted {
    pub(crate) fn new(vocab: usize, blocks: usize, script: Arc<Script>) -> Self {
        Self {
            vocab,
            cells: vec![[0; BLOCK_TOKENS]; blocks],
            script,
        }
    }

    fn begin(&self, batch: &Batch) -> (Option<Failure>, HashMap<usize, TokenId>) {
        let mut inner = self.script.inner.lock().unwrap();
        inner.begun += 1;
        inner.thread = std::fs::read_link("/proc/thread-self").ok();
        self.script.changed.notify_all();
        let held = |inner: &mut Inner| inner.hold_at.is_some_and(|step| inner.begun >= step);
        let mut inner = self.script.changed.wait_while(inner, held).unwrap();
        let mut adapters: Vec<_> = batch
            .spans
            .iter()
            .filter_map(|span| span.adapter.as_ref())
            .map(|adapter| adapter.generation)
            .collect();
        adapters.sort_unstable();
        adapters.dedup();
        inner.seen.push(Step {
            rows: batch.tokens.len(),
            adapters: adapters.len(),
        });
        (inner.failures.pop().flatten(), inner.forced.clone())
    }
}

impl Runner for Scripted {
    fn forward(&mut self, batch: &Batch) -> Result<Logits> {
        let (failure, forced) = self.begin(batch);
        match failure {
            Some(Failure::Error) => {
                return Err(Error::Backend {
                    backend: "scripted",
                    reason: "as the script says".to_owned(),
                });
            }
            Some(Failure::Panic) => panic!("as the script says"),
            _ => {}
        }
        let mut data = Vec::new();
        for span in &batch.spans {
            let adapter = span.adapter.as_ref().map(|adapter| adapter.generation);
            let place = |position: usize| {
                (
                    span.blocks[position / BLOCK_TOKENS].0 as usize,
                    position % BLOCK_TOKENS,
                )
            };
            for (position, row) in (span.start..).zip(span.rows.clone()) {
                let (block, offset) = place(position);
                self.cells[block][offset] = cell(batch.tokens[row], position, adapter);
                let wanted = match span.logits {
                    LogitRows::None => false,
                    LogitRows::Last => row + 1 == span.rows.end,
                    LogitRows::All => true,
                };
                if wanted {
                    let cells = (0..=position).map(|position| {
                        let (block, offset) = place(position);
                        self.cells[block][offset]
                    });
                    let first = data.len();
                    data.extend(logits(attend(cells), self.vocab));
                    if let Some(token) = forced.get(&(position + 1)) {
                        data[first + token.0 as usize] = 100.0;
                    }
                }
            }
        }
        match failure {
            Some(Failure::Short) => data.truncate(data.len() / 2),
            Some(Failure::NotNumbers) => data.fill(f32::NAN),
            _ => {}
        }
        Ok(Logits {
            data,
            vocab: self.vocab,
        })
    }

    fn kv_blocks(&self) -> usize {
        self.cells.len()
    }

    fn adapter_loader(&self) -> Arc<dyn AdapterLoader> {
        Arc::new(Loader)
    }
}

/// An adapter is its identity, and takes 1000 bytes.
struct Loader;

impl AdapterLoader for Loader {
    fn load(&self, weights: &LoraWeights) -> Result<DeviceAdapter> {
        Ok(DeviceAdapter {
            generation: weights.generation,
            bytes: 1000,
            inner: Arc::new(()),
        })
    }
}
