//! The import table of ARCHITECTURE.md: modules import only modules below them. And generated documents are up to date.

use std::{collections::BTreeSet, fs, path::Path};

#[allow(dead_code)] // Its `main`.
#[path = "../examples/plot_algorithms.rs"]
mod plot_algorithms;

#[allow(dead_code)] // Its `main`.
#[path = "../examples/configuration_reference.rs"]
mod configuration_reference;

/// A module and what it may import. `keepalive`, `log_budget`, `metrics`, `trace`, `outbound` and `config`, a crate of its own, are leaves for all.
const TABLE: &[(&str, &[&str])] = &[
    ("keepalive", &[]),
    ("log_budget", &[]),
    ("metrics", &[]),
    ("trace", &[]),
    ("outbound", &[]),
    ("rules", &[]),
    ("forward", &[]),
    ("reject", &["forward"]),
    ("gateway", &["rules", "forward", "reject"]),
    ("decisions", &["gateway", "rules", "forward", "reject"]),
    ("server", &["decisions", "gateway"]),
    ("reload", &["server", "gateway"]),
    ("explain", &["gateway", "rules", "forward", "reject"]),
    ("simulate", &["gateway", "rules", "forward", "reject"]),
    ("admin", &["reload", "server", "explain", "gateway", "rules"]),
    ("xds", &["decisions"]),
    ("cli", &["reload", "server", "admin", "explain", "simulate", "gateway", "xds"]),
];
const LEAVES: [&str; 6] = ["config", "keepalive", "log_budget", "metrics", "outbound", "trace"];

/// Returns the names of the modules that a file imports.
fn imports(text: &str) -> Vec<String> {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let compact = code.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ");
    let mut modules = Vec::new();
    for (_, after) in compact.match_indices("crate::").map(|(at, found)| (at, &compact[at + found.len()..])) {
        match after.strip_prefix('{') {
            None => modules.push(name(after)),
            Some(group) => {
                let mut depth = 0;
                let mut item = true;
                for (at, character) in group.char_indices() {
                    match character {
                        '}' if depth == 0 => break,
                        '{' => depth += 1,
                        '}' => depth -= 1,
                        ',' if depth == 0 => item = true,
                        ' ' => {}
                        _ if item => {
                            modules.push(name(&group[at..]));
                            item = false;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    modules
}

fn name(text: &str) -> String {
    text.chars().take_while(|character| character.is_alphanumeric() || *character == '_').collect()
}

fn files(path: &Path, found: &mut Vec<(String, String)>, module: Option<&str>) {
    for entry in fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()) {
        let stem = entry.file_stem().unwrap().to_str().unwrap().to_owned();
        let module = module.unwrap_or(&stem);
        if entry.is_dir() {
            files(&entry, found, Some(module));
        } else {
            found.push((module.to_owned(), fs::read_to_string(&entry).unwrap()));
        }
    }
}

#[test]
fn imports_go_downwards_only() {
    let mut found = Vec::new();
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found, None);
    for (module, text) in found.iter().filter(|(module, _)| module != "lib" && module != "main") {
        let row = TABLE.iter().find(|(name, _)| name == module);
        let (_, allowed) = row.unwrap_or_else(|| panic!("`{module}` isn't in the table"));
        for import in imports(text).iter().filter(|import| *import != module) {
            let fine = allowed.contains(&import.as_str()) || LEAVES.contains(&import.as_str());
            assert!(fine, "`{module}` imports `{import}`");
        }
    }
    assert!(TABLE.iter().all(|(name, _)| found.iter().any(|(module, _)| module == name)));
}

#[test]
fn imports_are_found_in_groups_and_in_code() {
    let text = "use crate::{\n    config::{self, Limit},\n    store::Store, route,\n};\nfn a() { crate::limit::b() }";
    assert_eq!(imports(text), ["config", "store", "route", "limit"]);
}

#[test]
fn the_drawing_of_the_algorithms_is_what_its_command_prints() {
    let drawn = plot_algorithms::Drawing.to_string();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/algorithms.svg");
    let is_fresh = fs::read_to_string(path).unwrap() == drawn;
    assert!(is_fresh, "stale: cargo run --example plot_algorithms > docs/algorithms.svg");
}

#[test]
fn the_reference_of_the_keys_is_what_its_command_prints() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference.md");
    let is_fresh = fs::read_to_string(path).unwrap() == configuration_reference::Reference.to_string();
    assert!(is_fresh, "stale: cargo run --example configuration_reference > docs/reference.md");
}

#[test]
fn each_fuzz_target_is_built_and_has_its_test_and_its_corpus() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    let names = |part: &str| {
        let entries = fs::read_dir(folder.join(part)).unwrap().map(|entry| entry.unwrap().path());
        entries.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect::<BTreeSet<_>>()
    };
    let manifest: toml::Table =
        toml::from_str(&fs::read_to_string(folder.join("Cargo.toml")).unwrap()).unwrap();
    let bins = manifest["bin"].as_array().unwrap().iter().map(|bin| {
        let [name, path] = ["name", "path"].map(|key| bin[key].as_str().unwrap());
        assert_eq!(path, format!("fuzz_targets/{name}.rs"));
        name.to_owned()
    });
    assert_eq!(bins.collect::<BTreeSet<_>>(), names("fuzz_targets"), "fuzz/Cargo.toml, and fuzz_targets");
    assert_eq!(names("corpus"), names("fuzz_targets"), "corpus, and fuzz_targets");
    let [gateway, limiter] = ["gateway", "limiter"]
        .map(|name| fs::read_to_string(folder.join(format!("properties/{name}.rs"))).unwrap());
    for name in names("fuzz_targets") {
        let target = fs::read_to_string(folder.join(format!("fuzz_targets/{name}.rs"))).unwrap();
        let tests = if target.contains(&format!("tollgate_limiter::properties::{name}(")) {
            &limiter
        } else {
            assert!(target.contains(&format!("tollgate::properties::{name}(")), "{target}");
            &gateway
        };
        assert!(tests.contains(&format!("\n    {name}: ")), "no test of the property `{name}`");
    }
}
