//! Configuration files.

use crate::config::Config;

/// Settings with a secret in each place where a file can have one.
const SECRETS: &str = "\n[admin]\nlisten = \"0.0.0.0:1\"\ntoken = \"hunter2-hunter2-hunter2\"\n\
                       [store]\nurl = \"redis://me:hunter2@cache\"\n";

/// Any text is a valid configuration or has errors that can be printed. No secret is printed.
pub fn toml(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    read(&text);
    if !text.contains("hunter2") {
        let printed = read(&(text.into_owned() + SECRETS));
        assert!(!printed.contains("hunter2"), "{printed}");
    }
}

/// Reads a text, and returns all that is printed about it.
fn read(text: &str) -> String {
    let environment = |name: &str| (name == "SET").then(|| "set".to_owned());
    match Config::parse("gateway.toml", text, &environment) {
        Ok((config, warnings)) => {
            assert!(config.changes(&config, [&serde_json::Value::Null; 2]).is_empty());
            format!("{warnings}{config:?}")
        }
        Err(faults) => {
            assert!(!faults.is_empty());
            assert!(!faults.coloured().is_empty());
            format!("{faults}{faults:?}")
        }
    }
}
