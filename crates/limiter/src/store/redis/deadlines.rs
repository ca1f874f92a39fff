//! The deadlines of operations that wait for a server, with one timer for all of them.
//!
//! A timer each would be set before that by which the runtime is to wake next, since all else that it waits for
//! lasts longer: then it wakes itself, by two system calls more and another look for events.

use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;
use slab::Slab;
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

/// The waiting operations with their deadlines.
#[derive(Default)]
pub(super) struct Deadlines {
    state: Mutex<WaitingDeadlines>,
    /// Tells [`Self::keep`] of a deadline before that of its timer.
    sooner: Notify,
}

#[derive(Default)]
struct WaitingDeadlines {
    waiting: Slab<(Instant, Waker)>,
    /// The time of the timer: not after the first deadline.
    timer: Option<Instant>,
}

impl Deadlines {
    /// Wakes those whose deadline comes, for as long as this is polled.
    pub(super) async fn keep(&self) {
        loop {
            let timer = self.state.lock().timer;
            let sooner = self.sooner.notified();
            match timer {
                None => sooner.await,
                Some(at) if timeout_at(at, sooner).await.is_err() => self.wake_due(),
                Some(_) => {}
            }
        }
    }

    /// Returns the output of a future if it completes before the deadline.
    pub(super) async fn within<F: Future + Unpin>(
        &self,
        deadline: Instant,
        mut future: F,
    ) -> Option<F::Output> {
        let mut place = DeadlinePlace { deadlines: self, deadline, key: None };
        poll_fn(|context| match Pin::new(&mut future).poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => place.poll(context).map(|()| None),
        })
        .await
    }

    fn wake_due(&self) {
        let now = Instant::now();
        let mut state = self.state.lock();
        let WaitingDeadlines { waiting, timer } = &mut *state;
        *timer = waiting.iter().map(|(_, (deadline, _))| *deadline).filter(|deadline| *deadline > now).min();
        let due = waiting.iter().filter(|(_, (deadline, _))| *deadline <= now);
        let due: Vec<Waker> = due.map(|(_, (_, waker))| waker.clone()).collect();
        drop(state);
        due.into_iter().for_each(Waker::wake);
    }
}

/// A waiting operation, until this is dropped.
struct DeadlinePlace<'d> {
    deadlines: &'d Deadlines,
    deadline: Instant,
    key: Option<usize>,
}

impl DeadlinePlace<'_> {
    /// Ready at the deadline.
    fn poll(&mut self, context: &Context<'_>) -> Poll<()> {
        let Self { deadlines, deadline, key } = self;
        if key.is_some() && Instant::now() >= *deadline {
            return Poll::Ready(());
        }
        let mut state = deadlines.state.lock();
        if let Some(key) = key {
            state.waiting[*key].1.clone_from(context.waker());
            return Poll::Pending;
        }
        *key = Some(state.waiting.insert((*deadline, context.waker().clone())));
        if state.timer.is_none_or(|timer| *deadline < timer) {
            state.timer = Some(*deadline);
            drop(state);
            deadlines.sooner.notify_one();
        }
        Poll::Pending
    }
}

impl Drop for DeadlinePlace<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.deadlines.state.lock().waiting.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, sync::Arc, time::Duration};

    use futures_util::future::join_all;
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_waits_until_its_own_deadline() {
        let deadlines = Arc::<Deadlines>::default();
        let keeper = tokio::spawn({
            let deadlines = deadlines.clone();
            async move { deadlines.keep().await }
        });
        let start = Instant::now();
        // Also those that come when the timer is set for a later one, and after all have gone.
        for milliseconds in [[50, 20, 20, 0, 70], [5, 90, 40, 3, 1]] {
            let start = Instant::now();
            let waits = milliseconds.map(async |milliseconds| {
                let length = Duration::from_millis(milliseconds);
                assert_eq!(deadlines.within(start + length, pending::<()>()).await, None);
                assert!((length..length + Duration::from_millis(2)).contains(&start.elapsed()));
            });
            join_all(waits).await;
        }
        let answered = Box::pin(sleep(Duration::from_millis(1)));
        assert_eq!(deadlines.within(start + Duration::from_secs(1), answered).await, Some(()));
        assert!(deadlines.state.lock().waiting.is_empty());
        keeper.abort();
    }
}
