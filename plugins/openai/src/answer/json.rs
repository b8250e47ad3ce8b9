//! Writes JSON. The answers have a handful of shapes, and a chunk is written for each token: so they are written out
//! directly.

use std::fmt::Write;

/// The type of all documents.
pub const CONTENT_TYPE: &str = "application/json";

/// A string.
pub fn text(out: &mut String, text: &str) {
    out.reserve(text.len() + 2);
    out.push('"');
    let mut plain = 0;
    for (i, byte) in text.bytes().enumerate() {
        let escape = match byte {
            b'"' => "\\\"",
            b'\\' => "\\\\",
            b'\n' => "\\n",
            b'\r' => "\\r",
            b'\t' => "\\t",
            0..0x20 => "",
            _ => continue,
        };
        *out += &text[plain..i];
        if escape.is_empty() {
            // Writing to a string does not fail.
            let _ = write!(out, "\\u{byte:04x}");
        } else {
            *out += escape;
        }
        plain = i + 1;
    }
    *out += &text[plain..];
    out.push('"');
}

/// A string or null.
pub fn text_or_null(out: &mut String, value: Option<&str>) {
    match value {
        Some(value) => text(out, value),
        None => *out += "null",
    }
}

/// A log probability. The contract says that it is finite; JSON has no other numbers.
pub fn logprob(out: &mut String, value: f32) {
    let value = if value.is_finite() { value } else { f32::MIN };
    *out += zmij::Buffer::new().format_finite(value);
}

/// A whole number.
pub fn integer(out: &mut String, value: impl Into<u64>) {
    let _ = write!(out, "{}", value.into());
}

/// Items between commas.
pub fn list<T>(
    out: &mut String,
    brackets: [char; 2],
    items: impl IntoIterator<Item = T>,
    mut write: impl FnMut(&mut String, T),
) {
    out.push(brackets[0]);
    for (i, item) in items.into_iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        write(out, item);
    }
    out.push(brackets[1]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_character_survives() {
        let all: String = (0..0x3000)
            .filter_map(char::from_u32)
            .chain(['\u{fffd}', '🦀', '\u{10ffff}'])
            .collect();
        let mut out = String::new();
        text(&mut out, &all);
        assert_eq!(serde_json::from_str::<String>(&out).unwrap(), all);
        assert!(
            out.bytes().all(|byte| byte >= 0x20),
            "control characters must be escaped"
        );
    }

    #[test]
    fn log_probabilities_are_numbers() {
        for (value, expected) in [
            (-0.5, -0.5),
            (0.0, 0.0),
            (-1e-20, -1e-20),
            (f32::NEG_INFINITY, f32::MIN),
        ] {
            let mut out = String::new();
            logprob(&mut out, value);
            assert_eq!(serde_json::from_str::<f32>(&out).unwrap(), expected, "{out}");
        }
    }
}
