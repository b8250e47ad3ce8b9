//! The arithmetic of one row of logits: its maximum and its exponentials, written so that the compiler vectorises them.
//!
//! A row is read in blocks. The block maxima, one pass, give the row's maximum, and let selection skip every block that
//! cannot hold what it looks for. NaN counts as masked here, like `-inf`: comparisons with it are false.

/// Logits in one block.
const BLOCK: usize = 32;
/// Partial results that run side by side.
const LANES: usize = 8;

/// Below this `exp` is less than the smallest normal `f32`, and is 0 here.
const EXP_MIN: f32 = -87.0;

/// `e^x` for `x <= 0`, within 2 units in the last place (Cephes' `expf`); 0 for NaN and below [`EXP_MIN`].
#[inline(always)]
fn exp(x: f32) -> f32 {
    // 1.5 * 2^23: adding it leaves the nearest whole number in the low bits.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts, the first of them exact in few bits.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let whole = shifted - ROUND;
    let rest = x - whole * LN_2_HIGH - whole * LN_2_LOW;
    let mut series = 1.987_569_1e-4;
    for coefficient in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        series = series * rest + coefficient;
    }
    let series = series * rest * rest + rest + 1.0;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
    // A mask and not a branch, which would keep the compiler from vectorising.
    let keep = u32::from(x > EXP_MIN).wrapping_neg();
    f32::from_bits((series * power).to_bits() & keep)
}

/// Turns logits into weights, probabilities that are not normalised: `e^((logit - max) / temperature)`, 1 for the likeliest.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    max: f32,
    inverse_temperature: f32,
}

impl Scale {
    /// `max` is the row's, see [`Row::max`].
    pub(super) fn new(max: f32, temperature: f32) -> Self {
        Self {
            max,
            // Finite, so that the likeliest token's 0 stays 0.
            inverse_temperature: temperature.recip().min(f32::MAX),
        }
    }

    /// The exponent of a logit's weight, at most 0.
    #[inline(always)]
    pub(super) fn exponent(self, logit: f32) -> f32 {
        let exponent = (logit - self.max) * self.inverse_temperature;
        // Only an infinite logit is above the maximum. NaN stays NaN.
        if exponent > 0.0 { 0.0 } else { exponent }
    }

    /// The weight of a logit, `0..=1`.
    #[inline(always)]
    pub(super) fn weight(self, logit: f32) -> f32 {
        exp(self.exponent(logit))
    }

    /// A logit below every logit of at least this weight, with room for rounding.
    pub(super) fn floor(self, weight: f64) -> f32 {
        let exponent = (weight * 0.5).ln() as f32;
        self.max + exponent / self.inverse_temperature
    }

    /// The sum of the weights of `logits`: in `f32` within a block, in `f64` over the blocks.
    pub(super) fn sum(self, logits: &[f32]) -> f64 {
        let (blocks, rest) = logits.as_chunks::<BLOCK>();
        let mut sum = 0.0;
        for block in blocks {
            let weights = block.map(|logit| self.weight(logit));
            let mut sums = [0.0_f32; LANES];
            for group in weights.as_chunks::<LANES>().0 {
                for (sum, weight) in sums.iter_mut().zip(group) {
                    *sum += weight;
                }
            }
            sum += f64::from(sums.iter().sum::<f32>());
        }
        sum + rest
            .iter()
            .map(|&logit| f64::from(self.weight(logit)))
            .sum::<f64>()
    }
}

/// A row of logits with its block maxima.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) logits: &'a [f32],
    maxima: &'a [f32],
    max: f32,
}

impl<'a> Row<'a> {
    /// Reads a row. `maxima` is scratch space.
    pub(super) fn new(logits: &'a [f32], maxima: &'a mut Vec<f32>) -> Self {
        maxima.clear();
        maxima.extend(logits.chunks(BLOCK).map(max));
        Self {
            logits,
            maxima,
            max: max(maxima),
        }
    }

    /// The highest logit, at most `f32::MAX`; none if every token is masked.
    pub(super) fn max(&self) -> Option<f32> {
        (self.max > f32::NEG_INFINITY).then(|| self.max.min(f32::MAX))
    }

    /// The lowest id of those with the highest logit.
    pub(super) fn argmax(&self) -> Option<usize> {
        if self.max == f32::NEG_INFINITY {
            return None;
        }
        let start = self.maxima.iter().position(|&max| max == self.max)? * BLOCK;
        let offset = self.logits[start..].iter().position(|&logit| logit == self.max)?;
        Some(start + offset)
    }

    /// A bound that at least `count` logits reach: each of the `count` best blocks has one that does. `-inf` where there
    /// are fewer blocks. `scratch` is scratch space.
    pub(super) fn reached_by(&self, count: usize, scratch: &mut Vec<f32>) -> f32 {
        if count == 0 || count > self.maxima.len() {
            return f32::NEG_INFINITY;
        }
        scratch.clear();
        scratch.extend_from_slice(self.maxima);
        let (_, bound, _) = scratch.select_nth_unstable_by(count - 1, |a, b| b.total_cmp(a));
        *bound
    }

    /// Every token whose logit is `floor` or more and not masked, by id.
    pub(super) fn at_least(&self, floor: f32) -> impl Iterator<Item = (u32, f32)> + 'a {
        let floor = floor.max(f32::MIN);
        let blocks = self.logits.chunks(BLOCK).zip(self.maxima).zip(0..);
        let blocks = blocks.filter(move |((_, max), _)| **max >= floor);
        blocks.flat_map(move |((block, _), index)| {
            let first = index * BLOCK as u32;
            let tokens = block.iter().zip(first..).map(|(&logit, id)| (id, logit));
            tokens.filter(move |&(_, logit)| logit >= floor)
        })
    }
}

/// The highest of some numbers, NaN passed over; `-inf` if there is none.
fn max(numbers: &[f32]) -> f32 {
    let higher = |a: f32, b: f32| if b > a { b } else { a };
    let mut highest = [f32::NEG_INFINITY; LANES];
    let (groups, rest) = numbers.as_chunks::<LANES>();
    for group in groups {
        for (highest, &number) in highest.iter_mut().zip(group) {
            *highest = higher(*highest, number);
        }
    }
    highest
        .iter()
        .chain(rest)
        .copied()
        .fold(f32::NEG_INFINITY, higher)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_right_to_the_last_places() {
        let mut worst = 0.0_f64;
        for step in 0..8_699_000 {
            let x = step as f32 * -1e-5;
            let right = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) - right).abs() / right);
        }
        assert!(worst < 2.0 * f64::from(f32::EPSILON), "{worst:e}");
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        for zero in [-87.1, -1e30, f32::NEG_INFINITY, f32::NAN] {
            assert_eq!(exp(zero), 0.0);
        }
    }

    #[test]
    fn a_row_is_read_whole_whatever_its_length() {
        for length in [1, 7, 8, 31, 32, 33, 64, 100] {
            for best in 0..length {
                let mut logits = vec![f32::NAN; length];
                logits[best] = -7.0;
                let mut maxima = Vec::new();
                let row = Row::new(&logits, &mut maxima);
                assert_eq!(row.argmax(), Some(best));
                assert_eq!(row.max(), Some(-7.0));
                assert_eq!(row.at_least(-7.0).collect::<Vec<_>>(), [(best as u32, -7.0)]);
                assert_eq!(Scale::new(-7.0, 1.0).sum(&logits), 1.0);
            }
        }
    }

    #[test]
    fn the_bound_is_reached_by_so_many() {
        let logits: Vec<f32> = (0..1000).map(|i| ((i * 37) % 1000) as f32).collect();
        let mut maxima = Vec::new();
        let row = Row::new(&logits, &mut maxima);
        for count in [1, 5, 31, 32] {
            let bound = row.reached_by(count, &mut Vec::new());
            assert!(row.at_least(bound).count() >= count);
            assert!(bound > f32::NEG_INFINITY);
        }
        assert_eq!(row.reached_by(33, &mut Vec::new()), f32::NEG_INFINITY);
    }
}
