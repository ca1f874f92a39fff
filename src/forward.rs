//! Forwarding takes an admitted request to a server of its upstream and streams the answer back.
//!
//! An [`Upstream`] picks the server with fewer requests in flight of two drawn at random, and the
//! [`pool`] gives a connection to it. Bodies stream in both directions and are never held whole:
//! hyper reads on as far as the other side takes what it has. A request that a kept connection
//! closed on before taking it is sent on another one; nothing else is sent twice.

pub mod body;
mod echo;
pub mod headers;
pub mod pool;

use std::{error::Error, fmt, io, pin::pin, sync::Arc, time::Duration};

use http_body::Body as _;
use hyper::{
    Request, Response, StatusCode, Version,
    body::Incoming,
    client::conn::http1::SendRequest,
    header::{HOST, HeaderValue, TRANSFER_ENCODING},
};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use crate::config::{self, Target};

use self::{
    body::{Body, Upload},
    pool::Server,
};

/// Why an upstream gave no answer.
#[derive(Debug)]
pub enum Failure {
    /// It has as many connections as it may have, and all of them are busy.
    Busy,
    /// No connection to the server could be made.
    Unreachable(io::Error),
    /// Connecting took too long.
    ConnectTimeout,
    /// The connection broke before the answer, or the answer isn't HTTP.
    Broken(hyper::Error),
    /// The answer took too long to begin.
    ResponseTimeout,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Busy => "all connections to the upstream are busy",
            Self::Unreachable(_) => "the upstream could not be reached",
            Self::ConnectTimeout => "connecting to the upstream took too long",
            Self::Broken(_) => "the upstream broke off or answered with something other than HTTP",
            Self::ResponseTimeout => "the upstream took too long to answer",
        })
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Unreachable(cause) => Some(cause),
            Self::Broken(cause) => Some(cause),
            Self::Busy | Self::ConnectTimeout | Self::ResponseTimeout => None,
        }
    }
}

/// Where a route's requests go.
#[derive(Debug)]
pub enum Upstream {
    /// Servers reached over the network.
    Servers(Servers),
    /// The built-in service that answers with what it was sent.
    Echo,
}

/// The servers of an upstream, any of which can answer.
#[derive(Debug)]
pub struct Servers {
    servers: Vec<Arc<Server>>,
    connect_timeout: Duration,
    response_timeout: Duration,
    idle_timeout: Duration,
}

impl Upstream {
    /// Makes an upstream of the configuration ready. Servers that `before` had, too, keep their connections.
    pub fn new(config: &config::Upstream, before: Option<&Self>) -> Self {
        let Target::Servers(urls) = &config.target else { return Self::Echo };
        let known = match before {
            Some(Self::Servers(before)) => &before.servers[..],
            _ => &[],
        };
        let connections = known.first().map(|server| server.connections().clone()).unwrap_or_default();
        connections.allow(config.max_connections);
        let servers = urls.iter().map(|url| match known.iter().find(|server| server.url() == url) {
            Some(server) => server.clone(),
            None => Arc::new(Server::new(url.clone(), connections.clone())),
        });
        Self::Servers(Servers {
            servers: servers.collect(),
            connect_timeout: config.connect_timeout,
            response_timeout: config.response_timeout,
            idle_timeout: config.idle_timeout,
        })
    }

    /// Sends a request whose header is ready for the upstream, and gives the answer as it begins.
    ///
    /// # Errors
    /// No answer, or none in time.
    pub async fn send(&self, mut request: Request<Incoming>) -> Result<Response<Body>, Failure> {
        if request.body().size_hint().exact().is_none() {
            // hyper would take a GET for one without a body.
            request.headers_mut().insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        match self {
            Self::Servers(servers) => servers.send(request).await,
            Self::Echo => Ok(echo::answer(request).await),
        }
    }

    /// Closes this thread's connections that have idled too long.
    pub fn close_idle(&self) {
        if let Self::Servers(servers) = self {
            for server in &servers.servers {
                server.close_idle(servers.idle_timeout);
            }
        }
    }
}

impl Servers {
    async fn send(&self, request: Request<Incoming>) -> Result<Response<Body>, Failure> {
        let (parts, incoming) = request.into_parts();
        let (upload, taken) = Upload::new(incoming);
        let mut request = Request::from_parts(parts, Body::Request(upload));
        let mut server = self.pick();
        *request.version_mut() = Version::HTTP_11;
        if !request.headers().contains_key(HOST) {
            request.headers_mut().insert(HOST, server.host().clone());
        }
        let mut in_flight = server.begin();
        loop {
            let (mut sender, reused) = match server.reuse(self.idle_timeout) {
                Some(sender) => (sender, true),
                None => match server.connect(self.connect_timeout).await {
                    Err(Failure::Busy) => {
                        let (other, sender) = self.reuse_any().ok_or(Failure::Busy)?;
                        (server, in_flight) = (other, other.begin());
                        (sender, true)
                    }
                    connected => (connected?, false),
                },
            };
            *taken.lock() = Instant::now();
            let answered = self.in_time(&taken, sender.try_send_request(request)).await;
            match answered.ok_or(Failure::ResponseTimeout)? {
                Ok(response) => return Ok(receive(response, pool::Lease::new(sender, in_flight))),
                Err(mut unsent) => match unsent.take_message() {
                    Some(message) if reused => request = message,
                    _ => return Err(Failure::Broken(unsent.into_error())),
                },
            }
        }
    }

    /// The answer, if it begins in time after the upstream last took some of the request.
    async fn in_time<T>(&self, taken: &Mutex<Instant>, answer: impl Future<Output = T>) -> Option<T> {
        let mut answer = pin!(answer);
        loop {
            let deadline = *taken.lock() + self.response_timeout;
            match timeout_at(deadline, &mut answer).await {
                Ok(answer) => return Some(answer),
                Err(_) if *taken.lock() + self.response_timeout > deadline => {}
                Err(_) => return None,
            }
        }
    }

    /// An idle connection of any thread to any server.
    fn reuse_any(&self) -> Option<(&Arc<Server>, SendRequest<Body>)> {
        let idle = |server: &Arc<Server>| server.reuse_of_any_thread(self.idle_timeout);
        self.servers.iter().find_map(|server| Some((server, idle(server)?)))
    }

    /// Of two servers drawn at random, the one with fewer requests in flight.
    fn pick(&self) -> &Arc<Server> {
        let draw = || &self.servers[fastrand::usize(..self.servers.len())];
        if self.servers.len() == 1 {
            return &self.servers[0];
        }
        let (one, other) = (draw(), draw());
        if other.in_flight() < one.in_flight() { other } else { one }
    }
}

/// The answer as it goes on to the client. Its body holds the connection until its end.
fn receive(response: Response<Incoming>, lease: pool::Lease) -> Response<Body> {
    let (mut parts, incoming) = response.into_parts();
    headers::towards_client(&mut parts.headers);
    // What the upstream speaks is its own affair; the client is answered in its version.
    parts.version = Version::HTTP_11;
    if parts.status == StatusCode::SWITCHING_PROTOCOLS {
        // Nobody asked to switch: Upgrade isn't passed on.
        parts.status = StatusCode::BAD_GATEWAY;
    }
    Response::from_parts(parts, Body::Response(body::Relayed::new(incoming, lease)))
}
