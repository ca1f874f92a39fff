//! The body of a response on its way to the client. It carries the exchange, and ends it.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::Instant;
use tollgate_http1::{Stream, head::Spelling};

use crate::forward::body::Body;

use super::exchange::{Delivery, Exchange};

/// The body of a response on its way to the client.
#[derive(Debug)]
pub struct AnswerBody {
    body: Body,
    /// `None` for answers that aren't recorded.
    exchange: Option<Box<Exchange>>,
}

impl AnswerBody {
    /// Returns the body of a response, which ends its exchange.
    pub(super) fn new(body: Body, exchange: Box<Exchange>) -> Self {
        Self { body, exchange: Some(exchange) }
    }

    /// Returns the body of an answer that is neither counted nor logged.
    pub(crate) fn unrecorded(body: Body) -> Self {
        Self { body, exchange: None }
    }

    /// Replaces a complete body by another one, which may contain it.
    #[must_use]
    pub(crate) fn replaced(mut self, by: impl FnOnce(Bytes) -> Body) -> Self {
        let whole = if let Body::Whole(bytes) = &mut self.body { bytes.take() } else { None };
        self.body = by(whole.unwrap_or_default());
        self
    }

    /// Returns the spelling of the upstream's header names.
    pub fn spelling(&self) -> Option<&Spelling> {
        self.body.spelling()
    }

    /// Returns the header lines that the response has in addition to its fields.
    pub fn lines(&self) -> &[u8] {
        let lines = self.exchange.as_ref().and_then(|exchange| exchange.facts.lines.as_deref());
        lines.unwrap_or_default()
    }

    /// Returns true if a limit refused the request.
    pub fn is_refused(&self) -> bool {
        self.exchange.as_ref().is_some_and(|exchange| exchange.facts.is_refused)
    }

    /// Ends the exchange at this time. A caller that has just read the clock saves reading it again.
    pub fn end(&mut self, now: Instant) {
        if let Some(exchange) = &mut self.exchange {
            exchange.end(now);
        }
    }

    /// Runs the tunnel that the response has opened, until either end closes it, or both are idle for `idle` or five minutes,
    /// whichever is longer. The response must have been sent.
    ///
    /// # Errors
    /// The tunnel broke or was idle.
    pub async fn tunnel(self, client: impl Stream, idle: Duration) -> io::Result<()> {
        let Self { body, mut exchange } = self;
        if let (Body::Tunnel(tunnel), Some(exchange)) = (body, &mut exchange)
            && let Delivery::Begun { bytes, is_whole, .. } = &mut exchange.facts.delivery
        {
            tunnel.run(client, idle, bytes).await?;
            *is_whole = true;
        }
        Ok(())
    }
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = <Body as HttpBody>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let Self { body, exchange } = &mut *self;
        let Some(Exchange { facts, .. }) = exchange.as_deref_mut() else { return Poll::Ready(frame) };
        let received = frame.as_ref().and_then(|frame| frame.as_ref().ok());
        let data = received.and_then(Frame::data_ref);
        if let Some(settlement) = &mut facts.settlement {
            data.inspect(|data| settlement.read(data));
            if let Some(trailers) = received.and_then(Frame::trailers_ref) {
                settlement.settle(trailers);
            }
        }
        if let Delivery::Begun { bytes, is_whole, .. } = &mut facts.delivery {
            *is_whole = frame.is_none() || body.is_end_stream();
            *bytes += data.map_or(0, Bytes::len) as u64;
            if let (true, Some(settlement)) = (*is_whole, &mut facts.settlement) {
                settlement.end_body();
            }
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
