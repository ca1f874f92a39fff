//! The file as it is typed: every key with its default, and where it stands.
//!
//! Each value is checked by itself while it is read ([`super::value`]); what values say about each other is
//! checked after that ([`super::check`]). Keys that are required are optional here, so that one that is
//! missing or wrong doesn't keep the others from being checked.

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

/// A whole gateway.toml.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ConfigFile {
    /// Where and how the gateway listens.
    pub server: SpannedTable<ServerTable>,
    /// Where the limits are counted.
    pub store: SpannedTable<StoreTable>,
    /// Where operators look and change things. Default: nowhere.
    pub admin: Option<SpannedTable<AdminTable>>,
    /// Where a line is written for each request. Default: nowhere.
    pub access_log: Option<SpannedTable<AccessLogTable>>,
    /// Where traces are sent. Default: nowhere.
    pub tracing: Option<SpannedTable<TracingTable>>,
    /// The servers behind the gateway, by name.
    pub upstreams: BTreeMap<Spanned<String>, SpannedTable<UpstreamTable>>,
    /// The rate limits, by name: lower-case letters, digits and hyphens.
    pub limits: BTreeMap<Spanned<String>, SpannedTable<LimitTable>>,
    /// Whose tokens are believed, for `"jwt:CLAIM"`: an unverified claim is never a key. Default: nobody's.
    pub jwt: Option<SpannedTable<JwtTable>>,
    /// What to do with which requests. The most specific route wins; of equals the first.
    pub routes: Vec<SpannedTable<RouteTable>>,
}

/// `[server]`: where and how the gateway listens. A change of `workers` takes effect at the next start, any other with
/// a reload: those of `max_header_bytes`, `http2`, `tls` and, for bodies, `timeouts.idle` for new connections.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ServerTable {
    /// Addresses to listen on, one or a list: `"0.0.0.0:8080"`, `"unix:/run/tollgate.sock"`.
    /// Default: `"127.0.0.1:8080"`.
    pub listen: ValueList<ListenAddress>,
    /// Threads that serve requests, 0 to 1024. Default: 0, one per CPU.
    pub workers: Whole<0, 1024>,
    /// Networks whose `X-Forwarded-For` is believed, read from the right. Default: none.
    pub trusted_proxies: Vec<ParsedText<IpNet>>,
    /// Whether connections from `trusted_proxies` begin with a PROXY header, of version 1 or 2. Default: `false`.
    pub proxy_protocol: Spanned<bool>,
    /// Whether clients may speak HTTP/2: with TLS by agreement (ALPN), else by prior knowledge. Default: `true`.
    pub http2: bool,
    /// The certificates with which TLS is spoken on all TCP addresses; on unix sockets it isn't. Default: no TLS.
    pub tls: Option<SpannedTable<ServerTlsTable>>,
    /// How answers tell callers about their limits: `"draft-11"` (`RateLimit` and `RateLimit-Policy`),
    /// `"x-ratelimit"` (`X-RateLimit-Limit`, `-Remaining` and `-Reset`), `"both"` or `"off"`.
    /// Default: `"draft-11"`.
    pub ratelimit_headers: ParsedText<RatelimitHeaders>,
    /// The greatest head of a request, at least `"8KiB"`; 431 beyond it. Default: `"32KiB"`.
    pub max_header_bytes: Spanned<ParsedText<Size>>,
    /// The greatest body of a request, such as `"10MiB"`; 413 beyond it. Routes may say otherwise. Default: `"none"`.
    pub max_body: ParsedText<BodyMost>,
    /// Client connections at a time, at least 1. For more, those that idle longest are closed; if none idles, 503.
    /// Up to 1000000. Default: 20000.
    pub max_connections: Whole<1, 1_000_000>,
    /// What to do with `%2F` and `%5C` in a path: `"keep"` them, or `"reject"` the request with 400.
    /// Default: `"keep"`.
    pub escaped_slashes: ParsedText<EscapedSlashes>,
    /// How long to wait for clients.
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

/// `tls` of `[server]`. Files are in PEM form, their paths from the folder of this file; they are read again by a
/// reload.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ServerTlsTable {
    /// The gateway's certificates, of which a client is shown the one that bears the name it asks for, exactly or by a
    /// wildcard, and else the first. Required.
    pub certs: Vec<SpannedTable<CertificateTable>>,
    /// The authorities of which clients must show a certificate. Default: clients needn't show any.
    pub client_ca: Option<Spanned<String>>,
}

/// One of `certs`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct CertificateTable {
    /// The certificate, and those up to the root. Required.
    pub cert: Option<Spanned<String>>,
    /// The key of `cert`. Required.
    pub key: Option<Spanned<String>>,
}

/// `timeouts` of `[server]`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ServerTimeoutsTable {
    /// From the first byte of a request, or when the connection is made, to the end of the request's head.
    /// Default: `"10s"`.
    pub header: ParsedText<Duration>,
    /// For a client that does nothing: sends no further request, or none of its request's body, or takes none of its
    /// answer. Default: `"75s"`.
    pub idle: ParsedText<Duration>,
    /// For all that is in flight when the gateway stops; a tenth of it, at most 10 s, is for balancers to see that
    /// it isn't ready any more, and as much for idle clients. Default: `"30s"`.
    pub drain: ParsedText<Duration>,
}

impl Default for ServerTimeoutsTable {
    fn default() -> Self {
        let [header, idle, drain] = [10, 75, 30].map(|seconds| ParsedText(Duration::from_secs(seconds)));
        Self { header, idle, drain }
    }
}

/// `[store]`: where the limits are counted. A change of `on_failure` takes effect with a reload, any other at
/// the next start.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct StoreTable {
    /// `"memory:"` to count in this process; or a Redis 6.2 or newer, for all gateways together:
    /// `"redis://USER:PASSWORD@HOST:PORT/DATABASE"`, `"redis-cluster://HOST:PORT?node=HOST:PORT"`,
    /// `"redis-sentinel://HOST:PORT?node=HOST:PORT&service=NAME"`, each with TLS as `"rediss…"`, or
    /// `"redis+unix:///PATH?db=DATABASE"`. Default: `"memory:"`.
    pub url: ParsedText<StoreUrl>,
    /// How to trust a Redis with TLS, and to be trusted by it. Default: the roots of the system.
    pub tls: Option<SpannedTable<ClientTlsTable>>,
    /// For one decision, from the request's arrival to the answer. Default: `"50ms"`.
    pub timeout: ParsedText<Duration>,
    /// What to do with a request when the store can't answer: count in this process (`"local"`), `"allow"`
    /// it, or `"deny"` it with 503. Limits may say otherwise. Default: `"local"`.
    pub on_failure: ParsedText<OnFailure>,
    /// Gateways that share the limits, at least 1: `on_failure = "local"` gives each its part.
    /// Default: 1.
    pub instances: Whole<1, 1_000_000>,
    /// What all keys of the store begin with. Default: `"tollgate"`.
    pub key_prefix: Spanned<ParsedText<String>>,
    /// For the counts kept in this process, at least `"1MiB"`. Default: `"256MiB"`.
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

/// `tls` of `[store]` and of an upstream. Files are in PEM form, their paths from the folder of this file.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ClientTlsTable {
    /// The certificates to trust. Default: the roots of the system.
    pub ca: Option<Spanned<String>>,
    /// The gateway's own certificate, and those up to the root. Default: none.
    pub cert: Option<Spanned<String>>,
    /// The key of `cert`. Default: none.
    pub key: Option<Spanned<String>>,
    /// The name that must be in the server's certificate. Default: the host of the server.
    pub server_name: Option<Spanned<String>>,
}

/// `[admin]`: a second listener, for operators. A change takes effect at the next start.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct AdminTable {
    /// The address to listen on: `"127.0.0.1:9901"`. Required.
    pub listen: Option<Spanned<ParsedText<SocketAddr>>>,
    /// What callers must bear: `Authorization: Bearer TOKEN`. Required on any address but loopback. Default: none.
    pub token: Option<Spanned<ParsedText<Secret>>>,
}

/// `[access_log]`: a line for each request. A change takes effect at the next start.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct AccessLogTable {
    /// `"-"` for stdout, or a file, its path from the folder of this file. SIGUSR1 has it opened again, as after a
    /// rotation. Default: `"-"`.
    pub path: ParsedText<Output>,
    /// `"json"`, an object a line, or `"combined"`, as nginx and Apache write it. Default: `"json"`.
    pub format: ParsedText<AccessLogFormat>,
}

impl Default for AccessLogTable {
    fn default() -> Self {
        Self { path: ParsedText(Output(None)), format: ParsedText(AccessLogFormat::Json) }
    }
}

/// `[tracing]`: traces of OpenTelemetry. A change of `sample` takes effect with a reload, any other at the next start.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct TracingTable {
    /// The collector, which takes OTLP over gRPC; with `https://` by TLS. Default: `"http://127.0.0.1:4317"`.
    pub otlp: ParsedText<Otlp>,
    /// Share of the requests that are traced, from 0 to 1. A request with a `traceparent` is traced if that says so.
    /// Default: 0.01.
    pub sample: Fraction,
}

impl Default for TracingTable {
    fn default() -> Self {
        let otlp = ServerUrl::Tcp { tls: false, host: Ipv4Addr::LOCALHOST.to_string(), port: 4317 };
        Self { otlp: ParsedText(Otlp(otlp)), sample: Fraction(0.01) }
    }
}

/// `[jwt]`: whose tokens are believed.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct JwtTable {
    /// A file with a JWKS, the public keys of who signs the tokens: `"keys.json"`. It is read again with the
    /// configuration. Required, unless `hmac_secret` is given.
    pub jwks_file: Option<Spanned<ParsedText<String>>>,
    /// The secret by which tokens are signed and verified, 32 bytes or more: `"${JWT_SECRET}"`. Default: none.
    pub hmac_secret: Option<Spanned<ParsedText<Secret>>>,
    /// Who must have issued a token (`iss`), one or a list. Default: anybody.
    pub issuer: Option<ValueList<String>>,
    /// Whom a token must be meant for (`aud`), one or a list of which one suffices. Default: anybody.
    pub audience: Option<ValueList<String>>,
}

/// `[[routes]]`: what to do with which requests.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RouteTable {
    /// What logs and metrics call the route. Default: made from host and path.
    pub name: Option<Spanned<String>>,
    /// The host: `"api.example.com"` or `"*.example.com"`. Default: any.
    pub host: Option<ParsedText<HostPattern>>,
    /// The path: exact, `{param}` for one segment, `{*rest}` at the end for the rest. Required.
    pub path: Option<Spanned<ParsedText<Pattern>>>,
    /// The methods, one or a list. Default: any.
    pub methods: Option<ValueList<Method>>,
    /// Headers that a request must have, with their values. Default: none.
    pub headers: Pairs<HeaderName, HeaderValue>,
    /// Query parameters that a request must have, with their values. Default: none.
    pub query: Pairs<String, String>,
    /// The upstream that answers. Required, unless `respond` or `redirect` is given.
    pub upstream: Option<Spanned<String>>,
    /// The answer, given by the gateway itself. Default: none.
    pub respond: Option<SpannedTable<RespondTable>>,
    /// Where clients are sent instead. Default: nowhere.
    pub redirect: Option<SpannedTable<RedirectTable>>,
    /// The limits that a request must pass: names, or tables like `[limits.NAME]` with a `name`.
    /// Default: none.
    pub limits: Vec<Spanned<RouteLimit>>,
    /// The path that the upstream gets: `"/orders/{id}"`, with the parameters of `path`, as they came. The query is kept.
    /// Default: the request's.
    pub rewrite: Option<Spanned<ParsedText<Template>>>,
    /// What changes in the header that the upstream gets. Default: nothing.
    pub request_headers: Option<SpannedTable<EditsTable>>,
    /// What changes in the header of every answer, also of the gateway's own. Default: nothing.
    pub response_headers: Option<SpannedTable<EditsTable>>,
    /// From when a request has passed its limits to the end of the upstream's answer: 504 beyond it, or an answer that
    /// breaks off. Default: none.
    pub timeout: Option<ParsedText<Duration>>,
    /// As the server's `max_body`, for this route. Default: the server's.
    pub max_body: Option<ParsedText<BodyMost>>,
    /// Whether the upstream gets the host that the client asked for; `false`: its own, as its url has it.
    /// Default: `true`.
    pub preserve_host: Option<Spanned<bool>>,
    /// What those are told whom a limit refuses. Default: 429 and a body of application/problem+json.
    pub on_limit: Option<SpannedTable<OnLimitTable>>,
}

/// `respond` of a route.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RespondTable {
    /// The status, 200 to 599. Default: 200.
    pub status: Whole<200, 599>,
    /// The body. Default: empty.
    pub body: String,
    /// Headers. Default: none.
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
    /// A path or a url, with the parameters of the route's `path`, as they came: `"/v2/orders/{id}"`,
    /// `"https://shop.example/{*rest}"`. The query is kept. Required.
    pub to: Option<Spanned<ParsedText<Location>>>,
    /// 301, 302, 303, 307 or 308. Default: 308, for good and with the same method.
    pub status: Spanned<Whole<300, 399>>,
}

impl Default for RedirectTable {
    fn default() -> Self {
        Self { to: None, status: Spanned::new(0..0, Whole(308)) }
    }
}

/// `request_headers` and `response_headers` of a route.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct EditsTable {
    /// Fields that have one line of this value. Default: none.
    pub set: Pairs<FieldName, HeaderValue>,
    /// Lines that come to those that are there. Default: none.
    pub add: Pairs<FieldName, HeaderValue>,
    /// Fields that go, before others are set: a name or a list. Default: none.
    pub remove: Option<ValueList<FieldName>>,
}

/// `on_limit` of a route.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct OnLimitTable {
    /// The status, 400 to 599. Default: 429.
    pub status: Whole<400, 599>,
    /// The body. Default: the gateway's, of application/problem+json.
    pub body: Option<String>,
    /// What the body is. Default: `"text/plain; charset=utf-8"`.
    pub content_type: Option<Spanned<ParsedText<HeaderValue>>>,
}

impl Default for OnLimitTable {
    fn default() -> Self {
        Self { status: Whole(429), body: None, content_type: None }
    }
}

/// A table and where it stands: its header, or all of an inline one. A list isn't read as one, as it would
/// be by serde.
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

/// [`SpannedTable`] before it knows where it stands.
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

/// At least one value. One alone may be written without brackets.
#[derive(Debug)]
pub(super) struct ValueList<T>(pub Vec<Spanned<T>>);

impl<T> ValueList<T> {
    /// A list of one value, which stands nowhere.
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

/// [`ValueList`] before it knows where it stands.
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
            let text = format!("this list is empty\nwrite at least {}", T::EXPECTED);
            return Err(de::Error::custom(text));
        }
        Ok(OneOrMany::Many(values))
    }
}

/// A table with keys of the user's choice.
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
