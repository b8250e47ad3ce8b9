//! What the host calls.

use heddle_plugin::{
    Call as Wanted, Descriptor, Exchange, Outcome, Payload, Plugin, Problem, ProblemKind, Protocol, Reply,
    RequestHead, Route,
    generation::{Event, Framing, Request, Served, Usage},
};

use crate::{
    Fault,
    answer::{Answer, Facts, models},
    request::{self, Api, Call},
};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";
const MODELS: &str = "/v1/models";

/// The component: a plugin without settings.
pub struct OpenAi;

impl Plugin for OpenAi {
    fn describe() -> Descriptor {
        Descriptor {
            name: "openai".into(),
            version: heddle_plugin::version!(),
            description: "OpenAI's completions, chat completions and model list.".into(),
            config_schema: Some(heddle_plugin::NO_SETTINGS.into()),
        }
    }

    fn configure(config: &str) -> Result<Self, String> {
        heddle_plugin::no_settings("openai", config)?;
        Ok(Self)
    }

    fn self_test(&self) -> Result<(), String> {
        let parse = |body: &str| request::parse(Api::Chat, body.as_bytes());
        match parse(r#"{"model":"","messages":[{"role":"user","content":"Hi"}],"n":2}"#) {
            Ok(call) if call.choices == 2 => {}
            _ => return Err("a valid chat was not read".into()),
        }
        match parse(r#"{"model":"","messages":[{"content":"Hi"}]}"#) {
            Err(fault) if fault.status == 422 => Ok(()),
            _ => Err("a message without a role was not refused".into()),
        }
    }
}

impl Protocol for OpenAi {
    type Exchange = Running;

    fn routes(&self) -> Vec<Route> {
        let route = |method: &str, path: &str| Route {
            method: method.into(),
            path: path.into(),
        };
        vec![
            route("POST", COMPLETIONS),
            route("POST", CHAT),
            route("GET", MODELS),
            route("GET", &format!("{MODELS}/*")),
        ]
    }

    fn parse(&self, head: &RequestHead, body: Vec<u8>) -> Result<Running, Reply> {
        let path = head.path();
        let api = match path.as_str() {
            COMPLETIONS => Api::Completions,
            CHAT => Api::Chat,
            path => {
                let wanted = path.strip_prefix(MODELS).and_then(|rest| rest.strip_prefix('/'));
                return Ok(Running::Models(wanted.map(models::decode)));
            }
        };
        let call = request::parse(api, &body).map_err(Fault::into_reply)?;
        let fingerprint = format!("heddle-openai-{}", heddle_plugin::version!());
        Ok(Running::Generate {
            answer: Answer::new(&call, fingerprint),
            call: Box::new(call),
        })
    }

    fn fail(&self, _head: &RequestHead, problem: Problem) -> Reply {
        Fault::of(problem).into_reply()
    }
}

/// One request.
pub enum Running {
    /// For the engine.
    Generate {
        /// What was asked.
        call: Box<Call>,
        /// What is answered.
        answer: Answer,
    },
    /// For the list of models, or one of it.
    Models(Option<String>),
}

impl Exchange for Running {
    fn call(&mut self) -> Wanted {
        match self {
            Self::Generate { call, .. } => Wanted::Generate(request(call)),
            Self::Models(_) => Wanted::Models,
        }
    }

    fn start(&mut self, served: &Served) -> Vec<Payload> {
        let Self::Generate { call, answer } = self else {
            return Vec::new();
        };
        let echoes = if call.echo && call.logprobs.is_some() {
            call.prompts.len() as u32
        } else {
            0
        };
        answer.start(Facts {
            id: served.id(),
            created: served.created(),
            model: served.model(),
            prompts: (0..echoes).map(|i| served.prompt(i)).collect(),
        })
    }

    fn render(&mut self, events: Vec<Event>) -> Vec<Payload> {
        match self {
            Self::Generate { answer, .. } => answer.render(events),
            Self::Models(_) => Vec::new(),
        }
    }

    fn close(&mut self, usage: Usage) -> Vec<Payload> {
        match self {
            Self::Generate { answer, .. } => answer.close(usage),
            Self::Models(_) => Vec::new(),
        }
    }

    fn break_off(&mut self, problem: Problem) -> Vec<Payload> {
        match self {
            Self::Generate { answer, .. } => answer.break_off(problem),
            Self::Models(_) => Vec::new(),
        }
    }

    fn finish(&mut self, outcome: Outcome) -> Reply {
        match (self, outcome) {
            (Self::Generate { answer, .. }, Outcome::Generated(generated)) => answer.document(generated),
            (Self::Models(wanted), Outcome::Models(models)) => models::reply(&models, wanted.as_deref()),
            _ => Fault::of(Problem {
                status: 500,
                kind: ProblemKind::Internal,
                code: None,
                message: "The outcome is not what was asked for".into(),
                parameter: None,
                retry_after: None,
            })
            .into_reply(),
        }
    }
}

/// The host's request, filled from what was read.
fn request(call: &Call) -> Request {
    let request = Request::new(&call.prompts[0]);
    for prompt in &call.prompts[1..] {
        request.add_prompt(prompt);
    }
    request.set_model(&call.model);
    if let Some(source) = &call.adapter_source {
        request.set_adapter(None, Some(source));
    }
    if let Some(token) = &call.api_token {
        request.set_api_token(token);
    }
    request.set_framing(if call.stream {
        Framing::Sse
    } else {
        Framing::Document
    });
    request.set_choices(call.choices);
    request.set_temperature(call.temperature);
    let set = |value: Option<u32>, setter: fn(&Request, u32)| {
        if let Some(value) = value {
            setter(&request, value);
        }
    };
    set(call.max_tokens, Request::set_max_tokens);
    set(call.min_tokens, Request::set_min_tokens);
    set(call.best_of, Request::set_best_of);
    set(call.top_k, Request::set_top_k);
    set(call.logprobs, Request::set_logprobs);
    set(call.truncate, Request::set_truncate);
    if call.echo {
        // An echo's log probabilities are those of the prompt too.
        request.set_echo(true);
        set(call.logprobs, Request::set_prompt_logprobs);
    }
    let set = |value: Option<f32>, setter: fn(&Request, f32)| {
        if let Some(value) = value {
            setter(&request, value);
        }
    };
    set(call.top_p, Request::set_top_p);
    set(call.min_p, Request::set_min_p);
    set(call.typical_p, Request::set_typical_p);
    set(call.repetition_penalty, Request::set_repetition_penalty);
    set(call.frequency_penalty, Request::set_frequency_penalty);
    set(call.presence_penalty, Request::set_presence_penalty);
    if !call.logit_bias.is_empty() {
        request.set_logit_bias(&call.logit_bias);
    }
    if let Some(seed) = call.seed {
        request.set_seed(seed);
    }
    if !call.stop.is_empty() {
        request.set_stop(&call.stop, call.keep_stop);
    }
    if !call.stop_tokens.is_empty() {
        request.set_stop_tokens(&call.stop_tokens);
    }
    if call.ignore_eos {
        request.set_ignore_eos(true);
    }
    request
}

heddle_plugin::export!(OpenAi: protocol);
