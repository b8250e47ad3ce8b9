//! The engine from the outside: requests in, events out.
//!
//! Most tests run a scripted model, whose answers are a function of what it reads from the blocks that it is given, so that a
//! mistake with blocks is a wrong token; `pocket` and `mixes` run the real one.

// A helper of a test fails by panicking, too.
#![allow(clippy::unwrap_used)]

mod adapters;
mod answers;
mod faults;
mod harness;
mod limits;
mod mixes;
mod pocket;
mod probabilities;
mod scripted;
