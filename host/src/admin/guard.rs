//! Who may use the admin API.

use std::{net::IpAddr, sync::Arc};

use axum::{
    extract::{Request, State},
    http::{
        HeaderMap, HeaderValue, StatusCode,
        header::{AUTHORIZATION, HOST, ORIGIN, WWW_AUTHENTICATE},
    },
    middleware::Next,
    response::Response,
};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::problem;

/// What a request is held against.
pub(super) struct Guard {
    /// SHA-256 of the token: digests have one length, so that comparing tells nothing of it.
    token: Option<[u8; 32]>,
}

/// What is wrong with a request.
#[derive(Debug, PartialEq, Eq)]
enum Fault {
    Token,
    Host,
    Origin,
}

impl Guard {
    pub(super) fn new(token: Option<String>) -> Self {
        Self {
            token: token.map(|token| Sha256::digest(token).into()),
        }
    }

    fn fault(&self, headers: &HeaderMap) -> Option<Fault> {
        let text = |name| {
            headers
                .get(name)
                .map(|value: &HeaderValue| value.to_str().unwrap_or_default())
        };
        let host = text(HOST).unwrap_or_default();
        // A page from elsewhere can make a browser send requests here, but not without saying where it is from.
        if let Some(origin) = text(ORIGIN)
            && origin.split_once("://").is_none_or(|(_, from)| from != host)
        {
            return Some(Fault::Origin);
        }
        match &self.token {
            Some(token) => {
                let (scheme, given) = text(AUTHORIZATION)
                    .and_then(|value| value.split_once(' '))
                    .unwrap_or_default();
                let given: [u8; 32] = Sha256::digest(given.trim()).into();
                let right = bool::from(given.ct_eq(token)) && scheme.eq_ignore_ascii_case("bearer");
                (!right).then_some(Fault::Token)
            }
            // A name that resolves to this machine can belong to anybody (DNS rebinding); a loopback address cannot.
            None => (!is_loopback(host)).then_some(Fault::Host),
        }
    }
}

/// Whether a `Host` names this machine by a loopback address.
fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !name.is_empty() => name,
        _ => host,
    };
    let address = name
        .trim_start_matches('[')
        .trim_end_matches(']')
        .parse::<IpAddr>();
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// Answers 401 or 403, or lets the request through.
pub(super) async fn check(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    match guard.fault(request.headers()) {
        None => next.run(request).await,
        Some(Fault::Token) => {
            let message = "the admin API needs its token: `Authorization: Bearer TOKEN`";
            let mut response = problem(StatusCode::UNAUTHORIZED, "unauthorized", message);
            response
                .headers_mut()
                .insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            response
        }
        Some(Fault::Host) => problem(
            StatusCode::FORBIDDEN,
            "forbidden",
            "without a token the admin API is only for this machine: call it by a loopback address, or set a token",
        ),
        Some(Fault::Origin) => problem(
            StatusCode::FORBIDDEN,
            "forbidden",
            "this request was made by a web page of another origin",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(token: Option<&str>, headers: &[(&str, &str)]) -> Option<Fault> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(
                axum::http::HeaderName::try_from(*name).unwrap(),
                value.parse().unwrap(),
            );
        }
        Guard::new(token.map(str::to_owned)).fault(&map)
    }

    #[test]
    fn the_token_is_asked_for() {
        let token = Some("s3cret");
        assert_eq!(
            fault(
                token,
                &[("host", "example.com"), ("authorization", "Bearer s3cret")]
            ),
            None
        );
        assert_eq!(fault(token, &[("authorization", "bearer s3cret")]), None);
        for wrong in [
            "Bearer s3cre",
            "Bearer s3cret1",
            "Basic s3cret",
            "s3cret",
            "Bearer",
        ] {
            assert_eq!(
                fault(token, &[("authorization", wrong)]),
                Some(Fault::Token),
                "{wrong}"
            );
        }
        assert_eq!(fault(token, &[("host", "localhost")]), Some(Fault::Token));
    }

    #[test]
    fn without_a_token_only_this_machine_is_answered() {
        for good in [
            "127.0.0.1:9000",
            "localhost",
            "LOCALHOST:80",
            "[::1]:9000",
            "127.9.9.9",
        ] {
            assert_eq!(fault(None, &[("host", good)]), None, "{good}");
        }
        for bad in ["evil.example:9000", "localhost.evil.example", "10.0.0.1", ""] {
            assert_eq!(fault(None, &[("host", bad)]), Some(Fault::Host), "{bad}");
        }
    }

    #[test]
    fn pages_of_other_origins_are_turned_away() {
        let host = ("host", "127.0.0.1:9000");
        assert_eq!(fault(None, &[host, ("origin", "http://127.0.0.1:9000")]), None);
        for bad in ["http://evil.example", "null", "http://127.0.0.1:8000"] {
            assert_eq!(
                fault(None, &[host, ("origin", bad)]),
                Some(Fault::Origin),
                "{bad}"
            );
        }
    }
}
