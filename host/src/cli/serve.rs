//! `heddle serve`: brings a server up, says where it is, and runs it until it is told to stop.

use std::{
    net::{IpAddr, SocketAddr, TcpListener},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::Context;
use heddle_engine::{
    adapter::AdapterRegistry,
    backend,
    engine::Engine,
    hub::{Source, Sources},
    model::{self, LoadOptions},
};

use super::{
    banner::Banner,
    base_model::{self, BaseModel},
    signals,
};
use crate::{
    admin,
    app::{App, ServedModel},
    config::{self, Config, Device, Dtype, Flags, LogFormat},
    error::{Error, Result},
    http,
    plugin::PluginHost,
    telemetry::{self, Metrics},
};

/// `heddle serve [MODEL] [OPTIONS]`
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct Args {
    /// A model by name (smollm2-135m, pocket), a path, or a source (org/name, hub:org/name@revision, s3://bucket/prefix)
    pub(super) model: Option<String>,
    #[command(flatten)]
    pub(super) options: Options,
}

impl From<Options> for Args {
    fn from(options: Options) -> Self {
        Self { model: None, options }
    }
}

/// What can be said without a model, too.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct Options {
    /// The configuration file [default: ./heddle.toml or /etc/heddle/heddle.toml, where there is one]
    #[arg(short, long, env = "HEDDLE_CONFIG", value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Serve an adapter under a name; can be given several times
    #[arg(short, long = "adapter", value_name = "NAME=SOURCE", value_parser = adapter)]
    pub(super) adapters: Vec<(String, String)>,
    /// The address to listen at [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    pub(super) host: Option<IpAddr>,
    /// The port to listen at; 0 takes a free one [default: 8080]
    #[arg(short, long)]
    pub(super) port: Option<u16>,
    /// A shorter context than the model's own
    #[arg(long, value_name = "TOKENS")]
    pub(super) context: Option<usize>,
    /// Memory for the KV cache [default: 1024]
    #[arg(long = "kv-cache", value_name = "MIB")]
    pub(super) kv_cache: Option<usize>,
    /// What computes [default: auto]
    #[arg(long)]
    pub(super) device: Option<Device>,
    /// The numbers to compute in [default: auto]
    #[arg(long)]
    pub(super) dtype: Option<Dtype>,
    /// The instruction set to compute with, for example avx2 [default: the best that the machine has]
    #[arg(long, value_name = "NAME")]
    pub(super) kernels: Option<String>,
    /// Threads that compute [default: one for each physical core]
    #[arg(long, value_name = "COUNT")]
    pub(super) threads: Option<usize>,
    /// What is logged [default: info]
    #[arg(long, value_name = "LEVEL")]
    pub(super) log_level: Option<String>,
    /// How a line of the log looks [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub(super) log_format: Option<LogFormat>,
}

fn adapter(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, source)) if !name.is_empty() && !source.is_empty() => {
            Ok((name.to_owned(), source.to_owned()))
        }
        _ => Err("expected NAME=SOURCE, as in `sql=./adapters/sql`".to_owned()),
    }
}

impl Args {
    fn flags(self) -> Flags {
        let options = self.options;
        Flags {
            config: options.config,
            model: self.model,
            adapters: options.adapters.into_iter().collect(),
            host: options.host,
            port: options.port,
            context: options.context,
            kv_cache_mib: options.kv_cache,
            device: options.device,
            dtype: options.dtype,
            kernels: options.kernels,
            threads: options.threads,
            log_level: options.log_level,
            log_format: options.log_format,
        }
    }
}

/// Serves until a signal says otherwise.
pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let config = config::load(&args.flags())?.config;
    telemetry::init(&config.log)?;

    // What can be wrong is looked at in the order of how long it takes to find out.
    let address = SocketAddr::new(config.server.host, config.server.port);
    let listener = bind(address)?;
    let plugins = PluginHost::start(&config.plugins, &config.server.state_dir)?;
    let (app, base) = assemble(&config, plugins)?;
    let app = Arc::new(app);

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the asynchronous runtime could not be started")?;
    runtime.block_on(async {
        let stop = signals::watch(app.plugins.clone()).context("signals could not be watched")?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let admin = admin::start(&config.admin, &config.server.state_dir, app.plugins.clone()).await?;
        Banner {
            app: &app,
            base: &base,
            config: &config,
            listening: listener.local_addr()?,
            admin,
        }
        .show();
        http::serve(listener, app.clone(), stop).await;
        anyhow::Ok(())
    })?;
    // Outside the runtime: the engine's sources hold blocking clients.
    drop(runtime);
    drop(app);
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

fn bind(address: SocketAddr) -> Result<TcpListener> {
    let listener = TcpListener::bind(address).map_err(|source| Error::Listen { address, source })?;
    (listener.set_nonblocking(true)).map_err(|source| Error::Listen { address, source })?;
    Ok(listener)
}

/// The engine over the model that the configuration names, with its adapters.
fn assemble(config: &Config, plugins: PluginHost) -> Result<(App, BaseModel)> {
    let wanted = base_model::wanted(&config.model)?;
    let configured = configured_adapters(config)?;
    let roots = wanted
        .iter()
        .flat_map(|wanted| &wanted.sources)
        .chain(configured.iter().map(|(_, source, _)| source))
        .filter_map(|source| match source {
            Source::Local(path) => Some(path.clone()),
            _ => None,
        })
        .collect();
    let sources = Sources::new(config.sources.sources(roots))?;
    let mut base = base_model::fetch(&sources, wanted)?;

    let started = Instant::now();
    if let Some(threads) = config.model.threads {
        backend::use_threads(threads)?;
    }
    let options = LoadOptions {
        backend: config.model.backend(),
        kv_bytes: config.model.kv_bytes(),
        context: config.model.context,
    };
    let model = model::load(&base.files, &options)?;
    base.device.clone_from(&model.device);
    tracing::info!(
        model = base.name,
        device = base.device,
        seconds = started.elapsed().as_secs_f32(),
        "model loaded"
    );

    let adapters = AdapterRegistry::new(
        model.config.modules(),
        model.runner.adapter_loader(),
        sources,
        config.adapter_limits.limits(),
    );
    for (name, files) in &base.adapters {
        adapters.register(name, Source::Embedded(*files))?;
    }
    for (name, source, only_for) in configured {
        if only_for.is_none_or(|model| model == base.name) {
            adapters.register(&name, source)?;
        }
    }
    let engine = Engine::start(model, adapters, config.engine.options())?;

    let served = ServedModel {
        name: config
            .model
            .served_as
            .clone()
            .unwrap_or_else(|| base.name.clone()),
        aliases: std::iter::once(base.name.clone())
            .chain(config.model.aliases.iter().cloned())
            .collect(),
        created: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs()),
    };
    let app = App::new(
        engine,
        plugins,
        served,
        config.server.clone(),
        Arc::new(Metrics::default()),
    );
    Ok((app, base))
}

/// Name, source and base model of each adapter that is configured.
fn configured_adapters(config: &Config) -> Result<Vec<(String, Source, Option<String>)>> {
    config
        .adapters
        .iter()
        .map(|(name, entry)| {
            let source = base_model::source(&entry.source)
                .map_err(|error| Error::Config(format!("adapter `{name}`: {error}")))?;
            if let Source::Local(path) = &source
                && !path.exists()
            {
                return Err(Error::Config(format!(
                    "adapter `{name}`: there is nothing at {}",
                    path.display()
                )));
            }
            Ok((name.clone(), source, entry.model.clone()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_is_a_name_and_a_source() {
        assert_eq!(
            adapter("sql=wheel:a==1!b").unwrap(),
            ("sql".to_owned(), "wheel:a==1!b".to_owned()),
            "the first `=` parts them"
        );
        for wrong in ["sql", "=x", "sql="] {
            assert!(adapter(wrong).is_err(), "{wrong}");
        }
    }
}
