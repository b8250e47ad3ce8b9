//! How a stream's payloads go over the wire: server-sent events (the WHATWG HTML standard, section 9.2) and lines of
//! JSON.

use bytes::{BufMut, Bytes, BytesMut};

use crate::plugin::bindings::{
    exports::heddle::plugin::protocol::Payload, heddle::plugin::generation::Framing,
};

/// One of the two ways to frame a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framer {
    /// Server-sent events.
    Sse,
    /// A line for each payload.
    Lines,
}

impl Framer {
    /// The framing of a stream; none for a document.
    pub(crate) fn of(framing: Option<Framing>) -> Option<Self> {
        match framing {
            Some(Framing::Sse) => Some(Self::Sse),
            Some(Framing::Ndjson) => Some(Self::Lines),
            Some(Framing::Document) | None => None,
        }
    }

    /// The content type of the stream.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Sse => "text/event-stream",
            Self::Lines => "application/x-ndjson",
        }
    }

    /// A sign of life that a client does not see; lines of JSON have none.
    pub(crate) fn keep_alive(self) -> Option<Bytes> {
        match self {
            Self::Sse => Some(Bytes::from_static(b":\n\n")),
            Self::Lines => None,
        }
    }

    /// Payloads as bytes.
    pub(crate) fn frame(self, payloads: &[Payload]) -> Bytes {
        let size = payloads.iter().map(|payload| payload.data.len() + 10).sum();
        let mut bytes = BytesMut::with_capacity(size);
        for payload in payloads {
            match self {
                Self::Sse => event(&mut bytes, payload),
                Self::Lines => line(&mut bytes, payload),
            }
        }
        bytes.freeze()
    }
}

fn event(bytes: &mut BytesMut, payload: &Payload) {
    // A line break would end the field: what follows it is not the name.
    if let Some(name) = payload
        .name
        .as_deref()
        .and_then(|name| name.split(['\r', '\n']).next())
        && !name.is_empty()
    {
        bytes.put_slice(b"event: ");
        bytes.put_slice(name.as_bytes());
        bytes.put_u8(b'\n');
    }
    for line in lines(&payload.data) {
        bytes.put_slice(b"data: ");
        bytes.put_slice(line.as_bytes());
        bytes.put_u8(b'\n');
    }
    bytes.put_u8(b'\n');
}

fn line(bytes: &mut BytesMut, payload: &Payload) {
    // Between the tokens of a JSON text a space is as good as a line break; inside a string there is none.
    for (number, part) in lines(&payload.data).enumerate() {
        if number > 0 {
            bytes.put_u8(b' ');
        }
        bytes.put_slice(part.as_bytes());
    }
    bytes.put_u8(b'\n');
}

/// Lines as an SSE client splits them: at CR LF, LF or CR.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let Some(end) = text.find(['\r', '\n']) else {
            rest = None;
            return Some(text);
        };
        let (line, after) = text.split_at(end);
        rest = Some(after.strip_prefix("\r\n").unwrap_or(&after[1..]));
        Some(line)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(name: Option<&str>, data: &str) -> Payload {
        Payload {
            name: name.map(str::to_owned),
            data: data.to_owned(),
        }
    }

    #[test]
    fn events_keep_every_line_of_their_data() {
        let bytes = Framer::Sse.frame(&[payload(None, "{}"), payload(Some("done"), "a\nb\r\nc\rd\n")]);
        assert_eq!(
            bytes,
            "data: {}\n\nevent: done\ndata: a\ndata: b\ndata: c\ndata: d\ndata: \n\n"
        );
    }

    #[test]
    fn a_name_cannot_add_fields() {
        let bytes = Framer::Sse.frame(&[payload(Some("x\ndata: forged"), "y")]);
        assert_eq!(bytes, "event: x\ndata: y\n\n");
    }

    #[test]
    fn a_payload_is_one_line() {
        let bytes = Framer::Lines.frame(&[payload(None, "{\n\"a\":1}"), payload(None, "{}")]);
        assert_eq!(bytes, "{ \"a\":1}\n{}\n");
    }
}
