//! A gateway.toml.

use crate::config::Config;

/// A secret, in the places where a file has them.
const SECRETS: &str = "\n[admin]\nlisten = \"0.0.0.0:1\"\ntoken = \"hunter2-hunter2-hunter2\"\n\
                       [store]\nurl = \"redis://me:hunter2@cache\"\n";

/// Any text is a configuration or has faults that can be told, and no secret is told with them.
pub fn toml(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    read(&text);
    if !text.contains("hunter2") {
        let told = read(&(text.into_owned() + SECRETS));
        assert!(!told.contains("hunter2"), "{told}");
    }
}

/// Reads a text, and tells its faults.
fn read(text: &str) -> String {
    let environment = |name: &str| (name == "SET").then(|| "set".to_owned());
    match Config::parse("gateway.toml", text, &environment) {
        Ok((config, warnings)) => {
            assert!(config.changes(&config).is_empty());
            format!("{warnings}{config:?}")
        }
        Err(faults) => {
            assert!(!faults.is_empty());
            assert!(!faults.coloured().is_empty());
            format!("{faults}{faults:?}")
        }
    }
}
