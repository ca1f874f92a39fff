//! The `tollgate` command.

use std::process::ExitCode;

use tollgate::cli::Cli;

// Linking this crate replaces malloc, which Rust's system allocator calls. The crate's own `MiMalloc`
// allocator would send every block through the slower path for special alignments.
use mimalloc as _;

fn main() -> ExitCode {
    Cli::of_process().main()
}
