//! Heddle: a WebAssembly plugin host for LLM requests around a native generation engine.
//!
//! The library holds everything; `main.rs` is the command line.

pub mod admin;
pub mod error;
pub mod plugin;

pub use error::{Error, Result};
