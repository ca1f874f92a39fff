//! Routes: what is done with which requests.

use std::time::Duration;

use bytes::Bytes;
use hyper::{
    HeaderMap, StatusCode,
    header::{HeaderName, HeaderValue},
};

use tollgate_routing::{
    Matcher,
    template::{Location, Template},
};

/// What to do with which requests.
#[derive(Debug, PartialEq)]
pub struct RouteSettings {
    /// What logs and metrics call it; made from host and path if the file gives no name.
    pub name: String,
    /// Which requests.
    pub matcher: Matcher,
    /// What to do.
    pub action: Action,
    /// The names of the limits to pass, each once.
    pub limits: Vec<String>,
    /// The path that an upstream gets in place of the request's.
    pub rewrite: Option<Template>,
    /// What changes in the header that an upstream gets.
    pub request_headers: Option<Edits>,
    /// What changes in the header of the answer, whoever gives it.
    pub response_headers: Option<Edits>,
    /// From when a request has passed its limits to the end of its answer.
    pub timeout: Option<Duration>,
    /// The greatest body of a request, in bytes, if there is a bound; without this the server's.
    pub max_body: Option<Option<u64>>,
    /// Whether an upstream gets the host that the client asked for, not its own.
    pub preserve_host: bool,
    /// What those are told whom a limit refuses, in place of the gateway's own words.
    pub on_limit: Option<OnLimit>,
}

/// What to do with a request.
#[derive(Debug, PartialEq)]
pub enum Action {
    /// Forward it to the upstream of this name.
    Upstream(String),
    /// Answer this.
    Respond {
        /// From 200 to 599.
        status: StatusCode,
        /// Possibly empty.
        body: String,
        /// None of them about framing.
        headers: Vec<(HeaderName, HeaderValue)>,
    },
    /// Send the client elsewhere.
    Redirect {
        /// Where to.
        to: Location,
        /// 301, 302, 303, 307 or 308.
        status: StatusCode,
    },
}

/// What changes in a header. No field is among it that is about the connection or framing, nor Host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Edits {
    /// Fields that go, first of all.
    pub remove: Vec<HeaderName>,
    /// Fields that have this one line then.
    pub set: Vec<(HeaderName, HeaderValue)>,
    /// Lines that come to those that are there, last of all.
    pub add: Vec<(HeaderName, HeaderValue)>,
}

impl Edits {
    /// Changes a header.
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

/// What those are told whom a limit refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnLimit {
    /// From 400 to 599.
    pub status: StatusCode,
    /// The body and its content type; without it the body is the gateway's.
    pub body: Option<(Bytes, HeaderValue)>,
}
