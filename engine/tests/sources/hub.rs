//! The hub's API: <https://huggingface.co/docs/hub/api>, `resolve` addresses, tokens, gated repositories.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use heddle_engine::hub::{Files, Silent, Source, SourcesConfig};
use serde_json::json;

use crate::{
    Noted, config, fetch_error, noise, read,
    server::{Answer, Seen, Server},
    sha256, sources,
};

pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
pub(crate) const NEXT: &str = "fedcba9876543210fedcba9876543210fedcba98";

/// A repository `org/name` as the hub shows it.
#[derive(Clone)]
pub(crate) struct Repo {
    pub(crate) commit: &'static str,
    pub(crate) files: Vec<(&'static str, Vec<u8>)>,
    /// Only who sends this token may see it.
    pub(crate) token: Option<&'static str>,
    /// Everybody sees that it is there, only the token's bearer its files.
    pub(crate) gated: bool,
}

impl Repo {
    pub(crate) fn adapter(weights: &[u8]) -> Self {
        Self {
            commit: COMMIT,
            files: vec![
                ("README.md", b"read me".to_vec()),
                ("adapter_config.json", br#"{"r": 8}"#.to_vec()),
                ("adapter_model.safetensors", weights.to_vec()),
            ],
            token: None,
            gated: false,
        }
    }

    /// What the hub answers: 401 without a token and 404 with a wrong one, so that nobody learns what is there.
    pub(crate) fn answer(&self, request: &Seen) -> Answer {
        let bearer = request
            .header("authorization")
            .and_then(|value| value.strip_prefix("Bearer "));
        let may = self.token.is_none() || bearer == self.token;
        let is_api = request.target.starts_with("/api/");
        if !may && self.gated && !is_api {
            return Answer::status(403).header("X-Error-Message", "Access to model org/name is restricted");
        }
        if !may && !self.gated {
            return Answer::status(if bearer.is_some() { 404 } else { 401 })
                .header("X-Error-Message", "Repository not found");
        }
        let target = request.target.split('?').next().unwrap();
        if let Some(revision) = target.strip_prefix("/api/models/org/name/revision/") {
            if revision != "main" && revision != self.commit {
                return Answer::status(404).header("X-Error-Message", "Invalid rev id");
            }
            return Answer::ok(self.info().to_string());
        }
        let prefix = format!("/org/name/resolve/{}/", self.commit);
        let file = target
            .strip_prefix(&prefix)
            .and_then(|name| self.files.iter().find(|(file, _)| *file == name));
        match file {
            Some((_, bytes)) => Answer::file(request, bytes, &sha256(bytes)),
            None => Answer::status(404).header("X-Error-Message", "Entry not found"),
        }
    }

    fn info(&self) -> serde_json::Value {
        let sibling = |(name, bytes): &(&str, Vec<u8>)| {
            let mut entry = json!({"rfilename": name, "size": bytes.len(), "blobId": "x"});
            // Large files are in LFS, and LFS names them by their SHA-256.
            if name.ends_with(".safetensors") {
                entry["lfs"] = json!({"sha256": sha256(bytes), "size": bytes.len(), "pointerSize": 134});
            }
            entry
        };
        json!({
            "sha": self.commit,
            "private": self.token.is_some() && !self.gated,
            "gated": if self.gated { json!("manual") } else { json!(false) },
            "siblings": self.files.iter().map(sibling).collect::<Vec<_>>(),
        })
    }

    pub(crate) fn serve(self) -> Server {
        Server::start(move |request| self.answer(request))
    }
}

pub(crate) fn hub(text: &str) -> Source {
    text.parse().unwrap()
}

fn at(server: &Server, folder: &std::path::Path) -> SourcesConfig {
    SourcesConfig {
        hub_endpoint: server.address(),
        ..config(folder)
    }
}

#[test]
fn an_adapter_is_fetched_once() {
    let folder = tempfile::tempdir().unwrap();
    let weights = noise(200_000);
    let server = Repo::adapter(&weights).serve();
    let sources = sources(at(&server, folder.path()));
    let source = hub("hub:org/name");
    assert!(!sources.cached(&source));
    let noted = Noted::default();
    let files = sources.fetch_adapter(&source, None, &noted).unwrap();
    assert_eq!(read(&files, "adapter_model.safetensors"), weights);
    assert_eq!(read(&files, "adapter_config.json"), br#"{"r": 8}"#);
    assert_eq!(files.read("README.md").unwrap(), None);
    assert_eq!(*noted.bytes.lock().unwrap(), 200_000 + 8);
    assert!(noted.begun.lock().unwrap().contains(&(
        "adapter_model.safetensors".to_owned(),
        Some(200_000),
        0
    )));

    // The branch is looked up again; nothing is fetched again.
    assert!(sources.cached(&source));
    assert_eq!(sources.fetch_adapter(&source, None, &Silent).unwrap(), files);
    assert_eq!(
        (server.count("/revision/main"), server.count("/resolve/")),
        (2, 2)
    );
    // A commit never changes: it is looked up once.
    let pinned = hub(&format!("hub:org/name@{COMMIT}"));
    assert_eq!(sources.fetch_adapter(&pinned, None, &Silent).unwrap(), files);
    assert_eq!(sources.fetch_adapter(&pinned, None, &Silent).unwrap(), files);
    assert_eq!((server.count("/revision/"), server.count("/resolve/")), (3, 2));
}

#[test]
fn a_branch_that_moves_brings_only_what_changed() {
    let folder = tempfile::tempdir().unwrap();
    let repo = Arc::new(Mutex::new(Repo::adapter(&noise(50_000))));
    let shared = repo.clone();
    let server = Server::start(move |request| shared.lock().unwrap().answer(request));
    let sources = sources(at(&server, folder.path()));
    sources.fetch_adapter(&hub("org/name"), None, &Silent).unwrap();
    {
        let mut repo = repo.lock().unwrap();
        repo.commit = NEXT;
        repo.files[1].1 = br#"{"r": 16}"#.to_vec();
    }
    let files = sources.fetch_adapter(&hub("org/name"), None, &Silent).unwrap();
    assert_eq!(read(&files, "adapter_config.json"), br#"{"r": 16}"#);
    assert_eq!(read(&files, "adapter_model.safetensors"), noise(50_000));
    assert_eq!(server.count("adapter_model.safetensors"), 1);
}

#[test]
fn a_private_repository_is_for_its_token_only() {
    let folder = tempfile::tempdir().unwrap();
    let repo = Repo {
        token: Some("hf_right"),
        ..Repo::adapter(b"weights")
    };
    let server = repo.serve();
    let sources = sources(at(&server, folder.path()));
    let source = hub("org/name");
    // Twice: what somebody else has fetched is no more open than what nobody has.
    for _ in 0..2 {
        for check in [false, true] {
            let ask = |credential| match check {
                true => sources.check_access(&source, credential),
                false => sources.fetch_adapter(&source, credential, &Silent).map(drop),
            };
            let (reason, not_found, forbidden) = fetch_error(ask(None).unwrap_err());
            assert!(forbidden && !not_found && reason.contains("401"), "{reason}");
            assert!(fetch_error(ask(Some("")).unwrap_err()).2);
            let (reason, not_found, forbidden) = fetch_error(ask(Some("hf_wrong")).unwrap_err());
            assert!(
                not_found && !forbidden && reason.contains("Repository not found"),
                "{reason}"
            );
            assert!(!reason.contains("hf_wrong"), "{reason}");
            assert!(fetch_error(ask(Some("hf_wr\nong")).unwrap_err()).2);
            ask(Some("hf_right")).unwrap();
        }
    }
    server.close();
    // Out of reach, nobody can say who may see it: not even the token's bearer is believed.
    for credential in [None, Some("hf_wrong"), Some("hf_right")] {
        sources.check_access(&source, credential).unwrap_err();
        sources.fetch_adapter(&source, credential, &Silent).unwrap_err();
    }
}

#[test]
fn the_operators_token_is_used_when_the_caller_brings_none() {
    let folder = tempfile::tempdir().unwrap();
    let repo = Repo {
        token: Some("hf_operator"),
        ..Repo::adapter(b"weights")
    };
    let server = repo.serve();
    let sources = sources(SourcesConfig {
        hub_token: Some("hf_operator".to_owned()),
        ..at(&server, folder.path())
    });
    let source = hub("org/name");
    sources.fetch_adapter(&source, None, &Silent).unwrap();
    sources
        .fetch_adapter(&source, Some("hf_other"), &Silent)
        .unwrap_err();
    server.close();
    // The operator's own word stands while the hub is away; a caller's needs the hub.
    sources.fetch_adapter(&source, None, &Silent).unwrap();
    sources.check_access(&source, None).unwrap();
    sources
        .fetch_adapter(&source, Some("hf_other"), &Silent)
        .unwrap_err();
    sources.check_access(&source, Some("hf_other")).unwrap_err();
}

#[test]
fn a_gated_repository_shows_itself_but_not_its_files() {
    let folder = tempfile::tempdir().unwrap();
    let repo = Repo {
        token: Some("hf_right"),
        gated: true,
        ..Repo::adapter(b"weights")
    };
    let server = repo.serve();
    let sources = sources(at(&server, folder.path()));
    let source = hub("org/name");
    sources.fetch_adapter(&source, Some("hf_right"), &Silent).unwrap();
    for credential in [None, Some("hf_wrong")] {
        let (reason, _, forbidden) =
            fetch_error(sources.fetch_adapter(&source, credential, &Silent).unwrap_err());
        assert!(forbidden && reason.contains("restricted"), "{reason}");
        assert!(fetch_error(sources.check_access(&source, credential).unwrap_err()).2);
    }
    sources.check_access(&source, Some("hf_right")).unwrap();
}

#[test]
fn what_is_left_of_somebody_elses_download_is_nobodys_proof() {
    let folder = tempfile::tempdir().unwrap();
    let repo = Repo {
        token: Some("hf_right"),
        gated: true,
        ..Repo::adapter(b"weights")
    };
    let server = repo.serve();
    let fetch =
        |credential| sources(at(&server, folder.path())).fetch_adapter(&hub("org/name"), credential, &Silent);
    let Files::Folder(files) = fetch(Some("hf_right")).unwrap() else {
        panic!("a folder");
    };
    // As if the process had died with everything there, just before the entry was put in place.
    let entry = files.parent().unwrap();
    let partial = folder
        .path()
        .join("cache/partial")
        .join(entry.file_name().unwrap());
    std::fs::create_dir(&partial).unwrap();
    let state = |len: usize| json!({"validator": "\"x\"", "total": len}).to_string();
    for (name, len) in [("adapter_config.json", 8), ("adapter_model.safetensors", 7)] {
        std::fs::rename(files.join(name), partial.join(format!("{name}.part"))).unwrap();
        std::fs::write(partial.join(format!("{name}.part.json")), state(len)).unwrap();
    }
    std::fs::remove_dir_all(entry).unwrap();
    for credential in [None, Some("hf_wrong")] {
        assert!(fetch_error(fetch(credential).unwrap_err()).2);
    }
    // Its owner goes on without fetching again.
    let before = server.count("adapter_model.safetensors");
    fetch(Some("hf_right")).unwrap();
    assert_eq!(server.count("adapter_model.safetensors"), before);
}

#[test]
fn what_is_not_there_is_not_found() {
    let folder = tempfile::tempdir().unwrap();
    let server = Repo::adapter(b"weights").serve();
    let sources = sources(at(&server, folder.path()));
    let error = sources
        .fetch_adapter(&hub("org/name@nothing"), None, &Silent)
        .unwrap_err();
    let (reason, not_found, forbidden) = fetch_error(error);
    assert!(not_found && !forbidden, "{reason}");
    assert!(
        reason.contains("`nothing`") && reason.contains("Invalid rev id"),
        "{reason}"
    );
    // A slash in a revision is escaped, as the hub wants it.
    sources
        .fetch_adapter(&hub("hub:org/name@refs/pr/1"), None, &Silent)
        .unwrap_err();
    assert_eq!(server.count("/revision/refs%2Fpr%2F1?"), 1);
}

#[test]
fn a_file_that_is_listed_and_not_there_is_not_found() {
    let folder = tempfile::tempdir().unwrap();
    let repo = Repo::adapter(b"weights");
    let server = Server::start(
        move |request| match request.target.ends_with("adapter_model.safetensors") {
            true => Answer::status(404),
            false => repo.answer(request),
        },
    );
    let sources = sources(at(&server, folder.path()));
    let error = sources
        .fetch_adapter(&hub("org/name"), None, &Silent)
        .unwrap_err();
    assert!(fetch_error(error).1);
    assert!(!sources.cached(&hub("org/name")));
}

#[test]
fn a_silent_hub_costs_its_time_limit_once() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(|_| Answer::ok("{}").after(Duration::from_secs(600)));
    let mut config = at(&server, folder.path());
    config.patience.lookup = Duration::from_millis(500);
    let sources = sources(config);
    let begun = Instant::now();
    let error = sources
        .fetch_adapter(&hub("org/name"), None, &Silent)
        .unwrap_err();
    let (reason, not_found, forbidden) = fetch_error(error);
    assert!(reason.contains("in time") && !not_found && !forbidden, "{reason}");
    // The server would take much longer.
    assert!(begun.elapsed() < crate::PATIENCE, "{:?}", begun.elapsed());
    assert_eq!(server.seen().len(), 1);
}

#[test]
fn a_hub_that_is_not_there_is_noticed_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(|_| Answer::status(500));
    server.close();
    let begun = Instant::now();
    sources(at(&server, folder.path()))
        .fetch_adapter(&hub("org/name"), None, &Silent)
        .unwrap_err();
    assert!(begun.elapsed() < crate::PATIENCE / 2, "{:?}", begun.elapsed());
}

#[test]
fn a_busy_hub_is_asked_again() {
    let folder = tempfile::tempdir().unwrap();
    let repo = Repo::adapter(b"weights");
    let count = AtomicUsize::new(0);
    let server = Server::start(move |request| match count.fetch_add(1, Ordering::SeqCst) {
        0 => Answer::status(503),
        1 => Answer::status(429).header("Retry-After", "0"),
        4 => Answer::status(502),
        _ => repo.answer(request),
    });
    sources(at(&server, folder.path()))
        .fetch_adapter(&hub("org/name"), None, &Silent)
        .unwrap();
    // Twice more for the lookup, once more for one of two files.
    assert_eq!(server.seen().len(), 3 + 3);

    // And not for ever: the first attempt and two more.
    let server = Server::start(|_| Answer::status(503));
    let error = sources(at(&server, folder.path()))
        .fetch_adapter(&hub("org/other"), None, &Silent)
        .unwrap_err();
    assert!(fetch_error(error).0.contains("503"));
    assert_eq!(server.seen().len(), 3);
}

#[test]
fn a_cut_download_goes_on_where_it_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let weights = noise(300_000);
    let repo = Repo::adapter(&weights);
    let count = AtomicUsize::new(0);
    let server = Server::start(move |request| {
        let answer = repo.answer(request);
        if !request.target.ends_with("adapter_model.safetensors") {
            return answer;
        }
        // Cut more often than attempts are allowed without progress.
        match count.fetch_add(1, Ordering::SeqCst) {
            0..=3 => answer.cut_after(60_000),
            _ => answer,
        }
    });
    let noted = Noted::default();
    let files = sources(at(&server, folder.path()))
        .fetch_adapter(&hub("org/name"), None, &noted)
        .unwrap();
    assert_eq!(read(&files, "adapter_model.safetensors"), weights);
    let ranges: Vec<_> = server
        .seen()
        .iter()
        .filter_map(|request| Some(request.header("range")?.to_owned()))
        .collect();
    assert_eq!(
        ranges,
        ["bytes=60000-", "bytes=120000-", "bytes=180000-", "bytes=240000-"]
    );
    let etag = format!("\"{}\"", sha256(&weights));
    assert!(
        server
            .seen()
            .iter()
            .all(|request| request.header("if-range").is_none_or(|wanted| wanted == etag))
    );
    // Every byte counts once.
    assert_eq!(*noted.bytes.lock().unwrap(), 300_000 + 8);
}

#[test]
fn the_next_process_goes_on_with_what_the_last_one_left() {
    let folder = tempfile::tempdir().unwrap();
    let weights = noise(100_000);
    let repo = Repo::adapter(&weights);
    let broken = Arc::new(Mutex::new(true));
    let is_broken = broken.clone();
    let server = Server::start(move |request| {
        let answer = repo.answer(request);
        let large = request.target.ends_with("adapter_model.safetensors");
        // Broken, it gives the beginning once and then nothing.
        match (large && *is_broken.lock().unwrap(), request.header("range")) {
            (true, None) => answer.cut_after(40_000),
            (true, Some(_)) => Answer::status(503),
            _ => answer,
        }
    });
    sources(at(&server, folder.path()))
        .fetch_adapter(&hub("org/name"), None, &Silent)
        .unwrap_err();
    *broken.lock().unwrap() = false;
    let noted = Noted::default();
    let files = sources(at(&server, folder.path()))
        .fetch_adapter(&hub("org/name"), None, &noted)
        .unwrap();
    assert_eq!(read(&files, "adapter_model.safetensors"), weights);
    let begun = noted.begun.lock().unwrap().clone();
    assert!(
        begun.contains(&("adapter_model.safetensors".to_owned(), Some(100_000), 40_000)),
        "{begun:?}"
    );
    // The small file was whole: it is not asked for again.
    assert_eq!(server.count("adapter_config.json"), 1);
}

#[test]
fn bytes_that_do_not_belong_together_are_noticed() {
    // The beginning is another file's, and the server knows neither ETags nor the change: the hash shows it, and one
    // clean attempt follows.
    let folder = tempfile::tempdir().unwrap();
    let weights = noise(100_000);
    let repo = Repo::adapter(&weights);
    let first = AtomicUsize::new(0);
    let server = Server::start(move |request| {
        let large = request.target.ends_with("adapter_model.safetensors");
        match large && first.fetch_add(1, Ordering::SeqCst) == 0 {
            true => Answer::ok(vec![0; 100_000]).cut_after(30_000),
            false => repo.answer(request),
        }
    });
    let files = sources(at(&server, folder.path()))
        .fetch_adapter(&hub("org/name"), None, &Silent)
        .unwrap();
    assert_eq!(read(&files, "adapter_model.safetensors"), weights);
    assert_eq!(server.count("adapter_model.safetensors"), 3);

    // Wrong from the beginning to the end, it is refused.
    let repo = Repo::adapter(&weights);
    let server = Server::start(
        move |request| match request.target.ends_with("adapter_model.safetensors") {
            true => Answer::ok(vec![0; 100_000]),
            false => repo.answer(request),
        },
    );
    let other = tempfile::tempdir().unwrap();
    let sources = sources(at(&server, other.path()));
    let (reason, _, _) = fetch_error(
        sources
            .fetch_adapter(&hub("org/name"), None, &Silent)
            .unwrap_err(),
    );
    assert!(reason.contains(&sha256(&weights)), "{reason}");
    assert!(!sources.cached(&hub("org/name")));
}

#[test]
fn a_redirect_to_another_host_goes_without_the_token() {
    let folder = tempfile::tempdir().unwrap();
    let weights = noise(1000);
    let store = {
        let weights = weights.clone();
        Server::start(move |request| Answer::file(request, &weights, "x"))
    };
    let repo = Repo {
        token: Some("hf_right"),
        ..Repo::adapter(&weights)
    };
    let elsewhere = format!("{}/blob", store.other_host());
    let server = Server::start(
        move |request| match request.target.ends_with("adapter_model.safetensors") {
            true => Answer::redirect(&elsewhere),
            false => repo.answer(request),
        },
    );
    let sources = sources(at(&server, folder.path()));
    let files = sources
        .fetch_adapter(&hub("org/name"), Some("hf_right"), &Silent)
        .unwrap();
    assert_eq!(read(&files, "adapter_model.safetensors"), weights);
    assert!(
        server
            .seen()
            .iter()
            .all(|request| request.header("authorization") == Some("Bearer hf_right"))
    );
    assert_eq!(store.seen().len(), 1);
    assert_eq!(store.seen()[0].header("authorization"), None);
}

#[test]
fn what_is_too_large_is_refused_before_it_comes_and_while_it_comes() {
    let folder = tempfile::tempdir().unwrap();
    let server = Repo::adapter(&noise(5000)).serve();
    let limited = |server: &Server| {
        sources(SourcesConfig {
            adapter_size_limit: 4000,
            ..at(server, folder.path())
        })
    };
    let (reason, _, _) = fetch_error(
        limited(&server)
            .fetch_adapter(&hub("org/name"), None, &Silent)
            .unwrap_err(),
    );
    assert!(reason.contains("too large"), "{reason}");
    assert_eq!(server.count("/resolve/"), 0);

    // A hub that says nothing of sizes, and a body without a length.
    let server = Server::start(|request| match request.target.starts_with("/api/") {
        true => Answer::ok(
            json!({"sha": COMMIT, "siblings": [
                {"rfilename": "adapter_config.json"}, {"rfilename": "adapter_model.safetensors"}]})
            .to_string(),
        ),
        false => Answer::ok(noise(5000)).without_length(),
    });
    let (reason, _, _) = fetch_error(
        limited(&server)
            .fetch_adapter(&hub("org/name"), None, &Silent)
            .unwrap_err(),
    );
    assert!(reason.contains("too large"), "{reason}");
}

#[test]
fn a_public_repository_is_served_from_the_cache_when_the_hub_is_away() {
    let folder = tempfile::tempdir().unwrap();
    let server = Repo::adapter(b"weights").serve();
    let online = sources(at(&server, folder.path()));
    let files = online.fetch_adapter(&hub("org/name"), None, &Silent).unwrap();
    server.close();
    let noted = Noted::default();
    for credential in [None, Some("hf_any")] {
        assert_eq!(
            online
                .fetch_adapter(&hub("org/name"), credential, &noted)
                .unwrap(),
            files
        );
        online.check_access(&hub("org/name"), credential).unwrap();
    }
    assert!(noted.said().contains(&COMMIT[..12]), "{}", noted.said());

    let offline = sources(SourcesConfig {
        offline: true,
        ..at(&server, folder.path())
    });
    assert_eq!(
        offline.fetch_adapter(&hub("org/name"), None, &Silent).unwrap(),
        files
    );
    offline
        .fetch_adapter(&hub("org/other"), None, &Silent)
        .unwrap_err();
}

#[test]
fn what_the_hubs_own_tools_have_is_not_fetched_again() {
    let folder = tempfile::tempdir().unwrap();
    let server = Repo::adapter(b"weights").serve();
    // The layout of huggingface_hub: blobs, and links to them by commit and name.
    let repo = folder.path().join("hub/models--org--name");
    let snapshot = repo.join("snapshots").join(COMMIT);
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::create_dir_all(repo.join("blobs")).unwrap();
    std::fs::create_dir_all(repo.join("refs")).unwrap();
    std::fs::write(repo.join("refs/main"), COMMIT).unwrap();
    for (name, bytes) in [
        ("adapter_config.json", &br#"{"r": 8}"#[..]),
        ("adapter_model.safetensors", b"weights"),
    ] {
        std::fs::write(repo.join("blobs").join(name), bytes).unwrap();
        std::os::unix::fs::symlink(format!("../../blobs/{name}"), snapshot.join(name)).unwrap();
    }
    let config = SourcesConfig {
        hub_cache: Some(folder.path().join("hub")),
        ..at(&server, folder.path())
    };
    let files = sources(config.clone())
        .fetch_adapter(&hub("org/name"), None, &Silent)
        .unwrap();
    assert_eq!(files, Files::Folder(snapshot.clone()));
    assert_eq!(server.count("/resolve/"), 0);

    // Without the network too, and without having seen the hub before.
    let offline = SourcesConfig {
        offline: true,
        cache: folder.path().join("another"),
        ..config.clone()
    };
    let offline = sources(offline);
    assert!(offline.cached(&hub("org/name")));
    assert_eq!(
        offline.fetch_adapter(&hub("org/name"), None, &Silent).unwrap(),
        files
    );
    // It is the operator's: a caller's credential says nothing of it while the hub cannot be asked.
    offline
        .fetch_adapter(&hub("org/name"), Some("hf_any"), &Silent)
        .unwrap_err();

    // A file that is cut short there is not taken.
    std::fs::write(repo.join("blobs/adapter_model.safetensors"), b"wei").unwrap();
    let files = sources(config)
        .fetch_adapter(&hub("org/name"), None, &Silent)
        .unwrap();
    assert_ne!(files, Files::Folder(snapshot));
    assert_eq!(read(&files, "adapter_model.safetensors"), b"weights");
}

#[test]
fn a_model_in_shards_comes_whole_and_nothing_else_of_the_repository() {
    let folder = tempfile::tempdir().unwrap();
    let index = json!({"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}});
    let repo = Repo {
        files: vec![
            ("config.json", b"{}".to_vec()),
            ("model-00001-of-00002.safetensors", noise(100)),
            ("model-00002-of-00002.safetensors", noise(200)),
            ("model.safetensors.index.json", index.to_string().into_bytes()),
            ("onnx/model.onnx", noise(300)),
            ("pytorch_model.bin", noise(400)),
            ("tokenizer.json", b"{}".to_vec()),
        ],
        ..Repo::adapter(b"")
    };
    let server = repo.serve();
    let Files::Folder(files) = sources(at(&server, folder.path()))
        .fetch_model(&hub("org/name"), &Silent)
        .unwrap()
    else {
        panic!("a folder");
    };
    let mut names: Vec<_> = files
        .read_dir()
        .unwrap()
        .map(|item| item.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json"
        ]
    );
}

#[test]
fn plain_http_to_another_machine_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let sources = sources(SourcesConfig {
        hub_endpoint: "http://hub.example".to_owned(),
        hub_token: Some("hf_secret".to_owned()),
        ..config(folder.path())
    });
    let (reason, _, _) = fetch_error(
        sources
            .fetch_adapter(&hub("org/name"), None, &Silent)
            .unwrap_err(),
    );
    assert!(
        reason.contains("https") && !reason.contains("hf_secret"),
        "{reason}"
    );
}
