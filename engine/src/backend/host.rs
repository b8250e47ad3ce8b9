//! A tensor of a checkpoint in host memory, as the file stores it.

use candle_core::{
    Device,
    quantized::{GgmlDType, QStorage, QTensor},
};

/// A matrix (or a vector: one column) of a checkpoint, borrowed from the file. Rows are whole: the blocks of quantised
/// types run along a row.
#[derive(Debug, Clone, Copy)]
pub struct HostTensor<'a> {
    /// Rows in the model's order: outputs of a linear map, entries of a vocabulary.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// The number type, by GGML's names; safetensors' are among them.
    pub dtype: GgmlDType,
    /// The rows as stored, row-major.
    pub data: &'a [u8],
    /// How the stored order of the rows differs from the model's.
    pub order: RowOrder,
}

/// The order of stored rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOrder {
    /// The model's.
    Plain,
    /// llama.cpp's for q and k of Llama: within each of `heads` heads the pairs `(i, i + n/2)` that rope turns together lie
    /// side by side.
    Interleaved {
        /// How many heads the rows are.
        heads: usize,
    },
}

impl<'a> HostTensor<'a> {
    /// Row `row` of the model's order, as stored.
    pub fn row(&self, row: usize) -> &'a [u8] {
        let bytes = self.data.len() / self.rows;
        let stored = self.stored_row(row);
        &self.data[stored * bytes..(stored + 1) * bytes]
    }

    /// All elements in f32, `[rows, cols]`, in the model's order.
    ///
    /// # Errors
    /// candle's message where it cannot dequantise the type.
    pub fn to_f32(&self) -> Result<Vec<f32>, String> {
        let stored: Vec<f32> = match self.dtype {
            GgmlDType::F32 => numbers(self.data, f32::from_le_bytes),
            GgmlDType::F16 => numbers(self.data, |bytes| half::f16::from_le_bytes(bytes).to_f32()),
            GgmlDType::BF16 => numbers(self.data, |bytes| half::bf16::from_le_bytes(bytes).to_f32()),
            quantised => QStorage::from_data(self.data.into(), &Device::Cpu, quantised)
                .and_then(|storage| QTensor::new(storage, (self.rows, self.cols)))
                .and_then(|tensor| tensor.dequantize(&Device::Cpu)?.flatten_all()?.to_vec1())
                .map_err(|error| error.to_string())?,
        };
        if self.order == RowOrder::Plain {
            return Ok(stored);
        }
        let mut ordered = Vec::with_capacity(stored.len());
        for row in 0..self.rows {
            let at = self.stored_row(row) * self.cols;
            ordered.extend_from_slice(&stored[at..at + self.cols]);
        }
        Ok(ordered)
    }

    /// Where row `row` of the model's order is stored.
    fn stored_row(&self, row: usize) -> usize {
        match self.order {
            RowOrder::Plain => row,
            RowOrder::Interleaved { heads } => {
                let width = self.rows / heads;
                let (head, within) = (row / width, row % width);
                let (half, pair) = (within / (width / 2), within % (width / 2));
                head * width + 2 * pair + half
            }
        }
    }
}

/// Little-endian numbers of `N` bytes each.
fn numbers<const N: usize>(bytes: &[u8], read: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    let (chunks, _) = bytes.as_chunks::<N>();
    chunks.iter().map(|chunk| read(*chunk)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// llama.cpp's converter writes a head of 4 rows as `0, 2, 1, 3` (`reshape(heads, 2, 2).swapaxes(1, 2)`).
    #[test]
    fn interleaved_rows_are_put_back() {
        let stored: Vec<u8> = [0.0f32, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect();
        let tensor = HostTensor {
            rows: 8,
            cols: 1,
            dtype: GgmlDType::F32,
            data: &stored,
            order: RowOrder::Interleaved { heads: 2 },
        };
        assert_eq!(tensor.to_f32().unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
        assert_eq!(tensor.row(1), 1.0f32.to_le_bytes());
    }

    #[test]
    fn halves_are_widened() {
        let data: Vec<u8> = [half::bf16::from_f32(-1.5), half::bf16::from_f32(0.25)]
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect();
        let tensor = HostTensor {
            rows: 1,
            cols: 2,
            dtype: GgmlDType::BF16,
            data: &data,
            order: RowOrder::Plain,
        };
        assert_eq!(tensor.to_f32().unwrap(), [-1.5, 0.25]);
    }

    /// Against candle's own dequantisation, and near the numbers that were quantised.
    #[test]
    fn quantised_rows_are_dequantised_in_the_model_order() {
        let (rows, cols) = (4, 256);
        let numbers: Vec<f32> = (0..rows * cols)
            .map(|i| ((i * 37) % 101) as f32 / 101.0 - 0.5)
            .collect();
        let matrix = candle_core::Tensor::from_slice(&numbers, (rows, cols), &Device::Cpu).unwrap();
        for (dtype, tolerance) in [
            // One step of the scale: its range is not symmetric, and the largest of the other sign is cut.
            (GgmlDType::Q4_0, 0.0625),
            (GgmlDType::Q4_1, 0.04),
            (GgmlDType::Q5_0, 0.03125),
            (GgmlDType::Q8_0, 0.003),
            (GgmlDType::Q4K, 0.04),
            (GgmlDType::Q6K, 0.01),
        ] {
            let quantised = QTensor::quantize(&matrix, dtype).unwrap();
            let data = quantised.data().unwrap();
            let tensor = HostTensor {
                rows,
                cols,
                dtype,
                data: &data,
                order: RowOrder::Interleaved { heads: 1 },
            };
            let got = tensor.to_f32().unwrap();
            for (row, stored) in [0, 2, 1, 3].into_iter().enumerate() {
                for col in 0..cols {
                    let (got, was) = (got[row * cols + col], numbers[stored * cols + col]);
                    assert!((got - was).abs() < tolerance, "{dtype:?}: {got}, was {was}");
                }
            }
        }
    }
}
