//! `tollgate simulate` computes from access logs what the gateway would have done, and the smallest rates.

mod agreement;
mod logs;
mod rates;
mod real;

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;
use tollgate::{
    config::Config,
    simulate::{Logs, Report, Simulation},
};

/// Returns a configuration with a limit with these keys on all paths.
fn limited(terms: &str) -> String {
    format!(
        "[upstreams.up]\nservers = [\"http://127.0.0.1:9\"]\n[limits.l]\n{terms}\n\
         [[routes]]\npath = \"/{{*rest}}\"\nupstream = \"up\"\nlimits = [\"l\"]\n"
    )
}

fn config(toml: &str) -> Config {
    Config::parse("gateway.toml", toml, &|_| None).unwrap_or_else(|faults| panic!("{faults}")).0
}

/// Replays a log's text.
fn simulate(toml: &str, log: &str) -> Report {
    let config = config(toml);
    let logs = Logs::open(vec![("log".to_owned(), Box::new(std::io::Cursor::new(log.to_owned())))]).unwrap();
    Simulation { config: &config, against: None, host: None }.run(logs).unwrap()
}

/// Creates files in a new folder.
fn folder(files: &[(&str, &[u8])]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in files {
        fs::write(folder.path().join(name), content).unwrap();
    }
    folder
}

/// Runs `tollgate simulate` in a folder.
fn run(folder: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.arg("simulate").args(words).current_dir(folder).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn json(folder: &Path, words: &[&str]) -> Value {
    let output = run(folder, &[words, &["--json"]].concat());
    assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns a line in combined form, this many seconds after 07:00.
fn line(second: u32, client: &str, rest: &str) -> String {
    let (hour, minute, second) = (7 + second / 3600, second / 60 % 60, second % 60);
    format!("{client} - - [21/Nov/2026:{hour:02}:{minute:02}:{second:02} +0000] {rest}\n")
}

/// Returns the line of an ordinary request.
fn get(second: u32, client: &str) -> String {
    line(second, client, "\"GET /a?b=c HTTP/1.1\" 200 5 \"-\" \"curl/8\"")
}
