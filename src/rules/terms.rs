//! The terms of a limit for a request.

use tollgate_limiter::{Ask, Asks, Refusal};

/// The terms of a limit for a request, known before anything is counted.
#[derive(Debug)]
pub enum Terms {
    /// The request is counted by these asks, one for each key that servers may read in it.
    Counts(Asks),
    /// The request is exempt.
    Exempts {
        /// The place of the entry that exempts it, in the limit's `exempt`. A log that is replayed doesn't tell it.
        entry: Option<usize>,
    },
    /// The request lacks the key, so it isn't counted.
    Skips,
    /// The request can't be counted, so it is refused, unless the limit only shadows.
    Refuses(Refusal),
}

impl Terms {
    /// Combines the terms of a limit for two readings of a request: a refusal prevails, then keys, then that the limit skips it. It is
    /// exempt if both are.
    ///
    /// A key that both have is counted once, at the higher cost.
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Counts(mut asks), Self::Counts(others)) => {
                let cost = |ask: &Ask| (ask.permits(), ask.settles());
                for other in others {
                    match asks.iter().position(|ask| ask.key() == other.key()) {
                        None => asks.push(other.reading(asks.len() as u16)),
                        Some(at) if cost(&asks[at]) < cost(&other) => asks[at] = other.reading(at as u16),
                        Some(_) => {}
                    }
                }
                Self::Counts(asks)
            }
            (one, Self::Exempts { .. }) | (Self::Exempts { .. }, one) => one,
            (one, Self::Skips) | (Self::Skips, one) => one,
            (Self::Counts(_), refused) | (refused, _) => refused,
        }
    }
}
