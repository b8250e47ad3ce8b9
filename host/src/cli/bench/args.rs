//! What `heddle bench` is told.

use std::time::Duration;

use reqwest::{Url, header::HeaderValue};

use super::{
    adapters::{Choice, Names, Zipf},
    drive::Pace,
    workload::Workload,
};
use crate::error::{Error, Result};

const EXAMPLES: &str = "\
Examples:
  heddle bench http://localhost:8080
  heddle bench http://localhost:8080 --clients 32 --requests 256 --adapters a:64 --choose zipf
  heddle bench http://localhost:8080 --rate 4 --json
  heddle bench http://localhost:8080 http://localhost:8000     which of the two is faster?";

/// `heddle bench URL [OTHER_URL] [OPTIONS]`
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(in crate::cli) struct Args {
    /// The server, as in http://localhost:8080
    #[arg(value_parser = address)]
    url: Url,
    /// A server to compare it with: each gets the same work in turn
    #[arg(value_parser = address)]
    other_url: Option<Url>,

    /// Closed loop: this many clients, each with one request at a time
    #[arg(long, value_name = "COUNT", default_value = "8", value_parser = count)]
    pub(super) clients: u64,
    /// Open loop: requests per second, with exponential gaps, however many are still running
    #[arg(long, value_name = "REQUESTS/S", conflicts_with = "clients", value_parser = positive)]
    rate: Option<f64>,
    /// Requests of a run
    #[arg(long, value_name = "COUNT", default_value = "32", value_parser = count)]
    pub(super) requests: u64,
    /// Requests before each run that are not counted
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub(super) warmup: u64,
    /// Runs on each server [default: 1; 5 where there are two servers]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) runs: Option<u32>,

    /// Words of a prompt, drawn at random for each request
    #[arg(long, value_name = "COUNT", default_value = "100", value_parser = count)]
    prompt_words: u64,
    /// How many of the prompt's words, counted from its beginning, all requests have in common
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    shared_prefix: u64,
    /// Tokens to generate for each request
    #[arg(long, value_name = "COUNT", default_value = "64", value_parser = count)]
    max_tokens: u64,
    /// Another seed gives other prompts, gaps and choices: a server with a prefix cache knows those of the last time
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// The model to ask for [default: the first of /v1/models, or `base`]
    #[arg(long, value_name = "NAME")]
    pub(super) model: Option<String>,
    /// The models to ask for in its place: NAME,NAME,... where PREFIX:N stands for PREFIX0 to PREFIX(N-1)
    #[arg(long, value_name = "NAMES", conflicts_with = "model")]
    adapters: Option<Names>,
    /// Which adapter a request asks for
    #[arg(
        long,
        value_name = "HOW",
        value_enum,
        default_value = "round-robin",
        requires = "adapters"
    )]
    choose: Choose,
    /// With zipf: the adapter of rank k is asked for in proportion to 1/k^S
    #[arg(long, value_name = "S", default_value = "1.0", value_parser = positive)]
    zipf_exponent: f64,

    /// The key to send as a bearer token
    #[arg(long = "api-key", value_name = "KEY", value_parser = bearer)]
    pub(super) authorization: Option<HeaderValue>,
    /// Seconds after which a request has failed
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = positive)]
    timeout: f64,
    /// As JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// How an adapter is chosen for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Choose {
    /// Each in turn
    RoundRobin,
    /// The first most often, by Zipf's law
    Zipf,
}

impl Args {
    /// The servers, in the order in which they get their work.
    pub(super) fn servers(&self) -> impl Iterator<Item = &Url> {
        std::iter::once(&self.url).chain(&self.other_url)
    }

    /// When requests are sent.
    pub(super) fn pace(&self) -> Pace {
        self.rate.map_or(Pace::Clients(self.clients), Pace::Rate)
    }

    /// How long a request may take.
    pub(super) fn timeout(&self) -> Duration {
        // A number of seconds that no duration holds is as good as no limit.
        Duration::try_from_secs_f64(self.timeout).unwrap_or(Duration::from_secs(u64::from(u32::MAX)))
    }

    /// What is in the requests.
    ///
    /// # Errors
    /// If the common words are more than the words.
    pub(super) fn workload(&self) -> Result<Workload> {
        if self.shared_prefix > self.prompt_words {
            return Err(Error::Config(format!(
                "--shared-prefix is {}, but a prompt has {} words: give at most that, or more --prompt-words",
                self.shared_prefix, self.prompt_words
            )));
        }
        let adapters = self.adapters.clone().unwrap_or_default();
        let choice = match self.choose {
            Choose::RoundRobin => Choice::RoundRobin,
            Choose::Zipf => Choice::Zipf(Zipf::new(adapters.0.len(), self.zipf_exponent)),
        };
        Ok(Workload {
            seed: self.seed,
            prompt_words: self.prompt_words,
            shared_prefix: self.shared_prefix,
            max_tokens: self.max_tokens,
            adapters,
            choice,
        })
    }
}

/// An address without a path of the API's own; `http://` may be left out.
fn address(text: &str) -> Result<Url, String> {
    let wrong = |why: &str| format!("{why}: expected an address as in http://localhost:8080");
    let url = if text.contains("://") {
        text.to_owned()
    } else {
        format!("http://{text}")
    };
    let url = Url::parse(url.trim_end_matches('/').trim_end_matches("/v1"));
    let url = url.map_err(|error| wrong(&error.to_string()))?;
    match url.scheme() {
        "http" | "https" => Ok(url),
        other => Err(wrong(&format!("`{other}` is not a scheme of HTTP"))),
    }
}

fn count(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(count) if count > 0 => Ok(count),
        _ => Err("expected a whole number above 0".to_owned()),
    }
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        _ => Err("expected a number above 0".to_owned()),
    }
}

fn bearer(key: &str) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::from_str(&format!("Bearer {key}"))
        .map_err(|_| "it has characters that no header may have".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parse(flags: &[&str]) -> Result<Args, clap::Error> {
        let line = ["bench", "http://localhost:1"].iter().chain(flags);
        Line::try_parse_from(line).map(|line| line.args)
    }

    #[test]
    fn an_address_is_where_v1_begins() {
        for (text, url) in [
            ("http://localhost:8080", "http://localhost:8080/"),
            ("http://localhost:8080/v1/", "http://localhost:8080/"),
            ("localhost:8080", "http://localhost:8080/"),
            ("https://example.org/proxy/v1", "https://example.org/proxy"),
        ] {
            assert_eq!(address(text).unwrap().as_str(), url, "{text}");
        }
        for wrong in ["", "ftp://localhost", "http://", "http://localhost:port"] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        assert!(parse(&[]).is_ok());
        for wrong in [
            &["--rate", "2", "--clients", "2"][..],
            &["--rate", "0"],
            &["--rate", "nan"],
            &["--requests", "0"],
            &["--runs", "0"],
            &["--model", "a", "--adapters", "b"],
            &["--choose", "zipf"],
            &["--api-key", "a\nb"],
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
        let args = parse(&["--prompt-words", "4", "--shared-prefix", "5"]).unwrap();
        assert!(args.workload().is_err());
    }

    #[test]
    fn the_key_is_not_shown() {
        let args = parse(&["--api-key", "sesame"]).unwrap();
        assert!(!format!("{args:?}").contains("sesame"));
    }
}
