//! Calls of other proxies and services, which ask for the limits' decision and forward requests themselves.
//!
//! A call is counted, logged and traced as a proxied request is. Only what follows the decision is missing.

use std::{net::IpAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use hyper::{Response, Version, http::request::Parts};
use tollgate_http1::head::FIELDS_MOST;

use crate::{
    forward::{
        body::Body,
        headers::{self, Client},
    },
    reject::Rejection,
    rules::{Rule, Terms},
};

use super::{AnswerBody, Exchange, Gateway, plan::Plan, target, whole};

impl Gateway {
    /// Returns true if a peer may ask for decisions, over TLS or without.
    pub(crate) fn admits_caller(&self, peer: IpAddr, has_tls: bool) -> bool {
        self.callers.as_ref().is_some_and(|callers| callers.admit(peer, has_tls))
    }
}

/// The time that a decision leaves its caller to receive it.
pub(super) const REPLY_TIME: Duration = Duration::from_millis(2);

impl Exchange {
    /// Makes the waits of limits end before the caller gives up, if it states a timeout.
    #[must_use]
    pub(crate) fn waiting_at_most(mut self: Box<Self>, timeout: Option<Duration>) -> Box<Self> {
        let facts = &mut self.facts;
        facts.waits_until = timeout.map(|timeout| facts.arrival + timeout.saturating_sub(REPLY_TIME));
        self
    }

    /// Decides a request that another proxy forwards: plans it, and lets the limits of its route decide. A request without a
    /// route is admitted, unless servers may read it as one with limits or a required token. Limits that wait for the response
    /// are skipped.
    ///
    /// # Errors
    /// The rejection.
    pub(crate) async fn decide_described(
        &mut self,
        client: &Client,
        parts: &mut Parts,
    ) -> Result<Response<Body>, Rejection> {
        if parts.version == Version::HTTP_2 {
            headers::from_http2(&mut parts.headers);
        }
        headers::from_described(&mut parts.headers);
        self.facts.identified(client, parts);
        if parts.headers.len() > FIELDS_MOST {
            return Err(Rejection::HeadTooLarge);
        }
        if target::is_about_server(parts) {
            return Ok(admitted());
        }
        let gateway = self.gateway.clone();
        let (planner, until) = (&gateway.planner, self.facts.waits_until);
        let planned = gateway.with_claims(parts, until, |claims| planner.plan(client, parts, claims)).await;
        let (rules, terms) = match self.facts.planned(planned, parts) {
            Ok(Plan { rules, terms, .. }) => (rules, terms),
            Err(Rejection::NoRoute) => {
                gateway
                    .with_claims(parts, until, |claims| planner.rules_without_route(client, parts, claims))
                    .await?
            }
            Err(rejection) => return Err(rejection),
        };
        if rules.iter().all(|rule| rule.config().ends_with_decision()) {
            return self.decide(&rules, terms).await;
        }
        let decided = rules.iter().cloned().zip(terms);
        let (rules, terms): (Vec<_>, Vec<_>) =
            decided.filter(|(rule, _)| rule.config().ends_with_decision()).unzip();
        self.decide(&rules, terms).await
    }

    /// Lets limits decide, and returns a response without a body that has their fields.
    ///
    /// # Errors
    /// The refusal.
    pub(crate) async fn decide(
        &mut self,
        rules: &[Arc<Rule>],
        terms: impl IntoIterator<Item = Terms>,
    ) -> Result<Response<Body>, Rejection> {
        let Self { gateway, facts } = self;
        let admission = gateway.decide(rules, terms, facts).await?;
        let mut response = admitted();
        if let Some(admission) = admission {
            facts.settle(admission, rules, gateway.ratelimit_headers, &mut response);
        }
        Ok(response)
    }

    /// Answers with the outcome of a call. When the body of the answer ends, the call is counted and logged.
    pub(crate) fn conclude(
        mut self: Box<Self>,
        outcome: Result<Response<Body>, Rejection>,
    ) -> Response<AnswerBody> {
        let Self { gateway, facts } = &mut *self;
        let response = outcome.unwrap_or_else(|rejection| gateway.reject(&rejection, facts));
        self.answered(response)
    }
}

/// Returns the response to a call whose request is admitted.
fn admitted() -> Response<Body> {
    whole(Response::new(Bytes::new()))
}
