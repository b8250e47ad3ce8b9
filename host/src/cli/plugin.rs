//! `heddle plugin`: looking at plugins.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::Context;

use crate::{
    config::{self, AdminListen, Config, Flags},
    http::admin::{self, PluginList},
    plugin::PluginHost,
};

/// What can be done with plugins.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Show the plugins of the running server, or what it would start with
    List {
        /// The configuration file
        #[arg(short, long, env = "HEDDLE_CONFIG", value_name = "FILE")]
        config: Option<PathBuf>,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

pub(super) fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::List { config, json } => list(config, json),
    }
}

fn list(config: Option<PathBuf>, json: bool) -> anyhow::Result<ExitCode> {
    let flags = Flags {
        config,
        ..Flags::default()
    };
    let config = config::load(&flags)?.config;
    let list = match ask(&config)? {
        Some(list) => list,
        None => {
            eprintln!("no server answers at its admin address; this is what it would start with");
            would_start(&config)?
        }
    };
    if json {
        println!("{}", serde_json::to_string_pretty(&list)?);
        return Ok(ExitCode::SUCCESS);
    }
    for plugin in &list.plugins {
        let digest = plugin.digest.get(..12).unwrap_or_default();
        println!(
            "{:<12} {} {} ({digest})",
            plugin.slot, plugin.name, plugin.version
        );
        for route in &plugin.routes {
            println!("{:<12} {route}", "");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What the running server says; none if there is none.
fn ask(config: &Config) -> anyhow::Result<Option<PluginList>> {
    let AdminListen::At(address) = config.admin.listen else {
        return Ok(None);
    };
    let token = match &config.admin.token {
        Some(token) => token.expose().to_owned(),
        None => {
            let path = admin::token_file(&config.server.state_dir, address);
            match std::fs::read_to_string(path) {
                Ok(token) => token,
                Err(_) => return Ok(None),
            }
        }
    };
    let client = reqwest::blocking::Client::builder()
        .no_proxy()
        .timeout(Duration::from_secs(10))
        .build()?;
    let answer = client
        .get(format!("http://{address}{}", admin::PLUGINS))
        .bearer_auth(token)
        .send();
    match answer {
        Ok(answer) => {
            let list = answer
                .error_for_status()
                .and_then(reqwest::blocking::Response::json)
                .context("the server's admin API gave no list of plugins")?;
            Ok(Some(list))
        }
        Err(error) if error.is_connect() => Ok(None),
        Err(error) => Err(error).context("the server's admin API could not be asked"),
    }
}

fn would_start(config: &Config) -> anyhow::Result<PluginList> {
    let host = PluginHost::start(&config.plugins, &config.server.state_dir)?;
    Ok(PluginList::from(host.pin().as_ref()))
}
