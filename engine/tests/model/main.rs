//! The decoder on its back ends against goldens of transformers and peft, and against itself in other batches.

mod batches;
mod gguf;
mod goldens;
mod harness;
mod ranks;
mod refusals;
