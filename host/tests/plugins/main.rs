//! The plugin host from outside: the components that ship, components that misbehave, and changing them at run time.

// A helper of a test fails by panicking, too.
#![allow(clippy::unwrap_used)]

mod admin;
mod hostile;
mod ladder;
mod reload;
mod sessions;
mod support;
