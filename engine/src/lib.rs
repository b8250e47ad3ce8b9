//! The generation engine of Heddle: one base model, any number of LoRA adapters, one batch.
//!
//! It knows nothing of HTTP, of JSON APIs or of Wasm. [`engine::Engine`] is the handle; behind it one thread owns
//! the scheduler, the KV cache and the model and repeats plan, run, settle.

pub mod adapter;
pub mod backend;
pub mod batch;
pub mod engine;
pub mod error;
pub mod hub;
pub mod ids;
pub mod kv;
pub mod model;
pub mod request;
pub mod sampling;
pub mod schedule;
pub mod text;

pub use error::{Error, Result};
