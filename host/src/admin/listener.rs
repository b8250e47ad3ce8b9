//! The admin listener: apart from the clients' one, on loopback unless the operator says otherwise, with a token of its
//! own.

use std::{
    io::{self, Write},
    net::SocketAddr,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use uuid::Uuid;

use crate::{
    config::{AdminConfig, AdminListen},
    error::{Error, Result},
    plugin::PluginHost,
};

/// Starts the admin listener; none if it is off, or its port is taken by another server.
///
/// # Errors
/// [`Error::Config`]: it would be reachable from elsewhere without a token of the operator's.
pub(crate) async fn start(
    config: &AdminConfig,
    state: &Path,
    host: PluginHost,
) -> Result<Option<SocketAddr>> {
    let AdminListen::At(address) = config.listen else {
        return Ok(None);
    };
    let token = match &config.token {
        Some(token) => token.expose().to_owned(),
        None if address.ip().is_loopback() => String::new(),
        None => {
            return Err(Error::Config(format!(
                "`admin.listen` is {address}, which other machines can reach: set `admin.token`"
            )));
        }
    };
    let listener = match TcpListener::bind(address).await {
        Ok(listener) => listener,
        Err(error) => {
            tracing::warn!("no admin API: {address}: {error}");
            return Ok(None);
        }
    };
    let address = listener
        .local_addr()
        .map_err(|source| Error::Listen { address, source })?;
    let token = if token.is_empty() {
        let token = new_token();
        let path = token_file(state, address);
        write_private(&path, &token).map_err(|source| Error::Io { path, source })?;
        token
    } else {
        token
    };
    let router = super::router(host, Some(token));
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!("the admin API has stopped: {error}");
        }
    });
    Ok(Some(address))
}

/// The file with the token of a server whose operator configured none: who may read it may administer.
pub(crate) fn token_file(state: &Path, address: SocketAddr) -> PathBuf {
    state.join(format!("admin-{}.token", address.port()))
}

/// Hashing two ids with 74 random bits each leaves nothing of their clock.
fn new_token() -> String {
    let mut hash = Sha256::new();
    hash.update(Uuid::now_v7());
    hash.update(Uuid::now_v7());
    hex::encode(hash.finalize())
}

fn write_private(path: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(text.as_bytes())
}
