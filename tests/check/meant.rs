//! Files that are valid TOML and can't work as meant: `check` names the value and the remedy.

use tollgate::config::{Config, Severity};

use super::GOOD;

const JWT: &str = "[jwt]\nhmac_secret = \"0123456789012345678901234567890123456789\"\n";
const DECISIONS: &str = "[decisions]\nlisten = \"127.0.0.1:8081\"\n";

/// Returns the diagnostics of a file as they are drawn.
fn told(toml: &str) -> (Vec<Severity>, String) {
    let diagnostics = match Config::parse("gateway.toml", toml, &|_| None) {
        Ok((_, warnings)) => warnings,
        Err(faults) => faults,
    };
    (diagnostics.iter().map(|fault| fault.severity).collect(), diagnostics.to_string())
}

fn limit(terms: &str) -> String {
    format!("[limits.l]\n{terms}\n{GOOD}name = \"home\"\nlimits = [\"l\"]\n")
}

fn by(key: &str, terms: &str) -> String {
    limit(&format!("key = \"{key}\"\nrate = \"5/s\"\n{terms}"))
}

fn upstream(url: &str, route: &str) -> String {
    format!(
        "[upstreams.u]\nservers = [\"{url}\"]\n[[routes]]\npath = \"/{{*rest}}\"\nupstream = \"u\"\n{route}\n"
    )
}

fn route(path: &str, terms: &str) -> String {
    format!("[[routes]]\npath = \"{path}\"\n{terms}\n")
}

fn on_limit(body: &str) -> String {
    format!("{}on_limit = {{ body = '{body}' }}\n", by("ip", ""))
}

fn field(value: &str) -> String {
    upstream("http://a:1", &format!("request_headers = {{ set = {{ x-a = '{value}' }} }}"))
}

fn descriptor(value: &str) -> String {
    format!(
        "{DECISIONS}[limits.l]\nkey = \"descriptor:k\"\nrate = \"5/s\"\n\
         [[descriptors]]\ndomain = \"d\"\nmatch = {{ k = \"{value}\" }}\nlimits = [\"l\"]\n"
    )
}

/// Checks that each file has one diagnostic of this severity, with these words.
fn check(severity: Severity, rows: &[(String, &[&str])]) {
    for (toml, words) in rows {
        let (severities, told) = told(toml);
        assert_eq!(severities, [severity], "{toml}: {told}");
        for word in *words {
            assert!(told.contains(word), "{toml}: `{word}` isn't in {told}");
        }
    }
}

#[test]
fn a_gateway_that_leads_to_itself_is_told() {
    let on = |listen: &str, url: &str| format!("[server]\nlisten = \"{listen}\"\n{}", upstream(url, ""));
    let admin = |url: &str| format!("[admin]\nlisten = \"127.0.0.1:9901\"\n{}", upstream(url, ""));
    let tls = "[server]\ntls = { certs = [{ cert = \"tests/tls/gateway.pem\", key = \"tests/tls/gateway.key\" }] }\n";
    let shop = |to: &str| {
        route("/{*rest}", &format!("host = \"gateway\"\nredirect = {{ to = \"{to}/{{*rest}}\" }}"))
    };
    let itself: &[&str] = &["is this gateway itself", "name the port of the application"];
    let again: &[&str] = &["redirects to its own route", "name another path or host"];
    let to = |to: &str| format!("redirect = {{ to = \"{to}\" }}");
    check(
        Severity::Warning,
        &[
            (upstream("http://127.0.0.1:8080", ""), itself),
            (upstream("http://localhost:8080", ""), itself),
            (on("0.0.0.0:80", "http://127.0.0.1"), itself),
            (on("0.0.0.0:80", "http://0.0.0.0"), itself),
            (on("127.0.0.1:80", "http://0.0.0.0"), itself),
            (on("10.0.0.1:80", "http://10.0.0.1"), itself),
            (on("[::]:80", "http://[::1]"), itself),
            (on("unix:/run/a.sock", "unix:/run/a.sock"), itself),
            (admin("http://localhost:9901"), &["`http://localhost:9901` is this gateway's admin.listen"]),
            (route("/a", &to("/a")), again),
            (route("/{*rest}", &to("/{*rest}")), again),
            (route("/{*rest}", &to("/v2/{*rest}")), again),
            (route("/old/{id}", &to("/old/index")), again),
            (route("/a/b", &to("/a/%62/")), again),
            (shop("http://gateway"), again),
            (format!("{tls}{}", shop("https://gateway")), again),
            (
                format!("[server]\nhealth = \"/up\"\n{}", GOOD.replace("\"/\"", "\"/up\"")),
                &["no GET and no HEAD", "server.health answers `/up`", "choose another path"],
            ),
        ],
    );
    for toml in [
        on("127.0.0.1:80", "http://127.0.0.1:81"),
        on("10.0.0.1:80", "http://127.0.0.1"),
        on("0.0.0.0:80", "http://[::1]"),
        on("0.0.0.0:80", "http://gateway"),
        upstream("http://10.0.0.1:8080", ""),
        route("/a", &to("/a/")) + &route("/a", "methods = [\"GET\"]\nrespond = {}"),
        route("/{*rest}", &to("/v2/{*rest}")) + &route("/v2/{*rest}", "respond = {}"),
        route("/a", &format!("methods = [\"POST\"]\n{}", "redirect = { to = \"/a\", status = 303 }"))
            + &route("/a", "respond = {}"),
        route("/a", &to("https://gateway/a")),
        route("/a", &to("/a?v=2")) + &route("/a", "query = { v = \"2\" }\nrespond = {}"),
        shop("https://gateway"),
        format!("{tls}{}", shop("https://www.gateway")),
        format!("[server]\nhealth = \"/up\"\n{}", route("/{*rest}", "respond = {}")),
        format!("[server]\nhealth = \"/up\"\n{}", route("/up", "methods = [\"POST\"]\nrespond = {}")),
    ] {
        assert_eq!(told(&toml).1, "", "{toml}");
    }
}

#[test]
fn values_that_no_request_has_are_told() {
    let claims = |name: &str| format!("{JWT}{GOOD}claims = {{ \"{name}\" = \"a\" }}\n");
    let both = |terms: &str| format!("{JWT}{}", by("jwt:/a/b", terms));
    check(
        Severity::Warning,
        &[
            (
                by("host", "overrides = [{ key = \"shop.example:8080\", rate = \"9/s\" }]"),
                &["no request has the host `shop.example:8080`", "write \"shop.example\""],
            ),
            (by("host", "exempt = [\"https://shop.example/\"]"), &["write \"shop.example\""]),
            (by("host", "exempt = [\"*.shop.example\"]"), &["no request has the host `*.shop.example`"]),
            (
                by("route", "overrides = [{ key = \"hme\", rate = \"9/s\" }]"),
                &["there is no route `hme`", "did you mean `home`?", "write the `name` of a route: \"home\""],
            ),
            (by("route", "exempt = [\"orders\"]"), &["there is no route `orders`"]),
            (
                format!("{JWT}{}", by("jwt:realm_access.tier", "")),
                &[
                    "`realm_access.tier` is one claim",
                    "write \"jwt:/realm_access/tier\"",
                    "\"jwt:/realm_access.tier\"",
                ],
            ),
            (both("rate_from = \"jwt:a.quota\"\nmax = 9"), &["write \"jwt:/a/quota\""]),
            (claims("realm_access.roles"), &["write \"/realm_access/roles\""]),
            (descriptor(""), &["matches only an empty `k`", "for any value write k = \"*\""]),
            (by("header:authorization", "exempt = [\"abc\"]"), &["has no scheme", "\"Bearer TOKEN\""]),
            (
                by("header:x-api-key", "exempt = [\"sha256:9f86\"]"),
                &["looks like its hash", "write the value"],
            ),
            (
                by(
                    "header:x-api-key",
                    "exempt = [\"gold\"]\noverrides = [{ key = \"gold\", rate = \"9/s\" }]",
                ),
                &["this override has no effect", "remove one of the two"],
            ),
            (
                by("ip", "exempt = [\"10.0.0.0/8\"]\noverrides = [{ key = \"10.1.2.3\", rate = \"9/s\" }]"),
                &["this override has no effect"],
            ),
        ],
    );
    for toml in [
        by("host", "exempt = [\"Shop.example\", \"[::1]\", \"10.0.0.1\"]"),
        by("route", "exempt = [\"home\"]"),
        format!("{DECISIONS}{}", by("route", "exempt = [\"orders\"]")),
        both(""),
        claims("https://id.example.com/roles"),
        claims("/realm_access.roles"),
        descriptor("*"),
        by("header:authorization", "exempt = [\"Bearer abc\"]"),
        by("header:authorization", "keys_file = \"tests/check/keys.txt\"\nexempt = [\"test\"]"),
        by("ip", "exempt = [\"10.0.0.0/8\"]\noverrides = [{ key = \"11.1.2.3\", rate = \"9/s\" }]"),
        by("header:x-api-key", "exempt = [\"gold\"]\noverrides = [{ key = \"silver\", rate = \"9/s\" }]"),
    ] {
        assert_eq!(told(&toml).1, "", "{toml}");
    }
}

#[test]
fn settings_without_effect_are_told() {
    let admin = |key: &str| {
        format!("[admin]\nlisten = \"127.0.0.1:9901\"\n{key} = \"Bearer abcdefghijklmnopqr\"\n{GOOD}")
    };
    check(
        Severity::Warning,
        &[
            (
                by("ip", "usage = \"reported\""),
                &["nobody can report costs without [decisions]", "instead of `usage`"],
            ),
            (upstream("http://a:443", ""), &["443 is the port of HTTPS", "write \"https://a\""]),
            (upstream("https://a:80", ""), &["80 is the port of HTTP without TLS", "write \"http://a\""]),
            (
                format!("[store]\ninstances = 3\n{GOOD}"),
                &["`instances` has no effect", "url = \"redis://HOST:6379\""],
            ),
            (admin("token"), &["`Bearer` is part of this token", "write the token alone"]),
            (admin("metrics_token"), &["`Bearer` is part of this token"]),
            (
                format!("[tracing]\notlp = \"http://otel:4318\"\n{GOOD}"),
                &["this gateway speaks gRPC", "otlp = \"http://otel:4317\""],
            ),
        ],
    );
    check(
        Severity::Error,
        &[
            (
                format!("[access_log]\npath = \"tests\"\n{GOOD}"),
                &["is a folder", "path = \"tests/access.log\""],
            ),
            (
                format!("[store]\nurl = \"redis+unix://run/redis.sock\"\n{GOOD}"),
                &["read as a host", "write three slashes: \"redis+unix:///run/redis.sock\""],
            ),
        ],
    );
    for toml in [
        format!("{DECISIONS}{}", by("ip", "usage = \"reported\"")),
        format!("[store]\ninstances = 1\n{GOOD}"),
        format!("[store]\nurl = \"redis://a\"\ninstances = \"auto\"\n{GOOD}"),
        format!("[access_log]\npath = \"none/access.log\"\n{GOOD}"),
        upstream("https://a:8443", ""),
    ] {
        assert_eq!(told(&toml).1, "", "{toml}");
    }
}

#[test]
fn placeholders_of_other_proxies_are_told() {
    let bodies = [
        "{{ retry_after }}",
        "{ retry_after }",
        "{\"in\": {{ .RetryAfter }}}",
        "{{- .Limit -}}",
        "%(retry_after)s",
        "<retry_after>",
        "%RESPONSE_CODE%",
    ];
    let told_of_bodies: &[&str] =
        &["is not replaced here", "write `{retry_after}` or `{limit}`, in one pair"];
    let bodies = bodies.map(|body| (on_limit(body), told_of_bodies));
    check(Severity::Warning, &bodies);
    let values = [
        "%REQ(x-id)%",
        "$remote_addr",
        "for=$remote_addr",
        "{{ client.ip }}",
        "{http.request.host}",
        "{rest}",
    ];
    let told_of_values: &[&str] = &["`x-a` is sent with its placeholder", "write a fixed value"];
    check(Severity::Warning, &values.map(|value| (field(value), told_of_values)));
    let respond = format!("{GOOD}[routes.respond.headers]\nx-a = \"$request_id\"\n");
    check(Severity::Warning, &[(respond.replace("respond = { status = 200 }\n", ""), told_of_values)]);
    check(
        Severity::Error,
        &[(on_limit("${retry_after}"), &["is a variable of the environment", "write `{retry_after}`"])],
    );
    for body in [
        "{\"limit\": \"{limit}\", \"in\": {retry_after}}",
        "<limit>{limit}</limit>",
        "you are at 100% (limit reached)",
        "<style>p { color: red }</style>",
        "the { limit is near",
    ] {
        assert_eq!(told(&on_limit(body)).1, "", "{body}");
    }
    for value in
        ["100%", "%E2%82%AC", "$5", "{\"a\":1}", "Bearer a$b", "default-src https:; report-uri /{x}/b"]
    {
        assert_eq!(told(&field(value)).1, "", "{value}");
    }
}

#[test]
fn keys_and_values_of_other_programs_get_their_own_remedy() {
    let tls = |key: &str| {
        let table = format!("tls = {{ {key} = false }}\n[[routes]]");
        upstream("https://a", "").replace("[[routes]]", &table)
    };
    let verified: &[&str] = &["certificates are always verified", "tls = { ca = \"ca.pem\" }"];
    let inline = |key: &str| format!("{GOOD}limits = [{{ name = \"l\", key = \"ip\", {key} }}]\n");
    let shadow: &[&str] = &["write mode = \"shadow\" in the limit's table"];
    let none: &[&str] = &["a rate has at least 1 permit", "remove the limit from its routes"];
    let one: &[&str] =
        &["write one string", "for several values, write a route for each", "/realm_access/roles"];
    let cors: &[&str] = &["docs/configuration.md#cors"];
    check(
        Severity::Error,
        &[
            (limit("limit_by = \"ip\"\nrate = \"5/s\""), &["unknown key `limit_by`", "write key = \"ip\""]),
            (limit("key = \"ip\"\nminute = 5"), &["unknown key `minute`", "write rate = \"10/min\""]),
            (limit("key = \"ip\"\nrate = \"5/s\"\nheaders = {}"), &["write response_headers = { set"]),
            (limit("key = \"ip\"\nrate = \"5/s\"\nrespond = {}"), &["write on_limit = { status = 503 }"]),
            (
                route("/b", "respond = {}\ncost = 5"),
                &["write limits = [{ name = \"per-client\", cost = 5 }]"],
            ),
            (route("/b", "respond = {}\non_limit = { headers = {} }"), &["write response_headers = { set"]),
            (
                format!(
                    "[upstreams.v]\nservers = \"http://a:1\"\nhost = \"b\"\n{}",
                    route("/b", "upstream = \"v\"")
                ),
                &["write preserve_host = false"],
            ),
            (format!("[server]\ncert = \"c\"\n{GOOD}"), &["write a table: tls = { certs"]),
            (inline("minute = 5"), &["write rate = \"10/min\""]),
            (limit("key = \"ip\"\nrequests_per_unit = 5"), &["rate = \"100/10s\""]),
            (format!("{JWT}{GOOD}claims = {{ roles = [\"admin\", \"dev\"] }}\n"), one),
            (format!("{JWT}{GOOD}claims = {{ realm_access.roles = \"admin\" }}\n"), one),
            (format!("{GOOD}headers = {{ x-a = [\"1\", \"2\"] }}\n"), &["write a route for each"]),
            (limit("key = \"ip\"\nrate = -1"), none),
            (limit("key = \"ip\"\nrate = \"-1\""), none),
            (limit("key = \"ip\"\nrate = \"unlimited\""), none),
            (inline("rate = -1"), none),
            (by("ip", "dry_run = true"), shadow),
            (format!("{GOOD}dry_run = true\n"), shadow),
            (inline("rate = \"5/s\", dry_run = true"), shadow),
            (
                format!("{GOOD}strip_prefix = \"/api\"\n"),
                &["write path = \"/api/{*rest}\" and rewrite = \"/{*rest}\""],
            ),
            (format!("{GOOD}cors = true\n"), cors),
            (format!("[cors]\norigins = [\"*\"]\n{GOOD}"), cors),
            (upstream("https://a", "").replace("[[routes]]", "tls_verify = false\n[[routes]]"), verified),
            (tls("verify"), verified),
            (tls("insecure_skip_verify"), verified),
            (format!("[store]\nurl = \"rediss://a\"\ntls = {{ insecure = true }}\n{GOOD}"), verified),
        ],
    );
}

#[test]
fn settings_that_miss_each_other_are_told() {
    let keys =
        |terms: &str| by("header:x-api-key", &format!("keys_file = \"tests/check/keys.txt\"\n{terms}"));
    let two = |second: &str, limits: &str| {
        format!(
            "[limits.a]\nkey = \"ip\"\nrate = \"60/min\"\n[limits.b]\n{second}\n{GOOD}limits = {limits}\n"
        )
    };
    let exposing = |style: &str, fields: &str| {
        let route =
            format!("response_headers = {{ set = {{ access-control-expose-headers = \"{fields}\" }} }}");
        format!("[server]\nratelimit_headers = \"{style}\"\n{}", upstream("http://a:1", &route))
    };
    let rewrite = |to: &str| upstream("http://a:1", &format!("rewrite = \"{to}\""));
    let idle: &[&str] = &["`b` never refuses a request", "`a` admits at most 3600"];
    check(
        Severity::Warning,
        &[
            (
                keys("unknown = \"deny\"\nmissing = \"skip\""),
                &["unknown key are rejected", "missing = \"deny\""],
            ),
            (two("key = \"ip\"\nrate = \"5000/h\"", "[\"a\", \"b\"]"), idle),
            (two("key = \"ip\"\nrate = \"3600/h\"", "[\"b\", \"a\"]"), idle),
            (exposing("x-ratelimit", "RateLimit"), &["no response has `ratelimit`", "X-RateLimit-Limit"]),
            (
                exposing("draft-11", "etag, X-RateLimit-Reset"),
                &["no response has `x-ratelimit-reset`", "RateLimit, "],
            ),
            (exposing("off", "RateLimit"), &["no response has `ratelimit`", "turn them on"]),
            (
                by("header:x-plan", "overrides = [{ key = \"unlimited\", rate = 0 }]"),
                &["refuses all", "`exempt`"],
            ),
            (
                limit(
                    "key = [\"header:a\", \"header:b\"]\nrate = \"5/s\"\noverrides = [{ key = [\"unlimited\", \"*\"], rate = 0 }]",
                ),
                &["refuses all", "never reaches"],
            ),
            (
                limit("key = [\"header:a\", \"header:b\"]\nrate = \"5/s\"\nexempt = ['[\"pro\", \"*\"]']"),
                &["`*` stands for itself"],
            ),
            (
                by("ip", "ipv4_prefix = 24\noverrides = [{ key = \"198.51.100.17\", rate = \"9/s\" }]"),
                &["all of `198.51.100.0/24`", "\"198.51.100.0\""],
            ),
            (
                by("ip", "overrides = [{ key = \"2001:db8::17\", rate = \"9/s\" }]"),
                &["all of `2001:db8::/64`", "\"2001:db8::\"", "ipv6_prefix = 128"],
            ),
            (
                limit(
                    "key = [\"ip\", \"method\"]\nrate = \"5/s\"\noverrides = [{ key = [\"2001:db8::17\", \"*\"], rate = \"9/s\" }]",
                ),
                &["all of `2001:db8::/64`"],
            ),
            (rewrite("/v1/"), &["gets to the upstream as `/v1/`", "rewrite = \"/v1/{*rest}\""]),
        ],
    );
    for fine in [
        keys("unknown = \"deny\"\nmissing = \"deny\""),
        keys("missing = \"skip\""),
        two("key = \"ip\"\nrate = \"3599/h\"", "[\"a\", \"b\"]"),
        two("key = \"ip\"\nrate = \"5000/h\"\nwhen_status = \"401\"", "[\"a\", \"b\"]"),
        two("key = \"host\"\nrate = \"5000/h\"", "[\"a\", \"b\"]"),
        exposing("draft-11", "RateLimit, RateLimit-Policy"),
        exposing("both", "RateLimit, X-RateLimit-Limit"),
        rewrite("/index.html"),
        by("ip", "overrides = [{ key = \"198.51.100.17\", rate = \"9/s\" }]"),
        by("ip", "overrides = [{ key = \"2001:db8::\", rate = \"9/s\" }]"),
        by("ip", "ipv6_prefix = 128\noverrides = [{ key = \"2001:db8::17\", rate = \"9/s\" }]"),
        rewrite("/v1/{*rest}"),
    ] {
        let (severities, told) = told(&fine);
        assert_eq!(severities, [], "{fine}: {told}");
    }
}

#[test]
fn remedies_fit_what_is_wrong() {
    check(
        Severity::Error,
        &[
            (
                "[jwt]\nhmac_secret = \"x\"\n[[routes]]\nclaims = { https://a/b = \"c\" }\n".to_owned(),
                &["in quotes"],
            ),
            (
                format!("[store]\nurl = \"redis-sentinel://a:1,b:1/0?service=m\"\nreplicated = true\n{GOOD}"),
                &["redis-sentinel://HOST:26379?node="],
            ),
            (format!("{GOOD}require = \"api-key\"\n"), &["keys_file"]),
            (by("ip", "cost = { response_json: \"/a\" }"), &["write `=` between"]),
            (upstream("http://a:1 weight=3", ""), &["{ url = \"http://a:1\", weight = 3 }"]),
            (format!("{GOOD}timeout = \"0s\"\n"), &["leave it out"]),
            (
                "[limits.l]\nkey = \"ip\"\nrate = \"9/s\"\nalgorithm = \"gcra\"\nburst = 5\n".to_owned()
                    + GOOD
                    + "limits = [{ name = \"l\", cost = 6 }]\n",
                &["raise the `burst`"],
            ),
            (
                by("path:account", "").replace("path = \"/\"", "path = \"/{user}\""),
                &["path:user", "`{account}`"],
            ),
            (
                by("ip", "overrides = [{ key = \"203.0.113.0/24\", rate = \"9/s\" }]"),
                &["exempt = [\"203.0.113.0/24\"]"],
            ),
            (
                limit("key = [\"header:a\", \"header:b\"]\nrate = \"5/s\"\nkeys_file = \"k\""),
                &["another limit"],
            ),
            (
                upstream("https://a:1", "")
                    .replace("[[routes]]", "tls = { cert = \"tests/tls/gateway.pem\" }\n[[routes]]"),
                &["client.key"],
            ),
            (
                limit("key = \"ip\"\nrate = \"5/s\"")
                    .replace("[limits.l]", "[limits.l]\nkey = \"ip\"\nrate = \"5/s\"\n[limits.l]"),
                &["table `l` is already defined"],
            ),
            (
                upstream("http://a:1", "").replace("upstream = \"u\"", "upstream = { u = 9, v = 1 }"),
                &["or use another one: `u`"],
            ),
        ],
    );
}

#[test]
fn parts_that_do_not_reach_each_other_are_told() {
    let server = |server: &str, retries: &str| {
        upstream(server, "")
            .replace("[[routes]]", &format!("retries = {{ attempts = {retries} }}\n[[routes]]"))
    };
    let known = |exempt: &str| {
        by("header:x-api-key", &format!("keys_file = \"tests/check/keys.txt\"\nexempt = [\"{exempt}\"]"))
    };
    let overridden = |key: &str| {
        let own = format!("overrides = [{{ key = \"{key}\", rate = \"9/s\" }}]");
        by("header:x-api-key", &format!("keys_file = \"tests/check/keys.txt\"\n{own}"))
    };
    let of_methods = |values: &str| {
        let exempt = format!("keys_file = \"tests/check/keys.txt\"\nexempt = ['[\"{values}\"]']");
        limit(&format!("key = [\"method\", \"header:x-api-key\"]\nrate = \"5/s\"\n{exempt}"))
    };
    let hash = std::fs::read_to_string("tests/check/keys.txt").unwrap();
    let hash = hash.split(' ').next().unwrap();
    let counting = |field: &str| {
        let route = format!("request_headers = {{ set = {{ {field} = \"acme\" }} }}\nlimits = [\"l\"]");
        format!("[limits.l]\nkey = \"header:x-tenant\"\nrate = \"5/s\"\n{}", upstream("http://a:1", &route))
    };
    let at = |host: &str| {
        let certs = "[server]\ntls = { certs = [{ cert = \"tests/tls/gateway.pem\", key = \"tests/tls/gateway.key\" }] }\n";
        format!("{certs}{}", upstream("http://a:1", &format!("host = \"{host}\"")))
    };
    let in_flight = |store: &str, rate: &str| {
        let limit = format!("[limits.l]\nkey = \"global\"\nrate = \"{rate}\"\nalgorithm = \"concurrency\"\n");
        format!("{store}{limit}{}", upstream("http://a:1", "limits = [\"l\"]"))
    };
    let redis = "[store]\nurl = \"redis://a:6379\"\n";
    let connections = |workers: usize, keys: &str| {
        let servers = "servers = [\"http://a:1\", \"http://b:1\"]";
        upstream("http://a:1", "").replace("servers = [\"http://a:1\"]", &format!("{servers}\n{keys}"))
            + &format!("[server]\nworkers = {workers}\n")
    };
    let few = "http2 = true\nmax_connections = 7";
    check(
        Severity::Warning,
        &[
            (server("http://192.0.2.1:80", "3"), &["nothing is retried", "add servers"]),
            (known(hash), &["hash of a known key", "this exemption", "the key itself"]),
            (known("k2"), &["no such key", "this exemption", "the name"]),
            (overridden("k2"), &["no such key", "this override", "the name"]),
            (of_methods("GET\",\"k2"), &["no such key", "this exemption", "the name"]),
            (counting("X-Tenant"), &["`x-tenant` that the client sent", "\"global\""]),
            (at("other.example"), &["no certificate", "`other.example`"]),
            (in_flight("", "2000"), &["at most 1024 in flight", "max_connections"]),
            (connections(4, few), &["8 HTTP/2 connections", "4 workers", "max_connections = 8"]),
            (connections(600, "http2 = true"), &["1200 HTTP/2 connections", "max_connections = 1200"]),
            (
                limit("key = [\"global\", \"ip\"]\nrate = \"5/s\""),
                &["`global` changes nothing", "of its own"],
            ),
        ],
    );
    for fine in [
        server("http://a:80", "3"),
        server("http://192.0.2.1:80", "1"),
        known("k1"),
        known("test"),
        overridden("k1"),
        overridden("test"),
        of_methods("GET\",\"k1"),
        of_methods("GET\",\"test"),
        counting("x-other"),
        at("gateway"),
        in_flight("", "1024"),
        in_flight(redis, "2000"),
        connections(3, few),
        connections(4, "max_connections = 7"),
        connections(512, "http2 = true"),
    ] {
        let (severities, told) = told(&fine);
        assert_eq!(severities, [], "{fine}: {told}");
    }
}
