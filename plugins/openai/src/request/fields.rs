//! The fields of both routes: read one by one, then checked together.

use heddle_plugin::generation::{Chat, Prompt};
use serde_json::value::RawValue;

use super::{
    Api, Call, messages, prompt,
    read::{self, At},
    unsupported,
};
use crate::{Fault, answer::json};

/// Choices of one prompt.
const MOST_CHOICES: i64 = 128;
/// Alternatives of a token.
const MOST_ALTERNATIVES: i64 = 20;
/// Stop sequences, and their bytes in all.
const MOST_STOPS: usize = 64;
const MOST_STOP_BYTES: usize = 256 << 10;
/// Biases.
const MOST_BIASES: usize = 1024;

/// What a body holds, each field by itself.
#[derive(Default)]
pub(super) struct Fields {
    model: Option<String>,
    adapter_source: Option<String>,
    api_token: Option<String>,
    prompts: Vec<Prompt>,
    messages: Option<String>,
    stream: bool,
    stream_options: bool,
    include_usage: bool,
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    min_tokens: Option<i64>,
    n: Option<i64>,
    best_of: Option<i64>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    min_p: Option<f32>,
    typical_p: Option<f32>,
    repetition_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    logit_bias: Vec<(u32, f32)>,
    seed: Option<u64>,
    stop: Vec<String>,
    keep_stop: bool,
    stop_tokens: Vec<u32>,
    ignore_eos: bool,
    /// `logprobs` of completions, `top_logprobs` of chat.
    alternatives: Option<i64>,
    /// `logprobs` of chat.
    logprobs: bool,
    echo: bool,
    truncate: Option<i64>,
    add_generation_prompt: Option<bool>,
    continue_final_message: bool,
    guideline: Option<String>,
    template_arguments: Option<String>,
}

impl Fields {
    /// Takes a field. The last one of a name counts.
    pub(super) fn set(&mut self, api: Api, name: &str, value: &RawValue) -> Result<(), Fault> {
        let at = &At::Body(name);
        match (name, api) {
            ("model", _) => self.model = Some(read::text(at, value)?),
            ("adapter_source", _) => self.adapter_source = Some(read::text(at, value)?),
            ("api_token", _) => self.api_token = Some(read::text(at, value)?),
            ("prompt", Api::Completions) => self.prompts = prompt::read(at, value)?,
            ("messages", Api::Chat) => self.messages = Some(messages::read(at, value)?),
            ("stream", _) => self.stream = read::flag(at, value)?,
            ("stream_options", _) => self.set_stream_options(at, value)?,
            ("max_tokens", _) => self.max_tokens = Some(read::integer(at, value)?),
            ("max_completion_tokens", _) => self.max_completion_tokens = Some(read::integer(at, value)?),
            ("min_tokens", _) => self.min_tokens = Some(read::integer(at, value)?),
            ("n", _) => self.n = Some(read::integer(at, value)?),
            ("best_of", _) => self.best_of = Some(read::integer(at, value)?),
            ("temperature", _) => self.temperature = Some(read::number(at, value)?),
            ("top_p", _) => self.top_p = Some(read::number(at, value)?),
            ("top_k", _) => self.top_k = Some(read::integer(at, value)?),
            ("min_p", _) => self.min_p = Some(read::number(at, value)?),
            ("typical_p", _) => self.typical_p = Some(read::number(at, value)?),
            ("repetition_penalty", _) => self.repetition_penalty = Some(read::number(at, value)?),
            ("frequency_penalty", _) => self.frequency_penalty = Some(read::number(at, value)?),
            ("presence_penalty", _) => self.presence_penalty = Some(read::number(at, value)?),
            ("logit_bias", _) => self.logit_bias = logit_bias(at, value)?,
            ("seed", _) => self.seed = Some(read::seed(at, value)?),
            ("stop", _) => self.stop = stop(at, value)?,
            ("include_stop_str_in_output", _) => self.keep_stop = read::flag(at, value)?,
            ("stop_token_ids", _) => self.stop_tokens = read::tokens(at, value)?,
            ("ignore_eos" | "ignore_eos_token", _) => self.ignore_eos = read::flag(at, value)?,
            ("logprobs", Api::Completions) => self.alternatives = Some(read::integer(at, value)?),
            ("logprobs", Api::Chat) => self.logprobs = read::flag(at, value)?,
            ("top_logprobs", Api::Chat) => self.alternatives = Some(read::integer(at, value)?),
            ("echo", Api::Completions) => self.echo = read::flag(at, value)?,
            ("truncate_prompt_tokens", _) => self.truncate = Some(read::integer(at, value)?),
            ("add_generation_prompt", Api::Chat) => {
                self.add_generation_prompt = Some(read::flag(at, value)?);
            }
            ("continue_final_message", Api::Chat) => self.continue_final_message = read::flag(at, value)?,
            ("guideline", Api::Chat) => self.guideline = Some(read::text(at, value)?),
            ("chat_template_kwargs", Api::Chat) => {
                read::object(at, value)?;
                self.template_arguments = Some(value.get().to_owned());
            }
            _ => unsupported::refuse(api, name, value)?,
        }
        Ok(())
    }

    fn set_stream_options(&mut self, at: &At<'_>, value: &RawValue) -> Result<(), Fault> {
        self.stream_options = true;
        for (name, value) in read::object(at, value)? {
            let at = At::Field(at, &name);
            match name.as_ref() {
                _ if read::is_null(value) => {}
                "include_usage" => self.include_usage = read::flag(&at, value)?,
                "continuous_usage_stats" if value.get() != "false" => {
                    return Err(Fault::unsupported(
                        at.to_string(),
                        format!("`{at}` is not supported"),
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks the fields together. The order from `best_of` to `stop` is LoRAX's, and so are the sentences that it has.
    pub(super) fn check(self, api: Api) -> Result<Call, Fault> {
        let model = self.model.ok_or_else(|| Fault::missing("model"))?;
        let choices = whole("n", self.n, 1..=MOST_CHOICES)?.unwrap_or(1);
        let best_of = whole("best_of", self.best_of, 1..=MOST_CHOICES)?;
        if best_of.is_some_and(|best_of| best_of < choices) {
            return Err(Fault::invalid("best_of", "`best_of` must be at least `n`"));
        }
        if self.stream && best_of.is_some_and(|best_of| best_of > choices) {
            return Err(Fault::invalid(
                "best_of",
                "`best_of` > `n` is not supported when streaming tokens",
            ));
        }
        let holds = |name: &str, holds: bool, rule: &str| match holds {
            true => Ok(()),
            false => Err(Fault::invalid(name, format!("`{name}` must be {rule}"))),
        };
        let unless = |value: Option<f32>, rule: fn(f32) -> bool| value.is_none_or(rule);
        holds(
            "temperature",
            unless(self.temperature, |t| t >= 0.0),
            "non-negative",
        )?;
        holds(
            "repetition_penalty",
            unless(self.repetition_penalty, |p| p > 0.0),
            "strictly positive",
        )?;
        let penalty = |p: f32| (-2.0..=2.0).contains(&p);
        holds(
            "frequency_penalty",
            unless(self.frequency_penalty, penalty),
            ">= -2.0 and <= 2.0",
        )?;
        holds(
            "presence_penalty",
            unless(self.presence_penalty, penalty),
            ">= -2.0 and <= 2.0",
        )?;
        let share = |p: f32| p > 0.0 && p <= 1.0;
        holds("top_p", unless(self.top_p, share), "> 0.0 and <= 1.0")?;
        holds("typical_p", unless(self.typical_p, share), "> 0.0 and <= 1.0")?;
        holds(
            "min_p",
            unless(self.min_p, |p| (0.0..=1.0).contains(&p)),
            ">= 0.0 and <= 1.0",
        )?;
        // vLLM: -1 and 0 keep all.
        let top_k = whole(
            "top_k",
            self.top_k.map(|k| if k == -1 { 0 } else { k }),
            0..=u32::MAX.into(),
        )?;
        let (max_tokens, name) = match (self.max_tokens, self.max_completion_tokens) {
            (Some(old), Some(new)) if old != new => {
                return Err(Fault::invalid(
                    "max_tokens",
                    "`max_tokens` and `max_completion_tokens` are the same limit: give one of them",
                ));
            }
            (old, None) => (old, "max_tokens"),
            (_, new) => (new, "max_completion_tokens"),
        };
        holds(
            name,
            max_tokens.is_none_or(|count| count > 0),
            "strictly positive",
        )?;
        let max_tokens = max_tokens.map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        let min_tokens = whole("min_tokens", self.min_tokens, 0..=u32::MAX.into())?;
        if min_tokens.zip(max_tokens).is_some_and(|(min, max)| min > max) {
            return Err(Fault::invalid(
                "min_tokens",
                format!("`min_tokens` must not be more than `{name}`"),
            ));
        }
        if self.stop.len() > MOST_STOPS {
            return Err(Fault::invalid(
                "stop",
                format!(
                    "`stop` supports up to {MOST_STOPS} stop sequences. Given: {}",
                    self.stop.len()
                ),
            ));
        }
        if self.stop.iter().map(String::len).sum::<usize>() > MOST_STOP_BYTES {
            return Err(Fault::invalid(
                "stop",
                format!("`stop` supports up to {MOST_STOP_BYTES} bytes in all"),
            ));
        }
        let truncate = whole("truncate_prompt_tokens", self.truncate, 1..=u32::MAX.into())?;
        let logprobs = match api {
            Api::Completions => whole("logprobs", self.alternatives, 0..=MOST_ALTERNATIVES)?,
            Api::Chat => {
                let alternatives = whole("top_logprobs", self.alternatives, 0..=MOST_ALTERNATIVES)?;
                if alternatives.is_some_and(|count| count > 0) && !self.logprobs {
                    return Err(Fault::invalid(
                        "top_logprobs",
                        "`top_logprobs` needs `logprobs` to be true",
                    ));
                }
                self.logprobs.then_some(alternatives.unwrap_or(0))
            }
        };
        if self.stream_options && !self.stream {
            return Err(Fault::invalid(
                "stream_options",
                "`stream_options` is only allowed when `stream` is true",
            ));
        }
        let prompts = match (api, self.messages) {
            (Api::Chat, None) => return Err(Fault::missing("messages")),
            (Api::Completions, _) if self.prompts.is_empty() => return Err(Fault::missing("prompt")),
            (Api::Completions, _) => self.prompts,
            (Api::Chat, Some(messages)) => {
                let generation_prompt = match (self.add_generation_prompt, self.continue_final_message) {
                    (Some(true), true) => {
                        return Err(Fault::invalid(
                            "continue_final_message",
                            "`continue_final_message` and `add_generation_prompt` cannot both be true",
                        ));
                    }
                    (None, true) => Some(false),
                    (given, _) => given,
                };
                let arguments = template_arguments(
                    self.template_arguments.as_deref(),
                    generation_prompt,
                    self.continue_final_message,
                    self.guideline.as_deref(),
                );
                vec![Prompt::Chat(Chat {
                    messages,
                    tools: None,
                    arguments,
                })]
            }
        };
        Ok(Call {
            api,
            model,
            adapter_source: self.adapter_source,
            api_token: self.api_token,
            prompts,
            stream: self.stream,
            include_usage: self.include_usage,
            max_tokens,
            min_tokens,
            choices,
            best_of,
            temperature: self.temperature.unwrap_or(1.0),
            top_p: self.top_p,
            top_k,
            min_p: self.min_p,
            typical_p: self.typical_p,
            repetition_penalty: self.repetition_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            logit_bias: self.logit_bias,
            seed: self.seed,
            stop: self.stop,
            keep_stop: self.keep_stop,
            stop_tokens: self.stop_tokens,
            ignore_eos: self.ignore_eos,
            logprobs,
            echo: self.echo,
            truncate,
        })
    }
}

/// A whole number within bounds.
fn whole(
    name: &str,
    value: Option<i64>,
    bounds: std::ops::RangeInclusive<i64>,
) -> Result<Option<u32>, Fault> {
    let Some(value) = value else {
        return Ok(None);
    };
    match u32::try_from(value) {
        Ok(number) if bounds.contains(&value) => Ok(Some(number)),
        _ => {
            let (least, most) = bounds.into_inner();
            Err(Fault::invalid(
                name,
                format!("`{name}` must be >= {least} and <= {most}. Given: {value}"),
            ))
        }
    }
}

/// `stop`: a text or texts, none of them empty.
fn stop(at: &At<'_>, value: &RawValue) -> Result<Vec<String>, Fault> {
    let text = |at: At<'_>, value| match read::text(&at, value)? {
        text if text.is_empty() => Err(Fault::invalid(at.to_string(), format!("`{at}` cannot be empty"))),
        text => Ok(text),
    };
    if read::is_text(value) {
        return Ok(vec![text(*at, value)?]);
    }
    if !read::is_array(value) {
        return Err(Fault::wrong_type(
            at.to_string(),
            "a string or an array of strings",
            read::kind(value),
        ));
    }
    read::array(at, value)?
        .into_iter()
        .enumerate()
        .map(|(i, item)| text(At::Item(at, i), item))
        .collect()
}

/// `logit_bias`: from token ids, written as names, to numbers from -100 to 100.
fn logit_bias(at: &At<'_>, value: &RawValue) -> Result<Vec<(u32, f32)>, Fault> {
    let fields = read::object(at, value)?;
    if fields.len() > MOST_BIASES {
        let given = fields.len();
        return Err(Fault::invalid(
            at.to_string(),
            format!("`{at}` supports up to {MOST_BIASES} tokens. Given: {given}"),
        ));
    }
    let mut biases = Vec::with_capacity(fields.len());
    for (name, value) in fields {
        let id = name
            .parse()
            .map_err(|_| Fault::invalid(at.to_string(), format!("the names in `{at}` must be token ids")))?;
        let at = At::Field(at, &name);
        let bias = read::number(&at, value)?;
        if !(-100.0..=100.0).contains(&bias) {
            return Err(Fault::invalid(
                at.to_string(),
                format!("`{at}` must be >= -100 and <= 100"),
            ));
        }
        biases.push((id, bias));
    }
    Ok(biases)
}

/// The template's further variables, as a JSON object. What stands last counts, so the fields that have a name of their
/// own win over `chat_template_kwargs`.
fn template_arguments(
    given: Option<&str>,
    generation_prompt: Option<bool>,
    continue_final: bool,
    guideline: Option<&str>,
) -> Option<String> {
    let mut out = String::new();
    let mut add = |text: &str| {
        out.push(if out.is_empty() { '{' } else { ',' });
        out += text;
    };
    // Checked to be an object: what is between its braces.
    if let Some(given) = given
        .map(|object| object[1..object.len() - 1].trim_ascii())
        .filter(|g| !g.is_empty())
    {
        add(given);
    }
    if let Some(flag) = generation_prompt {
        add(&format!("\"add_generation_prompt\":{flag}"));
    }
    if continue_final {
        add("\"continue_final_message\":true");
    }
    if let Some(guideline) = guideline {
        let mut field = String::from("\"guideline\":");
        json::text(&mut field, guideline);
        add(&field);
    }
    if out.is_empty() {
        return None;
    }
    out.push('}');
    Some(out)
}
