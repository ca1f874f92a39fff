//! The settings of a limit: its key, how many requests may pass, and everything else the file says
//! about it.
//!
//! Most of this file is the types of a limit's keys in the file, with their units and bounds.

use std::{borrow::Cow, fmt, net::IpAddr, time::Duration};

use hyper::{
    Method, StatusCode,
    header::{AUTHORIZATION, HeaderName},
};
use ipnet::IpNet;
use tollgate_limiter::{
    Algorithm, OnFailure, Prefixes, Quota, Rate, RedissonName, Scope, duration::DurationText,
    key::credentials,
};

use super::KnownKeys;

/// From this window on, limits of descriptors with more permits than [`EXACT_MOST`] count in cells, which take less memory.
const LONG_US: u64 = 24 * 3600 * 1_000_000;
/// The most permits of a long window to count one by one.
const EXACT_MOST: u32 = 10_000;
/// The cells of a long window.
const CELLS: u32 = 60;

/// The settings of a limit: a name, a key, a quota, and how to apply them.
#[derive(Debug, PartialEq)]
pub struct LimitSettings {
    /// The name: lower-case letters, digits and hyphens.
    pub name: String,
    /// The parts of the key, at least one. Each combination of their values is counted by itself.
    pub key: Vec<KeyPart>,
    /// The algorithm and the number of permits.
    pub quota: Quota,
    /// The permits that a request takes. Always one under `concurrency`.
    pub cost: Cost,
    /// True if routes or descriptors state other costs, so that not all requests cost the same.
    pub costs_vary: bool,
    /// The statuses of the responses to charge. Empty means all.
    pub when_status: Vec<StatusRange>,
    /// The gateways that count together.
    pub scope: Scope,
    /// The longest time to hold a request before it is rejected. Zero means none. Always zero under
    /// `concurrency`.
    pub wait: Duration,
    /// The mode: enforce or shadow.
    pub mode: Mode,
    /// The treatment of a request without the key.
    pub missing: Missing,
    /// The keys that it knows. `None` if any key will do.
    pub known_keys: Option<KnownKeys>,
    /// The treatment of a request whose key isn't known.
    pub unknown: UnknownKey,
    /// The prefix lengths that make addresses one caller.
    pub prefixes: Prefixes,
    /// The callers that aren't counted.
    pub exempt: Vec<Exemption>,
    /// The rates of single keys and of patterns, in the order in which they apply.
    pub overrides: Vec<RateOverride>,
    /// The source of the rates that requests state. `None` if they don't.
    pub rate_from: Option<RateFrom>,
    /// True if the values of header fields, cookies and query parameters appear unhashed.
    pub plain: bool,
    /// The failure policy.
    pub on_failure: OnFailure,
    /// The meaning of the costs that callers name.
    pub usage: CostUsage,
    /// True if it gives permits back.
    pub refunds: bool,
    /// The bans of keys that are refused too often.
    pub ban: Option<Ban>,
    /// The names of its limiters in the layout of Redisson, if it has that.
    pub redisson_name: Option<RedissonName>,
}

impl LimitSettings {
    /// Returns a limit of descriptors, whose calls state the costs.
    pub fn of_descriptors(name: String, key: Vec<KeyPart>, quota: Quota, on_failure: OnFailure) -> Self {
        Self {
            name,
            key,
            quota,
            on_failure,
            cost: Cost::Fixed(1),
            costs_vary: true,
            when_status: Vec::new(),
            scope: Scope::Shared,
            wait: Duration::ZERO,
            mode: Mode::Enforce,
            missing: Missing::Skip,
            known_keys: None,
            unknown: UnknownKey::Ip,
            prefixes: Prefixes { ipv4: 32, ipv6: 64 },
            exempt: Vec::new(),
            overrides: Vec::new(),
            rate_from: None,
            plain: false,
            usage: CostUsage::Charged,
            refunds: false,
            ban: None,
            redisson_name: None,
        }
    }
}

/// Returns the algorithm that counts descriptors at a rate which nothing names an algorithm for.
pub fn algorithm_of_descriptors(rate: Rate) -> Algorithm {
    if rate.window_us >= LONG_US && rate.permits > EXACT_MOST {
        Algorithm::SlidingCells { cells: CELLS }
    } else {
        Algorithm::SlidingWindow
    }
}

impl LimitSettings {
    /// Returns true if nothing of the limit needs the response: no lease ends with it, and no cost depends on it.
    pub fn ends_with_decision(&self) -> bool {
        let is_lease = self.quota.algorithm == Algorithm::Concurrency;
        !is_lease && self.when_status.is_empty() && !self.cost.is_of_response()
    }

    /// Returns the names of the request header fields that the limit reads, except for cookies and tokens.
    pub fn fields_read(&self) -> impl Iterator<Item = &HeaderName> {
        let of_rate = self.rate_from.as_ref().map(|from| &from.source);
        let of_parts = self.key.iter().chain(of_rate).filter_map(|part| match part {
            KeyPart::Header(name) => Some(name),
            _ => None,
        });
        let of_cost = if let Cost::Header(name) = &self.cost { Some(name) } else { None };
        of_parts.chain(of_cost)
    }
}

/// A part of a limit's key. Displays as it is written in the file: `header:x-api-key`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// The client's address, up to the limit's prefix length.
    Ip,
    /// The value of a request header field.
    Header(HeaderName),
    /// The value of a cookie.
    Cookie(String),
    /// The value of a query parameter.
    Query(String),
    /// The value of a path parameter, which all routes of the limit must have.
    Path(String),
    /// A claim of the request's token, verified by the configuration's `jwt`.
    Jwt(String),
    /// The host of the request.
    Host,
    /// The method of the request.
    Method,
    /// The name of the route.
    Route,
    /// The value of a descriptor's entry.
    Descriptor(String),
    /// A constant: all requests count together.
    Global,
}

impl KeyPart {
    /// Returns the value of `method` by which requests are counted: the method, or `other` for all that neither RFC 9110 nor RFC 5789
    /// defines. Servers that don't look at the method answer each that a client invents.
    pub fn method_value(method: &Method) -> &str {
        match *method {
            Method::GET
            | Method::HEAD
            | Method::POST
            | Method::PUT
            | Method::DELETE
            | Method::CONNECT
            | Method::OPTIONS
            | Method::TRACE
            | Method::PATCH => method.as_str(),
            _ => "other",
        }
    }

    /// Returns the kind as written in the file, with a colon if a name follows, and the name.
    pub fn name(&self) -> [&str; 2] {
        match self {
            Self::Ip => ["ip", ""],
            Self::Header(name) => ["header:", name.as_str()],
            Self::Cookie(name) => ["cookie:", name],
            Self::Query(name) => ["query:", name],
            Self::Path(param) => ["path:", param],
            Self::Jwt(claim) => ["jwt:", claim],
            Self::Host => ["host", ""],
            Self::Method => ["method", ""],
            Self::Route => ["route", ""],
            Self::Descriptor(key) => ["descriptor:", key],
            Self::Global => ["global", ""],
        }
    }

    /// Returns the ordinary spelling of a value that people write.
    pub fn usual<'v>(&self, value: &'v [u8]) -> Cow<'v, [u8]> {
        match self {
            Self::Header(name) if *name == AUTHORIZATION => credentials::usual(value),
            _ => value.into(),
        }
    }

    /// Returns true if values of this part may be credentials, so that they are hashed.
    pub fn may_be_credential(&self) -> bool {
        matches!(self, Self::Header(_) | Self::Cookie(_) | Self::Query(_) | Self::Descriptor(_))
    }
}

impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name().into_iter().try_for_each(|text| f.write_str(text))
    }
}

/// The permits that a request takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cost {
    /// This many, from 1 to [`Rate::MAX_PERMITS`].
    Fixed(u32),
    /// The number in this request header field; 1 without the field.
    Header(HeaderName),
    /// The number in this response header field or trailer.
    Response {
        /// The name of the field.
        header: HeaderName,
        /// The permits to charge until the response arrives, at least 1. They stay charged if it lacks the
        /// field.
        estimate: u32,
    },
    /// The number in the JSON of the response's body.
    ResponseJson {
        /// The place of the number.
        pointer: JsonPointer,
        /// The permits to charge until the response arrives, at least 1. They stay charged if it lacks the
        /// number.
        estimate: u32,
    },
}

impl Cost {
    /// Returns true if the response states it.
    pub fn is_of_response(&self) -> bool {
        matches!(self, Self::Response { .. } | Self::ResponseJson { .. })
    }
}

/// A place in JSON (RFC 6901): the keys and indexes that lead there, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonPointer(pub Vec<String>);

impl JsonPointer {
    /// The most bytes of a key.
    pub const KEY_BYTES: usize = 128;
    /// The most keys and indexes.
    const KEYS_MOST: usize = 16;

    /// Reads a pointer as it is written. `None` if it isn't one.
    pub fn parse(text: &str) -> Option<Self> {
        let keys: Vec<String> =
            text.strip_prefix('/')?.split('/').map(|key| key.replace("~1", "/").replace("~0", "~")).collect();
        let is_good = keys.len() <= Self::KEYS_MOST && keys.iter().all(|key| key.len() <= Self::KEY_BYTES);
        is_good.then_some(Self(keys))
    }
}

/// Writes the pointer as in the file: `/usage/total_tokens`.
impl fmt::Display for JsonPointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|key| write!(f, "/{}", key.replace('~', "~0").replace('/', "~1")))
    }
}

/// The bans of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ban {
    /// The refusals within a time that lead to a ban.
    pub after: Rate,
    /// The duration of a ban.
    pub lasts: Duration,
}

/// Writes both as in the file: `after 10/min, for 1h`.
impl fmt::Display for Ban {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "after {} refusals, for {}", self.after, DurationText(self.lasts.as_micros() as u64))
    }
}

/// The meaning of the costs that callers name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CostUsage {
    /// The cost is what a request asks for: it is charged if it fits.
    #[default]
    Charged,
    /// The cost is what has been used: 0 asks whether there is room, and anything else is recorded, also if it doesn't fit.
    Reported,
}

/// A single status, or a class of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusRange {
    /// The first status, at least 100.
    pub first: u16,
    /// The last status, at most 599.
    pub last: u16,
}

impl StatusRange {
    /// Returns true if the status is in the range.
    pub fn matches(self, status: StatusCode) -> bool {
        (self.first..=self.last).contains(&status.as_u16())
    }
}

/// Writes the range as in the file: `401`, `4xx`.
impl fmt::Display for StatusRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}xx", self.first / 100)
        }
    }
}

/// The mode of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Reject requests that exceed the limit.
    Enforce,
    /// Count and report, but reject nothing.
    Shadow,
}

/// The treatment of a request without a limit's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Count it by its address.
    Ip,
    /// Skip the limit.
    Skip,
    /// Reject it with 429.
    Deny,
}

/// The treatment of a request whose key isn't in the limit's file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownKey {
    /// Count it by its address, as callers that lack the key.
    #[default]
    Ip,
    /// Reject it with 401.
    Deny,
}

/// A caller that isn't counted.
#[derive(Debug, PartialEq, Eq)]
pub enum Exemption {
    /// Clients of this network.
    Network(IpNet),
    /// Requests whose key has these values, one per part.
    Key(Vec<String>),
}

/// The rate of a single key or of several, instead of the limit's.
#[derive(Debug, PartialEq, Eq)]
pub struct RateOverride {
    /// The values of the key, one per part, as they occur in requests. `None` stands for any value.
    pub key: Vec<Option<String>>,
    /// The rate. Under `concurrency` its window is that of the quota. No permits block the key.
    pub rate: Rate,
}

impl RateOverride {
    /// Returns the values of the only key that this applies to. `None` if there may be several.
    pub fn single(&self) -> Option<Vec<String>> {
        self.key.iter().cloned().collect()
    }
}

/// The source of the rates that requests state, which come before the file's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateFrom {
    /// The part of a request with the number of permits: a claim, or a header field that trusted proxies set.
    pub source: KeyPart,
    /// The most permits that a request can state.
    pub max: u32,
}

/// Parses a key as people write it into the values of its parts. A key of several parts is a JSON array,
/// `["v1","v2"]`.
///
/// The values are normalized as those of requests are. An address becomes its network, for example.
///
/// # Errors
/// The text isn't a value of this key. The error is a message and a line that says how to fix it.
pub fn read_key(written: &str, key: &[KeyPart], prefixes: Prefixes) -> Result<Vec<String>, String> {
    let malformed = || {
        let example = vec!["\"…\""; key.len()].join(",");
        format!(
            "`{written}` is not a value of a key with {} parts\nwrite one value per part: '[{example}]'",
            key.len()
        )
    };
    let mut values = match key {
        [_] => vec![written.to_owned()],
        _ => serde_json::from_str::<Vec<String>>(written).map_err(|_| malformed())?,
    };
    if values.len() != key.len() {
        return Err(malformed());
    }
    for (value, part) in values.iter_mut().zip(key) {
        *value = match part {
            KeyPart::Ip => match value.parse::<IpAddr>() {
                Ok(address) => prefixes.network(address.to_canonical()).to_string(),
                Err(_) => {
                    return Err(format!(
                        "`{value}` is not a valid address\nwrite an address of the caller's network: \"192.0.2.7\""
                    ));
                }
            },
            KeyPart::Host => value.to_ascii_lowercase(),
            // The value is the same for all requests, so the text doesn't matter.
            KeyPart::Global => String::new(),
            _ => continue,
        };
    }
    Ok(values)
}
