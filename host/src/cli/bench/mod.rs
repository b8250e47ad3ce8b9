//! `heddle bench`: throughput and latency of OpenAI-style servers under load.
//!
//! Each request is a streamed completion of a fixed length, with a prompt that no other request has. The figures are
//! throughput, time to first token (TTFT), inter-token latency and end-to-end latency.

mod adapters;
mod args;
mod drive;
mod random;
mod report;
mod request;
mod server;
mod sse;
mod stats;
mod workload;

use std::{pin::pin, process::ExitCode};

use anyhow::Context;

pub(super) use args::Args;

use self::{
    drive::{Driver, Pace, interrupted},
    report::{Report, Run, Work},
    server::Server,
    stats::Summary,
    workload::Workload,
};
use super::signals::INTERRUPTED;

/// Runs of a server where two are compared and nothing else is said: enough for a median.
const RUNS_OF_TWO: u32 = 5;

/// Measures, shows the figures, and fails if a request failed.
pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let workload = args.workload()?;
    // One thread: the other cores are left to a server on this machine.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the asynchronous runtime could not be started")?;
    let report = runtime.block_on(measure(&args, workload))?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report.json())?);
    } else {
        print!("{}", report.comparison());
    }
    Ok(if report.runs.iter().any(|run| !run.complete) {
        ExitCode::from(INTERRUPTED)
    } else if report.runs.iter().any(|run| run.summary.errors > 0) {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Every run, each shown when it has ended; no more of them after Ctrl-C.
async fn measure(args: &Args, workload: Workload) -> anyhow::Result<Report> {
    let mut servers = Vec::new();
    for url in args.servers() {
        servers.push(Server::connect(url, args).await?);
    }
    let runs = args
        .runs
        .unwrap_or(if servers.len() > 1 { RUNS_OF_TWO } else { 1 });
    let mut report = Report {
        work: Work {
            pace: args.pace(),
            requests: args.requests,
            warmup: args.warmup,
            workload,
        },
        servers: servers.iter().map(|server| server.address.clone()).collect(),
        runs: Vec::new(),
    };
    if !args.json {
        println!("{}", report.work);
    }
    let no_adapters = report.work.workload.adapters.0.is_empty();
    let mut stop = pin!(interrupted());
    for run in 0..runs {
        // Each run has requests of its own, so that no run finds the prompts of the last one in a cache.
        let first = u64::from(run) * (args.warmup + args.requests);
        let counted = first + args.warmup;
        for server in &servers {
            let driver = Driver {
                server,
                workload: &report.work.workload,
                label: format!("run {} of {runs}, {}", run + 1, server.address),
            };
            let warmup = Pace::Clients(args.clients);
            let mut driven = driver.drive(&warmup, first..counted, stop.as_mut()).await;
            if driven.complete {
                let requests = counted..counted + args.requests;
                driven = driver.drive(&report.work.pace, requests, stop.as_mut()).await;
            } else {
                driven.outcomes.clear();
            }
            let run = Run {
                server: server.address.clone(),
                model: no_adapters.then(|| server.model.clone()),
                run: run + 1,
                complete: driven.complete,
                summary: Summary::new(driven.outcomes, driven.elapsed),
            };
            if !args.json {
                println!("\n{run}");
            }
            report.runs.push(run);
            if !driven.complete {
                return Ok(report);
            }
        }
    }
    Ok(report)
}
