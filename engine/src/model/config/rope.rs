//! Rotary position embedding (Su et al. 2021) and the ways of stretching it.

use std::f64::consts::PI;

/// How far each pair of dimensions turns from one position to the next. The pairs are `(i, i + rotary_dim / 2)`
/// ("rotate half"), as in the checkpoints of transformers.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// The base of the geometric series of frequencies.
    pub theta: f64,
    /// Leading dimensions of a head that turn; the others pass unchanged.
    pub rotary_dim: usize,
    /// How the frequencies are stretched for a longer context.
    pub scaling: RopeScaling,
}

/// Ways of stretching, by the names and formulas of transformers' `modeling_rope_utils`.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// As trained.
    None,
    /// Positions are divided (Chen et al. 2023).
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Low frequencies are divided, high ones kept, those between blended (Llama 3.1).
    Llama3 {
        /// The divisor.
        factor: f64,
        /// Wavelengths over `original / low` count as low frequencies.
        low: f64,
        /// Wavelengths under `original / high` count as high frequencies.
        high: f64,
        /// The context before stretching.
        original: usize,
    },
    /// A divisor for each frequency, spelled out: how GGUF files say `Llama3`.
    Divided {
        /// For each pair.
        divisors: Vec<f64>,
    },
    /// YaRN (Peng et al. 2023).
    Yarn {
        /// The divisor.
        factor: f64,
        /// The context before stretching.
        original: usize,
        /// Turns over the original context above which a frequency is kept.
        beta_fast: f64,
        /// Turns below which it is divided in full.
        beta_slow: f64,
        /// Whether the borders between them are rounded to whole dimensions.
        truncate: bool,
        /// Cosines and sines are multiplied by it.
        attention_factor: f64,
    },
    /// A divisor for each frequency (Ding et al. 2024). transformers changes from the short to the long divisors when a
    /// sequence outgrows the original context and recomputes its keys; here, as in vLLM, the context that the model is
    /// loaded with decides once: the short divisors serve contexts up to `original`, the long ones everything longer.
    LongRope {
        /// For contexts up to `original`.
        short: Vec<f64>,
        /// For longer ones.
        long: Vec<f64>,
        /// The context before stretching.
        original: usize,
        /// Cosines and sines are multiplied by it.
        attention_factor: f64,
    },
}

impl Rope {
    /// Radians by which pair `i` turns for each position, `[rotary_dim / 2]`, for a model loaded with `context`.
    pub fn inverse_frequencies(&self, context: usize) -> Vec<f32> {
        let dim = self.rotary_dim as f64;
        let plain = |i: usize| self.theta.powf(-(2.0 * i as f64) / dim);
        (0..self.rotary_dim / 2)
            .map(|i| match &self.scaling {
                RopeScaling::None => plain(i),
                RopeScaling::Linear { factor } => plain(i) / factor,
                RopeScaling::Divided { divisors } => plain(i) / divisors[i],
                RopeScaling::Llama3 {
                    factor,
                    low,
                    high,
                    original,
                } => llama3(plain(i), *factor, *low, *high, *original as f64),
                RopeScaling::Yarn {
                    factor,
                    original,
                    beta_fast,
                    beta_slow,
                    truncate,
                    ..
                } => {
                    let (begin, end) = self.yarn_range(*beta_fast, *beta_slow, *original as f64, *truncate);
                    let divided = ((i as f64 - begin) / (end - begin)).clamp(0.0, 1.0);
                    plain(i) / factor * divided + plain(i) * (1.0 - divided)
                }
                RopeScaling::LongRope {
                    short,
                    long,
                    original,
                    ..
                } => plain(i) / if context > *original { long[i] } else { short[i] },
            })
            .map(|frequency| frequency as f32)
            .collect()
    }

    /// What cosines and sines are multiplied by.
    pub fn amplitude(&self) -> f32 {
        match &self.scaling {
            RopeScaling::Yarn { attention_factor, .. } | RopeScaling::LongRope { attention_factor, .. } => {
                *attention_factor as f32
            }
            RopeScaling::None
            | RopeScaling::Linear { .. }
            | RopeScaling::Llama3 { .. }
            | RopeScaling::Divided { .. } => 1.0,
        }
    }

    /// The pairs between which YaRN blends from kept to divided.
    fn yarn_range(&self, beta_fast: f64, beta_slow: f64, original: f64, truncate: bool) -> (f64, f64) {
        let dim = self.rotary_dim as f64;
        let pair_with_turns =
            |turns: f64| dim * (original / (turns * 2.0 * PI)).ln() / (2.0 * self.theta.ln());
        let (mut begin, mut end) = (pair_with_turns(beta_fast), pair_with_turns(beta_slow));
        if truncate {
            (begin, end) = (begin.floor(), end.ceil());
        }
        let (begin, end) = (begin.max(0.0), end.min(dim - 1.0));
        (begin, if begin == end { end + 0.001 } else { end })
    }
}

/// Llama 3.1's stretching of one frequency.
fn llama3(frequency: f64, factor: f64, low: f64, high: f64, original: f64) -> f64 {
    let wavelength = 2.0 * PI / frequency;
    if wavelength > original / low {
        frequency / factor
    } else if wavelength < original / high {
        frequency
    } else {
        let smooth = (original / wavelength - low) / (high - low);
        (1.0 - smooth) * frequency / factor + smooth * frequency
    }
}

/// YaRN's default for its attention factor.
pub(super) fn yarn_attention_factor(factor: f64, mscale: Option<f64>, mscale_all_dim: Option<f64>) -> f64 {
    let of = |mscale: f64| {
        if factor <= 1.0 {
            1.0
        } else {
            0.1 * mscale * factor.ln() + 1.0
        }
    };
    match (mscale, mscale_all_dim) {
        (Some(m), Some(all)) if m != 0.0 && all != 0.0 => of(m) / of(all),
        _ => of(1.0),
    }
}

/// Longrope's default for its attention factor, for a context stretched by `factor`.
pub(super) fn longrope_attention_factor(factor: f64, original: usize) -> f64 {
    if factor <= 1.0 {
        1.0
    } else {
        (1.0 + factor.ln() / (original as f64).ln()).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(got: &[f32], expected: &[(usize, f64)]) {
        for (pair, expected) in expected {
            let got = f64::from(got[*pair]);
            assert!(
                (got / expected - 1.0).abs() < 1e-6,
                "pair {pair}: {got}, expected {expected}"
            );
        }
    }

    /// Qwen 2.5 with its recommended YaRN. Values of `_compute_yarn_parameters` of transformers 4.57 in Python's floats: pairs
    /// 23 to 40 are blended.
    #[test]
    fn yarn_matches_transformers() {
        let rope = Rope {
            theta: 1e6,
            rotary_dim: 128,
            scaling: RopeScaling::Yarn {
                factor: 4.0,
                original: 32768,
                beta_fast: 32.0,
                beta_slow: 1.0,
                truncate: true,
                attention_factor: yarn_attention_factor(4.0, None, None),
            },
        };
        let expected = [
            (0, 1.0),
            (20, 0.01333521432163324),
            (30, 0.0010643609812470017),
            (39, 6.490394320837028e-05),
            (63, 3.102344401879299e-07),
        ];
        close(&rope.inverse_frequencies(131_072), &expected);
        assert_eq!(rope.amplitude(), 1.138_629_4);
    }

    /// Llama 3.2. Values of `_compute_llama3_parameters` of transformers 4.57 in Python's floats: pairs 15 and 16 are blended.
    #[test]
    fn llama3_matches_transformers() {
        let rope = Rope {
            theta: 500_000.0,
            rotary_dim: 64,
            scaling: RopeScaling::Llama3 {
                factor: 32.0,
                low: 1.0,
                high: 4.0,
                original: 8192,
            },
        };
        let expected = [
            (0, 1.0),
            (13, 0.004839421345719893),
            (15, 0.001290547928209264),
            (16, 0.00042955679655936815),
            (17, 9.70828780262767e-05),
            (31, 9.41830672543491e-08),
        ];
        close(&rope.inverse_frequencies(131_072), &expected);
    }

    #[test]
    fn longrope_goes_by_the_context_that_was_loaded() {
        let rope = Rope {
            theta: 10_000.0,
            rotary_dim: 2,
            scaling: RopeScaling::LongRope {
                short: vec![1.0],
                long: vec![4.0],
                original: 4096,
                attention_factor: longrope_attention_factor(32.0, 4096),
            },
        };
        assert_eq!(rope.inverse_frequencies(4096), [1.0]);
        assert_eq!(rope.inverse_frequencies(4097), [0.25]);
        // sqrt(1 + ln 32 / ln 4096), as Phi-3's 128k models have it.
        assert_eq!(rope.amplitude(), 1.190_238_1);
    }
}
