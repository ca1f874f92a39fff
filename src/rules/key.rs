//! The key of a request for a limit, as the text that names its bucket.
//!
//! The text is injective, so that no two callers share a bucket: `kind=value`, the value
//! percent-encoded outside `[A-Za-z0-9._:-]`, and each part's length before it where a key has
//! several. Long values are hashed, and so are those that may be credentials. A hash is marked by a
//! `/`, which no encoded value contains.
//!
//! Servers differ in how they read a spelling of a credential, a cookie or a query. A request counts for each key that
//! one of them may read. With more than [`MOST_READINGS`] it is rejected: docs/adr/0005.
//!
//! Keys that operators write ([`written`]) must be equal to those of requests, so the functions that make a key's text stand here, for
//! both.

mod charset;
mod cookie;
mod credentials;
pub(crate) mod descriptor;
pub mod jwt;
mod known;
mod query;
mod rates;
mod readings;
mod written;

use std::{borrow::Cow, net::IpAddr};

use hyper::{
    HeaderMap, Method,
    header::{self, AUTHORIZATION, HeaderName, HeaderValue},
};
use percent_encoding::percent_decode_str;
use smallvec::{SmallVec, smallvec};
use tollgate_limiter::{
    Key, Rate, RedissonName,
    key::{kind_text, network_text, value_text, whole_value_text},
    text,
};

use self::{
    jwt::Claims,
    known::{is_name, name_of_values, replace_unknown},
    rates::stated_rate,
    readings::{Readings, TooManyReadings, field_value, form_decoded},
};
use crate::config::{self, Exemption, KeyPart, Missing, RateOverride, UnknownKey};

pub use self::written::{key_of, written};
pub(crate) use self::{
    known::name_of,
    rates::{OwnRates, is_pattern, own_text},
    readings::MOST_READINGS,
    written::key_of_values,
};

/// The parts of a request that keys are read from.
pub struct Subject<'r> {
    /// The client's address, as trusted proxies tell it.
    pub client: IpAddr,
    /// The request's method.
    pub method: &'r Method,
    /// The host asked for, in lower case and without a port; empty if there is none.
    pub host: &'r str,
    /// The query as it came, without the `?`.
    pub query: &'r str,
    /// The queries of servers that end the path earlier.
    pub queries_in_path: &'r [String],
    /// The request's header.
    pub headers: &'r HeaderMap,
    /// True if a trusted proxy set the header fields that only it may set.
    pub peer_is_trusted: bool,
    /// The claims of the token that it bears.
    pub claims: &'r Claims<'r>,
    /// The name of the route.
    pub route: &'r str,
    /// The value of a parameter of the route's path.
    pub parameter: &'r (dyn Fn(&str) -> Option<&'r str> + Sync),
}

/// Returns true if a key has these parts. An address may stand for a part that the request lacked.
pub(crate) fn is_of(key: &str, parts: &[KeyPart]) -> bool {
    let is = |(text, part): (&str, &KeyPart)| {
        [part, &KeyPart::Ip].iter().any(|part| text.starts_with(&kind_text(part.name())))
    };
    texts_of(key, parts.len()).is_some_and(|texts| texts.into_iter().zip(parts).all(is))
}

/// The keys by which a limit counts a request, or the reason why it doesn't.
#[derive(Debug, PartialEq, Eq)]
pub enum Counted {
    /// It counts for these keys: the ordinary one first, then the others that servers may read in the request.
    For(SmallVec<[CountedKey; 1]>),
    /// The request is exempt.
    Exempt {
        /// The place of the entry that exempts it, in the limit's `exempt`.
        entry: usize,
    },
    /// The request lacks the key, and the limit skips such requests.
    Skipped,
    /// The request lacks the key, and the limit refuses such requests.
    Denied,
    /// A part of the key isn't known, and the limit refuses such requests.
    Unknown(String),
    /// A part of the key is a claim, and the token can't be verified now.
    Unverified,
    /// A part of the key has several values, and the upstream may use another one than the gateway.
    Ambiguous(String),
}

/// A key that a request counts for.
#[derive(Debug, PartialEq, Eq)]
pub struct CountedKey {
    /// The key's text.
    pub key: String,
    /// The rate that the request states, or that the file's overrides give it, if any.
    pub rate: Option<Rate>,
    /// True if clients can invent keys that have this rate.
    pub is_rate_of_group: bool,
}

/// Works out the keys of a request under a limit.
///
/// A request is exempt only if each key that servers may read in it is, and denied if one of them denies it.
pub fn count(limit: &config::LimitSettings, subject: &Subject<'_>) -> Counted {
    count_values(limit, subject.client, stated_rate(limit, subject), |part| values(limit, part, subject))
}

/// Works out the keys of a client under a limit. `values` returns the values that servers may read in a part, `stated` is the rate
/// that the client states.
fn count_values<'r>(
    limit: &config::LimitSettings,
    client: IpAddr,
    stated: Option<Rate>,
    values: impl Fn(&KeyPart) -> Result<PartValues<'r>, PartFault>,
) -> Counted {
    let exempts_client =
        |exemption: &Exemption| matches!(exemption, Exemption::Network(network) if network.contains(&client));
    if let Some(entry) = limit.exempt.iter().position(exempts_client) {
        return Counted::Exempt { entry };
    }
    let mut parts = SmallVec::<[PartValues<'_>; 2]>::new();
    let mut readings = 1;
    for (place, part) in limit.key.iter().enumerate() {
        match values(part) {
            Ok(mut values) => {
                let known = limit.known_keys.as_ref().filter(|known| known.part == place);
                if known.is_some_and(|known| !replace_unknown(&mut values, known, limit, client)) {
                    return Counted::Unknown(part.to_string());
                }
                if readings * values.len() > MOST_READINGS {
                    return Counted::Ambiguous(part.to_string());
                }
                if limit.redisson_name.is_some() && *part != KeyPart::Global {
                    values.iter_mut().for_each(drop_unnameable);
                }
                readings *= values.len();
                parts.push(values);
            }
            Err(PartFault::Unverified) => return Counted::Unverified,
            _ => return Counted::Ambiguous(part.to_string()),
        }
    }
    let mut counted = count_reading(limit, client, stated, &parts, 0);
    for number in 1..readings {
        counted = counted.and(count_reading(limit, client, stated, &parts, number));
    }
    counted
}

/// Works out the key of one reading of a request, of those that combine the values of the key's parts.
fn count_reading(
    limit: &config::LimitSettings,
    client: IpAddr,
    stated: Option<Rate>,
    parts: &[PartValues<'_>],
    mut number: usize,
) -> Counted {
    let mut values = SmallVec::<[&Option<Value<'_>>; 2]>::new();
    for part in parts {
        values.push(&part[number % part.len()]);
        number /= part.len();
    }
    if values.iter().any(|value| value.is_none()) {
        match limit.missing {
            Missing::Ip => {}
            Missing::Skip => return Counted::Skipped,
            Missing::Deny => return Counted::Denied,
        }
    }
    let name = name_of_values(limit, &values);
    let exempts_key = |exemption: &Exemption| match exemption {
        Exemption::Key(key) => has_values(limit, &values, name, key.iter().map(Some)),
        Exemption::Network(_) => false,
    };
    if let Some(entry) = limit.exempt.iter().position(exempts_key) {
        return Counted::Exempt { entry };
    }
    let applies =
        |other: &&RateOverride| has_values(limit, &values, name, other.key.iter().map(Option::as_ref));
    let own = limit.overrides.iter().find(applies);
    let rate = stated.or(own.map(|own| own.rate));
    let is_rate_of_group = stated.is_some() || own.is_some_and(|own| own.key.contains(&None));
    let text_of = |(part, value): (&KeyPart, &Option<Value<'_>>)| match value {
        Some(Value::Shown(value)) => text_under(limit, part, value),
        Some(Value::Network(network) | Value::Unknown(network)) => network_text(*network),
        None => network_text(limit.prefixes.network(client)),
    };
    let key = match (&*limit.key, &*values) {
        ([part], [value]) => text_of((part, value)),
        (parts, values) => joined(parts.iter().zip(values.iter().copied()).map(text_of).collect()),
    };
    Counted::For(smallvec![CountedKey { key, rate, is_rate_of_group }])
}

impl Counted {
    /// Combines the outcomes of two readings of a request: a refusal prevails, then keys, then that the limit skips it. It is
    /// exempt if both are.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::For(mut keys), Self::For(others)) => {
                for other in others {
                    if !keys.contains(&other) {
                        keys.push(other);
                    }
                }
                Self::For(keys)
            }
            (one, Self::Exempt { .. }) | (Self::Exempt { .. }, one) => one,
            (one, Self::Skipped) | (Self::Skipped, one) => one,
            (Self::For(_), refused) | (refused, _) => refused,
        }
    }
}

/// Joins the texts of a key's parts: a single one as it is, several with their lengths.
fn joined(mut parts: SmallVec<[String; 2]>) -> String {
    match parts.len() {
        1 => parts.remove(0),
        _ => parts.iter().map(|part| format!("{}:{part}", part.len())).collect::<Vec<_>>().join(","),
    }
}

/// Returns the key with these values.
pub fn of_values(limit: &config::LimitSettings, values: &[String]) -> Key {
    let texts = limit.key.iter().zip(values).map(|(part, value)| text_of_written(limit, part, value));
    Key::of_text(joined(texts.collect()))
}

/// Returns the network whose addresses a key counts together: `2001:db8::/64`. `None` if it has none.
pub(crate) fn network_of(limit: &config::LimitSettings, key: &Key) -> Option<String> {
    let mut texts = texts_of(key.as_str(), limit.key.len())?.into_iter();
    let network: IpAddr = texts.find_map(|text| text.strip_prefix("ip=")?.parse().ok())?;
    let (length, most) = match network {
        IpAddr::V4(_) => (limit.prefixes.ipv4, 32),
        IpAddr::V6(_) => (limit.prefixes.ipv6, 128),
    };
    (length < most).then(|| format!("{network}/{length}"))
}

/// The reason why a part of the key has no value to count by.
#[derive(Clone, Copy)]
enum PartFault {
    /// Servers may read several values in it.
    Several,
    /// It is a claim, and the token can't be verified now.
    Unverified,
}

/// A value that a request shows of a part of the key.
enum Value<'r> {
    Shown(Cow<'r, [u8]>),
    /// The client's.
    Network(IpAddr),
    /// The client's network, in place of a key that isn't in the limit's file.
    Unknown(IpAddr),
}

/// The values that servers may read in a part of the key, at least one. `None` is no value.
type PartValues<'r> = SmallVec<[Option<Value<'r>>; 1]>;

fn values<'r>(
    limit: &config::LimitSettings,
    part: &KeyPart,
    subject: &Subject<'r>,
) -> Result<PartValues<'r>, PartFault> {
    let shown: Option<Cow<'r, [u8]>> = match part {
        KeyPart::Ip => return Ok(smallvec![Some(Value::Network(limit.prefixes.network(subject.client)))]),
        KeyPart::Header(name) => match single(subject.headers, name)? {
            Some(sent) if *name == AUTHORIZATION => return shown_values(credentials::credentials(sent)?),
            Some(sent) => return shown_values(field_value(sent)?),
            None => None,
        },
        KeyPart::Cookie(name) => match single(subject.headers, &header::COOKIE)? {
            Some(line) => return shown_values(cookie::cookie(line, name)?),
            None => None,
        },
        KeyPart::Query(name) => {
            let readings = query::parameter(subject.query, subject.queries_in_path, name)?;
            let has_query = !subject.query.is_empty() || !subject.queries_in_path.is_empty();
            if has_query && !charset::is_without_effect(subject.headers, &readings) {
                return Err(PartFault::Several);
            }
            return shown_values(readings);
        }
        KeyPart::Path(name) => match (subject.parameter)(name) {
            Some(value) if value.contains('+') => return shown_values(parameter_with_plus(value)?),
            value => value.map(|value| percent_decode_str(value).into()),
        },
        KeyPart::Jwt(name) => {
            let text = subject.claims.text(name)?.map(|text| Value::Shown(text.into_bytes().into()));
            // Servers that are strict find no token in another spelling.
            return Ok(match subject.claims.are_usual() || text.is_none() {
                true => smallvec![text],
                false => smallvec![None, text],
            });
        }
        KeyPart::Host => {
            Some(subject.host).filter(|host| !host.is_empty()).map(|host| host.as_bytes().into())
        }
        KeyPart::Method => Some(KeyPart::method_value(subject.method).as_bytes().into()),
        KeyPart::Route => Some(subject.route.as_bytes().into()),
        // A request has no descriptor, and no route has a limit that needs one.
        KeyPart::Descriptor(_) => None,
        KeyPart::Global => Some(b"".as_slice().into()),
    };
    Ok(smallvec![shown.map(Value::Shown)])
}

/// Drops a value that can't be part of a limiter's name in Redisson.
fn drop_unnameable(value: &mut Option<Value<'_>>) {
    value.take_if(|value| matches!(value, Value::Shown(shown) if !RedissonName::accepts(shown)));
}

/// Reads a parameter of the path, in which Fiber and gin may take a `+` for a space.
fn parameter_with_plus(value: &str) -> Result<Readings<'_>, TooManyReadings> {
    let mut readings = Readings::one(Cow::from(percent_decode_str(value)));
    readings.add(form_decoded(value.as_bytes()))?;
    Ok(readings)
}

/// Returns readings as values that a request shows.
fn shown_values(readings: Readings<'_>) -> Result<PartValues<'_>, PartFault> {
    Ok(readings.into_values().into_iter().map(|value| value.map(Value::Shown)).collect())
}

impl From<TooManyReadings> for PartFault {
    fn from(_: TooManyReadings) -> Self {
        Self::Several
    }
}

/// Returns the value of a header field. `None` if the request lacks it.
///
/// # Errors
/// Its lines have different values.
fn single<'r>(headers: &'r HeaderMap, name: &HeaderName) -> Result<Option<&'r [u8]>, PartFault> {
    let mut lines = headers.get_all(name).into_iter().map(HeaderValue::as_bytes);
    let first = lines.next();
    match first {
        Some(first) if lines.any(|other| other != first) => Err(PartFault::Several),
        _ => Ok(first),
    }
}

/// Returns true if a request has this value of a part of the key, as the file writes it. A request that lacks the part has none.
fn has_value(part: &KeyPart, value: &Option<Value<'_>>, own: &str) -> bool {
    match value {
        Some(Value::Shown(value)) => {
            // The file may spell credentials in another way, but with the same end, so few are read for the comparison.
            **value == *own.as_bytes()
                || matches!(part, KeyPart::Header(name) if *name == AUTHORIZATION)
                    && value.last() == own.as_bytes().last()
                    && *part.usual(own.as_bytes()) == **value
        }
        Some(Value::Network(network)) => text::address(*network) == *own,
        Some(Value::Unknown(_)) | None => false,
    }
}

/// Returns true if the key of a request has these values, of which `None` stands for any. `name` is the name that the limit's file gives
/// to it.
fn has_values<'k>(
    limit: &config::LimitSettings,
    values: &[&Option<Value<'_>>],
    name: Option<&str>,
    own: impl ExactSizeIterator<Item = Option<&'k String>>,
) -> bool {
    let has = |(place, (value, own)): (usize, (&&Option<Value<'_>>, Option<&String>))| {
        own.is_none_or(|own| has_value(&limit.key[place], value, own) || is_name(limit, place, name, own))
    };
    values.len() == own.len() && values.iter().zip(own).enumerate().all(has)
}

/// Returns the texts of the parts of a key with this text. `None` if it doesn't have as many.
fn texts_of(key: &str, count: usize) -> Option<Vec<&str>> {
    let mut rest = key;
    if count == 1 {
        return Some(vec![rest]);
    }
    let mut texts = Vec::with_capacity(count);
    while !rest.is_empty() {
        let (length, after) = rest.split_once(':')?;
        let (text, after) = after.split_at_checked(length.parse().ok()?)?;
        texts.push(text);
        rest = after.strip_prefix(',').unwrap_or(after);
    }
    Some(texts).filter(|texts| texts.len() == count)
}

/// Returns a part of a limit's key as text. Java writes the value as it is, so that is whole where Java shares the limit.
fn text_under(limit: &config::LimitSettings, part: &KeyPart, value: &[u8]) -> String {
    match &limit.redisson_name {
        Some(_) => whole_value_text(part.name(), value),
        None => part_text(part, value, limit.plain),
    }
}

/// Returns a part of a limit's key as text, whose value is as people write it.
fn text_of_written(limit: &config::LimitSettings, part: &KeyPart, value: &str) -> String {
    text_under(limit, part, &part.usual(value.as_bytes()))
}

/// Returns a part of the key as text.
fn part_text(part: &KeyPart, value: &[u8], plain: bool) -> String {
    value_text(part.name(), value, plain || !part.may_be_credential())
}

/// Returns true if requests without this part, or with an unknown value of it, are counted by address.
fn may_be_lacking(limit: &config::LimitSettings, part: &KeyPart) -> bool {
    if limit.unknown == UnknownKey::Ip
        && limit.known_keys.as_ref().is_some_and(|known| limit.key[known.part] == *part)
    {
        return true;
    }
    let is_always_there = matches!(
        part,
        KeyPart::Ip | KeyPart::Method | KeyPart::Route | KeyPart::Descriptor(_) | KeyPart::Global
    );
    limit.missing == Missing::Ip && !is_always_there
}

#[cfg(test)]
mod tests;
