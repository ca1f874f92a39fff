//! The file as it is typed: every key, its default, and its position in the file.
//!
//! Each value is checked by itself while it is read ([`super::value`]). The rules that involve several values
//! are checked afterwards ([`super::check`]). Required keys are optional here: if one is missing or invalid,
//! the others are still checked.

mod limit;
mod spanned;
mod upstream;

use std::{
    collections::BTreeMap,
    fmt,
    marker::PhantomData,
    net::{Ipv4Addr, SocketAddr},
    ops::Range,
    time::Duration,
};

use hyper::{
    Method,
    header::{HeaderName, HeaderValue},
};
use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{
    Deserialize, Deserializer,
    de::{self, value::MapAccessDeserializer},
};

pub(super) use self::{
    limit::{LimitTable, ResponseCostTable, RouteLimit},
    spanned::Spanned,
    upstream::{EjectTable, HealthTable, ServerEntry, ServerList, UpstreamServerTable, UpstreamTable},
};
use super::{
    AccessLogFormat, EscapedSlashes, ListenAddress, OnFailure, RatelimitHeaders, ServerUrl, StoreUrl,
    value::{BodyMost, FieldName, Fraction, FromText, Otlp, Output, ParsedText, Secret, Size, Whole},
};
use tollgate_routing::{
    HostPattern, Pattern,
    template::{Location, Template},
};

/// A complete gateway.toml.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ConfigFile {
    /// The main listener.
    pub server: SpannedTable<ServerTable>,
    /// The store that holds the counts.
    pub store: SpannedTable<StoreTable>,
    /// A second listener, for operators. Default: none.
    pub admin: Option<SpannedTable<AdminTable>>,
    /// A log with a line per request. Default: none.
    pub access_log: Option<SpannedTable<AccessLogTable>>,
    /// The export of traces. Default: none.
    pub tracing: Option<SpannedTable<TracingTable>>,
    /// The servers behind the gateway, by name.
    pub upstreams: BTreeMap<Spanned<String>, SpannedTable<UpstreamTable>>,
    /// The rate limits, by name. Names consist of lower-case letters, digits and hyphens.
    pub limits: BTreeMap<Spanned<String>, SpannedTable<LimitTable>>,
    /// The issuers whose tokens are trusted. Required if a limit counts by `"jwt:CLAIM"`. Default: none.
    pub jwt: Option<SpannedTable<JwtTable>>,
    /// The routes. If several match a request, the most specific one is used; of equally specific ones the
    /// first.
    pub routes: Vec<SpannedTable<RouteTable>>,
}

/// `[server]`: the main listener. A change of `workers` takes effect at the next start, any other change with
/// a reload. Changes of `max_header_bytes`, `http2`, `tls` and, for bodies, `timeouts.idle` apply to new
/// connections only.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ServerTable {
    /// Addresses to listen on, one or a list: `"0.0.0.0:8080"`, `"unix:/run/tollgate.sock"`. Default:
    /// `"127.0.0.1:8080"`.
    pub listen: ValueList<ListenAddress>,
    /// Number of threads that serve requests, 0 to 1024. Default: 0, one per CPU.
    pub workers: Whole<0, 1024>,
    /// Networks of proxies whose `X-Forwarded-For` is trusted. The field is read from the right. Default:
    /// none.
    pub trusted_proxies: Vec<ParsedText<IpNet>>,
    /// `true` if connections from `trusted_proxies` begin with a PROXY protocol header (version 1 or 2).
    /// Default: `false`.
    pub proxy_protocol: Spanned<bool>,
    /// Accepts HTTP/2: on TLS connections if the client selects it by ALPN, on others with prior knowledge.
    /// Default: `true`.
    pub http2: bool,
    /// Enables TLS on all TCP addresses; unix sockets stay without. Default: no TLS.
    pub tls: Option<SpannedTable<ServerTlsTable>>,
    /// Header fields that tell clients about their limits: `"draft-11"` (`RateLimit` and `RateLimit-Policy`),
    /// `"x-ratelimit"` (`X-RateLimit-Limit`, `-Remaining` and `-Reset`), `"both"` or `"off"`. Default:
    /// `"draft-11"`.
    pub ratelimit_headers: ParsedText<RatelimitHeaders>,
    /// Largest request head, at least `"8KiB"`. Larger ones are rejected with 431. Default: `"32KiB"`.
    pub max_header_bytes: Spanned<ParsedText<Size>>,
    /// Largest request body, such as `"10MiB"`. Larger ones are rejected with 413. Routes can override it.
    /// Default: `"none"`.
    pub max_body: ParsedText<BodyMost>,
    /// Most client connections at a time, 1 to 1000000. Beyond it, the connections that have been idle
    /// longest are closed; if none is idle, new ones get a 503. Default: 20000.
    pub max_connections: Whole<1, 1_000_000>,
    /// Treatment of `%2F` and `%5C` in a path: `"keep"` them, or `"reject"` the request with 400. Default:
    /// `"keep"`.
    pub escaped_slashes: ParsedText<EscapedSlashes>,
    /// Timeouts for clients.
    pub timeouts: SpannedTable<ServerTimeoutsTable>,
}

impl Default for ServerTable {
    fn default() -> Self {
        Self {
            listen: ValueList::of(ListenAddress::Tcp((Ipv4Addr::LOCALHOST, 8080).into())),
            workers: Whole(0),
            trusted_proxies: Vec::new(),
            proxy_protocol: Spanned::new(0..0, false),
            http2: true,
            tls: None,
            ratelimit_headers: ParsedText(RatelimitHeaders::Draft11),
            max_header_bytes: Spanned::new(0..0, ParsedText(Size(32 << 10))),
            max_body: ParsedText(BodyMost(None)),
            max_connections: Whole(20_000),
            escaped_slashes: ParsedText(EscapedSlashes::Keep),
            timeouts: SpannedTable::default(),
        }
    }
}

/// `tls` of `[server]`. Files are in PEM format. Their paths are relative to the folder of this file. A
/// reload reads them again.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ServerTlsTable {
    /// The gateway's certificates. A client gets the one that is valid for the host name it asks for, exactly
    /// or by a wildcard, otherwise the first. Required.
    pub certs: Vec<SpannedTable<CertificateTable>>,
    /// File with the authorities that must have issued the clients' certificates. Default: clients need no
    /// certificate.
    pub client_ca: Option<Spanned<String>>,
}

/// One of `certs`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct CertificateTable {
    /// File with the certificate, followed by the intermediate ones. Required.
    pub cert: Option<Spanned<String>>,
    /// File with the private key of `cert`. Required.
    pub key: Option<Spanned<String>>,
}

/// `timeouts` of `[server]`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ServerTimeoutsTable {
    /// Time to receive a complete request head, from its first byte, or from the start of the connection.
    /// Default: `"10s"`.
    pub header: ParsedText<Duration>,
    /// Time without activity after which a connection is closed: no new request, no further part of a request
    /// body, or no part of the response accepted. Default: `"75s"`.
    pub idle: ParsedText<Duration>,
    /// Time that requests in flight have to finish at shutdown. The first tenth of it, at most 10 s, is for
    /// load balancers to notice that the gateway isn't ready any more; idle connections have as long again.
    /// Default: `"30s"`.
    pub drain: ParsedText<Duration>,
}

impl Default for ServerTimeoutsTable {
    fn default() -> Self {
        let [header, idle, drain] = [10, 75, 30].map(|seconds| ParsedText(Duration::from_secs(seconds)));
        Self { header, idle, drain }
    }
}

/// `[store]`: the place of the counts. A change of `on_failure` takes effect with a reload, any other change
/// at the next start.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct StoreTable {
    /// URL of the store. `"memory:"` counts in this process. With Redis 6.2 or newer, all gateways count
    /// together: `"redis://USER:PASSWORD@HOST:PORT/DATABASE"`, `"redis-cluster://HOST:PORT?node=HOST:PORT"`,
    /// `"redis-sentinel://HOST:PORT?node=HOST:PORT&service=NAME"` (with TLS each begins with `"rediss"`), or
    /// `"redis+unix:///PATH?db=DATABASE"`. Default: `"memory:"`.
    pub url: ParsedText<StoreUrl>,
    /// TLS settings for Redis. Default: trust the system's root certificates.
    pub tls: Option<SpannedTable<ClientTlsTable>>,
    /// Deadline of a decision, from the request's arrival to the answer. Default: `"50ms"`.
    pub timeout: ParsedText<Duration>,
    /// Failure policy while the store is unavailable: count in this process (`"local"`), `"allow"` the
    /// request, or `"deny"` it with 503. Limits can override it. Default: `"local"`.
    pub on_failure: ParsedText<OnFailure>,
    /// Number of gateways that share the limits, at least 1. With `on_failure = "local"` each enforces its
    /// share. Default: 1.
    pub instances: Whole<1, 1_000_000>,
    /// Prefix of all keys in the store. Default: `"tollgate"`.
    pub key_prefix: Spanned<ParsedText<String>>,
    /// Memory limit for counts kept in this process, at least `"1MiB"`. Default: `"256MiB"`.
    pub max_memory: Spanned<ParsedText<Size>>,
}

impl Default for StoreTable {
    fn default() -> Self {
        Self {
            url: ParsedText(StoreUrl::Memory),
            tls: None,
            timeout: ParsedText(Duration::from_millis(50)),
            on_failure: ParsedText(OnFailure::Local),
            instances: Whole(1),
            key_prefix: Spanned::new(0..0, ParsedText("tollgate".to_owned())),
            max_memory: Spanned::new(0..0, ParsedText(Size(256 << 20))),
        }
    }
}

/// `tls` of `[store]` and of an upstream. Files are in PEM format. Their paths are relative to the folder of
/// this file.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ClientTlsTable {
    /// File with the certificates to trust. Default: the system's root certificates.
    pub ca: Option<Spanned<String>>,
    /// File with the gateway's own certificate, followed by the intermediate ones. Default: none.
    pub cert: Option<Spanned<String>>,
    /// File with the private key of `cert`. Default: none.
    pub key: Option<Spanned<String>>,
    /// Name that the server's certificate must be valid for. Default: the host of the server.
    pub server_name: Option<Spanned<String>>,
}

/// `[admin]`: a second listener, for operators. A change takes effect at the next start.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct AdminTable {
    /// Address to listen on: `"127.0.0.1:9901"`. Required.
    pub listen: Option<Spanned<ParsedText<SocketAddr>>>,
    /// Token that requests must carry as `Authorization: Bearer TOKEN`. Required unless the address is
    /// loopback. Default: none.
    pub token: Option<Spanned<ParsedText<Secret>>>,
}

/// `[access_log]`: a line per request. A change takes effect at the next start.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct AccessLogTable {
    /// `"-"` for stdout, or a file, relative to the folder of this file. SIGUSR1 reopens it, for log
    /// rotation. Default: `"-"`.
    pub path: ParsedText<Output>,
    /// `"json"` for a JSON object per line, or `"combined"` for the format of nginx and Apache. Default:
    /// `"json"`.
    pub format: ParsedText<AccessLogFormat>,
}

impl Default for AccessLogTable {
    fn default() -> Self {
        Self { path: ParsedText(Output(None)), format: ParsedText(AccessLogFormat::Json) }
    }
}

/// `[tracing]`: OpenTelemetry traces. A change of `sample` takes effect with a reload, any other change at
/// the next start.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct TracingTable {
    /// URL of the collector, which takes OTLP over gRPC. `https://` uses TLS. Default:
    /// `"http://127.0.0.1:4317"`.
    pub otlp: ParsedText<Otlp>,
    /// Fraction of the requests to trace, from 0 to 1. For a request with a `traceparent`, its sampled flag
    /// decides. Default: 0.01.
    pub sample: Fraction,
}

impl Default for TracingTable {
    fn default() -> Self {
        let otlp = ServerUrl::Tcp { tls: false, host: Ipv4Addr::LOCALHOST.to_string(), port: 4317 };
        Self { otlp: ParsedText(Otlp(otlp)), sample: Fraction(0.01) }
    }
}

/// `[jwt]`: the trusted token issuers.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct JwtTable {
    /// File with a JWKS, the public keys that verify tokens: `"keys.json"`. A reload reads it again.
    /// Required, unless `hmac_secret` is given.
    pub jwks_file: Option<Spanned<ParsedText<String>>>,
    /// Shared secret that signs and verifies tokens, 32 bytes or more: `"${JWT_SECRET}"`. Default: none.
    pub hmac_secret: Option<Spanned<ParsedText<Secret>>>,
    /// Accepted issuers (`iss`) of a token, one or a list. Default: any.
    pub issuer: Option<ValueList<String>>,
    /// Accepted audiences (`aud`) of a token, one or a list. A token needs one of them. Default: any.
    pub audience: Option<ValueList<String>>,
}

/// `[[routes]]`: the requests that match a route, and what to do with them.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RouteTable {
    /// Name of the route in logs and metrics. Default: made from host and path.
    pub name: Option<Spanned<String>>,
    /// Host to match: `"api.example.com"` or `"*.example.com"`. Default: any.
    pub host: Option<ParsedText<HostPattern>>,
    /// Path to match, exactly. `{param}` matches one segment, `{*rest}` at the end matches the rest.
    /// Required.
    pub path: Option<Spanned<ParsedText<Pattern>>>,
    /// Methods to match, one or a list. Default: any.
    pub methods: Option<ValueList<Method>>,
    /// Header fields that a request must have, with their values. Default: none.
    pub headers: Pairs<HeaderName, HeaderValue>,
    /// Query parameters that a request must have, with their values. Default: none.
    pub query: Pairs<String, String>,
    /// Name of the upstream to forward to. Required, unless `respond` or `redirect` is given.
    pub upstream: Option<Spanned<String>>,
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
    /// gets a 504, or a response that breaks off. Default: none.
    pub timeout: Option<ParsedText<Duration>>,
    /// Overrides the server's `max_body` for this route. Default: the server's.
    pub max_body: Option<ParsedText<BodyMost>>,
    /// `true` forwards the host that the client asked for; `false` sends the host of the server's URL.
    /// Default: `true`.
    pub preserve_host: Option<Spanned<bool>>,
    /// Response to a request that a limit rejects. Default: 429 with an application/problem+json body.
    pub on_limit: Option<SpannedTable<OnLimitTable>>,
}

/// `respond` of a route.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RespondTable {
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
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RedirectTable {
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
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct EditsTable {
    /// Fields to set. They replace fields of the same name. Default: none.
    pub set: Pairs<FieldName, HeaderValue>,
    /// Fields to add. Fields of the same name stay. Default: none.
    pub add: Pairs<FieldName, HeaderValue>,
    /// Names of the fields to remove, one or a list. Default: none.
    pub remove: Option<ValueList<FieldName>>,
}

/// `on_limit` of a route.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct OnLimitTable {
    /// Status, 400 to 599. Default: 429.
    pub status: Whole<400, 599>,
    /// Body. Default: an application/problem+json body.
    pub body: Option<String>,
    /// Content type of `body`. Default: `"text/plain; charset=utf-8"`.
    pub content_type: Option<Spanned<ParsedText<HeaderValue>>>,
}

impl Default for OnLimitTable {
    fn default() -> Self {
        Self { status: Whole(429), body: None, content_type: None }
    }
}

/// A table and its position in the file: that of its header, or of the whole inline table.
///
/// Unlike serde's derived implementation for structs, it doesn't accept a list as a table.
#[derive(Debug, Default)]
pub(super) struct SpannedTable<T> {
    pub span: Range<usize>,
    pub value: T,
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for SpannedTable<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let table = Spanned::<Entries<T>>::deserialize(from)?;
        Ok(Self { span: table.span(), value: table.into_inner().0 })
    }
}

/// A [`SpannedTable`] without its position.
struct Entries<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Entries<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(EntriesVisitor(PhantomData))
    }
}

struct EntriesVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> de::Visitor<'de> for EntriesVisitor<T> {
    type Value = Entries<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Entries<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Entries)
    }
}

/// A list of at least one value. A single value may be written without brackets.
#[derive(Debug)]
pub(super) struct ValueList<T>(pub Vec<Spanned<T>>);

impl<T> ValueList<T> {
    /// Returns a list of one value, without a position in the file.
    pub(super) fn of(value: T) -> Self {
        Self(vec![Spanned::new(0..0, value)])
    }

    pub(super) fn into_values(self) -> Vec<T> {
        self.0.into_iter().map(Spanned::into_inner).collect()
    }
}

impl<'de, T: FromText> Deserialize<'de> for ValueList<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let list = Spanned::<OneOrMany<T>>::deserialize(from)?;
        let span = list.span();
        Ok(match list.into_inner() {
            OneOrMany::One(value) => Self(vec![Spanned::new(span, value)]),
            OneOrMany::Many(values) => Self(values),
        })
    }
}

/// A [`ValueList`] without positions.
enum OneOrMany<T> {
    One(T),
    Many(Vec<Spanned<T>>),
}

impl<'de, T: FromText> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(OneOrManyVisitor(PhantomData))
    }
}

struct OneOrManyVisitor<T>(PhantomData<T>);

impl<'de, T: FromText> de::Visitor<'de> for OneOrManyVisitor<T> {
    type Value = OneOrMany<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, or a list of such", T::EXPECTED)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<OneOrMany<T>, E> {
        T::read(text).map(OneOrMany::One).map_err(E::custom)
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<OneOrMany<T>, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element::<Spanned<ParsedText<T>>>()? {
            values.push(Spanned::new(value.span(), value.into_inner().0));
        }
        if values.is_empty() {
            let text = format!("this list is empty\nwrite at least one: {}", T::EXPECTED);
            return Err(de::Error::custom(text));
        }
        Ok(OneOrMany::Many(values))
    }
}

/// A table whose keys the user chooses.
#[derive(Debug)]
pub(super) struct Pairs<K, V>(pub Vec<(K, V)>);

impl<K, V> Default for Pairs<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, K: FromText, V: FromText> Deserialize<'de> for Pairs<K, V> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(PairsVisitor(PhantomData))
    }
}

struct PairsVisitor<K, V>(PhantomData<(K, V)>);

impl<'de, K: FromText, V: FromText> de::Visitor<'de> for PairsVisitor<K, V> {
    type Value = Pairs<K, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut pairs = Vec::new();
        while let Some((ParsedText(key), ParsedText(value))) = map.next_entry()? {
            pairs.push((key, value));
        }
        Ok(Pairs(pairs))
    }
}
