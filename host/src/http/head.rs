//! A request's head as plugins see it: credentials apart, a sane request id.

use std::{net::IpAddr, sync::Arc};

use hyper::{
    header::{self, HeaderMap},
    http::request::Parts,
};
use uuid::Uuid;

use crate::plugin::resources::{Credential, HeadParts, RequestHead};

/// Fields that carry credentials: a plugin does not see them.
const SECRET_FIELDS: [&str; 4] = ["authorization", "cookie", "proxy-authorization", "x-api-key"];

/// The longest request id that is taken over from a client.
const REQUEST_ID_LIMIT: usize = 128;

/// The head and the credential in it.
pub(crate) fn split(parts: &Parts, peer: Option<IpAddr>, request_id: String) -> (RequestHead, Credential) {
    let headers = parts
        .headers
        .iter()
        .filter(|(name, _)| !SECRET_FIELDS.contains(&name.as_str()))
        .map(|(name, value)| {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            (name.as_str().to_owned(), value)
        })
        .collect();
    let head = HeadParts {
        method: parts.method.as_str().to_owned(),
        path: parts.uri.path().to_owned(),
        query: parts.uri.query().map(str::to_owned),
        headers,
        peer: peer.map(|peer| peer.to_string()),
        request_id,
    };
    (RequestHead(Arc::new(head)), credential(&parts.headers))
}

/// What the head carries as a secret: `Authorization: Bearer`, or else `x-api-key`.
fn credential(headers: &HeaderMap) -> Credential {
    let bearer = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, token)| token.trim());
    let key = || {
        headers
            .get("x-api-key")
            .and_then(|value| value.to_str().ok())
            .map(str::trim)
    };
    Credential {
        secret: bearer
            .or_else(key)
            .filter(|secret| !secret.is_empty())
            .map(Arc::from),
    }
}

/// The client's own `x-request-id` if it is short and plain, or else a new one.
pub(crate) fn request_id(headers: &HeaderMap) -> String {
    let plain = |id: &&str| {
        (1..=REQUEST_ID_LIMIT).contains(&id.len())
            && id
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_.:/+=".contains(&byte))
    };
    headers
        .get("x-request-id")
        .and_then(|value| value.to_str().ok())
        .filter(plain)
        .map_or_else(|| Uuid::now_v7().to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    fn parts(fields: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().method("POST").uri("/v1/completions?a=b");
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn credentials_are_taken_out_of_the_head() {
        let parts = parts(&[
            ("Authorization", "bearer  sk-1 "),
            ("Cookie", "session=2"),
            ("X-Api-Key", "sk-3"),
            ("X-Tenant", "blue"),
        ]);
        let (head, credential) = split(&parts, None, "id".into());
        assert_eq!(
            credential.secret.as_deref(),
            Some("sk-1"),
            "the scheme has no case"
        );
        assert_eq!(head.0.headers, [("x-tenant".to_owned(), "blue".to_owned())]);
        assert_eq!(head.0.path, "/v1/completions");
        assert_eq!(head.0.query.as_deref(), Some("a=b"));
    }

    #[test]
    fn an_api_key_stands_in_for_a_bearer_token() {
        let found = |fields: &[(&str, &str)]| {
            let (_, credential) = split(&parts(fields), None, "id".into());
            credential.secret.map(|secret| secret.to_string())
        };
        assert_eq!(found(&[("x-api-key", "sk-3")]).as_deref(), Some("sk-3"));
        assert_eq!(
            found(&[("authorization", "Basic dTpw"), ("x-api-key", "sk-3")]).as_deref(),
            Some("sk-3")
        );
        assert_eq!(found(&[("authorization", "Basic dTpw")]), None);
        assert_eq!(found(&[("authorization", "Bearer ")]), None);
    }

    #[test]
    fn a_request_id_is_taken_over_only_if_it_is_plain() {
        let id = |id: &str| request_id(&parts(&[("x-request-id", id)]).headers);
        assert_eq!(id("trace-1.a/b:c"), "trace-1.a/b:c");
        for odd in ["", "a b", "a\"b", "a\u{e4}b", &"x".repeat(129)] {
            let made = id(odd);
            assert!(
                Uuid::parse_str(&made).is_ok(),
                "a new one in place of `{odd}`: {made}"
            );
        }
    }
}
