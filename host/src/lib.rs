//! Heddle: a WebAssembly plugin host for LLM requests around a native generation engine.
//!
//! The library holds everything; `main.rs` is the command line.

pub mod admin;
pub mod app;
pub mod cli;
pub mod config;
pub mod error;
mod exchange;
pub mod http;
pub mod plugin;
pub mod telemetry;

pub use error::{Error, Result};
