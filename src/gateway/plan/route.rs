//! A route, as requests are planned with it.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use hyper::{
    HeaderMap, Request, Response, StatusCode, Uri,
    header::{ACCEPT_ENCODING, HOST, HeaderName, HeaderValue},
    http::request::Parts,
};
use tollgate_routing::{
    Found, Matcher,
    template::{Location, Template},
};

use super::{Aim, demands};
use crate::{
    config::{Action, Config, Edits, OnLimit, Requirement},
    forward::{
        body::Body,
        can_be_encoded,
        headers::{X_REQUEST_ID, has_invalid_metadata},
    },
    gateway::{split::Split, target::Target},
    reject::Rejection,
    rules::Rule,
};

/// A route of the configuration.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) name: String,
    pub(crate) rules: Vec<Arc<Rule>>,
    pub(crate) answer: Responder,
    pub(super) rewrite: Option<Template>,
    pub(super) request_headers: Option<Edits>,
    pub(crate) response_headers: Option<Arc<Edits>>,
    pub(crate) timeout: Option<Duration>,
    /// The largest request body in bytes.
    pub(crate) max_body: Option<u64>,
    pub(super) preserve_host: bool,
    /// True if an upstream's servers may speak HTTP/2.
    pub(super) speaks_http2: bool,
    pub(crate) requires: Option<Requirement>,
    /// True if a limit reads the bodies of responses, which must not be compressed.
    pub(super) reads_bodies: bool,
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

impl Responder {
    /// Returns the source of the responses of a route with this action.
    pub(super) fn new(action: &Action, config: &Config) -> Self {
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

    /// Returns true if it is upstreams with servers that may speak HTTP/2.
    pub(super) fn speaks_http2(&self, config: &Config) -> bool {
        let speaks = |place| config.upstreams.values().nth(place).is_some_and(|upstream| upstream.http2);
        matches!(self, Self::Upstream(split) if split.upstreams().any(speaks))
    }
}

impl Route {
    /// Returns true if it has limits or requires a token.
    pub(super) fn counts_or_requires(&self) -> bool {
        !self.rules.is_empty() || self.requires.is_some()
    }

    /// Returns true if it requires a token, or has limits that don't only shadow.
    pub(super) fn may_refuse(&self) -> bool {
        self.requires.is_some() || self.rules.iter().any(|rule| !rule.limit().shadows())
    }

    /// Returns true if it may send a request to one of these upstreams with this path, in any case of letters. The path is in the form of
    /// [`path::matched`].
    pub(super) fn may_yield(&self, matcher: &Matcher, path: &str, split: &Split) -> bool {
        matches!(&self.answer, Responder::Upstream(own) if own.overlaps(split))
            && match &self.rewrite {
                None => matcher.path.matches_in_any_case(path),
                Some(rewrite) => rewrite.yields_in_any_case(path),
            }
    }

    /// Returns true if a request that these rules count, and that has the token that is required, is counted by all rules of this
    /// route, whatever its path is, and has its token.
    pub(super) fn is_covered_by(&self, rules: &[Arc<Rule>], required: Option<Requirement>) -> bool {
        let has_token = self.requires.is_none() || self.requires == required;
        has_token && self.rules.iter().all(|rule| demands::count(rules, rule))
    }

    /// Returns the next step for a request with this target.
    ///
    /// # Errors
    /// The rewritten path is invalid, or an HTTP/2 server might end the connection for the target or a field.
    pub(super) fn aim(
        &self,
        found: &Found<'_, '_, Self>,
        target: &Target<'_>,
        parts: &Parts,
    ) -> Result<Aim<'_>, Rejection> {
        Ok(match &self.answer {
            Responder::Upstream(upstream) => {
                let uri = match &self.rewrite {
                    None => target.forwarded_uri(&parts.uri),
                    Some(rewrite) => {
                        let path = rewrite.fill(found.pattern(), &target.forwarded);
                        Some(target.rewritten_uri(&path, &parts.uri)?)
                    }
                };
                if self.speaks_http2 {
                    check_for_http2(uri.as_ref().unwrap_or(&parts.uri), &parts.headers)?;
                }
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
    pub(in crate::gateway) fn edit(
        &self,
        request: &mut Request<Body>,
        id: HeaderValue,
    ) -> Option<HeaderValue> {
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

/// Checks that no HTTP/2 server ends the connection for this target or a field, with the requests of others on it.
///
/// # Errors
/// The target would be too long with escapes, or metadata of gRPC isn't base64.
fn check_for_http2(target: &Uri, headers: &HeaderMap) -> Result<(), Rejection> {
    if target.path_and_query().is_some_and(|target| !can_be_encoded(target)) {
        return Err(Rejection::TargetTooLong);
    }
    if has_invalid_metadata(headers) { Err(Rejection::FieldInvalid) } else { Ok(()) }
}

/// Returns a response with this body and these header fields.
pub(in crate::gateway) fn fixed(
    status: StatusCode,
    body: &str,
    headers: &[(HeaderName, HeaderValue)],
) -> Response<Bytes> {
    let mut response = Response::new(Bytes::copy_from_slice(body.as_bytes()));
    *response.status_mut() = status;
    response.headers_mut().extend(headers.iter().cloned());
    response
}
