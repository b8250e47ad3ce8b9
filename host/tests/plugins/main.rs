//! The plugin host from outside: the components that ship, components that misbehave, and changing them at run time.

mod admin;
mod hostile;
mod ladder;
mod reload;
mod sessions;
mod support;
