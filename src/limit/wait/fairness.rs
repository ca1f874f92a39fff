//! Fairness of buckets that several gateways wait for.
//!
//! All of them know when there will be room, and whoever asks first gets all of it. So a gateway asks the later, the
//! more of the bucket's permits it has got lately: after some windows all have got the same, or as much as they want.
//! One that finds the room taken by others takes it in smaller pieces from then on, since what is granted together
//! comes back together.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::{algorithm::Quota, text};

/// Buckets whose shares are told apart. Two that aren't only ask a little later.
const CELLS: usize = 1024;
/// The part of a window for which a gateway leaves the room to others, at most.
const PAUSE_PART: u32 = 40;
const PAUSE_MOST: Duration = Duration::from_millis(25);
/// What the square of a share is multiplied by: about the number of gateways among which small differences matter
/// most. A gateway with a third of the permits leaves the room for a third of the longest pause, and one with a tenth
/// more for half as long again.
const STEEPNESS: f64 = 3.0;
/// The part of the permits that it asks for in one call, if others have taken room from it lately.
const PIECES: u32 = 8;
/// For so many windows after that.
const CONTENDED_FOR: u32 = 3;

/// What this gateway has got of buckets lately.
pub(super) struct Fairness {
    cells: Box<[BucketShare]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct BucketShare {
    /// Of the bucket's permits, when it was last looked at; what was granted counts less the older it is.
    part: f64,
    at: Option<Instant>,
    contended_until: Option<Instant>,
}

/// How a gateway asks for its waiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AskPace {
    /// How long after the room has appeared.
    pub(super) pause: Duration,
    /// For how many permits at most, in one call.
    pub(super) permits: u64,
}

impl AskPace {
    /// Nobody else waits.
    pub(super) const ALONE: Self = Self { pause: Duration::ZERO, permits: u64::MAX };
}

impl Default for Fairness {
    fn default() -> Self {
        Self { cells: vec![BucketShare::default(); CELLS].into() }
    }
}

impl Fairness {
    /// Notes that waiters were granted so many permits.
    pub(super) fn granted(&mut self, bucket: &Bytes, quota: Quota, permits: u64, now: Instant) {
        let share = self.share(bucket);
        share.part = share.part_at(quota, now) + permits as f64 / f64::from(quota.permits.max(1));
        share.at = Some(now);
    }

    /// Notes that others had taken the room.
    pub(super) fn lost(&mut self, bucket: &Bytes, quota: Quota, now: Instant) {
        self.share(bucket).contended_until = Some(now + window(quota) * CONTENDED_FOR);
    }

    /// Returns how to ask for the next waiters.
    pub(super) fn pace(&mut self, bucket: &Bytes, quota: Quota, now: Instant) -> AskPace {
        let share = self.share(bucket);
        let pause_most = PAUSE_MOST.min(window(quota) / PAUSE_PART);
        let part = share.part_at(quota, now);
        let is_contended = share.contended_until.is_some_and(|until| now < until);
        AskPace {
            pause: pause_most.mul_f64((STEEPNESS * part * part).min(1.0)),
            permits: if is_contended { quota.permits.div_ceil(PIECES).into() } else { u64::MAX },
        }
    }

    fn share(&mut self, bucket: &Bytes) -> &mut BucketShare {
        &mut self.cells[text::hash(bucket) as usize % CELLS]
    }
}

impl BucketShare {
    fn part_at(&self, quota: Quota, now: Instant) -> f64 {
        let age = self.at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        self.part * (-age.as_secs_f64() / window(quota).as_secs_f64().max(1e-3)).exp()
    }
}

fn window(quota: Quota) -> Duration {
    Duration::from_micros(quota.window_us)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Rate;

    #[test]
    fn who_has_got_more_asks_later_and_who_was_robbed_in_pieces() {
        let quota = Quota::from("16/1s".parse::<Rate>().unwrap());
        let (mut shares, now) = (Fairness::default(), Instant::now());
        let bucket = Bytes::from_static(b"b");
        assert_eq!(shares.pace(&bucket, quota, now), AskPace::ALONE);
        shares.granted(&bucket, quota, 4, now);
        let quarter = shares.pace(&bucket, quota, now).pause;
        shares.granted(&bucket, quota, 12, now);
        let all = shares.pace(&bucket, quota, now).pause;
        assert_eq!([quarter, all], [Duration::from_nanos(4_687_500), Duration::from_millis(25)]);
        let later = shares.pace(&bucket, quota, now + Duration::from_secs(10)).pause;
        assert!(later < Duration::from_micros(10), "{later:?}");
        shares.lost(&bucket, quota, now);
        assert_eq!(shares.pace(&bucket, quota, now).permits, 2);
        assert_eq!(shares.pace(&bucket, quota, now + Duration::from_secs(4)).permits, u64::MAX);
    }
}
