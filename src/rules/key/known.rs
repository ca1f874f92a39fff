//! Keys that are listed in a limit's `keys_file`, and unknown ones.

use std::net::IpAddr;

use super::{PartValues, Value, texts_of, written::value_in};
use crate::config::{KnownKeys, LimitSettings, UnknownKey};

/// Replaces values that the limit doesn't know by the client's network, and drops them beside a known one. That is charged, and only a
/// client that knows it can send it. Returns false if the limit refuses the request.
pub(super) fn replace_unknown(
    values: &mut PartValues<'_>,
    known: &KnownKeys,
    limit: &LimitSettings,
    client: IpAddr,
) -> bool {
    let (mut has_known, mut has_unknown) = (false, false);
    for value in values.iter_mut().flatten() {
        match value {
            Value::Shown(shown) if known.contains(shown) => has_known = true,
            Value::Shown(_) => {
                *value = Value::Unknown(limit.prefixes.network(client));
                has_unknown = true;
            }
            _ => {}
        }
    }
    if has_known {
        values.retain(|value| !matches!(value, Some(Value::Unknown(_))));
    }
    has_known || !has_unknown || limit.unknown == UnknownKey::Ip
}

/// Returns the name that the limit's file gives to a request's key. `None` if it has none, or if the limit has no exemptions and overrides,
/// which alone ask for it.
pub(super) fn name_of_values<'l>(limit: &'l LimitSettings, values: &[&Option<Value<'_>>]) -> Option<&'l str> {
    let known = limit.known_keys.as_ref()?;
    if limit.overrides.is_empty() && limit.exempt.is_empty() {
        return None;
    }
    match values.get(known.part)? {
        Some(Value::Shown(value)) => known.name_of(value),
        _ => None,
    }
}

/// Returns the name that the limit's file gives to the key of this text, if it does.
pub(crate) fn name_of<'l>(limit: &'l LimitSettings, key: &str) -> Option<&'l str> {
    let known = limit.known_keys.as_ref()?;
    let text = *texts_of(key, limit.key.len())?.get(known.part)?;
    match text.split_once("=sha256/") {
        Some((_, hash)) => known.name_of_hash(hash),
        None => known.name_of(value_in(limit, &limit.key[known.part], text)?.as_bytes()),
    }
}

/// Returns true if a value that the file writes at this place of the key is the name of known keys.
pub(super) fn is_name(limit: &LimitSettings, place: usize, name: Option<&str>, written: &str) -> bool {
    name == Some(written) && limit.known_keys.as_ref().is_some_and(|known| known.part == place)
}

/// Returns true if a value that the file writes at this place of the key is the name of known keys, and no known key itself.
pub(super) fn is_only_name(limit: &LimitSettings, place: usize, written: &str) -> bool {
    let known = limit.known_keys.as_ref().filter(|known| known.part == place);
    known.is_some_and(|known| {
        known.has_name(written) && !known.contains(&limit.key[place].usual(written.as_bytes()))
    })
}
