//! The key of a descriptor: its entries stand for parts of a limit's key.

use std::{
    borrow::Cow,
    net::{IpAddr, Ipv4Addr},
};

use hyper::header::AUTHORIZATION;
use percent_encoding::percent_decode;
use smallvec::smallvec;

use super::{Counted, PartFault, PartValues, Value, count_values, credentials, shown_values};
use crate::config::{KeyPart, LimitSettings};

/// Works out the keys of a descriptor under a limit, where `value` returns the value of the entry that stands for a part.
///
/// Any bytes are a value, so that no client can make its own requests uncountable. Only credentials are read in several ways, and
/// refused where that is ambiguous, as in requests.
pub(crate) fn count<'d>(limit: &LimitSettings, value: impl Fn(&KeyPart) -> Option<&'d [u8]>) -> Counted {
    let client = client(&value).unwrap_or(Ipv4Addr::UNSPECIFIED.into());
    count_values(limit, client, None, |part| values(limit, part, value(part)))
}

/// Returns the address of the client, if an entry states it.
pub(crate) fn client<'d>(value: impl Fn(&KeyPart) -> Option<&'d [u8]>) -> Option<IpAddr> {
    address(value(&KeyPart::Ip)?)
}

/// Returns the address that a value states.
pub(crate) fn address(value: &[u8]) -> Option<IpAddr> {
    Some(str::from_utf8(value).ok()?.parse::<IpAddr>().ok()?.to_canonical())
}

/// Returns the values of a part of the key: of credentials what servers may read, and of all else the value as it came.
fn values<'d>(
    limit: &LimitSettings,
    part: &KeyPart,
    value: Option<&'d [u8]>,
) -> Result<PartValues<'d>, PartFault> {
    let shown = match (part, value) {
        (KeyPart::Global, _) => Some(Value::Shown(Cow::Borrowed(b""))),
        (_, None) => None,
        (KeyPart::Ip, Some(value)) => Some(match address(value) {
            Some(client) => Value::Network(limit.prefixes.network(client)),
            None => Value::Shown(Cow::Borrowed(value)),
        }),
        (KeyPart::Header(name), Some(value)) if *name == AUTHORIZATION => {
            return shown_values(credentials::credentials(value)?);
        }
        (KeyPart::Path(_), Some(value)) => Some(Value::Shown(percent_decode(value).into())),
        (KeyPart::Host, Some(value)) => Some(Value::Shown(Cow::Owned(host(value).to_ascii_lowercase()))),
        (_, Some(value)) => Some(Value::Shown(Cow::Borrowed(value))),
    };
    Ok(smallvec![shown])
}

/// Returns a host without its port.
fn host(authority: &[u8]) -> &[u8] {
    let Some(colon) = authority.iter().rposition(|byte| *byte == b':') else { return authority };
    let (host, port) = authority.split_at(colon);
    let is_address = host.contains(&b':') && !host.ends_with(b"]");
    if is_address || !port[1..].iter().all(u8::is_ascii_digit) { authority } else { host }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    use super::*;

    /// Returns the key of a limit with these keys, of a descriptor whose entries state them in order.
    fn key(limit: &str, values: &[&[u8]]) -> String {
        let text = format!("[limits.l]\nrate = \"1/s\"\n{limit}\n");
        let (config, _) = Config::parse("gateway.toml", &text, &|_| None).unwrap();
        let limit = &config.limits["l"];
        let value = |part: &KeyPart| limit.key.iter().position(|own| own == part).map(|at| values[at]);
        match count(limit, value) {
            Counted::For(keys) => keys[0].key.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn any_bytes_are_a_value() {
        let one = |value: &[u8]| key("key = \"descriptor:k\"\nplain = true", &[value]);
        assert_eq!(one(b""), "descriptor:k=");
        assert_eq!(one(b"a b"), "descriptor:k=a%20b");
        assert_eq!(one(b"\xff"), "descriptor:k=%FF");
        assert!(one(&[b'a'; 60 << 10]).starts_with("descriptor:k=sha256/"));
        assert!(key("key = \"descriptor:k\"", &[b"a"]).starts_with("descriptor:k=sha256/"));
    }

    #[test]
    fn entries_stand_for_parts_of_requests() {
        let api_key = key("key = \"header:x-api-key\"", &[b"gold"]);
        let asked = tollgate_limiter::Key::header(&"x-api-key".parse().unwrap(), &"gold".parse().unwrap());
        assert_eq!(api_key, asked.as_str());
        assert_eq!(key("key = \"ip\"", &[b"::ffff:192.0.2.7"]), "ip=192.0.2.7");
        assert_eq!(key("key = \"ip\"", &[b"2001:db8::7"]), "ip=2001:db8::");
        assert_eq!(key("key = \"ip\"", &[b"nobody"]), "ip=nobody");
        assert_eq!(key("key = \"host\"", &[b"API.example.com:8443"]), "host=api.example.com");
        assert_eq!(key("key = \"host\"", &[b"[::1]:80"]), "host=%5B::1%5D");
        let two = key("key = [\"method\", \"route\"]", &[b"GET", b"a"]);
        assert_eq!(two, "10:method=GET,7:route=a");
    }
}
