//! Keys that are listed in a limit's `keys_file`, and unknown ones.

use std::net::IpAddr;

use super::{PartValues, Value, texts_of};
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

/// Returns the name that the limit's file gives to the key of this text, if it does.
pub(crate) fn name_of<'l>(limit: &'l LimitSettings, key: &str) -> Option<&'l str> {
    let known = limit.known_keys.as_ref()?;
    let text = *texts_of(key, limit.key.len())?.get(known.part)?;
    known.name_of_hash(text.split_once("=sha256/")?.1)
}
