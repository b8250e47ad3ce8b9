//! The Jinja environment that chat templates expect: transformers' (`utils/chat_template_utils.py`), within limits.

use std::fmt::Write;

use chrono::Utc;
use fancy_regex::{Captures, Regex};
use minijinja::{AutoEscape, Environment, ErrorKind, Value, syntax::SyntaxConfig};

use super::json;
use crate::error::Error;

/// The work of one rendering: instructions, and a unit for each 64 bytes that are made. A conversation of a thousand messages
/// takes about a hundred thousand.
const FUEL: u64 = 4_000_000;
/// How deep macros and blocks may nest. A level may take some kilobytes of stack.
const RECURSION: usize = 200;

/// An environment without templates.
pub(super) fn new() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build();
    environment.set_syntax(syntax.unwrap_or_default());
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_debug(false);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(RECURSION);
    environment.add_filter("tojson", json::tojson);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment
}

/// What a template said when it refused its messages.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

fn raise_exception(message: String) -> Result<Value, minijinja::Error> {
    Err(
        minijinja::Error::new(ErrorKind::InvalidOperation, "the template refused")
            .with_source(Refusal(message)),
    )
}

/// The time in UTC.
fn strftime_now(format: &str) -> Result<String, minijinja::Error> {
    let mut text = String::new();
    write!(text, "{}", Utc::now().format(format)).map_err(|_| {
        minijinja::Error::new(
            ErrorKind::InvalidOperation,
            "strftime_now was given a format that is not one",
        )
    })?;
    Ok(text)
}

/// A failure in words: the template's own, or what failed and in which line.
pub(super) fn explain(error: minijinja::Error) -> Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(current) = cause {
        if let Some(refusal) = current.downcast_ref::<Refusal>() {
            return Error::Template(refusal.0.clone());
        }
        cause = current.source();
    }
    if error.kind() == ErrorKind::OutOfFuel {
        return Error::Template("it does more work than is allowed for one prompt".to_owned());
    }
    let mut message = error.kind().to_string();
    if let Some(detail) = error.detail() {
        message = format!("{message}: {detail}");
    }
    if let Some(line) = error.line() {
        message = format!("{message} (line {line} of the template)");
    }
    Error::Template(message)
}

/// Replaces `{% generation %}` and `{% endgeneration %}`, which mark the assistant's words for training and render as what is
/// between them.
pub(super) fn without_generation_tags(source: &str) -> String {
    let Ok(tag) = Regex::new(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}") else {
        return source.to_owned();
    };
    let replacement = |tag: &Captures<'_>| {
        let part = |index| tag.get(index).map_or("", |part| part.as_str());
        let word = if part(2).is_empty() { "if true" } else { "endif" };
        format!("{{%{} {word} {}%}}", part(1), part(3))
    };
    tag.replace_all(source, replacement).into_owned()
}
