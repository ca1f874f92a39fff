//! The log of failing servers: a line when a server begins to fail, and one when it answers again, however many requests fail
//! in between.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Failure, pool::UpstreamServer};

/// The time without a failure after which an answer ends an outage. A server that fails now and then has one outage, not many.
const QUIET: Duration = Duration::from_secs(1);

/// The age at which the last failure no longer makes a server unhealthy: it may get no requests that could succeed.
const STALE: Duration = Duration::from_secs(600);

/// The outages of a server: of the server itself, and of free connections to it.
#[derive(Debug, Default)]
pub struct Outages {
    failing: Outage,
    busy: Outage,
    /// True if the last request has failed.
    has_failed: AtomicBool,
}

/// A time in which requests fail. It ends with an answer.
#[derive(Debug, Default)]
struct Outage {
    is_on: AtomicBool,
    counted: Mutex<Option<Failed>>,
}

/// The failures of an outage.
#[derive(Clone, Copy, Debug)]
struct Failed {
    /// The kind of the last one.
    code: &'static str,
    count: u64,
    since: Instant,
    last: Instant,
}

impl Outages {
    /// Returns false if the last request to the server failed less than [`STALE`] ago.
    pub fn is_well(&self) -> bool {
        !self.has_failed.load(Relaxed) || !self.failing.has_failed_lately()
    }

    /// Records and logs the result of a request to a server of an upstream.
    pub(super) fn note(&self, upstream: &str, server: &UpstreamServer, failure: Option<&Failure>) {
        match failure {
            None => {
                // Reading first avoids writes to a shared cache line while requests succeed.
                if self.has_failed.load(Relaxed) {
                    self.has_failed.store(false, Relaxed);
                }
                self.end(&self.failing, upstream, server, "answers again");
                self.end(&self.busy, upstream, server, "has free connections again");
            }
            Some(Failure::Busy) => {
                if self.busy.begin(Failure::Busy.kind(), Instant::now()) {
                    let (url, remedy) =
                        (server.url(), "raise `max_connections` of the upstream, or add servers");
                    tracing::warn!(upstream, server = %url, "all connections are in use ({remedy})");
                }
            }
            Some(failure) if failure.is_of_server() => {
                self.has_failed.store(true, Relaxed);
                let code = failure.kind();
                if self.failing.begin(code, Instant::now()) {
                    let (url, address, cause) = (server.url(), server.location(), failure.cause());
                    tracing::warn!(upstream, server = %url, %address, code, "a server fails: {cause}");
                }
            }
            Some(_) => {}
        }
    }

    fn end(&self, outage: &Outage, upstream: &str, server: &UpstreamServer, what: &str) {
        if let Some(Failed { code, count, since, .. }) = outage.end() {
            let seconds = since.elapsed().as_secs_f64();
            let (url, address) = (server.url(), server.location());
            tracing::info!(upstream, server = %url, %address, code, failures = count, "a server {what} after {seconds:.1} s");
        }
    }
}

impl Outage {
    /// Counts a failure. Returns true if it is the first one.
    fn begin(&self, code: &'static str, now: Instant) -> bool {
        let mut counted = self.counted.lock();
        let failed = counted.get_or_insert(Failed { code, count: 0, since: now, last: now });
        *failed = Failed { code, count: failed.count + 1, since: failed.since, last: now };
        self.is_on.store(true, Relaxed);
        failed.count == 1
    }

    fn has_failed_lately(&self) -> bool {
        self.counted.lock().is_some_and(|failed| failed.last.elapsed() < STALE)
    }

    /// Returns the failures of an outage that ends now, with an answer.
    fn end(&self) -> Option<Failed> {
        if !self.is_on.load(Relaxed) {
            return None;
        }
        let mut counted = self.counted.lock();
        let ended = counted.take_if(|failed| failed.last.elapsed() >= QUIET);
        if ended.is_some() {
            self.is_on.store(false, Relaxed);
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_server_that_gets_no_requests_any_more_is_not_failing_forever() {
        let (outages, server) = (Outages::default(), UpstreamServer::test(1));
        outages.note("orders", &server, Some(&Failure::ResponseTimeout));
        advance(STALE / 2).await;
        assert!(!outages.is_well());
        outages.note("orders", &server, Some(&Failure::ResponseTimeout));
        advance(STALE * 3 / 4).await;
        assert!(!outages.is_well(), "since the last one");
        advance(STALE / 4).await;
        assert!(outages.is_well());
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_fails_now_and_then_has_one_outage() {
        let outage = Outage::default();
        assert!(outage.end().is_none());
        for turn in 0..1_000 {
            assert_eq!(outage.begin("broken", Instant::now()), turn == 0);
            advance(QUIET / 2).await;
            assert!(outage.end().is_none());
        }
        advance(QUIET / 2).await;
        assert_eq!(outage.end().map(|failed| failed.count), Some(1_000));
        assert!(outage.end().is_none());
        assert!(outage.begin("broken", Instant::now()), "the next one");
    }
}
