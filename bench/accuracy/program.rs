//! Measures what limits do while servers fail. Each case runs gateways on a Redis, clients that ask for far
//! more than allowed, and an upstream that records what reaches it. It causes a failure, and judges what was
//! admitted from outside and by Redis' own log. The findings are written as a document.
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

/// Runs gateways and clients, causes failures, and writes a table of what the limits did
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    /// Seconds per case; the failure is in the middle
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seconds: u64,
    /// Gateways that share the limits; at least two, so that a share differs from the whole
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=20))]
    pub(crate) gateways: u32,
    /// Clients, each with some hundred requests per second
    #[arg(long, default_value_t = 32)]
    pub(crate) clients: usize,
    /// Run only the cases whose name contains this
    #[arg(long, value_name = "CASE", default_value = "")]
    pub(crate) only: String,
    /// File to write; without it, prints to the terminal
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// An option that Cargo passes to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

impl Arguments {
    /// Runs the selected cases one after the other.
    pub(crate) fn run(&self) -> Vec<Findings> {
        let cases = cases::CASES.iter().filter(|case| case.name.contains(&self.only));
        cases.map(|case| world::run(case, self)).collect()
    }
}
