//! The plugin host: everything Wasm.
//!
//! A file climbs the rungs of a ladder (`load`, with `contract`, `snapshot` and `cache`; see [`Rung`]) and becomes a
//! [`Plugin`] in a slot. The plugins of all slots make a [`Pipeline`], an immutable value behind one atomic pointer: a
//! request pins it when its head has arrived and keeps it to its last byte. Sessions ([`AuthSession`],
//! [`ProtocolSession`], [`StopSession`]) are fresh instances of a plugin for one request, with their limits (`store`,
//! `call`). `host` owns the slots, `reconcile` changes them.

mod attempt;
mod audit;
mod background;
pub mod bindings;
mod builtin;
mod cache;
mod call;
mod check;
mod config;
mod contract;
mod equality;
mod files;
mod grants;
mod host;
mod imports;
mod lastgood;
mod load;
mod log;
mod mailbox;
mod pipeline;
#[allow(
    clippy::module_inception,
    reason = "the type of that name; the folder is about all of them"
)]
mod plugin;
mod reconcile;
mod registry;
mod report;
pub mod resources;
mod runtime;
mod session;
mod snapshot;
mod source;
mod start;
mod status;
mod store;
mod watch;

pub use audit::verify_audit;
pub use check::{check, check_with};
pub use config::{Limits, PluginsConfig, SlotConfig};
pub use contract::{MAX_COMPONENT_BYTES, Role};
pub use grants::Grants;
pub use host::PluginHost;
pub use pipeline::{Pipeline, Routed};
pub use plugin::Plugin;
pub use report::{CheckReport, InstallReport, Rung, RungReport, Verdict};
pub use runtime::{MAX_MEMORY_MIB, instances};
pub use session::{AuthSession, Matcher, ProtocolSession, StopSession};
pub use status::{PluginStatus, SlotError, SlotStatus};
