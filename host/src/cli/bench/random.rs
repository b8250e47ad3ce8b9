//! Random numbers that are the same each time: SplitMix64 (Steele, Lea, Flood 2014).

/// What numbers are drawn for; each purpose has a sequence of its own.
#[derive(Debug, Clone, Copy)]
pub(super) enum Purpose {
    /// The words that all prompts have in common.
    SharedPrefix,
    /// The words of one prompt.
    Prompt,
    /// The adapter of one request.
    Adapter,
    /// The time between a request and the one before it.
    Gap,
}

/// A sequence of random numbers.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    /// The sequence for one purpose of one request. Equal arguments give equal sequences.
    pub(super) fn new(seed: u64, purpose: Purpose, request: u64) -> Self {
        let state = [purpose as u64, request]
            .into_iter()
            .fold(mix(seed), |state, part| mix(state.wrapping_add(part)));
        Self(state)
    }

    /// A number below `bound`.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        let product = u128::from(self.next()) * bound as u128;
        // Less than `bound`, and so a usize.
        (product >> 64) as usize
    }

    /// A number in `[0, 1)`.
    pub(super) fn unit(&mut self) -> f64 {
        // 53 bits are what a f64 holds exactly.
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }
}

fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of the reference implementation for the seed 1234567.
    #[test]
    fn it_is_splitmix64() {
        let mut random = Random(1_234_567);
        let numbers: Vec<_> = (0..3).map(|_| random.next()).collect();
        assert_eq!(
            numbers,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn each_purpose_and_request_has_its_own_sequence() {
        let first = |purpose, request| Random::new(7, purpose, request).next();
        assert_eq!(first(Purpose::Prompt, 3), first(Purpose::Prompt, 3));
        assert_ne!(first(Purpose::Prompt, 3), first(Purpose::Prompt, 4));
        assert_ne!(first(Purpose::Prompt, 3), first(Purpose::Gap, 3));
    }

    #[test]
    fn numbers_stay_in_their_range() {
        let mut random = Random::new(0, Purpose::Gap, 0);
        let mean = (0..10_000)
            .map(|_| {
                assert!(random.below(7) < 7);
                let unit = random.unit();
                assert!((0.0..1.0).contains(&unit));
                unit
            })
            .sum::<f64>()
            / 10_000.0;
        // The standard deviation of this mean is 0.003.
        assert!((mean - 0.5).abs() < 0.015, "{mean}");
    }
}
