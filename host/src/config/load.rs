//! Reading the configuration: where the file lies, how the layers go over each other, what an error says.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use figment::{
    Figment, Metadata, Profile, Provider,
    error::Kind,
    providers::{Env, Serialized},
    value::{Dict, Map, Value},
};

use super::{Config, Device, Dtype, LogFormat, home};
use crate::error::{Error, Result};

/// What the command line says. What is not given leaves the layers below as they are.
#[derive(Debug, Clone, Default)]
pub struct Flags {
    /// `--config`, which the variable `HEDDLE_CONFIG` stands in for.
    pub config: Option<PathBuf>,
    /// The model.
    pub model: Option<String>,
    /// `--adapter NAME=SOURCE`
    pub adapters: BTreeMap<String, String>,
    /// `--host`
    pub host: Option<std::net::IpAddr>,
    /// `--port`
    pub port: Option<u16>,
    /// `--context`
    pub context: Option<usize>,
    /// `--kv-cache`
    pub kv_cache_mib: Option<usize>,
    /// `--device`
    pub device: Option<Device>,
    /// `--dtype`
    pub dtype: Option<Dtype>,
    /// `--kernels`
    pub kernels: Option<String>,
    /// `--threads`
    pub threads: Option<usize>,
    /// `--log-level`
    pub log_level: Option<String>,
    /// `--log-format`
    pub log_format: Option<LogFormat>,
}

/// A configuration and where it came from.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// The file that was read, if any.
    pub file: Option<PathBuf>,
}

/// Reads the configuration: flags over `HEDDLE_*` variables over the file over the defaults.
///
/// The file is `--config` (or `HEDDLE_CONFIG`), or `./heddle.toml`, or `/etc/heddle/heddle.toml`; the last two may be
/// missing. Relative paths in it are relative to its folder; elsewhere they are relative to the working directory.
///
/// # Errors
/// [`Error::Config`] names the key, and the file or the variable that it stands in.
pub fn load(flags: &Flags) -> Result<Loaded> {
    let usual = || USUAL_PLACES.iter().map(PathBuf::from).find(|path| path.is_file());
    let file = flags.config.clone().or_else(usual);
    let mut figment = Figment::new();
    if let Some(path) = &file {
        figment = figment.merge(File::read(path)?);
    }
    // A variable without `__` is no key: Kubernetes sets `HEDDLE_PORT` and the like for a service called `heddle`.
    figment = figment.merge(
        Env::prefixed("HEDDLE_")
            .filter(|key| key.as_str().contains("__"))
            .split("__"),
    );
    figment = flags.over(figment);
    let config = figment
        .extract()
        .map_err(|error| Error::Config(describe(error)))?;
    Ok(Loaded { config, file })
}

impl Flags {
    fn over(&self, mut figment: Figment) -> Figment {
        let mut set = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                figment = std::mem::take(&mut figment).merge(Serialized::default(key, value));
            }
        };
        set("model.name", self.model.clone().map(Value::from));
        set("server.host", self.host.map(|host| host.to_string().into()));
        set("server.port", self.port.map(Value::from));
        set("model.context", self.context.map(Value::from));
        set("model.kv_cache_mib", self.kv_cache_mib.map(Value::from));
        set("model.threads", self.threads.map(Value::from));
        set("model.device", self.device.as_ref().map(value_name));
        set("model.dtype", self.dtype.as_ref().map(value_name));
        set("model.kernels", self.kernels.clone().map(Value::from));
        set("log.level", self.log_level.clone().map(Value::from));
        set("log.format", self.log_format.as_ref().map(value_name));
        if !self.adapters.is_empty() {
            // As one table: a name may hold a dot.
            set("adapters", Value::serialize(&self.adapters).ok());
        }
        figment
    }
}

/// The name of a choice, as flags, variables and the file spell it alike.
fn value_name<T: clap::ValueEnum>(value: &T) -> Value {
    let name = value.to_possible_value().map(|value| value.get_name().to_owned());
    name.unwrap_or_default().into()
}

/// Where the file is looked for that nobody named.
const USUAL_PLACES: [&str; 2] = ["heddle.toml", "/etc/heddle/heddle.toml"];

/// `heddle.toml`, its relative paths resolved.
struct File {
    path: PathBuf,
    keys: Dict,
}

impl File {
    fn read(path: &Path) -> Result<Self> {
        let refuse = |reason: String| Error::Config(format!("{}: {reason}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
        let mut table: toml::Table = text
            .parse()
            .map_err(|error: toml::de::Error| refuse(error.to_string().trim_end().to_owned()))?;
        let absolute = std::path::absolute(path).map_err(|error| refuse(error.to_string()))?;
        resolve_paths(&mut table, absolute.parent().unwrap_or(Path::new("/")));
        let keys = Value::serialize(&table)
            .ok()
            .and_then(Value::into_dict)
            .unwrap_or_default();
        Ok(Self {
            path: path.to_owned(),
            keys,
        })
    }
}

impl Provider for File {
    fn metadata(&self) -> Metadata {
        Metadata::from("file", self.path.as_path())
    }

    fn data(&self) -> figment::Result<Map<Profile, Dict>> {
        Ok(Map::from([(Profile::Default, self.keys.clone())]))
    }
}

/// Makes the paths of a file absolute. Where a key can also hold a name or a source, only what begins with `./`, `../`
/// or `~/` is a path.
fn resolve_paths(table: &mut toml::Table, folder: &Path) {
    let path = |value: &mut toml::Value| rewrite(value, |text| Some(absolute(text, folder)));
    let maybe = |value: &mut toml::Value| {
        rewrite(value, |text| {
            let is_path = ["./", "../", "~/"].iter().any(|start| text.starts_with(start));
            is_path.then(|| absolute(text, folder))
        })
    };
    for (section, key) in [
        ("server", "state_dir"),
        ("sources", "cache"),
        ("plugins", "directory"),
    ] {
        at(table, &[section, key]).map(path).unwrap_or_default();
    }
    if let Some(toml::Value::Array(roots)) = at(table, &["sources", "roots"]) {
        roots.iter_mut().for_each(path);
    }
    at(table, &["model", "name"]).map(maybe).unwrap_or_default();
    if let Some(toml::Value::Table(adapters)) = at(table, &["adapters"]) {
        for (_, entry) in adapters.iter_mut() {
            match entry {
                toml::Value::Table(entry) => at(entry, &["source"]).map(maybe).unwrap_or_default(),
                entry => maybe(entry),
            }
        }
    }
    if let Some(toml::Value::Table(slots)) = at(table, &["plugins", "slots"]) {
        for (_, slot) in slots.iter_mut() {
            if let toml::Value::Table(slot) = slot {
                at(slot, &["component"]).map(maybe).unwrap_or_default();
            }
        }
    }
}

fn at<'a>(table: &'a mut toml::Table, keys: &[&str]) -> Option<&'a mut toml::Value> {
    let (last, parents) = keys.split_last()?;
    let mut table = table;
    for key in parents {
        table = table.get_mut(*key)?.as_table_mut()?;
    }
    table.get_mut(*last)
}

fn rewrite(value: &mut toml::Value, change: impl Fn(&str) -> Option<String>) {
    if let toml::Value::String(text) = value
        && let Some(changed) = change(text)
    {
        *text = changed;
    }
}

fn absolute(text: &str, folder: &Path) -> String {
    let path = match text.strip_prefix("~/") {
        Some(rest) => home().join(rest),
        None => folder.join(text.strip_prefix("./").unwrap_or(text)),
    };
    path.to_string_lossy().into_owned()
}

/// Each fault of a configuration in a sentence: the key, where it stands, what was expected.
fn describe(error: figment::Error) -> String {
    let sentences: Vec<String> = error
        .into_iter()
        .map(|error| {
            let mut path = error.path.clone();
            let what = match &error.kind {
                Kind::UnknownField(name, expected) => {
                    if path.last() != Some(name) {
                        path.push(name.clone());
                    }
                    match expected {
                        [] => "is not a key".to_owned(),
                        keys => format!("is not a key: expected one of {}", list(keys)),
                    }
                }
                Kind::UnknownVariant(found, expected) => {
                    format!("is `{found}`: expected one of {}", list(expected))
                }
                Kind::InvalidType(found, expected) | Kind::InvalidValue(found, expected) => {
                    format!("is {found}: expected {expected}")
                }
                Kind::MissingField(name) => {
                    path.push(name.to_string());
                    "is missing".to_owned()
                }
                other => format!("is not valid: {other}"),
            };
            let metadata = error.metadata.as_ref();
            if metadata.is_some_and(|metadata| metadata.name.contains("environment")) {
                return format!(
                    "environment variable HEDDLE_{} {what}",
                    path.join("__").to_uppercase()
                );
            }
            let file = metadata
                .and_then(|metadata| metadata.source.as_ref())
                .and_then(figment::Source::file_path)
                .map(|file| format!("{}: ", file.display()));
            format!("{}`{}` {what}", file.unwrap_or_default(), path.join("."))
        })
        .collect();
    sentences.join("; ")
}

fn list(names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::{super::AdminListen, *};

    /// The configuration of a file with this text, without flags.
    fn read(text: &str) -> Result<Config> {
        read_with(text, Flags::default()).map(|(config, _)| config)
    }

    fn read_with(text: &str, flags: Flags) -> Result<(Config, tempfile::TempDir)> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("heddle.toml");
        std::fs::write(&path, text).unwrap();
        let loaded = load(&Flags {
            config: Some(path),
            ..flags
        })?;
        Ok((loaded.config, folder))
    }

    fn refusal(text: &str) -> String {
        read(text).unwrap_err().to_string()
    }

    #[test]
    fn flags_go_over_the_file_and_the_file_over_the_defaults() {
        let flags = Flags {
            port: Some(9),
            adapters: [("a.b".to_owned(), "org/other".to_owned())].into(),
            ..Flags::default()
        };
        let text = "server.port = 1\nserver.drain_s = 2\n[adapters]\n\"a.b\" = 'org/one'\nc = 'org/c'";
        let (config, _folder) = read_with(text, flags).unwrap();
        assert_eq!(config.server.port, 9);
        assert_eq!(config.server.drain_s, 2);
        assert_eq!(config.server.body_limit_mib, 32, "the default");
        assert_eq!(config.adapters["a.b"].source, "org/other");
        assert_eq!(
            config.adapters["c"].source, "org/c",
            "flags add to the file's adapters"
        );
    }

    #[test]
    fn paths_of_the_file_are_relative_to_it() {
        let text = "
            model.name = './model'
            sources = { cache = 'cache', roots = ['r', '/abs'] }
            adapters = { a = './a', b = { source = '../b', model = 'm' }, c = 'org/c' }
            plugins = { directory = 'p', slots = { auth = { component = './auth.wasm' }, stop = { component = 'stop' } } }
        ";
        let (config, folder) = read_with(text, Flags::default()).unwrap();
        let at = |name: &str| folder.path().join(name);
        assert_eq!(config.model.name.as_deref(), at("model").to_str());
        assert_eq!(config.sources.cache, at("cache"));
        assert_eq!(config.sources.roots, [at("r"), "/abs".into()]);
        assert_eq!(Some(config.adapters["a"].source.as_str()), at("a").to_str());
        assert_eq!(Some(config.adapters["b"].source.as_str()), at("../b").to_str());
        assert_eq!(config.adapters["c"].source, "org/c", "a source is no path");
        assert_eq!(config.plugins.directory, Some(at("p")));
        assert_eq!(
            config.plugins.slots["auth"].component.as_deref(),
            at("auth.wasm").to_str()
        );
        assert_eq!(config.plugins.slots["stop"].component.as_deref(), Some("stop"));
    }

    #[test]
    fn a_fault_names_its_key_and_its_file() {
        for (text, parts) in [
            (
                "server.prot = 1",
                &["heddle.toml", "`server.prot`", "is not a key", "`port`"][..],
            ),
            ("server.port = 'x'", &["`server.port`", "expected u16"]),
            ("server.port = 70000", &["`server.port`"]),
            ("log.format = 'xml'", &["`log.format`", "`text`, `json`"]),
            ("admin.listen = 'here'", &["`admin.listen`", "127.0.0.1:8081"]),
            ("adapters.a = { sauce = 'x' }", &["`adapters.a", "sauce"]),
            ("adapters.a = 3", &["`adapters.a`", "a source, or a table"]),
            (
                "plugins.slots.auth.limits.call_msec = 3",
                &["`plugins.slots.auth.limits.call_msec`"],
            ),
            ("[server\n", &["heddle.toml", "line 1"]),
        ] {
            let said = refusal(text);
            for part in parts {
                assert!(said.contains(part), "`{part}` in `{said}` for `{text}`");
            }
        }
    }

    #[test]
    fn a_file_that_is_named_must_be_there() {
        let flags = Flags {
            config: Some("/no/such/heddle.toml".into()),
            ..Flags::default()
        };
        let said = load(&flags).unwrap_err().to_string();
        assert!(said.contains("/no/such/heddle.toml"), "{said}");
    }

    #[test]
    fn the_committed_file_is_valid_and_serves_the_example_adapters() {
        let flags = Flags {
            config: Some(Path::new(env!("CARGO_MANIFEST_DIR")).join("../heddle.toml")),
            ..Flags::default()
        };
        let config = load(&flags).unwrap().config;
        let names: Vec<_> = config.adapters.keys().map(String::as_str).collect();
        assert_eq!(names, ["caps", "json", "pirate", "robot", "sentiment"]);
        for (name, entry) in &config.adapters {
            assert_eq!(entry.model.as_deref(), Some("smollm2-135m"));
            assert!(
                Path::new(&entry.source).join("adapter_config.json").is_file(),
                "{name}"
            );
        }
        assert_eq!(config.model.name, None, "the default model has a substitute");
    }

    /// Every commented key of the committed file, taken out of its comment, is a key with the value of its default.
    #[test]
    fn the_committed_file_tells_the_defaults() {
        let text =
            std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../heddle.toml")).unwrap();
        let uncommented: String = text
            .lines()
            .map(|line| match line.strip_prefix("# ") {
                Some(rest)
                    if rest.starts_with('[')
                        || rest.split_once(" = ").is_some_and(|(key, _)| is_key(key)) =>
                {
                    rest
                }
                Some(_) => "",
                None => line,
            })
            .collect::<Vec<_>>()
            .join("\n");
        let config = read(&uncommented).unwrap();
        let default = Config::default();
        assert_eq!(config.server.port, default.server.port);
        assert_eq!(config.server.keep_alive_s, default.server.keep_alive_s);
        assert_eq!(config.server.state_dir, default.server.state_dir);
        assert_eq!(config.sources.cache, default.sources.cache);
        assert_eq!(
            config.admin.listen,
            AdminListen::At(([127, 0, 0, 1], 8081).into())
        );
        assert_eq!(config.admin.listen, default.admin.listen);
        assert_eq!(config.engine.max_running, default.engine.max_running);
        assert_eq!(config.engine.step_tokens, default.engine.step_tokens);
        assert_eq!(config.engine.max_waiting, default.engine.max_waiting);
        assert_eq!(
            config.adapter_limits.device_mib,
            default.adapter_limits.device_mib
        );
        assert_eq!(
            config.plugins.max_live_generations,
            default.plugins.max_live_generations
        );
    }

    fn is_key(text: &str) -> bool {
        text.chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    }
}
