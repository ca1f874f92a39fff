//! The body of a request or an answer on its way through the gateway: streamed, or whole if it is small and ours.

use std::{
    error::Error,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::pool::Lease;

/// A body of any origin.
#[derive(Debug)]
pub enum Body {
    /// The gateway's own words.
    Whole(Option<Bytes>),
    /// A client's, on its way upstream; watched if it has anything.
    Request(Incoming, Option<Arc<Upload>>),
    /// An upstream's, on its way to the client.
    Response(Relayed),
    /// A built-in service's.
    Local(axum::body::Body),
}

/// How far a client's body has come.
#[derive(Debug)]
pub struct Upload {
    moved: Mutex<Instant>,
    awaits_client: AtomicBool,
}

impl Upload {
    /// Watches a body, if it has anything to watch.
    pub fn watch(incoming: &Incoming) -> Option<Arc<Self>> {
        let begun = || Self { moved: Mutex::new(Instant::now()), awaits_client: AtomicBool::new(false) };
        (!incoming.is_end_stream()).then(|| Arc::new(begun()))
    }

    /// When some of it last went by.
    pub fn moved(&self) -> Instant {
        *self.moved.lock()
    }

    /// Whether the upstream would take more than the client has sent.
    pub fn awaits_client(&self) -> bool {
        self.awaits_client.load(Relaxed)
    }

    fn note(&self, awaits_client: bool) {
        self.awaits_client.store(awaits_client, Relaxed);
        if !awaits_client {
            *self.moved.lock() = Instant::now();
        }
    }
}

/// An upstream's body, with the connection that it comes on.
#[derive(Debug)]
pub struct Relayed {
    incoming: Incoming,
    lease: Option<Lease>,
}

impl Relayed {
    /// Holds the connection until the body has ended; if it is dropped before that, the connection closes.
    pub fn new(incoming: Incoming, lease: Lease) -> Self {
        let mut relayed = Self { incoming, lease: Some(lease) };
        relayed.release_at_end();
        relayed
    }

    fn release_at_end(&mut self) {
        if self.incoming.is_end_stream() {
            self.release();
        }
    }

    fn release(&mut self) {
        if let Some(lease) = self.lease.take() {
            lease.release();
        }
    }
}

type BoxError = Box<dyn Error + Send + Sync>;

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Request(incoming, upload) => {
                let frame = Pin::new(&mut *incoming).poll_frame(context).map_err(Into::into);
                if let Some(upload) = upload {
                    upload.note(frame.is_pending());
                }
                frame
            }
            Self::Local(body) => Pin::new(body).poll_frame(context).map_err(Into::into),
            Self::Response(relayed) => {
                let frame = Pin::new(&mut relayed.incoming).poll_frame(context).map_err(Into::into);
                match &frame {
                    Poll::Ready(Some(Ok(_))) => relayed.release_at_end(),
                    Poll::Ready(None) => relayed.release(),
                    // A body that broke off takes its connection with it.
                    Poll::Ready(Some(Err(_))) => relayed.lease = None,
                    Poll::Pending => {}
                }
                frame
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_none(),
            Self::Request(incoming, _) | Self::Response(Relayed { incoming, .. }) => incoming.is_end_stream(),
            Self::Local(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Request(incoming, _) | Self::Response(Relayed { incoming, .. }) => incoming.size_hint(),
            Self::Local(body) => body.size_hint(),
        }
    }
}
