//! A limit as it is run: who is counted, how many requests may pass, and what else the file says of it.

use std::fmt;

use hyper::header::HeaderName;
use ipnet::IpNet;

use super::OnFailure;
use crate::algorithm::Quota;

/// A named rule: who is counted, and how many requests may pass.
#[derive(Debug, PartialEq)]
pub struct Limit {
    /// Lower-case letters, digits and hyphens.
    pub name: String,
    /// Who is counted: these together, at least one.
    pub key: Vec<KeyPart>,
    /// How many may pass, and how they are counted.
    pub quota: Quota,
    /// Whether it refuses.
    pub mode: Mode,
    /// What to do with a request that lacks the key.
    pub missing: Missing,
    /// Leading bits of an IPv4 address that are one caller, 1 to 32.
    pub ipv4_prefix: u8,
    /// Leading bits of an IPv6 address that are one caller, 1 to 128.
    pub ipv6_prefix: u8,
    /// Who isn't counted.
    pub exempt: Vec<Exemption>,
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
    /// The host that is asked for.
    Host,
    /// The method.
    Method,
    /// The name of the route.
    Route,
    /// Nothing: everybody together.
    Global,
}

impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip => f.write_str("ip"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Cookie(name) => write!(f, "cookie:{name}"),
            Self::Query(name) => write!(f, "query:{name}"),
            Self::Path(param) => write!(f, "path:{param}"),
            Self::Host => f.write_str("host"),
            Self::Method => f.write_str("method"),
            Self::Route => f.write_str("route"),
            Self::Global => f.write_str("global"),
        }
    }
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
