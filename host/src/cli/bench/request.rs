//! One request and its stream.

use std::{
    fmt,
    time::{Duration, Instant},
};

use reqwest::Response;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{server::Server, sse, workload::Workload};

/// The event that ends a stream.
const DONE: &str = "[DONE]";

/// Characters of an error's text that are kept.
const TEXT: usize = 200;

/// A request that was served, with the times of what carried text.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Served {
    /// From the request to the first text; none if there was no text.
    pub(super) ttft: Option<Duration>,
    /// Between each text and the next.
    pub(super) gaps: Vec<Duration>,
    /// From the request to the end of the stream.
    pub(super) end_to_end: Duration,
    /// Tokens of the prompt; 0 if the server does not tell.
    pub(super) prompt_tokens: u64,
    /// Those of them that came out of a prefix cache; 0 if the server does not tell.
    pub(super) cached_tokens: u64,
    /// Tokens that were generated; the number of texts if the server does not tell.
    pub(super) completion_tokens: u64,
}

/// A request that was not served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Failure {
    /// The status of the answer, where there was one other than success.
    pub(super) status: Option<u16>,
    /// What the server said, or what went wrong; shortened.
    pub(super) text: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            Some(status) => write!(f, "{status}: {}", self.text),
            None => f.write_str(&self.text),
        }
    }
}

impl Failure {
    fn new(text: &str) -> Self {
        Self {
            status: None,
            text: shorten(text),
        }
    }

    /// What an answer without success says.
    pub(super) async fn refused(answer: Response) -> Self {
        let status = Some(answer.status().as_u16());
        // A body that breaks off is as good as none: the status says enough.
        let body = answer.text().await.unwrap_or_default();
        let text = match serde_json::from_str::<Value>(&body) {
            Ok(document) => message(&document),
            Err(_) => body,
        };
        Self {
            status,
            text: shorten(text.trim()),
        }
    }

    /// What a request that broke off means.
    fn broken(error: &reqwest::Error) -> Self {
        Self::new(&if error.is_timeout() {
            "it took longer than --timeout".to_owned()
        } else if error.is_connect() {
            format!("no connection: {}", cause(error))
        } else {
            format!("the connection broke: {}", cause(error))
        })
    }
}

/// The innermost reason of an error: what the system said.
pub(super) fn cause(error: &reqwest::Error) -> String {
    anyhow::Chain::new(error)
        .last()
        .map_or_else(|| error.to_string(), ToString::to_string)
}

/// Sends a request and reads its stream to the end.
pub(super) async fn send(server: &Server, workload: &Workload, request: u64) -> Result<Served, Failure> {
    let body = workload.body(request, &server.model);
    let request = server.client.post(server.completions.clone()).json(&body);
    let mut stream = Stream::new(Instant::now());
    let mut answer = request.send().await.map_err(|error| Failure::broken(&error))?;
    if !answer.status().is_success() {
        return Err(Failure::refused(answer).await);
    }
    let mut decoder = sse::Decoder::default();
    loop {
        let bytes = match answer.chunk().await {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Err(Failure::new("the stream ended without its [DONE]")),
            Err(error) => return Err(Failure::broken(&error)),
        };
        let now = Instant::now();
        for data in decoder.push(&bytes) {
            if data == DONE {
                return Ok(stream.end(now));
            }
            stream.event(&data, now)?;
        }
    }
}

/// What has come of a stream.
struct Stream {
    sent: Instant,
    /// When each text came.
    texts: Vec<Instant>,
    usage: Option<Usage>,
}

/// An event of a completion's stream, as far as it is of use.
#[derive(Debug, Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct Choice {
    text: Option<String>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
    prompt_tokens_details: Option<PromptTokens>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
struct PromptTokens {
    cached_tokens: Option<u64>,
}

impl Stream {
    fn new(sent: Instant) -> Self {
        Self {
            sent,
            texts: Vec::new(),
            usage: None,
        }
    }

    /// Takes an event that came at `now`.
    fn event(&mut self, data: &str, now: Instant) -> Result<(), Failure> {
        let chunk: Chunk = serde_json::from_str(data).map_err(|error| {
            Failure::new(&format!("an event is no chunk of a completion ({error}): {data}"))
        })?;
        if let Some(error) = chunk.error {
            return Err(Failure::new(&message(&error)));
        }
        let text = |choice: &Choice| choice.text.as_deref().is_some_and(|text| !text.is_empty());
        if chunk.choices.iter().any(text) {
            self.texts.push(now);
        }
        self.usage = chunk.usage.or(self.usage);
        Ok(())
    }

    /// The request, whose stream ended at `now`.
    fn end(self, now: Instant) -> Served {
        let counted = Usage {
            prompt_tokens: 0,
            completion_tokens: self.texts.len() as u64,
            prompt_tokens_details: None,
        };
        let usage = self.usage.unwrap_or(counted);
        Served {
            ttft: self.texts.first().map(|first| *first - self.sent),
            gaps: self.texts.windows(2).map(|pair| pair[1] - pair[0]).collect(),
            end_to_end: now - self.sent,
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: (usage.prompt_tokens_details)
                .and_then(|details| details.cached_tokens)
                .unwrap_or(0),
            completion_tokens: usage.completion_tokens,
        }
    }
}

/// The sentence in an error document, wherever servers put it; else the document.
fn message(document: &Value) -> String {
    ["/error/message", "/message", "/error", "/detail"]
        .into_iter()
        .find_map(|pointer| document.pointer(pointer)?.as_str())
        .map_or_else(|| document.to_string(), str::to_owned)
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(TEXT) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn times_are_those_of_the_events_that_carry_text() {
        let sent = Instant::now();
        let at = |ms| sent + Duration::from_millis(ms);
        let mut stream = Stream::new(sent);
        for (ms, data) in [
            (5, r#"{"choices":[{"text":""}],"usage":null}"#),
            (10, r#"{"choices":[{"text":"a"}]}"#),
            (12, r#"{"choices":[{"text":"b"}]}"#),
            (17, r#"{"choices":[{"text":"c","finish_reason":"length"}]}"#),
            (
                18,
                r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":2}}}"#,
            ),
        ] {
            stream.event(data, at(ms)).unwrap();
        }
        let served = stream.end(at(20));
        assert_eq!(
            served,
            Served {
                ttft: Some(Duration::from_millis(10)),
                gaps: vec![Duration::from_millis(2), Duration::from_millis(5)],
                end_to_end: Duration::from_millis(20),
                prompt_tokens: 7,
                cached_tokens: 2,
                completion_tokens: 4,
            }
        );
    }

    #[test]
    fn without_usage_texts_are_counted() {
        let now = Instant::now();
        let mut stream = Stream::new(now);
        stream.event(r#"{"choices":[{"text":"a"}]}"#, now).unwrap();
        assert_eq!(stream.end(now).completion_tokens, 1);
    }

    #[test]
    fn usage_without_details_is_usage() {
        let now = Instant::now();
        let mut stream = Stream::new(now);
        let usage = r#"{"usage":{"prompt_tokens":7,"completion_tokens":4,"prompt_tokens_details":null}}"#;
        stream.event(usage, now).unwrap();
        let served = stream.end(now);
        assert_eq!((served.prompt_tokens, served.cached_tokens), (7, 0));
    }

    #[test]
    fn an_error_in_the_stream_is_a_failure() {
        let now = Instant::now();
        let mut stream = Stream::new(now);
        let failure = stream.event(r#"{"error":{"message":"out of blocks"}}"#, now);
        assert_eq!(failure.unwrap_err().text, "out of blocks");
        assert!(stream.event("not JSON", now).is_err());
    }

    #[test]
    fn the_message_is_found_and_shortened() {
        assert_eq!(message(&json!({"error": {"message": "no"}})), "no");
        assert_eq!(message(&json!({"detail": "Not Found"})), "Not Found");
        assert_eq!(message(&json!({"other": 1})), r#"{"other":1}"#);
        assert_eq!(shorten(&"ü".repeat(TEXT)), "ü".repeat(TEXT));
        assert_eq!(shorten(&"ü".repeat(TEXT + 1)), "ü".repeat(TEXT) + "...");
    }
}
