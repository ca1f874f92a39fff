//! The gateway is the path of a request: route, limit, forward.
//!
//! A [`Gateway`] is built from a configuration. A reload builds another one, which takes over the stores
//! and the connections to upstreams; requests in flight end on the one they began with.

mod access_log;
pub(crate) mod client;
mod entry;
mod exchange;
mod hops;
mod refused;
mod spans;
pub(crate) mod target;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    iter::once,
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http_body::Body as _;
use hyper::{
    Request, Response, StatusCode, Uri, Version,
    header::{HOST, HeaderName, HeaderValue, LOCATION},
    http::request::Parts,
};
use ipnet::IpNet;
use tokio::time::Instant;

use crate::{
    config::{Action, Config, Edits, EscapedSlashes, OnLimit, RatelimitHeaders},
    forward::{
        self, Failure, Upstream,
        headers::{self, Client},
        tunnel,
    },
    limit::{
        fields,
        key::{
            Subject,
            jwt::{Claims, Verifier},
        },
        request::{self, Repeat, Rule, Settlement},
    },
    metrics::Page,
    reject::Rejection,
    trace::{self, Tracer},
};
use tollgate_http1::head::{FIELDS_MOST, Unreadable};
use tollgate_routing::{
    Found, Matcher, Table, path,
    template::{Location, Template},
};

use self::{
    entry::{End, Entry},
    exchange::{Exchange, Facts},
    target::Target,
};

pub use self::{
    access_log::AccessLog,
    client::Peer,
    exchange::{AnswerBody, STATUS_CLASSES, Traffic},
    refused::Refused,
};
pub use crate::{
    forward::{
        body::{Body, Progress, Upload},
        timer::Timer,
    },
    limit::Limiter,
    reject::Written,
    store::StoreError,
};

/// What a configuration says, ready to serve.
#[derive(Debug)]
pub struct Gateway {
    pub(crate) routes: Table<Route>,
    limiter: Arc<Limiter>,
    /// The limits by name, also those that no route names.
    rules: BTreeMap<String, Arc<Rule>>,
    /// Of the tokens that requests bear.
    verifier: Option<Verifier>,
    ratelimit_headers: RatelimitHeaders,
    upstreams: BTreeMap<String, Arc<Upstream>>,
    pub(crate) trusted_proxies: Vec<IpNet>,
    proxy_protocol: bool,
    pub(crate) escaped_slashes: EscapedSlashes,
    /// Of the routes by name, after that of the requests that no route takes.
    traffic: Vec<(String, Arc<Traffic>)>,
    access_log: Option<Arc<AccessLog>>,
    tracer: Option<Tracer>,
}

/// What a route does with its requests.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) name: String,
    pub(crate) limits: Vec<Arc<Rule>>,
    answer: Answer,
    rewrite: Option<Template>,
    request_headers: Option<Edits>,
    response_headers: Option<Arc<Edits>>,
    pub(crate) timeout: Option<Duration>,
    /// The greatest body of a request, in bytes.
    max_body: Option<u64>,
    preserve_host: bool,
    on_limit: Option<OnLimit>,
    /// The place of its traffic. Routes of one name share it.
    traffic: usize,
}

#[derive(Debug)]
enum Answer {
    Upstream(Arc<Upstream>),
    Fixed(Response<Bytes>),
    Redirect(Location, StatusCode),
}

/// A route, as people see it.
#[derive(Debug)]
pub struct Listed<'g> {
    /// What logs and metrics call it.
    pub name: &'g str,
    /// Which requests it takes.
    pub matcher: &'g Matcher,
    /// The names of its limits.
    pub limits: Vec<&'g str>,
    /// The name of its upstream; none if the gateway answers itself.
    pub upstream: Option<&'g str>,
}

impl Gateway {
    /// The place of the traffic that no route takes.
    const UNROUTED: usize = 0;

    /// Builds a gateway. Upstreams that `before` had, too, keep their connections, and what has a name that it had
    /// goes on with its metrics. It must be called in a tokio runtime, by which servers are watched; `before` doesn't watch
    /// its own any more.
    pub fn build(config: &Config, limiter: &Arc<Limiter>, before: Option<&Self>) -> Self {
        before
            .into_iter()
            .flat_map(|before| before.upstreams.values())
            .for_each(|upstream| upstream.retire());
        let mut upstreams = BTreeMap::new();
        for (name, upstream) in &config.upstreams {
            let before = before.and_then(|before| before.upstreams.get(name)).map(Arc::as_ref);
            upstreams.insert(name.clone(), Arc::new(Upstream::new(name, upstream, before)));
        }
        limiter.share_memory_among(config.limits.keys().map(String::as_str));
        let rules: BTreeMap<_, _> = config
            .limits
            .iter()
            .map(|(name, limit)| {
                let before = before.and_then(|before| before.rules.get(name)).map(Arc::as_ref);
                (name.clone(), Arc::new(Rule::new(limit, before)))
            })
            .collect();
        let names = config.routes.iter().map(|route| route.name.clone());
        let names: Vec<_> = once(String::new()).chain(names.collect::<BTreeSet<_>>()).collect();
        let traffic_of = |name: &String| {
            let before = before.and_then(|before| before.traffic.iter().find(|(other, _)| other == name));
            before.map_or_else(Arc::default, |(_, traffic)| traffic.clone())
        };
        let traffic = names.iter().map(|name| (name.clone(), traffic_of(name))).collect();
        let routes = config.routes.iter().map(|route| {
            let answer = match &route.action {
                Action::Upstream(name) => Answer::Upstream(upstreams[name].clone()),
                Action::Respond { status, body, headers } => Answer::Fixed(fixed(*status, body, headers)),
                Action::Redirect { to, status } => Answer::Redirect(to.clone(), *status),
            };
            let limits = route.limits.iter().map(|name| rules[name].clone()).collect();
            let traffic = 1 + names[1..].binary_search(&route.name).expect("each route's name is there");
            let running = Route {
                name: route.name.clone(),
                limits,
                answer,
                rewrite: route.rewrite.clone(),
                request_headers: route.request_headers.clone(),
                response_headers: route.response_headers.clone().map(Arc::new),
                timeout: route.timeout,
                max_body: route.max_body.unwrap_or(config.server.max_body),
                preserve_host: route.preserve_host,
                on_limit: route.on_limit.clone(),
                traffic,
            };
            (route.matcher.clone(), running)
        });
        Self {
            routes: Table::new(routes),
            limiter: limiter.clone(),
            rules,
            verifier: config.jwt.as_ref().map(Verifier::new),
            ratelimit_headers: config.server.ratelimit_headers,
            upstreams,
            trusted_proxies: config.server.trusted_proxies.clone(),
            proxy_protocol: config.server.proxy_protocol,
            escaped_slashes: config.server.escaped_slashes,
            traffic,
            access_log: before.and_then(|before| before.access_log.clone()),
            tracer: before.and_then(|before| Some(before.tracer.as_ref()?.with(config.tracing.as_ref()))),
        }
    }

    /// The same, with an access log, which those that take its place have, too.
    #[must_use]
    pub fn log_to(self, log: Arc<AccessLog>) -> Self {
        Self { access_log: Some(log), ..self }
    }

    /// The same, with traces, which those that take its place have, too.
    #[must_use]
    pub fn trace_by(self, tracer: Tracer) -> Self {
        Self { tracer: Some(tracer), ..self }
    }

    /// Connects this thread to the store, so that its first decision needn't wait.
    ///
    /// # Errors
    /// The store can't be reached now. Requests are served by their limits' failure policy until it can.
    pub async fn warm_up(&self) -> Result<(), StoreError> {
        self.limiter.warm_up().await
    }

    /// Has requests that wait for room, and all that come from now on, refused instead.
    pub fn end_waits(&self) {
        self.limiter.end_waits();
    }

    /// Waits until the store has done, or given up, what nobody has waited for: costs that were recorded in the end,
    /// and leases that were released.
    pub async fn flush(&self) {
        self.limiter.flush().await;
    }

    /// What counts, and keeps the counts.
    pub fn limiter(&self) -> &Arc<Limiter> {
        &self.limiter
    }

    /// The limits by name, also those that no route names.
    pub fn rules(&self) -> &BTreeMap<String, Arc<Rule>> {
        &self.rules
    }

    /// Whether a connection from `peer` begins with a PROXY header. From others such a header isn't even looked for.
    pub fn expects_proxy_header(&self, peer: IpAddr) -> bool {
        self.proxy_protocol && client::is_trusted(peer, &self.trusted_proxies)
    }

    /// Answers a request that came from `peer`. It is turned away if there is no room for it.
    pub async fn answer(
        self: Arc<Self>,
        peer: Peer,
        request: Request<Upload>,
        has_room: bool,
    ) -> Response<AnswerBody> {
        let (mut parts, body) = request.into_parts();
        let mut exchange = Exchange::begin(self, peer, &parts);
        if exchange.facts.is_grpc {
            body.take_turns();
        }
        tunnel::keep_if_asked(&mut parts, !body.is_end_stream());
        if parts.version == Version::HTTP_2 {
            headers::from_http2(&mut parts.headers);
        }
        headers::from_client(&mut parts.headers);
        let (Exchange { gateway, facts }, mut route) = (&mut exchange, None);
        let answered = match has_room {
            true => gateway.relay(peer, &mut parts, body, facts, &mut route).await,
            false => Err(Rejection::Overloaded),
        };
        let mut response = match answered {
            Ok(response) => response,
            Err(rejection) => {
                facts.is_refused = matches!(rejection, Rejection::Refused(_));
                gateway.reject(&rejection, facts, route)
            }
        };
        if let Some(edits) = route.and_then(|route| route.response_headers.as_ref()) {
            edits.apply(response.headers_mut());
        }
        exchange.answered(response)
    }

    /// Returns the answer to what is no request, or has too large a head, and notes it as one that no route takes. `head`
    /// is what came of it.
    pub fn answer_unreadable(&self, peer: Peer, head: &[u8], fault: Unreadable) -> Written {
        let answer = Self::answer_to_unreadable(fault);
        let (status, (_, traffic)) = (answer.status.as_u16(), &self.traffic[Self::UNROUTED]);
        traffic.note(status, false, Duration::ZERO);
        if let Some(log) = &self.access_log {
            let end = End { bytes: answer.body.len() as u64, ..End::unrouted(status) };
            log.log(&Entry::unreadable(peer, head), &end);
        }
        answer
    }

    /// Returns the answer to what is no request, or has too large a head.
    pub fn answer_to_unreadable(fault: Unreadable) -> Written {
        let rejection = match fault {
            Unreadable::Malformed => Rejection::Malformed,
            Unreadable::TooLarge => Rejection::HeadTooLarge,
            Unreadable::TargetTooLong => Rejection::TargetTooLong,
        };
        rejection.write(RatelimitHeaders::Off, None)
    }

    /// Writes the metrics of requests, limits, upstreams and the store.
    pub fn write_metrics(&self, page: &mut Page<'_>) {
        let routes = || self.traffic().map(|(name, traffic)| (("route", name), traffic));
        page.counters(
            "tollgate_requests",
            "Requests by route, which is empty if none matches, and class of the answer's status; a client that \
             leaves before it counts as 4xx",
            routes().flat_map(|(route, traffic)| {
                let classes = STATUS_CLASSES.iter().enumerate();
                classes.map(move |(at, class)| ([route, ("status", class)], traffic.answers.sum(at)))
            }),
        );
        page.counters(
            "tollgate_requests_refused",
            "Requests that limits refused",
            routes().map(|(route, traffic)| ([route], traffic.refused())),
        );
        page.histograms(
            "tollgate_request_duration_seconds",
            "From a request's arrival until its answer's body has ended or broken off",
            routes().map(|(route, traffic)| ([route], &traffic.durations)),
        );
        request::write_metrics(page, self.rules.values().map(Arc::as_ref));
        forward::write_metrics(page, self.upstreams.iter());
        self.limiter.write_metrics(page);
        if let Some(log) = &self.access_log {
            log.write_metrics(page);
        }
        if let Some(tracer) = &self.tracer {
            tracer.write_metrics(page);
        }
    }

    /// Returns the routes in the order of the file.
    pub fn routes(&self) -> impl Iterator<Item = Listed<'_>> {
        self.routes.routes().map(|(matcher, route)| {
            let upstream = match &route.answer {
                Answer::Upstream(own) => self.upstreams.iter().find(|(_, other)| Arc::ptr_eq(own, other)),
                Answer::Fixed(_) | Answer::Redirect(..) => None,
            };
            Listed {
                name: &route.name,
                matcher,
                limits: route.limits.iter().map(|rule| rule.limit().name()).collect(),
                upstream: upstream.map(|(name, _)| name.as_str()),
            }
        })
    }

    /// The requests of the routes by name, after those that no route takes, under no name.
    pub fn traffic(&self) -> impl Iterator<Item = (&str, &Traffic)> {
        self.traffic.iter().map(|(name, traffic)| (name.as_str(), &**traffic))
    }

    /// The upstreams by name.
    pub fn upstreams(&self) -> &BTreeMap<String, Arc<Upstream>> {
        &self.upstreams
    }

    /// Requests that may be in flight to upstreams at a time, each on a connection of its own.
    pub fn upstream_connections_most(&self) -> usize {
        self.upstreams.values().map(|upstream| upstream.connections_most()).sum()
    }

    /// Closes this thread's connections to upstreams that have idled too long.
    pub fn close_idle(&self) {
        for upstream in self.upstreams.values() {
            upstream.close_idle();
        }
    }

    /// The answer to a request, and which route it took.
    async fn relay<'g>(
        self: &'g Arc<Self>,
        peer: Peer,
        parts: &mut Parts,
        body: Upload,
        facts: &mut Facts,
        taken: &mut Option<&'g Route>,
    ) -> Result<Response<Body>, Rejection> {
        // HTTP/2 bounds bytes only. Fields are added on the way, and a map has room for so many.
        if parts.headers.len() > FIELDS_MOST {
            return Err(Rejection::HeadTooLarge);
        }
        let client = client::identify(peer, &parts.headers, &self.trusted_proxies);
        if let Some(entry) = &mut facts.entry {
            entry.identify(&client, &parts.headers);
        }
        if target::is_about_server(parts) {
            target::host(parts)?;
            return Ok(whole(fixed(StatusCode::NO_CONTENT, "", &[])));
        }
        let (route, limits, admission, body, aim) = {
            let target = Target::read(parts, self.escaped_slashes)?;
            let matched = path::matched(&target.forwarded);
            // Whatever the upstream may read in the path is limited.
            let readings = path::readings(&matched);
            let found = self.routes.find(&target.view(parts, &matched)).ok_or(Rejection::NoRoute)?;
            let route = *taken.insert(found.route);
            facts.traffic = route.traffic;
            if route.response_headers.is_some() {
                facts.lines = None;
            }
            if let Some(entry) = &mut facts.entry {
                entry.note_route(&target.host, found.pattern());
            }
            let body = body.at_most(route.max_body).map_err(Failure::Request)?;
            let aim = route.aim(&found, &target, &parts.uri)?;
            let other = self.find_other(route, &target, parts, &readings)?;
            let limits = limits_of(route, other.as_ref().map(|other| other.route));
            let mut admission = None;
            if !limits.is_empty() {
                let counted = other.as_ref().unwrap_or(&found).route;
                let parameter = |name: &str| other.iter().chain([&found]).find_map(|found| found.param(name));
                let subject = self.subject(client.address, parts, &target, counted, &parameter);
                if let Some(entry) = &mut facts.entry {
                    entry.asked_at = Some(Instant::now());
                }
                let (log, mut repeat) = (&mut facts.decided, None);
                let admitted = async {
                    let asks = request::asks(&limits, &subject, log)?;
                    let admitted = request::admit(&self.limiter, &limits, &asks, facts.arrival, log).await;
                    admitted.inspect_err(|refusal| repeat = Repeat::of(&limits, asks, refusal))
                };
                let admitted = admitted.await;
                if let Some(entry) = &mut facts.entry {
                    entry.decided_at = Some(Instant::now());
                }
                facts.refused = repeat.and_then(|asked| self.refused(route, asked, facts));
                admission = Some(admitted?);
            }
            (route, limits, admission, body, aim)
        };
        let last_hop = if matches!(aim, Aim::Upstream(..)) { hops::count_down(parts) } else { None };
        let aim = last_hop.as_ref().map_or(aim, Aim::Fixed);
        let answered = match aim {
            Aim::Upstream(upstream, uri) => {
                if self.tracer.is_some() {
                    let traced = facts.entry.as_ref().and_then(|entry| entry.visits.within);
                    trace::carry_on(&mut parts.headers, traced);
                }
                let mut request = Some(outgoing(parts, uri, body));
                route.forward(upstream, &client, &mut request, &mut facts.entry).await
            }
            Aim::Fixed(response) => Ok(whole(response.clone())),
            Aim::Elsewhere(to, status) => Ok(whole(fixed(status, "", &[(LOCATION, to)]))),
        };
        let mut response =
            answered.unwrap_or_else(|failure| self.reject(&failure.into(), facts, Some(route)));
        if let Some(admission) = admission {
            let (standings, form) = (admission.standings(), self.ratelimit_headers);
            match facts.lines() {
                // The other forms may have to take the place of fields that came.
                Some(lines) if form == RatelimitHeaders::Draft11 => fields::write(lines, standings, form),
                _ => fields::write(response.headers_mut(), standings, form),
            }
            // The answer tells what it still has to of its costs, and holds what it holds until its end.
            let settlement = Settlement::begin(admission, &limits, response.status(), response.headers());
            facts.settlement = settlement.map(Box::new);
        }
        Ok(response)
    }

    /// What limits see of a request that counts as this route's, with the parameters of its path.
    pub(crate) fn subject<'r>(
        &'r self,
        client: IpAddr,
        parts: &'r Parts,
        target: &'r Target<'_>,
        route: &'r Route,
        parameter: &'r (dyn Fn(&str) -> Option<&'r str> + Sync),
    ) -> Subject<'r> {
        Subject {
            client,
            method: &parts.method,
            host: &target.host,
            query: target.query,
            headers: &parts.headers,
            claims: Claims::new(self.verifier.as_ref(), &parts.headers),
            route: &route.name,
            parameter,
        }
    }

    /// What else an upstream may take a request for that has these other readings of its path: it is limited as that, too.
    ///
    /// # Errors
    /// There are several, which aren't limited alike; or one of them climbs to what the client likes, so that limits by a
    /// part of the path would count for anything.
    pub(crate) fn find_other<'r>(
        &self,
        route: &Route,
        target: &'r Target<'_>,
        parts: &'r Parts,
        readings: &'r [String],
    ) -> Result<Option<Found<'_, 'r, Route>>, Rejection> {
        if readings.is_empty() {
            return Ok(None);
        }
        let mut others = readings.iter().filter_map(|reading| self.routes.find(&target.view(parts, reading)));
        let other = others.next();
        let agree = others.all(|another| other.as_ref().is_some_and(|other| agree(other, &another)));
        let is_limited = !limits_of(route, other.as_ref().map(|other| other.route)).is_empty();
        if !agree {
            return Err(Rejection::PathAmbiguous);
        }
        if is_limited && path::climbs(&target.forwarded) {
            return Err(Rejection::PathClimbs);
        }
        Ok(other)
    }

    /// By what a request can be refused again that asked this: if nothing else is to be done to it, its answer is made of
    /// lines, and no claims count, which time may change.
    fn refused(self: &Arc<Self>, route: &Route, asked: Repeat, facts: &Facts) -> Option<Box<Refused>> {
        let is_told = self.access_log.is_some() || self.tracer.is_some();
        if is_told || self.verifier.is_some() || facts.lines.is_none() || facts.is_grpc {
            return None;
        }
        let (gateway, on_limit) = (Arc::downgrade(self), route.on_limit.clone());
        Some(Box::new(Refused { gateway, traffic: route.traffic, on_limit, asked }))
    }

    fn reject(&self, rejection: &Rejection, facts: &mut Facts, route: Option<&Route>) -> Response<Body> {
        if let Rejection::Failed(failure) = rejection
            && !failure.is_of_client()
        {
            let cause = std::error::Error::source(failure).map(ToString::to_string);
            tracing::warn!(cause, "{failure}");
        }
        let on_limit = route.and_then(|route| route.on_limit.as_ref());
        let (is_grpc, form, mut response) = (facts.is_grpc, self.ratelimit_headers, Response::default());
        let (status, body) = match facts.lines() {
            Some(lines) => rejection.answer(is_grpc, form, on_limit, lines),
            None => rejection.answer(is_grpc, form, on_limit, response.headers_mut()),
        };
        *response.status_mut() = status;
        response.map(|()| Body::Whole(Some(body)))
    }
}

/// What becomes of a request if its limits let it pass.
pub(crate) enum Aim<'g> {
    /// It goes to an upstream, for this target, or the one that it was sent for.
    Upstream(&'g Upstream, Option<Uri>),
    /// The answer is this.
    Fixed(&'g Response<Bytes>),
    /// The client is told to go there.
    Elsewhere(HeaderValue, StatusCode),
}

impl Route {
    /// What becomes of a request for this target, for which it was found.
    pub(crate) fn aim(
        &self,
        found: &Found<'_, '_, Self>,
        target: &Target<'_>,
        sent: &Uri,
    ) -> Result<Aim<'_>, Rejection> {
        Ok(match &self.answer {
            Answer::Upstream(upstream) => Aim::Upstream(
                upstream,
                match &self.rewrite {
                    None => target.forwarded_uri(sent),
                    Some(rewrite) => {
                        let path = rewrite.fill(found.pattern(), &target.forwarded);
                        Some(target.rewritten_uri(&path, sent)?)
                    }
                },
            ),
            Answer::Fixed(response) => Aim::Fixed(response),
            Answer::Redirect(to, status) => {
                let to = to.fill(found.pattern(), &target.forwarded, target.query);
                Aim::Elsewhere(HeaderValue::try_from(to).expect("a url is visible ASCII"), *status)
            }
        })
    }

    async fn forward(
        &self,
        upstream: &Upstream,
        client: &Client,
        request: &mut Option<Request<Body>>,
        entry: &mut Option<Box<Entry>>,
    ) -> Result<Response<Body>, Failure> {
        if let Some(request) = request {
            let version = request.version();
            headers::towards_upstream(request.headers_mut(), client, version);
            if let Some(edits) = &self.request_headers {
                edits.apply(request.headers_mut());
            }
            if let Some(edits) = &self.response_headers {
                request.body_mut().edit_hints(edits);
            }
            if !self.preserve_host {
                // The server that is picked puts its own in place of it.
                request.headers_mut().remove(HOST);
            }
            if let Some(entry) = entry {
                entry.note_id(request.headers());
            }
        }
        let deadline = self.timeout.map(|timeout| Instant::now() + timeout);
        upstream.send(request, deadline, entry.as_mut().map(|entry| &mut entry.visits)).await
    }
}

/// The request as it goes on: the same method and header, to the target as it is forwarded.
fn outgoing(parts: &mut Parts, uri: Option<Uri>, body: Upload) -> Request<Body> {
    if let Some(authority) = parts.uri.authority() {
        // A whole url as the target overrides Host (RFC 9112, section 3.2.2).
        let host = HeaderValue::from_str(authority.as_str()).expect("an authority is visible ASCII");
        parts.headers.insert(HOST, host);
    }
    let mut request = Request::new(Body::Request(body));
    *request.method_mut() = parts.method.clone();
    *request.uri_mut() = uri.unwrap_or_else(|| std::mem::take(&mut parts.uri));
    *request.version_mut() = parts.version;
    *request.headers_mut() = std::mem::take(&mut parts.headers);
    // The case of the fields' names is there.
    *request.extensions_mut() = std::mem::take(&mut parts.extensions);
    request
}

/// The limits of a request for a route whose path may be read as another's, too: no spelling escapes a limit.
pub(crate) fn limits_of<'r>(route: &'r Route, other: Option<&Route>) -> Cow<'r, [Arc<Rule>]> {
    let mut limits = Cow::Borrowed(&*route.limits);
    for limit in other.into_iter().flat_map(|other| &other.limits) {
        if !limits.iter().any(|known| Arc::ptr_eq(known, limit)) {
            limits.to_mut().push(limit.clone());
        }
    }
    limits
}

/// Whether it is the same to limits which of two the path is read as.
fn agree(one: &Found<'_, '_, Route>, other: &Found<'_, '_, Route>) -> bool {
    one.is_alike(other) || one.route.limits.is_empty() && other.route.limits.is_empty()
}

fn fixed(status: StatusCode, body: &str, headers: &[(HeaderName, HeaderValue)]) -> Response<Bytes> {
    let mut response = Response::new(Bytes::copy_from_slice(body.as_bytes()));
    *response.status_mut() = status;
    response.headers_mut().extend(headers.iter().cloned());
    response
}

fn whole(response: Response<Bytes>) -> Response<Body> {
    response.map(|body| Body::Whole(Some(body)))
}
