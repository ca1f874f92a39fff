//! The plan of a request: everything that the configuration determines before anything is counted or sent.
//!
//! Planning has no I/O, no store and no runtime. It reads the clock in one place: a token is verified when a claim is first looked
//! up. The gateway carries plans out, `explain` describes them, and `simulate` replays them. So the three always agree on
//! routes, limits and keys.
//!
//! ```text
//! Target::read             host, path as forwarded, path as matched, other readings of the path
//! Planner::route           the most specific route
//! Planner::other_reading   the route that another reading of the path takes
//! Planner::plan            all of these; then the next step, the limits of both routes, and each limit's terms
//! ```

pub(crate) mod descriptors;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
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
use tollgate_limiter::Refusal;
use tollgate_routing::{
    Found, Pattern, Table, path,
    template::{Location, Template},
};

use crate::{
    config::{Action, Config, Edits, EscapedSlashes, KeyPart, OnLimit, Requirement},
    forward::{body::Body, headers::Client},
    reject::Rejection,
    rules::{
        Rule, Terms,
        key::{
            Subject,
            jwt::{Claims, TokenFault},
        },
    },
};

use self::descriptors::DescriptorPlanner;
use super::{split::Split, target::Target};

/// The routes and limits of a configuration.
#[derive(Debug)]
pub(crate) struct Planner {
    pub(crate) routes: Table<Route>,
    /// The limits by name, including those that no route names.
    pub(crate) rules: BTreeMap<String, Arc<Rule>>,
    pub(crate) descriptors: DescriptorPlanner,
    pub(crate) escaped_slashes: EscapedSlashes,
}

/// A route of the configuration.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) name: String,
    pub(crate) limits: Vec<Arc<Rule>>,
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

/// The plan of a request: its route, its limits, and its next step.
#[derive(Debug)]
pub(crate) struct Plan<'g> {
    pub(crate) route: &'g Route,
    /// The pattern of the route's path.
    pub(crate) pattern: &'g Pattern,
    pub(crate) aim: Aim<'g>,
    /// The limits of the route, and of the route that another reading of the path takes.
    pub(crate) limits: Cow<'g, [Arc<Rule>]>,
    /// The terms of these limits for the request, in the same order.
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

/// The route of a request, and the route that another reading of its path takes.
struct Routed<'g, 't> {
    found: Found<'g, 't, Route>,
    other: Option<Found<'g, 't, Route>>,
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
                limits: route
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
        let descriptors = DescriptorPlanner::new(config, &rules);
        Self { routes, descriptors, escaped_slashes: config.server.escaped_slashes, rules }
    }

    /// Returns the plan of a request from this client, with the claims of its verified token.
    ///
    /// # Errors
    /// The request is rejected whatever its limits say: its target is invalid, no route matches, its path has readings that
    /// would be limited differently, or it lacks the token that its route requires. Its token can't be verified now, or isn't the
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
        let other = self.other_reading(&found, parts, &target, claims).map_err(rejected)?;
        let routed = Routed { found, other };
        routed.check_token(claims).map_err(rejected)?;
        let limits = routed.limits();
        let subject = Subject {
            client: client.address,
            method: &parts.method,
            host: &target.host,
            query: target.query,
            headers: &parts.headers,
            peer_is_trusted: client.peer_is_trusted,
            claims,
            route: routed.name(),
            parameter: &|name| routed.parameter(name),
        };
        let terms = limits.iter().map(|rule| rule.terms(&subject)).collect();
        Ok(Plan { route, pattern, aim, limits, terms })
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
        let found = self.routes.find(&target.view(parts, &target.matched, claims));
        found.ok_or_else(|| claims.doubt().map_or(Rejection::NoRoute, Rejection::ClaimsUnknown).into())
    }

    /// Returns the route that an upstream may see in another reading of the path.
    ///
    /// # Errors
    /// Several readings are limited differently, or the path behind what may be a host has other limits. Or a reading leaves its parent
    /// directory, so that a limit by a part of the path could be made to count for anything.
    fn other_reading<'g, 't>(
        &'g self,
        found: &Found<'g, 't, Route>,
        parts: &'t Parts,
        target: &'t Target<'_>,
        claims: &'t Claims<'_>,
    ) -> Result<Option<Found<'g, 't, Route>>, Rejection> {
        for path in path::behind_host(&target.forwarded) {
            if let Some(behind) = self.routes.find(&target.view(parts, &path, claims))
                && !behind.route.limits.iter().all(|limit| found.route.counts_as(limit, behind.route))
            {
                return Err(Rejection::PathAmbiguous);
            }
        }
        if target.readings.is_empty() {
            return Ok(None);
        }
        let routed = |reading| self.routes.find(&target.view(parts, reading, claims));
        let mut others = target.readings.iter().map(String::as_str).filter_map(routed);
        let other = others.next();
        if !others.all(|another| other.as_ref().is_some_and(|other| limited_alike(other, &another))) {
            return Err(Rejection::PathAmbiguous);
        }
        let is_limited = iter::once(found).chain(&other).any(|found| !found.route.limits.is_empty());
        if is_limited && path::climbs(&target.forwarded) {
            return Err(Rejection::PathClimbs);
        }
        Ok(other)
    }
}

impl<'g, 't> Routed<'g, 't> {
    /// Returns the limits of both routes, so that no spelling of a path escapes a limit.
    fn limits(&self) -> Cow<'g, [Arc<Rule>]> {
        let mut limits = Cow::Borrowed(&*self.found.route.limits);
        for limit in self.other.iter().flat_map(|other| &other.route.limits) {
            let same = limits.iter().position(|known| known.limit().name() == limit.limit().name());
            match same {
                None => limits.to_mut().push(limit.clone()),
                // The routes may state different costs.
                Some(at) if limit.fixed_cost() > limits[at].fixed_cost() => {
                    limits.to_mut()[at] = limit.clone();
                }
                Some(_) => {}
            }
        }
        limits
    }

    /// Checks that the request bears a valid token, if one of the routes requires it. If routes have asked for claims that
    /// aren't known, other routes might be the right ones.
    fn check_token(&self, claims: &Claims<'_>) -> Result<(), Rejection> {
        if let Some(doubt) = claims.doubt() {
            return Err(Rejection::ClaimsUnknown(doubt));
        }
        let mut routes = iter::once(&self.found).chain(&self.other);
        if !routes.any(|found| found.route.requires == Some(Requirement::Jwt)) {
            return Ok(());
        }
        claims.require().map_err(|fault| match fault {
            TokenFault::Missing => Rejection::TokenMissing,
            TokenFault::Invalid(reason) => Rejection::TokenInvalid(reason),
            TokenFault::Unverified => Rejection::ClaimsUnknown(Refusal::TokenUnverified),
        })
    }

    /// Returns the name of the route that limits count by: the other reading's, if there is one.
    fn name(&self) -> &'g str {
        &self.other.as_ref().unwrap_or(&self.found).route.name
    }

    /// Returns the value of a parameter of the path, of the other reading first.
    fn parameter(&self, name: &str) -> Option<&'t str> {
        self.other.iter().chain([&self.found]).find_map(|found| found.param(name))
    }
}

impl Route {
    /// Returns true if this route counts a request by a limit of another one as that does, whatever the path is.
    fn counts_as(&self, limit: &Rule, other: &Self) -> bool {
        let depends = |part: &KeyPart| match part {
            KeyPart::Path(_) => true,
            KeyPart::Route => self.name != other.name,
            _ => false,
        };
        !limit.config().key.iter().any(depends)
            && self.limits.iter().any(|own| own.limit().name() == limit.limit().name())
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

    /// Edits the header of a request to the upstream.
    pub(super) fn edit(&self, request: &mut Request<Body>) {
        if let Some(edits) = &self.request_headers {
            edits.apply(request.headers_mut());
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

/// Returns true if two routes limit a request in the same way.
fn limited_alike(one: &Found<'_, '_, Route>, other: &Found<'_, '_, Route>) -> bool {
    one.is_alike(other) || one.route.limits.is_empty() && other.route.limits.is_empty()
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
