//! The accept loop, and the way out: stop accepting, let running requests end, cancel what is left.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};

use super::routes;
use crate::app::App;

/// How long a connection has to write the end of an answer that was cut short.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Serves until `stop` resolves and then drains: running requests have `server.drain_s` seconds to end. What has not
/// ended by then is cancelled in the engine and ends with an error of its API.
pub async fn serve(listener: TcpListener, app: Arc<App>, stop: impl Future<Output = ()>) {
    let graceful = GracefulShutdown::new();
    let mut stop = std::pin::pin!(stop);
    let slots = Arc::new(Semaphore::new(app.limits.max_connections.max(1)));
    loop {
        let accepted = async {
            // The semaphore is never closed.
            let slot = slots.clone().acquire_owned().await.ok();
            (slot, listener.accept().await)
        };
        let (slot, stream, peer) = tokio::select! {
            (slot, accepted) = accepted => match accepted {
                Ok((stream, peer)) => (slot, stream, peer),
                Err(error) => {
                    // Out of file descriptors, most likely: connections that end will free some.
                    tracing::warn!("a connection could not be accepted: {error}");
                    sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
            () = &mut stop => break,
        };
        let connection = graceful.watch(connection(app.clone(), stream, peer));
        tokio::spawn(async move {
            // What went wrong with a connection is between the client and the network.
            if let Err(error) = connection.await {
                tracing::debug!("connection: {error}");
            }
            drop(slot);
        });
    }

    app.drain();
    drop(listener);
    let patience = Duration::from_secs(app.limits.drain_s);
    tracing::info!(
        connections = graceful.count(),
        "shutting down: running requests have {} s to end",
        patience.as_secs()
    );
    let mut drained = std::pin::pin!(graceful.shutdown());
    if timeout(patience, &mut drained).await.is_err() {
        tracing::warn!("cancelling what still runs after {} s", patience.as_secs());
        app.engine.shutdown(Duration::ZERO).await;
        let _ = timeout(LAST_WORDS, drained).await;
    } else {
        app.engine.shutdown(Duration::ZERO).await;
    }
}

type Connection<S> = http1::Connection<TokioIo<TcpStream>, S>;

fn connection(
    app: Arc<App>,
    stream: TcpStream,
    peer: SocketAddr,
) -> Connection<
    impl hyper::service::Service<
        Request<Incoming>,
        Response = hyper::Response<super::answer::Body>,
        Error = std::convert::Infallible,
        Future = impl Send,
    >,
> {
    // A token is worth its own packet.
    let _ = stream.set_nodelay(true);
    let idle = Duration::from_secs(app.limits.keep_alive_s.max(1));
    let head_limit = app.limits.head_limit();
    let keep_alive = app.limits.keep_alive_s > 0;
    let service = service_fn(move |request: Request<Incoming>| {
        let app = app.clone();
        async move { Ok(routes::respond(app, Some(peer.ip()), request).await) }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(idle)
        .max_header_size(head_limit)
        .keep_alive(keep_alive)
        .serve_connection(TokioIo::new(stream), service)
}
