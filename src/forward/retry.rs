//! Retries. A request is sent again only if the server can't have processed it, since the connection failed before the whole head was
//! written or an HTTP/2 server refused it, or if it is idempotent, went to a reused connection, and nothing came back (RFC 9110,
//! section 9.2.2; RFC 9112, section 9.3.1). A body that has begun is never sent again.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use h2::Reason;
use hyper::Request;

use crate::config::Percent;

use super::body::Body;

/// The cost of a retry. Each request adds its share in percent.
const RETRY: u32 = 100;
/// Retries that are possible after a time without retries.
const RESERVE: u32 = 10;

/// A budget that limits retries to a share of the requests, so that retries don't overload failing servers further.
#[derive(Debug)]
pub struct Budget {
    share: u32,
    tokens: AtomicU32,
}

impl Budget {
    /// Returns a full budget of this share of the requests.
    pub fn new(share: Percent) -> Self {
        Self { share: share.0, tokens: AtomicU32::new(if share.0 == 0 { 0 } else { RESERVE * RETRY }) }
    }

    /// Counts a request, which adds its share to the budget.
    pub fn deposit(&self) {
        // Reading first avoids a write to a shared cache line while the budget is full, as it mostly is.
        if self.tokens.load(Relaxed) < RESERVE * RETRY {
            let more = |tokens: u32| Some((tokens + self.share).min(RESERVE * RETRY));
            let _ = self.tokens.fetch_update(Relaxed, Relaxed, more);
        }
    }

    /// Takes a retry from the budget. Returns false if none is left.
    pub fn withdraw(&self) -> bool {
        self.tokens.fetch_update(Relaxed, Relaxed, |tokens| tokens.checked_sub(RETRY)).is_ok()
    }
}

/// Returns a copy of a request. `None` if it has a body.
pub fn copy(request: &Request<Body>) -> Option<Request<Body>> {
    use http_body::Body as _;
    if !request.body().is_end_stream() {
        return None;
    }
    let mut copy = Request::new(Body::Whole(None));
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    *copy.extensions_mut() = request.extensions().clone();
    Some(copy)
}

/// Returns true if the server states that it didn't process the request (RFC 9113, sections 6.8 and 8.7).
pub fn was_refused(error: &h2::Error) -> bool {
    // h2 passes a GOAWAY, whatever its reason, only to the requests behind the last one that it names.
    let is_behind = error.is_go_away() && error.is_remote();
    is_behind || error.reason() == Some(Reason::REFUSED_STREAM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_are_a_share_of_the_requests() {
        let budget = Budget::new(Percent(20));
        let retries = |requests: usize| {
            (0..requests).filter(|_| {
                budget.deposit();
                budget.withdraw()
            })
        };
        assert_eq!(retries(1_000).count(), RESERVE as usize + 199);
        (0..1_000).for_each(|_| budget.deposit());
        assert_eq!(retries(10).count(), 10);
    }

    #[test]
    fn no_share_is_no_retry() {
        let budget = Budget::new(Percent(0));
        budget.deposit();
        assert!(!budget.withdraw());
    }
}
