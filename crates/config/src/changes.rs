//! The changes that a reload makes, for the log.
//!
//! Each key of the file is compared here, so that none is forgotten when one is added.

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
    fn settings_at_once(&self, old: &Self) -> [(&'static str, bool); 20] {
        let (new, before) = (&self.server, &old.server);
        let (url, old_url) = (&self.store.url, &old.store.url);
        let tracings = self.tracing.as_ref().zip(old.tracing.as_ref());
        [
            ("server.listen", new.listen == before.listen),
            ("server.trusted_proxies", new.trusted_proxies == before.trusted_proxies),
            ("server.proxy_protocol", new.proxy_protocol == before.proxy_protocol),
            ("server.http2", new.http2 == before.http2),
            ("server.tls", new.tls == before.tls),
            ("server.max_header_bytes", new.max_header_bytes == before.max_header_bytes),
            ("server.max_connections", new.max_connections == before.max_connections),
            ("server.timeouts.header", new.header_timeout == before.header_timeout),
            ("server.timeouts.idle", new.idle_timeout == before.idle_timeout),
            ("server.timeouts.drain", new.drain_timeout == before.drain_timeout),
            ("server.ratelimit_headers", new.ratelimit_headers == before.ratelimit_headers),
            ("server.max_body", new.max_body == before.max_body),
            ("server.escaped_slashes", new.escaped_slashes == before.escaped_slashes),
            ("server.request_id", new.request_id == before.request_id),
            ("server.health", new.health == before.health),
            ("admin.token", tokens(self) == tokens(old)),
            // With another login; another place is for the next start.
            ("store.url", url == old_url || !url.is_same_place(old_url)),
            ("decisions", self.decisions == old.decisions),
            ("jwt", self.jwt == old.jwt),
            ("tracing.sample", tracings.is_none_or(|(tracing, before)| tracing.sample == before.sample)),
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
            ("store.url", new_store.url.is_same_place(&old_store.url)),
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
        let mut lines = self.changes_of_counting(old);
        let values = |key| shown.at(&["limits", name, key]);
        let others = changed(self.other_settings(old));
        lines.extend(others.map(|key| format!("limit `{name}`: `{key}` changed{}", values(key))));
        lines
    }

    /// Lists the changes of what is counted, and says whether the counts are kept.
    fn changes_of_counting(&self, old: &Self) -> Vec<String> {
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
            let is_same = self.quota.algorithm.name() == old.quota.algorithm.name();
            let what = if is_same { "counts in another way" } else { "uses another algorithm" };
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
        lines
    }

    /// Returns the other keys, each with whether its value is the same.
    fn other_settings(&self, old: &Self) -> [(&'static str, bool); 17] {
        [
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
            ("max", rate_most(self) == rate_most(old)),
            ("on_failure", self.on_failure == old.on_failure),
        ]
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
            ("claims", self.matcher.claims == old.matcher.claims),
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

/// Returns the most permits that requests may state.
fn rate_most(limit: &LimitSettings) -> Option<u32> {
    limit.rate_from.as_ref().map(|from| from.max)
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
mod tests;
