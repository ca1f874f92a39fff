//! Refused requests that are repeated: clients that ignore Retry-After send the same head again on the same connection.
//! Such a request has the same limits, keys and costs, so from its second repetition on it is refused without parsing it.
//!
//! Only the HTTP/1.1 server uses this, and nothing else depends on it. It keeps refusals of identical heads cheaper than nginx's
//! (docs/benchmarks.md).

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
    forward::headers::{self, X_REQUEST_ID},
    reject::{Rejection, Written},
    rules::Repeat,
};

use super::{Gateway, Peer, client, target};

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
    asks: Repeat,
}

impl Repeats {
    /// Notes that the last request was refused. Its head is empty if it can't be repeated.
    pub fn note_refused(&mut self, head: &[u8], peer: Peer, gateway: &Arc<Gateway>) {
        *self = match mem::take(self) {
            _ if !(1..=HEAD_MOST).contains(&head.len()) => Self::None,
            Self::Again(last, refused) if *last == *head => {
                let is_stale = |refused: &Refused| refused.gateway.as_ptr() != Arc::as_ptr(gateway);
                let refused = match refused {
                    Some(refused) if is_stale(&refused) => Refused::of(head, peer, gateway),
                    refused => refused,
                };
                Self::Again(last, refused)
            }
            Self::Once(last) if *last == *head => Self::Again(last, Refused::of(head, peer, gateway)),
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
    fn of(head: &[u8], peer: Peer, gateway: &Arc<Gateway>) -> Option<Box<Self>> {
        if gateway.access_log.is_some() || gateway.tracer.is_some() || gateway.verifier.is_some() {
            return None;
        }
        let parts = parse(head)?;
        let client = client::identify(peer, &parts.headers, &gateway.trusted_proxies);
        let states_id = client.peer_is_trusted && parts.headers.contains_key(X_REQUEST_ID);
        if states_id || grpc::is_call(&parts.headers) || target::is_about_server(&parts) {
            return None;
        }
        let plan = gateway.planner.plan(&client, &parts, &gateway.claims(&parts)).ok()?;
        if plan.route.response_headers.is_some() {
            return None;
        }
        let asks = Repeat::of(&plan.limits, plan.terms)?;
        let (traffic, on_limit) = (plan.route.traffic, plan.route.on_limit.clone());
        Some(Box::new(Self { gateway: Arc::downgrade(gateway), traffic, on_limit, asks }))
    }

    fn refuse(&self, gateway: &Arc<Gateway>) -> Option<(Written, Instant)> {
        if self.gateway.as_ptr() != Arc::as_ptr(gateway) {
            return None;
        }
        let arrival = Instant::now();
        let rejection = Rejection::from(self.asks.refuse(&gateway.limiter, arrival)?);
        let mut answer = rejection.write(gateway.ratelimit_headers, self.on_limit.as_ref());
        gateway.state_new_id(&mut answer);
        let (now, (_, traffic)) = (Instant::now(), &gateway.traffic[self.traffic]);
        traffic.note(answer.status.as_u16(), true, now.saturating_duration_since(arrival));
        Some((answer, now))
    }
}

/// Parses a head as the gateway sees it.
fn parse(head: &[u8]) -> Option<Parts> {
    let mut input = Input::default();
    input.push(head);
    let (mut parts, _) = head::request(&mut input, head.len()).ok()??.into_parts();
    headers::from_client(&mut parts.headers);
    Some(parts)
}
