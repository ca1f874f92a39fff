//! A bound on how often the store is asked although an answer is known, which may not be exact any more.

use std::time::Duration;

use tokio::time::Instant;

/// Questions that may be asked at once.
const BURST: u32 = 128;
/// The time in which one more may be asked.
const ONE_EVERY: Duration = Duration::from_millis(20);

/// Questions to the store that some buckets share: a burst, and then some each second. It belongs to the buckets and not to
/// a block, since a flood on a short window makes block after block.
#[derive(Default)]
pub(super) struct AskAllowance {
    /// The time at which all that was asked has been earned; `None` if nothing ever was.
    settled_at: Option<Instant>,
}

impl AskAllowance {
    /// Takes one question, if there is one left.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let settled_at = self.settled_at.map_or(now, |at| at.max(now)) + ONE_EVERY;
        let is_left = settled_at <= now + ONE_EVERY * BURST;
        if is_left {
            self.settled_at = Some(settled_at);
        }
        is_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_some_each_second() {
        let (mut allowance, now) = (AskAllowance::default(), Instant::now());
        let taken = |allowance: &mut AskAllowance, now| (0..1_000).filter(|_| allowance.take(now)).count();
        assert_eq!(taken(&mut allowance, now), 128);
        assert_eq!(taken(&mut allowance, now + Duration::from_secs(1)), 50);
        assert_eq!(taken(&mut allowance, now + Duration::from_secs(3_600)), 128);
    }
}
