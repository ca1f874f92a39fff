//! The limiter's crate, used by a program outside this repository, as its README shows.

use std::{fs, path::Path, process::Command};

use tempfile::TempDir;

/// The most crates that a program compiles for the limiter, without and with Redis.
const CRATES_MOST: [(&str, usize); 2] = [("", 100), ("redis", 160)];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the first block of this language in the crate's README.
fn block(language: &str) -> String {
    let readme = fs::read_to_string(root().join("crates/limiter/README.md")).unwrap();
    let (_, rest) = readme.split_once(&format!("```{language}\n")).unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}

fn cargo(arguments: &[&str], folder: &Path) -> String {
    // A folder of its own: Cargo locks the one that this test is built in.
    let target = root().join("target/outside");
    let command = Command::new(env!("CARGO"))
        .args(arguments)
        .args(["--offline", "--quiet"])
        .current_dir(folder)
        .env("CARGO_TARGET_DIR", target)
        .output()
        .unwrap();
    assert!(command.status.success(), "cargo {arguments:?}: {}", String::from_utf8_lossy(&command.stderr));
    String::from_utf8(command.stdout).unwrap()
}

#[test]
fn the_example_of_the_readme_runs_outside_the_repository() {
    let folder = TempDir::new().unwrap();
    let limiter = root().join("crates/limiter");
    let dependencies = block("toml").replace("../tollgate/crates/limiter", limiter.to_str().unwrap());
    assert!(dependencies.contains(limiter.to_str().unwrap()), "{dependencies}");
    let manifest =
        format!("[package]\nname = \"outside\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n{dependencies}");
    fs::write(folder.path().join("Cargo.toml"), manifest).unwrap();
    fs::create_dir(folder.path().join("src")).unwrap();
    fs::write(folder.path().join("src/main.rs"), block("rust")).unwrap();
    // The versions that are downloaded already.
    fs::copy(root().join("Cargo.lock"), folder.path().join("Cargo.lock")).unwrap();
    let printed = cargo(&["run"], folder.path());
    assert!(printed.starts_with("retry in Some(") && printed.ends_with("admitted\n"), "{printed}");
}

#[test]
fn a_user_of_the_limiter_compiles_few_crates() {
    for (features, most) in CRATES_MOST {
        let tree =
            ["tree", "-p", "tollgate-limiter", "-e", "normal", "--prefix", "none", "--features", features];
        let printed = cargo(&tree, root());
        let crates: std::collections::BTreeSet<_> =
            printed.lines().map(|line| line.trim_end_matches(" (*)")).collect();
        assert!(!crates.is_empty() && crates.len() <= most, "{features}: {} crates", crates.len());
    }
}
