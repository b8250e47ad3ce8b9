//! What signals do: SIGTERM and SIGINT drain and stop, a second one stops at once, SIGHUP reloads the plugins.

use std::io;

use tokio::signal::unix::{SignalKind, signal};

use crate::plugin::PluginHost;

/// The exit code of what a signal has cut short: what a shell shows for SIGINT.
pub(super) const INTERRUPTED: u8 = 130;

/// Begins to watch. What it returns resolves with the first signal to stop.
pub(super) fn watch(plugins: PluginHost) -> io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let (stop, stopped) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let mut stop = Some(stop);
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                _ = hang_up.recv() => {
                    tracing::info!("SIGHUP: looking at the plugins again");
                    plugins.reload_all();
                    continue;
                }
            }
            match stop.take() {
                // The receiver is gone only when the server has stopped already.
                Some(stop) => drop(stop.send(())),
                None => {
                    tracing::warn!("a second signal: stopping at once");
                    std::process::exit(INTERRUPTED.into());
                }
            }
        }
    });
    Ok(async move {
        // A watcher that is gone is a reason to stop, too.
        let _ = stopped.await;
    })
}
