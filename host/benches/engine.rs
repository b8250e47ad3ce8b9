//! What a step of the engine costs, beside what the machine's memory allows.
//!
//! `cargo bench --bench engine -- [MODEL] [--threads N] [--kernels NAME] [--dtype f32|bf16] [--reference] [--only CASE]`. MODEL is a
//! folder, a GGUF file or a name of the catalogue; SmolLM2 unless said otherwise. Everything is run in turn, five times over, with
//! the machine's read bandwidth measured in each turn, and the medians are shown.
//!
//! Decoding reads every weight once for each step, and every adapter of the step once. So the *byte roofline* of a step
//! is `bytes read / bandwidth`, and that of a step with adapters, beside the one without, is `base / (base + adapters)`.

// A benchmark that cannot run fails by panicking.
#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    hint::black_box,
    path::Path,
    time::{Duration, Instant},
};

use heddle_engine::{
    adapter::{LoraPair, LoraSite, LoraWeights},
    backend::cpu::{CpuOptions, Dtype},
    batch::{Batch, DeviceAdapter, LogitRows, Runner, Span},
    hub::{Files, Silent, Sources, SourcesConfig, catalogue},
    ids::{BLOCK_TOKENS, BlockId, Generation, TokenId},
    model::{BackendChoice, LoadOptions, LoadedRunner, Module, load_runner},
};

/// Turns; the medians over them are shown.
const TURNS: usize = 5;
/// Positions before a decode step.
const CONTEXT: usize = 128;
/// Rows of a prefill step.
const PREFILL: usize = 512;
/// Rows of a decode step of many.
const ROWS: usize = 16;
/// Ranks of the adapters.
const RANK: usize = 16;

struct Arguments {
    model: String,
    cpu: CpuOptions,
    reference: bool,
    only: Option<String>,
}

fn main() {
    let arguments = arguments();
    let files = files(&arguments.model);
    let choice = match arguments.reference {
        true => BackendChoice::Reference,
        false => BackendChoice::Cpu(arguments.cpu.clone()),
    };
    let options = LoadOptions {
        backend: choice,
        kv_bytes: 512 << 20,
        context: None,
    };
    let started = Instant::now();
    let mut model = load_runner(&files, &options).unwrap();
    let bytes = bytes_of(&files) as usize;
    println!(
        "{}: {:.1} MB, on {}, loaded in {:.2} s",
        arguments.model,
        bytes as f64 / 1e6,
        model.device,
        started.elapsed().as_secs_f64()
    );
    let modules = model.config.modules();
    let adapters: Vec<_> = (0..ROWS as u8)
        .map(|seed| place(&model, &modules, seed))
        .collect();
    let threads = arguments.cpu.threads.unwrap_or_else(num_cpus::get_physical);
    let mut times = Times::default();
    for _ in 0..TURNS {
        let runner = &mut *model.runner;
        let mut measure = |name, measure: &mut dyn FnMut() -> f64| {
            if arguments.only.as_deref().is_none_or(|only| only == name) {
                times.add(name, measure());
            }
        };
        measure("bandwidth", &mut || read_bandwidth(threads));
        measure("one", &mut || decode(runner, 1, &[]));
        measure("sixteen", &mut || decode(runner, ROWS, &[]));
        measure("adapters", &mut || decode(runner, ROWS, &adapters));
        measure("prefill", &mut || prefill(runner));
    }
    report(
        &times,
        threads,
        bytes,
        adapters.iter().map(|adapter| adapter.bytes).sum(),
    );
}

/// Prints the cases that were run.
fn report(times: &Times, threads: usize, bytes: usize, adapter_bytes: usize) {
    let bandwidth = times.median("bandwidth");
    if let Some(bandwidth) = bandwidth {
        println!("read bandwidth, {threads} threads   {:8.1} GB/s", bandwidth / 1e9);
    }
    let row = |what: &str, rows: usize, case: &str, bytes: usize| {
        let Some(seconds) = times.median(case) else { return };
        print!(
            "{what:30} {:8.1} tokens/s  {:8.2} ms a step",
            rows as f64 / seconds,
            seconds * 1e3
        );
        match bandwidth {
            Some(bandwidth) if bytes > 0 => {
                println!(
                    "  {:5.1} % of the byte roofline",
                    100.0 * bytes as f64 / bandwidth / seconds
                );
            }
            _ => println!(),
        }
    };
    row("decode, 1 row", 1, "one", bytes);
    row("decode, 16 rows", ROWS, "sixteen", bytes);
    row(
        "decode, 16 adapters of rank 16",
        ROWS,
        "adapters",
        bytes + adapter_bytes,
    );
    if let (Some(base), Some(with)) = (times.median("sixteen"), times.median("adapters")) {
        let allowed = bytes as f64 / (bytes + adapter_bytes) as f64;
        println!(
            "  beside the base: {:.1} % of its speed; bytes allow {:.1} %: {:.1} % of that",
            100.0 * base / with,
            100.0 * allowed,
            100.0 * base / with / allowed
        );
    }
    row("prefill, 512 rows", PREFILL, "prefill", 0);
}

fn arguments() -> Arguments {
    let mut arguments = Arguments {
        model: catalogue::DEFAULT.to_owned(),
        cpu: CpuOptions::default(),
        reference: false,
        only: None,
    };
    let mut given = std::env::args().skip(1);
    while let Some(argument) = given.next() {
        let mut value = || given.next().unwrap_or_else(|| panic!("{argument} takes a value"));
        match argument.as_str() {
            // What cargo adds.
            "--bench" => {}
            "--threads" => arguments.cpu.threads = Some(value().parse().expect("a number of threads")),
            "--kernels" => arguments.cpu.kernels = Some(value()),
            "--dtype" => {
                arguments.cpu.dtype = match value().as_str() {
                    "f32" => Dtype::F32,
                    "bf16" => Dtype::Bf16,
                    other => panic!("--dtype is f32 or bf16, not {other}"),
                }
            }
            "--only" => arguments.only = Some(value()),
            "--reference" => arguments.reference = true,
            model if !model.starts_with("--") => model.clone_into(&mut arguments.model),
            other => panic!("unknown argument {other}"),
        }
    }
    arguments
}

fn files(model: &str) -> Files {
    if catalogue::find(model).is_some() {
        let sources = Sources::new(SourcesConfig::from_env()).unwrap();
        return sources.fetch_catalogue(model, &Silent).unwrap().files;
    }
    match model.ends_with(".gguf") {
        true => Files::Gguf(model.into()),
        false => Files::Folder(model.into()),
    }
}

/// Bytes of the weights as the files have them.
fn bytes_of(files: &Files) -> u64 {
    let size = |path: &Path| std::fs::metadata(path).unwrap().len();
    match files {
        Files::Gguf(path) => size(path),
        Files::Folder(folder) => std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|ext| ext == "safetensors"))
            .map(|path| size(&path))
            .sum(),
        Files::Embedded(set) => set
            .files
            .iter()
            .filter(|(name, _)| name.ends_with(".safetensors"))
            .map(|(_, bytes)| bytes.len() as u64)
            .sum(),
    }
}

/// Samples by name.
#[derive(Default)]
struct Times(BTreeMap<&'static str, Vec<f64>>);

impl Times {
    fn add(&mut self, name: &'static str, sample: f64) {
        self.0.entry(name).or_default().push(sample);
    }

    fn median(&self, name: &str) -> Option<f64> {
        let mut samples = self.0.get(name)?.clone();
        samples.sort_by(f64::total_cmp);
        Some(samples[samples.len() / 2])
    }
}

/// An adapter of rank 16 on every linear map of the layers.
fn place(model: &LoadedRunner, modules: &[Module], seed: u8) -> DeviceAdapter {
    let mut pairs = BTreeMap::new();
    for module in modules {
        for (site, rows) in &module.parts {
            if matches!(site, LoraSite::Layer(..)) {
                let number = |i: usize| ((i * 31 + usize::from(seed)) % 17) as f32 / 1000.0 - 0.008;
                let pair = LoraPair {
                    rank: RANK,
                    in_features: module.in_features,
                    out_features: rows.len(),
                    scale: 1.0,
                    a: (0..RANK * module.in_features).map(number).collect(),
                    b: (0..RANK * rows.len()).map(number).collect(),
                };
                pairs.insert(*site, pair);
            }
        }
    }
    let weights = LoraWeights {
        generation: Generation([seed; 32]),
        pairs,
        lm_head: None,
    };
    model.runner.adapter_loader().load(&weights).unwrap()
}

/// Seconds of a step that decodes so many rows, each with an adapter of its own if there are any.
fn decode(runner: &mut dyn Runner, rows: usize, adapters: &[DeviceAdapter]) -> f64 {
    let blocks = (CONTEXT + 1).div_ceil(BLOCK_TOKENS);
    let batch = Batch {
        tokens: (0..rows as u32).map(|row| TokenId(100 + row)).collect(),
        spans: (0..rows)
            .map(|row| Span {
                rows: row..row + 1,
                start: CONTEXT,
                blocks: (0..blocks)
                    .map(|block| BlockId((row * blocks + block) as u32))
                    .collect(),
                adapter: adapters.get(row).cloned(),
                logits: LogitRows::Last,
            })
            .collect(),
    };
    seconds(runner, &batch)
}

/// Seconds of a step that takes a prompt in.
fn prefill(runner: &mut dyn Runner) -> f64 {
    let batch = Batch {
        tokens: (0..PREFILL as u32).map(|row| TokenId(100 + row)).collect(),
        spans: vec![Span {
            rows: 0..PREFILL,
            start: 0,
            blocks: (0..PREFILL.div_ceil(BLOCK_TOKENS) as u32).map(BlockId).collect(),
            adapter: None,
            logits: LogitRows::Last,
        }],
    };
    seconds(runner, &batch)
}

/// The median of as many runs as fit in a second, three at least, after one.
fn seconds(runner: &mut dyn Runner, batch: &Batch) -> f64 {
    let mut step = || {
        let logits = black_box(runner.forward(black_box(batch)).unwrap());
        runner.recycle(logits);
    };
    step();
    let mut samples = Vec::new();
    let began = Instant::now();
    while samples.len() < 3 || began.elapsed() < Duration::from_secs(1) {
        let begin = Instant::now();
        step();
        samples.push(begin.elapsed().as_secs_f64());
    }
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// Bytes a second that so many threads read from memory, by the best of three passes.
fn read_bandwidth(threads: usize) -> f64 {
    /// For each thread: more than any cache.
    const WORDS: usize = 16 << 20;
    let data: Vec<Vec<u64>> = (0..threads).map(|_| vec![1; WORDS]).collect();
    let pass = || {
        let began = Instant::now();
        std::thread::scope(|scope| {
            for part in &data {
                scope.spawn(|| {
                    let (chunks, _) = part.as_chunks::<64>();
                    let mut sums = [0u64; 64];
                    for chunk in chunks {
                        for (sum, word) in sums.iter_mut().zip(chunk) {
                            *sum ^= word;
                        }
                    }
                    black_box(sums);
                });
            }
        });
        (threads * WORDS * size_of::<u64>()) as f64 / began.elapsed().as_secs_f64()
    };
    (0..3).map(|_| pass()).fold(0.0, f64::max)
}
