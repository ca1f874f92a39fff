//! What operators ask of a limiter: to look at a key, to reset it, to override rates. And the changes that other
//! gateways make, which it follows.

use std::{sync::Weak, time::Duration};

use bytes::Bytes;
use tokio::{
    sync::mpsc,
    time::{Instant, MissedTickBehavior, interval, sleep},
};

use crate::{
    Ask, Key, KeyState, Limit, Quota,
    overrides::Follows,
    store::{
        Charge, Placed, Store, StoreError,
        overrides::{Override, OverrideChange, SetWhen},
    },
};

use super::Limiter;

const POLL_EVERY: Duration = Duration::from_secs(1);
/// The longest time that a message takes to arrive after its change.
const TOLD_WITHIN: Duration = Duration::from_millis(50);
/// The deadline of a change. A person waits for it, longer than a request may.
pub(super) const OPERATOR_TIMEOUT: Duration = Duration::from_secs(2);

impl Limiter {
    /// Forgets which requests are refused without asking, as a changed configuration demands.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::Limiter;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// limiter.forget_refusals();
    /// # Ok(())
    /// # }
    /// ```
    pub fn forget_refusals(&self) {
        self.refusals.forget_all();
    }

    /// Looks up the use of a key's permits and when the cost of the ask fits, and writes nothing: see [`KeyState`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Limit, Limiter, Rate};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// let alice = Ask::new(&Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?)), "alice");
    /// limiter.try_acquire(&alice).await?;
    /// let state = limiter.peek(&alice).await?;
    /// assert_eq!((state.used(), state.remaining()), (1, 4));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The store gives no answer.
    pub async fn peek(&self, ask: &Ask) -> Result<KeyState, StoreError> {
        let mut asked = self.charged(ask);
        asked.charge.cost = asked.charge.cost.max(1);
        let is_overridden = self.overridden.of(&ask.limit, Some(&ask.key)).is_some();
        let (mut usage, is_by_network) = self.peek_at(&mut asked).await?;
        let banned_for = self.ban_of(&asked, Instant::now() + self.timeout).await?;
        // Nothing fits until the ban has ended.
        let banned_us = banned_for.map_or(0, |banned_for| banned_for.as_micros() as u64);
        usage.delay_us = usage.delay_us.map(|delay_us| delay_us.max(banned_us));
        let quota = asked.charge().quota;
        let is_overridden = is_overridden || usage.rate.is_some();
        Ok(KeyState { quota: quota.at(usage.rate), is_overridden, usage, is_by_network, banned_for })
    }

    /// Forgets what was counted for a key, and lifts its ban, here and for all gateways. Those that can't be told so may
    /// still refuse the key for five seconds.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Limit, Limiter, Rate};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// # let alice = Ask::new(&Arc::new(Limit::new("logins", "1/min".parse::<Rate>()?)), "alice");
    /// limiter.try_acquire(&alice).await?;
    /// limiter.reset(&alice).await?;
    /// limiter.try_acquire(&alice).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The store gives no answer: it may or may not have forgotten.
    pub async fn reset(&self, ask: &Ask) -> Result<(), StoreError> {
        let (charge, _) = self.charge(ask);
        let ban = ask.look_at_ban(&self.key_prefix);
        let deadline = Instant::now() + OPERATOR_TIMEOUT;
        for Charge { bucket, quota, .. } in [charge].into_iter().chain(ban) {
            self.local.reset(bucket.clone(), quota, deadline).await?;
            self.store.reset(bucket.clone(), quota, deadline).await?;
            if let Err(error) = self.forget_everywhere(&bucket, deadline).await {
                tracing::warn!(
                    "a key was reset, but other gateways couldn't be notified and may reject it for some seconds: {error}"
                );
            }
        }
        Ok(())
    }

    /// Forgets which requests of a bucket are refused without asking the store, here and in all gateways.
    pub(super) async fn forget_everywhere(
        &self,
        bucket: &Bytes,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        self.forget(bucket);
        self.store.tell(&self.overridden.names, reset_message(bucket), deadline).await
    }

    /// Sets what holds for a limit, or for one key of it, in place of its own rate, for all processes that use the
    /// store. The counts stay. A rate of no permits lets nothing pass. Returns true if the condition allowed it.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate_limiter::{Limit, Limiter, Override, Rate, SetWhen};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::connect("memory:")?;
    /// let logins = Limit::new("logins", "5/min".parse::<Rate>()?);
    /// // All keys of the limit get a higher rate for a day.
    /// let day = Some(Duration::from_secs(86_400));
    /// let more = Override { rate: "50/min".parse()?, scope: None, lasts: day };
    /// assert!(limiter.set_override(&logins, None, &more, SetWhen::IfAbsent).await?);
    /// assert_eq!(limiter.quota(&logins, None).permits, 50);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The store gives no answer: it may or may not have been set.
    pub async fn set_override(
        &self,
        limit: &Limit,
        key: Option<&Key>,
        set: &Override,
        when: SetWhen,
    ) -> Result<bool, StoreError> {
        if self.is_shared_with_java(limit) {
            return self.set_in_redisson(limit, key, set, when).await;
        }
        let (names, deadline) = (&self.overridden.names, Instant::now() + OPERATOR_TIMEOUT);
        let change = self.store.set_override(names, &field(limit, key), set, when, deadline).await?;
        self.note_own(change).await
    }

    /// Removes what was set for a limit, or for one key of it. Returns true if anything was.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::{Limit, Limiter, Override, Rate, SetWhen};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// let logins = Limit::new("logins", "5/min".parse::<Rate>()?);
    /// let more = Override { rate: "50/min".parse()?, scope: None, lasts: None };
    /// limiter.set_override(&logins, None, &more, SetWhen::Always).await?;
    /// assert!(limiter.unset_override(&logins, None).await?);
    /// assert!(!limiter.unset_override(&logins, None).await?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The store gives no answer: it may or may not have been removed.
    pub async fn unset_override(&self, limit: &Limit, key: Option<&Key>) -> Result<bool, StoreError> {
        if self.is_shared_with_java(limit) {
            return Err(StoreError::Unsupported(
                "Redisson knows one rate, which can't be removed: set the one that is to hold",
            ));
        }
        let (names, deadline) = (&self.overridden.names, Instant::now() + OPERATOR_TIMEOUT);
        let change = self.store.unset_override(names, &field(limit, key), deadline).await?;
        self.note_own(change).await
    }

    /// Returns the quota that holds now for a limit, or for one key of it, without the file's rates of single keys. For a
    /// limit that is shared with Redisson, it is the one that Redis had for any of its keys within the last minute.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::{Limit, Limiter, Rate};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// let logins = Limit::new("logins", "5/min".parse::<Rate>()?);
    /// assert_eq!(limiter.quota(&logins, None).to_string(), "5/min");
    /// # Ok(())
    /// # }
    /// ```
    pub fn quota(&self, limit: &Limit, key: Option<&Key>) -> Quota {
        let set = self.overridden.of(limit, key).map(|(rate, _)| rate);
        limit.quota.at(set.or_else(|| self.redis_rate(limit)))
    }

    /// Returns all overrides, by the name of the limit, or that and a key's text with a space between them.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::{Limit, Limiter, Override, Rate, SetWhen};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// let logins = Limit::new("logins", "5/min".parse::<Rate>()?);
    /// let set = Override { rate: "50/min".parse()?, scope: None, lasts: None };
    /// limiter.set_override(&logins, None, &set, SetWhen::Always).await?;
    /// assert_eq!(limiter.overrides().await?, [("logins".to_owned(), set)]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The store gives no answer.
    pub async fn overrides(&self) -> Result<Vec<(String, Override)>, StoreError> {
        let overrides =
            self.store.overrides(&self.overridden.names, Instant::now() + OPERATOR_TIMEOUT).await?;
        Ok(overrides.entries)
    }

    /// Returns the overrides that this process knows and applies, as [`Self::overrides`] does, without asking the store: those of
    /// its last answer, while it gives none.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::{Limit, Limiter, Override, Rate, SetWhen};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// let logins = Limit::new("logins", "5/min".parse::<Rate>()?);
    /// let set = Override { rate: "50/min".parse()?, scope: None, lasts: None };
    /// limiter.set_override(&logins, None, &set, SetWhen::Always).await?;
    /// assert_eq!(limiter.known_overrides(), [("logins".to_owned(), set)]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn known_overrides(&self) -> Vec<(String, Override)> {
        self.overridden.entries()
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
        let read = self.store.overrides(&self.overridden.names, Instant::now() + OPERATOR_TIMEOUT).await?;
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

/// The beginning of the message of a reset, before the bucket's name.
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
