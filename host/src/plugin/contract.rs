//! What a file is, before anything in it runs: a component, its exports (the roles it fills) and its imports (what it
//! asks for), held against the contract and the operator's grants.

use serde::{Deserialize, Serialize};
use wasmparser::{Encoding, Parser, Payload};
use wasmtime::{Engine, Precompiled};

use super::grants::Grants;

/// The package that plugins are built against.
const PACKAGE: &str = "heddle:plugin";
/// The version of [`PACKAGE`] that this host speaks.
pub(super) const VERSION: &str = "0.1.0";
/// The largest component, in bytes. Guests with a whole Python inside have about 20 MiB.
pub const MAX_COMPONENT_BYTES: usize = 64 << 20;

/// Interfaces that every plugin may import: they give access to the request that it is called for.
const BY_ROLE: [&str; 3] = ["http", "access", "generation"];

/// What a component can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Decides who may do what.
    Auth,
    /// Speaks an API.
    Protocol,
    /// Finds stop sequences.
    Stop,
}

impl Role {
    const ALL: [Self; 3] = [Self::Auth, Self::Protocol, Self::Stop];

    /// The interface's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auth => "auth",
            Self::Protocol => "protocol",
            Self::Stop => "stop",
        }
    }
}

/// The outside of a component.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Shape {
    pub imports: Vec<String>,
    pub exports: Vec<String>,
    pub roles: Vec<Role>,
}

/// Reads the outside of a component. The error is a sentence: what was expected, what was found.
pub(super) fn read(bytes: &[u8]) -> Result<Shape, String> {
    check_kind(bytes)?;
    let mut shape = Shape::default();
    let mut depth = 0;
    for payload in Parser::new(0).parse_all(bytes) {
        match payload.map_err(|error| format!("the file is damaged or cut off: {error}"))? {
            Payload::Version {
                encoding: Encoding::Module | Encoding::Component,
                ..
            } => depth += 1,
            Payload::End(_) => depth -= 1,
            Payload::ComponentImportSection(section) if depth == 1 => {
                for import in section {
                    let import = import.map_err(|error| format!("the imports cannot be read: {error}"))?;
                    shape.imports.push(import.name.name.to_owned());
                }
            }
            Payload::ComponentExportSection(section) if depth == 1 => {
                for export in section {
                    let export = export.map_err(|error| format!("the exports cannot be read: {error}"))?;
                    shape.exports.push(export.name.name.to_owned());
                }
            }
            _ => {}
        }
    }
    check_versions(&shape)?;
    let exported = |name: &str| {
        shape
            .exports
            .iter()
            .any(|export| ours(export).is_some_and(|(n, _)| n == name))
    };
    if !exported("lifecycle") {
        return Err(format!(
            "the component does not export `{PACKAGE}/lifecycle`, which every plugin must; it exports {}",
            list(&shape.exports)
        ));
    }
    shape.roles = Role::ALL
        .into_iter()
        .filter(|role| exported(role.name()))
        .collect();
    if shape.roles.is_empty() {
        return Err(format!(
            "the component fills no role: it must export at least one of `{PACKAGE}/auth`, `{PACKAGE}/protocol` and \
             `{PACKAGE}/stop`; it exports {}",
            list(&shape.exports)
        ));
    }
    Ok(shape)
}

/// Whether everything that is imported is known and granted. The error names all that is not.
pub(super) fn check_imports(shape: &Shape, grants: Grants, slot: &str) -> Result<(), String> {
    let mut denied = Vec::new();
    let mut wasi = Vec::new();
    let mut unknown = Vec::new();
    for import in &shape.imports {
        match ours(import) {
            Some((name, _)) if BY_ROLE.contains(&name) => {}
            Some((name, _)) => match grants.of_interface(name) {
                Some(true) => {}
                Some(false) => denied.push(name.to_owned()),
                None => unknown.push(import.clone()),
            },
            None if import.starts_with("wasi:") => wasi.push(import.clone()),
            None => unknown.push(import.clone()),
        }
    }
    let mut faults = Vec::new();
    if !denied.is_empty() {
        faults.push(format!(
            "it imports {}, which is not granted: add the name to `grants` of `[plugins.slots.{slot}]` (granted now: \
             {grants})",
            list(&denied)
        ));
    }
    if !wasi.is_empty() {
        faults.push(format!(
            "it imports {} of WASI, which this host does not provide: `wasi = \"inert\"` will grant an empty one once \
             it exists; until then build for wasm32-unknown-unknown, or stub WASI out in the guest's toolchain",
            list(&wasi)
        ));
    }
    if !unknown.is_empty() {
        faults.push(format!(
            "it imports {}, which this host does not know",
            list(&unknown)
        ));
    }
    if faults.is_empty() {
        Ok(())
    } else {
        Err(faults.join("; "))
    }
}

fn check_kind(bytes: &[u8]) -> Result<(), String> {
    if bytes.len() > MAX_COMPONENT_BYTES {
        return Err(format!(
            "the file has {} bytes; a component may have {MAX_COMPONENT_BYTES}",
            bytes.len()
        ));
    }
    if let Some(Precompiled::Component | Precompiled::Module) = Engine::detect_precompiled(bytes) {
        return Err(
            "the file is precompiled native code, which is never loaded: give the component it was made from"
                .into(),
        );
    }
    // The preamble: "\0asm", a version, a layer (0 for a core module, 1 for a component).
    match bytes {
        [] => Err("the file is empty".into()),
        [0, b'a', b's', b'm', _, _, 1, 0, ..] => Ok(()),
        [0, b'a', b's', b'm', _, _, 0, 0, ..] => Err(
            "the file is a core WebAssembly module, not a component: make one of it with wit-component \
             (`heddle plugin build` does)"
                .into(),
        ),
        [b'(', ..] => Err("the file is WebAssembly text; give the binary component".into()),
        _ => Err("the file is not a WebAssembly component: it does not begin with `\\0asm`".into()),
    }
}

/// The interface and the version of a name of our package: `heddle:plugin/auth@0.1.0`.
fn ours(name: &str) -> Option<(&str, &str)> {
    let (package, interface) = name.split_once('/')?;
    let (interface, version) = interface.split_once('@').unwrap_or((interface, ""));
    (package == PACKAGE).then_some((interface, version))
}

/// Versions match as wasmtime's linker matches them: by the first number that is not 0.
fn check_versions(shape: &Shape) -> Result<(), String> {
    let other = shape
        .imports
        .iter()
        .chain(&shape.exports)
        .find(|name| ours(name).is_some_and(|(_, version)| !compatible(version, VERSION)));
    match other {
        Some(name) => Err(format!(
            "the component was built against another version of the contract: it has `{name}`, this host speaks \
             `{PACKAGE}@{VERSION}`"
        )),
        None => Ok(()),
    }
}

fn compatible(theirs: &str, ours: &str) -> bool {
    fn key(version: &str) -> Option<(u64, u64, u64)> {
        let mut numbers = version.split('.').map(|number| number.parse().ok());
        let (major, minor, patch) = (numbers.next()??, numbers.next()??, numbers.next()??);
        Some(match (major, minor) {
            (0, 0) => (0, 0, patch),
            (0, _) => (0, minor, 0),
            _ => (major, 0, 0),
        })
    }
    key(theirs).is_some() && key(theirs) == key(ours)
}

fn list(names: &[String]) -> String {
    if names.is_empty() {
        return "nothing".into();
    }
    let names: Vec<_> = names
        .iter()
        .map(|name| format!("`{}`", super::log::printable(name, 100)))
        .collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(imports: &[&str]) -> Shape {
        Shape {
            imports: imports.iter().map(|&import| import.into()).collect(),
            ..Shape::default()
        }
    }

    #[test]
    fn what_is_no_component_is_told_what_it_is() {
        let cases: [(&[u8], &str); 5] = [
            (b"", "empty"),
            (b"\0asm\x01\0\0\0", "core WebAssembly module"),
            (b"(component)", "WebAssembly text"),
            (b"#!/bin/sh", "does not begin with"),
            (b"\x7fELF", "does not begin with"),
        ];
        for (bytes, expected) in cases {
            let error = read(bytes).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_component_without_exports_fills_no_role() {
        let empty = b"\0asm\x0d\0\x01\0";
        let error = read(empty).unwrap_err();
        assert!(
            error.contains("lifecycle") && error.contains("exports nothing"),
            "{error}"
        );
    }

    #[test]
    fn precompiled_code_is_refused() {
        let engine = &super::super::runtime::runtime().unwrap().engine;
        let code = engine.precompile_component(b"\0asm\x0d\0\x01\0").unwrap();
        assert!(read(&code).unwrap_err().contains("precompiled"));
    }

    #[test]
    fn imports_are_held_against_the_grants() {
        let log = shape(&["heddle:plugin/log@0.1.0", "heddle:plugin/http@0.1.0"]);
        assert_eq!(check_imports(&log, Grants::default(), "a"), Ok(()));
        let error = check_imports(&log, Grants::NONE, "a").unwrap_err();
        assert!(
            error.contains("`log`") && error.contains("[plugins.slots.a]"),
            "{error}"
        );

        let many = shape(&[
            "wasi:cli/environment@0.2.9",
            "heddle:plugin/random@0.1.0",
            "x:y/z@1.0.0",
        ]);
        let error = check_imports(&many, Grants::default(), "a").unwrap_err();
        for part in [
            "`random`",
            "`wasi:cli/environment@0.2.9`",
            "wasi = \"inert\"",
            "`x:y/z@1.0.0`",
        ] {
            assert!(error.contains(part), "{part} in {error}");
        }
    }

    #[test]
    fn versions_match_by_semver() {
        // Below 1.0 the minor version is the one that breaks.
        assert!(compatible("0.1.7", "0.1.0"));
        assert!(!compatible("0.2.0", "0.1.0"));
        assert!(compatible("1.4.0", "1.0.0"));
        assert!(!compatible("", "0.1.0"));
        assert!(!compatible("0.1.0-rc.1", "0.1.0"));
    }
}
