//! The plan of a request: everything that the configuration determines before anything is counted or sent.
//!
//! Planning has no I/O, no store and no runtime. It reads the clock in one place: a token is verified when a claim is first looked
//! up. The gateway carries plans out, `explain` describes them, and `simulate` replays them. So the three always agree on
//! routes, limits and keys. Only requests that other proxies describe may have limits without a route.
//!
//! ```text
//! Target::read              host, path as forwarded, path as matched, other readings of both
//! Planner::route            the most specific route
//! Planner::other_routes     the routes that other readings of the request take
//! Planner::plan             all of these; then the next step, the limits of all routes, and each limit's terms
//! Planner::rules_without_route     the rules of a described request without a route
//! Planner::check_rewritten  a rewritten path whose other readings would escape limits is rejected
//! ```

mod demands;
pub(crate) mod descriptors;
mod route;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashSet},
    iter,
    sync::Arc,
};

use bytes::Bytes;
use hyper::{
    Response, StatusCode, Uri,
    header::{HeaderName, HeaderValue},
    http::request::Parts,
};
use smallvec::SmallVec;
use tollgate_routing::{
    Found, Matcher, Pattern, Table,
    path::{self, TooManyReadings},
    template::Template,
};

use crate::{
    config::{Config, Edits, EscapedSlashes},
    forward::headers::Client,
    reject::Rejection,
    rules::{Rule, Terms, key::jwt::Claims},
};

pub(super) use self::route::fixed;
pub(crate) use self::route::{Responder, Route};
use self::{
    demands::{Demands, RequestView},
    descriptors::DescriptorPlanner,
};
use super::{split::Split, target::Target};

/// The routes and limits of a configuration.
#[derive(Debug)]
pub(crate) struct Planner {
    pub(crate) routes: Table<Route>,
    /// The limits by name, including those that no route names.
    pub(crate) rules: BTreeMap<String, Arc<Rule>>,
    pub(crate) descriptors: DescriptorPlanner,
    pub(crate) escaped_slashes: EscapedSlashes,
    /// The fields of request headers that routes and limits read or edit.
    pub(super) fields_known: Arc<[HeaderName]>,
    /// True if a route may refuse requests, by limits or because it requires a token.
    is_protecting: bool,
}

/// Rules, and their terms for a request in the same order.
type RulesWithTerms<'g> = (Cow<'g, [Arc<Rule>]>, SmallVec<[Terms; 1]>);

/// The plan of a request: its route, its limits, and its next step.
#[derive(Debug)]
pub(crate) struct Plan<'g> {
    pub(crate) route: &'g Route,
    /// The pattern of the route's path.
    pub(crate) pattern: &'g Pattern,
    pub(crate) aim: Aim<'g>,
    /// The rules of the route, and of the routes that other readings of the request take.
    pub(crate) rules: Cow<'g, [Arc<Rule>]>,
    /// Their terms for the request, in the same order.
    pub(crate) terms: SmallVec<[Terms; 1]>,
}

/// The next step for a request, if its limits admit it.
#[derive(Debug)]
pub(crate) enum Aim<'g> {
    /// It is sent to one of these upstreams, with this target, or with the one it came with.
    Upstream(&'g Split, Option<Uri>),
    /// It gets this response.
    Fixed(&'g Response<Bytes>),
    /// It is redirected to this location with this status.
    Redirect(HeaderValue, StatusCode),
}

/// A request that is rejected before any limit decides, and the route it took, if it took one.
#[derive(Debug)]
pub(crate) struct Unplanned<'g> {
    pub(crate) rejection: Rejection,
    pub(crate) route: Option<&'g Route>,
}

impl Planner {
    /// Prepares the routes and descriptors of a configuration. Its limits are `rules`, by name.
    pub(crate) fn new(config: &Config, rules: BTreeMap<String, Arc<Rule>>) -> Self {
        let names = route_names(config);
        let routes = config.routes.iter().enumerate().map(|(place, route)| {
            let answer = Responder::new(&route.action, config);
            let planned = Route {
                name: route.name.clone(),
                rules: route
                    .limits
                    .iter()
                    .map(|name| match route.costs.get(name) {
                        Some(cost) => Arc::new(rules[name].at_cost(*cost)),
                        None => rules[name].clone(),
                    })
                    .collect(),
                rewrite: route.rewrite.clone(),
                request_headers: route.request_headers.clone(),
                response_headers: route.response_headers.clone().map(Arc::new),
                timeout: route.timeout,
                max_body: route.max_body.unwrap_or(config.server.max_body),
                preserve_host: route.preserve_host,
                speaks_http2: answer.speaks_http2(config),
                answer,
                requires: route.requires,
                reads_bodies: route.limits.iter().any(|name| rules[name].reads_bodies()),
                on_limit: route.on_limit.clone(),
                place,
                traffic: names
                    .iter()
                    .position(|name| *name == route.name)
                    .expect("each route's name is listed"),
            };
            (route.matcher.clone(), planned)
        });
        let routes = Table::new(routes);
        let fields_known = fields_known(&routes, &rules);
        let descriptors = DescriptorPlanner::new(config, &rules);
        let is_protecting = routes.routes().any(|(_, route)| route.may_refuse());
        let escaped_slashes = config.server.escaped_slashes;
        Self { routes, descriptors, escaped_slashes, fields_known, is_protecting, rules }
    }

    /// Returns the plan of a request from this client, with the claims of its verified token.
    ///
    /// # Errors
    /// The request is rejected whatever its limits say: its target is invalid, no route matches, it has too many readings or
    /// dot segments that only some servers see, or it lacks the token that a route requires. Its token can't be verified now, or isn't the
    /// only one, and a route asked for its claims.
    pub(crate) fn plan<'g>(
        &'g self,
        client: &Client,
        parts: &Parts,
        claims: &Claims<'_>,
    ) -> Result<Plan<'g>, Unplanned<'g>> {
        let target = Target::read(parts, self.escaped_slashes, &self.routes)?;
        let found = self.route(parts, &target, claims)?;
        let (route, pattern) = (found.route, found.pattern());
        let rejected = |rejection| Unplanned { rejection, route: Some(route) };
        let aim = route.aim(&found, &target, parts).map_err(rejected)?;
        let others = self.other_routes(Some(&found), parts, &target, claims).map_err(rejected)?;
        demands::check_token(iter::once(&found).chain(&others).map(|found| found.route), claims)
            .map_err(rejected)?;
        let request = RequestView { client, parts, target: &target, claims };
        let mut demands = Demands::of(&found, &request);
        for other in &others {
            demands.add(other, &request).map_err(rejected)?;
        }
        let Demands { rules, terms, .. } = demands;
        if self.is_protecting
            && let (Some(rewrite), Aim::Upstream(split, Some(uri))) = (&route.rewrite, &aim)
        {
            let is_covered = |other: &Route| other.is_covered_by(&rules, route.requires);
            self.check_rewritten(rewrite, uri.path(), split, is_covered).map_err(rejected)?;
        }
        Ok(Plan { route, pattern, aim, rules, terms })
    }

    /// Returns the rules of a described request without a route, with their terms: those of the routes that other readings of it take.
    ///
    /// # Errors
    /// As those of [`plan`](Self::plan).
    pub(crate) fn rules_without_route<'g>(
        &'g self,
        client: &Client,
        parts: &Parts,
        claims: &Claims<'_>,
    ) -> Result<RulesWithTerms<'g>, Rejection> {
        let target = Target::read(parts, self.escaped_slashes, &self.routes)?;
        let others = self.other_routes(None, parts, &target, claims)?;
        demands::check_token(others.iter().map(|found| found.route), claims)?;
        let request = RequestView { client, parts, target: &target, claims };
        let mut demands = Demands::default();
        for other in &others {
            demands.add(other, &request)?;
        }
        Ok((demands.rules, demands.terms))
    }

    /// Returns the route of a request.
    ///
    /// # Errors
    /// No route matches, or it isn't known whether one does, because the claims of the token aren't.
    pub(crate) fn route<'g, 't>(
        &'g self,
        parts: &'t Parts,
        target: &'t Target<'_>,
        claims: &'t Claims<'_>,
    ) -> Result<Found<'g, 't, Route>, Unplanned<'g>> {
        let found = self.routes.find(&target.view(parts, claims));
        found.ok_or_else(|| claims.doubt().map_or(Rejection::NoRoute, Rejection::ClaimsUnknown).into())
    }

    /// Returns the routes with limits or a required token that servers may see in other readings of the request.
    ///
    /// # Errors
    /// The request has too many readings, or its path a dot segment that only some servers see, and a route may refuse requests.
    fn other_routes<'g, 't>(
        &'g self,
        found: Option<&Found<'g, 't, Route>>,
        parts: &'t Parts,
        target: &'t Target<'_>,
        claims: &'t Claims<'_>,
    ) -> Result<Vec<Found<'g, 't, Route>>, Rejection> {
        let views = match target.other_views(parts, claims, &self.routes) {
            Ok(views) => views,
            Err(TooManyReadings) if self.is_protecting => return Err(Rejection::PathAmbiguous),
            Err(TooManyReadings) => Vec::new(),
        };
        // Some servers find the route of such a path before they resolve it, so it could be any.
        if self.is_protecting && !views.is_empty() && path::has_hidden_dots(&target.forwarded) {
            return Err(Rejection::DotsHidden);
        }
        let mut others: Vec<Found<'g, 't, Route>> = Vec::new();
        for view in views {
            let is_new = |other: &Found<'_, '_, Route>| {
                !found.into_iter().chain(&others).any(|known| known.is_alike(other))
            };
            let other = self.routes.find(&view).filter(|other| other.route.counts_or_requires());
            others.extend(other.filter(is_new));
        }
        Ok(others)
    }

    /// Checks that servers which read a rewritten path differently find no resource there whose protection the request escapes, where
    /// `is_covered` returns true for routes whose limits and token the request has anyway.
    ///
    /// # Errors
    /// They may find what another route to the same upstream protects, and what plain parameters couldn't yield.
    fn check_rewritten(
        &self,
        rewrite: &Template,
        path: &str,
        split: &Split,
        is_covered: impl Fn(&Route) -> bool,
    ) -> Result<(), Rejection> {
        let readings = path::readings(path, &path::matched(path));
        let readings = readings.map_err(|TooManyReadings| Rejection::PathAmbiguous)?;
        for reading in readings.iter().filter(|reading| !rewrite.yields(reading)) {
            let escapes = |(matcher, other): &(Matcher, Route)| {
                other.counts_or_requires() && other.may_yield(matcher, reading, split) && !is_covered(other)
            };
            if self.routes.routes().any(escapes) {
                return Err(Rejection::PathAmbiguous);
            }
        }
        Ok(())
    }
}

impl From<Rejection> for Unplanned<'_> {
    fn from(rejection: Rejection) -> Self {
        Self { rejection, route: None }
    }
}

/// Returns the names of traffic: the empty name of requests without a route, then the names of the routes.
pub(super) fn route_names(config: &Config) -> Vec<String> {
    let names: BTreeSet<_> = config.routes.iter().map(|route| route.name.clone()).collect();
    iter::once(String::new()).chain(names).collect()
}

/// Returns the fields of request headers that routes and limits read or edit.
fn fields_known(routes: &Table<Route>, rules: &BTreeMap<String, Arc<Rule>>) -> Arc<[HeaderName]> {
    let edits = routes.routes().filter_map(|(_, route)| route.request_headers.as_ref());
    let edited = edits.flat_map(Edits::names);
    let read = rules.values().flat_map(|rule| rule.config().fields_read());
    let names: HashSet<_> = routes.conditional_headers().iter().chain(edited).chain(read).collect();
    names.into_iter().cloned().collect()
}

#[cfg(test)]
mod tests;
