//! Builds the components, so that the same sources give the same bytes on any machine with the same toolchain.
//!
//! A package of the workspace `plugins/` says in its `[package.metadata.heddle]` what is made of it:
//! `component = "NAME"` goes to `plugins/dist/NAME.wasm`, which the binary embeds; `fixture = "NAME"` goes to
//! `tests/components/NAME.wasm`; `twin = true` adds the fixture `NAME-b`, the same sources under another version.
//! Beside the components stands a `manifest.json` that ties each one to its sources.

mod manifest;
mod package;
mod toolchain;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, Result, bail, ensure};
use wit_component::{ComponentEncoder, DecodedWasm};
use wit_parser::{IndexMap, World, WorldItem, WorldKey};

use manifest::{Entry, Manifest};
use package::Package;
use toolchain::Toolchain;

/// Where components go, relative to the repository.
const FOLDERS: [&str; 2] = ["plugins/dist", "tests/components"];

/// A component to build.
struct Component {
    name: String,
    /// One of [`FOLDERS`].
    folder: &'static str,
    package: Package,
    /// Build metadata of its version: what stands behind the `+`.
    build_metadata: Option<&'static str>,
}

impl Component {
    fn file(&self) -> String {
        format!("{}/{}.wasm", self.folder, self.name)
    }

    fn entry(&self, root: &Path, component: &[u8]) -> Result<Entry> {
        Ok(Entry {
            version: match self.build_metadata {
                Some(metadata) => format!("{}+{metadata}", self.package.version),
                None => self.package.version.clone(),
            },
            sources: manifest::hash_sources(root, &self.package.folders)?,
            sha256: manifest::sha256(component),
            bytes: component.len(),
            imports: interfaces(component, |world| &world.imports)?,
            exports: interfaces(component, |world| &world.exports)?,
        })
    }
}

/// Builds and writes.
pub(crate) fn build(names: &[String]) -> Result<()> {
    let root = root()?;
    let toolchain = Toolchain::find(&root)?;
    let (all, chosen) = choose(&root, names)?;
    let mut manifests = BTreeMap::new();
    for folder in FOLDERS {
        fs::create_dir_all(root.join(folder))?;
        let mut manifest = Manifest::default();
        if !names.is_empty() {
            manifest = Manifest::read(&root.join(folder))?.unwrap_or_default();
            ensure!(
                manifest.components.is_empty() || manifest.toolchain == toolchain.identity,
                "{folder} was built with {}, this is {}: build all components, not only {}",
                manifest.toolchain,
                toolchain.identity,
                names.join(", ")
            );
        }
        manifest.toolchain = toolchain.identity.clone();
        manifest
            .components
            .retain(|name, _| all.iter().any(|c| c.folder == folder && c.name == *name));
        manifests.insert(folder, manifest);
    }
    for stray in strays(&root)? {
        eprintln!("removing {stray}: it belongs to no package of plugins/");
        fs::remove_file(root.join(stray))?;
    }
    for (i, component) in chosen.iter().enumerate() {
        let bytes = make(&toolchain, &root, component, i, chosen.len())?;
        let manifest = manifests.entry(component.folder).or_default();
        manifest
            .components
            .insert(component.name.clone(), component.entry(&root, &bytes)?);
        manifest::write(&root.join(component.file()), &bytes)?;
    }
    for (folder, manifest) in manifests {
        manifest.write(&root.join(folder))?;
    }
    Ok(())
}

/// Builds, and compares with what is committed.
pub(crate) fn check(names: &[String]) -> Result<()> {
    let root = root()?;
    let toolchain = Toolchain::find(&root)?;
    let (_, chosen) = choose(&root, names)?;
    let fresh = tempfile::tempdir()?;
    let mut differing = Vec::new();
    for (i, component) in chosen.iter().enumerate() {
        let bytes = make(&toolchain, &root, component, i, chosen.len())?;
        let committed = fs::read(root.join(component.file())).unwrap_or_default();
        let entry = Manifest::read(&root.join(component.folder))?
            .and_then(|manifest| manifest.components.get(&component.name).cloned());
        if bytes != committed || entry != Some(component.entry(&root, &bytes)?) {
            let path = fresh.path().join(component.file());
            fs::create_dir_all(path.parent().context("a component has a folder")?)?;
            fs::write(&path, &bytes)?;
            differing.push(component.file());
        }
    }
    let strays = strays(&root)?;
    if differing.is_empty() && strays.is_empty() {
        eprintln!("{} components are what their sources give", chosen.len());
        return Ok(());
    }
    let mut message = String::new();
    for file in &differing {
        message += &format!("{file} (or its line in manifest.json) is not what its sources give\n");
    }
    for file in &strays {
        message += &format!("{file} belongs to no package of plugins/\n");
    }
    for folder in FOLDERS {
        if let Some(manifest) = Manifest::read(&root.join(folder))?
            && manifest.toolchain != toolchain.identity
        {
            message += &format!(
                "note: {folder} was built with {}, this is {}: bytes of different toolchains differ\n",
                manifest.toolchain, toolchain.identity
            );
        }
    }
    if !differing.is_empty() {
        message += &format!("what was built now: {}\n", fresh.keep().display());
    }
    bail!("{message}run `cargo run -p xtask -- plugins` and commit what it writes");
}

/// Compares hashes of sources with the manifests.
pub(crate) fn check_sources(names: &[String]) -> Result<()> {
    let root = root()?;
    let (_, chosen) = choose(&root, names)?;
    let mut stale = Vec::new();
    for component in &chosen {
        let committed = fs::read(root.join(component.file())).unwrap_or_default();
        let entry = Manifest::read(&root.join(component.folder))?
            .and_then(|manifest| manifest.components.get(&component.name).cloned());
        if entry != Some(component.entry(&root, &committed)?) {
            stale.push(component.file());
        }
    }
    stale.extend(strays(&root)?);
    ensure!(
        stale.is_empty(),
        "not built from the present sources: {}; run `cargo run -p xtask -- plugins`",
        stale.join(", ")
    );
    eprintln!("{} components belong to the present sources", chosen.len());
    Ok(())
}

/// The module by cargo, and the component of it.
fn make(
    toolchain: &Toolchain,
    root: &Path,
    component: &Component,
    done: usize,
    total: usize,
) -> Result<Vec<u8>> {
    let start = Instant::now();
    eprintln!("[{}/{total}] {}", done + 1, component.file());
    let module = toolchain.compile(root, &component.package, component.build_metadata)?;
    let component_bytes = ComponentEncoder::default()
        .validate(true)
        .module(&module)
        .and_then(|mut encoder| encoder.encode())
        .with_context(|| {
            format!(
                "{} compiles, but is not a component of the contract",
                component.name
            )
        })?;
    eprintln!(
        "      {} KB in {:.1} s, imports {}",
        component_bytes.len().div_ceil(1000),
        start.elapsed().as_secs_f32(),
        interfaces(&component_bytes, |world| &world.imports)?.join(", ")
    );
    Ok(component_bytes)
}

/// What a component imports or exports, by name.
fn interfaces(
    component: &[u8],
    side: impl Fn(&World) -> &IndexMap<WorldKey, WorldItem>,
) -> Result<Vec<String>> {
    match wit_component::decode(component)? {
        DecodedWasm::Component(resolve, world) => Ok(side(&resolve.worlds[world])
            .keys()
            .map(|key| resolve.name_world_key(key))
            .collect()),
        DecodedWasm::WitPackage(..) => bail!("a package of WIT is not a component"),
    }
}

/// All components, and those with these names (all, if there are none).
fn choose(root: &Path, names: &[String]) -> Result<(Vec<Component>, Vec<Component>)> {
    let all = components(root)?;
    for name in names {
        ensure!(
            all.iter().any(|component| component.name == *name),
            "there is no component `{name}`; there are {}",
            all.iter()
                .map(|component| component.name.as_str())
                .collect::<Vec<_>>()
                .join(", ")
        );
    }
    let chosen = components(root)?
        .into_iter()
        .filter(|c| names.is_empty() || names.contains(&c.name))
        .collect();
    Ok((all, chosen))
}

fn components(root: &Path) -> Result<Vec<Component>> {
    let mut components = Vec::new();
    for package in package::packages(root)? {
        let mut add = |name: String, folder, build_metadata| {
            components.push(Component {
                name,
                folder,
                package: package.clone(),
                build_metadata,
            });
        };
        if let Some(name) = &package.made.component {
            add(name.clone(), FOLDERS[0], None);
            if package.made.twin {
                add(format!("{name}-b"), FOLDERS[1], Some("b"));
            }
        }
        if let Some(name) = &package.made.fixture {
            add(name.clone(), FOLDERS[1], None);
        }
    }
    components.sort_by(|a, b| (a.folder, &a.name).cmp(&(b.folder, &b.name)));
    Ok(components)
}

/// Components in the folders that no package gives.
fn strays(root: &Path) -> Result<Vec<String>> {
    let expected: Vec<PathBuf> = components(root)?.iter().map(|c| root.join(c.file())).collect();
    let mut strays = Vec::new();
    for folder in FOLDERS {
        for file in fs::read_dir(root.join(folder)).with_context(|| format!("reading {folder}"))? {
            let path = file?.path();
            if path.extension().is_some_and(|extension| extension == "wasm") && !expected.contains(&path) {
                strays.push(path.strip_prefix(root)?.display().to_string());
            }
        }
    }
    Ok(strays)
}

/// The repository.
fn root() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("xtask/ is in the repository")?;
    Ok(root.to_owned())
}
