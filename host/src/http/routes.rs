//! Which request goes where: a few routes are the host's own, the rest belong to protocol plugins.

use std::{net::IpAddr, sync::Arc};

use hyper::{Method, Request, Response, StatusCode, body::Incoming, header};
use serde_json::json;

use super::{answer, head};
use crate::{
    app::App,
    exchange::{Exchange, problem},
    plugin::{Plugin, Routed, bindings::exports::heddle::plugin::protocol::Problem},
    telemetry::{METRICS_CONTENT_TYPE, Outcome, Record},
};

/// Answers one request.
pub(super) async fn respond(
    app: Arc<App>,
    peer: Option<IpAddr>,
    request: Request<Incoming>,
) -> Response<answer::Body> {
    let request_id = head::request_id(request.headers());
    let pipeline = app.plugins.pin();
    let generation = pipeline.generation();
    let (parts, body) = request.into_parts();
    let mut record = Record::begin(app.metrics.clone(), request_id.clone(), &parts.method);

    let path = parts.uri.path();
    let mut response = if let Some(route) = own_route(path) {
        record.route(route);
        let response = if matches!(parts.method, Method::GET | Method::HEAD) {
            own(&app, route)
        } else {
            refuse(
                &problem::wrong_method(&["GET".to_owned(), "HEAD".to_owned()]),
                "GET, HEAD",
            )
        };
        finish(record, response)
    } else {
        match pipeline.route(parts.method.as_str(), path) {
            Routed::Plugin(plugin) => {
                let plugin = plugin.clone();
                record.route(&declared(&plugin, parts.method.as_str(), path));
                let exchange = Exchange::new(app, pipeline, plugin, &parts, peer, record);
                exchange.run(&parts.headers, body).await
            }
            Routed::WrongMethod(methods) => finish(
                record,
                refuse(&problem::wrong_method(&methods), &methods.join(", ")),
            ),
            Routed::Unknown => finish(record, refuse(&problem::no_route(), "")),
        }
    };
    answer::put(&mut response, "x-request-id", &request_id);
    answer::put(&mut response, "x-heddle-pipeline", &generation.to_string());
    response
}

/// The host's own routes. They answer anybody: they tell nothing of clients.
fn own_route(path: &str) -> Option<&'static str> {
    ["/health", "/ready", "/version", "/metrics"]
        .into_iter()
        .find(|route| *route == path)
}

fn own(app: &App, route: &str) -> Response<answer::Body> {
    let health = app.engine.health();
    let status = |good| {
        if good {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        }
    };
    match route {
        // Alive: the step loop steps. A server that drains is alive.
        "/health" => answer::json(
            status(health.alive),
            &json!({
                "status": if health.alive { "ok" } else { "the engine's step loop has stopped" },
                "running": health.running,
                "waiting": health.waiting,
                "kv_used": health.kv_used,
                "kv_blocks": health.kv_blocks,
            }),
        ),
        // Ready: a load balancer should send requests here.
        "/ready" => {
            let ready = health.alive && health.accepting && !app.is_draining();
            let words = match (ready, app.is_draining()) {
                (true, _) => "ok",
                (false, true) => "shutting down",
                (false, false) => "not ready",
            };
            answer::json(status(ready), &json!({ "status": words }))
        }
        "/version" => answer::json(
            StatusCode::OK,
            &json!({ "name": "heddle", "version": env!("CARGO_PKG_VERSION"), "model": app.model.name }),
        ),
        _ => answer::document(StatusCode::OK, METRICS_CONTENT_TYPE, app.metrics_page()),
    }
}

/// The route as the plugin declared it: what a client wrote behind a `/*` is no label.
fn declared(plugin: &Plugin, method: &str, path: &str) -> String {
    let mut best = "";
    let routes: Vec<String> = plugin.routes().collect();
    for route in &routes {
        let Some(pattern) = route.strip_prefix(method).map(str::trim_start) else {
            continue;
        };
        if pattern == path {
            return pattern.to_owned();
        }
        let below = pattern
            .strip_suffix('*')
            .is_some_and(|start| path.starts_with(start));
        if below && pattern.len() > best.len() {
            best = pattern;
        }
    }
    best.to_owned()
}

fn refuse(problem: &Problem, allow: &str) -> Response<answer::Body> {
    let mut response = answer::reply(problem::render(problem));
    if !allow.is_empty() {
        answer::put(&mut response, header::ALLOW.as_str(), allow);
    }
    response
}

fn finish(mut record: Record, response: Response<answer::Body>) -> Response<answer::Body> {
    record.status(response.status().as_u16());
    record.end(Outcome::Complete);
    response
}
