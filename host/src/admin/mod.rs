//! The admin API: what serves, changing it, and what was done to it. On a listener of its own, loopback by default.
//!
//! | request | answer |
//! |---|---|
//! | `GET /admin/plugins` | `{"generation", "live_generations", "slots": [...]}` |
//! | `POST /admin/plugins/{slot}` | the body is a component (`content-type: application/wasm`); 200 with the report of every rung, 422 if it was refused; `?dry_run=true` changes nothing |
//! | `POST /admin/plugins/{slot}/rollback` | `{"slot", "generation"}` |
//! | `POST /admin/plugins/reload` | 202: every slot's source is looked at again |
//! | `GET /admin/audit?limit=100` | `{"entries": [...]}`, oldest first |
//!
//! Errors are `{"error": {"code", "message"}}`.

mod guard;
mod listener;

use std::sync::Arc;

use axum::{
    Json, Router,
    body::Bytes,
    extract::{DefaultBodyLimit, Path, Query, State, rejection::BytesRejection},
    http::{HeaderMap, StatusCode, header::CONTENT_TYPE},
    middleware,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::Deserialize;
use serde_json::json;

pub(crate) use listener::{start, token_file};

use crate::{
    Error,
    plugin::{InstallReport, MAX_COMPONENT_BYTES, PluginHost, Verdict},
};

/// Where the plugins are listed.
pub(crate) const PLUGINS: &str = "/admin/plugins";
/// Who is named in the audit log.
const ACTOR: &str = "admin";
/// Audit entries in an answer, unless asked otherwise, and at most.
const AUDIT_ENTRIES: usize = 100;
const MAX_AUDIT_ENTRIES: usize = 10_000;

/// The routes. With a `token`, every request has to bring it as `Authorization: Bearer`; without one, only requests
/// that name this machine by a loopback address are answered, and none that a web page of somewhere else sent.
pub fn router(host: PluginHost, token: Option<String>) -> Router {
    Router::new()
        .route(PLUGINS, get(list))
        .route("/admin/plugins/reload", post(reload))
        .route("/admin/plugins/{slot}", post(install))
        .route("/admin/plugins/{slot}/rollback", post(rollback))
        .route("/admin/audit", get(audit))
        .fallback(|| async { problem(StatusCode::NOT_FOUND, "not_found", "there is no such admin route") })
        .method_not_allowed_fallback(|| async {
            problem(
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                "this admin route has another method",
            )
        })
        .layer(DefaultBodyLimit::max(MAX_COMPONENT_BYTES))
        .layer(middleware::from_fn_with_state(
            Arc::new(guard::Guard::new(token)),
            guard::check,
        ))
        .with_state(host)
}

/// What `GET /admin/plugins` answers.
pub(crate) fn plugins(host: &PluginHost) -> serde_json::Value {
    json!({
        "generation": host.pin().generation(),
        "live_generations": host.live_generations(),
        "slots": host.slots(),
    })
}

async fn list(State(host): State<PluginHost>) -> Response {
    Json(plugins(&host)).into_response()
}

#[derive(Deserialize)]
struct InstallQuery {
    #[serde(default)]
    dry_run: bool,
}

async fn install(
    State(host): State<PluginHost>,
    Path(slot): Path<String>,
    Query(query): Query<InstallQuery>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    if headers
        .get(CONTENT_TYPE)
        .is_none_or(|kind| kind != "application/wasm")
    {
        return problem(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            "send the component as the body, with `content-type: application/wasm`",
        );
    }
    let bytes: Arc<[u8]> = match body {
        Ok(bytes) => (&*bytes).into(),
        Err(rejection) => return problem(rejection.status(), "bad_body", &rejection.body_text()),
    };
    // It waits for the reconciler, which may compile: no place for that on an async thread.
    let work = move || {
        if query.dry_run {
            host.dry_run(&slot, bytes, ACTOR)
        } else {
            host.install(&slot, bytes, ACTOR)
        }
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(report)) => (status_of(&report), Json(report)).into_response(),
        Ok(Err(error)) => failure(&error),
        Err(_) => problem(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "the installation broke off",
        ),
    }
}

fn status_of(report: &InstallReport) -> StatusCode {
    match report.verdict {
        Verdict::Refused => StatusCode::UNPROCESSABLE_ENTITY,
        Verdict::Superseded => StatusCode::CONFLICT,
        Verdict::Committed | Verdict::Unchanged | Verdict::Checked => StatusCode::OK,
    }
}

async fn rollback(State(host): State<PluginHost>, Path(slot): Path<String>) -> Response {
    let known = host.slots().iter().any(|status| status.slot == slot);
    if !known {
        return problem(
            StatusCode::NOT_FOUND,
            "no_such_slot",
            "there is no slot of that name",
        );
    }
    let work = {
        let slot = slot.clone();
        move || host.rollback(&slot, ACTOR)
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(generation)) => Json(json!({"slot": slot, "generation": generation})).into_response(),
        Ok(Err(error)) => failure(&error),
        Err(_) => problem(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "the rollback broke off",
        ),
    }
}

async fn reload(State(host): State<PluginHost>) -> Response {
    host.reload_all();
    (
        StatusCode::ACCEPTED,
        Json(json!({"reload": "every slot's source is looked at again"})),
    )
        .into_response()
}

#[derive(Deserialize)]
struct AuditQuery {
    limit: Option<usize>,
}

async fn audit(State(host): State<PluginHost>, Query(query): Query<AuditQuery>) -> Response {
    let limit = query.limit.unwrap_or(AUDIT_ENTRIES).min(MAX_AUDIT_ENTRIES);
    match tokio::task::spawn_blocking(move || host.audit(limit)).await {
        Ok(Ok(entries)) => Json(json!({"entries": entries})).into_response(),
        Ok(Err(error)) => failure(&error),
        Err(_) => problem(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "the log could not be read",
        ),
    }
}

fn failure(error: &Error) -> Response {
    let (status, code) = match error {
        Error::Config(_) => (StatusCode::UNPROCESSABLE_ENTITY, "invalid"),
        Error::PluginRefused { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "refused"),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
    };
    problem(status, code, &error.to_string())
}

fn problem(status: StatusCode, code: &str, message: &str) -> Response {
    (status, Json(json!({"error": {"code": code, "message": message}}))).into_response()
}
