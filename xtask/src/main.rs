//! Chores of this repository: `cargo run -p xtask -- plugins` builds the components.

mod plugins;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Chores of this repository")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Build the components of plugins/ into plugins/dist/, and the fixtures into tests/components/.
    Plugins {
        /// Write nothing: fail if a committed component is not what its sources give.
        #[arg(long)]
        check: bool,
        /// With --check: compare the hashes of the sources only. Needs no Wasm target and builds nothing.
        #[arg(long, requires = "check")]
        sources: bool,
        /// Only these components; the others stay as they are.
        #[arg(value_name = "NAME")]
        names: Vec<String>,
    },
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().chore {
        Chore::Plugins {
            check: false, names, ..
        } => plugins::build(&names),
        Chore::Plugins {
            sources: true, names, ..
        } => plugins::check_sources(&names),
        Chore::Plugins { names, .. } => plugins::check(&names),
    }
}
