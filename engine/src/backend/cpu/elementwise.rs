//! What is computed row by row: norms, sums, the gated activation.

use super::{
    pool::{Parts, Pool},
    simd::{Kernel, LANES, Level, Simd},
};
use crate::{
    backend::{NormSpec, reference},
    model::Activation,
};

/// A norm's weight.
pub struct Norm(pub(super) NormSpec);

/// `x / sqrt(mean(x^2) + eps)`, to be multiplied by the weight.
#[inline(always)]
fn rms_scale<S: Simd>(simd: S, x: &[f32], eps: f32) -> f32 {
    let (vectors, rest) = x.as_chunks::<LANES>();
    let mut sums = simd.splat(0.0);
    for vector in vectors {
        let x = simd.load(vector);
        sums = simd.fma(x, x, sums);
    }
    let rest: f32 = rest.iter().map(|x| x * x).sum();
    ((simd.sum(sums) + rest) / x.len() as f32 + eps).sqrt().recip()
}

/// A root mean square norm (Zhang and Sennrich 2019).
#[inline(always)]
fn norm<S: Simd>(simd: S, x: &[f32], norm: &Norm, out: &mut [f32]) {
    let scale = rms_scale(simd, x, norm.0.eps);
    for ((out, x), weight) in out.iter_mut().zip(x).zip(&norm.0.weight) {
        *out = x * scale * weight;
    }
}

/// The same in place.
#[inline(always)]
pub(super) fn norm_in_place<S: Simd>(simd: S, x: &mut [f32], norm: &Norm) {
    let scale = rms_scale(simd, x, norm.0.eps);
    for (x, weight) in x.iter_mut().zip(&norm.0.weight) {
        *x *= scale * weight;
    }
}

/// `out = norm(x)` for each row.
pub(super) fn apply_norm(pool: &mut Pool, level: Level, x: &[f32], weight: &Norm, out: &mut [f32]) {
    struct Apply<'a>(&'a [f32], &'a Norm, &'a mut [f32]);
    impl Kernel for Apply<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) {
            norm(simd, self.0, self.1, self.2);
        }
    }
    let width = weight.0.weight.len();
    let cut = pool.cut(x.len() / width, 2 * width);
    let out = Parts::new(out);
    pool.run(cut.pieces(), |task| {
        for row in cut.piece(task) {
            let row = row * width..(row + 1) * width;
            // SAFETY: a row is in one piece.
            let out = unsafe { out.part(row.clone()) };
            level.run(Apply(&x[row], weight, out));
        }
    });
}

/// `residual += delta`, or `residual += post(delta)`; then `out = norm(residual)`, for each row.
pub(super) fn add_norm(
    pool: &mut Pool,
    level: Level,
    delta: &[f32],
    post: Option<&Norm>,
    residual: &mut [f32],
    weight: &Norm,
    out: &mut [f32],
) {
    struct Add<'a> {
        delta: &'a [f32],
        post: Option<&'a Norm>,
        residual: &'a mut [f32],
        weight: &'a Norm,
        out: &'a mut [f32],
    }
    impl Kernel for Add<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) {
            let delta = match self.post {
                Some(post) => {
                    norm(simd, self.delta, post, self.out);
                    &*self.out
                }
                None => self.delta,
            };
            for (residual, delta) in self.residual.iter_mut().zip(delta) {
                *residual += delta;
            }
            norm(simd, self.residual, self.weight, self.out);
        }
    }
    let width = weight.0.weight.len();
    let cut = pool.cut(delta.len() / width, 4 * width);
    let (residual, out) = (Parts::new(residual), Parts::new(out));
    pool.run(cut.pieces(), |task| {
        for row in cut.piece(task) {
            let row = row * width..(row + 1) * width;
            // SAFETY: a row is in one piece.
            let (residual, out) = unsafe { (residual.part(row.clone()), out.part(row.clone())) };
            level.run(Add {
                delta: &delta[row],
                post,
                residual,
                weight,
                out,
            });
        }
    });
}

/// `out = activation(gate) * up` of `[gate | up]`, for each row.
pub(super) fn gated_activation(
    pool: &mut Pool,
    level: Level,
    activation: Activation,
    gate_up: &[f32],
    width: usize,
    out: &mut [f32],
) {
    struct Gate<'a>(Activation, &'a [f32], &'a mut [f32]);
    impl Kernel for Gate<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) {
            let Self(activation, gate_up, out) = self;
            let (gate, up) = gate_up.split_at(out.len());
            let vectors = out.len() / LANES * LANES;
            for at in (0..vectors).step_by(LANES) {
                let of = |numbers: &[f32]| simd.load(numbers[at..].first_chunk().unwrap_or(&[0.0; LANES]));
                let product = simd.mul(activate(simd, activation, of(gate)), of(up));
                if let Some(out) = out[at..].first_chunk_mut() {
                    simd.store(product, out);
                }
            }
            for at in vectors..out.len() {
                let mut lane = [0.0; LANES];
                simd.store(activate(simd, activation, simd.splat(gate[at])), &mut lane);
                out[at] = lane[0] * up[at];
            }
        }
    }
    // An exponential takes about as long as twenty multiplications.
    let cut = pool.cut(out.len() / width, 20 * width);
    let out = Parts::new(out);
    pool.run(cut.pieces(), |task| {
        for row in cut.piece(task) {
            // SAFETY: a row is in one piece.
            let out = unsafe { out.part(row * width..(row + 1) * width) };
            level.run(Gate(
                activation,
                &gate_up[2 * row * width..2 * (row + 1) * width],
                out,
            ));
        }
    });
}

/// The nonlinearity of the gated MLP.
#[inline(always)]
fn activate<S: Simd>(simd: S, activation: Activation, x: S::F) -> S::F {
    let one = simd.splat(1.0);
    match activation {
        Activation::Silu => {
            let power = simd.exp(simd.sub(simd.splat(0.0), x));
            simd.div(x, simd.add(one, power))
        }
        Activation::GeluTanh => {
            const SQRT_2_OVER_PI: f32 = 0.797_884_6;
            let cube = simd.mul(simd.mul(x, x), x);
            let inner = simd.fma(cube, simd.splat(0.044_715), x);
            let tanh = simd.tanh(simd.mul(inner, simd.splat(SQRT_2_OVER_PI)));
            simd.mul(simd.mul(x, simd.splat(0.5)), simd.add(one, tanh))
        }
        // Rare, and in need of an error function.
        Activation::Gelu => {
            let mut lanes = [0.0; LANES];
            simd.store(x, &mut lanes);
            simd.load(&lanes.map(|x| reference::activate(activation, x)))
        }
    }
}
