//! A configuration as operators may see it: as it is written, so with the names of environment variables and not what
//! they hold, and without what may be a credential.

use ipnet::IpNet;
use serde_json::Value;

use super::{FlagOverrides, password::blank_word, value::FromText};

const BLANK: &str = "******";

/// What the names of keys contain whose values are secrets.
const SECRETS: [&str; 3] = ["token", "secret", "password"];
/// Tables whose values clients and upstreams may prove themselves by: the fields of a header, the parameters of a query.
const FIELDS: [&str; 3] = ["headers", "query", "request_headers"];

/// A good file with this text, and what the flags say in its place.
pub(super) fn shown(text: &str, overrides: &FlagOverrides) -> Value {
    let Ok(mut shown) = toml::from_str::<Value>(text) else { return Value::Null };
    for (table, key, flag) in [("server", "listen", &overrides.listen), ("store", "url", &overrides.store)] {
        if let Some(text) = flag {
            shown[table][key] = text.as_str().into();
        }
    }
    blank(&mut shown, "", false);
    shown
}

/// Blanks what may be a credential in the value of a key. All of it may be if it `is_proof`.
fn blank(value: &mut Value, key: &str, is_proof: bool) {
    match value {
        Value::Object(table) => {
            let (is_override, is_public) = (key == "overrides", key == "respond");
            for (key, value) in table {
                // A table may have any name.
                let is_secret = !value.is_object() && SECRETS.iter().any(|secret| key.contains(secret));
                let is_field = FIELDS.contains(&key.as_str()) && !is_public;
                let is_caller = is_override && key == "key";
                blank(value, key, (is_proof || is_secret || is_field || is_caller) && key != "remove");
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|value| blank(value, key, is_proof)),
        Value::String(text) => {
            let is_caller = key == "exempt" && IpNet::read(text).is_err();
            *text = if is_proof || is_caller { BLANK.to_owned() } else { blank_word(text) };
        }
        _ if is_proof => *value = BLANK.into(),
        _ => {}
    }
}
