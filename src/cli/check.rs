//! `tollgate check`: checks configurations, and optionally their surroundings.

use std::{
    env,
    io::{self, Read},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use serde_json::{Value, json};

use crate::config::{Config, Diagnostics, FlagOverrides, LogSettings, RatelimitFolder};

use super::{
    complain,
    connect::{Finding, findings},
    fail, log, say,
};

/// The files to check, and how.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tollgate check gateway.toml
  tollgate check --strict --json conf/*.toml
  envsubst < template.toml | tollgate check -
  tollgate check --connect gateway.toml      before the gateway is started: its own ports count as taken

Exit status: 0 valid; 1 --connect found a problem; 2 wrong usage, an invalid file, or --strict and a warning.
Environment variables: those that the files name as ${NAME}; TOLLGATE_LOG, the level of the log with --connect; NO_COLOR
turns colour off.")]
pub(super) struct CheckArgs {
    /// Configuration files, or folders with the configuration of envoyproxy/ratelimit; - is stdin
    #[arg(required_unless_present = "config", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// A configuration file, named as for other commands
    #[arg(long, value_name = "FILE")]
    config: Vec<PathBuf>,
    /// Treat warnings as errors
    #[arg(long)]
    strict: bool,
    /// Also listen, decide a request in the store, connect to each server, fetch the keys of `jwks_url`, open the access log, and
    /// look at the dates of certificates
    #[arg(long)]
    connect: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The result of checking a file.
struct Checked {
    name: String,
    faults: Diagnostics,
    /// `None` if the file is invalid, or a folder.
    config: Option<Config>,
    is_valid: bool,
    findings: Vec<Finding>,
}

impl CheckArgs {
    /// Runs the command.
    pub(super) fn main(self) -> ExitCode {
        let mut checked: Vec<_> =
            self.files.iter().chain(&self.config).map(|file| Checked::of(file, self.strict)).collect();
        if self.connect {
            let _log = log::begin(LogSettings::default());
            if let Err(error) = find(&mut checked) {
                fail(&format!("can't start: {error}"));
                return ExitCode::FAILURE;
            }
        }
        if self.json {
            let checked: Value = checked.iter().map(Checked::to_json).collect();
            say(format_args!("{checked:#}\n"));
        } else {
            checked.iter().for_each(Checked::print);
        }
        if !checked.iter().all(|checked| checked.is_valid) {
            return ExitCode::from(2);
        }
        let is_found = |checked: &Checked| checked.findings.iter().any(|finding| finding.problem.is_some());
        if checked.iter().any(is_found) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }
}

/// Tries the surroundings of the valid files.
fn find(checked: &mut [Checked]) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for checked in checked {
        if let Some(config) = &mut checked.config {
            // It isn't to be counted as a gateway.
            config.store.instances = 1;
            checked.findings = runtime.block_on(findings(config));
        }
    }
    Ok(())
}

impl Checked {
    fn of(file: &Path, is_strict: bool) -> Self {
        let name = if file == Path::new("-") { "stdin".to_owned() } else { file.display().to_string() };
        let read = if file == Path::new("-") {
            read_stdin(&name).map(|(config, warnings)| (Some(config), warnings))
        } else if file.is_dir() {
            RatelimitFolder::check(file).map(|()| (None, Diagnostics::default()))
        } else {
            Config::read(file, &FlagOverrides::default()).map(|(config, warnings)| (Some(config), warnings))
        };
        let (config, faults, is_valid) = match read {
            Ok((config, warnings)) => {
                let is_valid = !is_strict || warnings.is_empty();
                (config, warnings, is_valid)
            }
            Err(faults) => (None, faults, false),
        };
        Self { name, faults, config, is_valid, findings: Vec::new() }
    }

    fn print(&self) {
        complain(&self.faults);
        if self.is_valid {
            say(format_args!("{}: ok\n", self.name));
        }
        for Finding { what, problem } in &self.findings {
            match problem {
                None => say(format_args!("{}: {what}: ok\n", self.name)),
                Some(problem) => fail(&format!("{}: {what}: {problem}", self.name)),
            }
        }
    }

    fn to_json(&self) -> Value {
        json!({
            "file": self.name,
            "valid": self.is_valid,
            "faults": self.faults.to_json(),
            "connections": self.findings.iter().map(Finding::to_json).collect::<Value>(),
        })
    }
}

fn read_stdin(name: &str) -> Result<(Config, Diagnostics), Diagnostics> {
    let mut text = String::new();
    if let Err(error) = io::stdin().read_to_string(&mut text) {
        return Err(Diagnostics::of(name, &format!("can't read stdin: {error}\nsend UTF-8 text")));
    }
    Config::parse(name, &text, &|variable| env::var(variable).ok())
}
