//! The `tollgate` command.

use std::process::ExitCode;

use clap::Parser;
use tollgate::cli::Cli;

// Linked in malloc's place, which Rust's allocator calls: by the crate's own one each block, however it is aligned, would go
// the long way of those with a special alignment.
use mimalloc as _;

fn main() -> ExitCode {
    Cli::parse().main()
}
