//! A request that limits refused, and that comes again: the same client sends the same head by the same connection, as
//! those do who don't wait as they are told. It asks the same of the same limits, so nothing but these has to be looked at.

use std::sync::{Arc, Weak};

use tokio::time::Instant;

use crate::{
    config::OnLimit,
    reject::{Rejection, Written},
    rules::Repeat,
};

use super::Gateway;

/// By what a request can be refused again.
#[derive(Debug)]
pub struct Refused {
    /// Which has refused it.
    pub(super) gateway: Weak<Gateway>,
    /// The place of the route's traffic in the gateway's.
    pub(super) traffic: usize,
    pub(super) on_limit: Option<OnLimit>,
    pub(super) asked: Repeat,
}

impl Refused {
    /// Refuses it again, and counts it, as it arrives now; tells when that is done. Not if another configuration holds by
    /// now, or if it isn't sure that it is refused.
    pub fn refuse(&self, gateway: &Arc<Gateway>) -> Option<(Written, Instant)> {
        if self.gateway.as_ptr() != Arc::as_ptr(gateway) {
            return None;
        }
        let arrival = Instant::now();
        let rejection = Rejection::from(self.asked.refuse(&gateway.limiter, arrival)?);
        let answer = rejection.write(gateway.ratelimit_headers, self.on_limit.as_ref());
        let (now, (_, traffic)) = (Instant::now(), &gateway.traffic[self.traffic]);
        traffic.note(answer.status.as_u16(), true, now.saturating_duration_since(arrival));
        Some((answer, now))
    }
}
