//! The engine's handle and its step loop.

use std::time::Duration;

use crate::{
    adapter::AdapterRegistry,
    error::Result,
    model::{LoadedModel, ModelConfig},
    request::{Event, GenerateRequest},
    text::Tokenizer,
};

/// The engine's limits.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Rows of one step, decode and prefill together.
    pub step_tokens: usize,
    /// Sequences that run at a time.
    pub max_running: usize,
    /// Requests that wait at most.
    pub max_waiting: usize,
    /// Bytes of distinct adapters in one step.
    pub step_adapter_bytes: usize,
    /// Whether blocks are shared between sequences with the same beginning.
    pub prefix_cache: bool,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            step_tokens: 512,
            max_running: 64,
            max_waiting: 1024,
            step_adapter_bytes: usize::MAX,
            prefix_cache: true,
        }
    }
}

/// What the engine can say of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Health {
    /// Whether the step loop is alive and stepping.
    pub alive: bool,
    /// Whether it takes new requests.
    pub accepting: bool,
    /// Sequences that run.
    pub running: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Blocks in use, of `kv_blocks`.
    pub kv_used: usize,
    /// Blocks of the KV cache.
    pub kv_blocks: usize,
}

/// The handle: cheap to clone, usable from any thread.
#[derive(Clone)]
pub struct Engine {}

impl Engine {
    /// Starts the step loop over a model.
    pub fn start(model: LoadedModel, adapters: AdapterRegistry, options: EngineOptions) -> Result<Self> {
        let _ = (model, adapters, options);
        todo!()
    }

    /// Checks the request, tokenises its prompt and puts it in the queue.
    ///
    /// # Errors
    /// What is wrong with the request, or [`crate::Error::Overloaded`], or [`crate::Error::ShuttingDown`].
    pub fn submit(&self, request: GenerateRequest) -> Result<GenerationStream> {
        let _ = request;
        todo!()
    }

    /// The adapters.
    pub fn adapters(&self) -> &AdapterRegistry {
        todo!()
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        todo!()
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        todo!()
    }

    /// How it is.
    pub fn health(&self) -> Health {
        todo!()
    }

    /// Takes no new requests and waits until the running ones have ended, at most so long; then cancels what is left.
    pub async fn shutdown(&self, patience: Duration) {
        let _ = patience;
        todo!()
    }
}

/// One request's events. Dropping it cancels the request.
#[derive(Debug)]
pub struct GenerationStream {}

impl GenerationStream {
    /// The next event; none after the last.
    pub async fn next(&mut self) -> Option<Event> {
        todo!()
    }

    /// The next event if one is ready: to take several at once.
    pub fn try_next(&mut self) -> Option<Event> {
        todo!()
    }

    /// Tokens of the prompt.
    pub fn prompt_tokens(&self) -> usize {
        todo!()
    }

    /// The seed, given or drawn.
    pub fn seed(&self) -> u64 {
        todo!()
    }

    /// Ends one choice: its stop sequence was found. It finishes as [`crate::request::FinishReason::Stopped`].
    pub fn stop_choice(&self, choice: u32) {
        let _ = choice;
        todo!()
    }
}
