//! A timer for deadlines that are nearly always met.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    task::coop::unconstrained,
    time::{Instant, Sleep, sleep_until},
};

/// A timer that is only reset after it has fired. So moving the deadline with each request, or each piece of one, is cheap.
#[derive(Debug, Default)]
pub struct Timer(Option<Pin<Box<Sleep>>>);

impl Timer {
    /// Returns true if this time has come. Otherwise the task is woken then, or earlier.
    pub fn poll_until(&mut self, deadline: Instant, context: &mut Context<'_>) -> Poll<()> {
        let sleep = self.0.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if sleep.deadline() > deadline {
            sleep.as_mut().reset(deadline);
        }
        // Unconstrained by tokio's cooperative budget: a task with endless input would otherwise never see its deadline.
        while Pin::new(&mut unconstrained(sleep.as_mut())).poll(context).is_ready() {
            if sleep.deadline() >= deadline {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(deadline);
        }
        Poll::Pending
    }
}
