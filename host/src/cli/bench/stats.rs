//! Figures out of how requests ended.

use std::time::Duration;

use serde::Serialize;

use super::request::{Failure, Served};

/// The figures of a run. Those of time are over requests that were served.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Summary {
    /// Requests that were served.
    pub(super) ok: usize,
    /// Requests that failed.
    pub(super) errors: usize,
    pub(super) first_error: Option<Failure>,
    pub(super) seconds: f64,
    /// Tokens of the prompts.
    pub(super) tokens_in: u64,
    /// Those of them that came out of a prefix cache, as far as the server tells.
    pub(super) tokens_cached: u64,
    /// Tokens that were generated.
    pub(super) tokens_out: u64,
    /// Of those that were generated.
    pub(super) tokens_per_second: f64,
    pub(super) requests_per_second: f64,
    /// Time to first token; none if no text came.
    pub(super) ttft_ms: Option<Percentiles>,
    /// Time between events that carry text; none if there are no two of a request.
    pub(super) inter_token_ms: Option<Percentiles>,
    /// Until the end of the stream.
    pub(super) end_to_end_ms: Option<Percentiles>,
}

impl Summary {
    /// The figures of requests that took `elapsed` from the first one's beginning to the last one's end.
    pub(super) fn new(outcomes: Vec<Result<Served, Failure>>, elapsed: Duration) -> Self {
        let total = outcomes.len();
        let mut first_error = None;
        let served: Vec<Served> = (outcomes.into_iter())
            .filter_map(|outcome| match outcome {
                Ok(served) => Some(served),
                Err(failure) => {
                    first_error.get_or_insert(failure);
                    None
                }
            })
            .collect();
        let seconds = elapsed.as_secs_f64();
        let per_second = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
        let tokens_out = served.iter().map(|served| served.completion_tokens).sum();
        Self {
            ok: served.len(),
            errors: total - served.len(),
            first_error,
            seconds,
            tokens_in: served.iter().map(|served| served.prompt_tokens).sum(),
            tokens_cached: served.iter().map(|served| served.cached_tokens).sum(),
            tokens_out,
            tokens_per_second: per_second(tokens_out as f64),
            requests_per_second: per_second(served.len() as f64),
            ttft_ms: Percentiles::new(served.iter().filter_map(|served| served.ttft)),
            inter_token_ms: Percentiles::new(served.iter().flat_map(|served| served.gaps.iter().copied())),
            end_to_end_ms: Percentiles::new(served.iter().map(|served| served.end_to_end)),
        }
    }
}

/// Percentiles in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Percentiles {
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p99: f64,
}

impl Percentiles {
    /// Those of the samples; none without samples.
    fn new(samples: impl Iterator<Item = Duration>) -> Option<Self> {
        let mut sorted: Vec<Duration> = samples.collect();
        sorted.sort_unstable();
        let percentile = |percent: usize| {
            // `percent` of the samples come before it. It is one that was measured: nothing is interpolated.
            let index = (sorted.len() * percent / 100).min(sorted.len().checked_sub(1)?);
            Some(sorted[index].as_secs_f64() * 1000.0)
        };
        Some(Self {
            p50: percentile(50)?,
            p90: percentile(90)?,
            p99: percentile(99)?,
        })
    }
}

/// The figures by which runs and servers are compared.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Headline {
    pub(super) tokens_per_second: Option<f64>,
    pub(super) ttft_p50_ms: Option<f64>,
    pub(super) inter_token_p50_ms: Option<f64>,
}

impl Headline {
    /// The median of each figure over runs.
    pub(super) fn median<'a>(runs: impl Iterator<Item = &'a Summary> + Clone) -> Self {
        Self {
            tokens_per_second: median(runs.clone().map(|run| run.tokens_per_second)),
            ttft_p50_ms: median(runs.clone().filter_map(|run| Some(run.ttft_ms?.p50))),
            inter_token_p50_ms: median(runs.filter_map(|run| Some(run.inter_token_ms?.p50))),
        }
    }

    /// Each figure divided by the other one's; none where there is nothing to divide by.
    pub(super) fn ratio(self, other: Self) -> Self {
        let ratio = |first: Option<f64>, second: Option<f64>| {
            Some(first? / second?).filter(|ratio| ratio.is_finite())
        };
        Self {
            tokens_per_second: ratio(self.tokens_per_second, other.tokens_per_second),
            ttft_p50_ms: ratio(self.ttft_p50_ms, other.ttft_p50_ms),
            inter_token_p50_ms: ratio(self.inter_token_p50_ms, other.inter_token_p50_ms),
        }
    }
}

/// The value in the middle, or the mean of the two there.
fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = sorted[(sorted.len() - 1) / 2];
    Some(lower.midpoint(upper))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(values: impl IntoIterator<Item = u64>) -> Vec<Duration> {
        values.into_iter().map(Duration::from_millis).collect()
    }

    #[test]
    fn percentiles_are_samples() {
        let percentiles = |values| Percentiles::new(ms(values).into_iter());
        let of = |p50, p90, p99| Some(Percentiles { p50, p90, p99 });
        assert_eq!(
            percentiles((1..=100).rev().collect::<Vec<_>>()),
            of(51.0, 91.0, 100.0)
        );
        assert_eq!(percentiles(vec![10, 20, 30]), of(20.0, 30.0, 30.0));
        assert_eq!(percentiles(vec![7]), of(7.0, 7.0, 7.0));
        assert_eq!(percentiles(vec![]), None);
    }

    #[test]
    fn a_median_is_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), Some(2.5));
        assert_eq!(median([].into_iter()), None);
    }

    #[test]
    fn a_summary_counts_what_was_served() {
        let served = |ttft: u64, gaps: &[u64]| {
            Ok(Served {
                ttft: Some(Duration::from_millis(ttft)),
                gaps: ms(gaps.iter().copied()),
                end_to_end: Duration::from_millis(100),
                prompt_tokens: 10,
                cached_tokens: 4,
                completion_tokens: 3,
            })
        };
        let failure = |text: &str| {
            Err(Failure {
                status: Some(503),
                text: text.to_owned(),
            })
        };
        let outcomes = vec![
            served(10, &[1, 2]),
            failure("first"),
            failure("second"),
            served(20, &[3, 4]),
        ];
        let summary = Summary::new(outcomes, Duration::from_secs(2));
        assert_eq!((summary.ok, summary.errors), (2, 2));
        assert_eq!(summary.first_error.unwrap().text, "first");
        assert_eq!(
            (summary.tokens_in, summary.tokens_cached, summary.tokens_out),
            (20, 8, 6)
        );
        assert_eq!(
            (summary.tokens_per_second, summary.requests_per_second),
            (3.0, 1.0)
        );
        assert_eq!(summary.ttft_ms.unwrap().p50, 20.0);
        assert_eq!(summary.inter_token_ms.unwrap().p50, 3.0);
    }

    #[test]
    fn without_a_request_there_are_counts_and_no_times() {
        let summary = Summary::new(Vec::new(), Duration::ZERO);
        assert_eq!((summary.ok, summary.errors), (0, 0));
        assert_eq!(summary.tokens_per_second, 0.0);
        let headline = Headline::median([&summary].into_iter());
        assert_eq!(headline.ratio(headline).tokens_per_second, None);
    }
}
