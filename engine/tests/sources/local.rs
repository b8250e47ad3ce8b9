//! Local paths: inside the allowed roots, and nothing said of what lies outside.

use std::{fs, os::unix::fs::symlink, path::Path};

use heddle_engine::hub::{Files, Silent, Source, SourcesConfig};

use crate::{config, fetch_error, sources};

fn adapter(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("adapter_config.json"), "{}").unwrap();
    fs::write(folder.join("adapter_model.safetensors"), "weights").unwrap();
}

fn local(path: impl AsRef<Path>) -> Source {
    Source::Local(path.as_ref().to_owned())
}

fn rooted(folder: &Path) -> SourcesConfig {
    SourcesConfig {
        local_roots: vec![folder.join("allowed")],
        ..config(folder)
    }
}

#[test]
fn a_path_is_found_inside_a_root() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    let inside = folder.join("allowed/team/a");
    adapter(&inside);
    let sources = sources(rooted(&folder));
    let files = Files::Folder(inside.clone());
    for path in [
        inside.clone(),
        "team/a".into(),
        folder.join("allowed/x/../team/a"),
    ] {
        // `x` has to exist for `..` to lead out of it.
        fs::create_dir_all(folder.join("allowed/x")).unwrap();
        assert_eq!(
            sources.fetch_adapter(&local(&path), None, &Silent).unwrap(),
            files,
            "{}",
            path.display()
        );
        sources.check_access(&local(&path), None).unwrap();
        assert!(sources.cached(&local(&path)));
    }
    // A link that stays inside is fine.
    symlink(&inside, folder.join("allowed/link")).unwrap();
    assert_eq!(
        sources.fetch_adapter(&local("link"), None, &Silent).unwrap(),
        files
    );

    fs::write(folder.join("allowed/model.gguf"), "GGUF").unwrap();
    let model = sources.fetch_model(&local("model.gguf"), &Silent).unwrap();
    assert_eq!(model, Files::Gguf(folder.join("allowed/model.gguf")));
}

#[test]
fn nothing_leads_out_and_nothing_is_told_of_outside() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    adapter(&folder.join("allowed/a"));
    adapter(&folder.join("outside/a"));
    // A name that begins like a root is not inside it.
    adapter(&folder.join("allowed-not/a"));
    symlink(folder.join("outside/a"), folder.join("allowed/link")).unwrap();
    let sources = sources(rooted(&folder));
    let mut reasons = Vec::new();
    for path in [
        folder.join("outside/a"),
        folder.join("allowed-not/a"),
        folder.join("allowed/link"),
        folder.join("allowed/../outside/a"),
        "../outside/a".into(),
        "link".into(),
        folder.join("nothing"),
        "nothing".into(),
        "/etc/passwd".into(),
    ] {
        let error = sources.fetch_adapter(&local(&path), None, &Silent).unwrap_err();
        let (reason, not_found, forbidden) = fetch_error(error);
        assert!(not_found && !forbidden, "{}", path.display());
        assert!(
            reason.contains(folder.join("allowed").to_str().unwrap()),
            "{reason}"
        );
        reasons.push(reason);
        sources.check_access(&local(&path), None).unwrap_err();
    }
    // What is there and what is not sound the same.
    reasons.dedup();
    assert_eq!(reasons.len(), 1, "{reasons:#?}");

    // A file of the folder that leads out.
    let sly = folder.join("allowed/sly");
    adapter(&sly);
    fs::remove_file(sly.join("adapter_config.json")).unwrap();
    symlink("/etc/passwd", sly.join("adapter_config.json")).unwrap();
    let (reason, ..) = fetch_error(sources.fetch_adapter(&local(&sly), None, &Silent).unwrap_err());
    assert!(reason.contains("adapter_config.json"), "{reason}");
}

#[test]
fn what_is_no_model_or_adapter_is_said_so() {
    let folder = tempfile::tempdir().unwrap();
    let allowed = folder.path().join("allowed");
    adapter(&allowed.join("a"));
    fs::write(allowed.join("notes.txt"), "notes").unwrap();
    fs::create_dir(allowed.join("empty")).unwrap();
    let strict = sources(SourcesConfig {
        adapter_size_limit: 5,
        ..rooted(folder.path())
    });
    for (adapter, path, part) in [
        (false, "a", "`config.json`"),
        (false, "notes.txt", ".gguf"),
        (true, "notes.txt", "folder"),
        (true, "empty", "adapter_config.json"),
        (true, "a", "too large"),
    ] {
        let error = match adapter {
            true => strict.fetch_adapter(&local(path), None, &Silent),
            false => strict.fetch_model(&local(path), &Silent),
        };
        let (reason, ..) = fetch_error(error.unwrap_err());
        assert!(reason.contains(part), "{path}: {reason}");
    }
    let (reason, not_found, _) = fetch_error(
        sources(config(folder.path()))
            .fetch_adapter(&local(&allowed), None, &Silent)
            .unwrap_err(),
    );
    assert!(
        not_found && reason.contains("no local folder is allowed"),
        "{reason}"
    );
}

#[test]
fn what_the_operator_names_is_allowed_with_its_links() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    adapter(&folder.join("blobs"));
    let snapshot = folder.join("snapshot");
    fs::create_dir(&snapshot).unwrap();
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        symlink(format!("../blobs/{name}"), snapshot.join(name)).unwrap();
    }
    let mut config = config(&folder);
    config.allow(&local(&snapshot)).unwrap();
    config.allow(&"hub:org/name".parse().unwrap()).unwrap();
    config.allow(&local(folder.join("nothing"))).unwrap_err();
    let sources = sources(config);
    assert_eq!(
        sources.fetch_adapter(&local(&snapshot), None, &Silent).unwrap(),
        Files::Folder(snapshot)
    );
    sources
        .fetch_adapter(&local(folder.join("blobs")), None, &Silent)
        .unwrap_err();
}
