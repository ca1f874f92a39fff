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

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashSet},
    iter,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use hyper::{
    Request, Response, StatusCode, Uri,
    header::{ACCEPT_ENCODING, HOST, HeaderName, HeaderValue},
    http::request::Parts,
};
use smallvec::SmallVec;
use tollgate_routing::{
    Found, Matcher, Pattern, Table,
    path::{self, TooManyReadings},
    template::{Location, Template},
};

use crate::{
    config::{Action, Config, Edits, EscapedSlashes, OnLimit, Requirement},
    forward::{
        body::Body,
        headers::{Client, X_REQUEST_ID},
    },
    reject::Rejection,
    rules::{Rule, Terms, key::jwt::Claims},
};

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

/// A route of the configuration.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) name: String,
    pub(crate) rules: Vec<Arc<Rule>>,
    pub(crate) answer: Responder,
    rewrite: Option<Template>,
    request_headers: Option<Edits>,
    pub(crate) response_headers: Option<Arc<Edits>>,
    pub(crate) timeout: Option<Duration>,
    /// The largest request body in bytes.
    pub(crate) max_body: Option<u64>,
    preserve_host: bool,
    pub(crate) requires: Option<Requirement>,
    /// True if a limit reads the bodies of responses, which must not be compressed.
    reads_bodies: bool,
    pub(crate) on_limit: Option<OnLimit>,
    /// The index of the route in the file.
    pub(crate) place: usize,
    /// The index of its traffic in the gateway's. Routes of one name share it.
    pub(crate) traffic: usize,
}

/// The source of a route's responses.
#[derive(Debug)]
pub(crate) enum Responder {
    /// One of the upstreams, by their indexes in the order of the names.
    Upstream(Split),
    /// A fixed response.
    Fixed(Response<Bytes>),
    /// A redirect with this status.
    Redirect(Location, StatusCode),
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

impl Responder {
    /// Returns the source of the responses of a route with this action.
    fn new(action: &Action, config: &Config) -> Self {
        let upstream = |name: &String| {
            config.upstreams.keys().position(|other| other == name).expect("each upstream is defined")
        };
        match action {
            Action::Upstream(name) => Self::Upstream(Split::of(vec![(upstream(name), 1)])),
            Action::Split(weights) => {
                let weights = weights.iter().map(|(name, weight)| (upstream(name), *weight));
                Self::Upstream(Split::of(weights.collect()))
            }
            Action::Respond { status, body, headers } => Self::Fixed(fixed(*status, body, headers)),
            Action::Redirect { to, status } => Self::Redirect(to.clone(), *status),
        }
    }
}

impl Planner {
    /// Prepares the routes and descriptors of a configuration. Its limits are `rules`, by name.
    pub(crate) fn new(config: &Config, rules: BTreeMap<String, Arc<Rule>>) -> Self {
        let names = route_names(config);
        let routes = config.routes.iter().enumerate().map(|(place, route)| {
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
                answer: Responder::new(&route.action, config),
                rewrite: route.rewrite.clone(),
                request_headers: route.request_headers.clone(),
                response_headers: route.response_headers.clone().map(Arc::new),
                timeout: route.timeout,
                max_body: route.max_body.unwrap_or(config.server.max_body),
                preserve_host: route.preserve_host,
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
        let target = Target::read(parts, self.escaped_slashes)?;
        let found = self.route(parts, &target, claims)?;
        let (route, pattern) = (found.route, found.pattern());
        let rejected = |rejection| Unplanned { rejection, route: Some(route) };
        let aim = route.aim(&found, &target, &parts.uri).map_err(rejected)?;
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
        let target = Target::read(parts, self.escaped_slashes)?;
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
        let views = match target.views(parts, claims, &self.routes) {
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
                other.may_yield(matcher, reading, split) && !is_covered(other)
            };
            if self.routes.routes().any(escapes) {
                return Err(Rejection::PathAmbiguous);
            }
        }
        Ok(())
    }
}

impl Route {
    /// Returns true if it has limits or requires a token.
    fn counts_or_requires(&self) -> bool {
        !self.rules.is_empty() || self.requires.is_some()
    }

    /// Returns true if it requires a token, or has limits that don't only shadow.
    fn may_refuse(&self) -> bool {
        self.requires.is_some() || self.rules.iter().any(|rule| !rule.limit().shadows())
    }

    /// Returns true if it may send a request to one of these upstreams with this path, which is in the form of [`path::matched`].
    fn may_yield(&self, matcher: &Matcher, path: &str, split: &Split) -> bool {
        matches!(&self.answer, Responder::Upstream(own) if own.overlaps(split))
            && self
                .rewrite
                .as_ref()
                .map_or_else(|| matcher.path.matches(path), |rewrite| rewrite.yields(path))
    }

    /// Returns true if a request that these rules count, and that has the token that is required, is counted by all rules of this
    /// route, whatever its path is, and has its token.
    fn is_covered_by(&self, rules: &[Arc<Rule>], required: Option<Requirement>) -> bool {
        let has_token = self.requires.is_none() || self.requires == required;
        has_token && self.rules.iter().all(|rule| demands::count(rules, rule))
    }

    /// Returns the next step for a request with this target.
    ///
    /// # Errors
    /// The rewritten path is invalid.
    fn aim(
        &self,
        found: &Found<'_, '_, Self>,
        target: &Target<'_>,
        sent: &Uri,
    ) -> Result<Aim<'_>, Rejection> {
        Ok(match &self.answer {
            Responder::Upstream(upstream) => {
                let uri = match &self.rewrite {
                    None => target.forwarded_uri(sent),
                    Some(rewrite) => {
                        let path = rewrite.fill(found.pattern(), &target.forwarded);
                        Some(target.rewritten_uri(&path, sent)?)
                    }
                };
                Aim::Upstream(upstream, uri)
            }
            Responder::Fixed(response) => Aim::Fixed(response),
            Responder::Redirect(to, status) => {
                let to = to.fill(found.pattern(), &target.forwarded, target.query);
                Aim::Redirect(HeaderValue::try_from(to).expect("a URL is visible ASCII"), *status)
            }
        })
    }

    /// Edits the header of a request with this id to the upstream. Returns the id with which it is forwarded, `None` if an edit removed it.
    pub(super) fn edit(&self, request: &mut Request<Body>, id: HeaderValue) -> Option<HeaderValue> {
        let mut id = Some(id);
        if let Some(edits) = &self.request_headers {
            edits.apply(request.headers_mut());
            id = request.headers().get(X_REQUEST_ID).cloned();
        }
        if self.reads_bodies {
            request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        if let Some(edits) = &self.response_headers {
            request.body_mut().edit_hints(edits);
        }
        if !self.preserve_host {
            // The connection to the server adds that server's own.
            request.headers_mut().remove(HOST);
        }
        id
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

/// Returns a response with this body and these header fields.
pub(super) fn fixed(
    status: StatusCode,
    body: &str,
    headers: &[(HeaderName, HeaderValue)],
) -> Response<Bytes> {
    let mut response = Response::new(Bytes::copy_from_slice(body.as_bytes()));
    *response.status_mut() = status;
    response.headers_mut().extend(headers.iter().cloned());
    response
}

#[cfg(test)]
mod tests;
