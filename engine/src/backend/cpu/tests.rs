//! Products against the same sum in `f64`, for every storage, instruction set and number of rows.

use candle_core::{
    Device, Tensor,
    quantized::{GgmlDType, QTensor},
};

use super::{
    adapter::LoraRows,
    linear::{Linear, Operands, Part, Scratch},
    matrix::{Matrix, Storage},
    memory::Arena,
    pool::Pool,
    simd::Level,
};
use crate::{
    adapter::LoraSite,
    backend::{HostTensor, RowOrder},
};

/// Numbers in -1..1, the same each time.
fn numbers(seed: usize, count: usize) -> Vec<f32> {
    (0..count)
        .map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.5 - 1.0)
        .collect()
}

struct Weights {
    dtype: GgmlDType,
    data: Vec<u8>,
    outputs: usize,
    inputs: usize,
}

impl Weights {
    fn new(dtype: GgmlDType, outputs: usize, inputs: usize) -> Self {
        let numbers = numbers(outputs, outputs * inputs);
        let data = match dtype {
            GgmlDType::F32 => numbers.iter().flat_map(|x| x.to_le_bytes()).collect(),
            GgmlDType::F16 => numbers
                .iter()
                .flat_map(|x| half::f16::from_f32(*x).to_le_bytes())
                .collect(),
            GgmlDType::BF16 => numbers
                .iter()
                .flat_map(|x| half::bf16::from_f32(*x).to_le_bytes())
                .collect(),
            quantised => {
                let matrix = Tensor::from_vec(numbers, (outputs, inputs), &Device::Cpu).unwrap();
                let quantised = QTensor::quantize(&matrix, quantised).unwrap();
                quantised.data().unwrap().into_owned()
            }
        };
        Self {
            dtype,
            data,
            outputs,
            inputs,
        }
    }

    fn tensor(&self) -> HostTensor<'_> {
        HostTensor {
            rows: self.outputs,
            cols: self.inputs,
            dtype: self.dtype,
            data: &self.data,
            order: RowOrder::Plain,
        }
    }
}

/// The product of so many rows.
fn product(level: Level, matrix: Matrix, rows: usize, x: &[f32]) -> Vec<f32> {
    let (inputs, outputs) = (matrix.inputs, matrix.outputs);
    let part = Part::new(LoraSite::LmHead, 0..outputs, None, matrix.into());
    let mut lora = LoraRows::default();
    lora.segment_of.resize(rows, None);
    let operands = Operands::<f32> {
        x,
        rows,
        lora: &lora,
        adapters: &[],
    };
    let mut out = vec![f32::NAN; rows * outputs];
    let mut pool = Pool::new(2).unwrap();
    Linear::new(inputs, vec![part]).apply(&mut pool, level, &mut Scratch::default(), &operands, &mut out);
    out
}

/// Largest difference of a product of 19 rows from the same in `f64`, by the size of its operands; and each row alone must
/// be the same to the bit.
fn difference(level: Level, weights: &Weights, storage: Storage) -> f64 {
    const ROWS: usize = 19;
    let pack = || Matrix::pack(&weights.tensor(), 0..weights.outputs, storage, &mut Arena::new(0)).unwrap();
    let x = numbers(3, ROWS * weights.inputs);
    let got = product(level, pack(), ROWS, &x);
    let w = weights.tensor().to_f32().unwrap();
    let mut largest = 0.0f64;
    for (row, x) in x.chunks_exact(weights.inputs).enumerate() {
        let got = &got[row * weights.outputs..(row + 1) * weights.outputs];
        for (got, w) in got.iter().zip(w.chunks_exact(weights.inputs)) {
            let products = || w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x));
            let size: f64 = products().map(f64::abs).sum::<f64>().max(1e-9);
            largest = largest.max((f64::from(*got) - products().sum::<f64>()).abs() / size);
        }
        if row % 6 == 0 {
            assert_eq!(
                product(level, pack(), 1, x),
                got,
                "row {row} alone, {}",
                level.name()
            );
        }
    }
    largest
}

#[test]
fn products_are_right_for_every_storage() {
    let compact = |level: Level| Storage::Compact {
        pairs: level.has_pairs(),
    };
    for level in Level::all() {
        for (outputs, inputs) in [(1, 1), (33, 7), (64, 96), (100, 321)] {
            for dtype in [GgmlDType::F32, GgmlDType::F16, GgmlDType::BF16] {
                let weights = Weights::new(dtype, outputs, inputs);
                let full = difference(level, &weights, Storage::F32);
                assert!(full < 2e-6, "{dtype:?} in f32, {}: {full}", level.name());
                // Weights, and activations too where pairs are multiplied, are rounded to 8 bits.
                let compact = difference(level, &weights, compact(level));
                assert!(compact < 8e-3, "{dtype:?}, {}: {compact}", level.name());
            }
        }
        for (outputs, inputs) in [(1, 256), (33, 512)] {
            for dtype in [GgmlDType::Q4K, GgmlDType::Q6K, GgmlDType::Q5K] {
                let weights = Weights::new(dtype, outputs, inputs);
                let compact = difference(level, &weights, compact(level));
                assert!(compact < 3e-4, "{dtype:?}, {}: {compact}", level.name());
            }
        }
        for (outputs, inputs) in [(1, 32), (33, 96), (100, 576)] {
            for dtype in [
                GgmlDType::Q8_0,
                GgmlDType::Q4_0,
                GgmlDType::Q4_1,
                GgmlDType::Q5_0,
                GgmlDType::Q5_1,
            ] {
                let weights = Weights::new(dtype, outputs, inputs);
                let full = difference(level, &weights, Storage::F32);
                assert!(full < 2e-6, "{dtype:?} in f32, {}: {full}", level.name());
                // Half a step of 2^16 of the greatest activation; what is dequantised to `f16` has 11 bits.
                let compact = difference(level, &weights, compact(level));
                assert!(compact < 3e-4, "{dtype:?}, {}: {compact}", level.name());
            }
        }
    }
}

/// Weights that are read one output at a time, as the embedding is, are the packed ones.
#[test]
fn outputs_read_back() {
    const INPUTS: usize = 256;
    for dtype in [
        GgmlDType::F32,
        GgmlDType::F16,
        GgmlDType::BF16,
        GgmlDType::Q8_0,
        GgmlDType::Q4_0,
        GgmlDType::Q4_1,
        GgmlDType::Q4K,
        GgmlDType::Q6K,
    ] {
        let weights = Weights::new(dtype, 70, INPUTS);
        let expected = weights.tensor().to_f32().unwrap();
        for storage in [
            Storage::F32,
            Storage::Compact { pairs: false },
            Storage::Compact { pairs: true },
        ] {
            let matrix = Matrix::pack(&weights.tensor(), 0..70, storage, &mut Arena::new(0)).unwrap();
            for output in [0, 31, 32, 69] {
                let mut got = vec![0.0; INPUTS];
                matrix.read_output(output, &mut got);
                for (got, expected) in got.iter().zip(&expected[output * INPUTS..]) {
                    assert!(
                        (got - expected).abs() <= expected.abs() / 256.0,
                        "{dtype:?}, {storage:?}"
                    );
                }
            }
        }
    }
}
