//! What a request runs through.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use super::{contract::Role, plugin::Plugin};

/// What a request runs through: an immutable snapshot of all slots. Pinned by each request to its last byte.
pub struct Pipeline {
    generation: u64,
    /// By slot.
    plugins: BTreeMap<String, Arc<Plugin>>,
    auth: Option<Arc<Plugin>>,
    stop: Option<Arc<Plugin>>,
    /// By path, then by method.
    exact: HashMap<String, Methods>,
    /// By what stands before the `*`, the longest first.
    prefixes: Vec<(String, Methods)>,
}

type Methods = BTreeMap<String, Arc<Plugin>>;

/// What [`Pipeline::route`] found.
#[derive(Debug)]
pub enum Routed<'a> {
    /// A plugin serves it.
    Plugin(&'a Arc<Plugin>),
    /// The path is served, with these methods.
    WrongMethod(Vec<String>),
    /// Nobody serves the path.
    Unknown,
}

impl Pipeline {
    /// Puts plugins together. The error names the two that cannot be together, and why.
    pub(super) fn build(generation: u64, plugins: BTreeMap<String, Arc<Plugin>>) -> Result<Self, String> {
        let auth = only(&plugins, Role::Auth)?;
        let stop = only(&plugins, Role::Stop)?;
        let mut exact = HashMap::<String, Methods>::new();
        let mut prefixes = BTreeMap::<String, Methods>::new();
        for plugin in plugins.values() {
            for route in &plugin.routes {
                let methods = match route.path.strip_suffix('*') {
                    Some(prefix) => prefixes.entry(prefix.to_owned()).or_default(),
                    None => exact.entry(route.path.clone()).or_default(),
                };
                if let Some(other) = methods.insert(route.method.clone(), Arc::clone(plugin)) {
                    return Err(format!(
                        "the slots `{}` and `{}` both serve `{route}`: configure one of them not to",
                        other.slot(),
                        plugin.slot()
                    ));
                }
            }
        }
        let mut prefixes: Vec<_> = prefixes.into_iter().collect();
        prefixes.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
        Ok(Self {
            generation,
            plugins,
            auth,
            stop,
            exact,
            prefixes,
        })
    }

    /// Counts up with each commit.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The auth plugin; none is a denial.
    pub fn auth(&self) -> Option<&Arc<Plugin>> {
        self.auth.as_ref()
    }

    /// The stop plugin.
    pub fn stop(&self) -> Option<&Arc<Plugin>> {
        self.stop.as_ref()
    }

    /// Who serves a route. An exact path goes before a pattern, and a longer pattern before a shorter one.
    pub fn route(&self, method: &str, path: &str) -> Routed<'_> {
        let patterns = self
            .prefixes
            .iter()
            .filter(|(prefix, _)| path.starts_with(prefix.as_str()));
        let mut others = BTreeSet::new();
        for methods in self
            .exact
            .get(path)
            .into_iter()
            .chain(patterns.map(|(_, methods)| methods))
        {
            if let Some(plugin) = methods.get(method) {
                return Routed::Plugin(plugin);
            }
            others.extend(methods.keys().cloned());
        }
        if others.is_empty() {
            Routed::Unknown
        } else {
            Routed::WrongMethod(others.into_iter().collect())
        }
    }

    /// All plugins, by slot: for the banner and `heddle plugin list`.
    pub fn plugins(&self) -> Vec<&Arc<Plugin>> {
        self.plugins.values().collect()
    }

    /// The plugin of a slot.
    pub fn plugin(&self, slot: &str) -> Option<&Arc<Plugin>> {
        self.plugins.get(slot)
    }

    /// All plugins by slot, to make the next pipeline from.
    pub(super) fn slots(&self) -> &BTreeMap<String, Arc<Plugin>> {
        &self.plugins
    }
}

impl std::fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pipeline")
            .field("generation", &self.generation)
            .field("plugins", &self.plugins.values())
            .finish_non_exhaustive()
    }
}

/// The plugin that fills a role of which there is one.
fn only(plugins: &BTreeMap<String, Arc<Plugin>>, role: Role) -> Result<Option<Arc<Plugin>>, String> {
    let mut holders = plugins.values().filter(|plugin| plugin.has(role));
    match (holders.next(), holders.next()) {
        (Some(one), Some(other)) => Err(format!(
            "the slots `{}` and `{}` both have the role `{}`, of which there is one",
            one.slot(),
            other.slot(),
            role.name()
        )),
        (one, _) => Ok(one.cloned()),
    }
}
