//! The packages of the workspace `plugins/`, as cargo sees them.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// A package that a component is made of.
#[derive(Debug, Clone)]
pub(super) struct Package {
    /// Its name in cargo.
    pub(super) name: String,
    /// Its version.
    pub(super) version: String,
    /// Its folder, and those of the packages of this workspace that it needs.
    pub(super) folders: Vec<PathBuf>,
    /// What is made of it.
    pub(super) made: Made,
}

/// `[package.metadata.heddle]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Made {
    /// A component that ships.
    pub(super) component: Option<String>,
    /// A second build of it, under another version, for the tests.
    #[serde(default)]
    pub(super) twin: bool,
    /// A component for the tests only.
    pub(super) fixture: Option<String>,
}

#[derive(Deserialize)]
struct CargoMetadata {
    packages: Vec<CargoPackage>,
}

#[derive(Deserialize)]
struct CargoPackage {
    name: String,
    version: String,
    manifest_path: PathBuf,
    dependencies: Vec<CargoDependency>,
    metadata: Option<Sections>,
}

#[derive(Deserialize)]
struct CargoDependency {
    path: Option<PathBuf>,
    kind: Option<String>,
}

#[derive(Deserialize)]
struct Sections {
    heddle: Option<Made>,
}

/// The packages that components are made of.
pub(super) fn packages(root: &Path) -> Result<Vec<Package>> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--no-deps", "--locked", "--format-version", "1"])
        .current_dir(root.join("plugins"))
        .output()
        .context("running `cargo metadata`")?;
    ensure!(
        output.status.success(),
        "`cargo metadata` failed in plugins/:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: CargoMetadata =
        serde_json::from_slice(&output.stdout).context("reading the output of `cargo metadata`")?;
    let by_folder: BTreeMap<&Path, &CargoPackage> = metadata
        .packages
        .iter()
        .filter_map(|p| Some((p.manifest_path.parent()?, p)))
        .collect();

    let mut packages = Vec::new();
    for (&folder, package) in &by_folder {
        let Some(made) = package
            .metadata
            .as_ref()
            .and_then(|sections| sections.heddle.clone())
        else {
            continue;
        };
        let mut folders = vec![folder.to_owned()];
        let mut next = 0;
        while let Some(folder) = folders.get(next) {
            let needs = by_folder
                .get(folder.as_path())
                .map(|p| p.dependencies.as_slice())
                .unwrap_or_default();
            let needs = needs.iter().filter(|d| d.kind.as_deref() != Some("dev"));
            for path in needs.filter_map(|d| d.path.clone()).collect::<Vec<_>>() {
                if !folders.contains(&path) {
                    folders.push(path);
                }
            }
            next += 1;
        }
        packages.push(Package {
            name: package.name.clone(),
            version: package.version.clone(),
            folders,
            made,
        });
    }
    Ok(packages)
}
