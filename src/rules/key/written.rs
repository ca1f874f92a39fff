//! Keys as operators write them, and as they are shown.
//!
//! An operator may write the value that clients send, and copy a key from wherever one is shown. Values that come from clients are read
//! by [`key_of_values`] only, or a client could name another one's bucket.

use std::net::IpAddr;

use percent_encoding::percent_decode_str;
use smallvec::SmallVec;
use tollgate_limiter::{
    Key,
    key::{HASH_DIGITS, hashed_text, kind_text, network_text},
};

use super::{joined, may_be_lacking, of_values, text_of_written, texts_of};
use crate::config::{KeyPart, KnownKeys, LimitSettings, read_key};

const KNOWN_REMEDY: &str =
    "write the key as clients send it, or `sha256:…` as it is shown, or its name if no other key has that";

/// Parses a key as operators write it: as clients send it, `["v1","v2"]` for a key of several parts, or as it is shown.
///
/// An address stands for its network, `sha256:<hash>` for a hashed value, the name in `keys_file` for a known key, and `ip:<address>`
/// for a caller that lacks the key and is counted by address.
///
/// # Errors
/// It isn't a value of the limit's key: a message and, on a line of its own, the remedy.
pub fn key_of(limit: &LimitSettings, written: &str) -> Result<Key, String> {
    let texts = texts_of(written, limit.key.len()).unwrap_or_default();
    let shown = limit.key.iter().zip(texts).map(|(part, text)| shown_text(limit, part, text));
    match shown.collect::<Option<SmallVec<_>>>() {
        Some(texts) if !texts.is_empty() => Ok(Key::of_text(joined(texts))),
        _ => parse(limit, written),
    }
}

/// Parses a key that a client sent, in the same form, as nothing but values.
///
/// # Errors
/// It isn't a value of the limit's key: a message and, on a line of its own, the remedy.
pub(crate) fn key_of_values(limit: &LimitSettings, written: &str) -> Result<Key, String> {
    Ok(of_values(limit, &read_key(written, &limit.key, limit.prefixes)?))
}

/// Returns a key's text in the form that [`key_of`] parses. `None` if it isn't a key of this limit, whose configuration may have
/// changed, or isn't UTF-8.
pub fn written(limit: &LimitSettings, text: &str) -> Option<String> {
    // A value may look like another form.
    let names_it = |shown: &String| key_of(limit, shown).is_ok_and(|key| key.as_str() == text);
    [values_in(limit, text)?, text.to_owned()].into_iter().find(names_it)
}

/// Parses the values of a key.
fn parse(limit: &LimitSettings, written: &str) -> Result<Key, String> {
    let values = read_key(written, &limit.key, limit.prefixes)?;
    let texts = (limit.key.iter().zip(&values).enumerate()).map(|(place, (part, value))| {
        if let Some(hash) = named_hash(value) {
            return Ok(hashed_text(part.name(), hash));
        }
        if let Some(client) = named_address(limit, part, value) {
            return Ok(network_text(limit.prefixes.network(client)));
        }
        match &limit.known_keys {
            Some(known) if known.part == place => known_text(limit, part, value, known),
            _ => Ok(text_of_written(limit, part, value)),
        }
    });
    Ok(Key::of_text(joined(texts.collect::<Result<_, _>>()?)))
}

/// Returns the text of the part that must be known, whose value may be a name in the limit's file.
fn known_text(
    limit: &LimitSettings,
    part: &KeyPart,
    value: &str,
    known: &KnownKeys,
) -> Result<String, String> {
    let text = text_of_written(limit, part, value);
    if known.contains(&part.usual(value.as_bytes())) {
        return Ok(text);
    }
    let is_hashed = !limit.plain && limit.redisson_name.is_none();
    match &known.hashes_of(value)[..] {
        [_, ..] if !is_hashed => {
            let fault = "this is a name in `keys_file`, which has only the key's hash\nwrite the key as clients send it";
            Err(fault.to_owned())
        }
        [hash] => Ok(hashed_text(part.name(), &hash[..HASH_DIGITS])),
        [] => Err(format!("`keys_file` has no such key, and no key of this name\n{KNOWN_REMEDY}")),
        several => Err(format!("{} keys in `keys_file` have this name\n{KNOWN_REMEDY}", several.len())),
    }
}

/// Returns the values in a key's text. `None` if it isn't a key of this limit, or isn't UTF-8.
fn values_in(limit: &LimitSettings, text: &str) -> Option<String> {
    let texts = texts_of(text, limit.key.len())?;
    let values = limit.key.iter().zip(texts).map(|(part, text)| value_in(limit, part, text));
    let mut values = values.collect::<Option<Vec<String>>>()?;
    match values.len() {
        1 => values.pop(),
        _ => serde_json::to_string(&values).ok(),
    }
}

/// Returns the value in the text of a part. `None` if it isn't of this part.
pub(super) fn value_in(limit: &LimitSettings, part: &KeyPart, text: &str) -> Option<String> {
    let (kind, value) = text.split_once('=')?;
    let value = match value.strip_prefix("sha256/") {
        Some(hash) => format!("sha256:{hash}"),
        None => percent_decode_str(value).decode_utf8().ok()?.into_owned(),
    };
    if kind_text(part.name()) == format!("{kind}=") {
        return Some(if *part == KeyPart::Global { "global".to_owned() } else { value });
    }
    (may_be_lacking(limit, part) && kind == KeyPart::Ip.to_string()).then(|| format!("ip:{value}"))
}

/// Returns the text of a part that is written as a bucket's name has it. `None` if it isn't.
fn shown_text(limit: &LimitSettings, part: &KeyPart, text: &str) -> Option<String> {
    let value = value_in(limit, part, text)?;
    let is_address = text.starts_with(&kind_text(KeyPart::Ip.name()));
    if is_address && let Ok(client) = value.strip_prefix("ip:").unwrap_or(&value).parse::<IpAddr>() {
        return Some(network_text(limit.prefixes.network(client.to_canonical())));
    }
    match part {
        KeyPart::Global => Some(text_of_written(limit, part, "")),
        KeyPart::Host => Some(text_of_written(limit, part, &value.to_ascii_lowercase())),
        _ => {
            let is_hash = text.contains("=sha256/") && named_hash(&value).is_some();
            (is_hash || text_of_written(limit, part, &value) == text).then(|| text.to_owned())
        }
    }
}

/// Returns the hash in `sha256:<hash>`, or in `sha256/<hash>` as buckets have it.
fn named_hash(value: &str) -> Option<&str> {
    let is_hash = |hash: &&str| {
        hash.len() == HASH_DIGITS && hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    value.strip_prefix("sha256:").or_else(|| value.strip_prefix("sha256/")).filter(is_hash)
}

/// Returns the address in `ip:<address>`, where that stands for a part of the key that a caller lacks.
fn named_address(limit: &LimitSettings, part: &KeyPart, value: &str) -> Option<IpAddr> {
    let address = value.strip_prefix("ip:").filter(|_| may_be_lacking(limit, part))?;
    Some(address.parse::<IpAddr>().ok()?.to_canonical())
}
