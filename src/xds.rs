//! Rules that a management server sends by xDS, as Envoy Gateway does: one stream of the aggregated discovery service, state of
//! the world.
//!
//! Each response has all rules. They are accepted (ACK) once they are in use, or rejected with the reason (NACK); then those
//! before stay in use. If the stream ends, another one is opened, for ever. It brings the same rules again if they haven't
//! changed, which costs no reload.

mod messages;
mod rules;
mod stream;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use prost_types::Any;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep},
};
use tollgate_limiter::OnFailure;

use crate::{
    config::{RatelimitFolder, XdsSettings},
    outbound::Pauses,
};

use self::stream::Stream;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use self::{messages::RULES, rules::read as read_rules};

/// The pauses before a stream is opened again, or another response is read after one was rejected.
const STREAM_PAUSES: Pauses = Pauses { first: Duration::from_millis(500), most: Duration::from_secs(30) };
const RESPONSE_PAUSES: Pauses = Pauses { first: Duration::from_millis(200), most: Duration::from_secs(5) };

/// Rules that have arrived.
pub(crate) struct RulesUpdate {
    /// The rules.
    pub(crate) rules: RatelimitFolder,
    verdict: oneshot::Sender<Result<(), String>>,
}

impl RulesUpdate {
    /// Tells the server whether the rules are in use, or why not.
    pub(crate) fn conclude(self, outcome: Result<(), String>) {
        // Without a receiver, the stream has ended meanwhile.
        let _ = self.verdict.send(outcome);
    }
}

/// The rules that arrive from a management server.
pub(crate) struct RulesFeed {
    /// The updates, which end the feed when they are dropped.
    pub(crate) updates: mpsc::Receiver<RulesUpdate>,
    /// True while the last stream has not ended and has brought rules that could be used.
    pub(crate) is_up: Arc<AtomicBool>,
}

/// Starts to receive rules. Limits without a policy of their own have `on_failure`.
pub(crate) fn follow(settings: Arc<XdsSettings>, on_failure: OnFailure) -> RulesFeed {
    let (updates, receiver) = mpsc::channel(1);
    let feed = RulesFeed { updates: receiver, is_up: Arc::default() };
    let (accepted, is_up) = (String::new(), feed.is_up.clone());
    let mut follower = Follower { settings, on_failure, updates, accepted, in_use: None, failures: 0, is_up };
    tokio::spawn(async move {
        while !follower.updates.is_closed() {
            follower.follow().await;
        }
    });
    feed
}

struct Follower {
    settings: Arc<XdsSettings>,
    on_failure: OnFailure,
    updates: mpsc::Sender<RulesUpdate>,
    /// The last version that was accepted, possibly none.
    accepted: String,
    /// The hash of the rules in use.
    in_use: Option<[u8; 32]>,
    /// The number of streams in a row that have brought no new rules, and none that stayed in use for long.
    failures: u32,
    is_up: Arc<AtomicBool>,
}

impl Follower {
    /// Follows one stream to its end, and pauses.
    async fn follow(&mut self) {
        let begun = Instant::now();
        let Err(error) = self.follow_stream().await;
        // A server that ends each stream soon after it has sent the rules is one that fails.
        if self.is_up.swap(false, Relaxed) && begun.elapsed() > STREAM_PAUSES.most {
            self.failures = 0;
        }
        if self.failures == 0 {
            tracing::warn!("no rules from {}: {error}; trying again", self.settings.url);
        } else {
            tracing::debug!("no rules from {}: {error}", self.settings.url);
        }
        sleep(STREAM_PAUSES.after(self.failures)).await;
        self.failures = self.failures.saturating_add(1);
    }

    async fn follow_stream(&mut self) -> Result<std::convert::Infallible, String> {
        let mut stream = Stream::open(&self.settings).await?;
        stream.begin(&self.settings.node)?;
        let mut rejected = 0;
        loop {
            let response = stream.next().await?;
            if response.type_url != messages::RULES {
                return Err(format!("the response has the type `{}`", response.type_url));
            }
            let outcome = self.take(&response.resources).await;
            self.is_up.store(outcome.is_ok(), Relaxed);
            match outcome {
                Ok(()) => {
                    tracing::info!("rules of version `{}` are in use", response.version_info);
                    self.accepted = response.version_info;
                    rejected = 0;
                    stream.accept(&self.accepted, &response.nonce)?;
                }
                Err(reason) => {
                    tracing::error!("rules of version `{}` are rejected\n{reason}", response.version_info);
                    stream.reject(&self.accepted, &response.nonce, &reason)?;
                    // Many servers send the same again at once.
                    sleep(RESPONSE_PAUSES.after(rejected)).await;
                    rejected = rejected.saturating_add(1);
                }
            }
        }
    }

    /// Puts the rules of these resources to use, unless they are in use already.
    async fn take(&mut self, resources: &[Any]) -> Result<(), String> {
        let hash = rules::hash(resources);
        if self.in_use == Some(hash) {
            return Ok(());
        }
        let read = rules::read(resources, self.on_failure, self.settings.merges);
        let mut rules = read.map_err(|faults| faults.to_string())?;
        for (domain, keys) in &self.settings.reported {
            rules.mark_reported(domain, keys);
        }
        self.apply(rules).await?;
        (self.in_use, self.failures) = (Some(hash), 0);
        Ok(())
    }

    /// Hands rules over, and returns whether they are in use.
    async fn apply(&self, rules: RatelimitFolder) -> Result<(), String> {
        let (verdict, outcome) = oneshot::channel();
        let is_ending = |_| "the service is ending".to_owned();
        self.updates.send(RulesUpdate { rules, verdict }).await.map_err(|_| is_ending(()))?;
        outcome.await.map_err(|_| is_ending(()))?
    }
}
