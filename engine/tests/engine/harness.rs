//! Engines for tests, and answers put together from events.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use heddle_engine::{
    Error, Result,
    adapter::{AdapterLimits, AdapterRegistry, AdapterRequest, AdapterSource, Lease},
    engine::{Engine, EngineOptions, GenerationStream},
    hub::{Files, Source, catalogue},
    ids::TokenId,
    model::{BackendChoice, LoadOptions, LoadedModel, load},
    request::{Event, FinishReason, GenerateRequest, Prompt, TokenInfo},
};

use super::scripted::{Script, Scripted};

/// Tokens of the pocket model's vocabulary.
pub(crate) const VOCAB: usize = 1536;
/// Its end-of-sequence token.
pub(crate) const EOS: TokenId = TokenId(2);
/// Its context.
pub(crate) const CONTEXT: usize = 512;

/// How long what must come may take on a very busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// The adapters that come with the pocket model.
pub(crate) struct Embedded;

impl AdapterSource for Embedded {
    fn fetch(&self, source: &Source, _credential: Option<&str>) -> Result<Files> {
        match source {
            Source::Embedded(files) => Ok(Files::Embedded(*files)),
            other => panic!("{other} is not embedded"),
        }
    }

    fn check_access(&self, _source: &Source, _credential: Option<&str>) -> Result<()> {
        Ok(())
    }
}

/// The pocket model on the reference back end, with a KV cache of so many bytes.
pub(crate) fn pocket(kv_bytes: usize) -> LoadedModel {
    pocket_on(BackendChoice::Reference, kv_bytes)
}

/// The same on any back end.
pub(crate) fn pocket_on(backend: BackendChoice, kv_bytes: usize) -> LoadedModel {
    let files = Files::Embedded(catalogue::embedded("pocket").unwrap());
    load(
        &files,
        &LoadOptions {
            backend,
            kv_bytes,
            context: None,
        },
    )
    .unwrap()
}

/// Starts an engine with a registry that knows the pocket model's adapters by their names.
pub(crate) fn start(model: LoadedModel, source: Arc<dyn AdapterSource>, options: EngineOptions) -> Engine {
    let limits = AdapterLimits {
        device_bytes: 1 << 30,
        host_bytes: 1 << 30,
        max_rank: 64,
        loaders: 2,
        negative_ttl: Duration::ZERO,
        access_ttl: Duration::ZERO,
        dynamic: false,
    };
    let adapters = AdapterRegistry::with_source(
        model.config.modules(),
        model.runner.adapter_loader(),
        source,
        limits,
    );
    for name in ["caps", "pirate", "json"] {
        let files = catalogue::embedded(&format!("pocket/{name}")).unwrap();
        adapters.register(name, Source::Embedded(files)).unwrap();
    }
    Engine::start(model, adapters, options).unwrap()
}

/// An engine over the scripted model, with the pocket model's text side.
pub(crate) struct Rig {
    pub(crate) engine: Engine,
    pub(crate) script: Arc<Script>,
}

impl Rig {
    pub(crate) fn new(blocks: usize, options: EngineOptions) -> Self {
        Self::with_source(blocks, options, Arc::new(Embedded))
    }

    pub(crate) fn with_source(blocks: usize, options: EngineOptions, source: Arc<dyn AdapterSource>) -> Self {
        let script = Arc::new(Script::default());
        let runner = Box::new(Scripted::new(VOCAB, blocks, script.clone()));
        let model = LoadedModel {
            runner,
            ..pocket(1 << 20)
        };
        Self {
            engine: start(model, source, options),
            script,
        }
    }

    /// One with room for everything.
    pub(crate) fn roomy() -> Self {
        Self::new(400, EngineOptions::default())
    }

    pub(crate) fn submit(&self, request: GenerateRequest) -> GenerationStream {
        self.engine.submit(request).unwrap()
    }

    pub(crate) async fn answer(&self, request: GenerateRequest) -> Answer {
        collect(self.submit(request)).await
    }

    /// The end of every test: the books balance and nothing is held.
    pub(crate) fn check(&self) {
        check(&self.engine);
    }
}

/// Holds the books of an idle engine against each other.
pub(crate) fn check(engine: &Engine) {
    engine.check_integrity().unwrap();
    let health = engine.health();
    assert_eq!(
        (health.running, health.waiting, health.kv_used),
        (0, 0, 0),
        "{health:?}"
    );
    engine.adapters().check_integrity().unwrap();
}

/// Waits until the engine has come to a state that is on its way.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "never came: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The next event of a stream that has one on its way, or has ended.
pub(crate) async fn next(stream: &mut GenerationStream) -> Option<Event> {
    tokio::time::timeout(PATIENCE, stream.next())
        .await
        .expect("an event, or the end")
}

/// Reads on to the next token of a choice.
pub(crate) async fn token_of(stream: &mut GenerationStream, wanted: u32) {
    loop {
        match next(stream).await.expect("a token before the end") {
            Event::Token { choice, .. } if choice == wanted => return,
            _ => {}
        }
    }
}

pub(crate) fn lease(engine: &Engine, name: &str) -> Lease {
    let request = AdapterRequest {
        id: name.to_owned(),
        source: None,
        credential: None,
    };
    engine.adapters().lease(&request).unwrap()
}

/// A prompt of so many tokens, none of them special, different for each `salt`.
pub(crate) fn tokens(salt: usize, len: usize) -> Vec<TokenId> {
    (0..len)
        .map(|place| TokenId((10 + (salt * 131 + place * 7) % (VOCAB - 10)) as u32))
        .collect()
}

/// A greedy request for so many tokens, whatever they are.
pub(crate) fn request(prompt: Vec<TokenId>, max_tokens: u32) -> GenerateRequest {
    GenerateRequest {
        max_tokens: Some(max_tokens),
        ignore_eos: true,
        ..GenerateRequest::new(Prompt::Tokens(prompt))
    }
}

/// A request's events, put together.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Answer {
    pub(crate) cached_tokens: usize,
    pub(crate) prompt: Vec<TokenInfo>,
    pub(crate) choices: Vec<Choice>,
}

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Choice {
    pub(crate) text: String,
    pub(crate) tokens: Vec<TokenInfo>,
    pub(crate) reason: Option<FinishReason>,
    pub(crate) generated: usize,
}

impl Choice {
    pub(crate) fn ids(&self) -> Vec<TokenId> {
        self.tokens.iter().map(|token| token.id).collect()
    }
}

impl Answer {
    /// The tokens of the only choice.
    pub(crate) fn ids(&self) -> Vec<TokenId> {
        assert_eq!(self.choices.len(), 1);
        self.choices[0].ids()
    }
}

/// Takes a whole answer, holding the engine to the order of events.
pub(crate) async fn try_collect(mut stream: GenerationStream) -> Result<Answer> {
    let mut answer = Answer::default();
    let mut prefilled = false;
    while let Some(event) = next(&mut stream).await {
        match event {
            Event::Prefilled {
                cached_tokens,
                prompt,
            } => {
                assert!(!prefilled, "the prompt is computed once");
                prefilled = true;
                (answer.cached_tokens, answer.prompt) = (cached_tokens, prompt);
            }
            Event::Token { choice, text, token } => {
                assert!(prefilled, "text comes after the prompt");
                let choice = choice_of(&mut answer, choice);
                assert_eq!(choice.reason, None, "an ended choice goes on");
                choice.text.push_str(&text);
                choice.tokens.push(token);
            }
            Event::Finished {
                choice,
                text,
                reason,
                generated,
            } => {
                assert!(prefilled);
                let choice = choice_of(&mut answer, choice);
                assert_eq!(choice.reason, None, "a choice ends once");
                choice.text.push_str(&text);
                (choice.reason, choice.generated) = (Some(reason), generated);
                assert_eq!(generated, choice.tokens.len());
            }
            Event::Done => {
                assert!(answer.choices.iter().all(|choice| choice.reason.is_some()));
                assert_eq!(next(&mut stream).await.map(|_| ()), None, "nothing follows");
                return Ok(answer);
            }
            Event::Failed(error) => {
                assert_eq!(next(&mut stream).await.map(|_| ()), None, "nothing follows");
                return Err(error);
            }
        }
    }
    Err(Error::Generation(
        "the stream ended without a last event".to_owned(),
    ))
}

pub(crate) async fn collect(stream: GenerationStream) -> Answer {
    try_collect(stream).await.unwrap()
}

fn choice_of(answer: &mut Answer, index: u32) -> &mut Choice {
    let index = index as usize;
    if answer.choices.len() <= index {
        answer.choices.resize_with(index + 1, Choice::default);
    }
    &mut answer.choices[index]
}
