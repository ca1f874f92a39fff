//! The `tollgate` command.

use std::process::ExitCode;

use clap::Parser;
use tollgate::cli::Cli;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    Cli::parse().main()
}
