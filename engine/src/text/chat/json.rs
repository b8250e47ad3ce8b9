//! JSON in templates, as Python has it: `tojson` is transformers' own filter, `json.dumps` without HTML escapes.

use std::fmt::Write;

use minijinja::{
    Error, ErrorKind, Value,
    value::{Kwargs, ValueKind},
};

use super::{MAX_PROMPT, invalid};

/// How deep values may nest.
const DEPTH: usize = 128;
/// The widest indent.
const MAX_INDENT: usize = 64;

/// A JSON value as templates read it; objects keep their order.
pub(super) fn to_value(json: &serde_json::Value) -> crate::Result<Value> {
    fn convert(json: &serde_json::Value, depth: usize) -> Option<Value> {
        use serde_json::Value as Json;
        let depth = depth.checked_sub(1)?;
        Some(match json {
            Json::Null => Value::from(()),
            Json::Bool(value) => Value::from(*value),
            Json::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(value), _) => Value::from(value),
                (_, Some(value)) => Value::from(value),
                _ => Value::from(number.as_f64()?),
            },
            Json::String(text) => Value::from(text.as_str()),
            Json::Array(items) => {
                let items: Option<Vec<Value>> = items.iter().map(|item| convert(item, depth)).collect();
                Value::from(items?)
            }
            Json::Object(fields) => {
                let mut pairs = Vec::with_capacity(fields.len());
                for (name, value) in fields {
                    pairs.push((name.as_str(), convert(value, depth)?));
                }
                Value::from_pairs(pairs)
            }
        })
    }
    convert(json, DEPTH).ok_or_else(|| invalid("messages", format!("and tools may nest {DEPTH} levels deep")))
}

/// `json.dumps(value, ensure_ascii, indent, separators, sort_keys)`.
pub(super) fn tojson(value: &Value, ensure_ascii: Option<bool>, options: Kwargs) -> Result<String, Error> {
    let ensure_ascii = match ensure_ascii {
        Some(given) => Some(given),
        None => options.get("ensure_ascii")?,
    };
    let indent = match options.get::<Option<Value>>("indent")? {
        Some(indent) if !indent.is_none() => Some(indent_text(&indent)?),
        _ => None,
    };
    let separators = options.get::<Option<Vec<String>>>("separators")?;
    let sort_keys = options.get::<Option<bool>>("sort_keys")?;
    options.assert_all_used()?;
    let (between, after_key) = match separators.as_deref() {
        Some([between, after_key]) => (between.clone(), after_key.clone()),
        Some(_) => return Err(failed("separators must be two texts")),
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let mut writer = Writer {
        text: String::new(),
        ensure_ascii: ensure_ascii.unwrap_or(false),
        indent,
        between,
        after_key,
        sort_keys: sort_keys.unwrap_or(false),
        depth: 0,
    };
    writer.value(value)?;
    Ok(writer.text)
}

/// What a level is indented by: so many spaces, or a text.
fn indent_text(indent: &Value) -> Result<String, Error> {
    let text = match indent.as_str() {
        Some(text) => text.to_owned(),
        None => " ".repeat(i64::try_from(indent.clone())?.clamp(0, MAX_INDENT as i64 + 1) as usize),
    };
    if text.len() > MAX_INDENT {
        return Err(failed(format!("tojson indents by {MAX_INDENT} at most")));
    }
    Ok(text)
}

struct Writer {
    text: String,
    ensure_ascii: bool,
    indent: Option<String>,
    between: String,
    after_key: String,
    sort_keys: bool,
    depth: usize,
}

impl Writer {
    fn value(&mut self, value: &Value) -> Result<(), Error> {
        // A value may hold another many times over: what is written counts, not what is stored.
        if self.text.len() > MAX_PROMPT {
            return Err(failed("the value is too long for tojson"));
        }
        match value.kind() {
            ValueKind::None => self.text.push_str("null"),
            ValueKind::Bool => self.text.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.text.push_str(&number(value)?),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.list('[', ']', items.iter(), Self::value)?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.list('{', '}', keys.iter(), |writer, key| {
                    writer.key(key)?;
                    let after_key = writer.after_key.clone();
                    writer.text.push_str(&after_key);
                    writer.value(&value.get_item(key)?)
                })?;
            }
            other => return Err(failed(format!("{other} is not JSON serializable"))),
        }
        Ok(())
    }

    fn list<'v>(
        &mut self,
        open: char,
        close: char,
        items: impl ExactSizeIterator<Item = &'v Value>,
        mut write: impl FnMut(&mut Self, &'v Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.text.push(open);
        let empty = items.len() == 0;
        self.depth += 1;
        if self.depth > DEPTH {
            return Err(failed(format!("the value nests more than {DEPTH} levels deep")));
        }
        for (index, item) in items.enumerate() {
            if index > 0 {
                let between = self.between.clone();
                self.text.push_str(&between);
            }
            self.new_line();
            write(self, item)?;
        }
        self.depth -= 1;
        if !empty {
            self.new_line();
        }
        self.text.push(close);
        Ok(())
    }

    fn new_line(&mut self) {
        if let Some(indent) = &self.indent {
            self.text.push('\n');
            self.text.push_str(&indent.repeat(self.depth));
        }
    }

    /// Python makes texts of the keys that JSON has no others for.
    fn key(&mut self, key: &Value) -> Result<(), Error> {
        let text = match key.kind() {
            ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
            ValueKind::None => "null".to_owned(),
            ValueKind::Bool => key.is_true().to_string(),
            ValueKind::Number => number(key)?,
            other => return Err(failed(format!("{other} is not a key of JSON"))),
        };
        self.string(&text);
        Ok(())
    }

    fn string(&mut self, text: &str) {
        self.text.push('"');
        for char in text.chars() {
            match char {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                '\r' => self.text.push_str("\\r"),
                '\t' => self.text.push_str("\\t"),
                '\u{8}' => self.text.push_str("\\b"),
                '\u{c}' => self.text.push_str("\\f"),
                _ if char < ' ' || self.ensure_ascii && !matches!(char, ' '..='~') => {
                    for unit in char.encode_utf16(&mut [0; 2]) {
                        // Writing to a text does not fail.
                        let _ = write!(self.text, "\\u{unit:04x}");
                    }
                }
                _ => self.text.push(char),
            }
        }
        self.text.push('"');
    }
}

/// A number as Python writes it.
fn number(value: &Value) -> Result<String, Error> {
    if value.is_integer() {
        return Ok(value.to_string());
    }
    let float = f64::try_from(value.clone())?;
    if float.is_nan() {
        return Ok("NaN".to_owned());
    }
    if float.is_infinite() {
        return Ok(if float > 0.0 { "Infinity" } else { "-Infinity" }.to_owned());
    }
    // Rust's debug format is the shortest that reads back and takes the exponent where Python does, but writes 1e-5 and 1e16 for
    // 1e-05 and 1e+16.
    let text = format!("{float:?}");
    Ok(match text.split_once('e') {
        None => text,
        Some((digits, exponent)) => {
            let (sign, exponent) = exponent
                .strip_prefix('-')
                .map_or(('+', exponent), |rest| ('-', rest));
            format!("{digits}e{sign}{exponent:0>2}")
        }
    })
}

fn failed(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}
