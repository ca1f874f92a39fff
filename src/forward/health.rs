//! Health of servers: active probes, and ejection after failed requests.
//!
//! One task in the process probes the servers of an upstream. Consecutive failures of requests are counted as they happen; a server
//! with too many is ejected for a while. Because ejection is a guess, it takes at most a share of the servers, and if no other
//! server is left, ejected ones are used. A server that fails its probes gets no requests.

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

use super::{Failure, pool::UpstreamServer};

/// The most probes of an upstream in flight.
const PROBES_MOST: usize = 64;
/// The part of an interval over which the probes of a round are spread, so that gateways that started together don't probe at
/// the same time.
const JITTER: f64 = 0.1;

/// The health of a server.
#[derive(Debug, Default)]
pub struct Condition {
    is_down: AtomicBool,
    /// Consecutive probes that contradict the current state, and whether there was any probe.
    contrary: AtomicU32,
    was_probed: AtomicBool,
    /// Consecutive failed requests.
    failures: AtomicU32,
    /// The end of the ejection in milliseconds of [`now_ms`]; 0 if the server isn't ejected.
    ejected_until_ms: AtomicU64,
}

impl Condition {
    /// Returns false if probes have found the server down.
    pub fn is_up(&self) -> bool {
        !self.is_down.load(Relaxed)
    }

    /// Returns the rest of the ejection, if the server is ejected.
    pub fn ejected_for(&self) -> Option<Duration> {
        match self.ejected_until_ms.load(Relaxed) {
            0 => None,
            until_ms => until_ms.checked_sub(now_ms()).filter(|left| *left > 0).map(Duration::from_millis),
        }
    }

    /// Records a probe. Returns the new state if it changes: up or down.
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

    /// Resets the result of probes, because probing has ended.
    pub fn forget_probes(&self) {
        self.is_down.store(false, Relaxed);
        self.was_probed.store(false, Relaxed);
        self.contrary.store(0, Relaxed);
    }

    /// Records how an exchange ended. Returns true if that was the given number of consecutive failures.
    fn ended(&self, has_failed: bool, most: u32) -> bool {
        if has_failed {
            return self.failures.fetch_add(1, Relaxed) + 1 >= most;
        }
        // Reading first avoids writes to a shared cache line while requests succeed.
        if self.failures.load(Relaxed) > 0 {
            self.failures.store(0, Relaxed);
        }
        false
    }
}

/// Returns milliseconds since a fixed time in the past; never 0.
fn now_ms() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_millis() as u64 + 1
}

/// Ejects failing servers of an upstream.
#[derive(Debug)]
pub struct Ejector {
    terms: Eject,
    /// Held while a server is ejected, so that two ejections at once can't exceed the maximum share.
    ejecting: Mutex<()>,
}

impl Ejector {
    /// Returns an ejector with these settings.
    pub fn new(terms: Eject) -> Self {
        Self { terms, ejecting: Mutex::new(()) }
    }

    /// Records how an exchange with a server ended, and ejects the server if necessary.
    pub fn note<'s>(
        &self,
        server: &UpstreamServer,
        answered: Result<StatusCode, &Failure>,
        all: impl Iterator<Item = &'s Arc<UpstreamServer>>,
    ) {
        let Some(has_failed) = has_failed(answered) else { return };
        if server.condition.ended(has_failed, self.terms.failures) {
            self.eject(server, all);
        }
    }

    fn eject<'s>(&self, server: &UpstreamServer, all: impl Iterator<Item = &'s Arc<UpstreamServer>>) {
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
        let failures = match self.terms.failures {
            1 => "a failure".to_owned(),
            many => format!("{many} failures in a row"),
        };
        tracing::warn!(server = %server.url(), "ejected for {:?} after {failures}", self.terms.duration);
    }
}

/// Returns whether a result is a failure of the server, or `None` if it shows nothing about the server.
///
/// As in Envoy, 502, 503 and 504 are failures: they come from a proxy in front of a dead service, or from a service that rejects
/// load. A 500 comes from the application and may be caused by the request.
fn has_failed(answered: Result<StatusCode, &Failure>) -> Option<bool> {
    match answered {
        Ok(status) => Some(matches!(status.as_u16(), 502..=504)),
        Err(failure) => failure.is_of_server().then_some(true),
    }
}

/// Probes servers periodically, until the future is dropped.
pub async fn probe(
    upstream: String,
    servers: Vec<Arc<UpstreamServer>>,
    health: Health,
    connect_timeout: Duration,
) {
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
                Ok(Ok(status)) => Err(format!("the probe was answered with status {}", status.as_u16())),
                Ok(Err(failure)) => Err(failure.cause()),
                Err(_) => Err("the probe timed out".to_owned()),
            };
            let url = server.url();
            match (server.condition.probed(found.is_ok(), &health), found) {
                (Some(true), _) => tracing::info!(upstream, server = %url, "up: probes succeed"),
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
        let changes = [false, false, true, false, false, false, true, false, true, true, true];
        let changes = changes.map(|is_good| server.probed(is_good, &health));
        let [n, down, up] = [None, Some(false), Some(true)];
        assert_eq!(changes, [n, n, n, n, n, down, n, n, n, up, n]);
    }

    #[test]
    fn the_first_probe_of_all_suffices() {
        let server = Condition::default();
        assert!(server.is_up());
        assert_eq!(server.probed(false, &health(2, 3)), Some(false));
        assert!(!server.is_up());
    }

    fn servers<const N: usize>() -> [Arc<UpstreamServer>; N] {
        std::array::from_fn(|port| Arc::new(UpstreamServer::test(1 + port as u16)))
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
        let out = |servers: &[Arc<UpstreamServer>], most| {
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
