//! The body of a response whose request holds something of its limits until the end, or whose trailers may
//! tell what it cost.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};

use super::Settlement;

/// A body with what its limits are still owed.
#[derive(Debug)]
pub struct Settling<B> {
    body: B,
    settlement: Settlement,
}

impl<B> Settling<B> {
    /// Has the settlement made while the body is read, and lets go what it holds when the body is dropped.
    pub fn new(body: B, settlement: Settlement) -> Self {
        Self { body, settlement }
    }
}

impl<B: HttpBody<Data = Bytes> + Unpin> HttpBody for Settling<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(trailers) = frame.trailers_ref()
        {
            self.settlement.settle(trailers);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
