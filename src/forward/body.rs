//! The body of a request or an answer on its way through the gateway: streamed, or whole if it is small and ours.

use std::{
    error::Error,
    fmt,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep_until};

use super::pool::Lease;

/// Bytes of its body that a client must send in a second, on average, once it has been waited for as long as it may.
const RATE_LEAST: f64 = 500.0;

/// A body of any origin.
#[derive(Debug)]
pub enum Body {
    /// The gateway's own words.
    Whole(Option<Bytes>),
    /// A client's, on its way upstream.
    Request(Upload),
    /// An upstream's, on its way to the client.
    Response(Relayed),
    /// A built-in service's.
    Local(axum::body::Body),
}

/// A client's body, which has to come on: whoever wants it waits for the client for so long at most, and longer only
/// as some of it comes ([`RATE_LEAST`]).
#[derive(Debug)]
pub struct Upload {
    incoming: Incoming,
    /// None if there is nothing to come.
    pace: Option<Box<Pace>>,
}

#[derive(Debug)]
struct Pace {
    /// Bytes that may come yet.
    room: u64,
    /// For how long the client may be waited for, and for how long it may yet.
    most: Duration,
    left: Duration,
    awaited_since: Option<Instant>,
    /// Fires when that time is over, or earlier.
    timer: Option<Pin<Box<Sleep>>>,
    progress: Arc<Progress>,
}

/// How far a client's body has come.
#[derive(Debug)]
pub struct Progress {
    moved: Mutex<Instant>,
    awaits_client: AtomicBool,
}

/// The client sends its body too slowly, or has stopped.
#[derive(Debug)]
pub struct TooSlow;

impl fmt::Display for TooSlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the request's body comes too slowly")
    }
}

impl Error for TooSlow {}

/// The client's body is larger than it may be.
#[derive(Debug)]
pub struct TooLarge;

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the request's body is too large")
    }
}

impl Error for TooLarge {}

impl Upload {
    /// A body that is waited for so long at most while none of it comes.
    pub fn new(incoming: Incoming, patience: Duration) -> Self {
        let pace = (!incoming.is_end_stream()).then(|| Box::new(Pace::new(patience)));
        Self { incoming, pace }
    }

    /// The same, of so many bytes at most.
    ///
    /// # Errors
    /// It says itself that it has more.
    pub fn at_most(mut self, bytes: u64) -> Result<Self, TooLarge> {
        if self.incoming.size_hint().lower() > bytes {
            return Err(TooLarge);
        }
        if let Some(pace) = &mut self.pace {
            pace.room = bytes;
        }
        Ok(self)
    }

    /// How far it has come, if it has anything.
    pub fn progress(&self) -> Option<Arc<Progress>> {
        self.pace.as_ref().map(|pace| pace.progress.clone())
    }
}

impl Pace {
    fn new(most: Duration) -> Self {
        let progress = Progress { moved: Mutex::new(Instant::now()), awaits_client: AtomicBool::new(false) };
        let progress = Arc::new(progress);
        Self { room: u64::MAX, most, left: most, awaited_since: None, timer: None, progress }
    }

    fn note(&mut self, came_bytes: usize) -> Result<(), TooLarge> {
        if let Some(since) = self.awaited_since.take() {
            self.left = self.left.saturating_sub(since.elapsed());
        }
        let earned = Duration::from_secs(1).mul_f64(came_bytes as f64 / RATE_LEAST);
        self.left = self.most.min(self.left + earned);
        self.progress.note(false);
        self.room = self.room.checked_sub(came_bytes as u64).ok_or(TooLarge)?;
        Ok(())
    }

    /// Whether the client has been waited for too long. Else this is asked again when it has.
    fn has_ended(&mut self, context: &mut Context<'_>) -> bool {
        let until = *self.awaited_since.get_or_insert_with(Instant::now) + self.left;
        self.progress.note(true);
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(until)));
        if timer.deadline() > until {
            timer.as_mut().reset(until);
        }
        while timer.as_mut().poll(context).is_ready() {
            if timer.deadline() >= until {
                return true;
            }
            timer.as_mut().reset(until);
        }
        false
    }
}

impl Progress {
    /// Since when the upstream could have taken more, or all of it: now, while it would take more than has come.
    pub fn awaits_upstream_since(&self) -> Instant {
        if self.awaits_client.load(Relaxed) { Instant::now() } else { *self.moved.lock() }
    }

    fn note(&self, awaits_client: bool) {
        self.awaits_client.store(awaits_client, Relaxed);
        if !awaits_client {
            *self.moved.lock() = Instant::now();
        }
    }
}

impl HttpBody for Upload {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = Pin::new(&mut self.incoming).poll_frame(context).map_err(Into::into);
        let Some(pace) = &mut self.pace else { return frame };
        let noted = match &frame {
            Poll::Ready(Some(Ok(frame))) => pace.note(frame.data_ref().map_or(0, Bytes::len)),
            Poll::Ready(_) => pace.note(0),
            Poll::Pending if pace.has_ended(context) => return Poll::Ready(Some(Err(TooSlow.into()))),
            Poll::Pending => Ok(()),
        };
        match noted {
            Ok(()) => frame,
            Err(too_large) => Poll::Ready(Some(Err(too_large.into()))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

/// An upstream's body, with the connection that it comes on.
#[derive(Debug)]
pub struct Relayed {
    incoming: Incoming,
    lease: Option<Lease>,
    /// Fires when the time for the exchange is over.
    timer: Option<Pin<Box<Sleep>>>,
}

/// The time for the exchange is over.
#[derive(Debug)]
pub struct TooLong;

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the request took longer than its route allows")
    }
}

impl Error for TooLong {}

impl Relayed {
    /// Holds the connection until the body has ended; if it is dropped before that, the connection closes.
    pub fn new(incoming: Incoming, lease: Lease) -> Self {
        let mut relayed = Self { incoming, lease: Some(lease), timer: None };
        relayed.release_at_end();
        relayed
    }

    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let is_late = self.timer.as_mut().is_some_and(|timer| timer.as_mut().poll(context).is_ready());
        let frame = match is_late {
            true => Poll::Ready(Some(Err(TooLong.into()))),
            false => Pin::new(&mut self.incoming).poll_frame(context).map_err(Into::into),
        };
        match &frame {
            Poll::Ready(Some(Ok(_))) => self.release_at_end(),
            Poll::Ready(None) => self.release(),
            // A body that broke off takes its connection with it.
            Poll::Ready(Some(Err(_))) => self.lease = None,
            Poll::Pending => {}
        }
        frame
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

impl Body {
    /// The same, which breaks off if an upstream's hasn't ended by then.
    pub fn until(mut self, deadline: Option<Instant>) -> Self {
        if let (Self::Response(relayed), Some(deadline)) = (&mut self, deadline) {
            relayed.timer = Some(Box::pin(sleep_until(deadline)));
        }
        self
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Request(upload) => Pin::new(upload).poll_frame(context),
            Self::Local(body) => Pin::new(body).poll_frame(context).map_err(Into::into),
            Self::Response(relayed) => relayed.poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_none(),
            Self::Request(upload) => upload.is_end_stream(),
            Self::Response(relayed) => relayed.incoming.is_end_stream(),
            Self::Local(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Request(upload) => upload.size_hint(),
            Self::Response(relayed) => relayed.incoming.size_hint(),
            Self::Local(body) => body.size_hint(),
        }
    }
}
