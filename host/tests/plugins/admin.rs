//! The admin API.

use axum::{
    body::{Body, to_bytes},
    http::{Request, StatusCode},
};
use heddle::admin;
use serde_json::Value;
use tower::ServiceExt as _;

use crate::support::{Fixture, bytes, start};

async fn call(fixture: &Fixture, method: &str, uri: &str, body: Option<Vec<u8>>) -> (StatusCode, Value) {
    let mut request = Request::builder()
        .method(method)
        .uri(uri)
        .header("authorization", "Bearer s3cret");
    if body.is_some() {
        request = request.header("content-type", "application/wasm");
    }
    let request = request.body(Body::from(body.unwrap_or_default())).unwrap();
    let response = admin::router(fixture.host.clone(), Some("s3cret".into()))
        .oneshot(request)
        .await
        .unwrap();
    let status = response.status();
    let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (status, serde_json::from_slice(&body).unwrap())
}

#[tokio::test]
async fn the_life_of_a_slot() {
    let fixture = start("");
    let (status, list) = call(&fixture, "GET", "/admin/plugins", None).await;
    assert_eq!(status, StatusCode::OK);
    let names: Vec<_> = list["slots"]
        .as_array()
        .unwrap()
        .iter()
        .map(|slot| slot["slot"].clone())
        .collect();
    assert_eq!(names, ["auth", "openai", "stop"]);
    assert_eq!(list["slots"][2]["plugin"]["snapshot"], true);

    let (status, report) = call(
        &fixture,
        "POST",
        "/admin/plugins/stop?dry_run=true",
        Some(bytes("stop-b")),
    )
    .await;
    assert_eq!(
        (status, &report["verdict"]),
        (StatusCode::OK, &Value::from("checked")),
        "{report:#}"
    );
    assert_eq!(fixture.host.pin().generation(), 1);
    let (status, report) = call(&fixture, "POST", "/admin/plugins/stop", Some(bytes("stop-b"))).await;
    assert_eq!(
        (status, &report["verdict"]),
        (StatusCode::OK, &Value::from("committed")),
        "{report:#}"
    );
    let rungs = report["check"]["rungs"].as_array().unwrap();
    let names: Vec<_> = rungs.iter().map(|rung| rung["rung"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        ["contract", "compile", "self-test", "commit"],
        "the dry run left what it compiled"
    );
    let (status, report) = call(&fixture, "POST", "/admin/plugins/stop", Some(b"text".to_vec())).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(report["refused"]["rung"], "contract");

    let (status, answer) = call(&fixture, "POST", "/admin/plugins/stop/rollback", None).await;
    assert_eq!(
        (status, &answer["generation"]),
        (StatusCode::OK, &Value::from(3)),
        "{answer}"
    );
    let (status, _) = call(&fixture, "POST", "/admin/plugins/reload", None).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    let (status, log) = call(&fixture, "GET", "/admin/audit?limit=2", None).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(log["entries"][1]["action"], "rollback");
}

#[tokio::test]
async fn what_cannot_be_is_told_in_json() {
    let fixture = start("");
    for (method, uri, body, expected) in [
        (
            "POST",
            "/admin/plugins/stop",
            None,
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
        ),
        (
            "POST",
            "/admin/plugins/No%20Slot",
            Some(b"x".to_vec()),
            StatusCode::UNPROCESSABLE_ENTITY,
        ),
        (
            "POST",
            "/admin/plugins/nowhere/rollback",
            None,
            StatusCode::NOT_FOUND,
        ),
        (
            "POST",
            "/admin/plugins/stop/rollback",
            None,
            StatusCode::UNPROCESSABLE_ENTITY,
        ),
        ("GET", "/admin/nothing", None, StatusCode::NOT_FOUND),
        ("DELETE", "/admin/plugins", None, StatusCode::METHOD_NOT_ALLOWED),
    ] {
        let (status, answer) = call(&fixture, method, uri, body).await;
        assert_eq!(status, expected, "{uri}: {answer}");
        assert!(
            answer["error"]["message"].is_string() || answer["refused"].is_object(),
            "{uri}: {answer}"
        );
    }
    let request = Request::builder()
        .uri("/admin/plugins")
        .body(Body::empty())
        .unwrap();
    let response = admin::router(fixture.host.clone(), Some("s3cret".into()))
        .oneshot(request)
        .await
        .unwrap();
    assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
}
