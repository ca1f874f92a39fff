//! The parts of a gateway, for listings, metrics and the server that runs it.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use hyper::http::request::Parts;
use tollgate_limiter::{Limiter, RatelimitHeaders, metrics::Page, store::StoreError};
use tollgate_routing::Matcher;

use crate::{
    config::RatelimitSettings,
    forward::{self, Upstream},
    rules::{
        self, Rule,
        key::jwt::{Claims, Verifier},
    },
};

use super::{Gateway, Traffic, client, plan::Responder, split::Split};

/// A route, for listings.
#[derive(Debug)]
pub struct Listed<'g> {
    /// The name in logs and metrics.
    pub name: &'g str,
    /// The requests that take it.
    pub matcher: &'g Matcher,
    /// The names of its limits.
    pub limits: Vec<&'g str>,
    /// The name of its upstream, or of several with their shares. `None` if the gateway answers itself.
    pub upstream: Option<String>,
}

impl Gateway {
    /// Connects this thread to the store, so that its first decision doesn't wait for a connection.
    ///
    /// # Errors
    /// The store can't be reached now. Until it can, the failure policies of the limits apply.
    pub async fn warm_up(&self) -> Result<(), StoreError> {
        self.limiter.warm_up().await
    }

    /// Rejects the requests that wait for room, and from now on rejects instead of waiting.
    pub fn end_waits(&self) {
        self.limiter.end_waits();
    }

    /// Waits for the store's pending work: costs to record and leases to release.
    pub async fn flush(&self) {
        self.limiter.flush().await;
    }

    /// Returns the limiter.
    pub fn limiter(&self) -> &Arc<Limiter> {
        &self.limiter
    }

    /// Returns the limits by name, including those that no route names.
    pub fn rules(&self) -> &BTreeMap<String, Arc<Rule>> {
        &self.planner.rules
    }

    /// Returns the form of the RateLimit fields.
    pub(crate) fn ratelimit_headers(&self) -> RatelimitHeaders {
        self.ratelimit_headers
    }

    /// Returns the settings of the rate limit service.
    pub(crate) fn ratelimit_service(&self) -> &RatelimitSettings {
        &self.ratelimit_service
    }

    /// Returns the claims of a request, which are verified when a limit first needs them.
    pub(crate) fn claims<'r>(&'r self, parts: &'r Parts) -> Claims<'r> {
        Claims::new(self.verifier.as_ref(), &parts.headers)
    }

    /// Returns true if a connection from `peer` must begin with a PROXY protocol header. Other connections are never searched for one.
    pub fn expects_proxy_header(&self, peer: IpAddr) -> bool {
        self.proxy_protocol && self.is_proxy(peer)
    }

    /// Returns true for the address of a trusted proxy, on whose connections requests of many clients may come.
    pub fn is_proxy(&self, peer: IpAddr) -> bool {
        client::is_trusted(peer, &self.trusted_proxies)
    }

    /// Writes the metrics of requests, limits, upstreams and the store.
    pub fn write_metrics(&self, page: &mut Page<'_>) {
        // Thousands of unused routes would make a page of megabytes of zeros.
        let counted = || self.traffic().filter(|(_, traffic)| traffic.answers.have_counted());
        let routes = || counted().map(|(name, traffic)| (("route", name), traffic));
        page.counters(
            "tollgate_requests",
            "Requests by route, which is empty if none matches, and class of the response's status. A client that leaves \
            before the response counts as 4xx",
            routes().flat_map(|(route, traffic)| {
                traffic.answers.iter().map(move |(class, count)| ([route, ("status", class)], count))
            }),
        );
        page.counters(
            "tollgate_requests_refused",
            "Requests rejected by limits",
            routes().map(|(route, traffic)| ([route], traffic.refused())),
        );
        page.histograms(
            "tollgate_request_duration_seconds",
            "Time from the arrival of a request to the end of its response, complete or not",
            routes().map(|(route, traffic)| ([route], &traffic.durations)),
        );
        rules::write_metrics(page, self.planner.rules.values().map(Arc::as_ref));
        forward::write_metrics(page, &self.upstreams);
        self.limiter.write_metrics(page);
        if let Some(keys) = self.verifier.as_ref().and_then(Verifier::fetched) {
            keys.write_metrics(page);
        }
        if let Some(log) = &self.access_log {
            log.write_metrics(page);
        }
        if let Some(tracer) = &self.tracer {
            tracer.write_metrics(page);
        }
    }

    /// Returns the routes in the order of the file.
    pub fn routes(&self) -> impl Iterator<Item = Listed<'_>> {
        self.planner.routes.routes().map(|(matcher, route)| {
            let upstream = match &route.answer {
                Responder::Upstream(split) => Some(self.upstream_text(split)),
                Responder::Fixed(_) | Responder::Redirect(..) => None,
            };
            Listed {
                name: &route.name,
                matcher,
                limits: route.rules.iter().map(|rule| rule.limit().name()).collect(),
                upstream,
            }
        })
    }

    /// Returns the name of a route's upstream, or of several with their shares: `canary 5 %, stable 95 %`.
    pub(crate) fn upstream_text(&self, split: &Split) -> String {
        let shares: Vec<_> = split.shares().collect();
        let name = |upstream: usize| self.upstreams[upstream].0.as_str();
        match &shares[..] {
            [(only, _)] => name(*only).to_owned(),
            shares => {
                let shares = shares.iter().map(|(upstream, percent)| {
                    format!("{} {} %", name(*upstream), (percent * 10.0).round() / 10.0)
                });
                shares.collect::<Vec<_>>().join(", ")
            }
        }
    }

    /// Returns the traffic of requests without a route, under an empty name, then of the routes by name.
    pub fn traffic(&self) -> impl Iterator<Item = (&str, &Traffic)> {
        self.traffic.iter().map(|(name, traffic)| (name.as_str(), &**traffic))
    }

    /// Returns the upstreams in the order of their names.
    pub fn upstreams(&self) -> &[(String, Arc<Upstream>)] {
        &self.upstreams
    }

    /// Returns the most connections to upstreams with this number of workers.
    pub fn upstream_connections_most(&self, workers: usize) -> usize {
        self.upstreams.iter().map(|(_, upstream)| upstream.connections_most(workers)).sum()
    }

    /// Closes this thread's upstream connections that have been idle too long.
    pub fn close_idle(&self) {
        for (_, upstream) in &self.upstreams {
            upstream.close_idle();
        }
    }

    /// Closes this thread's idle connections to servers that the gateway after this one doesn't have.
    pub fn close_retired(&self) {
        let servers = self.upstreams.iter().flat_map(|(_, upstream)| upstream.standings());
        for status in servers.filter(|status| status.server.is_retired()) {
            status.server.close_idle(Duration::ZERO);
        }
    }
}
