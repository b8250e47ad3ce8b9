//! The harness of the black-box tests: a real server in a process of its own, spoken to over HTTP.
//!
//! A server serves `pocket`, the model in the binary, at a free port, with a state folder of its own. It is killed
//! when its [`Server`] is dropped. `cargo test -p heddle-tests` builds the binary that it starts.

mod answer;
mod server;

pub use answer::{Answer, Event, Events};
pub use server::{Builder, Server, binary};
