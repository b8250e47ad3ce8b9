//! The errors of the engine: each a sentence that says what was expected, what was found and what to do.

use std::{path::PathBuf, sync::Arc};

/// The engine's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong in the engine. Cheap to clone: one failure may answer many requests.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A field of a request is out of its range.
    #[error("`{parameter}` {message}")]
    InvalidRequest {
        /// The field.
        parameter: &'static str,
        /// What is wrong with it.
        message: String,
    },
    /// Prompt and answer do not fit the model's context.
    #[error(
        "this model's context is {context} tokens; the prompt has {prompt} and {wanted} more were asked for: shorten the prompt or lower `max_tokens`"
    )]
    ContextExceeded {
        /// The model's context length.
        context: usize,
        /// Tokens in the prompt.
        prompt: usize,
        /// Tokens asked for.
        wanted: usize,
    },
    /// The chat template refused the messages, or the model has none.
    #[error("the chat template could not be applied: {0}")]
    Template(String),
    /// The tokenizer failed.
    #[error("the text could not be tokenised: {0}")]
    Tokenize(String),
    /// The model's tokenizer could not be read.
    #[error("the model's tokenizer could not be read: {0}")]
    Tokenizer(String),
    /// A text that should name where a model or an adapter comes from does not.
    #[error("`{text}` does not name a model or an adapter: {reason}")]
    InvalidSource {
        /// The text.
        text: String,
        /// What is wrong with it and what to write.
        reason: String,
    },
    /// The waiting queue is full.
    #[error("the server is busy: {waiting} requests are waiting; try again in {retry_after} s")]
    Overloaded {
        /// Requests in the queue.
        waiting: usize,
        /// Seconds after which a place is likely.
        retry_after: u32,
    },
    /// The tenant has as many sequences as it may have at a time.
    #[error(
        "this tenant may have {limit} generations at a time and has them: wait for one to end, or try again in {retry_after} s"
    )]
    TenantLimit {
        /// Sequences that it may have.
        limit: u32,
        /// Seconds after which one is likely to have ended.
        retry_after: u32,
    },
    /// The engine is shutting down.
    #[error("the server is shutting down and takes no new requests")]
    ShuttingDown,
    /// The engine could not be started.
    #[error("the engine could not start: {0}")]
    Start(String),
    /// The step loop failed while this request was in it.
    #[error("generation broke off: {0}")]
    Generation(String),
    /// There is no adapter of that name and no source to look for it.
    #[error("there is no model or adapter `{0}` on this server")]
    UnknownAdapter(String),
    /// The adapter's files could not be read as an adapter of this model.
    #[error("adapter `{adapter}` was refused: {reason}")]
    AdapterRefused {
        /// Its name.
        adapter: String,
        /// What was expected and what was found.
        reason: String,
    },
    /// The adapter or model could not be fetched.
    #[error("`{what}` could not be fetched from {source_name}: {reason}")]
    Fetch {
        /// What was asked for.
        what: String,
        /// From where.
        source_name: String,
        /// Why not, and what to do.
        reason: String,
        /// Whether the source said that it does not exist.
        not_found: bool,
        /// Whether the source refused the credential.
        forbidden: bool,
    },
    /// A model's files could not be read.
    #[error("the model at {path} could not be loaded: {reason}")]
    Model {
        /// The file or folder.
        path: PathBuf,
        /// What was expected and what was found.
        reason: String,
    },
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: Arc<std::io::Error>,
    },
    /// The back end failed.
    #[error("the {backend} back end failed: {reason}")]
    Backend {
        /// Its name.
        backend: &'static str,
        /// Its message.
        reason: String,
    },
}

impl Error {
    /// A failure to read or write `path`.
    pub fn io(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Self::Io {
            path: path.into(),
            source: Arc::new(source),
        }
    }
}
