//! Refused requests that are repeated: clients that ignore Retry-After send the same head again on the same connection.
//! Such a request has the same limits, keys and costs, so it is refused without parsing it.

use std::sync::{Arc, Weak};

use tokio::time::Instant;

use crate::{
    config::OnLimit,
    reject::{Rejection, Written},
    rules::Repeat,
};

use super::Gateway;

/// A refused request, kept to refuse its repetitions.
#[derive(Debug)]
pub struct Refused {
    /// The gateway that refused it.
    pub(super) gateway: Weak<Gateway>,
    /// The index of the route's traffic.
    pub(super) traffic: usize,
    pub(super) on_limit: Option<OnLimit>,
    pub(super) asked: Repeat,
}

impl Refused {
    /// Refuses and counts a repetition that arrives now. Returns the response and the current time. `None` if the request
    /// has to be decided in the usual way: the configuration has changed, or it might be admitted.
    pub fn refuse(&self, gateway: &Arc<Gateway>) -> Option<(Written, Instant)> {
        if self.gateway.as_ptr() != Arc::as_ptr(gateway) {
            return None;
        }
        let arrival = Instant::now();
        let rejection = Rejection::from(self.asked.refuse(&gateway.limiter, arrival)?);
        let mut answer = rejection.write(gateway.ratelimit_headers, self.on_limit.as_ref());
        gateway.state_new_id(&mut answer);
        let (now, (_, traffic)) = (Instant::now(), &gateway.traffic[self.traffic]);
        traffic.note(answer.status.as_u16(), true, now.saturating_duration_since(arrival));
        Some((answer, now))
    }
}
