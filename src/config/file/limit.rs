//! The limits of the file.

use std::fmt;

use hyper::header::HeaderName;
use schemars::JsonSchema;
use serde::{
    Deserialize, Deserializer,
    de::{self, value::MapAccessDeserializer},
};

use super::{Spanned, SpannedTable, ValueList};
use crate::{
    algorithm::Rate,
    config::{
        Cost, Exemption, KeyPart, Missing, Mode, OnFailure, Scope, StatusRange,
        value::{AlgorithmName, AnyRate, FromText, LeaseDuration, ParsedText, Wait, Whole},
    },
};

/// As many permits as there can be.
type Permits = Whole<1, { Rate::MAX_PERMITS }>;

/// `[limits.NAME]`, or a limit written into a route.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct LimitTable {
    /// The name. Required in a route; elsewhere it stands in the table's header.
    pub name: Option<Spanned<String>>,
    /// Who is counted, one or a list counted together: `"ip"`, `"header:NAME"`, `"cookie:NAME"`,
    /// `"query:NAME"`, `"path:PARAM"`, `"jwt:CLAIM"`, `"host"`, `"method"`, `"route"` or `"global"`. Required.
    pub key: Option<Spanned<ValueList<KeyPart>>>,
    /// Permits in a time: `"100/10s"`, `"5/s"`, `"60/min"`, `"1000/h"`, `"10000/day"`; for `"concurrency"` at
    /// a time: `"20"`. Required.
    pub rate: Option<Spanned<ParsedText<AnyRate>>>,
    /// How requests are counted: exactly in any window (`"sliding-window"`), nearly so in little memory
    /// (`"sliding-cells"`), in windows one after the other (`"fixed-window"`), as water that drains from a
    /// bucket (`"gcra"`), or while they run (`"concurrency"`). Default: `"sliding-window"`.
    pub algorithm: ParsedText<AlgorithmName>,
    /// For `"gcra"`: permits that may be taken at once, at least 1. Default: as many as the rate has.
    pub burst: Option<Spanned<Permits>>,
    /// For `"sliding-cells"`: parts of a window that are each counted as one, 1 to 1000. Default: 60.
    pub cells: Option<Spanned<Whole<1, 1000>>>,
    /// For `"concurrency"`: the time after which the requests of a gateway that died no longer count, `"1s"` to
    /// `"1h"`. Default: `"30s"`.
    pub lease: Option<Spanned<ParsedText<LeaseDuration>>>,
    /// Permits that a request takes: a number, at least 1; a header of the request that says it
    /// (`"header:x-cost"`; without it 1); or one of the response, with what is charged until it comes:
    /// `{ response_header = "x-tokens-used", estimate = 1 }`. Default: 1.
    pub cost: Spanned<Cost>,
    /// Responses that are charged, one or a list: `"401"`, `"4xx"`. Default: all.
    pub when_status: Option<Spanned<ValueList<StatusRange>>>,
    /// Who counts together: all gateways on the store (`"shared"`), or each process by itself
    /// (`"instance"`). Default: `"shared"`.
    pub scope: ParsedText<Scope>,
    /// Holds a refused request up to so long instead of refusing it, at most `"1h"`. Default: `"0s"`.
    pub wait: Spanned<ParsedText<Wait>>,
    /// `"enforce"` the limit, or `"shadow"` it: count and report, refuse nobody. Default: `"enforce"`.
    pub mode: ParsedText<Mode>,
    /// What to do with a request that lacks the key: count it by its address (`"ip"`), `"skip"` the limit,
    /// or `"deny"` the request with 429. Default: `"ip"`.
    pub missing: ParsedText<Missing>,
    /// Leading bits of an IPv4 address that are one caller, 1 to 32. Default: 32.
    pub ipv4_prefix: Whole<1, 32>,
    /// Leading bits of an IPv6 address that are one caller, 1 to 128. Default: 64.
    pub ipv6_prefix: Whole<1, 128>,
    /// Who isn't counted: networks of callers (`"10.0.0.0/8"`) and values of the key. Default: nobody.
    pub exempt: Vec<Spanned<ParsedText<Exemption>>>,
    /// Other rates for values of the key: `{ key = "gold", rate = "1000/10s" }`. Default: none.
    pub overrides: Vec<SpannedTable<OverrideTable>>,
    /// Whether header, cookie and query values appear unhashed in the store, the logs and the metrics.
    /// Default: false.
    pub plain: bool,
    /// As the store's `on_failure`, for this limit. Default: the store's.
    pub on_failure: Option<Spanned<ParsedText<OnFailure>>>,
}

impl Default for LimitTable {
    fn default() -> Self {
        Self {
            name: None,
            key: None,
            rate: None,
            algorithm: ParsedText(AlgorithmName::SlidingWindow),
            burst: None,
            cells: None,
            lease: None,
            cost: Spanned::new(0..0, Cost::Fixed(1)),
            when_status: None,
            scope: ParsedText(Scope::Shared),
            wait: Spanned::new(0..0, ParsedText(Wait::default())),
            mode: ParsedText(Mode::Enforce),
            missing: ParsedText(Missing::Ip),
            ipv4_prefix: Whole(32),
            ipv6_prefix: Whole(64),
            exempt: Vec::new(),
            overrides: Vec::new(),
            plain: false,
            on_failure: None,
        }
    }
}

/// One of a limit's `overrides`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct OverrideTable {
    /// The value of the key; of a key with several parts a JSON array: `'["v1","v2"]'`. Required.
    pub key: Option<Spanned<ParsedText<String>>>,
    /// The rate, written as the limit's. Required.
    pub rate: Option<Spanned<ParsedText<AnyRate>>>,
}

impl<'de> Deserialize<'de> for Cost {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(CostVisitor)
    }
}

struct CostVisitor;

const COST: &str =
    "a whole number from 1 to 2147483647, \"header:NAME\", or { response_header = \"NAME\", estimate = 1 }";

impl<'de> de::Visitor<'de> for CostVisitor {
    type Value = Cost;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(COST)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Cost, E> {
        let permits = u32::try_from(number).ok().filter(|permits| (1..=Rate::MAX_PERMITS).contains(permits));
        permits.map(Cost::Fixed).ok_or_else(|| E::invalid_value(de::Unexpected::Signed(number), &self))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Cost, E> {
        let name = text.starts_with("header").then(|| KeyPart::read(text));
        match name.transpose().map_err(E::custom)? {
            Some(KeyPart::Header(name)) => Ok(Cost::Header(name)),
            _ => Err(E::custom(format!("`{text}` is no cost\nwrite {COST}"))),
        }
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Cost, A::Error> {
        let cost = ResponseCostTable::deserialize(MapAccessDeserializer::new(map))?;
        let missing = "this cost lacks its `response_header`\nsay which header of the response tells it: response_header = \"x-tokens-used\"";
        let header = cost.response_header.ok_or_else(|| de::Error::custom(missing))?.0;
        Ok(Cost::Response { header, estimate: cost.estimate.0 })
    }
}

/// A cost that the response tells.
#[derive(Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct ResponseCostTable {
    /// The header or trailer that says it. Required.
    response_header: Option<ParsedText<HeaderName>>,
    /// What is charged until then, at least 1. Default: 1.
    estimate: Permits,
}

impl Default for ResponseCostTable {
    fn default() -> Self {
        Self { response_header: None, estimate: Whole(1) }
    }
}

/// A limit in a route's list.
#[derive(Debug)]
pub(in crate::config) enum RouteLimit {
    /// One that is defined elsewhere.
    Name(String),
    /// One that is defined here.
    Inline(Box<LimitTable>),
}

impl<'de> Deserialize<'de> for RouteLimit {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(RouteLimitVisitor)
    }
}

struct RouteLimitVisitor;

impl<'de> de::Visitor<'de> for RouteLimitVisitor {
    type Value = RouteLimit;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a limit, or a table with a `name`, a `key` and a `rate`")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<RouteLimit, E> {
        Ok(RouteLimit::Name(name.to_owned()))
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<RouteLimit, A::Error> {
        LimitTable::deserialize(MapAccessDeserializer::new(map)).map(Box::new).map(RouteLimit::Inline)
    }
}
