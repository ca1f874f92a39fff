//! Refused requests that are repeated: clients that ignore Retry-After send the same head again on the same connection.
//! Such a request has the same limits, keys and costs, so from its second repetition on it is refused without parsing it.
//!
//! Only the HTTP/1.1 server uses this, for requests and for calls that describe a request; nothing else depends on it.
//! It keeps refusals of identical heads cheaper than nginx's (docs/benchmarks.md).

use std::{
    mem,
    sync::{Arc, Weak},
};

use arc_swap::ArcSwap;
use hyper::http::request::Parts;
use tokio::time::Instant;
use tollgate_http1::{Input, head};
use tollgate_limiter::grpc;

use crate::{
    config::OnLimit,
    forward::headers::{self, Client, X_REQUEST_ID},
    reject::{Rejection, Written},
    rules::Repeat,
};

use super::{Gateway, Peer, plan::Plan, target};

/// Turns the head of a call into the request that it describes, and returns that request's client. `None` if such calls
/// may be answered differently each time.
pub type Describe = fn(&Gateway, Peer, &mut Parts) -> Option<Client>;

/// The size in bytes of the largest head that is kept.
const HEAD_MOST: usize = 2 << 10;

/// The last request of a connection, if it was refused.
#[derive(Debug, Default)]
pub enum Repeats {
    /// It was not refused, or can't be repeated.
    #[default]
    None,
    /// A request with this head was refused.
    Once(Box<[u8]>),
    /// A request with this head was refused repeatedly. `None` if its repetitions are decided in the usual way.
    Again(Box<[u8]>, Option<Box<Refused>>),
}

/// The means to refuse the repetitions of a request.
#[derive(Debug)]
pub struct Refused {
    /// The gateway that refused it.
    gateway: Weak<Gateway>,
    /// The index of the route's traffic.
    traffic: usize,
    on_limit: Option<OnLimit>,
    /// True if responses state an id.
    states_id: bool,
    asks: Repeat,
}

impl Repeats {
    /// Notes that the last request was refused, or with `describe` the one that a call described. Its head is empty if it
    /// can't be repeated.
    pub fn note_refused(
        &mut self,
        head: &[u8],
        peer: Peer,
        gateway: &Arc<Gateway>,
        describe: Option<Describe>,
    ) {
        let refused = || Refused::of(head, peer, gateway, describe);
        *self = match mem::take(self) {
            _ if !(1..=HEAD_MOST).contains(&head.len()) => Self::None,
            Self::Again(last, known) if *last == *head => {
                let refused = match known {
                    Some(known) if !known.is_by(gateway) => refused(),
                    known => known,
                };
                Self::Again(last, refused)
            }
            Self::Once(last) if *last == *head => Self::Again(last, refused()),
            _ => Self::Once(head.into()),
        };
    }

    /// Refuses and counts the request that `received` begins with, if it repeats the last one. Returns the length of its head, the
    /// response, and the current time. `None` if the request has to be decided in the usual way: it is another one, the
    /// configuration has changed, or it might be admitted.
    pub fn refuse(&self, received: &[u8], gateway: &ArcSwap<Gateway>) -> Option<(usize, Written, Instant)> {
        let Self::Again(head, Some(refused)) = self else { return None };
        if !received.starts_with(head) {
            return None;
        }
        let (answer, now) = refused.refuse(&gateway.load())?;
        Some((head.len(), answer, now))
    }
}

impl Refused {
    /// Plans a request once more from its head. `None` if logging, tracing or tokens need the request itself, or if its limits may
    /// do more than refuse it.
    fn of(head: &[u8], peer: Peer, gateway: &Arc<Gateway>, describe: Option<Describe>) -> Option<Box<Self>> {
        if gateway.access_log.is_some() || gateway.tracer.is_some() || gateway.verifier.is_some() {
            return None;
        }
        let mut parts = parse(head)?;
        let client = match describe {
            None => client_of(gateway, peer, &mut parts)?,
            Some(describe) => {
                let client = describe(gateway, peer, &mut parts)?;
                headers::from_described(&mut parts.headers);
                client
            }
        };
        if target::is_about_server(&parts) {
            return None;
        }
        let plan = gateway.planner.plan(&client, &parts, &gateway.claims(&parts)).ok()?;
        let is_decided_alike = match describe {
            None => plan.route.response_headers.is_none(),
            Some(_) => plan.rules.iter().all(|rule| rule.config().ends_with_decision()),
        };
        let Plan { route, rules, terms, .. } = plan;
        let asks = is_decided_alike.then(|| Repeat::of(&rules, terms))??;
        Some(Box::new(Self {
            gateway: Arc::downgrade(gateway),
            traffic: route.traffic,
            on_limit: route.on_limit.clone(),
            states_id: describe.is_none(),
            asks,
        }))
    }

    /// Returns true if this gateway refused the request.
    fn is_by(&self, gateway: &Arc<Gateway>) -> bool {
        self.gateway.as_ptr() == Arc::as_ptr(gateway)
    }

    fn refuse(&self, gateway: &Arc<Gateway>) -> Option<(Written, Instant)> {
        if !self.is_by(gateway) {
            return None;
        }
        let arrival = Instant::now();
        let rejection = Rejection::from(self.asks.refuse(&gateway.limiter, arrival)?);
        let mut answer = rejection.write(gateway.ratelimit_headers, self.on_limit.as_ref());
        if self.states_id {
            gateway.state_new_id(&mut answer);
        }
        let now = Instant::now();
        let duration = now.saturating_duration_since(arrival);
        gateway.traffic[self.traffic].1.note(answer.status.as_u16(), true, duration);
        Some((answer, now))
    }
}

/// Returns the client of a request that the gateway itself serves. `None` if its response differs each time.
fn client_of(gateway: &Gateway, peer: Peer, parts: &mut Parts) -> Option<Client> {
    gateway.remove_unforwarded(peer, &mut parts.headers);
    let client = gateway.client(peer, &parts.headers);
    let brings_id = client.peer_is_trusted && parts.headers.contains_key(X_REQUEST_ID);
    (!brings_id && !grpc::is_call(&parts.headers)).then_some(client)
}

/// Parses a head.
fn parse(head: &[u8]) -> Option<Parts> {
    let mut input = Input::default();
    input.push(head);
    Some(head::request(&mut input, head.len()).ok()??.into_parts().0)
}
