//! The engine's handle and its step loop.
//!
//! A caller's thread checks a request and tokenises its prompt ([`Engine::submit`]); everything after that happens on one
//! thread of the engine's own, which is spoken to over a channel and answers over one channel for each request. That
//! thread sleeps while there is nothing to compute. It ends with [`Engine::shutdown`], or when the last handle is
//! dropped.

mod active;
mod checks;
mod gate;
mod options;
mod status;
mod step_loop;
mod stream;
#[cfg(test)]
mod tests;

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{self, Sender},
    },
    time::Duration,
};

use tokio::sync::watch;

use crate::{
    adapter::AdapterRegistry,
    error::{Error, Result},
    ids::{BLOCK_TOKENS, RequestId, SequenceId, TokenId},
    model::{LoadedModel, ModelConfig},
    request::{GenerateRequest, Prompt},
    sampling::{History, Sampler},
    schedule::Limits,
    text::{ChatTemplate, Detokenizer, Tokenizer},
};
use active::{Active, Choice, Rules};
use checks::{Bounds, check_parameters, check_prompt, ending_tokens};
use gate::Gate;
use status::Status;
use step_loop::{Command, Fixed, StepLoop, Submission};

pub use options::EngineOptions;
pub use status::{Health, Metrics};
pub use stream::GenerationStream;

/// The handle: cheap to clone, usable from any thread. When the last one is dropped the engine ends; requests that still run
/// fail.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

struct Shared {
    commands: Sender<Command>,
    config: ModelConfig,
    tokenizer: Tokenizer,
    chat_template: Option<ChatTemplate>,
    eos: Vec<TokenId>,
    adapters: AdapterRegistry,
    kv_blocks: usize,
    gate: Arc<Gate>,
    status: Arc<Status>,
    requests: AtomicU64,
    sequences: AtomicU64,
    /// Closed when the step loop has ended.
    ended: watch::Receiver<()>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Close);
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("health", &self.health())
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Starts the step loop over a model.
    ///
    /// # Errors
    /// [`Error::Start`] if the KV cache has no blocks or there is no thread to be had.
    pub fn start(model: LoadedModel, adapters: AdapterRegistry, options: EngineOptions) -> Result<Self> {
        let LoadedModel {
            config,
            tokenizer,
            chat_template,
            mut eos,
            runner,
            ..
        } = model;
        // Some models name more tokens than they have.
        eos.retain(|token| (token.0 as usize) < config.vocab);
        let kv_blocks = runner.kv_blocks();
        if kv_blocks == 0 {
            return Err(Error::Start(
                "the KV cache has no room for one block: give it more memory".to_owned(),
            ));
        }
        let fixed = Fixed {
            limits: Limits {
                step_tokens: options.step_tokens,
                max_running: options.max_running,
                step_adapter_bytes: options.step_adapter_bytes,
                ageing_steps: options.ageing_steps,
            },
            kv_blocks,
            vocab: config.vocab,
            prefix_cache: options.prefix_cache,
        };
        let (commands, receiver) = mpsc::channel();
        let (ending, ended) = watch::channel(());
        let status = Arc::new(Status::default());
        status.accepting.store(true, Relaxed);
        let step_loop = StepLoop::new(fixed, runner, receiver, commands.clone(), status.clone());
        let end = End {
            status: status.clone(),
            _ending: ending,
        };
        std::thread::Builder::new()
            .name("heddle-steps".to_owned())
            .spawn(move || {
                let _end = end;
                step_loop.run();
            })
            .map_err(|error| Error::Start(format!("its thread could not be created: {error}")))?;
        Ok(Self {
            shared: Arc::new(Shared {
                commands,
                config,
                tokenizer,
                chat_template,
                eos,
                adapters,
                kv_blocks,
                gate: Gate::new(options.max_waiting),
                status,
                requests: AtomicU64::new(0),
                sequences: AtomicU64::new(0),
                ended,
            }),
        })
    }

    /// Checks the request, tokenises its prompt and puts it in the queue. Takes the time that tokenising takes: a long prompt
    /// is not for a thread that others wait for.
    ///
    /// # Errors
    /// What is wrong with the request, [`Error::Overloaded`] if the queue is full, [`Error::TenantLimit`] if the
    /// tenant has as many sequences as it may, or [`Error::ShuttingDown`].
    pub fn submit(&self, request: GenerateRequest) -> Result<GenerationStream> {
        let shared = &*self.shared;
        if !shared.status.accepting.load(Relaxed) {
            return Err(Error::ShuttingDown);
        }
        let bounds = Bounds {
            vocab: shared.config.vocab,
            context: self.context(),
            eos: &shared.eos,
        };
        check_parameters(&request, bounds)?;
        let mut prompt = self.tokenise(&request.prompt)?;
        if let Some(keep) = request.truncate {
            prompt.drain(..prompt.len().saturating_sub(keep as usize));
        }
        let max_tokens = check_prompt(&prompt, request.max_tokens, bounds)?;
        let (place, permits) = shared
            .gate
            .enter(&request.tenant, request.choices, request.max_concurrent)?;

        let id = RequestId(shared.requests.fetch_add(1, Relaxed));
        let first_sequence = shared.sequences.fetch_add(request.choices.into(), Relaxed);
        let seed = request.sampling.seed.unwrap_or_else(random_seed);
        let history = History::new(&prompt);
        let detokenizer = || Detokenizer::new(&shared.tokenizer);
        let choices = (0..).zip(permits).map(|(choice, permit)| {
            let sequence = SequenceId(first_sequence + u64::from(choice));
            let sampler = Sampler::new(&request.sampling, seed, choice);
            Choice::new(sequence, sampler, history.clone(), detokenizer(), permit)
        });
        let rules = Rules {
            max_tokens,
            min_tokens: request.min_tokens as usize,
            ends: ending_tokens(&request, &shared.eos),
            logprobs: request.logprobs.map(|top| top as usize),
            prompt_logprobs: request.prompt_logprobs.map(|top| top as usize),
        };
        let (events, receiver) = tokio::sync::mpsc::unbounded_channel();
        let stream = GenerationStream::new(id, receiver, shared.commands.clone(), prompt.len(), seed);
        let active = Active::new(events, request.adapter, prompt, rules, choices.collect(), place);
        let submission = Submission {
            id,
            active,
            tenant: request.tenant,
            priority: request.priority,
            cache_salt: request.cache_salt,
        };
        let submitted = shared.commands.send(Command::Submit(Box::new(submission)));
        submitted.map_err(|_| Error::ShuttingDown)?;
        Ok(stream)
    }

    fn tokenise(&self, prompt: &Prompt) -> Result<Vec<TokenId>> {
        let shared = &*self.shared;
        match prompt {
            Prompt::Text(text) => shared.tokenizer.encode(text, true),
            Prompt::Tokens(tokens) => Ok(tokens.clone()),
            Prompt::Chat(chat) => {
                let template = shared.chat_template.as_ref().ok_or_else(|| {
                    Error::Template(
                        "this model has none: send a text prompt, or serve a chat model".to_owned(),
                    )
                })?;
                // The template writes the special tokens itself.
                shared.tokenizer.encode(&template.render(chat)?, false)
            }
        }
    }

    /// Tokens that one sequence may have: the model's context, or as many as the KV cache holds.
    pub fn context(&self) -> usize {
        self.shared
            .config
            .context
            .min(self.shared.kv_blocks * BLOCK_TOKENS)
    }

    /// The adapters.
    pub fn adapters(&self) -> &AdapterRegistry {
        &self.shared.adapters
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.shared.config
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.shared.tokenizer
    }

    /// How it is.
    pub fn health(&self) -> Health {
        self.shared
            .status
            .health(self.shared.gate.waiting(), self.shared.kv_blocks)
    }

    /// What it has done.
    pub fn metrics(&self) -> Metrics {
        self.shared.status.metrics()
    }

    /// Holds the engine's books against each other: that no block, sequence or place is lost. Waits for the step under
    /// way; for tests and for those who look for a fault.
    ///
    /// # Errors
    /// What does not agree, in words.
    pub fn check_integrity(&self) -> Result<(), String> {
        let (answer, answered) = mpsc::channel();
        // If the loop has ended the command goes, and `answer` with it.
        let _ = self.shared.commands.send(Command::CheckIntegrity(answer));
        answered
            .recv()
            .unwrap_or_else(|_| Err("the step loop has ended".to_owned()))
    }

    /// Takes no new requests and waits until the running ones have ended, at most so long; then cancels what is left, and
    /// waits for the step under way.
    pub async fn shutdown(&self, patience: Duration) {
        let shared = &*self.shared;
        shared.status.accepting.store(false, Relaxed);
        // If the loop has ended already its channel is closed, and so is `ended`.
        let _ = shared.commands.send(Command::Drain);
        let mut ended = shared.ended.clone();
        // Nothing is ever sent: a change is the end.
        if tokio::time::timeout(patience, ended.changed()).await.is_err() {
            let _ = shared.commands.send(Command::Close);
            let _ = ended.changed().await;
        }
    }
}

/// Says that the step loop has ended, however it did.
struct End {
    status: Arc<Status>,
    _ending: watch::Sender<()>,
}

impl Drop for End {
    fn drop(&mut self) {
        self.status.end();
    }
}

/// A seed that nobody can foresee: the standard library's hash keys come from the system's generator.
fn random_seed() -> u64 {
    RandomState::new().hash_one(())
}
