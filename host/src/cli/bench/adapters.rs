//! Which adapter a request asks for.

use std::str::FromStr;

use serde::Serialize;

use super::random::{Purpose, Random};

/// The names of adapters; none where requests are for the base model.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(transparent)]
pub(super) struct Names(pub(super) Vec<String>);

impl FromStr for Names {
    type Err = String;

    /// Names with commas between them. `a:3` stands for `a0,a1,a2`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut names = Vec::new();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let numbered = part
                .rsplit_once(':')
                .and_then(|(prefix, count)| Some((prefix, count.parse::<u32>().ok()?)));
            match numbered {
                Some((prefix, count)) => names.extend((0..count).map(|index| format!("{prefix}{index}"))),
                None => names.push(part.to_owned()),
            }
        }
        if names.is_empty() {
            return Err("expected names with commas between them, as in `sql,chat` or `a:3`".to_owned());
        }
        Ok(Self(names))
    }
}

/// How an adapter is chosen.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Choice {
    /// Each in turn.
    RoundRobin,
    /// By Zipf's law.
    Zipf(Zipf),
}

impl Choice {
    /// The index of a request's adapter among `adapters` of them.
    pub(super) fn index(&self, adapters: usize, seed: u64, request: u64) -> usize {
        match self {
            // Less than `adapters`, and so a usize.
            Self::RoundRobin => (request % adapters as u64) as usize,
            Self::Zipf(zipf) => zipf.index(Random::new(seed, Purpose::Adapter, request).unit()),
        }
    }
}

/// Zipf's law over a number of ranks: rank k in proportion to 1/k^s.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Zipf {
    exponent: f64,
    /// For each rank, the probability of it or a lower one.
    #[serde(skip)]
    cumulative: Vec<f64>,
}

impl Zipf {
    /// The law for `ranks` ranks and an exponent.
    pub(super) fn new(ranks: usize, exponent: f64) -> Self {
        let mut cumulative: Vec<f64> = (1..=ranks)
            .scan(0.0, |sum, rank| {
                *sum += (rank as f64).powf(-exponent);
                Some(*sum)
            })
            .collect();
        let total = cumulative.last().copied().unwrap_or(1.0);
        for sum in &mut cumulative {
            *sum /= total;
        }
        Self { exponent, cumulative }
    }

    /// The rank, counted from 0, that a number in `[0, 1)` falls on.
    fn index(&self, unit: f64) -> usize {
        self.cumulative.partition_point(|&sum| sum <= unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        text.parse::<Names>().unwrap().0
    }

    #[test]
    fn a_prefix_with_a_number_stands_for_many() {
        assert_eq!(names("sql,chat"), ["sql", "chat"]);
        assert_eq!(names("base,a:3"), ["base", "a0", "a1", "a2"]);
        assert_eq!(names("org:name"), ["org:name"], "no number, no prefix");
        for wrong in ["", ",", "a:0"] {
            assert!(wrong.parse::<Names>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn round_robin_takes_each_in_turn() {
        let indices: Vec<_> = (0..5)
            .map(|request| Choice::RoundRobin.index(3, 0, request))
            .collect();
        assert_eq!(indices, [0, 1, 2, 0, 1]);
    }

    /// With exponent 1 and three ranks the weights are 1, 1/2, 1/3, and their sum is 11/6: 6/11, 3/11, 2/11.
    #[test]
    fn zipf_gives_each_rank_its_share() {
        let zipf = Zipf::new(3, 1.0);
        let just = 1e-9;
        for (unit, rank) in [
            (0.0, 0),
            (6.0 / 11.0 - just, 0),
            (6.0 / 11.0 + just, 1),
            (9.0 / 11.0 - just, 1),
            (9.0 / 11.0 + just, 2),
            (1.0 - just, 2),
        ] {
            assert_eq!(zipf.index(unit), rank, "{unit}");
        }
    }

    #[test]
    fn zipf_chooses_the_same_for_the_same_seed() {
        let choice = Choice::Zipf(Zipf::new(8, 1.0));
        let choices = |seed| -> Vec<_> { (0..2000).map(|request| choice.index(8, seed, request)).collect() };
        assert_eq!(choices(1), choices(1));
        assert_ne!(choices(1), choices(2));
        let mut counts = [0; 8];
        for index in choices(1) {
            counts[index] += 1;
        }
        // 1/H(8) of 2000 is 736, with a standard deviation of 22; the last rank has an eighth of that.
        assert!((counts[0] - 736_i32).abs() < 110, "{counts:?}");
        assert!((counts[7] - 92_i32).abs() < 50, "{counts:?}");
    }
}
