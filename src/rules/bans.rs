//! Bans after breach: refusals are counted by key in this process, and enough of them ban the key for all gateways.

use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::try_join_all;
use parking_lot::Mutex;
use smallvec::smallvec;
use tokio::time::Instant;
use tollgate_limiter::{
    Ask, Key, Limiter, Origin, Rate, Standing, StoreError, duration,
    metrics::Counts,
    store::{Act, Charge, Operation, Reply, memory::MemoryStore},
};

use super::Rule;
use crate::log_budget::LogBudget;

/// Bytes that the refusals of a limit's keys take at most. Beyond it, those of new keys aren't counted.
const MOST_BYTES: usize = 4 << 20;
/// The most bans of a limit to list.
const LISTED_MOST: usize = 100;

/// The refusals of a limit's keys, and the bans that they led to.
#[derive(Debug)]
pub(super) struct Breaches {
    refusals: OnceLock<MemoryStore>,
    bans: Counts,
    /// The last bans, the latest first, at most [`LISTED_MOST`].
    last: Mutex<VecDeque<LastBan>>,
    log: Mutex<LogBudget>,
}

/// A ban that this process gave.
#[derive(Debug)]
struct LastBan {
    key: Key,
    /// The time at which it ends at the latest.
    ends: Instant,
}

impl Default for Breaches {
    fn default() -> Self {
        Self {
            refusals: OnceLock::new(),
            bans: Counts::new(1),
            last: Mutex::default(),
            log: Mutex::default(),
        }
    }
}

impl Breaches {
    /// Counts a refusal. Returns true if there have been as many as this, and forgets them then.
    fn note(&self, key: &Key, after: Rate) -> bool {
        let refusals = self.refusals.get_or_init(|| MemoryStore::new(MOST_BYTES));
        let (bucket, quota) = (Bytes::copy_from_slice(key.as_str().as_bytes()), after.into());
        let charge = Charge { bucket: bucket.clone(), quota, cost: 1, shadow: false };
        let counted = refusals.operate(&Operation::Take(smallvec![charge]));
        let is_breach =
            matches!(counted, Ok(Reply::Decision(decision)) if decision.outcomes[0].remaining == 0);
        if is_breach {
            // A store in this process never fails to forget.
            let _ = refusals.operate(&Operation::On { bucket, quota, act: Act::Reset });
            self.bans.add(0);
        }
        is_breach
    }

    /// Returns the number of bans.
    pub(super) fn bans(&self) -> u64 {
        self.bans.sum(0)
    }

    /// Lists a ban, and logs it if there is room in the log.
    fn note_ban(&self, limit: &str, key: &Key, lasts: Duration) {
        let now = Instant::now();
        {
            let mut last = self.last.lock();
            last.retain(|ban| ban.key != *key && ban.ends > now);
            last.truncate(LISTED_MOST - 1);
            last.push_front(LastBan { key: key.clone(), ends: now + lasts });
        }
        let left_out = self.log.lock().note(now);
        let Some(left_out) = left_out else { return };
        let left_out = match left_out {
            0 => String::new(),
            left_out => format!("; {left_out} earlier bans of this limit were not logged"),
        };
        let (key, lasts) = (key.as_str(), duration::DurationText(lasts.as_micros() as u64));
        tracing::info!("limit `{limit}`: key `{key}` is banned for {lasts}{left_out}");
    }

    /// Returns the keys of the last bans that may last still, the latest first.
    fn last_banned(&self) -> Vec<Key> {
        let now = Instant::now();
        let last = self.last.lock();
        last.iter().filter(|ban| ban.ends > now).map(|ban| ban.key.clone()).collect()
    }
}

impl Rule {
    /// Counts a refusal of the key of an ask, and bans the key after enough of them. Refusals by the ban itself, or because
    /// there is no store, don't count.
    pub(super) fn note_breach(&self, limiter: &Arc<Limiter>, ask: &Ask, standing: &Standing) {
        let Some(ban) = &self.config.ban else { return };
        let is_of_limit =
            matches!(standing.origin, Origin::Store | Origin::LocalRefusal | Origin::FallbackLocal);
        // What never fits says nothing about how much is asked.
        let is_breach = is_of_limit && standing.refuses() && standing.outcome.delay_us.is_some();
        if !is_breach || !self.tally.breaches.note(ask.key(), ban.after) {
            return;
        }
        let (limiter, ask, tally, lasts) = (limiter.clone(), ask.clone(), self.tally.clone(), ban.lasts);
        tokio::spawn(async move {
            let (limit, key) = (ask.limit().name(), ask.key());
            match limiter.ban(&ask).await {
                Ok(true) => tally.breaches.note_ban(limit, key, lasts),
                Ok(false) => {}
                Err(error) => {
                    let key = key.as_str();
                    tracing::debug!("limit `{limit}`: key `{key}` may not be banned: {error}");
                }
            }
        });
    }

    /// Returns the keys that this process has banned and that are banned still, each with the time until its ban ends: the
    /// latest first, and no more than the last [`LISTED_MOST`]. To look for those that other processes gave would mean to
    /// search all keys of the store.
    ///
    /// # Errors
    /// The store gives no answer.
    pub(crate) async fn last_bans(&self, limiter: &Limiter) -> Result<Vec<(Key, Duration)>, StoreError> {
        if self.config.ban.is_none() {
            return Ok(Vec::new());
        }
        let look = |key: Key| async move {
            let left = limiter.banned_for(&Ask::new(&self.limit, key.clone())).await?;
            Ok::<_, StoreError>(left.map(|left| (key, left)))
        };
        let found = try_join_all(self.tally.breaches.last_banned().into_iter().map(look)).await?;
        Ok(found.into_iter().flatten().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_refusals_as_stated_are_a_breach() {
        let (breaches, after) = (Breaches::default(), "3/h".parse().unwrap());
        let noted = |key: &str| breaches.note(&Key::caller(key), after);
        assert_eq!(
            [noted("a"), noted("a"), noted("b"), noted("a"), noted("b")],
            [false, false, false, true, false]
        );
        // They are forgotten with it.
        assert_eq!([noted("a"), noted("a"), noted("a")], [false, false, true]);
        assert_eq!(breaches.bans(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_bans_are_listed_until_they_end() {
        let (breaches, lasts) = (Breaches::default(), Duration::from_secs(60));
        let listed = || breaches.last_banned().iter().map(|key| key.as_str().to_owned()).collect::<Vec<_>>();
        let ban = |key: &str| breaches.note_ban("l", &Key::caller(key), lasts);
        let text = |key: &str| Key::caller(key).as_str().to_owned();
        ["a", "b", "a"].into_iter().for_each(ban);
        assert_eq!(listed(), ["a", "b"].map(text));
        tokio::time::advance(lasts / 2).await;
        (0..200).for_each(|key| ban(&key.to_string()));
        assert_eq!(
            (listed().len(), listed()[0].clone(), listed()[99].clone()),
            (100, text("199"), text("100"))
        );
        tokio::time::advance(lasts).await;
        assert_eq!(listed(), [""; 0]);
        ban("c");
        assert_eq!(breaches.last.lock().len(), 1, "those that have ended are forgotten");
    }

    #[test]
    fn refusals_of_invented_keys_take_no_more_than_their_bound() {
        let (breaches, after) = (Breaches::default(), "3/h".parse().unwrap());
        for key in 0..50_000 {
            breaches.note(&Key::caller(&key.to_string()), after);
        }
        let bytes = breaches.refusals.get().unwrap().bytes();
        assert!((MOST_BYTES / 2..=MOST_BYTES).contains(&bytes), "{bytes}");
    }
}
