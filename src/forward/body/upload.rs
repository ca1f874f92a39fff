//! A client's request body, and the time that the client has for it.

use std::{
    any::Any,
    error::Error,
    fmt, io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::{HeaderMap, body::Incoming, header::HeaderName};
use parking_lot::Mutex;
use tokio::time::Instant;
use tollgate_http1::{
    self, Interim,
    head::{FIELDS_MOST, Spelt},
};

use crate::forward::{headers, hints::Hints, timer::Timer};

use super::{BoxError, with_trailers};

/// The bytes per second that a client must send on average once its time allowance is used up.
const RATE_LEAST: f64 = 500.0;
/// The shortest idle timeout when both sides may send at any time, as in a stream or a tunnel.
pub const SILENCE_LEAST: Duration = Duration::from_secs(5 * 60);

/// A client's request body. A reader waits for the client only as long as the time allowance lasts; bytes
/// received extend it ([`RATE_LEAST`]). In a stream, where both sides may send at any time, the client may be
/// silent longer.
#[derive(Debug)]
pub struct Upload {
    source: UploadSource,
    /// The checks of the body. `None` if there is none.
    checks: Option<Box<Checks>>,
    /// The spelling of the request's header names.
    pub(super) spelling: Spelt,
    /// The sender of interim responses, if the client accepts any.
    pub(super) hints: Option<Hints>,
}

/// The connection that a client's body comes from.
#[derive(Debug)]
enum UploadSource {
    Nothing,
    Http1(tollgate_http1::Incoming),
    Http2(Incoming),
}

/// The checks of a client's body: its speed, its size and its trailers.
#[derive(Debug)]
struct Checks {
    /// The bytes that may still be received.
    room: u64,
    /// The most time to wait for the client, and the rest of it.
    most: Duration,
    left: Duration,
    awaited_since: Option<Instant>,
    /// Fires at the end of that time.
    timer: Timer,
    progress: Arc<Progress>,
    /// Trailers that aren't forwarded.
    withheld: Option<Arc<[HeaderName]>>,
    /// The values that are dropped with the body.
    held: Vec<Arc<dyn Any + Send + Sync>>,
}

/// The progress of a client's body, shared with the response.
#[derive(Debug)]
pub struct Progress {
    moved: Mutex<Instant>,
    awaits_client: AtomicBool,
    /// The time of the latest bytes of the response, in a stream. `None` if this isn't one.
    pub(super) answered: Mutex<Option<Instant>>,
    fault: Mutex<Option<Fault>>,
}

/// A fault in a client's body. It isn't held against the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The body stopped, or arrives too slowly.
    TooSlow,
    /// The body has more bytes than allowed.
    TooLarge,
    /// The body isn't chunked correctly, or ended too early.
    Broken,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooSlow => "the request body stopped, or arrived too slowly",
            Self::TooLarge => "the request body is larger than allowed",
            Self::Broken => "the request body is malformed",
        })
    }
}

impl Error for Fault {}

impl Upload {
    /// Returns an empty body.
    pub fn none() -> Self {
        Self { source: UploadSource::Nothing, checks: None, spelling: None, hints: None }
    }

    /// Returns a body received over HTTP/1.1. `patience` is the most time to wait while no bytes arrive.
    pub fn http1(incoming: tollgate_http1::Incoming, patience: Duration) -> Self {
        let checks = Some(Box::new(Checks::new(patience)));
        Self { source: UploadSource::Http1(incoming), checks, spelling: None, hints: None }
    }

    /// Returns a body received over HTTP/2, as [`Self::http1`] does. It may be empty.
    pub fn http2(incoming: Incoming, patience: Duration) -> Self {
        if incoming.is_end_stream() {
            // hyper says so no longer once the request is cancelled, and the body would seem to fail.
            return Self::none();
        }
        let checks = Some(Box::new(Checks::new(patience)));
        Self { source: UploadSource::Http2(incoming), checks, spelling: None, hints: None }
    }

    /// Keeps a value until this is dropped, if there is a body.
    pub fn hold(&mut self, value: Arc<dyn Any + Send + Sync>) {
        if let Some(checks) = &mut self.checks {
            checks.held.push(value);
        }
    }

    /// Sets the spelling of the request's header names.
    #[must_use]
    pub fn spelt(self, spelling: Spelt) -> Self {
        Self { spelling, ..self }
    }

    /// Forwards interim responses to this client.
    #[must_use]
    pub fn hinting(self, client: Interim) -> Self {
        Self { hints: Some(Hints::new(client)), ..self }
    }

    /// Treats the exchange as a stream, in which both sides may send at any time: it ends only when neither
    /// side has sent anything for [`SILENCE_LEAST`].
    pub fn allow_silence(&self) {
        if let Some(checks) = &self.checks {
            *checks.progress.answered.lock() = Some(Instant::now());
        }
    }

    /// Limits the size of the body, to less than 2^63 bytes in any case: servers whose lengths are signed would take a greater one for a
    /// negative one.
    ///
    /// # Errors
    /// The stated length is larger.
    pub fn at_most(mut self, bytes: Option<u64>) -> Result<Self, Fault> {
        const LENGTH_MOST: u64 = i64::MAX.cast_unsigned();
        let most = bytes.unwrap_or(LENGTH_MOST).min(LENGTH_MOST);
        if let Some(checks) = &mut self.checks {
            if self.source.size_hint().lower() > most {
                return Err(Fault::TooLarge);
            }
            checks.room = most;
        }
        Ok(self)
    }

    /// Withholds trailers with these names from the upstream.
    pub fn withhold(&mut self, names: &Arc<[HeaderName]>) {
        if let Some(checks) = &mut self.checks {
            checks.withheld = Some(names.clone());
        }
    }

    /// Returns the progress of the body. `None` if there is no body.
    pub fn progress(&self) -> Option<Arc<Progress>> {
        self.checks.as_ref().map(|checks| checks.progress.clone())
    }
}

impl Checks {
    fn new(most: Duration) -> Self {
        let progress = Progress {
            moved: Mutex::new(Instant::now()),
            awaits_client: AtomicBool::new(false),
            fault: Mutex::new(None),
            answered: Mutex::new(None),
        };
        Self {
            most,
            left: most,
            room: u64::MAX,
            awaited_since: None,
            timer: Timer::default(),
            progress: Arc::new(progress),
            withheld: None,
            held: Vec::new(),
        }
    }

    /// Removes the trailers that aren't forwarded.
    fn clean(&self, trailers: &mut HeaderMap) {
        headers::trailers_from_client(trailers);
        for name in self.withheld.iter().flat_map(|names| &**names) {
            trailers.remove(name);
        }
    }

    fn fail<T>(&self, fault: Fault) -> Option<Result<T, BoxError>> {
        *self.progress.fault.lock() = Some(fault);
        Some(Err(fault.into()))
    }

    fn note(&mut self, bytes: usize) -> Result<(), Fault> {
        if let Some(since) = self.awaited_since.take() {
            self.left = self.left.saturating_sub(since.elapsed());
        }
        let earned = Duration::from_secs(1).mul_f64(bytes as f64 / RATE_LEAST);
        self.left = self.most.min(self.left + earned);
        self.progress.note(false);
        self.room = self.room.checked_sub(bytes as u64).ok_or(Fault::TooLarge)?;
        Ok(())
    }

    /// Returns true if the client has been waited for too long. Otherwise the task is woken when it will have
    /// been.
    fn is_over(&mut self, context: &mut Context<'_>) -> bool {
        let since = *self.awaited_since.get_or_insert_with(Instant::now);
        let until = match *self.progress.answered.lock() {
            Some(answered) => since.max(answered) + self.most.max(SILENCE_LEAST),
            None => since + self.left,
        };
        self.progress.note(true);
        self.timer.poll_until(until, context).is_ready()
    }
}

impl Progress {
    /// Returns the time since when the upstream could have read more or all of the body. This is now if the
    /// upstream is waiting for the client.
    pub fn awaits_upstream_since(&self) -> Instant {
        if self.awaits_client.load(Relaxed) { Instant::now() } else { *self.moved.lock() }
    }

    /// Returns true if the client is being waited for, except in a stream, whose client may be silent.
    pub fn awaits_client(&self) -> bool {
        self.awaits_client.load(Relaxed) && self.answered.lock().is_none()
    }

    pub(super) fn note_answer(&self) {
        *self.answered.lock() = Some(Instant::now());
    }

    /// Returns the fault in the body, if there is one.
    pub fn fault(&self) -> Option<Fault> {
        *self.fault.lock()
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
        let Self { source, checks, .. } = &mut *self;
        let polled = source.poll_frame(context);
        let Some(checks) = checks else { return polled };
        let Poll::Ready(frame) = polled else {
            let is_late = checks.is_over(context);
            return if is_late { Poll::Ready(checks.fail(Fault::TooSlow)) } else { Poll::Pending };
        };
        let bytes = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()).map_or(0, Bytes::len);
        if let Err(fault) = checks.note(bytes) {
            return Poll::Ready(checks.fail(fault));
        }
        Poll::Ready(match frame {
            Some(Ok(frame)) => Some(Ok(with_trailers(frame, |trailers| checks.clean(trailers)))),
            Some(Err(_)) => checks.fail(Fault::Broken),
            None => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.source.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.source.size_hint()
    }
}

impl UploadSource {
    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self {
            Self::Nothing => Poll::Ready(None),
            Self::Http1(incoming) => Pin::new(incoming).poll_frame(context).map_err(Into::into),
            Self::Http2(incoming) => poll_incoming(incoming, context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Nothing => true,
            Self::Http1(incoming) => incoming.is_end_stream(),
            Self::Http2(incoming) => incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Nothing => SizeHint::with_exact(0),
            Self::Http1(incoming) => incoming.size_hint(),
            Self::Http2(incoming) => incoming.size_hint(),
        }
    }
}

/// Returns the next frame of a body received over HTTP/2. Only END_STREAM ends it (RFC 9113, section 8.1):
/// hyper also reports the end for a stream that was reset with NO_ERROR.
fn poll_incoming(
    incoming: &mut Incoming,
    context: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
    let frame = ready!(Pin::new(&mut *incoming).poll_frame(context));
    if frame.is_none() && !incoming.is_end_stream() {
        return Poll::Ready(Some(Err(io::Error::from(io::ErrorKind::UnexpectedEof).into())));
    }
    let trailers = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.trailers_ref());
    if trailers.is_some_and(|trailers| trailers.len() > FIELDS_MOST) {
        return Poll::Ready(Some(Err(io::Error::other("too many trailers").into())));
    }
    Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::{join, time::sleep};

    use super::*;

    async fn until_over(checks: &mut Checks) -> Duration {
        let since = Instant::now();
        poll_fn(|context| if checks.is_over(context) { Poll::Ready(()) } else { Poll::Pending }).await;
        since.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_may_be_silent_while_a_stream_continues() {
        const MOST: Duration = Duration::from_secs(75);
        let mut checks = Checks::new(MOST);
        assert!(until_over(&mut checks).await.abs_diff(MOST) < Duration::from_secs(1));

        let mut checks = Checks::new(MOST);
        checks.progress.note_answer();
        let answer = checks.progress.clone();
        let speaks = async move {
            for _ in 0..10 {
                sleep(MOST * 2).await;
                answer.note_answer();
            }
        };
        let (waited, ()) = join!(until_over(&mut checks), speaks);
        assert!(waited.abs_diff(MOST * 20 + SILENCE_LEAST) < Duration::from_secs(1), "{waited:?}");
    }
}
