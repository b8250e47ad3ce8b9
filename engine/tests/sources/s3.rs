//! S3: ListObjectsV2, HEAD and GET of objects, in path style, as in Amazon's API reference.

use std::{
    collections::BTreeMap,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use heddle_engine::hub::{Files, Silent, Source, SourcesConfig};

use crate::{
    Noted, config, fetch_error, noise, read,
    server::{Answer, Seen, Server},
    sha256, sources,
};

type Objects = BTreeMap<String, Vec<u8>>;

/// What S3 answers for a bucket `bucket` with these objects.
fn answer(objects: &Objects, request: &Seen) -> Answer {
    let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
    if path == "/bucket" && query.contains("list-type=2") {
        let value = |name: &str| {
            query
                .split('&')
                .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
        };
        let prefix = value("prefix").unwrap_or("").replace("%2F", "/");
        assert_eq!(value("delimiter"), Some("%2F"));
        let contents: String = objects
            .iter()
            .filter(|(key, _)| key.strip_prefix(&prefix).is_some_and(|rest| !rest.contains('/')))
            .map(|(key, bytes)| {
                format!(
                    "<Contents><Key>{key}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified><ETag>&quot;{}&quot;</ETag><Size>{}</Size></Contents>",
                    sha256(bytes),
                    bytes.len()
                )
            })
            .collect();
        return Answer::ok(format!(
            "<?xml version=\"1.0\"?><ListBucketResult><Name>bucket</Name><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>"
        ))
        .header("Content-Type", "application/xml");
    }
    match path.strip_prefix("/bucket/").and_then(|key| objects.get(key)) {
        Some(bytes) => Answer::file(request, bytes, &sha256(bytes)),
        None => Answer::status(404),
    }
}

fn adapter(weights: &[u8]) -> Objects {
    BTreeMap::from([
        ("team/a/README.md".to_owned(), b"read me".to_vec()),
        ("team/a/adapter_config.json".to_owned(), b"{}".to_vec()),
        ("team/a/adapter_model.safetensors".to_owned(), weights.to_vec()),
        (
            "team/a/deeper/adapter_model.safetensors".to_owned(),
            b"no".to_vec(),
        ),
        ("team/ab/adapter_config.json".to_owned(), b"no".to_vec()),
    ])
}

fn at(server: &Server, folder: &std::path::Path) -> SourcesConfig {
    SourcesConfig {
        s3_endpoint: Some(server.address()),
        ..config(folder)
    }
}

fn s3(text: &str) -> Source {
    text.parse().unwrap()
}

#[test]
fn an_adapter_is_fetched_once_and_again_when_it_changes() {
    let folder = tempfile::tempdir().unwrap();
    let objects = Arc::new(Mutex::new(adapter(&noise(1000))));
    let shared = objects.clone();
    let server = Server::start(move |request| answer(&shared.lock().unwrap(), request));
    let sources = sources(at(&server, folder.path()));
    let source = s3("s3://bucket/team/a");
    let files = sources.fetch_adapter(&source, None, &Silent).unwrap();
    assert_eq!(read(&files, "adapter_model.safetensors"), noise(1000));
    assert_eq!(read(&files, "adapter_config.json"), b"{}");
    assert_eq!(files.read("README.md").unwrap(), None);

    assert_eq!(sources.fetch_adapter(&source, None, &Silent).unwrap(), files);
    assert_eq!(server.count("/bucket/team/"), 2);
    // A README is no part of it.
    objects
        .lock()
        .unwrap()
        .insert("team/a/README.md".to_owned(), b"changed".to_vec());
    assert_eq!(sources.fetch_adapter(&source, None, &Silent).unwrap(), files);
    objects
        .lock()
        .unwrap()
        .insert("team/a/adapter_model.safetensors".to_owned(), noise(2000));
    let files = sources.fetch_adapter(&source, None, &Silent).unwrap();
    assert_eq!(read(&files, "adapter_model.safetensors"), noise(2000));

    server.close();
    let noted = Noted::default();
    assert_eq!(sources.fetch_adapter(&source, None, &noted).unwrap(), files);
    assert!(noted.said().contains("cached"), "{}", noted.said());
}

#[test]
fn a_cut_download_goes_on_where_it_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let objects = adapter(&noise(300_000));
    let cut = AtomicBool::new(true);
    let server = Server::start(move |request| {
        let whole = answer(&objects, request);
        match request.target.ends_with("/a/adapter_model.safetensors") && cut.swap(false, Ordering::SeqCst) {
            true => whole.cut_after(100_000),
            false => whole,
        }
    });
    let noted = Noted::default();
    let sources = sources(at(&server, folder.path()));
    let files = sources
        .fetch_adapter(&s3("s3://bucket/team/a"), None, &noted)
        .unwrap();
    assert_eq!(read(&files, "adapter_model.safetensors"), noise(300_000));
    assert_eq!(*noted.bytes.lock().unwrap(), 300_000 + 2);
    let ranges: Vec<_> = server
        .seen()
        .iter()
        .filter_map(|request| Some(request.header("range")?.to_owned()))
        .collect();
    assert!(
        ranges.len() == 1 && ranges[0].starts_with("bytes=100000-"),
        "{ranges:?}"
    );
}

#[test]
fn a_gguf_object_is_a_model() {
    let folder = tempfile::tempdir().unwrap();
    let objects = BTreeMap::from([("models/x.gguf".to_owned(), noise(500))]);
    let server = Server::start(move |request| answer(&objects, request));
    let files = sources(at(&server, folder.path()))
        .fetch_model(&s3("s3://bucket/models/x.gguf"), &Silent)
        .unwrap();
    let Files::Gguf(file) = files else {
        panic!("{files:?}");
    };
    assert!(file.ends_with("x.gguf"));
    assert_eq!(std::fs::read(file).unwrap(), noise(500));
}

#[test]
fn what_is_missing_forbidden_or_too_large_is_said_so() {
    let folder = tempfile::tempdir().unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let objects = adapter(&noise(5000));
    let server = Server::start(move |request| {
        counted.fetch_add(1, Ordering::SeqCst);
        match request.target.starts_with("/private") {
            true => Answer::status(403),
            false => answer(&objects, request),
        }
    });
    let sources = sources(SourcesConfig {
        adapter_size_limit: 4000,
        ..at(&server, folder.path())
    });
    let error = |text: &str| fetch_error(sources.fetch_adapter(&s3(text), None, &Silent).unwrap_err());
    let (reason, not_found, _) = error("s3://bucket/nothing");
    assert!(not_found && reason.contains("`nothing`"), "{reason}");
    let (reason, _, forbidden) = error("s3://private/a");
    assert!(forbidden, "{reason}");
    let (reason, ..) = error("s3://bucket/team/a");
    assert!(reason.contains("too large"), "{reason}");
    assert_eq!(server.count("safetensors"), 0);
}

/// Keys come from the environment, which belongs to a whole process: this test runs itself as a child with one.
#[test]
fn requests_are_signed_with_the_environments_keys() {
    const ENDPOINT: &str = "SOURCES_TEST_S3_ENDPOINT";
    let folder = tempfile::tempdir().unwrap();
    if let Ok(endpoint) = std::env::var(ENDPOINT) {
        let sources = sources(SourcesConfig {
            s3_endpoint: Some(endpoint),
            ..config(folder.path())
        });
        sources
            .fetch_adapter(&s3("s3://bucket/team/a"), None, &Silent)
            .unwrap();
        return;
    }
    let objects = adapter(b"weights");
    let server = Server::start(move |request| answer(&objects, request));
    let run = |keys: &[(&str, &str)]| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "s3::requests_are_signed_with_the_environments_keys"])
            .env_clear();
        let status = command
            .env(ENDPOINT, server.address())
            .envs(keys.iter().copied())
            .output()
            .unwrap();
        assert!(
            status.status.success(),
            "{}",
            String::from_utf8_lossy(&status.stdout)
        );
    };
    run(&[]);
    let unsigned = server.seen();
    assert!(
        unsigned.len() == 3
            && unsigned
                .iter()
                .all(|request| request.header("authorization").is_none())
    );
    run(&[
        ("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_REGION", "eu-west-1"),
    ]);
    let signed = &server.seen()[3..];
    assert_eq!(signed.len(), 3);
    for request in signed {
        let authorization = request.header("authorization").unwrap();
        assert!(
            authorization.starts_with("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/"),
            "{authorization}"
        );
        assert!(
            authorization.contains("/eu-west-1/s3/aws4_request"),
            "{authorization}"
        );
    }
}

#[test]
fn plain_http_to_another_machine_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let sources = sources(SourcesConfig {
        s3_endpoint: Some("http://s3.example".to_owned()),
        ..config(folder.path())
    });
    let (reason, ..) = fetch_error(
        sources
            .fetch_adapter(&s3("s3://bucket/a"), None, &Silent)
            .unwrap_err(),
    );
    assert!(reason.contains("https"), "{reason}");
}
