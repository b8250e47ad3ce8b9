//! Reads JSON values one by one, and says where a value is that cannot be read.
//!
//! An object is split into its fields first and each field is read when its name is known. That keeps the place of an
//! error exact and lets large parts (the messages) be handed on as they were sent.

use std::{
    borrow::Cow,
    fmt::{self, Display, Formatter},
};

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::{error::Category, value::RawValue};

use crate::Fault;

/// Where a value is: `messages[2].content`. Written out only in an error.
#[derive(Clone, Copy)]
pub(super) enum At<'a> {
    /// A field of the body.
    Body(&'a str),
    /// A field of an object.
    Field(&'a At<'a>, &'a str),
    /// An item of an array.
    Item(&'a At<'a>, usize),
}

impl Display for At<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Body(name) => f.write_str(name),
            Self::Field(parent, name) => write!(f, "{parent}.{name}"),
            Self::Item(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

impl At<'_> {
    fn expected(&self, expected: &str, found: &RawValue) -> Fault {
        Fault::wrong_type(self.to_string(), expected, kind(found))
    }
}

/// The fields of an object, in their order.
pub(super) type Object<'a> = Vec<(Cow<'a, str>, &'a RawValue)>;

/// The fields of the body.
pub(super) fn body(text: &str) -> Result<Object<'_>, Fault> {
    serde_json::from_str(text)
        .map(|Split(fields)| fields)
        .map_err(|e| match e.classify() {
            Category::Data => Fault::not_an_object(),
            _ => Fault::syntax(format!("The body is not JSON: {e}")),
        })
}

/// The fields of an object.
pub(super) fn object<'a>(at: &At<'_>, value: &'a RawValue) -> Result<Object<'a>, Fault> {
    let Split(fields) = serde_json::from_str(value.get()).map_err(|_| at.expected("an object", value))?;
    Ok(fields)
}

/// The items of an array.
pub(super) fn array<'a>(at: &At<'_>, value: &'a RawValue) -> Result<Vec<&'a RawValue>, Fault> {
    serde_json::from_str(value.get()).map_err(|_| at.expected("an array", value))
}

/// A text.
pub(super) fn text(at: &At<'_>, value: &RawValue) -> Result<String, Fault> {
    if is_text(value) {
        // What is between the quotes was only skipped so far: it can still hold half of a surrogate pair.
        serde_json::from_str(value.get()).map_err(|_| {
            Fault::invalid(
                at.to_string(),
                format!("`{at}` holds an escape that is no character"),
            )
        })
    } else {
        Err(at.expected("a string", value))
    }
}

/// True or false.
pub(super) fn flag(at: &At<'_>, value: &RawValue) -> Result<bool, Fault> {
    match value.get() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(at.expected("true or false", value)),
    }
}

/// A number that a 32-bit float can hold.
pub(super) fn number(at: &At<'_>, value: &RawValue) -> Result<f32, Fault> {
    let number: f64 = match kind(value) {
        // A number that no float can hold does not parse.
        "a number" => value.get().parse().unwrap_or(f64::INFINITY),
        _ => return Err(at.expected("a number", value)),
    };
    let number = number as f32;
    if number.is_finite() {
        Ok(number)
    } else {
        Err(Fault::invalid(
            at.to_string(),
            format!("`{at}` must be a finite number"),
        ))
    }
}

/// A whole number; `16.0` is one.
pub(super) fn integer(at: &At<'_>, value: &RawValue) -> Result<i64, Fault> {
    if let Ok(number) = value.get().parse::<i64>() {
        return Ok(number);
    }
    match value.get().parse::<f64>() {
        Ok(number) if number.fract() == 0.0 => Ok(number as i64),
        Ok(_) => Err(Fault::wrong_type(at.to_string(), "an integer", "a fraction")),
        Err(_) => Err(at.expected("an integer", value)),
    }
}

/// A seed: any whole number of 64 bits, with or without a sign.
pub(super) fn seed(at: &At<'_>, value: &RawValue) -> Result<u64, Fault> {
    match value.get().parse::<u64>() {
        Ok(seed) => Ok(seed),
        Err(_) => integer(at, value).map(|seed| seed as u64),
    }
}

/// A token id.
pub(super) fn token(at: &At<'_>, value: &RawValue) -> Result<u32, Fault> {
    u32::try_from(integer(at, value)?)
        .map_err(|_| Fault::invalid(at.to_string(), format!("`{at}` must be a token id")))
}

/// An array of token ids.
pub(super) fn tokens(at: &At<'_>, value: &RawValue) -> Result<Vec<u32>, Fault> {
    // Long prompts come this way: read them at once, and look for the place only if that fails.
    if let Ok(tokens) = serde_json::from_str(value.get()) {
        return Ok(tokens);
    }
    array(at, value)?
        .into_iter()
        .enumerate()
        .map(|(i, id)| token(&At::Item(at, i), id))
        .collect()
}

/// Whether each escaped surrogate in a value has its other half (RFC 8259, 7). Splitting a value does not look at that.
pub(super) fn escapes_are_characters(value: &RawValue) -> bool {
    let mut rest = value.get();
    // Escapes stand in strings only, and an escape's hexadecimal digits are already known to be such.
    while let Some(at) = rest.find('\\') {
        rest = &rest[at..];
        let Some(unit) = utf16_escape(rest) else {
            rest = &rest[2..];
            continue;
        };
        rest = &rest[6..];
        match unit {
            0xd800..0xdc00 if utf16_escape(rest).is_some_and(|low| (0xdc00..0xe000).contains(&low)) => {
                rest = &rest[6..];
            }
            0xd800..0xe000 => return false,
            _ => {}
        }
    }
    true
}

/// The value of the `\uXXXX` that a text starts with.
fn utf16_escape(text: &str) -> Option<u16> {
    u16::from_str_radix(text.strip_prefix("\\u")?.get(..4)?, 16).ok()
}

pub(super) fn is_null(value: &RawValue) -> bool {
    value.get() == "null"
}

pub(super) fn is_text(value: &RawValue) -> bool {
    value.get().starts_with('"')
}

pub(super) fn is_array(value: &RawValue) -> bool {
    value.get().starts_with('[')
}

/// What a value is, for an error.
pub(super) fn kind(value: &RawValue) -> &'static str {
    match value.get().as_bytes().first() {
        Some(b'{') => "an object",
        Some(b'[') => "an array",
        Some(b'"') => "a string",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        _ => "a number",
    }
}

/// An object split into its fields.
struct Split<'a>(Object<'a>);

impl<'de> Deserialize<'de> for Split<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = Split<'de>;

            fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut fields = Vec::with_capacity(16);
                while let Some((Name(name), value)) = map.next_entry()? {
                    fields.push((name, value));
                }
                Ok(Split(fields))
            }
        }

        deserializer.deserialize_map(Fields)
    }
}

/// The name of a field, copied only if it is escaped.
struct Name<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl<'de> Visitor<'de> for Text {
            type Value = Name<'de>;

            fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Name(Cow::Borrowed(text)))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Name(Cow::Owned(text.to_owned())))
            }
        }

        deserializer.deserialize_str(Text)
    }
}
