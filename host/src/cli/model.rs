//! `heddle model`: fetching models ahead of time.

use std::{path::PathBuf, process::ExitCode};

use heddle_engine::hub::{Files, Source, Sources, catalogue};
use indicatif::HumanBytes;

use super::base_model;
use crate::config::{self, Flags};

/// What can be done with models.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Fetch a model into the cache, so that `heddle serve` starts at once
    #[command(after_help = "Examples:\n  heddle model pull\n  heddle model pull org/model@main")]
    Pull {
        /// A model by name, or a source [default: the one that `heddle serve` would serve]
        model: Option<String>,
        /// The configuration file
        #[arg(short, long, env = "HEDDLE_CONFIG", value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Show the models that are known by name
    List,
}

pub(super) fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Pull { model, config } => pull(model, config),
        Command::List => {
            for entry in catalogue::entries() {
                println!(
                    "{}: {}\n  {}; {}",
                    entry.name, entry.description, entry.size, entry.licence
                );
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn pull(model: Option<String>, config: Option<PathBuf>) -> anyhow::Result<ExitCode> {
    let flags = Flags {
        model,
        config,
        ..Flags::default()
    };
    let config = config::load(&flags)?.config;
    // Without a substitute: who pulls a model wants that one.
    let wanted = base_model::wanted(&config.model)?
        .into_iter()
        .take(1)
        .collect::<Vec<_>>();
    let roots = wanted
        .iter()
        .flat_map(|wanted| &wanted.sources)
        .filter_map(|source| match source {
            Source::Local(path) => Some(path.clone()),
            _ => None,
        })
        .collect();
    let sources = Sources::new(config.sources.sources(roots))?;
    let base = base_model::fetch(&sources, wanted)?;
    let place = match &base.files {
        Files::Folder(path) | Files::Gguf(path) => path.display().to_string(),
        Files::Embedded(set) => format!("in the binary, as `{}`", set.name),
    };
    println!(
        "{}: {} ({})",
        base.name,
        place,
        HumanBytes(base_model::size(&base.files))
    );
    Ok(ExitCode::SUCCESS)
}
