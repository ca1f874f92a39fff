//! Whether a client may still receive what was sent.
//!
//! What the system has taken may take seconds to reach a slow client, and only the system knows how much is left. But a client of HTTP/2
//! sends while it receives: it gives room for more.

use std::time::Duration;

use tokio::time::Instant;

/// The bytes of responses within [`RECEIVED_WITHIN`] from which on the client may need time to receive them.
const LARGE: usize = 16 << 10;
/// The time after the last response in which a client receives it.
pub(super) const RECEIVED_WITHIN: Duration = Duration::from_secs(10);
/// The time for which a client that receives may be silent.
const SILENT_MOST: Duration = Duration::from_secs(2);

/// A record of what was sent to a client and when, which shows whether it may still receive.
#[derive(Debug, Default)]
pub(super) struct Receiving {
    /// The bytes of responses, and when the last ones were sent.
    sent: Option<(usize, Instant)>,
    /// The last time that anything was sent or received.
    active: Option<Instant>,
}

impl Receiving {
    /// Records bytes of a response that are sent.
    pub(super) fn note_sent(&mut self, bytes: usize) {
        let now = Instant::now();
        let before = self.sent.filter(|(_, at)| now - *at < RECEIVED_WITHIN);
        self.sent = Some((before.map_or(0, |(sent, _)| sent) + bytes, now));
        self.active = Some(now);
    }

    /// Records that the client has sent something.
    pub(super) fn note_read(&mut self) {
        if self.may_receive() {
            self.active = Some(Instant::now());
        }
    }

    /// Returns true if the client may still receive.
    pub(super) fn may_receive(&self) -> bool {
        self.sent.is_some_and(|(sent, at)| sent >= LARGE && at.elapsed() < RECEIVED_WITHIN)
    }

    /// Returns true if the client may still receive, and hasn't been silent for long.
    pub(super) fn is_active(&self) -> bool {
        self.may_receive() && self.active.is_some_and(|active| active.elapsed() < SILENT_MOST)
    }
}
