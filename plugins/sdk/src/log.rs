//! The plugin's log. Write what an operator needs; never a token, a prompt or an answer.
//!
//! On targets other than Wasm the entries go to standard error.

pub use crate::bindings::imports::heddle::plugin::log::Level;

/// Writes an entry.
pub fn write(level: Level, message: &str) {
    #[cfg(target_arch = "wasm32")]
    crate::bindings::imports::heddle::plugin::log::write(level, message);
    #[cfg(not(target_arch = "wasm32"))]
    eprintln!("{level:?}: {message}");
}

/// For whoever debugs the plugin, in detail.
pub fn trace(message: &str) {
    write(Level::Trace, message);
}

/// For whoever debugs the plugin.
pub fn debug(message: &str) {
    write(Level::Debug, message);
}

/// Worth knowing.
pub fn info(message: &str) {
    write(Level::Info, message);
}

/// Worth a look.
pub fn warn(message: &str) {
    write(Level::Warn, message);
}

/// Something failed.
pub fn error(message: &str) {
    write(Level::Error, message);
}
