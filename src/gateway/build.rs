//! Building a gateway from a configuration, and replacing it at a reload.

use std::{collections::BTreeMap, sync::Arc};

use tollgate_limiter::Limiter;

use crate::{
    config::Config,
    forward::{self, Upstream},
    rules::{Rule, key::jwt::Verifier},
    trace::Tracer,
};

use super::{
    AccessLog, Gateway, Traffic, jwks,
    plan::{Planner, descriptors, route_names},
};

impl Gateway {
    /// The index of the traffic of requests without a route.
    pub(super) const UNROUTED: usize = 0;

    /// Builds a gateway. Upstreams that `before` had keep their connections, and names that it had keep their metrics. Must be
    /// called within a tokio runtime, which watches the servers and refreshes keys; `before` stops doing so.
    pub fn build(config: &Config, limiter: &Arc<Limiter>, before: Option<&Self>) -> Self {
        if let Some(before) = before {
            before.retire();
        }
        limiter.share_memory_among(config.limits.keys().map(String::as_str));
        let verifier = config.jwt.as_ref();
        let verifier = verifier
            .map(|settings| Verifier::new(settings, before.and_then(|before| before.verifier.as_ref())));
        Self {
            planner: Planner::new(config, rules(config, before)),
            limiter: limiter.clone(),
            _key_fetches: verifier.as_ref().and_then(Verifier::fetched).cloned().map(jwks::keep_fresh),
            verifier,
            ratelimit_headers: config.server.ratelimit_headers,
            request_id: config.server.request_id,
            ratelimit_service: config
                .decisions
                .as_ref()
                .map(|decisions| decisions.ratelimit.clone())
                .unwrap_or_default(),
            upstreams: upstreams(config, before),
            trusted_proxies: config.server.trusted_proxies.clone(),
            callers: config.decisions.as_ref().map(|decisions| decisions.callers.clone()),
            proxy_protocol: config.server.proxy_protocol,
            health: config.server.health.clone(),
            traffic: traffic(config, before),
            access_log: before.and_then(|before| before.access_log.clone()),
            tracer: before.and_then(|before| Some(before.tracer.as_ref()?.with(config.tracing.as_ref()))),
        }
    }

    /// Ends the tasks that run without requests. Requests in flight may keep the gateway for hours.
    fn retire(&self) {
        for (_, upstream) in &self.upstreams {
            upstream.retire();
        }
        if let Some(keys) = self.verifier.as_ref().and_then(Verifier::fetched) {
            keys.retire();
        }
    }

    /// Returns the gateway with an access log. Gateways that replace it keep the log.
    #[must_use]
    pub fn log_to(self, log: Arc<AccessLog>) -> Self {
        Self { access_log: Some(log), ..self }
    }

    /// Returns the gateway with tracing. Gateways that replace it keep the tracer.
    #[must_use]
    pub fn trace_by(self, tracer: Tracer) -> Self {
        Self { tracer: Some(tracer), ..self }
    }
}

/// Returns the limits by name. Each continues the metrics of the limit that had its name before.
fn rules(config: &Config, before: Option<&Gateway>) -> BTreeMap<String, Arc<Rule>> {
    let stated = descriptors::stated_limits(config).map(Arc::new);
    let limits = stated.map(|limit| (limit.name.clone(), limit));
    let limits = limits.chain(config.limits.iter().map(|(name, limit)| (name.clone(), limit.clone())));
    let rule = |(name, limit): (String, Arc<_>)| {
        let before = before.and_then(|before| before.planner.rules.get(&name)).map(Arc::as_ref);
        (name, Arc::new(Rule::new(&limit, before)))
    };
    limits.map(rule).collect()
}

/// Returns the upstreams in the order of their names. Each continues the one that had its name before. Servers that none of them
/// has any more are retired.
fn upstreams(config: &Config, before: Option<&Gateway>) -> Vec<(String, Arc<Upstream>)> {
    let before = before.map_or(&[][..], |before| &before.upstreams);
    let upstream = |(name, upstream): (&String, &_)| {
        let before = before.iter().find(|(other, _)| other == name).map(|(_, before)| &**before);
        (name.clone(), Arc::new(Upstream::new(name, upstream, before)))
    };
    let upstreams: Vec<_> = config.upstreams.iter().map(upstream).collect();
    let taken_over = forward::servers_of(&upstreams);
    for (_, _, server) in forward::servers_of(before) {
        if !taken_over.iter().any(|(_, _, kept)| Arc::ptr_eq(kept, server)) {
            server.retire();
        }
    }
    upstreams
}

/// Returns the traffic by name, as [`route_names`] orders it. Each continues the traffic that had its name before.
fn traffic(config: &Config, before: Option<&Gateway>) -> Vec<(String, Arc<Traffic>)> {
    let traffic = |name: String| {
        let before = before.and_then(|before| before.traffic.iter().find(|(other, _)| *other == name));
        let traffic = before.map_or_else(Arc::default, |(_, traffic)| traffic.clone());
        (name, traffic)
    };
    route_names(config).into_iter().map(traffic).collect()
}
