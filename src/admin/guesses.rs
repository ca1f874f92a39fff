//! Wrong tokens. After several in a row, a peer gets 429 for further ones for a while, and only some of them are
//! logged. The right token is always accepted, so an attacker can't lock an operator out.
//!
//! Peers are counted in a table of fixed size, at the index of a keyed hash. Peers with the same index share only the
//! 429 for their wrong tokens.

use std::{
    collections::hash_map::RandomState,
    hash::BuildHasher,
    net::{IpAddr, SocketAddr},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::log_budget::LogBudget;

const PLACES: usize = 1_024;
/// The number of wrong tokens in a row that get 401. For a while, further ones get 429.
const IN_A_ROW_MOST: u32 = 5;
const WHILE: Duration = Duration::from_secs(60);

/// The wrong tokens of all peers.
pub(super) struct Guesses {
    hasher: RandomState,
    places: Mutex<Vec<Guesser>>,
    log: Mutex<LogBudget>,
    count: AtomicU64,
}

/// A peer that may have sent wrong tokens.
#[derive(Clone, Copy, Default)]
struct Guesser {
    in_a_row: u32,
    blocked_until: Option<Instant>,
}

impl Guesses {
    /// Returns an empty record.
    pub(super) fn new() -> Self {
        Self {
            hasher: RandomState::new(),
            places: Mutex::new(vec![Guesser::default(); PLACES]),
            log: Mutex::default(),
            count: AtomicU64::new(0),
        }
    }

    /// Returns the number of wrong tokens.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Notes that a peer knows the token.
    pub(super) fn note_right(&self, peer: SocketAddr) {
        self.places.lock()[self.place(peer)] = Guesser::default();
    }

    /// Notes and logs a wrong token. After too many in a row it returns how long the peer should wait.
    pub(super) fn note_wrong(&self, peer: SocketAddr, now: Instant) -> Option<Duration> {
        self.count.fetch_add(1, Relaxed);
        let left_out = self.log.lock().note(now);
        match left_out {
            Some(0) => tracing::warn!(%peer, "wrong admin token"),
            Some(left_out) => {
                tracing::warn!(%peer, "wrong admin token; {left_out} earlier ones were not logged");
            }
            None => {}
        }
        self.places.lock()[self.place(peer)].note_wrong(now)
    }

    /// Returns the index of a peer. It ignores the last 64 bits of an IPv6 address, since a client usually has a /64.
    fn place(&self, peer: SocketAddr) -> usize {
        let network = match peer.ip().to_canonical() {
            IpAddr::V4(address) => u64::from(address.to_bits()),
            IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
        };
        (self.hasher.hash_one(network) % PLACES as u64) as usize
    }
}

impl Guesser {
    fn note_wrong(&mut self, now: Instant) -> Option<Duration> {
        if let Some(until) = self.blocked_until
            && now < until
        {
            return Some(until - now);
        }
        if self.blocked_until.is_some() {
            *self = Self::default();
        }
        self.in_a_row += 1;
        if self.in_a_row == IN_A_ROW_MOST {
            self.blocked_until = Some(now + WHILE);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_five_wrong_tokens_a_peer_is_blocked_for_a_minute() {
        let (guesses, now) = (Guesses::new(), Instant::now());
        let peer: SocketAddr = "192.0.2.1:7".parse().unwrap();
        for _ in 0..IN_A_ROW_MOST {
            assert_eq!(guesses.note_wrong(peer, now), None);
        }
        let later = now + Duration::from_secs(20);
        let same: SocketAddr = "[::ffff:192.0.2.1]:8".parse().unwrap();
        assert_eq!(guesses.note_wrong(same, later), Some(Duration::from_secs(40)));
        assert_eq!(guesses.note_wrong(peer, now + WHILE), None, "from then on they are counted again");
        guesses.note_right(peer);
        for _ in 0..IN_A_ROW_MOST {
            assert_eq!(guesses.note_wrong(peer, now + WHILE), None);
        }
        assert!(guesses.note_wrong(peer, now + WHILE).is_some());
        assert_eq!(guesses.count(), 13);
    }

    #[test]
    fn a_network_of_64_bits_is_one_peer() {
        let (guesses, now) = (Guesses::new(), Instant::now());
        let wrong = |peer: &str| guesses.note_wrong(peer.parse().unwrap(), now).is_some();
        let results: Vec<bool> = (0..7).map(|host| wrong(&format!("[2001:db8::{host}]:1"))).collect();
        assert_eq!(results, [false, false, false, false, false, true, true]);
    }
}
