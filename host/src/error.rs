//! The errors of the host.

/// The host's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong in the host.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A plugin's call trapped.
    #[error("plugin `{slot}` failed in `{call}`: {reason}")]
    PluginTrap {
        /// The slot.
        slot: String,
        /// The function that was called.
        call: &'static str,
        /// The trap, without guest data.
        reason: String,
    },
    /// A plugin used up its time.
    #[error("plugin `{slot}` took longer than {limit_ms} ms in `{call}`")]
    PluginOverdue {
        /// The slot.
        slot: String,
        /// The function that was called.
        call: &'static str,
        /// Its limit.
        limit_ms: u64,
    },
    /// Too many instances of a plugin at once.
    #[error("plugin `{slot}` has {limit} instances at work, which is its limit: try again")]
    PluginBusy {
        /// The slot.
        slot: String,
        /// Its limit.
        limit: usize,
    },
    /// A component was not taken.
    #[error("the component for slot `{slot}` was refused at {rung}: {reason}")]
    PluginRefused {
        /// The slot.
        slot: String,
        /// Which check: `contract`, `compile`, `configure`, `self-test`, ...
        rung: &'static str,
        /// What was expected, what was found, what to do.
        reason: String,
    },
    /// The configuration is not valid.
    #[error("{0}")]
    Config(String),
    /// The address to listen at cannot be had.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// The system's error.
        source: std::io::Error,
    },
    /// The engine said no.
    #[error(transparent)]
    Engine(#[from] heddle_engine::Error),
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: std::path::PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}
