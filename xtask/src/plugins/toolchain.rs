//! The compiler, and how it is called so that the bytes depend on the sources only.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use super::package::Package;

/// The target of all components.
const TARGET: &str = "wasm32-unknown-unknown";

/// The compiler with its Wasm target.
pub(super) struct Toolchain {
    /// What the bytes depend on beside the sources: the compiler's version and the hash of its standard library for
    /// Wasm (distributors build that themselves, and then it differs).
    pub(super) identity: String,
    /// Flags for rustc that keep this machine's paths out of the components.
    flags: Vec<String>,
}

impl Toolchain {
    /// Finds the compiler and its Wasm target.
    pub(super) fn find(root: &Path) -> Result<Self> {
        let version = rustc(&["--version"])?;
        let library = PathBuf::from(rustc(&["--print", "target-libdir", "--target", TARGET])?);
        let mut libraries: Vec<PathBuf> = fs::read_dir(&library)
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|extension| extension == "rlib"))
            .collect();
        libraries.sort();
        ensure!(
            libraries
                .iter()
                .any(|path| path.to_string_lossy().contains("libstd-")),
            "{version} has no standard library for {TARGET} (looked in {}): run `rustup target add {TARGET}`",
            library.display()
        );
        let mut hash = Sha256::new();
        for path in &libraries {
            hash.update(Sha256::digest(fs::read(path)?));
        }
        let std = &hex::encode(hash.finalize())[..16];

        let home = match env::var_os("CARGO_HOME") {
            Some(home) => PathBuf::from(home),
            None => env::home_dir()
                .context("neither CARGO_HOME nor HOME is set")?
                .join(".cargo"),
        };
        let mut flags = vec![remap(root, "/heddle")];
        let registries = fs::read_dir(home.join("registry/src")).into_iter().flatten();
        flags.extend(registries.filter_map(|entry| Some(remap(&entry.ok()?.path(), "/deps"))));
        // With the component rust-src, rustc puts the standard library's own path in the place of this one.
        let commit = rustc(&["-vV"])?
            .lines()
            .find_map(|line| line.strip_prefix("commit-hash: ").map(str::to_owned))
            .unwrap_or_default();
        let sysroot = PathBuf::from(rustc(&["--print", "sysroot"])?);
        flags.push(remap(
            &sysroot.join("lib/rustlib/src/rust"),
            &format!("/rustc/{commit}"),
        ));
        Ok(Self {
            identity: format!("{version}, std {std}"),
            flags,
        })
    }

    /// The core module of a package.
    pub(super) fn compile(
        &self,
        root: &Path,
        package: &Package,
        build_metadata: Option<&str>,
    ) -> Result<Vec<u8>> {
        let target = root.join("plugins/target");
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo
            .args([
                "build",
                "--quiet",
                "--locked",
                "--release",
                "--lib",
                "--target",
                TARGET,
                "-p",
                &package.name,
            ])
            .current_dir(root.join("plugins"))
            .env("CARGO_TARGET_DIR", &target)
            .env("CARGO_ENCODED_RUSTFLAGS", self.flags.join("\x1f"));
        // Nothing of the caller's environment may change the bytes.
        for (name, _) in env::vars_os() {
            let text = name.to_string_lossy();
            if text == "RUSTFLAGS" || text.starts_with("CARGO_PROFILE_") || text.starts_with("CARGO_BUILD_") {
                cargo.env_remove(&name);
            }
        }
        match build_metadata {
            Some(metadata) => cargo.env("HEDDLE_BUILD", metadata),
            None => cargo.env_remove("HEDDLE_BUILD"),
        };
        let status = cargo.status().context("running `cargo build`")?;
        ensure!(
            status.success(),
            "`cargo build -p {}` failed in plugins/",
            package.name
        );
        let module = target
            .join(TARGET)
            .join("release")
            .join(format!("{}.wasm", package.name.replace('-', "_")));
        fs::read(&module).with_context(|| format!("reading {}", module.display()))
    }
}

fn remap(from: &Path, to: &str) -> String {
    format!("--remap-path-prefix={}={to}", from.display())
}

fn rustc(arguments: &[&str]) -> Result<String> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(&rustc)
        .args(arguments)
        .output()
        .context("running rustc")?;
    ensure!(
        output.status.success(),
        "`rustc {}` failed: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
