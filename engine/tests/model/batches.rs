//! A sequence's result does not depend on what else is in the batch.

use heddle_engine::{backend::cpu::Dtype, batch::LogitRows, ids::TokenId, model::BackendChoice};

use crate::harness::{Harness, Sequence, argmax, backends, fixtures};

/// A cheap sequence of numbers, the same each time (Marsaglia's xorshift).
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

/// Sequences of different lengths, with three adapters of different ranks and sites and without, prefill and decode mixed as the
/// step loop mixes them: every logit equals, bit for bit, that of the sequence computed alone.
#[test]
fn mixed_batches_equal_solo_runs_bit_for_bit() {
    for backend in all_backends() {
        for name in ["llama-gqa-tied", "gemma2", "phi3"] {
            hold_mixed(name, &backend);
        }
    }
}

/// Those in `f32`, and the CPU's in its own numbers.
fn all_backends() -> Vec<BackendChoice> {
    let mut all = backends();
    for backend in &mut backends() {
        if let BackendChoice::Cpu(options) = backend {
            options.dtype = Dtype::Bf16;
            all.push(backend.clone());
        }
    }
    all
}

fn hold_mixed(name: &str, backend: &BackendChoice) {
    let folder = fixtures().join("tiny").join(name);
    let mut model = Harness::open(&folder, backend, None);
    let adapters: Vec<_> = ["a", "b", "c"]
        .iter()
        .map(|adapter| {
            let weights = model
                .read_adapter(&folder.join("adapters").join(adapter))
                .unwrap();
            model.place(&weights)
        })
        .collect();
    let mut numbers = Numbers(0x5eed);
    let texts: Vec<Vec<u32>> = (0..9)
        .map(|_| {
            let len = 1 + numbers.below(50);
            (0..len).map(|_| numbers.below(384) as u32).collect()
        })
        .collect();
    let adapter_of = |index: usize| adapters.get(index % 4);

    let alone: Vec<_> = texts
        .iter()
        .enumerate()
        .map(|(index, text)| model.logits(text, adapter_of(index), &[text.len()]))
        .collect();

    let mut sequences: Vec<_> = (0..texts.len())
        .map(|index| Sequence::with(adapter_of(index)))
        .collect();
    let mut done = vec![0; texts.len()];
    while done.iter().zip(&texts).any(|(done, text)| *done < text.len()) {
        let mut work = Vec::new();
        let mut expected = Vec::new();
        for (index, sequence) in sequences.iter_mut().enumerate() {
            // Some sequences rest in a step, the others get one token or a chunk.
            let (left, take) = (texts[index].len() - done[index], numbers.below(12));
            if left == 0 || take == 0 {
                continue;
            }
            let take = if take > 6 { 1 } else { take.min(left) };
            let rows = done[index]..done[index] + take;
            done[index] = rows.end;
            let (logits, wanted) = match numbers.below(3) {
                0 => (LogitRows::None, rows.end..rows.end),
                1 => (LogitRows::Last, rows.end - 1..rows.end),
                _ => (LogitRows::All, rows.clone()),
            };
            expected.extend(wanted.map(|row| &alone[index][row]));
            work.push((sequence, &texts[index][rows], logits));
        }
        let logits = model.step(&mut work);
        assert_eq!(logits.data.len(), expected.len() * logits.vocab);
        for (row, expected) in expected.iter().enumerate() {
            assert!(
                logits.row(row) == expected.as_slice(),
                "{name} on {backend:?}: a row differs from its solo run"
            );
        }
    }
    sequences.into_iter().for_each(|sequence| model.release(sequence));
}

/// Sixteen greedy answers of one batch, four adapters among them, are the ones that each prompt gets alone.
#[test]
fn greedy_answers_are_the_same_in_company() {
    for backend in all_backends() {
        hold_greedy(&backend);
    }
}

fn hold_greedy(backend: &BackendChoice) {
    let folder = fixtures().join("tiny/llama");
    let mut model = Harness::open(&folder, backend, None);
    let adapters: Vec<_> = ["a", "b", "embed", "lm_head", "modules_to_save"]
        .iter()
        .map(|adapter| {
            let weights = model
                .read_adapter(&folder.join("adapters").join(adapter))
                .unwrap();
            model.place(&weights)
        })
        .collect();
    let mut numbers = Numbers(0xc10d);
    let prompts: Vec<Vec<u32>> = (0..16)
        .map(|index| (0..=index).map(|_| numbers.below(384) as u32).collect())
        .collect();
    let adapter_of = |index: usize| adapters.get(index % 6);
    let alone: Vec<_> = prompts
        .iter()
        .enumerate()
        .map(|(index, prompt)| model.generate(prompt, adapter_of(index), 12))
        .collect();

    let mut sequences: Vec<_> = (0..16).map(|index| Sequence::with(adapter_of(index))).collect();
    let mut inputs = prompts;
    let mut answers = vec![Vec::new(); 16];
    for _ in 0..12 {
        let mut work: Vec<_> = sequences
            .iter_mut()
            .zip(&inputs)
            .map(|(sequence, input)| (sequence, input.as_slice(), LogitRows::Last))
            .collect();
        let logits = model.step(&mut work);
        for (index, answer) in answers.iter_mut().enumerate() {
            let token = TokenId(argmax(logits.row(index)));
            answer.push(token.0);
            inputs[index] = vec![token.0];
        }
    }
    assert_eq!(answers, alone);
    let distinct: std::collections::BTreeSet<_> = alone.iter().collect();
    assert!(
        distinct.len() > 8,
        "the adapters and prompts make no difference: {alone:?}"
    );
}
