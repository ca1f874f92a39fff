//! Limits as they are typed.

use std::fmt;

use hyper::header::HeaderName;
use serde::{
    Deserialize, Deserializer,
    de::{self, value::MapAccessDeserializer},
};

use super::{Spanned, SpannedTable, ValueList};
use tollgate_limiter::{OnFailure, Rate, RedissonName, RedissonType, Scope};

use crate::{
    Cost, CostUsage, Exemption, JsonPointer, KeyPart, Missing, Mode, StatusRange, UnknownKey,
    value::{
        AlgorithmName, AnyRate, BanDuration, CalendarOffset, FromText, Layout, LeaseDuration, ParsedText,
        RateSource, Wait, Whole,
    },
};

/// A number of permits.
type Permits = Whole<1, { Rate::MAX_PERMITS }>;

/// `[limits.NAME]`, or a limit defined inline in a route.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct LimitTable {
    /// Name of the limit. Required inline in a route; elsewhere the table's header has it.
    pub name: Option<Spanned<String>>,
    /// Properties of a request that identify the caller, one or a list: `"ip"`, `"header:NAME"`,
    /// `"cookie:NAME"`, `"query:NAME"`, `"path:PARAM"`, `"jwt:CLAIM"`, `"host"`, `"method"`, `"route"`,
    /// `"descriptor:KEY"` for descriptors, or `"global"`. With a list, each combination of values is counted by itself. Methods other
    /// than those of HTTP (RFC 9110) and PATCH are counted together, as `other`. Required.
    pub key: Option<Spanned<ValueList<KeyPart>>>,
    /// Permits per time: `"100/10s"`, `"5/s"`, `"60/min"`, `"1000/h"`, `"10000/day"`. For `"concurrency"`,
    /// the permits in use at a time: `"20"`. With `calendar`: `"10000/month"`. Required.
    pub rate: Option<Spanned<ParsedText<AnyRate>>>,
    /// Algorithm: `"sliding-window"` is exact in any window, `"sliding-cells"` nearly so with little memory,
    /// `"fixed-window"` counts in consecutive windows, `"gcra"` is a leaky bucket, and `"concurrency"` counts
    /// requests in flight. Default: `"sliding-window"`.
    pub algorithm: ParsedText<AlgorithmName>,
    /// For `"gcra"`: permits that can be taken at once, at least 1. Default: the rate's number of permits.
    pub burst: Option<Spanned<Permits>>,
    /// For `"sliding-cells"`: number of cells in a window, 1 to 1000. Default: 60.
    pub cells: Option<Spanned<Whole<1, 1000>>>,
    /// For `"fixed-window"`: counts by the calendar instead of from the first request on. The `rate` is for one hour, day, ISO
    /// week, month or year, which begins at the same time for all, at midnight `"UTC"` or at a fixed offset such as
    /// `"+08:00"`. Default: none.
    pub calendar: Option<Spanned<ParsedText<CalendarOffset>>>,
    /// For `"concurrency"`: time after which the requests of a gateway that died no longer count, `"1s"` to
    /// `"1h"`. Default: `"30s"`.
    pub lease: Option<Spanned<ParsedText<LeaseDuration>>>,
    /// Permits that a request takes: a number, at least 1; a request header field with the number
    /// (`"header:x-cost"`; 1 without it); or a response header field or trailer, or a number in the JSON of the response or of
    /// its server-sent events, with an estimate that is charged until the response states it:
    /// `{ response_header = "x-tokens-used", estimate = 1 }`, `{ response_json = "/usage/total_tokens", estimate = 1 }`.
    /// Default: 1.
    pub cost: Spanned<Cost>,
    /// Statuses of the responses to charge, one or a list: `"401"`, `"4xx"`. Default: all.
    pub when_status: Option<Spanned<ValueList<StatusRange>>>,
    /// Meaning of the costs that other proxies and services name: a request that is `"charged"` if it fits, or use that is
    /// `"reported"`. Then 0 asks whether there is room, and any other cost is recorded, also if it doesn't fit; proxied
    /// requests only ask. Default: `"charged"`.
    pub usage: Option<Spanned<ParsedText<CostUsage>>>,
    /// Gives permits back: what a request was estimated to cost more than its response states, and what other proxies and
    /// services refund. A sliding window is exact then up to 128 requests in a window. With more, a permit may come back
    /// later, by up to a 128th of the window. Default: `false`.
    pub refunds: Option<Spanned<bool>>,
    /// Bans a key that is refused too often. All its requests are refused then for a while, by all gateways. Default: none.
    pub ban: Option<SpannedTable<BanTable>>,
    /// Gateways that count together: all that use the store (`"shared"`), or each process alone
    /// (`"instance"`). Default: `"shared"`.
    pub scope: ParsedText<Scope>,
    /// Longest time to hold a request that exceeds the limit before it is rejected, at most `"1h"`. If it exceeds several limits,
    /// the shortest of their times. Default: `"0s"`.
    pub wait: Spanned<ParsedText<Wait>>,
    /// `"enforce"` the limit, or `"shadow"` it: count and report, but reject nothing. Default: `"enforce"`.
    pub mode: ParsedText<Mode>,
    /// Treatment of a request without the key, or with an empty field, cookie or parameter: count it by its address (`"ip"`), `"skip"` the limit, or
    /// `"deny"` the request with 429. Default: `"ip"`.
    pub missing: ParsedText<Missing>,
    /// File with the known keys, relative to the folder of this file: the SHA-256 hash of a key per line, and a name after it if
    /// you like, which stands for its keys in `exempt` and `overrides`. A change of it takes effect at once. The key needs one credential. Default: any key is good.
    pub keys_file: Option<Spanned<ParsedText<String>>>,
    /// Treatment of a key that `keys_file` lacks: count the request by its address (`"ip"`), or `"deny"` it with 401.
    /// Default: `"ip"`.
    pub unknown: Option<Spanned<ParsedText<UnknownKey>>>,
    /// Prefix length, 1 to 32. IPv4 addresses with the same prefix are one caller. Default: 32.
    pub ipv4_prefix: Whole<1, 32>,
    /// Prefix length, 1 to 128. IPv6 addresses with the same prefix are one caller. Default: 64.
    pub ipv6_prefix: Whole<1, 128>,
    /// Callers that aren't counted: networks (`"10.0.0.0/8"`) and values of the key. Default: none.
    pub exempt: Vec<Spanned<ParsedText<Exemption>>>,
    /// Rates for single values of the key: `{ key = "gold", rate = "1000/10s" }`. Default: none.
    pub overrides: Vec<SpannedTable<OverrideTable>>,
    /// Number of permits that a request states, for the time of `rate`: a claim of its token (`"jwt:quota"`), or a header field
    /// that trusted proxies set (`"header:x-quota"`). It comes before `overrides`; without a whole number, they and `rate`
    /// apply. Default: none.
    pub rate_from: Option<Spanned<ParsedText<RateSource>>>,
    /// Most permits that a request can state by `rate_from`. Required there.
    pub max: Option<Spanned<Permits>>,
    /// Shows the values of header fields, cookies and query parameters in the store, logs and metrics,
    /// instead of their hashes. Default: `false`.
    pub plain: bool,
    /// Overrides the store's `on_failure` for this limit. Default: the store's.
    pub on_failure: Option<Spanned<ParsedText<OnFailure>>>,
    /// Layout of the counts in Redis: the gateway's own (`"tollgate"`), or that of Redisson's `RRateLimiter`
    /// (`"redisson"`), to share the limit with Java services. Default: `"tollgate"`.
    pub layout: Option<Spanned<ParsedText<Layout>>>,
    /// For `layout = "redisson"`: the name that Java gives to `getRateLimiter`, with `{key}` in place of the key's
    /// value: `"logins:{key}"`. With the key `"global"`, a name without it. Required there.
    pub redisson_name: Option<Spanned<ParsedText<RedissonName>>>,
    /// For `layout = "redisson"`: Redisson's rate type of limiters that Java hasn't set, `"overall"` or `"per-client"`,
    /// for which each gateway is a client. Default: `"overall"`.
    pub redisson_type: Option<Spanned<ParsedText<RedissonType>>>,
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
            calendar: None,
            lease: None,
            cost: Spanned::new(0..0, Cost::Fixed(1)),
            when_status: None,
            usage: None,
            refunds: None,
            ban: None,
            scope: ParsedText(Scope::Shared),
            wait: Spanned::new(0..0, ParsedText(Wait::default())),
            mode: ParsedText(Mode::Enforce),
            missing: ParsedText(Missing::Ip),
            keys_file: None,
            unknown: None,
            ipv4_prefix: Whole(32),
            ipv6_prefix: Whole(64),
            exempt: Vec::new(),
            overrides: Vec::new(),
            rate_from: None,
            max: None,
            plain: false,
            on_failure: None,
            layout: None,
            redisson_name: None,
            redisson_type: None,
        }
    }
}

/// `ban` of a limit.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct BanTable {
    /// Refusals of a key by one gateway that lead to a ban: `"10/min"`. Required.
    pub after: Option<ParsedText<Rate>>,
    /// Time for which the key is banned, `"1s"` to `"366d"`. Required.
    #[serde(rename = "for")]
    pub lasts: Option<ParsedText<BanDuration>>,
}

/// One of a limit's `overrides`.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct OverrideTable {
    /// Value of the key. If the key has several parts, a list with a value for each, of which `"*"` stands for any:
    /// `["pro", "*"]`. If several overrides match, the one with more fixed parts applies, then the one whose first
    /// parts are fixed. Required.
    pub key: Option<Spanned<ValueList<String>>>,
    /// Rate, in the same form as the limit's, or 0 to reject all requests with the key. Required.
    pub rate: Option<Spanned<RateOrZero>>,
}

/// A rate, or `None` for 0.
#[derive(Debug)]
pub(crate) struct RateOrZero(pub Option<AnyRate>);

impl<'de> Deserialize<'de> for RateOrZero {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(RateOrZeroVisitor)
    }
}

struct RateOrZeroVisitor;

impl de::Visitor<'_> for RateOrZeroVisitor {
    type Value = RateOrZero;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a rate such as \"100/10s\", or 0 to reject all requests with the key")
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<RateOrZero, E> {
        match number {
            0 => Ok(RateOrZero(None)),
            other => Err(E::invalid_value(de::Unexpected::Signed(other), &self)),
        }
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<RateOrZero, E> {
        match text {
            "0" => Ok(RateOrZero(None)),
            "unlimited" | "-1" => Err(E::custom(format!(
                "`{text}` is not a rate\nto admit all requests with this key, list it in the limit's `exempt`"
            ))),
            text => AnyRate::read(text).map(Some).map(RateOrZero).map_err(|remedy| {
                E::custom(remedy.replace(
                    "use at least 1 permit; to turn a path away, give its route a `respond`",
                    "to reject all requests with this key, write rate = 0",
                ))
            }),
        }
    }
}

impl LimitTable {
    /// Returns true if the limit has the layout of Redisson.
    pub(crate) fn is_redisson(&self) -> bool {
        self.layout.as_ref().is_some_and(|layout| layout.get_ref().0 == Layout::Redisson)
    }

    /// Returns the cost, if the table has nothing but a name and a cost: it names a limit that is defined elsewhere.
    pub(crate) fn only_cost(&self) -> Option<&Spanned<Cost>> {
        let has_more = self.key.is_some()
            || self.rate.is_some()
            || self.burst.is_some()
            || self.cells.is_some()
            || self.calendar.is_some()
            || self.lease.is_some()
            || self.when_status.is_some()
            || self.usage.is_some()
            || self.refunds.is_some()
            || self.ban.is_some()
            || self.keys_file.is_some()
            || self.unknown.is_some()
            || self.rate_from.is_some()
            || self.max.is_some()
            || self.on_failure.is_some()
            || self.layout.is_some()
            || self.redisson_name.is_some()
            || self.redisson_type.is_some()
            || !self.exempt.is_empty()
            || !self.overrides.is_empty()
            || !self.wait.span().is_empty()
            || self.plain
            || self.algorithm.0 != AlgorithmName::SlidingWindow
            || self.mode.0 != Mode::Enforce
            || self.missing.0 != Missing::Ip
            || self.scope.0 != Scope::Shared
            || (self.ipv4_prefix.0, self.ipv6_prefix.0) != (32, 64);
        Some(&self.cost).filter(|cost| !has_more && !cost.span().is_empty())
    }
}

impl<'de> Deserialize<'de> for Cost {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(CostVisitor)
    }
}

struct CostVisitor;

const COST: &str = "a whole number from 1 to 2147483647, \"header:NAME\", { response_header = \"NAME\", estimate = 1 } or { response_json = \"/usage/total_tokens\", estimate = 1 }";

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
            _ => Err(E::custom(format!("`{text}` is not a valid cost\nwrite {COST}"))),
        }
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Cost, A::Error> {
        let cost = ResponseCostTable::deserialize(MapAccessDeserializer::new(map))?;
        let estimate = cost.estimate.0;
        match (cost.response_header, cost.response_json) {
            (Some(ParsedText(header)), None) => Ok(Cost::Response { header, estimate }),
            (None, Some(ParsedText(pointer))) => Ok(Cost::ResponseJson { pointer, estimate }),
            (Some(_), Some(_)) => Err(de::Error::custom(
                "both `response_header` and `response_json` state the cost\nremove one of the two",
            )),
            (None, None) => Err(de::Error::custom(
                "missing key `response_header` or `response_json`\nname the response header field with the cost, response_header = \"x-tokens-used\", or its place in the body, response_json = \"/usage/total_tokens\"\nfor a field of the request, write cost = \"header:x-cost\"",
            )),
        }
    }
}

/// A cost that a response states.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ResponseCostTable {
    /// Response header field or trailer with the number of permits. This or `response_json` is required. Default: none.
    response_header: Option<ParsedText<HeaderName>>,
    /// JSON pointer to the number of permits in the response's body, or in the last one of its server-sent events that has it.
    /// The request to the upstream states that the response mustn't be compressed. Default: none.
    response_json: Option<ParsedText<JsonPointer>>,
    /// Permits to charge until the response states them, at least 1. Default: 1.
    estimate: Permits,
}

impl Default for ResponseCostTable {
    fn default() -> Self {
        Self { response_header: None, response_json: None, estimate: Whole(1) }
    }
}

/// A limit in a route's list.
#[derive(Debug)]
pub(crate) enum RouteLimit {
    /// The name of a limit that is defined elsewhere.
    Name(String),
    /// A limit that is defined inline.
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
        f.write_str("the name of a limit, { name = \"NAME\", cost = 10 }, or a table with a `name`, a `key` and a `rate`")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<RouteLimit, E> {
        Ok(RouteLimit::Name(name.to_owned()))
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<RouteLimit, A::Error> {
        LimitTable::deserialize(MapAccessDeserializer::new(map)).map(Box::new).map(RouteLimit::Inline)
    }
}
