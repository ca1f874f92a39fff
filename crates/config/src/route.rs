//! The settings of a route: the requests it matches, and what to do with them.

use std::{collections::BTreeMap, time::Duration};

use hyper::{
    HeaderMap, StatusCode,
    header::{HeaderName, HeaderValue},
};

use super::BodyTemplate;
use tollgate_routing::{
    Matcher,
    template::{Location, Template},
};

/// The settings of a route.
#[derive(Debug, PartialEq)]
pub struct RouteSettings {
    /// The name in logs and metrics. Made from host and path if the file gives none.
    pub name: String,
    /// The requests that the route matches.
    pub matcher: Matcher,
    /// The action for these requests.
    pub action: Action,
    /// The names of the limits that apply, each once.
    pub limits: Vec<String>,
    /// The costs of requests of this route to limits, by the limits' names, instead of the limits' own.
    pub costs: BTreeMap<String, u32>,
    /// The path that the upstream gets instead of the request's.
    pub rewrite: Option<Template>,
    /// The changes to the header fields that the upstream gets.
    pub request_headers: Option<Edits>,
    /// The changes to the header fields of every response, also of those that the gateway sends itself.
    pub response_headers: Option<Edits>,
    /// The time from passing the limits to the end of the response.
    pub timeout: Option<Duration>,
    /// The largest request body in bytes, `Some(None)` if it is unlimited. `None` means the server's setting.
    pub max_body: Option<Option<u64>>,
    /// True if the upstream gets the host that the client asked for, false if it gets its own.
    pub preserve_host: bool,
    /// The proof that requests must bear.
    pub requires: Option<Requirement>,
    /// The response to a rejected request. `None` means the gateway's own.
    pub on_limit: Option<OnLimit>,
}

/// A proof that the requests of a route must bear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// A valid token.
    Jwt,
}

/// An action for a request.
#[derive(Debug, PartialEq)]
pub enum Action {
    /// Forward it to the upstream of this name.
    Upstream(String),
    /// Forward it to one of these upstreams, drawn by weight. The weights don't add up to 0.
    Split(Vec<(String, u32)>),
    /// Send a fixed response.
    Respond {
        /// The status, from 200 to 599.
        status: StatusCode,
        /// The body, possibly empty.
        body: String,
        /// The header fields. None of them concerns framing.
        headers: Vec<(HeaderName, HeaderValue)>,
    },
    /// Redirect the client.
    Redirect {
        /// The target.
        to: Location,
        /// The status: 301, 302, 303, 307 or 308.
        status: StatusCode,
    },
}

/// Changes to header fields. None of them concerns the connection, framing or `Host`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Edits {
    /// The fields to remove, before the others are changed.
    pub remove: Vec<HeaderName>,
    /// The fields to set to a single line.
    pub set: Vec<(HeaderName, HeaderValue)>,
    /// The lines to add, after all other changes.
    pub add: Vec<(HeaderName, HeaderValue)>,
}

impl Edits {
    /// Returns the names of the fields that change.
    pub fn names(&self) -> impl Iterator<Item = &HeaderName> {
        let written = self.set.iter().chain(&self.add).map(|(name, _)| name);
        self.remove.iter().chain(written)
    }

    /// Applies the changes.
    pub fn apply(&self, headers: &mut HeaderMap) {
        for name in &self.remove {
            headers.remove(name);
        }
        for (name, value) in &self.set {
            headers.insert(name, value.clone());
        }
        for (name, value) in &self.add {
            headers.append(name, value.clone());
        }
    }
}

/// The response to a request that a limit rejects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnLimit {
    /// The status, from 400 to 599.
    pub status: StatusCode,
    /// The body and its content type. `None` means the gateway's own body.
    pub body: Option<(BodyTemplate, HeaderValue)>,
}
