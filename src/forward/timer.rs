//! A timer for deadlines that are nearly always met.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    task::coop::unconstrained,
    time::{Instant, Sleep, sleep_until},
};

/// A timer that is set again only when it has fired: who moves the deadline on with each request, or each piece of one,
/// pays for that once in a while.
#[derive(Debug, Default)]
pub struct Timer(Option<Pin<Box<Sleep>>>);

impl Timer {
    /// Whether this time has come; if not, the task is woken then, or earlier.
    pub fn poll_until(&mut self, deadline: Instant, context: &mut Context<'_>) -> Poll<()> {
        let sleep = self.0.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if sleep.deadline() > deadline {
            sleep.as_mut().reset(deadline);
        }
        // Also if the task has done so much by now that it is to pause: by what comes without end it would else be put off.
        while Pin::new(&mut unconstrained(sleep.as_mut())).poll(context).is_ready() {
            if sleep.deadline() >= deadline {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(deadline);
        }
        Poll::Pending
    }
}
