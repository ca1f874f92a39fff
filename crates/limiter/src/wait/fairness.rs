//! Fair shares of a bucket for the gateways whose requests wait for it.
//!
//! Every gateway knows when the bucket will have room, and the first one to ask gets all of it. So each pauses before
//! it asks, and the longer, the more permits it got lately: over some windows all get the same, or all they want. A
//! gateway that finds the room taken asks for fewer permits at a time from then on, because permits that are granted
//! together expire together. Figures and rejected rules: docs/adr/0012-equal-shares-of-waiting-gateways.md.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::{
    algorithm::{Algorithm, Quota},
    text,
};

/// The number of shares that are kept, by the bucket's hash. Two buckets with one share pause a little longer.
const CELLS: usize = 1024;
/// The longest pause is this part of the time in which all permits of a bucket come back.
const PAUSE_PART: u32 = 40;
/// The longest pause, for any window.
const PAUSE_MOST: Duration = Duration::from_millis(25);
/// The factor of a share's square, which gives the part of the longest pause. The square makes a difference of a few
/// percent between a few gateways longer than timers are late.
const STEEPNESS: f64 = 3.0;
/// The part of the permits that a call asks for after another gateway took room.
const PIECES: u32 = 8;
/// The number of windows for which it does.
const CONTENDED_FOR: u32 = 3;

/// The shares that this gateway got of buckets lately.
pub(super) struct Fairness {
    cells: Box<[BucketShare]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct BucketShare {
    /// The part of the bucket's permits that was granted here, as of `at`. Its weight falls by e in a window.
    part: f64,
    at: Option<Instant>,
    /// The time until which others are taken to wait, too.
    contended_until: Option<Instant>,
}

/// The pace at which a gateway asks for its waiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AskPace {
    /// The time between the appearance of room and the call.
    pub(super) pause: Duration,
    /// The most permits that a call asks for.
    pub(super) permits: u64,
}

impl AskPace {
    /// The pace of a gateway that shares the bucket with nobody.
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
        let pause_most = PAUSE_MOST.min(refill(quota) / PAUSE_PART);
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

/// Returns the time in which all permits of a full bucket come back. Room that isn't used for longer is lost.
fn refill(quota: Quota) -> Duration {
    match quota.algorithm {
        Algorithm::Gcra { .. } => {
            window(quota).mul_f64(f64::from(quota.capacity()) / f64::from(quota.permits.max(1)))
        }
        _ => window(quota),
    }
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

    /// The room of one permit can't accumulate, so a pause loses it.
    #[test]
    fn a_small_burst_is_asked_for_sooner() {
        let rate = "10/1s".parse::<Rate>().unwrap();
        let (bucket, now) = (Bytes::from_static(b"b"), Instant::now());
        let pause = |burst| {
            let quota = Quota::new(Algorithm::Gcra { burst }, rate);
            let mut shares = Fairness::default();
            shares.granted(&bucket, quota, 10, now);
            shares.pace(&bucket, quota, now).pause
        };
        assert_eq!([pause(Some(1)), pause(None)], [2_500, 25_000].map(Duration::from_micros));
    }
}
