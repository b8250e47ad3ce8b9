//! Drives a runner as the step loop does: sequences with paged blocks, prefill in chunks, decode.

use std::path::{Path, PathBuf};

use heddle_engine::{
    adapter::{LoraWeights, peft},
    backend::cpu::{self, CpuOptions, Dtype},
    batch::{Batch, DeviceAdapter, LogitRows, Logits, Runner, Span},
    hub::Files,
    ids::{BLOCK_TOKENS, BlockId, TokenId},
    model::{BackendChoice, LoadOptions, LoadedRunner, ModelConfig, load_runner},
};

/// The folder of the fixtures.
pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// The back ends that compute in `f32`: the reference, and the CPU's with every instruction set of this machine.
pub(crate) fn backends() -> Vec<BackendChoice> {
    let on_cpu = |kernels: &str| {
        BackendChoice::Cpu(CpuOptions {
            threads: Some(3),
            kernels: Some(kernels.to_owned()),
            dtype: Dtype::F32,
        })
    };
    let cpu = cpu::kernels().into_iter().map(on_cpu);
    [BackendChoice::Reference].into_iter().chain(cpu).collect()
}

/// A model with the blocks that nobody has.
pub(crate) struct Harness {
    pub(crate) config: ModelConfig,
    runner: Box<dyn Runner>,
    free: Vec<BlockId>,
}

/// A sequence: what of it is in the KV cache, and where.
#[derive(Default)]
pub(crate) struct Sequence {
    adapter: Option<DeviceAdapter>,
    computed: usize,
    blocks: Vec<BlockId>,
}

impl Harness {
    pub(crate) fn open(folder: &Path, backend: &BackendChoice, context: Option<usize>) -> Self {
        let options = LoadOptions {
            backend: backend.clone(),
            kv_bytes: 16 << 20,
            context,
        };
        Self::new(load_runner(&Files::Folder(folder.to_owned()), &options).unwrap())
    }

    pub(crate) fn new(model: LoadedRunner) -> Self {
        let blocks = model.runner.kv_blocks().min(256) as u32;
        // Neighbours in a sequence are not neighbours in the cache: the even blocks first, then the odd ones, from the end.
        let free = (0..blocks)
            .filter(|block| block % 2 == 0)
            .chain((0..blocks).filter(|block| block % 2 == 1))
            .map(BlockId)
            .collect();
        Self {
            config: model.config,
            runner: model.runner,
            free,
        }
    }

    /// Reads an adapter of PEFT's format.
    pub(crate) fn read_adapter(&self, folder: &Path) -> heddle_engine::Result<LoraWeights> {
        let name = folder.file_name().unwrap().to_string_lossy();
        peft::load(
            &name,
            &Files::Folder(folder.to_owned()),
            &self.config.modules(),
            512,
        )
    }

    /// Lays an adapter out.
    pub(crate) fn place(&self, weights: &LoraWeights) -> DeviceAdapter {
        self.runner.adapter_loader().load(weights).unwrap()
    }

    /// Runs one step that continues each sequence by some tokens.
    pub(crate) fn step(&mut self, work: &mut [(&mut Sequence, &[u32], LogitRows)]) -> Logits {
        let mut batch = Batch::default();
        for (sequence, tokens, logits) in work.iter_mut() {
            let begin = batch.tokens.len();
            batch.tokens.extend(tokens.iter().copied().map(TokenId));
            let end = sequence.computed + tokens.len();
            while sequence.blocks.len() * BLOCK_TOKENS < end {
                sequence.blocks.push(self.free.pop().unwrap());
            }
            batch.spans.push(Span {
                rows: begin..batch.tokens.len(),
                start: sequence.computed,
                blocks: sequence.blocks.clone(),
                adapter: sequence.adapter.clone(),
                logits: *logits,
            });
            sequence.computed = end;
        }
        self.runner.forward(&batch).unwrap()
    }

    /// Gives a sequence's blocks back.
    pub(crate) fn release(&mut self, sequence: Sequence) {
        self.free.extend(sequence.blocks);
    }

    /// The logits of every position of a text, computed in chunks of these sizes, over and over.
    pub(crate) fn logits(
        &mut self,
        tokens: &[u32],
        adapter: Option<&DeviceAdapter>,
        chunks: &[usize],
    ) -> Vec<Vec<f32>> {
        let mut sequence = Sequence::with(adapter);
        let mut rows = Vec::new();
        let mut sizes = chunks.iter().cycle();
        let mut rest = tokens;
        while !rest.is_empty() {
            let (chunk, after) = rest.split_at(rest.len().min(*sizes.next().unwrap()));
            let logits = self.step(&mut [(&mut sequence, chunk, LogitRows::All)]);
            rows.extend((0..chunk.len()).map(|row| logits.row(row).to_vec()));
            rest = after;
        }
        self.release(sequence);
        rows
    }

    /// Greedy continuation alone: prefill in one step, then decode.
    pub(crate) fn generate(
        &mut self,
        prompt: &[u32],
        adapter: Option<&DeviceAdapter>,
        count: usize,
    ) -> Vec<u32> {
        let mut sequence = Sequence::with(adapter);
        let mut input = prompt.to_vec();
        let mut output = Vec::new();
        while output.len() < count {
            let logits = self.step(&mut [(&mut sequence, &input, LogitRows::Last)]);
            output.push(argmax(logits.row(0)));
            input = vec![output[output.len() - 1]];
        }
        self.release(sequence);
        output
    }
}

impl Sequence {
    pub(crate) fn with(adapter: Option<&DeviceAdapter>) -> Self {
        Self {
            adapter: adapter.cloned(),
            ..Self::default()
        }
    }
}

/// The likeliest token.
pub(crate) fn argmax(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b));
    best.unwrap().0 as u32
}

/// The natural logarithm of a token's probability.
pub(crate) fn log_probability(logits: &[f32], token: u32) -> f32 {
    let highest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let total: f64 = logits
        .iter()
        .map(|logit| (f64::from(*logit) - highest).exp())
        .sum();
    (f64::from(logits[token as usize]) - highest - total.ln()) as f32
}
