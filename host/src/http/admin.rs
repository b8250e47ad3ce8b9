//! The admin listener: apart from the clients' one, on loopback unless the operator says otherwise, with a token of its
//! own. It shows the plugins and looks at their sources again; what changes more comes to stand beside it.

use std::{
    io::{self, Write},
    net::SocketAddr,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use axum::{
    Json, Router,
    extract::{Request, State},
    http::{StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::net::TcpListener;
use uuid::Uuid;

use crate::{
    app::App,
    config::{AdminConfig, AdminListen},
    error::{Error, Result},
    plugin::{Pipeline, Plugin},
};

/// Where the plugins are listed.
pub(crate) const PLUGINS: &str = "/admin/plugins";

/// A plugin as the admin API shows it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PluginView {
    /// The slot.
    pub slot: String,
    /// The name that the component gives itself.
    pub name: String,
    /// The version that it gives itself.
    pub version: String,
    /// SHA-256 of the component, in hexadecimal.
    pub digest: String,
    /// The routes that it serves.
    pub routes: Vec<String>,
}

impl From<&Plugin> for PluginView {
    fn from(plugin: &Plugin) -> Self {
        Self {
            slot: plugin.slot().to_owned(),
            name: plugin.name().to_owned(),
            version: plugin.version().to_owned(),
            digest: plugin.digest().to_owned(),
            routes: plugin.routes().collect(),
        }
    }
}

/// All plugins that new requests run through.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PluginList {
    /// The pipeline's generation.
    pub generation: u64,
    /// By slot.
    pub plugins: Vec<PluginView>,
}

impl From<&Pipeline> for PluginList {
    fn from(pipeline: &Pipeline) -> Self {
        Self {
            generation: pipeline.generation(),
            plugins: pipeline
                .plugins()
                .into_iter()
                .map(|plugin| PluginView::from(plugin.as_ref()))
                .collect(),
        }
    }
}

/// Starts the admin listener; none if it is off, or its port is taken by another server.
///
/// # Errors
/// [`Error::Config`]: it would be reachable from elsewhere without a token of the operator's.
pub(crate) async fn start(config: &AdminConfig, state: &Path, app: Arc<App>) -> Result<Option<SocketAddr>> {
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
    let expected: Arc<[u8]> = Sha256::digest(token.as_bytes()).to_vec().into();
    let router = Router::new()
        .route(PLUGINS, get(plugins))
        .route("/admin/plugins/reload", post(reload))
        .layer(middleware::from_fn_with_state(expected, authorize))
        .with_state(app);
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

async fn authorize(State(expected): State<Arc<[u8]>>, request: Request, next: Next) -> Response {
    let token = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.strip_prefix("Bearer "))
        .unwrap_or_default();
    // Digests have one length: the comparison tells nothing of the token's.
    if bool::from(Sha256::digest(token.as_bytes()).ct_eq(&expected)) {
        return next.run(request).await;
    }
    let problem = serde_json::json!({
        "error": { "message": "the admin API wants its token: `authorization: Bearer ...`" },
    });
    (StatusCode::UNAUTHORIZED, Json(problem)).into_response()
}

async fn plugins(State(app): State<Arc<App>>) -> Json<PluginList> {
    Json(PluginList::from(app.plugins.pin().as_ref()))
}

async fn reload(State(app): State<Arc<App>>) -> StatusCode {
    app.plugins.reload_all();
    StatusCode::ACCEPTED
}
