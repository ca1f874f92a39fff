//! Which servers are fit for requests: those that answer probes, and those that haven't failed too often.
//!
//! Probes are sent by one task for each upstream in the process. Failures of requests are counted as they
//! happen, in a row; a server with too many of them is ejected, and comes back by itself. Ejecting is a guess, so
//! it takes a share of the servers at most, and if no other is left the ejected ones are asked. A server that
//! fails its probes is asked nothing.

use std::{
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::{StreamExt, stream};
use hyper::StatusCode;
use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use crate::config::{Eject, Health};

use super::{Failure, pool::Server};

/// Probes of an upstream that are on their way at a time.
const PROBES_MOST: usize = 64;
/// Part of an interval within which the probes of a round begin, so that gateways that started together don't
/// probe together.
const JITTER: f64 = 0.1;

/// How a server has fared.
#[derive(Debug, Default)]
pub struct Condition {
    is_down: AtomicBool,
    /// Probes in a row that spoke against what is held of the server now; and whether there was any.
    contrary: AtomicU32,
    was_probed: AtomicBool,
    /// Failures in a row.
    failures: AtomicU32,
    /// In milliseconds of [`now_ms`]; 0 if it isn't.
    ejected_until_ms: AtomicU64,
}

impl Condition {
    /// Whether probes haven't found it down.
    pub fn is_up(&self) -> bool {
        !self.is_down.load(Relaxed)
    }

    /// For how long it is left out yet, if it is.
    pub fn ejected_for(&self) -> Option<Duration> {
        match self.ejected_until_ms.load(Relaxed) {
            0 => None,
            until_ms => until_ms.checked_sub(now_ms()).filter(|left| *left > 0).map(Duration::from_millis),
        }
    }

    /// Takes note of a probe. Tells if the server is up, or down, from now on.
    fn probed(&self, is_good: bool, health: &Health) -> Option<bool> {
        let is_first = !self.was_probed.swap(true, Relaxed);
        if is_good == self.is_up() {
            self.contrary.store(0, Relaxed);
            return None;
        }
        let contrary = self.contrary.fetch_add(1, Relaxed) + 1;
        let most = if is_good { health.rise } else { health.fall };
        if !is_first && contrary < most {
            return None;
        }
        self.contrary.store(0, Relaxed);
        self.is_down.store(!is_good, Relaxed);
        Some(is_good)
    }

    /// Takes back what probes have found out, since there are none any more.
    pub fn forget_probes(&self) {
        self.is_down.store(false, Relaxed);
        self.was_probed.store(false, Relaxed);
        self.contrary.store(0, Relaxed);
    }

    /// Takes note of how an exchange ended. Tells whether there have been so many failures in a row.
    fn ended(&self, has_failed: bool, most: u32) -> bool {
        if has_failed {
            return self.failures.fetch_add(1, Relaxed) + 1 >= most;
        }
        // Read first: as long as all is well, the threads write nothing.
        if self.failures.load(Relaxed) > 0 {
            self.failures.store(0, Relaxed);
        }
        false
    }
}

/// Milliseconds since some time before; never 0.
fn now_ms() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_millis() as u64 + 1
}

/// Ejects servers of an upstream that fail.
#[derive(Debug)]
pub struct Ejector {
    terms: Eject,
    /// Held while one is ejected, so that there are never too many.
    ejecting: Mutex<()>,
}

impl Ejector {
    /// Ejects on these terms.
    pub fn new(terms: Eject) -> Self {
        Self { terms, ejecting: Mutex::new(()) }
    }

    /// Takes note of how an exchange with one of the servers ended.
    pub fn note<'s>(
        &self,
        server: &Server,
        answered: Result<StatusCode, &Failure>,
        all: impl Iterator<Item = &'s Arc<Server>>,
    ) {
        let Some(has_failed) = has_failed(answered) else { return };
        if server.condition.ended(has_failed, self.terms.failures) {
            self.eject(server, all);
        }
    }

    fn eject<'s>(&self, server: &Server, all: impl Iterator<Item = &'s Arc<Server>>) {
        let _alone = self.ejecting.lock();
        let (mut count, mut ejected) = (0, 0);
        for other in all {
            count += 1;
            ejected += usize::from(other.condition.ejected_for().is_some());
        }
        if server.condition.ejected_for().is_some()
            || (ejected + 1) * 100 > count * self.terms.most.0 as usize
        {
            return;
        }
        let until_ms = now_ms() + self.terms.duration.as_millis() as u64;
        server.condition.ejected_until_ms.store(until_ms, Relaxed);
        server.condition.failures.store(0, Relaxed);
        tracing::warn!(server = %server.url(), "left out for {:?}: it failed {} times in a row", self.terms.duration, self.terms.failures);
    }
}

/// Whether it is the server's failure; none if it says nothing about the server.
///
/// As with Envoy's gateway failures, 502, 503 and 504 are: they come from a proxy in front of a dead service, or
/// from one that refuses. A 500 is the application's, and may well be about the request.
fn has_failed(answered: Result<StatusCode, &Failure>) -> Option<bool> {
    match answered {
        Ok(status) => Some(matches!(status.as_u16(), 502..=504)),
        Err(Failure::Busy | Failure::NoneHealthy { .. }) => None,
        Err(failure) if failure.is_of_client() => None,
        Err(_) => Some(true),
    }
}

/// Probes servers for as long as it is polled.
pub async fn probe(upstream: String, servers: Vec<Arc<Server>>, health: Health, connect_timeout: Duration) {
    let mut rounds = interval(health.interval);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut jitter = Duration::ZERO;
    loop {
        rounds.tick().await;
        let probes = stream::iter(&servers).for_each_concurrent(PROBES_MOST, async |server| {
            sleep(jitter.mul_f64(fastrand::f64())).await;
            let probe = timeout(health.timeout, server.probe(&health.path, Instant::now() + connect_timeout));
            let found = match probe.await {
                Ok(Ok(status)) if (200..400).contains(&status.as_u16()) => Ok(()),
                Ok(Ok(status)) => Err(format!("it answers {}", status.as_u16())),
                // That says nothing about the server.
                Ok(Err(Failure::Busy)) => return,
                Ok(Err(failure)) => Err(failure.cause()),
                Err(_) => Err("it takes too long to answer".to_owned()),
            };
            let url = server.url();
            match (server.condition.probed(found.is_ok(), &health), found) {
                (Some(true), _) => tracing::info!(upstream, server = %url, "up: it answers its probes"),
                (Some(false), Err(cause)) => tracing::warn!(upstream, server = %url, "down: {cause}"),
                _ => {}
            }
        });
        probes.await;
        jitter = health.interval.mul_f64(JITTER);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Percent;

    fn health(rise: u32, fall: u32) -> Health {
        let second = Duration::from_secs(1);
        Health { path: "/".parse().unwrap(), interval: second, timeout: second, rise, fall }
    }

    #[test]
    fn a_server_falls_and_rises_by_probes_in_a_row() {
        let (server, health) = (Condition::default(), health(2, 3));
        assert_eq!(server.probed(true, &health), None);
        let told = [false, false, true, false, false, false, true, false, true, true, true];
        let told = told.map(|is_good| server.probed(is_good, &health));
        let [n, down, up] = [None, Some(false), Some(true)];
        assert_eq!(told, [n, n, n, n, n, down, n, n, n, up, n]);
    }

    #[test]
    fn the_first_probe_of_all_suffices() {
        let server = Condition::default();
        assert!(server.is_up());
        assert_eq!(server.probed(false, &health(2, 3)), Some(false));
        assert!(!server.is_up());
    }

    fn servers<const N: usize>() -> [Arc<Server>; N] {
        std::array::from_fn(|port| Arc::new(Server::test(1 + port as u16)))
    }

    fn ejector(failures: u32, duration: Duration, most: u32) -> Ejector {
        Ejector::new(Eject { failures, duration, most: Percent(most) })
    }

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn failures_in_a_row_eject() {
        let (servers, ejector) = (servers::<2>(), ejector(3, LONG, 50));
        let bad = Ok(StatusCode::BAD_GATEWAY);
        for answered in [bad, bad, Ok(StatusCode::INTERNAL_SERVER_ERROR), bad, bad, Err(&Failure::Busy)] {
            ejector.note(&servers[0], answered, servers.iter());
            assert_eq!(servers[0].condition.ejected_for(), None);
        }
        ejector.note(&servers[0], Err(&Failure::ConnectTimeout), servers.iter());
        assert!(servers[0].condition.ejected_for().is_some_and(|left| left > LONG / 2));
    }

    #[test]
    fn only_a_share_is_ejected_at_a_time() {
        let out = |servers: &[Arc<Server>], most| {
            let ejector = ejector(1, LONG, most);
            for server in servers {
                ejector.note(server, Err(&Failure::ResponseTimeout), servers.iter());
            }
            servers.iter().filter(|server| server.condition.ejected_for().is_some()).count()
        };
        assert_eq!(out(&servers::<5>(), 50), 2);
        assert_eq!(out(&servers::<5>(), 100), 5);
        assert_eq!(out(&servers::<5>(), 0), 0);
        assert_eq!(out(&servers::<1>(), 50), 0);
    }

    #[test]
    fn an_ejected_server_comes_back_by_itself() {
        let (servers, ejector) = (servers::<1>(), ejector(1, Duration::from_millis(1), 100));
        ejector.note(&servers[0], Err(&Failure::ConnectTimeout), servers.iter());
        let since = std::time::Instant::now();
        while servers[0].condition.ejected_for().is_some() {
            assert!(since.elapsed() < LONG);
            std::thread::yield_now();
        }
    }
}
