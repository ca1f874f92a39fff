//! Ends an exchange in which both sides are silent, if the client may have hung up behind bytes that nobody reads.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::Instant;

use crate::gateway::{SILENCE_LEAST, Timer};

/// The silence of a server, from the first look at it. To be replaced when the server sends something.
#[derive(Debug, Default)]
pub(super) struct Silence(Option<Box<Since>>);

/// The beginning of a silence, and the pieces of the request that had been read then.
#[derive(Debug)]
struct Since {
    begin: Instant,
    pieces: usize,
    timer: Timer,
}

impl Silence {
    /// Waits until no piece of the request has come for this time, or for [`SILENCE_LEAST`] if that is longer. The pieces are compared only at
    /// the end, so it may take twice as long.
    pub(super) fn poll(&mut self, pieces: usize, idle: Duration, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let begin = || Box::new(Since { begin: Instant::now(), pieces, timer: Timer::default() });
            let since = self.0.get_or_insert_with(begin);
            if since.timer.poll_until(since.begin + SILENCE_LEAST.max(idle), context).is_pending() {
                return Poll::Pending;
            }
            if since.pieces == pieces {
                return Poll::Ready(());
            }
            self.0 = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_exchange_is_silent_if_neither_side_sends() {
        let began = Instant::now();
        let mut silence = Silence::default();
        poll_fn(|context| silence.poll(7, Duration::ZERO, context)).await;
        assert!(began.elapsed().as_secs_f64().round() == SILENCE_LEAST.as_secs_f64());

        // A piece of the request has been read meanwhile.
        let (began, mut silence, mut pieces) = (Instant::now(), Silence::default(), 7..);
        let mut read = pieces.next();
        poll_fn(|context| {
            let polled = silence.poll(read.unwrap_or_default(), Duration::ZERO, context);
            if began.elapsed() < SILENCE_LEAST / 2 {
                read = pieces.next();
            }
            polled
        })
        .await;
        assert!(began.elapsed().as_secs_f64().round() == 2.0 * SILENCE_LEAST.as_secs_f64());
    }
}
