//! An HTTP server on loopback: a closure answers, every request is noted, and answers can be slow or cut.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

/// A request that came.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// Path and query.
    pub(crate) target: String,
    /// By their names in lower case.
    pub(crate) headers: BTreeMap<String, String>,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// What is answered.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    /// The connection is closed after so many bytes of the body.
    cut: Option<usize>,
    delay: Duration,
    /// Without a length the end of the body is the end of the connection.
    length: bool,
}

impl Answer {
    pub(crate) fn status(status: u16) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: Vec::new(),
            cut: None,
            delay: Duration::ZERO,
            length: true,
        }
    }

    pub(crate) fn ok(body: impl Into<Vec<u8>>) -> Self {
        Self {
            body: body.into(),
            ..Self::status(200)
        }
    }

    pub(crate) fn redirect(to: &str) -> Self {
        Self::status(302).header("Location", to)
    }

    /// A file as servers give it: with an ETag, ranges (RFC 9110, section 14), `If-Range` and `If-Match`.
    pub(crate) fn file(request: &Seen, bytes: &[u8], etag: &str) -> Self {
        let etag = format!("\"{etag}\"");
        if request.header("if-match").is_some_and(|wanted| wanted != etag) {
            return Self::status(412);
        }
        let start = request
            .header("range")
            .and_then(|range| {
                range
                    .strip_prefix("bytes=")?
                    .split('-')
                    .next()?
                    .parse::<usize>()
                    .ok()
            })
            .filter(|_| request.header("if-range").is_none_or(|wanted| wanted == etag));
        let answer = match start {
            Some(start) if start >= bytes.len() => {
                return Self::status(416).header("Content-Range", &format!("bytes */{}", bytes.len()));
            }
            Some(start) => Self {
                status: 206,
                ..Self::ok(&bytes[start..])
            }
            .header(
                "Content-Range",
                &format!("bytes {start}-{}/{}", bytes.len() - 1, bytes.len()),
            ),
            None => Self::ok(bytes),
        };
        // S3 clients want to know when.
        answer
            .header("ETag", &etag)
            .header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn cut_after(mut self, bytes: usize) -> Self {
        self.cut = Some(bytes);
        self
    }

    pub(crate) fn after(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    pub(crate) fn without_length(mut self) -> Self {
        self.length = false;
        self
    }
}

/// The server. It ends with the test.
pub(crate) struct Server {
    port: u16,
    seen: Arc<Mutex<Vec<Seen>>>,
    open: Arc<Mutex<bool>>,
}

impl Server {
    pub(crate) fn start(answer: impl Fn(&Seen) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self {
            port: listener.local_addr().unwrap().port(),
            seen: Arc::default(),
            open: Arc::new(Mutex::new(true)),
        };
        let (seen, open, answer) = (server.seen.clone(), server.open.clone(), Arc::new(answer));
        thread::spawn(move || {
            for stream in listener.incoming() {
                // Closed: connections are refused from here on.
                if !*open.lock().unwrap() {
                    return;
                }
                let (seen, answer) = (seen.clone(), answer.clone());
                thread::spawn(move || serve(&stream.unwrap(), &seen, &*answer));
            }
        });
        server
    }

    /// `http://127.0.0.1:port`.
    pub(crate) fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The same server under another host's name.
    pub(crate) fn other_host(&self) -> String {
        format!("http://localhost:{}", self.port)
    }

    /// The requests so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// How many requests had `part` in their target.
    pub(crate) fn count(&self, part: &str) -> usize {
        self.seen()
            .iter()
            .filter(|request| request.target.contains(part))
            .count()
    }

    /// Refuses connections from now on.
    pub(crate) fn close(&self) {
        *self.open.lock().unwrap() = false;
        // Wakes the thread, which drops the listener.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
        while TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

fn serve(mut stream: &TcpStream, seen: &Mutex<Vec<Seen>>, answer: &dyn Fn(&Seen) -> Answer) {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let Some(target) = lines
        .next()
        .and_then(|line| line.split(' ').nth(1).map(str::to_owned))
    else {
        return;
    };
    let headers = lines
        .take_while(|line| !line.is_empty())
        .filter_map(|line| {
            line.split_once(": ")
                .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        })
        .collect();
    let request = Seen { target, headers };
    seen.lock().unwrap().push(request.clone());
    let answer = answer(&request);
    thread::sleep(answer.delay);
    let mut head = format!("HTTP/1.1 {} X\r\nConnection: close\r\n", answer.status);
    if answer.length {
        head += &format!("Content-Length: {}\r\n", answer.body.len());
    }
    for (name, value) in &answer.headers {
        head += &format!("{name}: {value}\r\n");
    }
    let end = answer.cut.unwrap_or(answer.body.len());
    // The client may have hung up: that is its right.
    let _ = stream.write_all(format!("{head}\r\n").as_bytes());
    let _ = stream.write_all(&answer.body[..end]);
    let _ = stream.shutdown(Shutdown::Write);
}
