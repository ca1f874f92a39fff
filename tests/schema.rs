//! `tollgate schema` describes valid files, and rejects files with unknown keys.

use std::{fs, path::Path, process::Command};

use jsonschema::Validator;
use serde_json::Value;

fn printed() -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate")).arg("schema").output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty());
    serde_json::from_slice(&output.stdout).unwrap()
}

fn validator() -> Validator {
    jsonschema::draft7::meta::validate(&printed()).unwrap_or_else(|fault| panic!("{fault}"));
    jsonschema::draft7::new(&printed()).unwrap()
}

fn file(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// Returns the errors in a file according to the schema.
fn faults(validator: &Validator, text: &str) -> Vec<String> {
    let file: Value = toml::from_str(text).unwrap();
    validator.iter_errors(&file).map(|fault| format!("{}: {fault}", fault.instance_path())).collect()
}

/// Returns the TOML blocks of a document.
fn blocks(document: &str) -> Vec<String> {
    let text = file(document);
    text.split("```toml\n").skip(1).map(|block| block.split("```").next().unwrap().to_owned()).collect()
}

/// The shipped gateway.toml names the schema beside it.
#[test]
fn editors_find_the_schema_of_the_shipped_file() {
    let named = file("gateway.toml")
        .lines()
        .next()
        .and_then(|line| line.strip_prefix("#:schema ./").map(str::to_owned));
    let kept: Value = serde_json::from_str(&file(&named.expect("a line for editors"))).unwrap();
    assert!(kept == printed(), "stale: cargo build");
}

#[test]
fn files_that_are_good_are_good_by_the_schema() {
    let validator = validator();
    for path in ["gateway.toml", "tests/every-key.toml"] {
        assert_eq!(faults(&validator, &file(path)), Vec::<String>::new(), "{path}");
    }
    let documents = [
        "README.md",
        "docs/behind-envoy.md",
        "docs/behind-nginx-traefik-caddy.md",
        "docs/configuration.md",
        "docs/migration.md",
        "docs/operations.md",
        "docs/quick-start.md",
        "docs/simulate.md",
        "docs/tiers.md",
        "docs/streams.md",
    ];
    let mut seen = 0;
    for document in documents {
        for block in blocks(document) {
            assert_eq!(faults(&validator, &block), Vec::<String>::new(), "{document}: {block}");
            seen += 1;
        }
    }
    assert!(seen > 5, "{seen}");
}

/// The files of tests/config with an unknown key or table, or with a value of the wrong type.
#[test]
fn faults_that_a_schema_can_tell_are_told() {
    let validator = validator();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/config");
    let mut told = 0;
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let said = fs::read_to_string(path.with_extension("snap")).unwrap();
        let is_unknown = said.contains("unknown ");
        if path.extension().is_none_or(|extension| extension != "toml") || !is_unknown {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        if toml::from_str::<Value>(&text).is_ok() {
            assert_ne!(faults(&validator, &text), Vec::<String>::new(), "{}", path.display());
            told += 1;
        }
    }
    assert!(told >= 5, "{told}");
    for text in [
        "[server]\nlisten = 8080",
        "[server]\nworkers = -1",
        "[limits.l]\nkey = \"ipp\"",
        "[limits.l]\nrate = \"fast\"",
        "[limits.l]\nalgorithm = \"leaky\"",
        "[limits.l]\ncost = 0",
        "[limits.l]\ncost = { response_header = \"x\", estimte = 2 }",
        "[upstreams.u]\nservers = [\"127.0.0.1:3000\"]",
        "[upstreams.u]\nservers = []",
        "[[routes]]\npath = \"v1\"",
        "[[routes]]\nlimits = [{ name = \"l\", kye = \"ip\" }]",
    ] {
        assert_ne!(faults(&validator, text), Vec::<String>::new(), "{text}");
    }
    // A variable may become anything.
    assert_eq!(
        faults(&validator, "[limits.l]\nrate = \"${RATE}\"\nalgorithm = \"${A:-gcra}\""),
        Vec::<String>::new()
    );
}

#[test]
fn every_key_is_described() {
    let schema = printed();
    let mut tables: Vec<&Value> = schema["definitions"].as_object().unwrap().values().collect();
    tables.push(&schema);
    for table in tables {
        assert!(table["description"].is_string(), "{table:#}");
        for (name, key) in table["properties"].as_object().into_iter().flatten() {
            let description = key["description"].as_str().unwrap_or_default();
            assert!(description.len() > 10 && !description.contains('\n'), "{name}: {key:#}");
        }
    }
}

#[test]
fn shells_complete_the_commands() {
    for (shell, word) in [
        ("bash", "_tollgate()"),
        ("zsh", "#compdef tollgate"),
        ("fish", "complete -c tollgate"),
        ("elvish", "edit:completion"),
        ("powershell", "Register-ArgumentCompleter"),
    ] {
        let output =
            Command::new(env!("CARGO_BIN_EXE_tollgate")).args(["completions", shell]).output().unwrap();
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && script.contains(word), "{shell}");
        assert!(
            ["simulate", "explain", "limits", "schema"].iter().all(|command| script.contains(command)),
            "{shell}"
        );
    }
    let unknown = Command::new(env!("CARGO_BIN_EXE_tollgate")).args(["completions", "csh"]).output().unwrap();
    assert_eq!(unknown.status.code(), Some(2));
}

/// Runs the completion script in bash, if it is installed.
#[test]
fn bash_takes_the_script() {
    let script = "source <(\"$0\" completions bash)\nCOMP_WORDS=(tollgate sim); COMP_CWORD=1\n\
                  _tollgate tollgate sim tollgate\necho \"${COMPREPLY[*]}\"";
    let output = Command::new("bash").args(["-c", script, env!("CARGO_BIN_EXE_tollgate")]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "simulate\n", "{output:?}");
}
