//! Answers as HTTP responses.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Response, StatusCode,
    body::Frame,
    header::{self, HeaderName, HeaderValue},
};

use crate::plugin::bindings::exports::heddle::plugin::protocol::{Problem, Reply};

/// The body of any answer.
pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Header fields that are the host's own: a plugin's are dropped.
const HOST_FIELDS: [&str; 12] = [
    "connection",
    "content-length",
    "content-type",
    "date",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-heddle-pipeline",
    "x-request-id",
];

/// A whole answer.
pub(crate) fn document(status: StatusCode, content_type: &str, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Full::new(body.into()).boxed_unsync());
    *response.status_mut() = status;
    let content_type = HeaderValue::from_str(content_type)
        .unwrap_or_else(|_| HeaderValue::from_static("application/octet-stream"));
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

/// A JSON document of the host's own.
pub(crate) fn json(status: StatusCode, value: &serde_json::Value) -> Response<Body> {
    document(status, "application/json", value.to_string())
}

/// A plugin's whole answer: what it may not say is left out.
pub(crate) fn reply(reply: Reply) -> Response<Body> {
    // 1xx belongs to the connection, and what is no status is a fault of the plugin's.
    let status = StatusCode::from_u16(reply.status)
        .ok()
        .filter(|status| status.as_u16() >= 200)
        .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = document(status, &reply.content_type, reply.body);
    for (name, value) in reply.headers {
        let (Ok(name), Ok(value)) = (
            HeaderName::from_bytes(name.as_bytes()),
            HeaderValue::from_str(&value),
        ) else {
            tracing::warn!("a plugin's header field is not valid HTTP and was left out");
            continue;
        };
        if !HOST_FIELDS.contains(&name.as_str()) {
            response.headers_mut().append(name, value);
        }
    }
    response
}

/// An answer that comes in pieces.
pub(crate) fn stream(
    content_type: &'static str,
    pieces: impl Stream<Item = Bytes> + Send + 'static,
) -> Response<Body> {
    let frames = pieces.map(|piece| Ok(Frame::data(piece)));
    let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // nginx would collect the stream otherwise.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Puts what HTTP wants beside the answer to a failure, where the plugin did not.
pub(crate) fn complete(response: &mut Response<Body>, problem: &Problem) {
    if let Some(seconds) = problem.retry_after
        && !response.headers().contains_key(header::RETRY_AFTER)
    {
        put(response, "retry-after", &seconds.to_string());
    }
    if response.status() == StatusCode::UNAUTHORIZED
        && !response.headers().contains_key(header::WWW_AUTHENTICATE)
    {
        put(response, "www-authenticate", "Bearer");
    }
}

/// Puts a header field of the host's own; a value that is not valid HTTP is left out.
pub(crate) fn put(response: &mut Response<Body>, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_cannot_set_the_hosts_fields_or_break_the_head() {
        let response = reply(Reply {
            status: 201,
            content_type: "text/plain".into(),
            headers: vec![
                ("Content-Length".into(), "999".into()),
                ("Transfer-Encoding".into(), "chunked".into()),
                ("X-Request-Id".into(), "forged".into()),
                ("x-split".into(), "a\r\nset-cookie: b".into()),
                ("bad name".into(), "c".into()),
                ("x-good".into(), "d".into()),
            ],
            body: b"hello".to_vec(),
        });
        assert_eq!(response.status(), 201);
        let fields: Vec<_> = response.headers().keys().map(HeaderName::as_str).collect();
        assert_eq!(fields, ["content-type", "x-good"]);
    }

    #[test]
    fn a_status_that_is_none_becomes_500() {
        for status in [0, 99, 101, 199, 1000] {
            let response = reply(Reply {
                status,
                content_type: "application/json".into(),
                headers: Vec::new(),
                body: Vec::new(),
            });
            assert_eq!(response.status(), 500, "{status}");
        }
    }
}
