//! The keys that an issuer publishes at a URL, and the requests that wait for them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout},
};
use tollgate_limiter::metrics::{CountsByWord, Page};

use super::VerificationKey;
use crate::config::{self, JwksUrl, JwtKey};

/// The shortest time between two fetches for unknown key IDs, which any client can invent.
const PAUSE: Duration = Duration::from_secs(30);
/// The longest time that a request waits for a fetch.
const WAIT_MOST: Duration = Duration::from_secs(6);

/// The outcome of a fetch that succeeded, and of one that failed, as metrics name them.
const OUTCOMES: [&str; 2] = ["ok", "failed"];

/// The keys of an issuer, as they were last fetched.
#[derive(Debug)]
pub(crate) struct FetchedKeys {
    settings: Arc<config::JwtSettings>,
    url: Arc<JwksUrl>,
    /// `None` until the first fetch has succeeded.
    current: ArcSwapOption<KeySet>,
    progress: watch::Sender<FetchProgress>,
    wanted: Notify,
    /// True if another configuration has replaced the one of these keys.
    is_retired: AtomicBool,
    /// The fetches by outcome. They outlive reloads that leave the URL.
    fetches: Arc<CountsByWord>,
}

#[derive(Debug)]
struct KeySet {
    published: Vec<JwtKey>,
    keys: Arc<Vec<VerificationKey>>,
}

/// The progress of fetches.
#[derive(Debug, Default)]
struct FetchProgress {
    /// The number of fetches that have ended.
    ended: u64,
    /// True while a fetch is in flight, or is about to begin.
    is_running: bool,
    /// The time of the last fetch for an unknown key ID.
    wanted_at: Option<Instant>,
}

impl FetchedKeys {
    /// Creates the keys, whose first fetch is about to begin. Until it succeeds, the keys of the one `before` are kept.
    pub(super) fn new(
        settings: &Arc<config::JwtSettings>,
        url: &Arc<JwksUrl>,
        before: Option<&Arc<Self>>,
    ) -> Arc<Self> {
        let fetched = Self {
            settings: settings.clone(),
            url: url.clone(),
            current: ArcSwapOption::empty(),
            progress: watch::Sender::new(FetchProgress { is_running: true, ..FetchProgress::default() }),
            wanted: Notify::new(),
            is_retired: AtomicBool::new(false),
            fetches: before
                .map_or_else(|| Arc::new(CountsByWord::of(&OUTCOMES)), |before| before.fetches.clone()),
        };
        if let Some(known) = before.and_then(|before| before.current.load_full()) {
            fetched.install(known.published.clone());
        }
        Arc::new(fetched)
    }

    /// Returns the URL of the keys.
    pub(crate) fn url(&self) -> &Arc<JwksUrl> {
        &self.url
    }

    /// Returns the keys. `None` if none were fetched yet.
    pub(super) fn keys(&self) -> Option<Arc<Vec<VerificationKey>>> {
        self.current.load().as_ref().map(|set| set.keys.clone())
    }

    /// Replaces the keys by those that the issuer publishes. Returns true if they are others.
    pub(crate) fn install(&self, published: Vec<JwtKey>) -> bool {
        let is_same = self.current.load().as_ref().is_some_and(|set| set.published == published);
        if !is_same {
            let keys =
                Arc::new(published.iter().map(|key| VerificationKey::new(&self.settings, key)).collect());
            self.current.store(Some(Arc::new(KeySet { published, keys })));
        }
        !is_same
    }

    /// Notes that a fetch begins.
    pub(crate) fn begin(&self) {
        self.progress.send_modify(|progress| progress.is_running = true);
    }

    /// Counts a fetch that succeeded or failed.
    pub(crate) fn count<T, E>(&self, fetched: &Result<T, E>) {
        let [ok, failed] = OUTCOMES;
        self.fetches.add(if fetched.is_ok() { ok } else { failed });
    }

    /// Writes the number of fetches.
    pub(crate) fn write_metrics(&self, page: &mut Page<'_>) {
        page.counters(
            "tollgate_jwks_fetches",
            "Fetches of the keys that the token issuer publishes, by outcome",
            self.fetches.iter().map(|(outcome, count)| ([("outcome", outcome)], count)),
        );
    }

    /// Notes that a fetch has ended, and wakes the requests that wait for it.
    pub(crate) fn end(&self) {
        self.progress.send_modify(|progress| {
            progress.is_running = false;
            progress.ended += 1;
        });
    }

    /// Ends the refreshes, because another configuration replaces the one of these keys. Only requests that are still in flight
    /// cause fetches from now on.
    pub(crate) fn retire(&self) {
        self.is_retired.store(true, Relaxed);
    }

    /// Returns true if the keys aren't refreshed any more.
    pub(crate) fn is_retired(&self) -> bool {
        self.is_retired.load(Relaxed)
    }

    /// Waits until a request needs a fetch.
    pub(crate) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Returns a future that is ready when the fetch in flight has ended. For an unknown key ID it starts one, if the last such
    /// fetch was at least [`PAUSE`] ago. `None` if there is no fetch to wait for.
    pub(super) fn next_fetch(&self, is_key_unknown: bool) -> Option<impl Future<Output = ()> + Send + use<>> {
        let mut seen = None;
        self.progress.send_if_modified(|progress| {
            let is_due = progress.wanted_at.is_none_or(|at| at.elapsed() >= PAUSE);
            if is_key_unknown && is_due && !progress.is_running {
                *progress = FetchProgress {
                    is_running: true,
                    wanted_at: Some(Instant::now()),
                    ended: progress.ended,
                };
                self.wanted.notify_one();
            }
            seen = progress.is_running.then_some(progress.ended);
            false
        });
        let (seen, mut progress) = (seen?, self.progress.subscribe());
        Some(async move {
            // If nobody fetches any more, or not in time, the keys are as they are.
            let _ = timeout(WAIT_MOST, progress.wait_for(|progress| progress.ended > seen)).await;
        })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use hyper::http::uri::PathAndQuery;

    use super::*;
    use crate::config::ServerUrl;

    fn unfetched() -> Arc<FetchedKeys> {
        let server = ServerUrl::Tcp { tls: false, host: "127.0.0.1".to_owned(), port: 1 };
        let target = PathAndQuery::from_static("/");
        let url = Arc::new(JwksUrl { server, target, tls: None, refresh: Duration::from_secs(300) });
        let published = Some(url.clone());
        let settings = config::JwtSettings { keys: vec![], published, issuers: vec![], audiences: vec![] };
        FetchedKeys::new(&Arc::new(settings), &url, None)
    }

    #[tokio::test(start_paused = true)]
    async fn an_unknown_key_is_fetched_for_at_most_every_half_minute() {
        let fetched = unfetched();
        let first = fetched.next_fetch(false).expect("the first fetch is to begin");
        fetched.end();
        first.await;
        assert!(fetched.next_fetch(false).is_none() && fetched.wanted().now_or_never().is_none());
        let mut fetches = 0;
        for _ in 0..600 {
            if let Some(fetch) = fetched.next_fetch(true) {
                assert!(fetched.wanted().now_or_never().is_some());
                assert!(fetched.next_fetch(true).is_some(), "others wait for the same fetch");
                fetches += 1;
                fetched.end();
                fetch.await;
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(fetches, 20);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_forever() {
        let fetched = unfetched();
        let begun = Instant::now();
        fetched.next_fetch(false).expect("a fetch").await;
        assert_eq!(begun.elapsed(), WAIT_MOST);
        assert!(fetched.keys().is_none());
    }
}
