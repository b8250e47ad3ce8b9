//! What a server answers.

use std::io::{BufRead, BufReader};

use reqwest::{blocking::Response, header::HeaderMap};
use serde_json::Value;

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The header fields.
    pub headers: HeaderMap,
    /// The body as text.
    pub text: String,
}

impl Answer {
    pub(crate) fn read(response: Response) -> Self {
        Self {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            text: response.text().expect("a body of text"),
        }
    }

    /// The body as JSON; null if it is something else.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_default()
    }

    /// A header field; empty if there is none.
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    }

    /// The JSON of a success.
    ///
    /// # Panics
    /// If the status is another than 200.
    pub fn success(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text);
        self.json()
    }
}

/// One server-sent event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its name; empty if it has none.
    pub name: String,
    /// Its data.
    pub data: String,
}

impl Event {
    /// The data as JSON; null if it is something else (`[DONE]`).
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or_default()
    }
}

/// A stream of server-sent events, read as they come. Dropping it closes the connection.
#[derive(Debug)]
pub struct Events {
    lines: std::io::Lines<BufReader<Response>>,
    /// The header fields of the answer.
    pub headers: HeaderMap,
}

impl Events {
    pub(crate) fn new(response: Response) -> Self {
        Self {
            headers: response.headers().clone(),
            lines: BufReader::new(response).lines(),
        }
    }

    /// All events, `[DONE]` taken off and asserted to be the last.
    ///
    /// # Panics
    /// If the stream does not end with `[DONE]`.
    pub fn all(self) -> Vec<Value> {
        let mut events: Vec<Event> = self.collect();
        let last = events.pop().map(|event| event.data);
        assert_eq!(last.as_deref(), Some("[DONE]"), "after {events:?}");
        events.iter().map(Event::json).collect()
    }
}

impl Iterator for Events {
    type Item = Event;

    /// The next event; none when the stream has ended, well or not.
    fn next(&mut self) -> Option<Event> {
        let mut name = String::new();
        let mut data: Option<String> = None;
        loop {
            let line = self.lines.next()?.ok()?;
            if line.is_empty() {
                match data.take() {
                    Some(data) => return Some(Event { name, data }),
                    None => continue,
                }
            }
            let (field, value) = line.split_once(':').unwrap_or((&line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "event" => value.clone_into(&mut name),
                "data" => match &mut data {
                    Some(data) => {
                        data.push('\n');
                        data.push_str(value);
                    }
                    None => data = Some(value.to_owned()),
                },
                _ => {}
            }
        }
    }
}
