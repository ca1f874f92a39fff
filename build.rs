//! Records what `tollgate --version` says about the build: the commit, the target and the compiler.
//!
//! The commit is `TOLLGATE_COMMIT`, or that of the Git repository if this is a release build. A build from a source tarball without both
//! names no commit.

use std::{env, path::Path, process::Command};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=TOLLGATE_COMMIT");
    let version = variable("CARGO_PKG_VERSION");
    let compiler = output(&variable("RUSTC"), &["--version"]);
    let compiler = compiler.split(' ').take(2).collect::<Vec<_>>().join(" ");
    let commit = commit();
    let short = if commit.is_empty() { version } else { format!("{version} ({commit})") };
    println!("cargo::rustc-env=TOLLGATE_VERSION={short}");
    println!("cargo::rustc-env=TOLLGATE_BUILD={}, {}, {compiler}", variable("TARGET"), variable("PROFILE"));
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_default()
}

/// Returns the commit, or nothing if it isn't known. Development builds don't ask Git, since each commit would compile the gateway again.
fn commit() -> String {
    let given = variable("TOLLGATE_COMMIT");
    if !given.is_empty() || variable("PROFILE") != "release" || !Path::new(".git").exists() {
        return given;
    }
    for file in ["HEAD", "logs/HEAD"] {
        let path = output("git", &["rev-parse", "--git-path", file]);
        if Path::new(&path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    output("git", &["rev-parse", "--short=12", "HEAD"])
}

/// Returns the first line that a program prints, or nothing if it fails.
fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().ok().filter(|output| output.status.success());
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}
