//! From what the engine gives to what the client reads: one document, or the chunks of a stream.

pub mod json;
mod logprobs;
pub mod models;
#[cfg(test)]
mod tests;

use heddle_plugin::{
    Generated, Payload, Problem, ProblemKind, Reply,
    generation::{Event, FinishReason, Token, Usage},
};

use self::logprobs::{Placed, Track};
use crate::{
    Fault,
    request::{Api, Call},
};

/// What serves a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// Unique, without a prefix.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// What served it.
    pub model: String,
    /// The tokens of each prompt, where log probabilities of an echo were asked for.
    pub prompts: Vec<Vec<Token>>,
}

/// The answer to one request.
#[derive(Debug)]
pub struct Answer {
    api: Api,
    choices_per_prompt: usize,
    /// Choices in all.
    choices: usize,
    stream: bool,
    include_usage: bool,
    fingerprint: String,
    /// The tokens of each choice, if they were asked for.
    tracks: Vec<Track>,
    /// How every chunk and the document begin, up to the choices.
    head: String,
}

impl Answer {
    /// The answer to this call. `fingerprint` names who made it: clients read it as `system_fingerprint`.
    pub fn new(call: &Call, fingerprint: String) -> Self {
        let choices_per_prompt = call.choices as usize;
        let choices = choices_per_prompt * call.prompts.len();
        let mut tracks = Vec::new();
        if call.logprobs.is_some() {
            tracks.resize_with(choices, Track::default);
        }
        Self {
            api: call.api,
            choices_per_prompt,
            choices,
            stream: call.stream,
            include_usage: call.include_usage,
            fingerprint,
            tracks,
            head: String::new(),
        }
    }

    /// The engine took the request. A stream of a chat begins with the role, in a chunk for each choice.
    pub fn start(&mut self, facts: Facts) -> Vec<Payload> {
        let (prefix, object) = match (self.api, self.stream) {
            (Api::Chat, true) => ("chatcmpl-", "chat.completion.chunk"),
            (Api::Chat, false) => ("chatcmpl-", "chat.completion"),
            (Api::Completions, _) => ("cmpl-", "text_completion"),
        };
        let head = &mut self.head;
        *head += r#"{"id":"#;
        json::text(head, &format!("{prefix}{}", facts.id));
        *head += r#","object":"#;
        json::text(head, object);
        *head += r#","created":"#;
        json::integer(head, facts.created);
        *head += r#","model":"#;
        json::text(head, &facts.model);
        *head += r#","system_fingerprint":"#;
        json::text(head, &self.fingerprint);
        *head += r#","choices":"#;

        for (choice, track) in self.tracks.iter_mut().enumerate() {
            if let Some(prompt) = facts.prompts.get(choice / self.choices_per_prompt) {
                track.echo(prompt.clone());
            }
        }
        if self.api == Api::Completions || !self.stream {
            return Vec::new();
        }
        (0..self.choices as u64)
            .map(|choice| {
                self.chunk(|out| {
                    *out += r#"{"index":"#;
                    json::integer(out, choice);
                    *out +=
                        r#","delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}"#;
                })
            })
            .collect()
    }

    /// The next chunks of a stream: one for each choice that has something to show.
    pub fn render(&mut self, events: Vec<Event>) -> Vec<Payload> {
        let mut merged: Vec<Event> = Vec::new();
        for event in events {
            match merged.iter_mut().find(|earlier| earlier.choice == event.choice) {
                Some(earlier) => {
                    earlier.text += &event.text;
                    earlier.tokens.extend(event.tokens);
                    earlier.finish = earlier.finish.take().or(event.finish);
                }
                None => merged.push(event),
            }
        }
        let mut payloads = Vec::with_capacity(merged.len());
        for event in merged {
            let tokens = self.placed(event.choice, event.tokens, &event.text, event.finish.as_ref());
            if event.text.is_empty() && event.finish.is_none() && tokens.as_ref().is_none_or(Vec::is_empty) {
                continue;
            }
            let (api, finish) = (self.api, event.finish.as_ref());
            payloads.push(self.chunk(|out| {
                *out += r#"{"index":"#;
                json::integer(out, event.choice);
                match api {
                    Api::Completions => {
                        *out += r#","text":"#;
                        json::text(out, &event.text);
                    }
                    Api::Chat if event.text.is_empty() => *out += r#","delta":{}"#,
                    Api::Chat => {
                        *out += r#","delta":{"content":"#;
                        json::text(out, &event.text);
                        out.push('}');
                    }
                }
                end_choice(out, api, tokens.as_deref(), finish);
            }));
        }
        payloads
    }

    /// The end of a stream: the usage, if it was asked for, and `[DONE]`.
    pub fn close(&mut self, usage: Usage) -> Vec<Payload> {
        let mut payloads = Vec::with_capacity(2);
        if self.include_usage {
            let mut data = self.head.clone();
            data += "[]";
            write_usage(&mut data, usage);
            data.push('}');
            payloads.push(Payload { name: None, data });
        }
        payloads.push(Payload {
            name: None,
            data: "[DONE]".into(),
        });
        payloads
    }

    /// A stream that broke off: the error, and no `[DONE]`.
    pub fn break_off(&mut self, problem: Problem) -> Vec<Payload> {
        vec![Payload {
            name: None,
            data: Fault::of(problem).to_json(),
        }]
    }

    /// The whole answer.
    pub fn document(&mut self, generated: Generated) -> Reply {
        if generated
            .choices
            .iter()
            .any(|choice| choice.finish == FinishReason::Failed)
        {
            return incomplete().into_reply();
        }
        let mut out = std::mem::take(&mut self.head);
        json::list(&mut out, ['[', ']'], generated.choices, |out, choice| {
            let tokens = self.placed(choice.index, choice.tokens, &choice.text, Some(&choice.finish));
            *out += r#"{"index":"#;
            json::integer(out, choice.index);
            match self.api {
                Api::Completions => {
                    *out += r#","text":"#;
                    json::text(out, &choice.text);
                }
                Api::Chat => {
                    *out += r#","message":{"role":"assistant","content":"#;
                    json::text(out, &choice.text);
                    *out += r#","refusal":null}"#;
                }
            }
            end_choice(out, self.api, tokens.as_deref(), Some(&choice.finish));
        });
        write_usage(&mut out, generated.usage);
        out.push('}');
        document(out)
    }

    /// The tokens to give out with this text of a choice; none if no log probabilities were asked for.
    fn placed(
        &mut self,
        choice: u32,
        tokens: Vec<Token>,
        text: &str,
        finish: Option<&FinishReason>,
    ) -> Option<Vec<Placed>> {
        let track = self.tracks.get_mut(choice as usize)?;
        track.add(tokens);
        Some(track.show(text, finish))
    }

    /// A chunk with one choice.
    fn chunk(&self, write_choice: impl FnOnce(&mut String)) -> Payload {
        let mut data = String::with_capacity(self.head.len() + 160);
        data += &self.head;
        data.push('[');
        write_choice(&mut data);
        data.push(']');
        if self.include_usage {
            data += r#","usage":null"#;
        }
        data.push('}');
        Payload { name: None, data }
    }
}

/// What ends every choice.
fn end_choice(out: &mut String, api: Api, tokens: Option<&[Placed]>, finish: Option<&FinishReason>) {
    *out += r#","logprobs":"#;
    match tokens {
        Some(tokens) => logprobs::write(out, api, tokens),
        None => *out += "null",
    }
    *out += r#","finish_reason":"#;
    let reason = finish.map(|finish| match finish {
        FinishReason::Eos | FinishReason::StopSequence(_) => "stop",
        FinishReason::Length => "length",
        FinishReason::Failed => "error",
        FinishReason::Other(reason) => reason,
    });
    json::text_or_null(out, reason);
    out.push('}');
}

fn write_usage(out: &mut String, usage: Usage) {
    let numbers = [
        (r#","usage":{"prompt_tokens":"#, u64::from(usage.prompt_tokens)),
        (r#","completion_tokens":"#, usage.completion_tokens.into()),
        (
            r#","total_tokens":"#,
            u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens),
        ),
        (
            r#","prompt_tokens_details":{"cached_tokens":"#,
            usage.cached_tokens.into(),
        ),
    ];
    for (name, number) in numbers {
        *out += name;
        json::integer(out, number);
    }
    *out += "}}";
}

/// LoRAX's words for a generation that did not end.
fn incomplete() -> Fault {
    Fault::of(Problem {
        status: 500,
        kind: ProblemKind::GenerationFailed,
        code: None,
        message: "Incomplete generation".into(),
        parameter: None,
        retry_after: None,
    })
}

/// A document.
fn document(text: String) -> Reply {
    Reply {
        status: 200,
        content_type: json::CONTENT_TYPE.into(),
        headers: Vec::new(),
        body: text.into_bytes(),
    }
}
