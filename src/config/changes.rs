//! The changes that a reload makes, for the log.

use std::{collections::BTreeMap, net::SocketAddr};

use serde_json::Value;

use super::{
    Action, AdminTokens, Config, KeyPart, LimitSettings, RouteSettings, ServerUrl, UpstreamSettings,
    difference::Difference,
};
use tollgate_limiter::Algorithm;

impl Config {
    /// Lists the changes from `old` to this configuration, a line each.
    ///
    /// Changes that need a restart are listed with a note. They have no effect until then.
    ///
    /// `shown` has the old and the new file as operators may see them, whose values are shown with the keys.
    pub fn changes(&self, old: &Self, shown: [&Value; 2]) -> Vec<String> {
        let shown = Difference { old: shown[0], new: shown[1] };
        let mut lines = self.changes_of_settings(old, shown);
        lines.extend(compare(
            "upstream",
            &by_name(&old.upstreams),
            &by_name(&self.upstreams),
            |name, old, new| new.changes(old, name, shown),
        ));
        lines.extend(compare("limit", &by_name(&old.limits), &by_name(&self.limits), |_, old, new| {
            new.changes(old, shown)
        }));
        lines.extend(compare("route", &routes_by_name(old), &routes_by_name(self), |name, old, new| match (
            &old[..],
            &new[..],
        ) {
            ([(old_place, old)], [(place, new)]) => new.changes(old, [*old_place, *place], shown),
            _ if same(old, new) => vec![],
            _ => vec![format!("route `{name}` changed")],
        }));
        lines.extend(
            (self.domains != old.domains)
                .then(|| "the domains of `decisions.ratelimit_service` changed".to_owned()),
        );
        lines.extend((self.descriptors != old.descriptors).then(|| "`descriptors` changed".to_owned()));
        lines
    }

    /// Lists the changes outside of upstreams, limits and routes.
    fn changes_of_settings(&self, old: &Self, shown: Difference<'_>) -> Vec<String> {
        let at_once =
            changed(self.settings_at_once(old)).map(|key| format!("`{key}` changed{}", shown.at_key(key)));
        let at_next_start = changed(self.settings_at_next_start(old));
        at_once
            .chain(
                at_next_start.map(|key| {
                    format!("`{key}` changed{}: takes effect at the next start", shown.at_key(key))
                }),
            )
            .collect()
    }

    /// Returns the keys that a reload applies, each with whether its value is the same.
    fn settings_at_once(&self, old: &Self) -> [(&'static str, bool); 19] {
        let (new_server, old_server) = (&self.server, &old.server);
        let tracings = self.tracing.as_ref().zip(old.tracing.as_ref());
        [
            ("server.listen", new_server.listen == old_server.listen),
            ("server.trusted_proxies", new_server.trusted_proxies == old_server.trusted_proxies),
            ("server.proxy_protocol", new_server.proxy_protocol == old_server.proxy_protocol),
            ("server.http2", new_server.http2 == old_server.http2),
            ("server.tls", new_server.tls == old_server.tls),
            ("server.max_header_bytes", new_server.max_header_bytes == old_server.max_header_bytes),
            ("server.max_connections", new_server.max_connections == old_server.max_connections),
            ("server.timeouts.header", new_server.header_timeout == old_server.header_timeout),
            ("server.timeouts.idle", new_server.idle_timeout == old_server.idle_timeout),
            ("server.timeouts.drain", new_server.drain_timeout == old_server.drain_timeout),
            ("server.ratelimit_headers", new_server.ratelimit_headers == old_server.ratelimit_headers),
            ("server.max_body", new_server.max_body == old_server.max_body),
            ("server.escaped_slashes", new_server.escaped_slashes == old_server.escaped_slashes),
            ("server.request_id", new_server.request_id == old_server.request_id),
            ("server.health", new_server.health == old_server.health),
            ("admin.token", tokens(self) == tokens(old)),
            ("decisions", self.decisions == old.decisions),
            ("jwt", self.jwt == old.jwt),
            ("tracing.sample", tracings.is_none_or(|(new, old)| new.sample == old.sample)),
        ]
    }

    /// Returns the keys that need a restart, each with whether its value is the same.
    fn settings_at_next_start(&self, old: &Self) -> [(&'static str, bool); 15] {
        let (new_store, old_store) = (&self.store, &old.store);
        [
            ("server.workers", self.server.workers == old.server.workers),
            ("log", self.log == old.log),
            ("server.reuse_port", self.server.reuse_port == old.server.reuse_port),
            ("admin.listen", admin(self) == admin(old)),
            ("admin.metrics_listen", metrics_listen(self) == metrics_listen(old)),
            ("decisions.ratelimit_service.xds", self.xds == old.xds),
            ("access_log", self.access_log == old.access_log),
            ("tracing", otlp(self) == otlp(old)),
            ("store.url", new_store.url == old_store.url),
            ("store.tls", new_store.tls == old_store.tls),
            ("store.timeout", new_store.timeout == old_store.timeout),
            ("store.instances", new_store.instances == old_store.instances),
            ("store.replicated", new_store.replicated == old_store.replicated),
            ("store.key_prefix", new_store.key_prefix == old_store.key_prefix),
            ("store.max_memory", new_store.max_memory == old_store.max_memory),
        ]
    }
}

impl UpstreamSettings {
    fn changes(&self, old: &Self, name: &str, shown: Difference<'_>) -> Vec<String> {
        let timeouts =
            |upstream: &Self| (upstream.connect_timeout, upstream.response_timeout, upstream.idle_timeout);
        let keys = [
            ("servers", self.target == old.target),
            ("balance", self.balance == old.balance),
            ("timeouts", timeouts(self) == timeouts(old)),
            ("retries", self.retries == old.retries),
            ("health", self.health == old.health),
            ("eject", self.eject == old.eject),
            ("max_connections", self.max_connections == old.max_connections),
            ("http2", self.http2 == old.http2),
            ("tls", self.tls == old.tls),
        ];
        let values = |key| shown.at(&["upstreams", name, key]);
        changed(keys).map(|key| format!("upstream `{name}`: `{key}` changed{}", values(key))).collect()
    }
}

impl LimitSettings {
    fn changes(&self, old: &Self, shown: Difference<'_>) -> Vec<String> {
        let name = &self.name;
        let mut lines = Vec::new();
        let tag = |limit: &Self| limit.quota.algorithm.tag();
        let counts = if tag(self) == tag(old) { "counts kept" } else { "counts start over" };
        // The burst and the lease aren't part of the written rate; they are compared below.
        let (rate, old_rate) = (self.quota.to_string(), old.quota.to_string());
        if rate != old_rate {
            lines.push(format!("limit `{name}` {old_rate} → {rate}: {counts}"));
        }
        if tag(self) != tag(old) {
            let is_calendar = |limit: &Self| matches!(limit.quota.algorithm, Algorithm::Calendar(_));
            let both = is_calendar(self) && is_calendar(old);
            let what = if both { "counts in other windows" } else { "uses another algorithm" };
            lines.push(format!("limit `{name}` {what}: {counts}"));
        }
        if self.scope != old.scope {
            lines.push(format!("limit `{name}`: `scope` changed, counts start over"));
        }
        // Everything else that a key's text depends on.
        let keying = |limit: &Self| (limit.prefixes, limit.plain, limit.redisson_name.clone());
        if self.key != old.key || keying(self) != keying(old) {
            lines.push(format!("limit `{name}` uses other keys: counts start over"));
        }
        let others = [
            ("burst", self.burst() == old.burst()),
            ("lease", self.lease_us() == old.lease_us()),
            ("cost", self.cost == old.cost),
            ("when_status", self.when_status == old.when_status),
            ("wait", self.wait == old.wait),
            ("usage", self.usage == old.usage),
            ("refunds", self.refunds == old.refunds),
            ("ban", self.ban == old.ban),
            ("mode", self.mode == old.mode),
            ("missing", self.missing == old.missing),
            ("keys_file", self.known_keys == old.known_keys),
            ("unknown", self.unknown == old.unknown),
            ("exempt", self.exempt == old.exempt),
            // The keys aren't listed, since they may be credentials.
            ("overrides", self.overrides == old.overrides),
            ("rate_from", rate_source(self) == rate_source(old)),
            (
                "max",
                self.rate_from.as_ref().map(|from| from.max) == old.rate_from.as_ref().map(|from| from.max),
            ),
            ("on_failure", self.on_failure == old.on_failure),
        ];
        let values = |key| shown.at(&["limits", name, key]);
        lines.extend(changed(others).map(|key| format!("limit `{name}`: `{key}` changed{}", values(key))));
        lines
    }

    fn burst(&self) -> Option<u32> {
        match self.quota.algorithm {
            Algorithm::Gcra { burst } => burst,
            _ => None,
        }
    }

    fn lease_us(&self) -> Option<u64> {
        (self.quota.algorithm == Algorithm::Concurrency).then_some(self.quota.window_us)
    }
}

impl RouteSettings {
    fn changes(&self, old: &Self, places: [usize; 2], shown: Difference<'_>) -> Vec<String> {
        let keys = [
            ("host", self.matcher.host == old.matcher.host),
            ("path", self.matcher.path == old.matcher.path),
            ("methods", self.matcher.methods == old.matcher.methods),
            ("headers", self.matcher.headers == old.matcher.headers),
            ("query", self.matcher.query == old.matcher.query),
            (self.action.key(), self.action == old.action),
            ("limits", self.limits == old.limits && self.costs == old.costs),
            ("rewrite", self.rewrite == old.rewrite),
            ("request_headers", self.request_headers == old.request_headers),
            ("response_headers", self.response_headers == old.response_headers),
            ("timeout", self.timeout == old.timeout),
            ("max_body", self.max_body == old.max_body),
            ("preserve_host", self.preserve_host == old.preserve_host),
            ("require", self.requires == old.requires),
            ("on_limit", self.on_limit == old.on_limit),
        ];
        let values = |key| shown.of_route(places, key);
        changed(keys).map(|key| format!("route `{}`: `{key}` changed{}", self.name, values(key))).collect()
    }
}

impl Action {
    fn key(&self) -> &'static str {
        match self {
            Self::Upstream(_) | Self::Split(_) => "upstream",
            Self::Respond { .. } => "respond",
            Self::Redirect { .. } => "redirect",
        }
    }
}

/// Returns the part of requests that states the rate.
fn rate_source(limit: &LimitSettings) -> Option<&KeyPart> {
    limit.rate_from.as_ref().map(|from| &from.source)
}

/// Returns the keys whose values differ.
fn changed<const N: usize>(keys: [(&'static str, bool); N]) -> impl Iterator<Item = &'static str> {
    keys.into_iter().filter(|(_, is_same)| !is_same).map(|(key, _)| key)
}

/// Returns the address of the admin port.
fn admin(config: &Config) -> Option<SocketAddr> {
    config.admin.as_ref().map(|admin| admin.listen)
}

/// Returns the address of the metrics alone.
fn metrics_listen(config: &Config) -> Option<SocketAddr> {
    config.admin.as_ref().and_then(|admin| admin.metrics_listen)
}

/// Returns the tokens of the admin port.
fn tokens(config: &Config) -> Option<&AdminTokens> {
    config.admin.as_ref().map(|admin| &admin.tokens)
}

/// Returns the collector of a configuration.
fn otlp(config: &Config) -> Option<&ServerUrl> {
    config.tracing.as_ref().map(|tracing| &tracing.otlp)
}

fn by_name<T>(things: &BTreeMap<String, T>) -> BTreeMap<&str, &T> {
    things.iter().map(|(name, thing)| (name.as_str(), thing)).collect()
}

/// Groups the routes by name. Several routes can have the same generated name.
fn routes_by_name(config: &Config) -> BTreeMap<&str, Vec<(usize, &RouteSettings)>> {
    let mut named = BTreeMap::<_, Vec<_>>::new();
    for (place, route) in config.routes.iter().enumerate() {
        named.entry(route.name.as_str()).or_default().push((place, route));
    }
    named
}

/// Returns true if these routes are the same, wherever they are in the file.
fn same(old: &[(usize, &RouteSettings)], new: &[(usize, &RouteSettings)]) -> bool {
    old.iter().map(|(_, route)| route).eq(new.iter().map(|(_, route)| route))
}

/// Lists what was removed, and then what was added or `changed`.
fn compare<T: PartialEq>(
    what: &str,
    old: &BTreeMap<&str, T>,
    new: &BTreeMap<&str, T>,
    changed: impl Fn(&str, &T, &T) -> Vec<String>,
) -> Vec<String> {
    let removed = old.keys().filter(|name| !new.contains_key(*name));
    let removed = removed.map(|name| format!("{what} `{name}` removed"));
    let others = new.iter().flat_map(|(name, new)| match old.get(name) {
        None => vec![format!("{what} `{name}` added")],
        Some(old) if old == new => vec![],
        Some(old) => changed(name, old, new),
    });
    removed.chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = r#"
        [upstreams.a]
        builtin = "echo"
        [upstreams.b]
        builtin = "echo"
        [limits.per-client]
        key = "ip"
        rate = "100/10s"
        [limits.per-key]
        key = "header:x-api-key"
        rate = "5/s"
        [[routes]]
        path = "/a"
        upstream = "a"
        limits = ["per-client", "per-key"]
        [[routes]]
        path = "/a"
        methods = ["GET"]
        upstream = "a"
    "#;

    fn changes(edits: &[(&str, &str)]) -> Vec<String> {
        let edited = edits.iter().fold(OLD.to_owned(), |text, (from, to)| {
            assert!(text.contains(from), "{from}");
            text.replace(from, to)
        });
        let config = |text| Config::parse("gateway.toml", text, &|_| None).expect("a good file").0;
        config(&edited).changes(&config(OLD), [&Value::Null; 2])
    }

    #[test]
    fn the_same_file_changes_nothing() {
        assert!(changes(&[]).is_empty());
    }

    #[test]
    fn a_rate_changes_and_the_counts_stay() {
        assert_eq!(changes(&[("100/10s", "50/10s")]), ["limit `per-client` 100/10s → 50/10s: counts kept"]);
    }

    #[test]
    fn a_key_changes_and_the_counts_go() {
        assert_eq!(
            changes(&[("\"ip\"", "\"ip\"\nmode = \"shadow\""), ("header:x-api-key", "global")]),
            ["limit `per-client`: `mode` changed", "limit `per-key` uses other keys: counts start over"]
        );
    }

    #[test]
    fn an_algorithm_changes_and_the_counts_go() {
        assert_eq!(
            changes(&[("\"100/10s\"", "\"20\"\nalgorithm = \"concurrency\"\nlease = \"10s\"")]),
            [
                "limit `per-client` 100/10s → 20: counts start over",
                "limit `per-client` uses another algorithm: counts start over",
                "limit `per-client`: `lease` changed"
            ]
        );
        let by = |algorithm| format!("\"100/10s\"\nalgorithm = \"{algorithm}\"");
        let anew = "limit `per-client` uses another algorithm: counts start over";
        assert_eq!(changes(&[("\"100/10s\"", &by("sliding-cells"))]), [anew]);
        assert_eq!(changes(&[("\"5/s\"", "\"5/s\"\nscope = \"instance\"")]).len(), 1);
    }

    #[test]
    fn changed_keys_are_named_without_credentials() {
        let keys = "\"5/s\"\ncost = 2\nwhen_status = \"4xx\"\nwait = \"1s\"\noverrides = [{ key = \"hunter2\", rate = \"9/s\" }]";
        let named = |key| format!("limit `per-key`: `{key}` changed");
        assert_eq!(changes(&[("\"5/s\"", keys)]), ["cost", "when_status", "wait", "overrides"].map(named));
    }

    #[test]
    fn added_and_removed_entries_are_named() {
        assert_eq!(
            changes(&[
                ("upstreams.b", "upstreams.c"),
                (", \"per-key\"", ""),
                ("[limits.per-key]", "[limits.new]")
            ]),
            [
                "upstream `b` removed",
                "upstream `c` added",
                "limit `per-key` removed",
                "limit `new` added",
                "route `/a` changed"
            ]
        );
    }

    #[test]
    fn changed_keys_of_a_route_are_named() {
        let with =
            |keys: &str| changes(&[("[\"per-client\", \"per-key\"]", &format!("[\"per-key\"]\n{keys}"))]);
        assert_eq!(with(""), ["route `/a` changed"], "there are two of that name");
        let named = "[[routes]]\nname = \"one\"\npath = \"/one\"\nrespond = { status = 200 }\n";
        let old = Config::parse("gateway.toml", named, &|_| None).expect("a good file").0;
        let new = "[server]\nmax_body = \"1MiB\"\n[upstreams.a]\nbuiltin = \"echo\"\n[[routes]]\nname = \"one\"\npath = \"/two\"\n\
                   upstream = \"a\"\nrewrite = \"/\"\nrequest_headers = { set = { x-key = \"hunter2\" } }\n\
                   preserve_host = false\non_limit = { status = 503 }\n";
        let new = Config::parse("gateway.toml", new, &|_| None).expect("a good file").0;
        let keys = ["path", "upstream", "rewrite", "request_headers", "preserve_host", "on_limit"];
        let mut expected = vec!["`server.max_body` changed".to_owned(), "upstream `a` added".to_owned()];
        expected.extend(keys.map(|key| format!("route `one`: `{key}` changed")));
        assert_eq!(new.changes(&old, [&Value::Null; 2]), expected);
    }

    #[test]
    fn changed_keys_of_an_upstream_are_named() {
        let b = "[upstreams.b]\n        builtin = \"echo\"";
        let named = |key| format!("upstream `b`: `{key}` changed");
        assert_eq!(
            changes(&[(b, "[upstreams.b]\nservers = \"http://b\"\nbalance = \"random\"\neject = {}")]),
            ["servers", "balance", "eject"].map(named)
        );
    }

    #[test]
    fn sample_changes_at_once_and_otlp_at_the_next_start() {
        let changes = |old: &str, new: &str| {
            let config = |tracing| Config::parse("gateway.toml", &format!("{tracing}{OLD}"), &|_| None);
            config(new)
                .expect("a good file")
                .0
                .changes(&config(old).expect("a good file").0, [&Value::Null; 2])
        };
        let (share, at_next_start) =
            ("`tracing.sample` changed", "`tracing` changed: takes effect at the next start");
        let with = |keys: &str| format!("[tracing]\n{keys}\n");
        assert_eq!(changes(&with(""), &with("sample = 0.5")), [share]);
        assert_eq!(changes(&with(""), ""), [at_next_start]);
        assert_eq!(changes("", &with("sample = 0.5")), [at_next_start]);
        let elsewhere = with("otlp = \"http://a:4317\"\nsample = 0.5");
        assert_eq!(changes(&with(""), &elsewhere), [share, at_next_start]);
    }

    #[test]
    fn changes_that_need_a_restart_are_marked() {
        let settings = "[server]\nworkers = 2\nescaped_slashes = \"reject\"\n[store]\nurl = \"redis://:x@h\"\n[upstreams.a]";
        assert_eq!(
            changes(&[("[upstreams.a]", settings)]),
            [
                "`server.escaped_slashes` changed",
                "`server.workers` changed: takes effect at the next start",
                "`store.url` changed: takes effect at the next start"
            ]
        );
    }
}
