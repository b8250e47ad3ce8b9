//! One request's way from its head to its last byte.
//!
//! ```text
//! head -> authenticate -> body -> parse -> authorize -> engine -> events -> stop -> render -> framing
//! ```
//!
//! The pipeline that is current when the head arrives is the request's to its last byte, whatever is reloaded. Who may
//! do what is decided before anything is done: no auth plugin, or one that fails, is a denial.

mod choices;
mod generation;
pub(crate) mod problem;
mod request;
mod stream;

use std::{net::IpAddr, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::poll_immediate;
use hyper::{
    Response,
    body::Incoming,
    header::{self, HeaderMap},
    http::request::Parts,
};

use self::{generation::Generation, stream::Streaming};
use crate::{
    app::App,
    http::{
        Framer, answer,
        body::{self, Limits, Refused},
        head,
    },
    plugin::{
        AuthSession, Pipeline, Plugin, ProtocolSession,
        bindings::exports::heddle::plugin::{
            auth::{Decision, Identity},
            protocol::{Call, Generated, Model, Outcome, Payload, Problem, Reply},
        },
        resources::{Credential, GenerationCall, Grant, RequestHead, Target},
    },
    telemetry::{self, CallMeter, Record},
};

/// A request whose route is a plugin's.
pub(crate) struct Exchange {
    app: Arc<App>,
    pipeline: Arc<Pipeline>,
    plugin: Arc<Plugin>,
    head: RequestHead,
    credential: Credential,
    /// What serves it, once that is known.
    served_by: Option<request::Model>,
    record: Record,
}

/// What a request comes to.
// It lives on one stack frame of one request: a box would only cost an allocation.
#[allow(clippy::large_enum_variant)]
enum Answer {
    /// A whole document.
    Document(Reply),
    /// A stream that has begun.
    Stream(Begun),
}

/// A stream whose first payloads are known.
struct Begun {
    framer: Framer,
    protocol: ProtocolSession,
    generation: Generation,
    first: Vec<Payload>,
}

/// Why there is no answer.
enum Refusal {
    /// The plugin's own answer: the body is malformed.
    Reply(Reply),
    /// Anything else.
    Problem(Problem),
}

impl<E: Into<Problem>> From<E> for Refusal {
    fn from(error: E) -> Self {
        Self::Problem(error.into())
    }
}

/// Runs plugin code or other work that may take a while (a plugin has 50 ms a call, a tokenizer as long as the prompt
/// wants). The worker's other tasks move to another thread meanwhile; unlike `spawn_blocking`, the instance and what it
/// borrows stay where they are.
fn blocking<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}

impl Exchange {
    /// A request that `plugin` serves.
    pub(crate) fn new(
        app: Arc<App>,
        pipeline: Arc<Pipeline>,
        plugin: Arc<Plugin>,
        parts: &Parts,
        peer: Option<IpAddr>,
        record: Record,
    ) -> Self {
        let (head, credential) = head::split(parts, peer, record.request_id().to_owned());
        Self {
            app,
            pipeline,
            plugin,
            head,
            credential,
            served_by: None,
            record,
        }
    }

    /// The whole way.
    pub(crate) async fn run(mut self, headers: &HeaderMap, body: Incoming) -> Response<answer::Body> {
        let answer = match self.attempt(headers, body).await {
            Ok(answer) => answer,
            Err(Refusal::Reply(reply)) => Answer::Document(reply),
            Err(Refusal::Problem(problem)) => return self.refuse(&problem),
        };
        let served_by = self.served_by.take();
        let base = self.app.model.name.clone();
        let mut response = match answer {
            Answer::Document(reply) => {
                let response = answer::reply(reply);
                self.record.status(response.status().as_u16());
                self.record.end(telemetry::Outcome::Complete);
                response
            }
            Answer::Stream(begun) => {
                self.record.status(200);
                let framer = begun.framer;
                answer::stream(framer.content_type(), Streaming::new(self, begun).pieces())
            }
        };
        if let Some(model) = served_by {
            answer::put(&mut response, "x-model-id", &base);
            if let request::Model::Adapter { id, .. } = model {
                answer::put(&mut response, "x-adapter-id", &id);
            }
        }
        response
    }

    /// A failure before the first byte, in the shape of the API that was called.
    fn refuse(mut self, problem: &Problem) -> Response<answer::Body> {
        // The session that failed is never entered again.
        let reply = blocking(|| {
            let mut session = self
                .meter("instantiate")
                .measure(|| ProtocolSession::open(&self.plugin))?;
            self.meter("fail").measure(|| session.fail(&self.head, problem))
        });
        let mut response = answer::reply(reply.unwrap_or_else(|error| {
            tracing::error!("{error}; the host answers in its place");
            problem::render(problem)
        }));
        answer::complete(&mut response, problem);
        self.record.status(response.status().as_u16());
        self.record.end(telemetry::Outcome::Complete);
        response
    }

    async fn attempt(&mut self, headers: &HeaderMap, body: Incoming) -> Result<Answer, Refusal> {
        let limits = Limits {
            size: self.app.limits.body_limit(),
            time: Duration::from_secs(self.app.limits.body_timeout_s),
            waits_for_continue: headers.contains_key(header::EXPECT),
        };
        let (auth, who) = match blocking(|| self.authenticate()) {
            Ok(allowed) => allowed,
            Err(refusal) => {
                body::linger(body, limits).await;
                return Err(refusal);
            }
        };
        let (auth, body) = self.body(auth, body, limits).await?;

        let parsed = blocking(|| self.parse(auth, who.as_ref(), body))?;
        self.answer(parsed).await
    }

    /// Reads the call, asks whether it is allowed, and hands it to the engine where it is one for the engine.
    fn parse(
        &mut self,
        auth: Option<AuthSession>,
        who: Option<&Identity>,
        body: Bytes,
    ) -> Result<Parsed, Refusal> {
        let mut protocol = self
            .meter("instantiate")
            .measure(|| ProtocolSession::open(&self.plugin))?;
        let call = self
            .meter("parse")
            .measure(|| protocol.parse(&self.head, &body))?
            .map_err(Refusal::Reply)?;
        drop(body);
        match call {
            Call::Generate(handle) => {
                let call = protocol.take_generation(handle)?;
                let (target, model) = request::target(&call, &self.app.model);
                let token = match call.api_token.secret {
                    Some(_) => call.api_token.clone(),
                    None => self.credential.clone(),
                };
                let grant = self.authorize(auth, who, &token, &target)?;
                let generation = self.submit(call, model, &grant, &token)?;
                Ok(Parsed::Generation(protocol, generation))
            }
            Call::Models => {
                self.allow(auth, who)?;
                let models = Outcome::Models(self.models());
                let reply = self.meter("finish").measure(|| protocol.finish(&models))?;
                Ok(Parsed::Reply(reply))
            }
            Call::Reply(reply) => {
                self.allow(auth, who)?;
                Ok(Parsed::Reply(reply))
            }
            Call::Other(word) => {
                self.allow(auth, who)?;
                tracing::error!(slot = self.plugin.slot(), "a plugin asks for {word:?}");
                Err(problem::unknown_call().into())
            }
        }
    }

    /// Once the call is known and allowed.
    async fn answer(&mut self, parsed: Parsed) -> Result<Answer, Refusal> {
        let (mut protocol, mut generation) = match parsed {
            Parsed::Reply(reply) => return Ok(Answer::Document(reply)),
            Parsed::Generation(protocol, generation) => (protocol, generation),
        };
        // The status is still open: an adapter that cannot be loaded, a full queue.
        generation.begin().await?;
        let served = generation.served();
        self.record.usage(&generation.usage());
        let first = blocking(|| self.meter("start").measure(|| protocol.start(served)))?;
        if let Some(framer) = generation.framer() {
            return Ok(Answer::Stream(Begun {
                framer,
                protocol,
                generation,
                first,
            }));
        }
        let choices = generation.collect().await?;
        let usage = generation.usage();
        self.record.usage(&usage);
        let outcome = Outcome::Generated(Generated { choices, usage });
        let reply = blocking(|| self.meter("finish").measure(|| protocol.finish(&outcome)))?;
        Ok(Answer::Document(reply))
    }

    /// Who asks, as far as the head tells.
    fn authenticate(&self) -> Result<(AuthSession, Option<Identity>), Refusal> {
        let mut session = self.open_auth()?;
        let decision = self
            .auth_meter("authenticate")
            .measure(|| session.authenticate(&self.head, &self.credential))?;
        match decision {
            Ok(Decision::Allow(identity)) => Ok((session, Some(identity))),
            Ok(Decision::Undecided) => Ok((session, None)),
            Err(denial) => Err(problem::denied(denial).into()),
        }
    }

    /// What the caller may have of `target`. Without an answer it is nothing.
    fn authorize(
        &self,
        session: Option<AuthSession>,
        who: Option<&Identity>,
        token: &Credential,
        target: &Target,
    ) -> Result<Grant, Refusal> {
        let mut session = match session {
            Some(session) => session,
            None => self.open_auth()?,
        };
        self.auth_meter("authorize")
            .measure(|| session.authorize(who, token, target))?
            .map_err(|denial| problem::denied(denial).into())
    }

    /// The same for what needs nothing of the engine's. The contract knows it by its lesser operation.
    fn allow(&self, session: Option<AuthSession>, who: Option<&Identity>) -> Result<(), Refusal> {
        let target = Target {
            operation: "models".to_owned(),
            ..Target::default()
        };
        self.authorize(session, who, &self.credential, &target)
            .map(|_| ())
    }

    fn open_auth(&self) -> Result<AuthSession, Refusal> {
        let plugin = self.pipeline.auth().ok_or_else(problem::no_auth)?;
        Ok(self
            .auth_meter("instantiate")
            .measure(|| AuthSession::open(plugin))?)
    }

    /// The body. A client that takes its time with it does not hold an instance of the auth plugin meanwhile.
    async fn body(
        &self,
        auth: AuthSession,
        body: Incoming,
        limits: Limits,
    ) -> Result<(Option<AuthSession>, Bytes), Refusal> {
        let mut reading = pin!(body::read(body, limits));
        let (auth, body) = match poll_immediate(&mut reading).await {
            Some(body) => (Some(auth), body),
            None => {
                drop(auth);
                (None, reading.await)
            }
        };
        match body {
            Ok(body) => Ok((auth, body)),
            Err(Refused::TooLarge) => Err(problem::too_large(limits.size).into()),
            Err(Refused::TooSlow | Refused::Broken) => Err(problem::too_slow(limits.time.as_secs()).into()),
        }
    }

    /// Hands an allowed call to the engine.
    fn submit(
        &mut self,
        call: GenerationCall,
        model: request::Model,
        grant: &Grant,
        token: &Credential,
    ) -> Result<Generation, Refusal> {
        let adapters = self.app.engine.adapters();
        let lease = request::lease(adapters, &model, grant, token)?;
        match &model {
            request::Model::Base => self.record.model(&self.app.model.name),
            request::Model::Adapter { id, .. } if adapters.contains(id) => self.record.model(id),
            // The client chose this name: it is nothing for a log.
            request::Model::Adapter { .. } => self.record.model("(unregistered adapter)"),
        }
        let generation = Generation::submit(&self.app, &self.pipeline, call, &model, lease, grant)?;
        self.served_by = Some(model);
        Ok(generation)
    }

    /// The base model and the adapters.
    fn models(&self) -> Vec<Model> {
        let base = &self.app.model;
        let context = u32::try_from(self.app.engine.config().context).ok();
        let mut models = vec![Model {
            id: base.name.clone(),
            created: base.created,
            owner: "heddle".to_owned(),
            parent: None,
            context,
        }];
        models.extend(
            self.app
                .engine
                .adapters()
                .list()
                .into_iter()
                .map(|adapter| Model {
                    id: adapter.name,
                    created: adapter.created,
                    owner: "heddle".to_owned(),
                    parent: Some(base.name.clone()),
                    context,
                }),
        );
        models
    }

    /// The meter of a call into the protocol plugin.
    fn meter(&self, call: &'static str) -> CallMeter {
        self.app.metrics.call(self.plugin.slot(), call)
    }

    fn auth_meter(&self, call: &'static str) -> CallMeter {
        let slot = self.pipeline.auth().map_or("auth", |plugin| plugin.slot());
        self.app.metrics.call(slot, call)
    }
}

/// A call that is understood and allowed, and in the engine's queue where it is one for the engine.
// As with `Answer`: moved once, never stored.
#[allow(clippy::large_enum_variant)]
enum Parsed {
    Reply(Reply),
    Generation(ProtocolSession, Generation),
}
