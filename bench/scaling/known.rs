//! What a gateway knows of full buckets: crates/limiter/src/refusals/block.rs, for requests that all cost one permit.

/// For how long a refusal is believed without asking.
const REFRESH_NS: u64 = 5_000_000_000;
/// So long before there is room, a request that asks is held, and for how long at most.
const HELD_NS: u64 = 300_000;
const HELD_MOST_NS: u64 = 2_000_000;

/// A bucket that was full, and the requests that ask about it for others.
#[derive(Default)]
pub(super) struct Block {
    /// The time until which requests are refused without asking.
    until: u64,
    /// The earliest time at which there may be room, and the one at which there surely is.
    free_soon: u64,
    free_at: u64,
    refresh_at: u64,
    asking: u32,
    room: u64,
    /// Requests that wait for the answer of one that asks.
    pub(super) waiting: Vec<u64>,
}

/// The step for a request on a bucket that was full.
#[derive(Clone, Copy)]
pub(super) enum Recall {
    Refused,
    /// It asks for others, at this time.
    Asks(u64),
    Waits,
}

impl Block {
    pub(super) fn recall(&mut self, now: u64) -> Recall {
        if now < self.until {
            if now < self.refresh_at || self.asking > 0 {
                return Recall::Refused;
            }
        } else if self.asking > 0 {
            if self.room == 0 {
                return Recall::Waits;
            }
            self.room -= 1;
        } else {
            self.room = self.room.saturating_sub(1);
            self.asking += 1;
            let is_soon = now + HELD_NS >= self.free_soon;
            return Recall::Asks(if is_soon { self.free_at.clamp(now, now + HELD_MOST_NS) } else { now });
        }
        self.asking += 1;
        Recall::Asks(now)
    }

    /// Notes that the bucket is full for this time, as was told now to a call that was sent then.
    pub(super) fn fill(&mut self, delay_us: u64, sent: u64, now: u64) {
        let delay = delay_us * 1_000;
        self.until = sent + delay - delay.div_ceil(1_000);
        (self.free_soon, self.free_at, self.refresh_at) = (sent + delay, now + delay, sent + REFRESH_NS);
        self.room = 0;
    }

    /// Notes that there is so much room.
    pub(super) fn empty(&mut self, room: u64) {
        self.until = 0;
        self.room = if self.asking > 1 { self.room.min(room) } else { room };
    }

    /// Ends a turn. Returns the requests that look again now.
    pub(super) fn end_turn(&mut self, now: u64) -> Vec<u64> {
        self.asking = self.asking.saturating_sub(1);
        let others = if now < self.until || self.asking == 0 {
            self.waiting.len()
        } else {
            self.waiting.len().min(self.room as usize)
        };
        self.waiting.drain(..others).collect()
    }

    /// Returns true if nothing is known any more.
    pub(super) fn is_over(&self, now: u64) -> bool {
        now >= self.until && self.asking == 0 && self.waiting.is_empty()
    }
}
