//! Advice that depends on the place in the file: the form of each table and list, and the tables that have a key.
//!
//! Most of this file is tables of advice.

use std::ops::Range;

use serde_json::Value;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

const SERVER_TLS: &str =
    "write a table: tls = { certs = [{ cert = \"gateway.pem\", key = \"gateway.key\" }] }";

const CERTS: &str = "write a list of tables: certs = [{ cert = \"gateway.pem\", key = \"gateway.key\" }]";

const REDIS_URL: &str =
    "all of it is in the URL: url = \"redis://USER:${REDIS_PASSWORD}@HOST:6379/0\", or \"redis://HOST:6379\"";

const SERVER_URL: &str = "write { url = \"http://127.0.0.1:3000\" }";

const CORS: &str = "answer preflights on a route of their own, and add the fields by `response_headers`: docs/configuration.md#cors";

const SHADOW: &str =
    "write mode = \"shadow\" in the limit's table: then it counts and reports, but rejects nothing";

const PREFIX: &str = "write path = \"/api/{*rest}\"";

const STRIPPED: &str = "write path = \"/api/{*rest}\" and rewrite = \"/{*rest}\"";

const RATE: &str = "number and time are one string: rate = \"100/10s\", \"5/s\", \"60/min\"";

/// The remedy for a key that switches off the verification of certificates.
const VERIFIED: &str = "certificates are always verified: for a private authority write tls = { ca = \"ca.pem\" }, for another name than the host's tls = { server_name = \"orders.internal\" }";

/// Keys of other programs that switch off the verification of certificates.
const UNVERIFIED: [&str; 7] = [
    "verify",
    "tls_verify",
    "ssl_verify",
    "skip_verify",
    "insecure",
    "insecure_skip_verify",
    "reject_unauthorized",
];

const RESPONSE_FIELDS: &str = "write response_headers = { set = { x-name = \"value\" } } in [[routes]]";

const LOG_PLACE: &str = "remove it: the log goes to stderr, so redirect that; requests are logged by [access_log] path = \"access.log\"";

/// The forms of keys that people write with another type, by their path. `*` stands for a name, and `[]` for an element.
const FORMS: [(&str, &str); 38] = [
    ("routes", "begin each route with a line [[routes]]; its name is a key: name = \"orders\""),
    ("descriptors", "begin each rule with a line [[descriptors]]"),
    ("limits", "write a table for each limit, with its name in the header: [limits.per-client]"),
    ("upstreams", "write a table for each upstream, with its name in the header: [upstreams.orders]"),
    ("limits.*", "write for example: per-client = { key = \"ip\", rate = \"5/s\" }"),
    ("upstreams.*", "write for example: orders = { servers = \"http://127.0.0.1:3000\" }"),
    ("limits.*.rate", "write a string: \"20/s\", or for algorithm = \"concurrency\" \"20\""),
    (
        "limits.*.overrides",
        "write a list of tables: overrides = [{ key = \"gold\", rate = \"1000/s\" }], with a key of two parts [{ key = [\"pro\", \"*\"], rate = \"1000/s\" }]",
    ),
    (
        "limits.*.overrides.key",
        "write a value for each part of the limit's key, or \"*\" for any: key = [\"pro\", \"*\"]",
    ),
    ("limits.*.ban", "write a table: ban = { after = \"10/min\", for = \"1h\" }"),
    ("limits.*.exempt", "write a list: exempt = [\"10.0.0.0/8\"]"),
    (
        "routes.limits",
        "write a list of names or tables: limits = [\"per-client\", { name = \"search\", cost = 10 }]",
    ),
    ("routes.respond", "write a table: respond = { status = 200 }"),
    ("routes.redirect", "write a table: redirect = { to = \"/v2/orders\" }"),
    (
        "routes.redirect.status",
        "use 308 or 301 (permanent), 307 or 302 (temporary), or 303 (followed with GET)",
    ),
    ("routes.headers", "write a table: headers = { x-version = \"2\" }"),
    ("routes.claims", "write a table: claims = { plan = \"pro\" }"),
    (
        "routes.claims.*",
        "write one string: { plan = \"pro\" } matches the claim, or a list that contains it; for several values, write a route for each; a nested claim is { \"/realm_access/roles\" = \"admin\" }",
    ),
    ("routes.query", "write a table: query = { version = \"2\" }"),
    ("routes.headers.*", "write one string; for several values, write a route for each"),
    ("routes.query.*", "write one string; for several values, write a route for each"),
    ("routes.on_limit", "write a table: on_limit = { status = 503 }"),
    ("routes.request_headers", "write a table: request_headers = { set = { x-name = \"value\" } }"),
    ("routes.response_headers", "write a table: response_headers = { set = { x-name = \"value\" } }"),
    ("server.tls", SERVER_TLS),
    ("server.tls.certs", CERTS),
    ("server.tls.certs[]", "write a table: { cert = \"gateway.pem\", key = \"gateway.key\" }"),
    ("server.timeouts", "write a table: timeouts = { header = \"10s\", idle = \"75s\", drain = \"30s\" }"),
    ("server.trusted_proxies", "write a list: trusted_proxies = [\"10.0.0.0/8\"]"),
    ("decisions.tls", "write a table: tls = { cert = \"gateway.pem\", key = \"gateway.key\" }"),
    ("decisions.trusted_proxies", "write a list: trusted_proxies = [\"10.0.0.0/8\"]"),
    ("store.tls", "begin the URL with rediss://; a table is for files: tls = { ca = \"ca.pem\" }"),
    ("upstreams.*.tls", "begin the URLs with https://; a table is for files: tls = { ca = \"ca.pem\" }"),
    (
        "upstreams.*.timeouts",
        "write a table: timeouts = { connect = \"2s\", response = \"30s\", idle = \"4s\" }",
    ),
    ("upstreams.*.health", "write a table: health = { path = \"/healthz\" }"),
    ("upstreams.*.retries", "write a table: retries = { attempts = 2 }"),
    ("upstreams.*.eject", "write a table: eject = {}, or eject = { failures = 5 }"),
    ("descriptors.match", "write a table: match = { api_key = \"*\" }"),
];

/// Keys of other programs and of other tables, by their path, each with the key of this file that is meant, and the remedy.
const FOREIGN: &[(&str, &str, &str)] = &[
    ("port", "server", "write [server] listen = \"0.0.0.0:8080\""),
    ("listen", "server", "write it below [server]: listen = \"0.0.0.0:8080\""),
    ("redis", "store", "write [store] url = \"redis://127.0.0.1:6379\""),
    ("metrics", "admin", "the admin port has the metrics: [admin] listen = \"127.0.0.1:9901\""),
    ("store.password", "url", REDIS_URL),
    ("store.username", "url", REDIS_URL),
    ("store.host", "url", REDIS_URL),
    ("store.port", "url", REDIS_URL),
    ("store.db", "url", REDIS_URL),
    ("store.database", "url", REDIS_URL),
    ("auth", "jwt", "write [jwt] jwks_url = \"https://…\", and require = \"jwt\" in routes"),
    ("routes.on_limit.headers", "response_headers", RESPONSE_FIELDS),
    ("limits.*.headers", "response_headers", RESPONSE_FIELDS),
    ("limits.*.respond", "on_limit", "write on_limit = { status = 503 } in [[routes]]"),
    ("routes.cost", "limits", "write limits = [{ name = \"per-client\", cost = 5 }]"),
    (
        "upstreams.*.headers",
        "request_headers",
        "write request_headers = { set = { x-name = \"value\" } } in [[routes]]",
    ),
    (
        "upstreams.*.host",
        "preserve_host",
        "write preserve_host = false in [[routes]]: then the server gets the host of its URL",
    ),
    ("upstreams.*.path", "rewrite", "write rewrite = \"/api/{*rest}\" in [[routes]]"),
    ("server.cert", "tls", SERVER_TLS),
    ("server.key", "tls", SERVER_TLS),
    ("server.port", "listen", "write listen = \"0.0.0.0:8080\""),
    ("server.address", "listen", "write listen = \"0.0.0.0:8080\""),
    ("server.tls.cert", "certs", CERTS),
    ("server.tls.key", "certs", CERTS),
    ("upstreams.*.url", "servers", "write servers = [\"http://127.0.0.1:3000\"]"),
    ("upstreams.*.urls", "servers", "write servers = [\"http://127.0.0.1:3000\"]"),
    ("upstreams.*.address", "servers", "write servers = [\"http://127.0.0.1:3000\"]"),
    ("upstreams.*.servers.host", "url", SERVER_URL),
    ("upstreams.*.servers.port", "url", SERVER_URL),
    ("upstreams.*.servers.address", "url", SERVER_URL),
    ("upstreams.*.healthchecks", "health", "write health = { path = \"/healthz\" }"),
    (
        "upstreams.*.timeout",
        "timeouts",
        "write timeouts = { response = \"10s\" }, or `timeout` in [[routes]] for the whole exchange",
    ),
    ("jwt.secret", "hmac_secret", "write hmac_secret = \"${JWT_SECRET}\""),
    ("jwt.aud", "audience", "write audience = \"shop\""),
    ("jwt.iss", "issuer", "write issuer = \"https://id.example.com\""),
    ("jwt.jwks_uri", "jwks_url", "write jwks_url = \"https://…\""),
    ("routes.backend", "upstream", "write upstream = \"orders\", the name of [upstreams.orders]"),
    ("limits.*.overrides.burst", "rate", "an override has a rate of its own, and the limit's burst"),
    ("routes.auth", "require", "write require = \"jwt\""),
    ("routes.jwt", "require", "write require = \"jwt\""),
    ("limits.*.cost.header", "response_header", "for a field of the request, write cost = \"header:x-cost\""),
    (
        "limits.*.cost.request_header",
        "response_header",
        "for a field of the request, write cost = \"header:x-cost\"",
    ),
    ("cors", "routes", CORS),
    ("server.cors", "response_headers", CORS),
    ("routes.cors", "response_headers", CORS),
    ("routes.prefix", "path", PREFIX),
    ("routes.path_prefix", "path", PREFIX),
    ("routes.strip_prefix", "rewrite", STRIPPED),
    ("routes.strip_path", "rewrite", STRIPPED),
    ("routes.dry_run", "mode", SHADOW),
    ("routes.shadow", "mode", SHADOW),
    ("server.dry_run", "mode", SHADOW),
    ("limits.*.dry_run", "mode", SHADOW),
    ("limits.*.shadow", "mode", SHADOW),
    ("limits.*.shadow_mode", "mode", SHADOW),
    ("limits.*.limit_by", "key", "write key = \"ip\", \"header:x-api-key\" or \"jwt:sub\""),
    ("limits.*.second", "rate", "for 10 a second write rate = \"10/s\""),
    ("limits.*.minute", "rate", "for 10 a minute write rate = \"10/min\""),
    ("limits.*.hour", "rate", "for 10 an hour write rate = \"10/h\""),
    ("limits.*.day", "rate", "for 10 a day write rate = \"10/day\""),
    (
        "limits.*.month",
        "rate",
        "write rate = \"5/month\", algorithm = \"fixed-window\" and calendar = \"UTC\"",
    ),
    ("limits.*.limit", "rate", RATE),
    ("limits.*.requests", "rate", RATE),
    ("limits.*.requests_per_unit", "rate", RATE),
    ("limits.*.unit", "rate", RATE),
    ("limits.*.window", "rate", RATE),
    ("limits.*.period", "rate", RATE),
    ("limits.*.average", "rate", RATE),
    (
        "limits.*.policy",
        "scope",
        "counts are shared if [store] has a url, \"redis://HOST:6379\"; scope = \"instance\" counts in each process",
    ),
    ("log.file", "stderr", LOG_PLACE),
    ("log.path", "stderr", LOG_PLACE),
    ("log.output", "stderr", LOG_PLACE),
    ("limits.*.name", "NAME", "the name of a limit is in the header of its table: [limits.logins]"),
    (
        "limits.*.token_bucket",
        "rate",
        "for a token bucket write rate = \"100/10s\" (the refill), algorithm = \"gcra\", burst = 50",
    ),
    ("descriptors.key", "match", "write match = { api_key = \"*\" }"),
    (
        "descriptors.rate_limit",
        "limits",
        "write limits = [\"per-key\"], and define it: [limits.per-key], key = \"descriptor:api_key\", rate = \"100/min\"",
    ),
];

/// The tables whose keys are names.
const NAMED: [&str; 5] = ["limits", "upstreams", "routes.headers", "routes.query", "routes.claims"];

/// An entry of the file.
pub(super) struct FileEntry {
    /// The keys that lead to it, with dots. Names, of limits for example, are `*`; `[]` ends the path of an element.
    pub(super) path: String,
    /// True if the value is a table.
    is_table: bool,
    /// True if the key follows a dot, in a header or in a key.
    is_dotted: bool,
    /// True if the value is a date or a time.
    pub(super) is_time: bool,
}

impl FileEntry {
    /// Returns the entry whose value or key has exactly this position.
    pub(super) fn at(tree: &DeTable<'_>, span: &Range<usize>) -> Option<Self> {
        Self::below(tree, "", span)
    }

    fn below(table: &DeTable<'_>, path: &str, span: &Range<usize>) -> Option<Self> {
        table.iter().find_map(|(key, value)| {
            let key_text = if NAMED.contains(&path) { "*" } else { key.get_ref() };
            let path = if path.is_empty() { key_text.to_owned() } else { format!("{path}.{key_text}") };
            // The table of a header begins at its bracket, that of a dot at its key.
            let is_name_with_dot = key_text == "*" && value.span() == key.span();
            let inner = Self::within(value, &path, span);
            let inner = inner.map(|inner| Self { is_dotted: inner.is_dotted || is_name_with_dot, ..inner });
            inner.or_else(|| {
                let is_time = matches!(value.get_ref(), DeValue::Datetime(_));
                let is_table = value.get_ref().is_table();
                let is_dotted = value.span().start <= key.span().start;
                let is_this = key.span() == *span || value.span() == *span;
                is_this.then_some(Self { path, is_table, is_dotted, is_time })
            })
        })
    }

    fn within(value: &Spanned<DeValue<'_>>, path: &str, span: &Range<usize>) -> Option<Self> {
        match value.get_ref() {
            DeValue::Table(table) => Self::below(table, path, span),
            DeValue::Array(list) => list.iter().find_map(|element| {
                let is_this = element.span() == *span && !element.get_ref().is_table();
                let this = || {
                    let path = format!("{path}[]");
                    is_this.then_some(Self { path, is_table: false, is_dotted: false, is_time: false })
                };
                Self::within(element, path, span).or_else(this)
            }),
            _ => None,
        }
    }

    /// Returns the form of this key.
    pub(super) fn form(&self) -> Option<&'static str> {
        form(&self.place())
    }

    /// Returns the path, that of an inline limit as of one in a table of its own.
    fn place(&self) -> String {
        self.path.replacen("routes.limits.", "limits.*.", 1).replacen("descriptors.limits.", "limits.*.", 1)
    }

    /// Returns true if this is the rate of a limit.
    pub(super) fn is_rate(&self) -> bool {
        self.place() == "limits.*.rate"
    }

    /// Returns true if this is a table below a named one, as a dot in its name would make it.
    pub(super) fn is_part_of_name(&self) -> bool {
        let parts: Vec<&str> = self.path.split('.').collect();
        self.is_table && self.is_dotted && matches!(parts[..], ["limits" | "upstreams", "*", _])
    }

    /// Returns how to write what this key means elsewhere. `None` if that isn't known.
    pub(super) fn remedy(&self) -> Option<&'static str> {
        let place = self.place();
        let known = FOREIGN.iter().find(|(path, ..)| *path == place).map(|(.., remedy)| *remedy);
        known.or_else(|| {
            let (table, key) = place.rsplit_once('.')?;
            let has_tls = table == "upstreams.*" || table.ends_with(".tls");
            (has_tls && UNVERIFIED.contains(&key)).then_some(VERIFIED)
        })
    }
}

/// Returns the form of the key with this path.
pub(super) fn form(path: &str) -> Option<&'static str> {
    FORMS.iter().find(|(known, _)| *known == path).map(|(_, form)| *form)
}

/// Returns true if `written` is another program's name for `key`.
pub(super) fn is_called(key: &str, written: &str) -> bool {
    let is_so = |path: &str| path.rsplit('.').next() == Some(written);
    FOREIGN.iter().any(|(path, meant, _)| *meant == key && is_so(path))
}

/// Returns the headers of the tables that have this key, by the schema of the file.
pub(super) fn tables_with(key: &str) -> Vec<String> {
    let schema: Value = serde_json::from_str(include_str!("../../gateway.schema.json")).unwrap_or_default();
    let tables = schema["properties"].as_object().into_iter().flatten();
    let with_key = tables.filter_map(|(name, table)| {
        let forms = [
            (&table["allOf"][0], format!("[{name}]")),
            (&table["anyOf"][0], format!("[{name}]")),
            (&table["items"], format!("[[{name}]]")),
            (&table["additionalProperties"], format!("[{name}.NAME]")),
        ];
        let (reference, header) =
            forms.into_iter().find_map(|(form, header)| Some((form["$ref"].as_str()?, header)))?;
        let definition = schema.pointer(reference.strip_prefix('#')?)?;
        definition["properties"].get(key).map(|_| header)
    });
    with_key.collect()
}
