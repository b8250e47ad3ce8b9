//! HTTP as the hub and the package index need it: the system's certificates, proxies from the environment, time-outs,
//! retries, and credentials that never leave their origin.
//!
//! It blocks, on a runtime of reqwest's own: calling it on an async worker thread panics. Loader threads are plain.

use std::{io::Read, net::IpAddr, sync::OnceLock, thread, time::Duration};

use reqwest::{
    StatusCode, Url,
    blocking::{Client, Response},
    header::{ACCEPT, ACCEPT_ENCODING, HeaderMap, HeaderValue, IF_RANGE, RANGE, RETRY_AFTER},
    redirect::{Attempt, Policy},
};

use super::{
    config::Patience,
    failure::{Failure, bytes, deepest},
};

/// Redirects that are followed.
const REDIRECTS: usize = 10;

/// The clients. Made at their first use: a server that fetches nothing reads no certificates.
#[derive(Debug)]
pub(super) struct Http {
    pub(super) patience: Patience,
    remote: OnceLock<Result<Client, String>>,
    /// Loopback is never behind a proxy.
    loopback: OnceLock<Result<Client, String>>,
}

/// What is sent to prove who asks. Only the origin of the request sees it: redirects elsewhere go without.
#[derive(Clone, Copy)]
pub(super) enum Authorization<'a> {
    None,
    Bearer(&'a str),
}

/// A GET request. A login in the address is sent as basic authorization.
pub(super) struct Request<'a> {
    pub(super) url: Url,
    pub(super) authorization: Authorization<'a>,
    /// The media types that are understood.
    pub(super) accept: &'static str,
}

/// A whole answer.
pub(super) struct Reply {
    pub(super) body: Vec<u8>,
    /// Where it came from in the end: links in it are relative to this.
    pub(super) url: Url,
    pub(super) content_type: String,
}

/// Why one attempt failed.
pub(super) enum Trouble {
    /// Nothing that another attempt could change.
    Final(Failure),
    /// Nobody answered: no name, no connection, no bytes in time.
    Silence(String),
    /// The server is busy or the connection broke: worth another attempt, after `pause` if the server said so.
    Passing { reason: String, pause: Option<Duration> },
}

impl Http {
    pub(super) fn new(patience: Patience) -> Self {
        Self {
            patience,
            remote: OnceLock::new(),
            loopback: OnceLock::new(),
        }
    }

    /// Fetches a small answer whole: `limit` bytes at most.
    pub(super) fn get(&self, request: &Request<'_>, limit: u64) -> Result<Reply, Failure> {
        let mut attempt = 0;
        loop {
            match self.get_once(request, limit) {
                Ok(reply) => return Ok(reply),
                Err(Trouble::Final(failure)) => return Err(failure),
                Err(Trouble::Passing { pause, .. }) if attempt < self.patience.retries => {
                    thread::sleep(self.patience.pause(attempt, pause));
                    attempt += 1;
                }
                Err(Trouble::Silence(reason) | Trouble::Passing { reason, .. }) => {
                    return Err(Failure::Unreachable(reason));
                }
            }
        }
    }

    fn get_once(&self, request: &Request<'_>, limit: u64) -> Result<Reply, Trouble> {
        let response = self.send(request, None, self.patience.lookup)?;
        let url = response.url().clone();
        let content_type = text_of(response.headers(), "content-type").unwrap_or_default();
        let host = url.host_str().unwrap_or_default().to_owned();
        let mut body = Vec::new();
        response
            .take(limit + 1)
            .read_to_end(&mut body)
            .map_err(|error| broken(&host, &error))?;
        if body.len() as u64 > limit {
            let reason = format!("{host} answered with more than {}", bytes(limit));
            return Err(Trouble::Final(Failure::Refused(reason)));
        }
        Ok(Reply {
            body,
            url,
            content_type,
        })
    }

    /// Sends one request, with a range `from` a byte on (if the file is still the one with this ETag), and returns the
    /// answer when its status is a success (or 416, where a range was asked for).
    pub(super) fn send(
        &self,
        request: &Request<'_>,
        range: Option<(u64, Option<&str>)>,
        timeout: Duration,
    ) -> Result<Response, Trouble> {
        check_address(&request.url).map_err(Trouble::Final)?;
        let client = self.client(&request.url).map_err(Trouble::Final)?;
        // Bytes are counted and hashed as they are stored: no compression on the way.
        let mut builder = client
            .get(request.url.clone())
            .header(ACCEPT, request.accept)
            .header(ACCEPT_ENCODING, "identity")
            .timeout(timeout);
        builder = match request.authorization {
            Authorization::None => builder,
            Authorization::Bearer(token) if HeaderValue::from_str(token).is_err() => {
                let reason = "the token has characters that no token has".to_owned();
                return Err(Trouble::Final(Failure::Forbidden(reason)));
            }
            Authorization::Bearer(token) => builder.bearer_auth(token),
        };
        if let Some((from, validator)) = range {
            builder = builder.header(RANGE, format!("bytes={from}-"));
            if let Some(validator) = validator {
                builder = builder.header(IF_RANGE, validator);
            }
        }
        let response = builder.send().map_err(|error| not_sent(&request.url, &error))?;
        let status = response.status();
        if status.is_success() || (status == StatusCode::RANGE_NOT_SATISFIABLE && range.is_some()) {
            return Ok(response);
        }
        Err(refusal(&response))
    }

    fn client(&self, url: &Url) -> Result<&Client, Failure> {
        let made = if is_loopback(url) {
            self.loopback.get_or_init(|| self.build(true))
        } else {
            self.remote.get_or_init(|| self.build(false))
        };
        made.as_ref()
            .map_err(|reason| Failure::Unreachable(reason.clone()))
    }

    fn build(&self, loopback: bool) -> Result<Client, String> {
        let mut builder = Client::builder()
            .user_agent(concat!("heddle/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(self.patience.connect)
            .redirect(Policy::custom(move |attempt| follow(attempt, loopback)));
        if loopback {
            builder = builder.no_proxy();
        }
        builder
            .build()
            .map_err(|error| format!("HTTPS cannot be used on this machine: {}", deepest(&error)))
    }
}

/// Plain HTTP is for this machine only, and what came from elsewhere is never led here.
fn follow(attempt: Attempt<'_>, loopback: bool) -> reqwest::redirect::Action {
    if attempt.previous().len() > REDIRECTS {
        attempt.error("too many redirects")
    } else if loopback || (attempt.url().scheme() == "https" && !is_loopback(attempt.url())) {
        attempt.follow()
    } else {
        attempt.error("a redirect to an unsafe address was not followed")
    }
}

/// Whether an address names this machine.
pub(super) fn is_loopback(url: &Url) -> bool {
    url.host_str().is_some_and(|host| {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        bare == "localhost" || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    })
}

/// Reads an address from the configuration.
pub(super) fn parse_address(address: &str) -> Result<Url, Failure> {
    let url = Url::parse(address).map_err(|error| {
        Failure::Refused(format!("its address in the configuration is not a URL: {error}"))
    })?;
    check_address(&url)?;
    Ok(url)
}

fn check_address(url: &Url) -> Result<(), Failure> {
    let host = url.host_str().unwrap_or_default();
    match url.scheme() {
        "https" => Ok(()),
        "http" if is_loopback(url) => Ok(()),
        "http" => Err(Failure::Refused(format!(
            "plain HTTP to {host} is not safe: use https (http is for this machine only)"
        ))),
        other => Err(Failure::Refused(format!(
            "`{other}` addresses cannot be fetched: use https"
        ))),
    }
}

/// What a status other than success means.
fn refusal(response: &Response) -> Trouble {
    let status = response.status();
    let host = response.url().host_str().unwrap_or_default();
    // The hub says more in a header of its own.
    let detail = text_of(response.headers(), "x-error-message")
        .map(|text| format!(" ({})", text.chars().take(200).collect::<String>()))
        .unwrap_or_default();
    let reason = format!("{host} answered {status}{detail}");
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Trouble::Final(Failure::Forbidden(reason)),
        StatusCode::NOT_FOUND | StatusCode::GONE => Trouble::Final(Failure::NotFound(reason)),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => Trouble::Passing {
            reason,
            pause: retry_after(response.headers()),
        },
        _ if status.is_server_error() => Trouble::Passing {
            reason,
            pause: retry_after(response.headers()),
        },
        _ => Trouble::Final(Failure::Refused(reason)),
    }
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    text_of(headers, RETRY_AFTER.as_str())?
        .parse()
        .ok()
        .map(Duration::from_secs)
}

/// A header's value as text, if there is one.
pub(super) fn text_of(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

/// What a request that got no answer means. Never prints the address: it may hold a signature.
fn not_sent(url: &Url, error: &reqwest::Error) -> Trouble {
    let host = url.host_str().unwrap_or_default();
    if error.is_redirect() {
        return Trouble::Final(Failure::Refused(format!("{host}: {}", deepest(error))));
    }
    if error.is_dns() {
        return Trouble::Silence(format!("the name {host} cannot be resolved"));
    }
    if error.is_timeout() {
        return Trouble::Silence(format!("{host} did not answer in time"));
    }
    if error.is_connect() {
        return Trouble::Silence(format!("no connection to {host}: {}", deepest(error)));
    }
    broken(host, error)
}

/// What a connection that broke means.
pub(super) fn broken(host: &str, error: &(dyn std::error::Error + 'static)) -> Trouble {
    Trouble::Passing {
        reason: format!("the connection to {host} broke: {}", deepest(error)),
        pause: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn plain_http_is_for_this_machine_only() {
        for fine in [
            "https://huggingface.co",
            "http://127.0.0.1:1",
            "http://localhost:1",
            "http://[::1]:1",
        ] {
            assert!(check_address(&url(fine)).is_ok(), "{fine}");
        }
        for wrong in [
            "http://huggingface.co",
            "http://127.0.0.1.example.org",
            "ftp://localhost/x",
            "file:///x",
        ] {
            assert!(
                matches!(check_address(&url(wrong)), Err(Failure::Refused(_))),
                "{wrong}"
            );
        }
    }
}
