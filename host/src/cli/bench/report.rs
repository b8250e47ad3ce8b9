//! What is shown: a block for each run, and the medians of all.

use std::fmt;

use serde::Serialize;
use serde_json::{Value, json};

use super::{
    drive::Pace,
    stats::{Headline, Percentiles, Summary},
    workload::Workload,
};

/// Takes one figure out of several.
type Figure = fn(&Headline) -> Option<f64>;

/// All that was measured.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) work: Work,
    /// The addresses of the servers, in the order in which they were measured.
    pub(super) servers: Vec<String>,
    pub(super) runs: Vec<Run>,
}

/// What each run does.
#[derive(Debug, Serialize)]
pub(super) struct Work {
    #[serde(flatten)]
    pub(super) pace: Pace,
    /// Requests that count.
    pub(super) requests: u64,
    /// Requests before them.
    pub(super) warmup: u64,
    #[serde(flatten)]
    pub(super) workload: Workload,
}

/// A run on a server.
#[derive(Debug, Serialize)]
pub(super) struct Run {
    /// Its address.
    pub(super) server: String,
    /// The model that was asked for; none where there are adapters.
    pub(super) model: Option<String>,
    /// Counted from 1.
    pub(super) run: u32,
    /// Whether it came to its end.
    pub(super) complete: bool,
    #[serde(flatten)]
    pub(super) summary: Summary,
}

impl Report {
    /// The whole report as one document.
    pub(super) fn json(&self) -> Value {
        let medians: Vec<_> = (self.servers.iter().zip(self.medians()))
            .map(|(server, median)| json!({"server": server, "median": median}))
            .collect();
        json!({"work": self.work, "runs": self.runs, "medians": medians, "ratio": self.ratio()})
    }

    /// The medians and their ratio as a table; empty if there is nothing to compare.
    pub(super) fn comparison(&self) -> String {
        if self.runs.len() < 2 {
            return String::new();
        }
        let (mut columns, mut values) = (Vec::new(), self.medians());
        if let Some(ratio) = self.ratio() {
            columns.extend(["first", "second", "first/second"]);
            values.push(ratio);
        } else {
            columns.push("all runs");
        }
        let mut text = format!("\n{:<20}", "median");
        for column in columns {
            text += &format!("{column:>14}");
        }
        let rows: [(&str, Figure); 3] = [
            ("tokens/s", |headline| headline.tokens_per_second),
            ("TTFT p50, ms", |headline| headline.ttft_p50_ms),
            ("inter-token p50, ms", |headline| headline.inter_token_p50_ms),
        ];
        for (name, figure) in rows {
            text += &format!("\n{name:<20}");
            for (column, value) in values.iter().enumerate() {
                // Ratios need more digits than figures.
                let digits = if column == 2 { 3 } else { 1 };
                text += &match figure(value) {
                    Some(value) => format!("{value:>14.digits$}"),
                    None => format!("{:>14}", "-"),
                };
            }
        }
        text + "\n"
    }

    /// For each server the medians over its runs.
    fn medians(&self) -> Vec<Headline> {
        (self.servers.iter().enumerate())
            .map(|(index, _)| {
                // The servers take turns, and may well be the same one.
                let runs = self.runs.iter().skip(index).step_by(self.servers.len());
                Headline::median(runs.filter(|run| run.complete).map(|run| &run.summary))
            })
            .collect()
    }

    /// The first server's medians divided by the second one's.
    fn ratio(&self) -> Option<Headline> {
        match self.medians()[..] {
            [first, second] => Some(first.ratio(second)),
            _ => None,
        }
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pace {
            Pace::Clients(clients) => write!(f, "{clients} clients")?,
            Pace::Rate(rate) => write!(f, "{rate} requests/s")?,
        }
        let Workload {
            prompt_words,
            shared_prefix,
            max_tokens,
            ..
        } = self.workload;
        write!(f, ", {} requests of {prompt_words} words", self.requests)?;
        if shared_prefix > 0 {
            write!(f, " ({shared_prefix} in common)")?;
        }
        write!(f, " and {max_tokens} tokens")?;
        match self.workload.adapters.0.len() {
            0 => Ok(()),
            adapters => write!(f, ", {adapters} adapters"),
        }
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let summary = &self.summary;
        let interrupted = if self.complete { "" } else { ", interrupted" };
        let model = (self.model.as_ref()).map_or_else(String::new, |model| format!(", model {model}"));
        writeln!(f, "run {} on {}{model}{interrupted}", self.run, self.server)?;
        writeln!(
            f,
            "  requests    {} ok, {} failed in {:.2} s",
            summary.ok, summary.errors, summary.seconds
        )?;
        if let Some(failure) = &summary.first_error {
            writeln!(f, "  failure     {failure}")?;
        }
        writeln!(
            f,
            "  throughput  {:.1} tokens/s, {:.2} requests/s",
            summary.tokens_per_second, summary.requests_per_second
        )?;
        write!(f, "  tokens      {} in", summary.tokens_in)?;
        if summary.tokens_cached > 0 {
            write!(f, " ({} from a prefix cache)", summary.tokens_cached)?;
        }
        write!(f, ", {} out", summary.tokens_out)?;
        if summary.ok == 0 {
            return Ok(());
        }
        write!(f, "\n  {:<14}{:>10}{:>10}{:>10}", "ms", "p50", "p90", "p99")?;
        for (name, percentiles) in [
            ("TTFT", summary.ttft_ms),
            ("inter-token", summary.inter_token_ms),
            ("end to end", summary.end_to_end_ms),
        ] {
            if let Some(Percentiles { p50, p90, p99 }) = percentiles {
                write!(f, "\n  {name:<14}{p50:>10.1}{p90:>10.1}{p99:>10.1}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{
        super::{
            adapters::{Choice, Names},
            request::Served,
        },
        *,
    };

    /// A run of one request whose TTFT is `ms`, and which has ten tokens in a second.
    fn run(server: &str, ms: u64, complete: bool) -> Run {
        let served = Served {
            ttft: Some(Duration::from_millis(ms)),
            gaps: vec![Duration::from_millis(5)],
            end_to_end: Duration::from_secs(1),
            prompt_tokens: 4,
            cached_tokens: 1,
            completion_tokens: 10,
        };
        Run {
            server: server.to_owned(),
            model: Some("base".to_owned()),
            run: 1,
            complete,
            summary: Summary::new(vec![Ok(served)], Duration::from_secs(1)),
        }
    }

    fn report(servers: &[&str], runs: Vec<Run>) -> Report {
        Report {
            work: Work {
                pace: Pace::Clients(8),
                requests: 1,
                warmup: 0,
                workload: Workload {
                    seed: 0,
                    prompt_words: 3,
                    shared_prefix: 1,
                    max_tokens: 10,
                    adapters: Names::default(),
                    choice: Choice::RoundRobin,
                },
            },
            servers: servers.iter().map(|&server| server.to_owned()).collect(),
            runs,
        }
    }

    #[test]
    fn servers_are_compared_by_the_medians_of_whole_runs() {
        let report = report(
            &["a", "b"],
            vec![
                run("a", 10, true),
                run("b", 40, true),
                run("a", 20, true),
                run("b", 20, true),
                run("a", 90, false),
            ],
        );
        let document = report.json();
        assert_eq!(document["medians"][0]["server"], "a");
        assert_eq!(document["medians"][0]["median"]["ttft_p50_ms"], 15.0);
        assert_eq!(document["medians"][1]["median"]["ttft_p50_ms"], 30.0);
        assert_eq!(document["ratio"]["ttft_p50_ms"], 0.5);
        assert_eq!(document["ratio"]["tokens_per_second"], 1.0);
        let rows: Vec<String> = (report.comparison().trim().lines())
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(rows[0], "median first second first/second");
        assert_eq!(rows[2], "TTFT p50, ms 15.0 30.0 0.500");
    }

    #[test]
    fn one_run_is_compared_with_nothing() {
        let report = report(&["a"], vec![run("a", 10, true)]);
        assert_eq!(report.comparison(), "");
        let document = report.json();
        assert_eq!(document["ratio"], Value::Null);
        assert_eq!(document["work"]["clients"], 8);
        assert_eq!(document["work"]["choose"], "round-robin");
        assert_eq!(document["runs"][0]["inter_token_ms"]["p99"], 5.0);
    }

    #[test]
    fn the_text_has_every_figure() {
        assert_eq!(
            report(&[], Vec::new()).work.to_string(),
            "8 clients, 1 requests of 3 words (1 in common) and 10 tokens"
        );
        let text = run("a", 10, false).to_string();
        for part in [
            "run 1 on a, model base, interrupted",
            "1 ok, 0 failed in 1.00 s",
            "10.0 tokens/s, 1.00 requests/s",
            "4 in (1 from a prefix cache), 10 out",
            "TTFT                10.0      10.0      10.0",
        ] {
            assert!(text.contains(part), "{part} in:\n{text}");
        }
    }
}
