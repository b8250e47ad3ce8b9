//! `prompt` of `/v1/completions`: a text, texts, tokens, or lists of tokens.

use heddle_plugin::generation::Prompt;
use serde_json::value::RawValue;

use super::read::{self, At};
use crate::Fault;

/// Prompts in one request. OpenAI's own limit.
const MOST_PROMPTS: usize = 2048;

/// Reads the prompts: at least one.
pub(super) fn read(at: &At<'_>, value: &RawValue) -> Result<Vec<Prompt>, Fault> {
    if read::is_text(value) {
        return Ok(vec![Prompt::Text(read::text(at, value)?)]);
    }
    if !read::is_array(value) {
        return Err(Fault::wrong_type(
            at.to_string(),
            "a string, an array of strings, an array of tokens or an array of arrays of tokens",
            read::kind(value),
        ));
    }
    // All tokens of one prompt, or else one prompt for each item.
    if let Some(first) = value.get()[1..].trim_ascii_start().bytes().next()
        && (first == b'-' || first.is_ascii_digit())
    {
        return Ok(vec![Prompt::Tokens(read::tokens(at, value)?)]);
    }
    let items = read::array(at, value)?;
    if items.is_empty() {
        return Err(Fault::invalid(at.to_string(), format!("`{at}` cannot be empty")));
    }
    if items.len() > MOST_PROMPTS {
        return Err(Fault::invalid(
            at.to_string(),
            format!(
                "`{at}` supports up to {MOST_PROMPTS} prompts. Given: {}",
                items.len()
            ),
        ));
    }
    let of_tokens = read::is_array(items[0]);
    let mut prompts = Vec::with_capacity(items.len());
    for (i, item) in items.into_iter().enumerate() {
        let at = At::Item(at, i);
        prompts.push(if of_tokens {
            let tokens = read::tokens(&at, item)?;
            if tokens.is_empty() {
                return Err(Fault::invalid(at.to_string(), format!("`{at}` cannot be empty")));
            }
            Prompt::Tokens(tokens)
        } else {
            Prompt::Text(read::text(&at, item)?)
        });
    }
    Ok(prompts)
}
