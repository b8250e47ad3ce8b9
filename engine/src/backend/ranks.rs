//! LoRA of every kind of rank against the dense product, through any back end's own operations.

use std::collections::BTreeMap;

use super::{
    Backend, HeadSpec, HeadWeight, HostTensor, LinearPart, LinearSpec, RowOrder, Step, StepLimits,
    cpu::{self, Cpu, CpuOptions},
    reference::Reference,
};
use crate::{
    adapter::{LoraPair, LoraSite, LoraWeights, Projection},
    batch::{Batch, LogitRows, Span},
    ids::{BlockId, Generation, TokenId},
    model::ModelConfig,
};
use candle_core::quantized::GgmlDType;

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

const RANKS: [usize; 12] = [1, 2, 3, 7, 8, 16, 31, 64, 100, 128, 200, 256];
const Q: LoraSite = LoraSite::Layer(0, Projection::Q);
const V: LoraSite = LoraSite::Layer(0, Projection::V);

/// A matrix of numbers in -1..1.
struct Matrix {
    rows: usize,
    cols: usize,
    data: Vec<f32>,
}

impl Matrix {
    fn random(numbers: &mut Numbers, rows: usize, cols: usize) -> Self {
        let data = (0..rows * cols)
            .map(|_| numbers.below(20_001) as f32 / 10_000.0 - 1.0)
            .collect();
        Self { rows, cols, data }
    }

    fn identity(width: usize) -> Self {
        let data = (0..width * width)
            .map(|i| f32::from(i % (width + 1) == 0))
            .collect();
        Self {
            rows: width,
            cols: width,
            data,
        }
    }

    fn at(&self, row: usize, col: usize) -> f64 {
        f64::from(self.data[row * self.cols + col])
    }

    fn bytes(&self) -> Vec<u8> {
        self.data.iter().flat_map(|x| x.to_le_bytes()).collect()
    }
}

fn tensor<'a>(matrix: &Matrix, bytes: &'a [u8]) -> HostTensor<'a> {
    HostTensor {
        rows: matrix.rows,
        cols: matrix.cols,
        dtype: GgmlDType::F32,
        data: bytes,
        order: RowOrder::Plain,
    }
}

/// One adapter on some of the two projections.
fn adapter(numbers: &mut Numbers, rank: usize, input: usize, sites: &[(LoraSite, usize)]) -> LoraWeights {
    let pairs: BTreeMap<_, _> = sites
        .iter()
        .map(|(site, out)| {
            let pair = LoraPair {
                rank,
                in_features: input,
                out_features: *out,
                scale: 16.0 / rank as f32,
                a: Matrix::random(numbers, rank, input).data,
                b: Matrix::random(numbers, *out, rank).data,
            };
            (*site, pair)
        })
        .collect();
    let mut generation = [0; 32];
    generation[..8].copy_from_slice(&numbers.0.to_le_bytes());
    LoraWeights {
        generation: Generation(generation),
        pairs,
        lm_head: None,
    }
}

/// `x @ (w + scale * b @ a)^T` in f64, for the rows of one projection.
fn dense(x: &Matrix, row: usize, w: &Matrix, pair: Option<&LoraPair>) -> Vec<f64> {
    (0..w.rows)
        .map(|out| {
            (0..w.cols)
                .map(|col| {
                    let delta: f64 = pair.map_or(0.0, |pair| {
                        (0..pair.rank)
                            .map(|r| {
                                f64::from(pair.b[out * pair.rank + r]) * f64::from(pair.a[r * w.cols + col])
                            })
                            .sum::<f64>()
                            * f64::from(pair.scale)
                    });
                    x.at(row, col) * (w.at(out, col) + delta)
                })
                .sum()
        })
        .collect()
}

/// One step of seven rows over two stacked projections: three adapters of different ranks, rows of one adapter
/// that are not neighbours, and rows without.
fn hold_rank<B: Backend>(backend: &mut B, numbers: &mut Numbers, rank: usize) {
    let (input, q_out, v_out) = (
        3 + numbers.below(200),
        5 + numbers.below(120),
        5 + numbers.below(120),
    );
    let rows = 7;
    let x = Matrix::random(numbers, rows, input);
    let (q, v) = (
        Matrix::random(numbers, q_out, input),
        Matrix::random(numbers, v_out, input),
    );
    let other = RANKS[numbers.below(RANKS.len())];
    let adapters = [
        adapter(numbers, rank, input, &[(Q, q_out), (V, v_out)]),
        adapter(numbers, other, input, &[(V, v_out)]),
        adapter(numbers, rank, input, &[(Q, q_out)]),
    ];
    let adapter_of_row = [Some(0), None, Some(1), Some(0), Some(2), None, Some(0)];

    let (x_bytes, q_bytes, v_bytes) = (x.bytes(), q.bytes(), v.bytes());
    let embedding = backend.embedding(&tensor(&x, &x_bytes), 1.0).unwrap();
    let linear = backend
        .linear(LinearSpec {
            in_features: input,
            parts: vec![
                LinearPart {
                    site: Q,
                    out_features: q_out,
                },
                LinearPart {
                    site: V,
                    out_features: v_out,
                },
            ],
            weights: vec![tensor(&q, &q_bytes), tensor(&v, &v_bytes)],
            bias: None,
        })
        .unwrap();
    // The head is how a result comes back to the host.
    let identity = Matrix::identity(q_out + v_out);
    let identity_bytes = identity.bytes();
    let head = backend
        .head(HeadSpec {
            weight: HeadWeight::Own(tensor(&identity, &identity_bytes)),
            soft_cap: None,
        })
        .unwrap();
    let (mut inputs, mut outputs) = (
        backend.buffer(input).unwrap(),
        backend.buffer(q_out + v_out).unwrap(),
    );
    let loader = backend.adapter_loader();
    let placed: Vec<_> = adapters
        .iter()
        .map(|adapter| loader.load(adapter).unwrap())
        .collect();
    let batch = Batch {
        tokens: (0..rows as u32).map(TokenId).collect(),
        spans: (0..rows)
            .map(|row| Span {
                rows: row..row + 1,
                start: 0,
                blocks: vec![BlockId(0)],
                adapter: adapter_of_row[row].map(|index: usize| placed[index].clone()),
                logits: LogitRows::All,
            })
            .collect(),
    };
    let limits = StepLimits {
        vocab: rows,
        context: 1,
        kv_blocks: 1,
    };
    let step = Step::new(&batch, limits).unwrap();
    assert_eq!(step.segments.len(), 3);
    backend
        .run(&step, |backend| {
            backend.embed(&step, &embedding, &mut inputs)?;
            backend.apply_linear(&step, &inputs, &linear, &mut outputs)
        })
        .unwrap();
    let got = backend.logits(&step, &outputs, &head).unwrap();

    for (row, adapter) in adapter_of_row.iter().enumerate() {
        let pairs = adapter.map(|index| &adapters[index].pairs);
        let mut expected = dense(&x, row, &q, pairs.and_then(|pairs| pairs.get(&Q)));
        expected.extend(dense(&x, row, &v, pairs.and_then(|pairs| pairs.get(&V))));
        let size = expected.iter().fold(0.0, |size: f64, y| size.max(y.abs()));
        for (got, expected) in got.row(row).iter().zip(&expected) {
            assert!(
                (f64::from(*got) - expected).abs() <= 1e-4 * size,
                "rank {rank}, row {row}: {got}, expected {expected}"
            );
        }
    }
}

fn hold_ranks(backend: &mut impl Backend) {
    let mut numbers = Numbers(0xab5);
    for rank in RANKS {
        hold_rank(backend, &mut numbers, rank);
    }
}

#[test]
fn every_rank_equals_the_dense_product() {
    let config = br#"{"model_type": "llama", "vocab_size": 8, "hidden_size": 8, "intermediate_size": 8,
        "num_hidden_layers": 1, "num_attention_heads": 1, "max_position_embeddings": 16}"#;
    let config = ModelConfig::from_json(config).unwrap();
    hold_ranks(&mut Reference::new(&config, 1 << 16).unwrap());
    for kernels in cpu::kernels() {
        let options = CpuOptions {
            threads: Some(2),
            kernels: Some(kernels.to_owned()),
            ..CpuOptions::default()
        };
        hold_ranks(&mut Cpu::<f32>::new(&config, 1 << 16, &options).unwrap());
    }
}
