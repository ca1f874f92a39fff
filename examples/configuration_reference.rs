//! Prints docs/reference.md: every key of gateway.toml, from the schema that `tollgate schema` prints.
//!
//!     cargo run --example configuration_reference > docs/reference.md

#![allow(clippy::print_stdout, reason = "the document goes there")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Display},
};

use serde_json::Value;

const HEAD: &str = "# Every key of gateway.toml

What a file says beyond its values, and why: [configuration.md](configuration.md). Editors know these keys, too, by a line at the
top of the file, once `tollgate schema > gateway.schema.json` has written it:

    #:schema ./gateway.schema.json

Any string may take variables of the environment, `\"${NAME}\"` or `\"${NAME:-default}\"`. A key that isn't here is a fault.
";

fn main() {
    print!("{Reference}");
}

/// The document.
pub(crate) struct Reference;

impl Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HEAD)?;
        let schema: Value =
            serde_json::from_str(include_str!("../gateway.schema.json")).expect("the schema is JSON");
        let mut told = BTreeSet::new();
        for name in ["server", "store", "admin", "upstreams", "limits", "routes"] {
            write_key(f, &schema, name, &schema["properties"][name], &mut told)?;
        }
        for (name, key) in sorted(&schema["properties"]) {
            write_key(f, &schema, name, key, &mut told)?;
        }
        Ok(())
    }
}

/// Writes the table of a key, and the tables in it.
fn write_key(
    f: &mut fmt::Formatter<'_>,
    schema: &Value,
    path: &str,
    key: &Value,
    told: &mut BTreeSet<String>,
) -> fmt::Result {
    for name in tables(key) {
        let table = &schema["definitions"][&name];
        if !told.insert(name) {
            continue;
        }
        write!(f, "\n## {path}\n\n{}\n\n| key | default | what it says |\n|---|---|---|\n", text(table))?;
        for (name, key) in sorted(&table["properties"]) {
            let said = text(key).replace('|', "\\|");
            let (what, default) = match said.rsplit_once(" Default: ") {
                Some((what, default)) => (what, default.trim_end_matches('.')),
                None => (said.as_str(), if said.contains("Required") { "required" } else { "" }),
            };
            writeln!(f, "| `{name}` | {default} | {} |", what.trim_end_matches(" Required."))?;
        }
        for (name, key) in sorted(&table["properties"]) {
            write_key(f, schema, &format!("{path}.{name}"), key, told)?;
        }
    }
    Ok(())
}

/// Returns the names of the tables that a key may contain, directly, in a list or under names.
fn tables(key: &Value) -> Vec<String> {
    match key {
        Value::Object(fields) => fields
            .iter()
            .flat_map(|(name, value)| match value.as_str().and_then(|to| to.strip_prefix("#/definitions/")) {
                Some(to) if name == "$ref" => vec![to.to_owned()],
                _ => tables(value),
            })
            .collect(),
        Value::Array(values) => values.iter().flat_map(tables).collect(),
        _ => Vec::new(),
    }
}

fn text(of: &Value) -> &str {
    of["description"].as_str().unwrap_or_default()
}

fn sorted(fields: &Value) -> BTreeMap<&String, &Value> {
    fields.as_object().into_iter().flatten().collect()
}
