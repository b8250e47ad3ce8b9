//! The sources of models and adapters against servers on loopback, each playing its part as its documentation says.

// Helpers of tests are tests.
#![allow(clippy::unwrap_used)]

mod cache;
mod hub;
mod local;
mod s3;
mod server;
mod wheel;

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use heddle_engine::{
    Error,
    hub::{Files, Patience, Progress, Sources, SourcesConfig},
};
use sha2::{Digest, Sha256};

/// A configuration that keeps to `folder` and to this machine, and does not wait long.
fn config(folder: &Path) -> SourcesConfig {
    SourcesConfig {
        hub_endpoint: "http://127.0.0.1:1".to_owned(),
        index_url: "http://127.0.0.1:1/simple".to_owned(),
        // No test waits for these, and a machine with much else to do must not fail by them.
        patience: Patience {
            connect: PATIENCE,
            lookup: PATIENCE,
            read: PATIENCE,
            retries: 2,
            backoff: Duration::from_millis(5),
        },
        ..SourcesConfig::new(folder.join("cache"))
    }
}

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(120);

fn sources(config: SourcesConfig) -> Arc<Sources> {
    Sources::new(config).unwrap()
}

fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// Bytes that do not repeat, so that a piece at the wrong place shows.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let mut next = || {
        // xorshift32, Marsaglia 2003.
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

fn read(files: &Files, name: &str) -> Vec<u8> {
    files.read(name).unwrap().unwrap().into_owned()
}

/// What [`Error::Fetch`] says: the reason, and whether it does not exist or is forbidden.
fn fetch_error(error: Error) -> (String, bool, bool) {
    match error {
        Error::Fetch {
            reason,
            not_found,
            forbidden,
            ..
        } => (reason, not_found, forbidden),
        other => panic!("{other}"),
    }
}

/// Notes what is shown.
#[derive(Default)]
struct Noted {
    said: Mutex<Vec<String>>,
    begun: Mutex<Vec<(String, Option<u64>, u64)>>,
    bytes: Mutex<u64>,
}

impl Noted {
    fn said(&self) -> String {
        self.said.lock().unwrap().join("\n")
    }
}

impl Progress for Noted {
    fn begin(&self, file: &str, total: Option<u64>, done: u64) {
        self.begun.lock().unwrap().push((file.to_owned(), total, done));
    }

    fn advance(&self, bytes: u64) {
        *self.bytes.lock().unwrap() += bytes;
    }

    fn end(&self) {}

    fn say(&self, message: &str) {
        self.said.lock().unwrap().push(message.to_owned());
    }
}

/// An asynchronous host: the calls block on a thread made for that, and dropping the sources is fine anywhere.
#[test]
fn an_asynchronous_host_fetches_on_blocking_threads() {
    let folder = tempfile::tempdir().unwrap();
    let server = hub::Repo::adapter(b"weights").serve();
    let sources = sources(SourcesConfig {
        hub_endpoint: server.address(),
        ..config(folder.path())
    });
    tokio::runtime::Builder::new_multi_thread()
        .build()
        .unwrap()
        .block_on(async move {
            let shared = sources.clone();
            let fetch =
                move || shared.fetch_adapter(&hub::hub("org/name"), None, &heddle_engine::hub::Silent);
            tokio::task::spawn_blocking(fetch).await.unwrap().unwrap();
            drop(sources);
        });
}
