//! The configuration as operators may see it: as typed, without credentials, and with environment variables
//! unexpanded.

use ipnet::IpNet;
use serde_json::Value;
use tollgate_limiter::store::redis::password::blank_word;

use super::{FlagOverrides, value::FromText};

const BLANK: &str = "******";

/// Parts of key names that mark a secret.
const SECRETS: [&str; 3] = ["token", "secret", "password"];
/// Tables whose values can be credentials: header fields, query parameters and entries of descriptors.
const FIELDS: [&str; 4] = ["headers", "query", "request_headers", "match"];

/// Returns a valid file's content with the values of the flags, without credentials.
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

/// Blanks the credentials in the value of a key; all of the value if it `is_proof`.
fn blank(value: &mut Value, key: &str, is_proof: bool) {
    match value {
        Value::Object(table) => {
            let (is_override, is_public) = (key == "overrides", key == "respond");
            for (key, value) in table {
                // The name of a table is the user's choice, so it marks nothing.
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
