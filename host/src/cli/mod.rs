//! The command line: one file or folder per command.

mod banner;
mod base_model;
mod bench;
mod model;
mod plugin;
mod progress;
mod serve;
mod signals;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::error::Error;

/// The version; an unoptimised build says that it is one.
const VERSION: &str = if cfg!(debug_assertions) {
    concat!(env!("CARGO_PKG_VERSION"), " (debug)")
} else {
    env!("CARGO_PKG_VERSION")
};

const EXAMPLES: &str = "\
Examples:
  heddle                                   serve the default model
  heddle serve pocket                      serve the small model in the binary: nothing is fetched
  heddle serve org/model --port 9000       serve a model of the hub
  heddle serve ./model --adapter sql=./adapters/sql --adapter chat=org/chat-lora
  heddle plugin check my-auth.wasm         would this component be taken, and if not, why?
  heddle bench http://localhost:8080       how fast is this server under load?

Everything can be set in heddle.toml; HEDDLE_SECTION__KEY goes over it, flags over both.";

/// One base model, thousands of LoRA adapters, and every request through WebAssembly plugins of your own.
#[derive(Debug, Parser)]
#[command(name = "heddle", version = VERSION, after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: serve::Options,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve a model (what `heddle` alone does)
    Serve(serve::Args),
    /// Look at plugins
    #[command(subcommand)]
    Plugin(plugin::Command),
    /// Look after models
    #[command(subcommand)]
    Model(model::Command),
    /// Measure throughput and latency of an OpenAI-style server under load
    Bench(bench::Args),
}

/// Runs the command line. Exit codes: 0 is success, 1 a failure, 2 a wrong command line or configuration.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        None => serve::run(serve::Args::from(cli.serve)),
        Some(Command::Serve(args)) => serve::run(args),
        Some(Command::Plugin(command)) => plugin::run(command),
        Some(Command::Model(command)) => model::run(command),
        Some(Command::Bench(args)) => bench::run(args),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("heddle: {error:#}");
            match error.downcast_ref::<Error>() {
                Some(Error::Config(_)) => ExitCode::from(2),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn serve_is_what_heddle_alone_does() {
        let port = |line: &[&str]| {
            let cli = Cli::try_parse_from(line).unwrap();
            match cli.command {
                None => (None, cli.serve.port),
                Some(Command::Serve(args)) => (args.model, args.options.port),
                Some(_) => panic!("another command"),
            }
        };
        assert_eq!(port(&["heddle"]), (None, None));
        assert_eq!(port(&["heddle", "--port", "9000"]), (None, Some(9000)));
        assert_eq!(
            port(&["heddle", "serve", "pocket", "--port", "9000"]),
            (Some("pocket".to_owned()), Some(9000))
        );
    }
}
