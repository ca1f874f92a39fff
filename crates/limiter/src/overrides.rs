//! What holds in place of the file's rates: kept by the store, followed by this gateway.
//!
//! A change is told to all gateways on a channel, with the version before it: so a gateway that knows that one needs
//! nothing else of the store. Each asks for the version every second, in case a message was lost, and then reads all.
//! Requests look into what was read last, which costs nothing while nothing is overridden.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Release},
        },
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{
    sync::mpsc,
    time::{Instant, MissedTickBehavior, interval, sleep},
};

use crate::{
    algorithm::{Algorithm, Quota, Rate},
    store::{
        Placed, Store, StoreError, Usage,
        overrides::{Names, Override, OverrideChange, Overrides},
    },
};

use super::{Ask, Key, Limit, Limiter, Scope};

const POLL_EVERY: Duration = Duration::from_secs(1);
/// For how long after its change a message may be on its way.
const TOLD_WITHIN: Duration = Duration::from_millis(50);
/// A person waits for a change, and longer than a request may.
const PATIENCE: Duration = Duration::from_secs(2);

/// What holds, as far as this gateway knows.
#[derive(Debug)]
pub(super) struct Overridden {
    pub(super) names: Names,
    read: ArcSwap<Read>,
    /// Held to replace it by what follows from it.
    replacing: Mutex<()>,
    /// Whether there has ever been one: as long as there hasn't, requests look at nothing else.
    any_yet: AtomicBool,
}

/// What was read last: its version goes with it, since two may read at a time.
#[derive(Clone, Debug, Default)]
struct Read {
    version: u64,
    limits: HashMap<String, Arc<OfLimit>>,
}

#[derive(Clone, Debug, Default)]
struct OfLimit {
    own: Option<Held>,
    keys: HashMap<Arc<str>, Held>,
}

/// The place of a change in the order of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Follows {
    /// It was known.
    Known,
    /// It is the next one.
    Next,
    /// Others that came before it aren't known.
    Later,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    rate: Rate,
    scope: Option<Scope>,
    until: Option<Instant>,
}

impl Read {
    fn of(overrides: Overrides, now: Instant) -> Self {
        let mut read = Self { version: overrides.version, ..Self::default() };
        overrides.entries.into_iter().for_each(|(field, set)| read.set(&field, Some(set), now));
        read
    }

    fn set(&mut self, field: &str, set: Option<Override>, now: Instant) {
        let held = set.map(|Override { rate, scope, lasts }| Held {
            rate,
            scope,
            until: lasts.map(|lasts| now + lasts),
        });
        let (limit, key) = field.split_once(' ').map_or((field, None), |(limit, key)| (limit, Some(key)));
        let of_limit = Arc::make_mut(self.limits.entry(limit.to_owned()).or_default());
        match (key, held) {
            (None, held) => of_limit.own = held,
            (Some(key), Some(held)) => drop(of_limit.keys.insert(key.into(), held)),
            (Some(key), None) => drop(of_limit.keys.remove(key)),
        }
        if of_limit.own.is_none() && of_limit.keys.is_empty() {
            self.limits.remove(limit);
        }
    }
}

impl Held {
    /// The limit may have had another algorithm when it was set: what is no window of this one's isn't taken
    /// for one.
    fn rate_for(&self, own: Quota) -> Rate {
        let has_window = self.rate.window_us > 0 && own.algorithm != Algorithm::Concurrency;
        Rate { window_us: if has_window { self.rate.window_us } else { own.window_us }, ..self.rate }
    }
}

/// How much of a key's permits is in use, and what it is held to.
#[derive(Clone, Copy, Debug)]
pub struct KeyState {
    /// The quota that holds now.
    pub quota: Quota,
    /// Whether that is an override's.
    pub is_overridden: bool,
    /// What is in use.
    pub usage: Usage,
    /// Whether that is counted for the client's network and not for the key, as the limit has no memory for more keys.
    pub is_by_network: bool,
}

impl Overridden {
    pub(super) fn new(key_prefix: &str) -> Self {
        let (read, replacing, any_yet) = Default::default();
        Self { names: Names::new(key_prefix), read, replacing, any_yet }
    }

    fn version(&self) -> u64 {
        self.read.load().version
    }

    /// Notes a change. One that follows others that aren't known holds at once, but doesn't count as known: their
    /// messages are on their way, and its own behind them.
    fn note(&self, change: OverrideChange) -> Follows {
        let _replacing = self.replacing.lock();
        let read = self.read.load_full();
        if change.version <= read.version {
            return Follows::Known;
        }
        let follows = if change.before == read.version { Follows::Next } else { Follows::Later };
        let mut next = Read::clone(&read);
        if follows == Follows::Next {
            next.version = change.version;
        }
        next.set(&change.field, change.set, Instant::now());
        self.replace(next);
        follows
    }

    /// Notes all that the store had, which was asked when this version was known. What has been noted meanwhile may be
    /// later than that.
    fn note_all(&self, overrides: Overrides, asked_at: u64) {
        let _replacing = self.replacing.lock();
        let known = self.version();
        if known == asked_at || overrides.version >= known {
            self.replace(Read::of(overrides, Instant::now()));
        }
    }

    fn replace(&self, read: Read) {
        if !read.limits.is_empty() {
            self.any_yet.store(true, Release);
        }
        self.read.store(Arc::new(read));
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        let limits = self.read.load();
        limits.limits.values().map(|limit| usize::from(limit.own.is_some()) + limit.keys.len()).sum()
    }

    /// What an override says of a key, that of the key itself before that of the limit.
    pub(super) fn of(&self, limit: &Limit, key: Option<&Key>) -> Option<(Rate, Option<Scope>)> {
        if !self.any_yet.load(Acquire) {
            return None;
        }
        let read = self.read.load();
        let of_limit = read.limits.get(limit.name())?;
        let own = key.and_then(|key| of_limit.keys.get(key.as_str()));
        let mut held = own.into_iter().chain(&of_limit.own);
        let held = held.find(|held| held.until.is_none_or(|until| until > Instant::now()))?;
        let rate = held.rate_for(limit.quota);
        Quota::new(limit.quota.algorithm, rate).is_countable().then_some((rate, held.scope))
    }
}

impl Limiter {
    /// Forgets which requests are refused without asking, as a changed configuration demands.
    pub fn forget_refusals(&self) {
        self.refusals.forget_all();
    }

    /// Looks how much of a key's permits is in use and when the cost that is asked fits, and writes nothing.
    ///
    /// # Errors
    /// The store gives no answer.
    pub async fn peek(&self, ask: &Ask) -> Result<KeyState, StoreError> {
        let mut asked = self.asked(ask);
        asked.charge.cost = asked.charge.cost.max(1);
        let is_overridden = self.overridden.of(&ask.limit, Some(&ask.key)).is_some();
        let (usage, is_by_network) = self.peek_at(&mut asked).await?;
        Ok(KeyState { quota: asked.charge().quota, is_overridden, usage, is_by_network })
    }

    /// Forgets what was counted for a key, here and for all gateways. Those that can't be told so may still refuse
    /// the key for five seconds.
    ///
    /// # Errors
    /// The store gives no answer: it may or may not have forgotten.
    pub async fn reset(&self, ask: &Ask) -> Result<(), StoreError> {
        let (charge, _) = self.charge(ask);
        let deadline = Instant::now() + PATIENCE;
        self.local.reset(charge.bucket.clone(), charge.quota, deadline).await?;
        self.store.reset(charge.bucket.clone(), charge.quota, deadline).await?;
        self.forget(&charge.bucket);
        let told = self.store.tell(&self.overridden.names, reset_message(&charge.bucket), deadline).await;
        if let Err(error) = told {
            tracing::warn!(
                "a key was reset, but other gateways can't be told and may refuse it for some seconds: {error}"
            );
        }
        Ok(())
    }

    /// Sets what holds for a limit, or for one key of it, in place of the file's rate, for all gateways of the
    /// store. The counts stay. A rate of no permits lets nothing pass.
    ///
    /// # Errors
    /// The store gives no answer: it may or may not have been set.
    pub async fn set_rate(&self, limit: &Limit, key: Option<&Key>, set: &Override) -> Result<(), StoreError> {
        self.set(limit, key, set, false).await.map(drop)
    }

    /// As [`Self::set_rate`], but only if nothing was set. Says whether it has been.
    ///
    /// # Errors
    /// The store gives no answer: it may or may not have been set.
    pub async fn set_rate_if_absent(
        &self,
        limit: &Limit,
        key: Option<&Key>,
        set: &Override,
    ) -> Result<bool, StoreError> {
        self.set(limit, key, set, true).await
    }

    /// Removes what was set for a limit, or for one key of it. Says whether anything was.
    ///
    /// # Errors
    /// The store gives no answer: it may or may not have been removed.
    pub async fn unset_rate(&self, limit: &Limit, key: Option<&Key>) -> Result<bool, StoreError> {
        let (names, deadline) = (&self.overridden.names, Instant::now() + PATIENCE);
        let change = self.store.unset_override(names, &field(limit, key), deadline).await?;
        self.note_own(change).await
    }

    /// The quota that holds now for a limit, or for one key of it, but for what the file says of single keys.
    pub fn rate(&self, limit: &Limit, key: Option<&Key>) -> Quota {
        match self.overridden.of(limit, key) {
            Some((rate, _)) => Quota::new(limit.quota.algorithm, rate),
            None => limit.quota,
        }
    }

    /// All that was set, by the name of the limit, or that and a key's text with a space between them.
    ///
    /// # Errors
    /// The store gives no answer.
    pub async fn overrides(&self) -> Result<Vec<(String, Override)>, StoreError> {
        let overrides = self.store.overrides(&self.overridden.names, Instant::now() + PATIENCE).await?;
        Ok(overrides.entries)
    }

    async fn set(
        &self,
        limit: &Limit,
        key: Option<&Key>,
        set: &Override,
        if_absent: bool,
    ) -> Result<bool, StoreError> {
        let (names, deadline) = (&self.overridden.names, Instant::now() + PATIENCE);
        let change = self.store.set_override(names, &field(limit, key), set, if_absent, deadline).await?;
        self.note_own(change).await
    }

    /// Notes a change that this gateway has made. Returns whether there is one.
    async fn note_own(&self, change: Option<OverrideChange>) -> Result<bool, StoreError> {
        let Some(change) = change else { return Ok(false) };
        let follows = self.overridden.note(change);
        self.forget_all();
        // Nobody tells of others' changes in this process.
        if follows == Follows::Later && matches!(*self.store, Store::Memory(_)) {
            self.read_overrides().await?;
        }
        Ok(true)
    }

    /// Reads all that holds now.
    async fn read_overrides(&self) -> Result<(), StoreError> {
        let asked_at = self.overridden.version();
        let read = self.store.overrides(&self.overridden.names, Instant::now() + PATIENCE).await?;
        self.overridden.note_all(read, asked_at);
        self.forget_all();
        Ok(())
    }

    /// Follows the changes that others make, for as long as the limiter lives.
    pub(super) async fn follow_changes(limiter: Weak<Self>) {
        let Some(first) = limiter.upgrade() else { return };
        let Some(mut messages) = first.store.changes(&first.overridden.names) else { return };
        drop(first);
        let mut polls = interval(POLL_EVERY);
        polls.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let message = tokio::select! {
                message = messages.recv() => message,
                _ = polls.tick() => None,
            };
            let Some(limiter) = limiter.upgrade() else { return };
            // A store that is away is asked again in a second.
            let _ = match message {
                Some(message) => limiter.follow(&message).await,
                None => limiter.look_for_changes(&mut messages).await,
            };
        }
    }

    async fn follow(&self, message: &[u8]) -> Result<(), StoreError> {
        if let Some(bucket) = message.strip_prefix(RESET) {
            self.forget(&Bytes::copy_from_slice(bucket));
            return Ok(());
        }
        let change = str::from_utf8(message).ok().and_then(OverrideChange::read);
        match change.map(|change| self.overridden.note(change)) {
            Some(Follows::Known) => Ok(()),
            Some(Follows::Next) => {
                self.forget_all();
                Ok(())
            }
            // Messages were lost, or another version of this program has sent it.
            Some(Follows::Later) | None => self.read_overrides().await,
        }
    }

    /// Reads what holds if the store has another version of it than is known, of which no message tells.
    async fn look_for_changes(&self, messages: &mut mpsc::Receiver<Bytes>) -> Result<(), StoreError> {
        let (names, deadline) = (&self.overridden.names, Instant::now() + POLL_EVERY);
        let version = self.store.overrides_version(names, deadline).await?;
        let known = self.overridden.version();
        if version == known {
            return Ok(());
        }
        if known > 0 {
            sleep(TOLD_WITHIN).await;
            while let Ok(message) = messages.try_recv() {
                self.follow(&message).await?;
            }
        }
        if self.overridden.version() == known { self.read_overrides().await } else { Ok(()) }
    }
}

/// Reads the rate of an override for a limit: as in the file, or `0` to let nothing pass.
///
/// # Errors
/// A message and, on a line of its own, the remedy.
pub fn read_rate(limit: &Limit, text: &str) -> Result<Rate, String> {
    let own = limit.quota.rate();
    let rate = match (text, limit.quota.algorithm) {
        ("0", _) => Rate { permits: 0, ..own },
        (_, Algorithm::Concurrency) => {
            // In whatever time, its bounds are those of a rate.
            let rate = format!("{text}/s").parse::<Rate>();
            let rate = rate
                .map_err(|_| format!("`{text}` isn't how many may run at a time\nwrite a number: \"20\""))?;
            Rate { window_us: 0, ..rate }
        }
        _ => text.parse()?,
    };
    let quota = Quota::new(limit.quota.algorithm, rate);
    if !quota.is_countable() {
        return Err(format!("`{text}` is more than `gcra` can count exactly\nuse a shorter time"));
    }
    Ok(rate)
}

/// What the message of a reset begins with, before the bucket's name.
const RESET: &[u8] = b"reset ";

fn reset_message(bucket: &Bytes) -> Bytes {
    [RESET, bucket].concat().into()
}

/// The field of the store's table.
fn field(limit: &Limit, key: Option<&Key>) -> String {
    match key {
        Some(key) => format!("{} {}", limit.name(), key.as_str()),
        None => limit.name().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overridden(rate: &str) -> Overridden {
        let held = Held { rate: rate.parse().unwrap(), scope: None, until: None };
        let of_limit = Arc::new(OfLimit { own: Some(held), ..OfLimit::default() });
        let overridden = Overridden::new("t");
        overridden.replace(Read { version: 1, limits: HashMap::from([("l".to_owned(), of_limit)]) });
        overridden
    }

    /// A lease of a millisecond would end before it is renewed.
    #[test]
    fn the_window_of_a_rate_is_no_lease() {
        let limit = Limit::new("l", Quota::concurrency(5));
        let rate = Rate { permits: 7, window_us: 30_000_000 };
        assert_eq!(overridden("7/1ms").of(&limit, None), Some((rate, None)));
    }

    #[test]
    fn a_rate_that_the_algorithm_cannot_count_does_not_hold() {
        let gcra = |burst| {
            let quota = Quota::new(Algorithm::Gcra { burst }, "5/s".parse().unwrap());
            overridden("1000000/366d").of(&Limit::new("l", quota), None)
        };
        assert!(gcra(Some(7)).is_some());
        assert_eq!(gcra(None), None);
    }
}
