//! `heddle plugin`: looking at plugins.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::Context;

use serde_json::Value;

use crate::{
    admin,
    config::{self, AdminListen, Config, Flags},
    plugin::{self, PluginHost, SlotConfig},
};

/// What can be done with plugins.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Say whether a component would be taken, and if not, why
    Check {
        /// The component
        file: PathBuf,
        /// Check it for this slot, with the configuration, grants and limits of that slot
        #[arg(short, long)]
        slot: Option<String>,
        /// The configuration file
        #[arg(short, long, env = "HEDDLE_CONFIG", value_name = "FILE")]
        config: Option<PathBuf>,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
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
        Command::Check {
            file,
            slot,
            config,
            json,
        } => check(&file, slot.as_deref(), config, json),
        Command::List { config, json } => list(config, json),
    }
}

fn check(file: &Path, slot: Option<&str>, config: Option<PathBuf>, json: bool) -> anyhow::Result<ExitCode> {
    let bytes = std::fs::read(file).with_context(|| format!("{} could not be read", file.display()))?;
    let report = match slot {
        Some(slot) => {
            let flags = Flags {
                config,
                ..Flags::default()
            };
            let config = config::load(&flags)?.config;
            let settings = config.plugins.slots.get(slot).cloned().unwrap_or_default();
            plugin::check_with(slot, &bytes, &settings)
        }
        None => plugin::check_with("check", &bytes, &SlotConfig::default()),
    };
    if json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        println!("{report}");
    }
    Ok(if report.accepted {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
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
    for slot in list["slots"].as_array().into_iter().flatten() {
        let text = |key: &str| slot["plugin"][key].as_str().unwrap_or_default();
        let name = slot["slot"].as_str().unwrap_or_default();
        match slot["plugin"].is_null() {
            true => println!("{name:<12} empty"),
            false => {
                let digest = text("digest").get(..12).unwrap_or_default();
                println!("{name:<12} {} {} ({digest})", text("name"), text("version"));
            }
        }
        for route in slot["plugin"]["routes"].as_array().into_iter().flatten() {
            println!("{:<12} {}", "", route.as_str().unwrap_or_default());
        }
        if let Some(error) = slot["last_error"]["message"].as_str() {
            println!("{:<12} refused since: {error}", "");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What the running server says; none if there is none.
fn ask(config: &Config) -> anyhow::Result<Option<Value>> {
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

fn would_start(config: &Config) -> anyhow::Result<Value> {
    let host = PluginHost::start(&config.plugins, &config.server.state_dir)?;
    Ok(admin::plugins(&host))
}
