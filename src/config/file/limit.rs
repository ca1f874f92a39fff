//! The limits of the file.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{self, value::MapAccessDeserializer},
};
use toml::Spanned;

use super::List;
use crate::{
    algorithm::Rate,
    config::{
        Exemption, KeyPart, Missing, Mode, OnFailure,
        value::{AlgorithmName, Text, Whole},
    },
};

/// `[limits.NAME]`, or a limit written into a route.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct Limit {
    /// The name. Required in a route; elsewhere it stands in the table's header.
    pub name: Option<Spanned<String>>,
    /// Who is counted, one or a list counted together: `"ip"`, `"header:NAME"`, `"cookie:NAME"`,
    /// `"query:NAME"`, `"path:PARAM"`, `"host"`, `"method"`, `"route"` or `"global"`. Required.
    pub key: Option<List<KeyPart>>,
    /// Permits in a time: `"100/10s"`, `"5/s"`, `"60/min"`, `"1000/h"`, `"10000/day"`. Required.
    pub rate: Option<Text<Rate>>,
    /// How requests are counted: `"sliding-window"`. Default: `"sliding-window"`.
    pub algorithm: Text<AlgorithmName>,
    /// `"enforce"` the limit, or `"shadow"` it: count and report, refuse nobody. Default: `"enforce"`.
    pub mode: Text<Mode>,
    /// What to do with a request that lacks the key: count it by its address (`"ip"`), `"skip"` the limit,
    /// or `"deny"` the request with 429. Default: `"ip"`.
    pub missing: Text<Missing>,
    /// Leading bits of an IPv4 address that are one caller, 1 to 32. Default: 32.
    pub ipv4_prefix: Whole<1, 32>,
    /// Leading bits of an IPv6 address that are one caller, 1 to 128. Default: 64.
    pub ipv6_prefix: Whole<1, 128>,
    /// Who isn't counted: networks of callers (`"10.0.0.0/8"`) and values of the key. Default: nobody.
    pub exempt: Vec<Spanned<Text<Exemption>>>,
    /// Whether header, cookie and query values appear unhashed in the store, the logs and the metrics.
    /// Default: false.
    pub plain: bool,
    /// As the store's `on_failure`, for this limit. Default: the store's.
    pub on_failure: Option<Text<OnFailure>>,
}

impl Default for Limit {
    fn default() -> Self {
        Self {
            name: None,
            key: None,
            rate: None,
            algorithm: Text(AlgorithmName::SlidingWindow),
            mode: Text(Mode::Enforce),
            missing: Text(Missing::Ip),
            ipv4_prefix: Whole(32),
            ipv6_prefix: Whole(64),
            exempt: Vec::new(),
            plain: false,
            on_failure: None,
        }
    }
}

/// A limit in a route's list.
#[derive(Debug)]
pub(in crate::config) enum LimitOfRoute {
    /// One that is defined elsewhere.
    Name(String),
    /// One that is defined here.
    Inline(Box<Limit>),
}

impl<'de> Deserialize<'de> for LimitOfRoute {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(LimitOfRouteVisitor)
    }
}

struct LimitOfRouteVisitor;

impl<'de> de::Visitor<'de> for LimitOfRouteVisitor {
    type Value = LimitOfRoute;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a limit, or a table with a `name`, a `key` and a `rate`")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<LimitOfRoute, E> {
        Ok(LimitOfRoute::Name(name.to_owned()))
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<LimitOfRoute, A::Error> {
        Limit::deserialize(MapAccessDeserializer::new(map)).map(Box::new).map(LimitOfRoute::Inline)
    }
}
