//! A request's body, under its limits.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use tokio::time::{Instant, timeout_at};

/// Why a body was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It is larger than the limit.
    TooLarge,
    /// It took longer than the limit.
    TooSlow,
    /// The connection broke.
    Broken,
}

/// What a body may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Bytes.
    pub size: usize,
    /// Until the last of them.
    pub time: Duration,
    /// Whether the client sends nothing before it is asked to (`Expect: 100-continue`).
    pub waits_for_continue: bool,
}

/// How long a body that nobody wants is still read, so that a client that writes first and reads then sees the answer
/// and not a broken connection.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 64 << 20;

/// Reads a whole body.
pub(crate) async fn read(mut body: Incoming, limits: Limits) -> Result<Bytes, Refused> {
    let deadline = Instant::now() + limits.time;
    let expected = body.size_hint().exact();
    if expected.is_some_and(|expected| expected > limits.size as u64) {
        linger(body, limits).await;
        return Err(Refused::TooLarge);
    }
    // Memory is taken as bytes come, not as they are announced.
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    loop {
        let frame = match timeout_at(deadline, body.frame()).await {
            Err(_) => return Err(Refused::TooSlow),
            Ok(None) => break,
            Ok(Some(Err(_))) => return Err(Refused::Broken),
            Ok(Some(Ok(frame))) => frame,
        };
        let Ok(data) = frame.into_data() else {
            continue; // trailers
        };
        if first.len() + rest.len() + data.len() > limits.size {
            linger(body, limits).await;
            return Err(Refused::TooLarge);
        }
        if first.is_empty() && rest.is_empty() {
            if expected == Some(data.len() as u64) {
                return Ok(data);
            }
            first = data;
        } else {
            if rest.is_empty() {
                rest.extend_from_slice(&std::mem::take(&mut first));
            }
            rest.extend_from_slice(&data);
        }
    }
    Ok(if rest.is_empty() { first } else { rest.freeze() })
}

/// Reads on for a moment and throws away what comes.
pub(crate) async fn linger(mut body: Incoming, limits: Limits) {
    if limits.waits_for_continue {
        return; // reading would invite it
    }
    let deadline = Instant::now() + LINGER;
    let mut bytes = LINGER_BYTES;
    while let Ok(Some(Ok(frame))) = timeout_at(deadline, body.frame()).await {
        let Some(left) = bytes.checked_sub(frame.data_ref().map_or(0, Bytes::len)) else {
            return;
        };
        bytes = left;
    }
}
