//! What is in the requests. Each is a function of its number and the seed alone.

use std::{ops::Range, time::Duration};

use serde::Serialize;

use super::{
    adapters::{Choice, Names},
    random::{Purpose, Random},
};

/// Frequent words of English: a token each in most vocabularies.
const WORDS: &str = "the of and to in is that it was for on are with as his they at be this from have or by one had not \
    but what all were when we there can an your which their said if do will each about how up out them then she many \
    some so these would other into has more her two like him see time could no make than first been its who now people \
    my made over did down only way find use may water long little very after words called just where most know";

/// The requests of all runs, by number.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Workload {
    pub(super) seed: u64,
    pub(super) prompt_words: u64,
    /// How many of the words of a prompt are the same in all of them.
    pub(super) shared_prefix: u64,
    pub(super) max_tokens: u64,
    pub(super) adapters: Names,
    #[serde(rename = "choose")]
    pub(super) choice: Choice,
}

/// The body of a request to `/v1/completions`: greedy, streamed, and of the full length.
#[derive(Debug, Serialize)]
pub(super) struct Body<'a> {
    model: &'a str,
    prompt: String,
    max_tokens: u64,
    temperature: u8,
    ignore_eos: bool,
    stream: bool,
    stream_options: StreamOptions,
}

#[derive(Debug, Serialize)]
struct StreamOptions {
    include_usage: bool,
}

impl Workload {
    /// The body of a request, for `model` where there are no adapters.
    pub(super) fn body<'a>(&'a self, request: u64, model: &'a str) -> Body<'a> {
        Body {
            model: self.adapter(request).unwrap_or(model),
            prompt: self.prompt(request),
            max_tokens: self.max_tokens,
            temperature: 0,
            ignore_eos: true,
            stream: true,
            stream_options: StreamOptions { include_usage: true },
        }
    }

    /// When each of the requests is sent at `rate` requests per second, counted from the first one: the gaps are
    /// exponential, and so requests come as a Poisson process.
    pub(super) fn arrivals(&self, rate: f64, requests: Range<u64>) -> Vec<Duration> {
        let mut arrival = 0.0;
        requests
            .enumerate()
            .map(|(index, request)| {
                if index > 0 {
                    let unit = Random::new(self.seed, Purpose::Gap, request).unit();
                    arrival -= (1.0 - unit).ln() / rate;
                }
                // Centuries are as good as never.
                Duration::try_from_secs_f64(arrival).unwrap_or(Duration::from_secs(u64::from(u32::MAX)))
            })
            .collect()
    }

    fn adapter(&self, request: u64) -> Option<&str> {
        let names = &self.adapters.0;
        if names.is_empty() {
            return None;
        }
        let index = self.choice.index(names.len(), self.seed, request);
        names.get(index).map(String::as_str)
    }

    fn prompt(&self, request: u64) -> String {
        let list: Vec<&str> = WORDS.split_whitespace().collect();
        let mut shared = Random::new(self.seed, Purpose::SharedPrefix, 0);
        let mut own = Random::new(self.seed, Purpose::Prompt, request);
        let words: Vec<_> = (0..self.prompt_words)
            .map(|position| {
                let random = if position < self.shared_prefix {
                    &mut shared
                } else {
                    &mut own
                };
                list[random.below(list.len())]
            })
            .collect();
        words.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn workload(seed: u64) -> Workload {
        Workload {
            seed,
            prompt_words: 20,
            shared_prefix: 5,
            max_tokens: 8,
            adapters: "a:2".parse().unwrap(),
            choice: Choice::RoundRobin,
        }
    }

    #[test]
    fn a_request_is_the_same_each_time() {
        let body = |seed, request| serde_json::to_value(workload(seed).body(request, "base")).unwrap();
        assert_eq!(body(1, 3), body(1, 3));
        assert_ne!(body(1, 3)["prompt"], body(2, 3)["prompt"]);
        assert_eq!(body(1, 3)["model"], "a1");
        assert_eq!(body(1, 3)["stream_options"]["include_usage"], true);
    }

    #[test]
    fn prompts_have_their_first_words_in_common_and_no_others() {
        let workload = workload(1);
        let prompts: Vec<_> = (0..50).map(|request| workload.prompt(request)).collect();
        let split = |prompt: &str, at: std::ops::Range<usize>| -> Vec<String> {
            prompt.split(' ').map(str::to_owned).collect::<Vec<_>>()[at].to_vec()
        };
        assert!(prompts.iter().all(|prompt| prompt.split(' ').count() == 20));
        let shared: BTreeSet<_> = prompts.iter().map(|prompt| split(prompt, 0..5)).collect();
        assert_eq!(shared.len(), 1);
        let own: BTreeSet<_> = prompts.iter().map(|prompt| split(prompt, 5..20)).collect();
        assert_eq!(own.len(), prompts.len());
    }

    #[test]
    fn arrivals_have_the_rate_that_is_asked_for() {
        let workload = workload(1);
        let arrivals = workload.arrivals(100.0, 0..2001);
        assert_eq!(arrivals[0], Duration::ZERO);
        assert!(arrivals.is_sorted());
        assert_eq!(arrivals, workload.arrivals(100.0, 0..2001));
        // 2000 gaps of 10 ms; the standard deviation of their sum is 0.45 s.
        let last = arrivals[2000].as_secs_f64();
        assert!((last - 20.0).abs() < 2.0, "{last}");
    }

    #[test]
    fn without_adapters_the_model_is_asked_for() {
        let workload = Workload {
            adapters: Names::default(),
            ..workload(1)
        };
        let body = serde_json::to_value(workload.body(0, "base")).unwrap();
        assert_eq!(body["model"], "base");
    }
}
