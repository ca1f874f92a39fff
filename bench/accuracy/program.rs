//! What limits do while servers fail. Each case runs gateways on a Redis, clients that ask for far more than there
//! is, and an upstream that notes what reaches it; does harm; and judges from outside, and by the record that Redis
//! itself keeps, what was admitted. The findings are a document.
//!
//!     cargo bench --bench accuracy -- --output docs/accuracy.md
//!     cargo bench --bench accuracy -- --only healthy --seconds 2

pub(crate) mod cases;
mod clients;
pub(crate) mod judge;
mod record;
pub(crate) mod report;
mod world;

use std::path::PathBuf;

use clap::Parser;

pub(crate) use judge::Findings;

/// Runs gateways and clients, does harm to Redis, and writes a table of what the limits did meanwhile.
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    /// How long each case takes; the harm is done in its middle.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seconds: u64,
    /// Gateways that share the limits. More than one, so that a share is told from the whole.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=20))]
    pub(crate) gateways: u32,
    /// Clients, each of which asks some hundred times a second.
    #[arg(long, default_value_t = 32)]
    pub(crate) clients: usize,
    /// Only the cases that have this in their name.
    #[arg(long, value_name = "CASE", default_value = "")]
    pub(crate) only: String,
    /// The file to write; without it, to the terminal.
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// What Cargo tells every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

impl Arguments {
    /// Runs the cases that were asked for, one after the other.
    pub(crate) fn run(&self) -> Vec<Findings> {
        let cases = cases::CASES.iter().filter(|case| case.name.contains(&self.only));
        cases.map(|case| world::run(case, self)).collect()
    }
}
