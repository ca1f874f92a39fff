//! Routes as they are typed.

use std::time::Duration;

use hyper::{
    Method,
    header::{HeaderName, HeaderValue},
};
use serde::Deserialize;
use tollgate_routing::{
    HostPattern, Pattern,
    template::{Location, Template},
};

use super::{Pairs, RouteLimit, RouteUpstreams, Spanned, SpannedTable, ValueList};
use crate::{
    Requirement,
    value::{BodyMost, FieldName, ParsedText, Whole},
};

/// `[[routes]]`: the requests that match a route, and what to do with them.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RouteTable {
    /// Name of the route in logs and metrics. Default: made from host and path.
    pub name: Option<Spanned<String>>,
    /// Host to match: `"api.example.com"` or `"*.example.com"`. Default: any.
    pub host: Option<Spanned<ParsedText<HostPattern>>>,
    /// Path to match, exactly. `{param}` matches one segment, `{*rest}` at the end matches the rest.
    /// Required.
    pub path: Option<Spanned<ParsedText<Pattern>>>,
    /// Methods to match, one or a list. Default: any.
    pub methods: Option<ValueList<Method>>,
    /// Header fields that a request must have, with their values. Default: none.
    pub headers: Pairs<HeaderName, HeaderValue>,
    /// Query parameters that a request must have, with their values. Default: none.
    pub query: Pairs<String, String>,
    /// Claims that the request's token must have, with their values: `{ plan = "pro" }`. A list matches if it contains the
    /// value. A name that begins with a slash is a JSON pointer to a nested claim: `{ "/realm_access/roles" = "admin" }`.
    /// Only a token that `[jwt]` verifies counts; without one, the route doesn't match. Default: none.
    pub claims: Pairs<String, String>,
    /// Name of the upstream to forward to, or several with their weights, 0 to 1000: `{ stable = 95, canary = 5 }`. Each
    /// request goes to one of them by chance. Required, unless `respond` or `redirect` is given.
    pub upstream: Option<Spanned<RouteUpstreams>>,
    /// A fixed response, sent by the gateway itself. Default: none.
    pub respond: Option<SpannedTable<RespondTable>>,
    /// A redirect, sent by the gateway itself. Default: none.
    pub redirect: Option<SpannedTable<RedirectTable>>,
    /// Limits that apply to the route: names, or inline tables like `[limits.NAME]` with a `name`. Default:
    /// none.
    pub limits: Vec<Spanned<RouteLimit>>,
    /// Path that the upstream gets: `"/orders/{id}"`, with the parameters of `path` as the client sent them.
    /// The query is kept. Default: the path of the request.
    pub rewrite: Option<Spanned<ParsedText<Template>>>,
    /// Changes to the header fields that the upstream gets. Default: none.
    pub request_headers: Option<SpannedTable<EditsTable>>,
    /// Changes to the header fields of every response, also of those that the gateway sends itself. Default:
    /// none.
    pub response_headers: Option<SpannedTable<EditsTable>>,
    /// Time for the whole exchange, from passing the limits to the end of the response. Beyond it, the client
    /// gets a 504 (408 if its body was awaited), or a response that breaks off. Default: none.
    pub timeout: Option<ParsedText<Duration>>,
    /// Overrides the server's `max_body` for this route. Default: the server's.
    pub max_body: Option<ParsedText<BodyMost>>,
    /// `true` forwards the host that the client asked for; `false` sends the host of the server's URL.
    /// Default: `true`.
    pub preserve_host: Option<Spanned<bool>>,
    /// `"jwt"` answers 401 to requests without a valid token, before anything is counted. Default: none.
    pub require: Option<Spanned<ParsedText<Requirement>>>,
    /// Response to a request that a limit rejects. Default: 429 with an application/problem+json body.
    pub on_limit: Option<SpannedTable<OnLimitTable>>,
}

/// `respond` of a route.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RespondTable {
    /// Status, 200 to 599. Default: 200.
    pub status: Whole<200, 599>,
    /// Body. Default: empty.
    pub body: String,
    /// Header fields. Default: none.
    pub headers: Pairs<FieldName, HeaderValue>,
}

impl Default for RespondTable {
    fn default() -> Self {
        Self { status: Whole(200), body: String::new(), headers: Pairs::default() }
    }
}

/// `redirect` of a route.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RedirectTable {
    /// Target, a path or a URL, with the parameters of the route's `path` as the client sent them:
    /// `"/v2/orders/{id}"`, `"https://shop.example/{*rest}"`. The query is kept. Required.
    pub to: Option<Spanned<ParsedText<Location>>>,
    /// Status: 301, 302, 303, 307 or 308. Default: 308, permanent and with the same method.
    pub status: Spanned<Whole<300, 399>>,
}

impl Default for RedirectTable {
    fn default() -> Self {
        Self { to: None, status: Spanned::new(0..0, Whole(308)) }
    }
}

/// `request_headers` and `response_headers` of a route. Fields are removed first, then set, then added.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct EditsTable {
    /// Fields to set. They replace fields of the same name. Default: none.
    pub set: Pairs<FieldName, HeaderValue>,
    /// Fields to add. Fields of the same name stay. Default: none.
    pub add: Pairs<FieldName, HeaderValue>,
    /// Names of the fields to remove, one or a list. Default: none.
    pub remove: Option<ValueList<FieldName>>,
}

/// `on_limit` of a route.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct OnLimitTable {
    /// Status, 400 to 599. Default: 429.
    pub status: Whole<400, 599>,
    /// Body, in which `{retry_after}` stands for the seconds of Retry-After, and `{limit}` for the name of the limit.
    /// Default: an application/problem+json body.
    pub body: Option<Spanned<String>>,
    /// Content type of `body`. Default: `"text/plain; charset=utf-8"`.
    pub content_type: Option<Spanned<ParsedText<HeaderValue>>>,
}

impl Default for OnLimitTable {
    fn default() -> Self {
        Self { status: Whole(429), body: None, content_type: None }
    }
}
