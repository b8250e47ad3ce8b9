//! One file over HTTP: resumed after a cut, bounded in size, checked at its end.

use std::{io::Read, path::Path, thread};

use reqwest::{
    StatusCode,
    blocking::Response,
    header::{CONTENT_LENGTH, CONTENT_RANGE, ETAG},
};

use super::{
    Progress,
    cache::FileRecord,
    failure::Failure,
    http::{Http, Request, Trouble, broken, text_of},
    part::{Part, State},
    wanted::RemoteFile,
};

impl Http {
    /// Fetches `request` into `path`, which may hold the beginning from an earlier attempt.
    pub(super) fn download(
        &self,
        request: &Request<'_>,
        file: &RemoteFile,
        path: &Path,
        limit: u64,
        progress: &dyn Progress,
    ) -> Result<FileRecord, Failure> {
        let mut part = Part::open(path, file, limit)?;
        progress.begin(&file.name, part.total(), part.len());
        let mut afresh = false;
        loop {
            self.complete(request, &mut part, progress)?;
            let mixed = part.resumed();
            match part.finish() {
                Ok(record) => {
                    progress.end();
                    return Ok(record);
                }
                // Bytes of two answers that do not belong together: one clean attempt.
                Err(_) if mixed && !afresh => {
                    part.restart()?;
                    progress.begin(&file.name, part.total(), 0);
                    afresh = true;
                }
                Err(fault) => {
                    part.restart()?;
                    return Err(Failure::Refused(fault));
                }
            }
        }
    }

    /// Asks again until all bytes are there.
    fn complete(
        &self,
        request: &Request<'_>,
        part: &mut Part,
        progress: &dyn Progress,
    ) -> Result<(), Failure> {
        let mut failures = 0;
        let mut answered = false;
        while !part.is_complete() {
            let before = part.len();
            let (reason, pause) = match self.go_on(request, part, progress) {
                Ok(()) => return Ok(()),
                Err(Trouble::Final(failure)) => return Err(failure),
                // Nobody was there at the first attempt: nobody will be at the second.
                Err(Trouble::Silence(reason)) if !answered && part.len() == before => {
                    return Err(Failure::Unreachable(reason));
                }
                Err(Trouble::Silence(reason)) => (reason, None),
                Err(Trouble::Passing { reason, pause }) => (reason, pause),
            };
            answered = true;
            failures = if part.len() > before { 1 } else { failures + 1 };
            if failures > self.patience.retries {
                return Err(Failure::Unreachable(reason));
            }
            tracing::debug!(file = part.name(), reason, "going on after a cut");
            thread::sleep(self.patience.pause(failures - 1, pause));
        }
        Ok(())
    }

    /// One request: the rest of the file.
    fn go_on(&self, request: &Request<'_>, part: &mut Part, progress: &dyn Progress) -> Result<(), Trouble> {
        let range = (part.len() > 0).then(|| (part.len(), part.validator()));
        let response = self.send(request, range, self.patience.read)?;
        let status = response.status();
        let state = state_of(&response, part.len());
        let continues = status == StatusCode::PARTIAL_CONTENT && starts_at(&response, part.len());
        if part.len() > 0 && !continues {
            // Another file by now, or a server that knows no ranges.
            part.restart().map_err(Trouble::Final)?;
            progress.begin(part.name(), state.total, 0);
        }
        if !continues && status != StatusCode::OK {
            let reason = format!(
                "the server answered {status} to a request for a part of `{}`",
                part.name()
            );
            return Err(Trouble::Passing { reason, pause: None });
        }
        part.expect(state).map_err(Trouble::Final)?;
        copy(response, part, progress)
    }
}

fn copy(mut response: Response, part: &mut Part, progress: &dyn Progress) -> Result<(), Trouble> {
    let host = response.url().host_str().unwrap_or_default().to_owned();
    let mut chunk = vec![0; 1 << 16];
    loop {
        let count = match response.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(broken(&host, &error)),
        };
        part.append(&chunk[..count]).map_err(Trouble::Final)?;
        progress.advance(count as u64);
    }
    match part.total() {
        Some(total) if part.len() < total => Err(Trouble::Passing {
            reason: format!(
                "the connection to {host} ended after {} of {total} bytes",
                part.len()
            ),
            pause: None,
        }),
        _ => Ok(()),
    }
}

/// What the answer says of the whole file.
fn state_of(response: &Response, from: u64) -> State {
    let headers = response.headers();
    let total = match response.status() {
        // `bytes 5-9/10`, RFC 9110, section 14.4.
        StatusCode::PARTIAL_CONTENT => text_of(headers, CONTENT_RANGE.as_str())
            .and_then(|range| range.rsplit_once('/').and_then(|(_, total)| total.parse().ok()))
            .or_else(|| response.content_length().map(|rest| from + rest)),
        StatusCode::OK => text_of(headers, CONTENT_LENGTH.as_str()).and_then(|length| length.parse().ok()),
        _ => None,
    };
    State {
        // A weak ETag promises the same meaning, not the same bytes.
        validator: text_of(headers, ETAG.as_str()).filter(|etag| etag.starts_with('"')),
        total,
    }
}

fn starts_at(response: &Response, from: u64) -> bool {
    text_of(response.headers(), CONTENT_RANGE.as_str())
        .is_some_and(|range| range.starts_with(&format!("bytes {from}-")))
}
