//! Measures what limits do while servers fail: `cargo bench --bench accuracy -- --help`.

#![allow(clippy::unwrap_used, reason = "a measurement that can't be made ends with it")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "people wait for it")]

#[path = "program.rs"]
mod program;
#[path = "../../tests"]
mod tests {
    #[allow(dead_code)] // It uses a part of it.
    pub(crate) mod harness;
}

use std::{fs, process::ExitCode};

use clap::Parser;

use program::{Arguments, cases, report};
use tests::harness;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let findings = arguments.run();
    if findings.is_empty() {
        let names: Vec<&str> = cases::CASES.iter().map(|case| case.name).collect();
        eprintln!(
            "error: no case has `{}` in its name; there are:\n  {}",
            arguments.only,
            names.join("\n  ")
        );
        return ExitCode::from(2);
    }
    let document = report::document(&arguments, &findings);
    match &arguments.output {
        Some(path) => fs::write(path, document).unwrap(),
        None => print!("{document}"),
    }
    if findings.iter().all(|findings| findings.faults().is_empty()) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
