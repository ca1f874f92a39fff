//! Bans after breach: refusals are counted by key in this process, and enough of them ban the key for all gateways.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use smallvec::smallvec;
use tollgate_limiter::{
    Ask, Key, Limiter, Origin, Rate, Standing,
    metrics::Counts,
    store::{Act, Charge, Operation, Reply, memory::MemoryStore},
};

use super::Rule;

/// Bytes that the refusals of a limit's keys take at most. Beyond it, those of new keys aren't counted.
const MOST_BYTES: usize = 4 << 20;

/// The refusals of a limit's keys, and the bans that they led to.
#[derive(Debug)]
pub(super) struct Breaches {
    refusals: OnceLock<MemoryStore>,
    bans: Counts,
}

impl Default for Breaches {
    fn default() -> Self {
        Self { refusals: OnceLock::new(), bans: Counts::new(1) }
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
        let (limiter, ask) = (limiter.clone(), ask.clone());
        tokio::spawn(async move {
            let (limit, key) = (ask.limit().name(), ask.key().as_str());
            match limiter.ban(&ask).await {
                Ok(_) => tracing::debug!("limit `{limit}`: key `{key}` is banned"),
                Err(error) => tracing::debug!("limit `{limit}`: key `{key}` may not be banned: {error}"),
            }
        });
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
