//! Sends requests at a pace, and gathers how they end.

use std::{future, ops::Range, pin::Pin, time::Duration};

use futures_util::{StreamExt, stream};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tokio::time::Instant;

use super::{
    request::{self, Failure, Served},
    server::Server,
    workload::Workload,
};

/// When requests are sent.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Pace {
    /// A closed loop: so many clients, each with one request at a time.
    Clients(u64),
    /// An open loop: so many requests per second.
    Rate(f64),
}

/// Sends requests to one server.
pub(super) struct Driver<'a> {
    pub(super) server: &'a Server,
    pub(super) workload: &'a Workload,
    /// What is beside the progress bar.
    pub(super) label: String,
}

/// How requests ended.
pub(super) struct Driven {
    pub(super) outcomes: Vec<Result<Served, Failure>>,
    /// From the first request to the end of the last one of the outcomes.
    pub(super) elapsed: Duration,
    /// Whether all have ended.
    pub(super) complete: bool,
}

impl Driver<'_> {
    /// Sends the requests of a range of numbers. When `stop` resolves, those that are running are dropped.
    pub(super) async fn drive(
        &self,
        pace: &Pace,
        requests: Range<u64>,
        mut stop: Pin<&mut impl Future<Output = ()>>,
    ) -> Driven {
        let total = (requests.end - requests.start) as usize;
        // In an open loop all are running from the beginning: each waits for its time.
        let (running, arrivals) = match *pace {
            Pace::Clients(clients) => (clients as usize, Vec::new()),
            Pace::Rate(rate) => (total, self.workload.arrivals(rate, requests.clone())),
        };
        let bar = bar(total, &self.label);
        let started = Instant::now();
        let arrivals = arrivals.into_iter().map(|arrival| started + arrival);
        let arrivals = arrivals.map(Some).chain(std::iter::repeat(None));
        let mut ends = stream::iter(requests.zip(arrivals))
            .map(|(request, arrival)| async move {
                if let Some(arrival) = arrival {
                    tokio::time::sleep_until(arrival).await;
                }
                request::send(self.server, self.workload, request).await
            })
            .buffer_unordered(running);
        let mut outcomes = Vec::with_capacity(total);
        let mut elapsed = Duration::ZERO;
        let complete = loop {
            let end = tokio::select! {
                end = ends.next() => end,
                () = &mut stop => break false,
            };
            let Some(outcome) = end else { break true };
            outcomes.push(outcome);
            elapsed = started.elapsed();
            bar.inc(1);
        };
        bar.finish_and_clear();
        Driven {
            outcomes,
            elapsed,
            complete,
        }
    }
}

/// Resolves with Ctrl-C.
pub(super) async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        // Where signals cannot be watched, Ctrl-C ends the process.
        future::pending().await
    }
}

/// A bar on standard error; nothing where that is no terminal.
fn bar(total: usize, label: &str) -> ProgressBar {
    let bar = ProgressBar::new(total as u64);
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {eta}") {
        bar.set_style(style);
    }
    bar.set_message(label.to_owned());
    bar
}
