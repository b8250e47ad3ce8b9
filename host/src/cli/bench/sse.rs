//! Server-sent events out of the pieces in which they come.

/// Puts events together: feed it what came, and it gives out the data of the events that are whole by then.
///
/// Lines end with LF or CRLF; the CR alone that the standard also allows is not known from any server.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    /// A line whose end has not come yet.
    line: Vec<u8>,
    /// The data of the event whose end has not come yet.
    data: Option<String>,
}

impl Decoder {
    /// Takes the next bytes and returns the data of the events that end in them.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut events = Vec::new();
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.line.extend_from_slice(piece);
            if self.line.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                events.extend(self.end_of_line(&String::from_utf8_lossy(&line)));
            }
        }
        events
    }

    /// Takes a line, and returns the event's data if it is the empty line that ends an event.
    fn end_of_line(&mut self, line: &str) -> Option<String> {
        let line = line.strip_suffix('\n').unwrap_or(line);
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.is_empty() {
            return self.data.take();
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        if field == "data" {
            let value = value.strip_prefix(' ').unwrap_or(value);
            match &mut self.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => self.data = Some(value.to_owned()),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = ": a comment\nevent: named\ndata: {\"text\":\"Grüße\"}\n\ndata:two\ndata: lines\r\n\r\nretry: 1\n\ndata: [DONE]\n\n";
    const EVENTS: [&str; 3] = ["{\"text\":\"Grüße\"}", "two\nlines", "[DONE]"];

    #[test]
    fn pieces_of_any_size_make_the_same_events() {
        for size in 1..=STREAM.len() {
            let mut decoder = Decoder::default();
            let events: Vec<_> = STREAM
                .as_bytes()
                .chunks(size)
                .flat_map(|piece| decoder.push(piece))
                .collect();
            assert_eq!(events, EVENTS, "in pieces of {size} bytes");
        }
    }

    #[test]
    fn an_event_without_its_end_is_none() {
        let mut decoder = Decoder::default();
        assert!(decoder.push(b"data: x\n").is_empty());
        assert_eq!(decoder.push(b"\n"), ["x"]);
    }
}
