//! A limit as it is run: who is counted, how many requests may pass, and what else the file says of it.

use std::{fmt, net::IpAddr, time::Duration};

use hyper::{StatusCode, header::HeaderName};
use ipnet::IpNet;

use super::OnFailure;
use crate::algorithm::{Quota, Rate};

/// A named rule: who is counted, and how many requests may pass.
#[derive(Debug, PartialEq)]
pub struct LimitSettings {
    /// Lower-case letters, digits and hyphens.
    pub name: String,
    /// Who is counted: these together, at least one.
    pub key: Vec<KeyPart>,
    /// How many may pass, and how they are counted.
    pub quota: Quota,
    /// Permits that a request takes. Under `concurrency`, one.
    pub cost: Cost,
    /// The statuses that are charged; none if all are.
    pub when_status: Vec<StatusRange>,
    /// Who counts together.
    pub scope: Scope,
    /// For which a refused request is held at most; zero if it isn't. Under `concurrency`, zero.
    pub wait: Duration,
    /// Whether it refuses.
    pub mode: Mode,
    /// What to do with a request that lacks the key.
    pub missing: Missing,
    /// Which addresses are one caller.
    pub prefixes: Prefixes,
    /// Who isn't counted.
    pub exempt: Vec<Exemption>,
    /// Who has another rate, each key once.
    pub overrides: Vec<RateOverride>,
    /// Whether header, cookie and query values appear unhashed.
    pub plain: bool,
    /// What to do when the store can't answer.
    pub on_failure: OnFailure,
}

/// What of a request tells who is counted. Prints as it is written: `header:x-api-key`.
#[derive(Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// The client's address, up to the limit's prefix.
    Ip,
    /// The value of a header.
    Header(HeaderName),
    /// The value of a cookie.
    Cookie(String),
    /// The value of a query parameter.
    Query(String),
    /// The value of a path parameter, which all routes of the limit have.
    Path(String),
    /// A claim of the token that the request bears, verified by the configuration's `jwt`.
    Jwt(String),
    /// The host that is asked for.
    Host,
    /// The method.
    Method,
    /// The name of the route.
    Route,
    /// Nothing: everybody together.
    Global,
}

impl KeyPart {
    /// As in the file: what kind of part it is, with a colon if a name follows, and that name.
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
            Self::Global => ["global", ""],
        }
    }
}

impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name().into_iter().try_for_each(|text| f.write_str(text))
    }
}

/// Permits that a request takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cost {
    /// So many, from 1 to [`Rate::MAX_PERMITS`].
    Fixed(u32),
    /// As many as this header of the request says; 1 without it.
    Header(HeaderName),
    /// As many as this header or trailer of the response says.
    Response {
        /// Which one.
        header: HeaderName,
        /// What is charged before the response tells, at least 1, and what stays if it doesn't tell.
        estimate: u32,
    },
}

/// A class of statuses, or a single one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusRange {
    /// The first, at least 100.
    pub first: u16,
    /// The last, at most 599.
    pub last: u16,
}

impl StatusRange {
    /// Whether the status is one of them.
    pub fn matches(self, status: StatusCode) -> bool {
        (self.first..=self.last).contains(&status.as_u16())
    }
}

/// As it is written: `401`, `4xx`.
impl fmt::Display for StatusRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}xx", self.first / 100)
        }
    }
}

/// Who counts together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All gateways on the store.
    Shared,
    /// This process alone, which doesn't ask the store.
    Instance,
}

/// Whether a limit refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It does.
    Enforce,
    /// It counts and reports, and refuses nobody.
    Shadow,
}

/// What to do with a request that lacks the key of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Count it by its address.
    Ip,
    /// Skip the limit.
    Skip,
    /// Answer 429.
    Deny,
}

/// Who isn't counted.
#[derive(Debug, PartialEq, Eq)]
pub enum Exemption {
    /// Clients of this network.
    Network(IpNet),
    /// Requests whose key has this value, one for each of its parts.
    Key(Vec<String>),
}

/// Another rate for those with one key.
#[derive(Debug, PartialEq, Eq)]
pub struct RateOverride {
    /// The values of the key, one for each of its parts, as a request shows them.
    pub key: Vec<String>,
    /// The rate. Under `concurrency` its window is the quota's.
    pub rate: Rate,
}

/// Leading bits of an address that are one caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefixes {
    /// Of an IPv4 address, 1 to 32.
    pub ipv4: u8,
    /// Of an IPv6 address, 1 to 128.
    pub ipv6: u8,
}

impl Prefixes {
    /// The network of an address: its leading bits, the rest of it zero.
    pub fn network(self, address: IpAddr) -> IpAddr {
        let prefix = if address.is_ipv4() { self.ipv4 } else { self.ipv6 };
        IpNet::new(address, prefix).expect("a prefix within the address").trunc().addr()
    }
}

/// The values of a key as people write it, one for each of these parts: several stand in a JSON array,
/// `["v1","v2"]`. They are as a request shows them: an address stands for its network.
///
/// # Errors
/// A message and, on a line of its own, the remedy.
pub fn read_key(written: &str, key: &[KeyPart], prefixes: Prefixes) -> Result<Vec<String>, String> {
    let malformed = || {
        let example = vec!["\"…\""; key.len()].join(",");
        format!(
            "`{written}` is no value of a key with {} parts\nwrite their values as '[{example}]'",
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
                        "`{value}` is no address\nwrite one of the caller's network: \"192.0.2.7\""
                    ));
                }
            },
            KeyPart::Host => value.to_ascii_lowercase(),
            // Everybody has the same, whatever it is called.
            KeyPart::Global => String::new(),
            _ => continue,
        };
    }
    Ok(values)
}
