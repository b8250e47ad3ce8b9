//! What an operator sees of the server: the log, one line for each request, and the metrics.
//!
//! Nothing here holds a prompt, an answer or a token. Labels of metrics come from this side alone: a client cannot
//! make a new one.

mod access;
mod metrics;

use tracing_subscriber::EnvFilter;

pub use access::{Outcome, Record};
pub(crate) use metrics::CONTENT_TYPE as METRICS_CONTENT_TYPE;
pub use metrics::{CallMeter, Gauges, Metrics};

use crate::{
    config::{LogConfig, LogFormat},
    error::{Error, Result},
};

/// Starts the log, on standard error.
///
/// # Errors
/// [`Error::Config`] if `log.level` is not a level or a list of directives.
pub fn init(config: &LogConfig) -> Result<()> {
    let filter = EnvFilter::try_new(&config.level).map_err(|error| {
        Error::Config(format!(
            "`log.level` is `{}`: expected a level (`info`) or directives (`info,heddle=debug`): {error}",
            config.level
        ))
    })?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    // A second start in one process (tests) keeps the first log.
    let _ = match config.format {
        LogFormat::Text => lines
            .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
    Ok(())
}
