//! From what a protocol plugin asks to what the engine takes: which model, which limits, one engine request for each
//! prompt. What the engine checks is not checked here again.

use heddle_engine::{
    adapter::{AdapterRegistry, AdapterRequest, Lease},
    ids::{Tenant, TokenId},
    request::{ChatPrompt, GenerateRequest, Prompt, SamplingParams},
    text::Tokenizer,
};

use super::problem;
use crate::{
    app::ServedModel,
    plugin::{
        bindings::{exports::heddle::plugin::protocol::Problem, heddle::plugin::generation},
        resources::{Credential, GenerationCall, Grant, Target},
    },
};

/// What a call means to be served by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Model {
    /// The base model.
    Base,
    /// An adapter: a registered name, or an id at a source.
    Adapter {
        /// The name or id.
        id: String,
        /// The source, if the call names one.
        source: Option<String>,
    },
}

/// Which model a call means, and that in the words of the auth plugin.
///
/// `model` is the base model by any of its names, or an adapter; an adapter that is named apart takes its place.
pub(super) fn target(call: &GenerationCall, base: &ServedModel) -> (Target, Model) {
    let present = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let source = present(&call.adapter_source);
    let model = match present(&call.adapter) {
        Some(id) => Model::Adapter { id, source },
        None if base.is_named(&call.model) => Model::Base,
        None => Model::Adapter {
            id: call.model.clone(),
            source,
        },
    };
    let (adapter, source) = match &model {
        Model::Base => (None, None),
        Model::Adapter { id, source } => (Some(id.clone()), source.clone()),
    };
    let target = Target {
        operation: "generate".to_owned(),
        model: call.model.clone(),
        adapter,
        source,
    };
    (target, model)
}

/// The lease of the adapter, if it is one.
pub(super) fn lease(
    adapters: &AdapterRegistry,
    model: &Model,
    grant: &Grant,
    token: &Credential,
) -> Result<Option<Lease>, Problem> {
    let Model::Adapter { id, source } = model else {
        return Ok(None);
    };
    let credential = grant
        .callers_credential
        .then(|| token.secret.as_deref().map(str::to_owned))
        .flatten();
    let lease = adapters.lease(&AdapterRequest {
        id: id.clone(),
        source: source.clone(),
        credential,
    })?;
    Ok(Some(lease))
}

/// How many choices a call has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counts {
    /// Prompts.
    pub prompts: u32,
    /// Choices returned for each prompt.
    pub returned: u32,
    /// Choices generated for each prompt.
    pub generated: u32,
}

impl Counts {
    /// Checks `n` and `best_of`, which the engine does not know.
    pub(super) fn of(call: &GenerationCall, streamed: bool, most: u32) -> Result<Self, Problem> {
        let returned = call.choices.unwrap_or(1);
        let generated = call.best_of.unwrap_or(returned);
        let prompts = u32::try_from(call.prompts.len()).unwrap_or(u32::MAX);
        if prompts == 0 {
            return Err(problem::invalid(
                "prompt",
                "`prompt` is empty: at least one is needed",
            ));
        }
        if returned == 0 {
            return Err(problem::invalid("n", "`n` must be at least 1"));
        }
        if generated < returned {
            return Err(problem::invalid(
                "best_of",
                format!("`best_of` must be at least `n`, which is {returned}; it is {generated}"),
            ));
        }
        if generated > returned && streamed {
            return Err(problem::invalid(
                "best_of",
                "`best_of` above `n` cannot be streamed: the best is known at the end",
            ));
        }
        if prompts.saturating_mul(generated) > most {
            let parameter = if generated > 1 { "n" } else { "prompt" };
            return Err(problem::invalid(
                parameter,
                format!(
                    "a request may have {most} choices over all its prompts; this one has {prompts} times {generated}"
                ),
            ));
        }
        Ok(Self {
            prompts,
            returned,
            generated,
        })
    }
}

/// The engine's request for one prompt of a call.
pub(super) fn engine_request(
    call: &GenerationCall,
    prompt: Prompt,
    counts: &Counts,
    lease: Option<Lease>,
    grant: &Grant,
    seed: Option<u64>,
) -> GenerateRequest {
    let defaults = SamplingParams::default();
    let max_tokens = match (call.max_tokens, grant.max_tokens) {
        (Some(asked), Some(granted)) => Some(asked.min(granted)),
        (asked, granted) => asked.or(granted),
    };
    GenerateRequest {
        adapter: lease,
        sampling: SamplingParams {
            temperature: call.temperature.unwrap_or(defaults.temperature),
            top_p: call.top_p.unwrap_or(defaults.top_p),
            top_k: call.top_k.unwrap_or(defaults.top_k),
            min_p: call.min_p.unwrap_or(defaults.min_p),
            typical_p: call.typical_p.unwrap_or(defaults.typical_p),
            repetition_penalty: call.repetition_penalty.unwrap_or(defaults.repetition_penalty),
            frequency_penalty: call.frequency_penalty.unwrap_or(defaults.frequency_penalty),
            presence_penalty: call.presence_penalty.unwrap_or(defaults.presence_penalty),
            logit_bias: call
                .logit_bias
                .iter()
                .map(|&(id, bias)| (TokenId(id), bias))
                .collect(),
            seed,
            ..defaults
        },
        choices: counts.generated,
        max_tokens,
        min_tokens: call.min_tokens,
        stop_tokens: call.stop_tokens.iter().copied().map(TokenId).collect(),
        ignore_eos: call.ignore_eos,
        // The best of several is told by its log probabilities.
        logprobs: call
            .logprobs
            .or((counts.generated > counts.returned).then_some(0)),
        prompt_logprobs: call.prompt_logprobs,
        truncate: call.truncate,
        tenant: Tenant(grant.tenant.clone()),
        priority: grant.priority,
        max_concurrent: grant.max_concurrent,
        ..GenerateRequest::new(prompt)
    }
}

/// A prompt as the engine takes it.
pub(super) fn engine_prompt(prompt: &generation::Prompt) -> Result<Prompt, Problem> {
    let json = |text: &str, field: &str| {
        serde_json::from_str(text)
            .map_err(|error| problem::invalid(field, format!("`{field}` is not valid JSON: {error}")))
    };
    Ok(match prompt {
        generation::Prompt::Text(text) => Prompt::Text(text.clone()),
        generation::Prompt::Tokens(ids) => Prompt::Tokens(ids.iter().copied().map(TokenId).collect()),
        generation::Prompt::Chat(chat) => Prompt::Chat(ChatPrompt {
            messages: json(&chat.messages, "messages")?,
            tools: chat
                .tools
                .as_deref()
                .map(|text| json(text, "tools"))
                .transpose()?,
            arguments: (chat.arguments.as_deref())
                .map(|text| json(text, "chat_template_kwargs"))
                .transpose()?,
        }),
    })
}

/// What `echo` puts before the choices of a prompt.
pub(super) fn echo(prompt: &generation::Prompt, tokenizer: &Tokenizer) -> Result<String, Problem> {
    match prompt {
        generation::Prompt::Text(text) => Ok(text.clone()),
        generation::Prompt::Tokens(ids) => {
            let bytes: Vec<u8> = ids
                .iter()
                .flat_map(|&id| tokenizer.token_bytes(TokenId(id)))
                .collect();
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        }
        generation::Prompt::Chat(_) => Err(problem::invalid(
            "echo",
            "`echo` is for prompts of text or tokens: what a chat template makes of messages is not returned",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base() -> ServedModel {
        ServedModel {
            name: "pocket".into(),
            aliases: vec!["tiny".into()],
            created: 0,
        }
    }

    fn call(model: &str, adapter: Option<&str>, source: Option<&str>) -> GenerationCall {
        GenerationCall {
            prompts: vec![generation::Prompt::Text("x".into())],
            model: model.into(),
            adapter: adapter.map(str::to_owned),
            adapter_source: source.map(str::to_owned),
            ..GenerationCall::default()
        }
    }

    fn adapter(id: &str, source: Option<&str>) -> Model {
        Model::Adapter {
            id: id.into(),
            source: source.map(str::to_owned),
        }
    }

    #[test]
    fn a_model_is_the_base_by_any_of_its_names_or_an_adapter() {
        for (call, meant) in [
            (call("", None, None), Model::Base),
            (call("pocket", None, Some("hub")), Model::Base),
            (call("tiny", Some(""), None), Model::Base),
            (call("caps", None, None), adapter("caps", None)),
            (call("org/a", None, Some("hub")), adapter("org/a", Some("hub"))),
            (
                call("pocket", Some("caps"), Some("s3")),
                adapter("caps", Some("s3")),
            ),
        ] {
            let (target, model) = target(&call, &base());
            assert_eq!(model, meant, "{call:?}");
            assert_eq!(target.model, call.model, "as the client wrote it");
            let named = match meant {
                Model::Base => None,
                Model::Adapter { id, .. } => Some(id),
            };
            assert_eq!(target.adapter, named);
        }
    }

    #[test]
    fn counts_of_choices_are_checked() {
        let counts = |n, best_of, prompts: usize, streamed| {
            let call = GenerationCall {
                prompts: vec![generation::Prompt::Text("x".into()); prompts],
                choices: n,
                best_of,
                ..GenerationCall::default()
            };
            Counts::of(&call, streamed, 8).map_err(|problem| problem.parameter.unwrap_or_default())
        };
        let right = |prompts, returned, generated| {
            Ok(Counts {
                prompts,
                returned,
                generated,
            })
        };
        assert_eq!(counts(None, None, 1, true), right(1, 1, 1));
        assert_eq!(counts(Some(2), Some(4), 2, false), right(2, 2, 4));
        assert_eq!(counts(Some(2), Some(2), 1, true), right(1, 2, 2));
        let wrong = |parameter: &str| Err(parameter.to_owned());
        assert_eq!(counts(None, None, 0, false), wrong("prompt"));
        assert_eq!(counts(Some(0), None, 1, false), wrong("n"));
        assert_eq!(counts(Some(3), Some(2), 1, false), wrong("best_of"));
        assert_eq!(counts(Some(1), Some(2), 1, true), wrong("best_of"));
        assert_eq!(counts(Some(5), None, 2, false), wrong("n"), "10 choices of 8");
        assert_eq!(counts(None, None, 9, false), wrong("prompt"));
    }

    #[test]
    fn a_grant_caps_the_tokens_of_a_choice() {
        let tokens = |asked, granted| {
            let call = GenerationCall {
                max_tokens: asked,
                ..call("", None, None)
            };
            let grant = Grant {
                max_tokens: granted,
                ..Grant::default()
            };
            let counts = Counts {
                prompts: 1,
                returned: 1,
                generated: 1,
            };
            engine_request(&call, Prompt::Text("x".into()), &counts, None, &grant, None).max_tokens
        };
        assert_eq!(tokens(Some(9), Some(5)), Some(5));
        assert_eq!(tokens(Some(3), Some(5)), Some(3));
        assert_eq!(tokens(None, Some(5)), Some(5));
        assert_eq!(tokens(Some(9), None), Some(9));
        assert_eq!(tokens(None, None), None);
    }
}
