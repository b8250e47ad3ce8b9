//! A server in a process of its own.

use std::{
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError, Weak},
    thread::sleep,
    time::{Duration, Instant},
};

use reqwest::blocking::{Client, RequestBuilder, Response};
use serde_json::Value;
use tempfile::TempDir;

use crate::{Answer, Events};

/// How long a server may take to come up. Debug builds on busy machines are slow.
const START: Duration = Duration::from_secs(120);

/// How long anything else may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The binary under test.
///
/// # Panics
/// If cargo has not built it.
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("CARGO_BIN_EXE_heddle-under-test") {
        return path.into();
    }
    // A test that is run by hand: target/debug/deps/serve-123 stands beside target/debug/heddle-under-test.
    let test = std::env::current_exe().expect("the test's own path");
    let path = test
        .parent()
        .and_then(Path::parent)
        .expect("target/debug")
        .join("heddle-under-test");
    assert!(
        path.is_file(),
        "{} is missing: run the tests with cargo",
        path.display()
    );
    path
}

/// How a server is to be started.
#[derive(Debug, Default)]
pub struct Builder {
    config: String,
    args: Vec<String>,
    environment: Vec<(String, String)>,
}

impl Builder {
    /// The text of its `heddle.toml`.
    pub fn config(mut self, text: &str) -> Self {
        text.clone_into(&mut self.config);
        self
    }

    /// A further argument of `heddle serve pocket`.
    pub fn arg(mut self, arg: &str) -> Self {
        self.args.push(arg.to_owned());
        self
    }

    /// An environment variable.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts it and waits until it is ready.
    ///
    /// # Panics
    /// If it does not come up; the log is shown.
    pub fn start(self) -> Server {
        let folder = tempfile::tempdir().expect("a folder for the server");
        let mut child = self
            .command(folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("heddle starts");
        let log = Arc::new(Mutex::new(String::new()));
        collect(child.stderr.take().expect("piped"), log.clone());
        let output = Arc::new(Mutex::new(String::new()));
        collect(child.stdout.take().expect("piped"), output.clone());
        let mut server = Server {
            child,
            address: ([127, 0, 0, 1], 0).into(),
            log,
            output,
            client: Client::builder()
                .no_proxy()
                .timeout(PATIENCE)
                .build()
                .expect("an HTTP client"),
            folder,
        };
        server.wait_until_ready();
        server
    }

    /// Runs it to its end: for what should not start.
    ///
    /// # Panics
    /// If it cannot be run, or does not end by itself.
    pub fn fail(self) -> (ExitStatus, String) {
        let folder = tempfile::tempdir().expect("a folder for the server");
        let mut child = self
            .command(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("heddle runs");
        let start = Instant::now();
        while child.try_wait().expect("a child").is_none() {
            if start.elapsed() > PATIENCE {
                // It is over for the test, whether or not it can be killed.
                let _ = child.kill();
                let output = child.wait_with_output().expect("its output");
                panic!(
                    "it serves, but should not:\n{}",
                    String::from_utf8_lossy(&output.stderr)
                );
            }
            sleep(Duration::from_millis(10));
        }
        let output = child.wait_with_output().expect("its output");
        (
            output.status,
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    }

    fn command(&self, folder: &Path) -> Command {
        let config = folder.join("heddle.toml");
        std::fs::write(&config, &self.config).expect("the configuration is written");
        let mut command = Command::new(binary());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("HEDDLE_") {
                command.env_remove(name);
            }
        }
        command
            .args(["serve", "pocket", "--port", "0", "--config"])
            .arg(config)
            .args(&self.args)
            .env("HEDDLE_SERVER__STATE_DIR", folder.join("state"))
            .env("HEDDLE_SOURCES__CACHE", folder.join("cache"))
            .env("HEDDLE_MODEL__KV_CACHE_MIB", "64")
            .env("HEDDLE_ADMIN__LISTEN", "off")
            .envs(self.environment.iter().cloned());
        command
    }
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    child: Child,
    address: SocketAddr,
    log: Arc<Mutex<String>>,
    output: Arc<Mutex<String>>,
    client: Client,
    folder: TempDir,
}

impl Server {
    /// A server with the default configuration that the tests of a file share. It ends with the last of them.
    pub fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = shared.upgrade() {
            return server;
        }
        let server = Arc::new(Self::builder().start());
        *shared = Arc::downgrade(&server);
        server
    }

    /// A server to be configured.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The address of a path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its folder: `heddle.toml`, `state`, `cache`.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// What it has logged so far, on standard error.
    pub fn log(&self) -> String {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What it has printed so far, on standard output.
    pub fn output(&self) -> String {
        self.output.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until the log holds `text`.
    ///
    /// # Panics
    /// If it does not come.
    pub fn wait_for_log(&self, text: &str) {
        self.wait_until(&format!("`{text}` in the log"), || self.log().contains(text));
    }

    /// Waits until something holds.
    ///
    /// # Panics
    /// If it does not come; the log is shown.
    pub fn wait_until(&self, what: &str, holds: impl Fn() -> bool) {
        let start = Instant::now();
        while !holds() {
            assert!(
                start.elapsed() < PATIENCE,
                "{what} did not come; the log:\n{}",
                self.log()
            );
            sleep(Duration::from_millis(10));
        }
    }

    /// A request to be added to.
    pub fn request(&self, method: &str, path: &str) -> RequestBuilder {
        let method = method.parse().expect("a method");
        self.client.request(method, self.url(path))
    }

    /// A GET.
    pub fn get(&self, path: &str) -> Answer {
        send(self.request("GET", path))
    }

    /// A POST of a JSON document.
    pub fn post(&self, path: &str, body: &Value) -> Answer {
        send(self.request("POST", path).json(body))
    }

    /// A POST of a JSON document with a token.
    pub fn post_as(&self, token: &str, path: &str, body: &Value) -> Answer {
        send(self.request("POST", path).bearer_auth(token).json(body))
    }

    /// A POST whose answer is a stream of events.
    ///
    /// # Panics
    /// If it is none.
    pub fn stream(&self, path: &str, body: &Value) -> Events {
        let response = self.request("POST", path).json(body).send().expect("an answer");
        assert_is_stream(&response);
        Events::new(response)
    }

    /// Where its admin API listens.
    ///
    /// # Panics
    /// If it has none.
    pub fn admin_url(&self) -> String {
        self.printed("admin").expect("an admin API")
    }

    /// A request to the admin API; a body is a component.
    pub fn admin(&self, method: &str, path: &str, token: &str, body: Vec<u8>) -> Answer {
        let url = format!("{}{path}", self.admin_url());
        let method = method.parse().expect("a method");
        let request = self.client.request(method, url).bearer_auth(token);
        send(request.header("content-type", "application/wasm").body(body))
    }

    /// The id of its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A number of `/health`.
    pub fn health(&self, key: &str) -> u64 {
        self.get("/health").json()[key].as_u64().expect("a number")
    }

    /// Sends it a signal: `TERM`, `INT`, `HUP`.
    ///
    /// # Panics
    /// If that fails.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args([format!("-{name}"), self.child.id().to_string()])
            .status()
            .expect("kill runs");
        assert!(status.success());
    }

    /// Waits until it has ended by itself.
    ///
    /// # Panics
    /// If it does not end.
    pub fn wait(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "it does not end; the log:\n{}",
                self.log()
            );
            sleep(Duration::from_millis(10));
        }
    }

    /// What the banner says of something.
    fn printed(&self, name: &str) -> Option<String> {
        let output = self.output();
        let line = output.lines().find_map(|line| line.trim().strip_prefix(name))?;
        Some(line.trim().to_owned())
    }

    fn wait_until_ready(&mut self) {
        let start = Instant::now();
        loop {
            let listening = self.printed("listening");
            if let Some(address) = listening.and_then(|url| url.strip_prefix("http://")?.parse().ok()) {
                self.address = address;
                return;
            }
            let ended = self.child.try_wait().expect("a child");
            assert!(
                ended.is_none() && start.elapsed() < START,
                "the server does not come up ({ended:?}); the log:\n{}",
                self.log()
            );
            sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn send(request: RequestBuilder) -> Answer {
    Answer::read(request.send().expect("an answer"))
}

fn assert_is_stream(response: &Response) {
    let content_type = response.headers().get("content-type");
    assert_eq!(
        content_type.and_then(|value| value.to_str().ok()),
        Some("text/event-stream"),
        "status {}",
        response.status()
    );
}

/// Reads lines into a string, on a thread that ends with the process that writes them.
fn collect(source: impl Read + Send + 'static, into: Arc<Mutex<String>>) {
    std::thread::spawn(move || {
        for line in BufReader::new(source).lines().map_while(Result::ok) {
            let mut text = into.lock().unwrap_or_else(PoisonError::into_inner);
            text.push_str(&line);
            text.push('\n');
        }
    });
}
