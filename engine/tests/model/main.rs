//! The decoder on its back ends against goldens of transformers and peft, and against itself in other batches.

// A helper of a test fails by panicking, too.
#![allow(clippy::unwrap_used)]

mod batches;
mod gguf;
mod goldens;
mod harness;
mod refusals;
