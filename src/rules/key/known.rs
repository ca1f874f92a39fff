//! Keys that the limit's file lists, and those that it doesn't.

use std::net::IpAddr;

use super::{PartValues, Value, texts_of};
use crate::config::{KnownKeys, LimitSettings, UnknownKey};

/// Replaces the values that the limit doesn't know by the client's network. Returns false if the limit refuses them.
pub(super) fn are_known(
    values: &mut PartValues<'_>,
    known: &KnownKeys,
    limit: &LimitSettings,
    client: IpAddr,
) -> bool {
    for value in values.iter_mut().flatten() {
        let is_unknown = matches!(value, Value::Shown(shown) if !known.contains(shown));
        match limit.unknown {
            _ if !is_unknown => {}
            UnknownKey::Ip => *value = Value::Unknown(limit.prefixes.network(client)),
            UnknownKey::Deny => return false,
        }
    }
    true
}

/// Returns the name that the limit's file gives to the key of this text, if it does.
pub(crate) fn name_of<'l>(limit: &'l LimitSettings, key: &str) -> Option<&'l str> {
    let known = limit.known_keys.as_ref()?;
    let text = *texts_of(key, limit.key.len())?.get(known.part)?;
    known.name_of_hash(text.split_once("=sha256/")?.1)
}
