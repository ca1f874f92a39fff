//! The number of log lines about events that clients cause, which is bounded.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

/// The most events logged within [`LOGGED_WITHIN`].
const LOGGED_MOST: usize = 10;
const LOGGED_WITHIN: Duration = Duration::from_secs(60);

/// The times of the last logged events, at most [`LOGGED_MOST`], and the number of unlogged ones since.
#[derive(Debug, Default)]
pub(crate) struct LogBudget {
    logged: VecDeque<Instant>,
    left_out: u64,
}

impl LogBudget {
    /// Notes an event. If it should be logged, returns the number of unlogged ones since the last logged one.
    pub(crate) fn note(&mut self, now: Instant) -> Option<u64> {
        if self.logged.len() == LOGGED_MOST {
            let oldest = self.logged.front().copied();
            if oldest.is_some_and(|oldest| now.saturating_duration_since(oldest) < LOGGED_WITHIN) {
                self.left_out += 1;
                return None;
            }
            self.logged.pop_front();
        }
        self.logged.push_back(now);
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_a_minute_are_logged_and_the_rest_counted() {
        let (now, mut log) = (Instant::now(), LogBudget::default());
        assert_eq!(log.note(now), Some(0));
        let later = now + LOGGED_WITHIN - Duration::from_secs(1);
        let results: Vec<_> = (0..12).map(|_| log.note(later)).collect();
        assert_eq!(results, [[Some(0); 9].as_slice(), &[None; 3]].concat());
        // The oldest of the ten has expired.
        assert_eq!(log.note(now + LOGGED_WITHIN), Some(3));
        assert_eq!(log.note(now + LOGGED_WITHIN), None);
    }
}
