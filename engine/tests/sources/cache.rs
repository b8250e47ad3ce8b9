//! The cache: its limit, entries in use, damage, several at once.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, SystemTime},
};

use heddle_engine::hub::{Files, Silent, SourcesConfig};
use serde_json::json;

use crate::{
    Noted, config, fetch_error,
    hub::{COMMIT, Repo, hub},
    noise, read,
    server::{Answer, Server},
    sources,
};

/// A hub with any repository `org/NAME`: an adapter or a model of 1000 bytes and a little, unlike any other.
fn any_repository() -> Server {
    Server::start(|request| {
        let file = |name: &str, size: usize| json!({"rfilename": name, "size": size});
        let name = request.target.split('/').nth(2).unwrap().to_owned();
        match request.target.rsplit('/').next().unwrap() {
            _ if request.target.starts_with("/api/") => Answer::ok(
                json!({"sha": COMMIT, "private": false, "gated": false, "siblings": [
                    file("config.json", 2), file("model.safetensors", 1000),
                    file("adapter_config.json", 2), file("adapter_model.safetensors", 1000)]})
                .to_string(),
            ),
            "config.json" | "adapter_config.json" => Answer::ok("{}"),
            _ => Answer::ok([name.as_bytes(), &noise(1000 - name.len())].concat()),
        }
    })
}

fn at(server: &Server, folder: &Path) -> SourcesConfig {
    SourcesConfig {
        hub_endpoint: server.address(),
        ..config(folder)
    }
}

/// The entry's folder, as `cache.rs` documents it.
fn entry(files: &Files) -> PathBuf {
    let Files::Folder(folder) = files else {
        panic!("{files:?}");
    };
    folder.parent().unwrap().to_owned()
}

/// Sets the time of the last use.
fn used(files: &Files, ago: u64) {
    let manifest = fs::File::options()
        .write(true)
        .open(entry(files).join("entry.json"))
        .unwrap();
    manifest
        .set_modified(SystemTime::now() - Duration::from_secs(ago))
        .unwrap();
}

#[test]
fn the_longest_unused_entry_goes_first() {
    let folder = tempfile::tempdir().unwrap();
    let server = any_repository();
    let sources = sources(SourcesConfig {
        cache_limit: 3500,
        ..at(&server, folder.path())
    });
    let fetch = |name: &str| sources.fetch_adapter(&hub(&format!("org/{name}")), None, &Silent);
    let cached = |name: &str| sources.cached(&hub(&format!("org/{name}")));
    let [a, b, c] = ["a", "b", "c"].map(|name| fetch(name).unwrap());
    used(&a, 1000);
    used(&b, 3000);
    used(&c, 2000);
    // A use counts.
    fetch("b").unwrap();
    fetch("d").unwrap();
    assert!(!entry(&c).exists() && entry(&a).exists() && entry(&b).exists());
    // `cached` counts as a use too: `a` was looked at last.
    assert!(!cached("c") && cached("d") && cached("b") && cached("a"));

    // All are in use, or were a moment ago: what comes has to wait.
    let (reason, ..) = fetch_error(fetch("e").unwrap_err());
    assert!(reason.contains("full"), "{reason}");
    used(&a, 61);
    fetch("e").unwrap();
    assert!(!entry(&a).exists());
}

#[test]
fn a_model_in_use_stays_even_for_another_process() {
    let folder = tempfile::tempdir().unwrap();
    let server = any_repository();
    let limited = SourcesConfig {
        cache_limit: 1500,
        ..at(&server, folder.path())
    };
    let serving = sources(limited.clone());
    let model = serving.fetch_model(&hub("org/model"), &Silent).unwrap();
    used(&model, 1000);
    // Locks are between open files, so a second opening stands for a second process.
    let other = sources(limited.clone());
    let fetch = || other.fetch_adapter(&hub("org/a"), None, &Silent);
    assert!(fetch_error(fetch().unwrap_err()).0.contains("in use"));
    drop(serving);
    used(&model, 1000);
    fetch().unwrap();
    assert!(!entry(&model).exists());

    let tiny = sources(SourcesConfig {
        cache_limit: 500,
        ..limited
    });
    let (reason, ..) = fetch_error(tiny.fetch_adapter(&hub("org/b"), None, &Silent).unwrap_err());
    assert!(reason.contains("whole cache"), "{reason}");
}

#[test]
fn a_damaged_entry_is_fetched_again() {
    let folder = tempfile::tempdir().unwrap();
    let server = any_repository();
    let source = hub("org/a");
    let fetch = || {
        sources(at(&server, folder.path()))
            .fetch_adapter(&source, None, &Silent)
            .unwrap()
    };
    let files = fetch();
    let weights = entry(&files).join("files/adapter_model.safetensors");
    let whole = fs::read(&weights).unwrap();
    let damage: [&dyn Fn(); 4] = [
        &|| fs::write(&weights, &whole[1..]).unwrap(),
        // The same size: only the hash shows it.
        &|| fs::write(&weights, vec![0; whole.len()]).unwrap(),
        &|| fs::remove_file(&weights).unwrap(),
        &|| fs::write(entry(&files).join("entry.json"), "{").unwrap(),
    ];
    for damage in damage {
        damage();
        assert!(!sources(at(&server, folder.path())).cached(&source));
        assert_eq!(read(&fetch(), "adapter_model.safetensors"), whole);
    }
}

#[test]
fn only_its_owner_may_look_into_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let server = any_repository();
    let files = sources(at(&server, folder.path()))
        .fetch_adapter(&hub("org/a"), None, &Silent)
        .unwrap();
    let cache = folder.path().join("cache");
    for path in [
        cache.clone(),
        cache.join("entries"),
        cache.join("partial"),
        entry(&files),
    ] {
        assert_eq!(
            path.metadata().unwrap().permissions().mode() & 0o777,
            0o700,
            "{}",
            path.display()
        );
    }
}

/// A hub that takes its time over the weights.
fn slow() -> Server {
    let repo = Repo::adapter(&noise(100_000));
    Server::start(
        move |request| match request.target.ends_with("adapter_model.safetensors") {
            true => repo.answer(request).after(Duration::from_millis(200)),
            false => repo.answer(request),
        },
    )
}

#[test]
fn threads_that_want_the_same_fetch_it_once() {
    let folder = tempfile::tempdir().unwrap();
    let server = slow();
    let sources = sources(at(&server, folder.path()));
    let noted = Noted::default();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let files = sources.fetch_adapter(&hub("org/name"), None, &noted).unwrap();
                assert_eq!(read(&files, "adapter_model.safetensors"), noise(100_000));
            });
        }
    });
    assert_eq!(server.count("adapter_model.safetensors"), 1);
    assert!(noted.said().contains("waiting"), "{}", noted.said());
}

/// This test runs itself as the other processes.
#[test]
fn processes_that_want_the_same_fetch_it_once() {
    const HUB: &str = "SOURCES_TEST_HUB";
    const FOLDER: &str = "SOURCES_TEST_FOLDER";
    if let (Ok(hub_endpoint), Ok(folder)) = (std::env::var(HUB), std::env::var(FOLDER)) {
        let config = SourcesConfig {
            hub_endpoint,
            ..config(Path::new(&folder))
        };
        let files = sources(config)
            .fetch_adapter(&hub("org/name"), None, &Silent)
            .unwrap();
        assert_eq!(read(&files, "adapter_model.safetensors"), noise(100_000));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = slow();
    let start = || {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "cache::processes_that_want_the_same_fetch_it_once"])
            .env(HUB, server.address())
            .env(FOLDER, folder.path())
            .output()
            .unwrap()
    };
    thread::scope(|scope| {
        let children = [(); 3].map(|()| scope.spawn(start));
        for child in children {
            let output = child.join().unwrap();
            assert!(
                output.status.success(),
                "{}",
                String::from_utf8_lossy(&output.stdout)
            );
        }
    });
    assert_eq!(server.count("adapter_model.safetensors"), 1);
}
