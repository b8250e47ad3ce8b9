//! Loops over rows, and over one row.

use rayon::prelude::*;

use crate::{backend::NormSpec, model::Activation};

/// Sums are kept in this many lanes, which the compiler turns into vector registers; the order is the same for every
/// caller.
const LANES: usize = 8;

/// Handing work to other threads and waiting for them takes as long as this many multiplications, or longer.
const WORTH_THREADS: usize = 100_000;

/// Calls `compute` with the number and the numbers of each row of `out`; on all cores if the whole is worth it, by the
/// multiplications that one row takes.
pub(super) fn for_each_row(
    out: &mut [f32],
    width: usize,
    work: usize,
    compute: impl Fn(usize, &mut [f32]) + Sync + Send,
) {
    if out.len() / width * work < WORTH_THREADS {
        for (row, out) in out.chunks_exact_mut(width).enumerate() {
            compute(row, out);
        }
    } else {
        out.par_chunks_exact_mut(width)
            .enumerate()
            .for_each(|(row, out)| compute(row, out));
    }
}

/// `sum(a * b)`.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a_lanes, a_rest) = a.as_chunks::<LANES>();
    let (b_lanes, b_rest) = b.as_chunks::<LANES>();
    let mut sums = [0.0f32; LANES];
    for (a, b) in a_lanes.iter().zip(b_lanes) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

/// `y += factor * x`.
pub(super) fn add_scaled(factor: f32, x: &[f32], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += factor * x;
    }
}

/// `y += x`.
pub(super) fn add(x: &[f32], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += x;
    }
}

/// `x / sqrt(mean(x^2) + eps)`, to be multiplied by the weight.
fn rms_scale(x: &[f32], eps: f32) -> f32 {
    (dot(x, x) / x.len() as f32 + eps).sqrt().recip()
}

/// A root mean square norm (Zhang and Sennrich 2019).
pub(super) fn rms_norm(x: &[f32], norm: &NormSpec, out: &mut [f32]) {
    let scale = rms_scale(x, norm.eps);
    for ((out, x), weight) in out.iter_mut().zip(x).zip(&norm.weight) {
        *out = x * scale * weight;
    }
}

/// The same in place.
pub(super) fn rms_norm_in_place(x: &mut [f32], norm: &NormSpec) {
    let scale = rms_scale(x, norm.eps);
    for (x, weight) in x.iter_mut().zip(&norm.weight) {
        *x *= scale * weight;
    }
}

/// The nonlinearity of the gated MLP.
pub(in crate::backend) fn activate(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => {
            let x = f64::from(x);
            (0.5 * x * (1.0 + candle_core::cpu::erf::erf_f64(x * std::f64::consts::FRAC_1_SQRT_2))) as f32
        }
        Activation::GeluTanh => {
            const SQRT_2_OVER_PI: f32 = 0.797_884_6;
            0.5 * x * (1.0 + (SQRT_2_OVER_PI * (x + 0.044_715 * x * x * x)).tanh())
        }
    }
}

/// `cap * tanh(x / cap)`.
pub(in crate::backend) fn soft_cap(x: f32, cap: f32) -> f32 {
    cap * (x / cap).tanh()
}

/// Turns `[rows, cols]` into `[cols, stride]`, of which the first `rows` columns are written, in tiles that stay in the
/// cache.
pub(super) fn transpose(rows: usize, cols: usize, from: &[f32], stride: usize, to: &mut [f32]) {
    const TILE: usize = 32;
    for row in (0..rows).step_by(TILE) {
        for col in (0..cols).step_by(TILE) {
            for r in row..rows.min(row + TILE) {
                for c in col..cols.min(col + TILE) {
                    to[c * stride + r] = from[r * cols + c];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 0 to 20 by hand: the tail after the lanes counts too.
    #[test]
    fn dot_takes_lengths_that_lanes_do_not_divide() {
        let x: Vec<f32> = (0..21).map(|x| x as f32).collect();
        assert_eq!(dot(&x, &x), 2870.0);
        assert_eq!(dot(&[], &[]), 0.0);
    }

    /// Values of `torch.nn.functional` for -1.0: silu, gelu, gelu(approximate="tanh").
    #[test]
    fn activations_match_torch() {
        for (activation, expected) in [
            (Activation::Silu, -0.268_941_42),
            (Activation::Gelu, -0.158_655_26),
            (Activation::GeluTanh, -0.158_808_01),
        ] {
            assert!(
                (activate(activation, -1.0) - expected).abs() < 1e-6,
                "{activation:?}"
            );
            assert_eq!(activate(activation, 0.0), 0.0);
        }
    }

    #[test]
    fn transposing_takes_sizes_that_tiles_do_not_divide() {
        let (rows, cols, stride) = (33, 65, 40);
        let from: Vec<f32> = (0..rows * cols).map(|x| x as f32).collect();
        let mut to = vec![-1.0; stride * cols];
        transpose(rows, cols, &from, stride, &mut to);
        assert_eq!(to[64 * stride + 32], from[32 * cols + 64]);
        assert_eq!(to[stride], from[1]);
        assert_eq!(to[33], -1.0, "the columns after the rows are left alone");
    }
}
