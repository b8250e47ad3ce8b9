//! The listener and everything HTTP: limits, request ids, framing, the routes that belong to the host.

pub(crate) mod answer;
pub(crate) mod body;
mod framing;
pub(crate) mod head;
mod routes;
mod server;

pub(crate) use framing::Framer;
pub use server::serve;
