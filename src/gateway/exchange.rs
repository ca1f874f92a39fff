//! A request and its answer, from arrival until the answer's body has ended or broken off: then it is counted.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::StatusCode;
use tokio::time::Instant;

use crate::{
    forward::body::Body,
    limit::{request, settling::Settling},
    metrics::{Counts, Histogram},
};

use super::Gateway;

/// The requests of a route.
#[derive(Debug)]
pub(super) struct Traffic {
    /// By the first digit of the status, from 1.
    pub(super) answers: Counts,
    pub(super) durations: Histogram,
}

impl Default for Traffic {
    fn default() -> Self {
        Self { answers: Counts::new(STATUS_CLASSES.len()), durations: Histogram::of_times() }
    }
}

/// What metrics call the classes of status codes.
pub(super) const STATUS_CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// The client left before there was an answer. (nginx's, and known to what reads logs.)
const CLIENT_LEFT: u16 = 499;

/// A request and its answer.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) gateway: Arc<Gateway>,
    pub(super) facts: Facts,
}

/// What is known of a request and its answer.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) arrival: Instant,
    /// The place of the route's traffic in the gateway's.
    pub(super) traffic: usize,
    pub(super) decided: request::Log,
    status: Option<StatusCode>,
}

impl Exchange {
    /// With a request that has just arrived.
    pub(super) fn begin(gateway: Arc<Gateway>) -> Self {
        let facts =
            Facts { arrival: Instant::now(), traffic: Gateway::UNROUTED, decided: None, status: None };
        Self { gateway, facts }
    }

    /// The answer's body, which ends it.
    pub(super) fn answered(mut self, status: StatusCode, body: Settling<Body>) -> AnswerBody {
        self.facts.status = Some(status);
        AnswerBody { body, _exchange: self }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let Facts { arrival, traffic, status, .. } = &self.facts;
        let (_, traffic) = &self.gateway.traffic[*traffic];
        let status = status.map_or(CLIENT_LEFT, |status| status.as_u16());
        traffic.answers.add(usize::from(status / 100 - 1).min(STATUS_CLASSES.len() - 1), 1);
        traffic.durations.observe_time(arrival.elapsed());
    }
}

/// The body of an answer on its way to the client.
#[derive(Debug)]
pub struct AnswerBody {
    body: Settling<Body>,
    _exchange: Exchange,
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = <Body as HttpBody>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
