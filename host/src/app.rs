//! What all requests share.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use heddle_engine::engine::Engine;

use crate::{
    config::ServerConfig,
    plugin::PluginHost,
    telemetry::{Gauges, Metrics},
};

/// A running server: the engine, the plugins, and what is known of both.
pub struct App {
    /// The engine.
    pub engine: Engine,
    /// The plugins.
    pub plugins: PluginHost,
    /// The base model's names.
    pub model: ServedModel,
    /// The limits of requests.
    pub limits: ServerConfig,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// Set once the server has been told to stop.
    draining: AtomicBool,
}

/// The base model, as clients know it.
#[derive(Debug, Clone)]
pub struct ServedModel {
    /// Its name in answers.
    pub name: String,
    /// Further names that requests may use.
    pub aliases: Vec<String>,
    /// Seconds since 1970-01-01 UTC at which it was loaded.
    pub created: u64,
}

impl ServedModel {
    /// Whether `model`, as a client wrote it, means the base model. The empty name does.
    pub fn is_named(&self, model: &str) -> bool {
        model.is_empty() || model == self.name || self.aliases.iter().any(|alias| alias == model)
    }
}

impl App {
    /// A server that takes requests.
    pub fn new(
        engine: Engine,
        plugins: PluginHost,
        model: ServedModel,
        limits: ServerConfig,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            engine,
            plugins,
            model,
            limits,
            metrics,
            draining: AtomicBool::new(false),
        }
    }

    /// Whether the server has been told to stop.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// The server has been told to stop: it is no longer ready.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// The metrics as they stand.
    pub fn metrics_page(&self) -> String {
        let adapters = self.engine.adapters().list();
        self.metrics.render(&Gauges {
            engine: self.engine.health(),
            adapters_registered: adapters.len(),
            adapters_resident: adapters.iter().filter(|adapter| adapter.resident).count(),
            pipeline: self.plugins.pin().generation(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_base_model_answers_to_its_names_and_to_none() {
        let model = ServedModel {
            name: "pocket".into(),
            aliases: vec!["tiny".into()],
            created: 0,
        };
        for name in ["", "pocket", "tiny"] {
            assert!(model.is_named(name), "{name}");
        }
        assert!(!model.is_named("Pocket"), "names are exact");
    }
}
