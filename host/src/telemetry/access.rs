//! One request in the log and in the metrics.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::Metrics;
use crate::plugin::bindings::heddle::plugin::generation::Usage;

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The answer was complete.
    Complete,
    /// The answer broke off after its first byte.
    BrokenOff,
    /// The client went away first.
    Cancelled,
}

/// What is kept of a request while it is answered. Dropping it writes its line: a request that is dropped before it
/// was finished is one whose client went away.
#[derive(Debug)]
pub struct Record {
    metrics: Arc<Metrics>,
    request_id: String,
    method: &'static str,
    route: String,
    model: Option<String>,
    status: Option<u16>,
    outcome: Outcome,
    start: Instant,
    first_token: Option<Duration>,
    usage: Usage,
}

impl Record {
    /// A request's head has come.
    pub fn begin(metrics: Arc<Metrics>, request_id: String, method: &hyper::Method) -> Self {
        metrics.begin();
        Self {
            metrics,
            request_id,
            method: known(method),
            route: "unmatched".to_owned(),
            model: None,
            status: None,
            outcome: Outcome::Cancelled,
            start: Instant::now(),
            first_token: None,
            usage: Usage {
                prompt_tokens: 0,
                completion_tokens: 0,
                cached_tokens: 0,
            },
        }
    }

    /// The route that serves it, as it was declared.
    pub fn route(&mut self, route: &str) {
        route.clone_into(&mut self.route);
    }

    /// What serves it: a name that this server gave.
    pub fn model(&mut self, name: &str) {
        self.model = Some(name.to_owned());
    }

    /// The id of the request.
    pub fn request_id(&self) -> &str {
        &self.request_id
    }

    /// The tokens so far.
    pub fn usage(&mut self, now: &Usage) {
        if self.first_token.is_none() && now.completion_tokens > 0 {
            let after = self.start.elapsed();
            self.first_token = Some(after);
            self.metrics.first_token(after);
        }
        let more = |now: u32, before: u32| u64::from(now.saturating_sub(before));
        self.metrics.tokens(
            more(now.prompt_tokens, self.usage.prompt_tokens),
            more(now.completion_tokens, self.usage.completion_tokens),
            more(now.cached_tokens, self.usage.cached_tokens),
        );
        self.usage = *now;
    }

    /// The status is on its way, the body follows.
    pub fn status(&mut self, status: u16) {
        self.status = Some(status);
    }

    /// The request is over.
    pub fn end(&mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        // 499 is what proxies log for a client that went away.
        let status = self.status.unwrap_or(499);
        let duration = self.start.elapsed();
        let cancelled = self.outcome == Outcome::Cancelled;
        self.metrics.end(&self.route, status, cancelled, duration);
        tracing::info!(
            target: "heddle::access",
            request_id = %self.request_id,
            method = self.method,
            route = %self.route,
            status,
            outcome = match self.outcome {
                Outcome::Complete => "complete",
                Outcome::BrokenOff => "broken-off",
                Outcome::Cancelled => "cancelled",
            },
            model = self.model.as_deref().unwrap_or("-"),
            duration_ms = millis(duration),
            first_token_ms = self.first_token.map(millis),
            prompt_tokens = self.usage.prompt_tokens,
            completion_tokens = self.usage.completion_tokens,
            "request"
        );
    }
}

fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e5).round() / 100.0
}

/// A client may invent methods; the log does not repeat them.
fn known(method: &hyper::Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        "OPTIONS" => "OPTIONS",
        _ => "OTHER",
    }
}
