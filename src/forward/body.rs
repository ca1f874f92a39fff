//! The body of a request or an answer on its way through the gateway: streamed, or whole if it is small and ours.

use std::{
    error::Error,
    fmt,
    future::poll_fn,
    io, mem,
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
use hyper::{HeaderMap, body::Incoming};
use parking_lot::Mutex;
use tokio::{
    task::AbortHandle,
    time::{Instant, Sleep, sleep_until},
};

use tollgate_http1::{
    self, Interim,
    head::{FIELDS_MOST, Spelling, Spelt},
};

use crate::config::Edits;

use super::{connection::Http1, headers, hints::Hints, pool::Lease, timer::Timer, tunnel::Tunnel};

/// Bytes of its body that a client must send in a second, on average, once it has been waited for as long as it may.
const RATE_LEAST: f64 = 500.0;
/// For how long at the least both sides may be silent that speak at the same time, in a stream or a tunnel.
pub const SILENCE_LEAST: Duration = Duration::from_secs(5 * 60);

/// A body of any origin.
#[derive(Debug)]
pub enum Body {
    /// The gateway's own words.
    Whole(Option<Bytes>),
    /// A client's, on its way upstream.
    Request(Upload),
    /// An upstream's, on its way to the client.
    Response(Box<Relayed>),
    /// A built-in service's.
    Local(axum::body::Body),
    /// None, but the answer opens a tunnel.
    Tunnel(Box<Tunnel>),
}

/// A client's body, which has to come on: whoever wants it waits for the client for so long at most, and longer only
/// as some of it comes ([`RATE_LEAST`]). Where both sides may speak at the same time, it may be silent while it listens.
#[derive(Debug)]
pub struct Upload {
    source: Source,
    /// None if there is nothing to come.
    pace: Option<Box<Pace>>,
    /// Of the head before it.
    spelling: Spelt,
    /// Where interim responses go, if the client takes any.
    hints: Option<Hints>,
}

/// What a client's body comes by.
#[derive(Debug)]
enum Source {
    Nothing,
    Http1(tollgate_http1::Incoming),
    Http2(Incoming),
}

#[derive(Debug)]
struct Pace {
    /// Bytes that may come yet.
    room: u64,
    /// For how long the client may be waited for, and for how long it may yet.
    most: Duration,
    left: Duration,
    awaited_since: Option<Instant>,
    /// For that time.
    timer: Timer,
    progress: Arc<Progress>,
}

/// How far a client's body has come.
#[derive(Debug)]
pub struct Progress {
    moved: Mutex<Instant>,
    awaits_client: AtomicBool,
    /// When some of the answer has come, if that matters: both sides may speak at the same time.
    answered: Mutex<Option<Instant>>,
    fault: Mutex<Option<Fault>>,
    has_ended: AtomicBool,
}

/// What is wrong with a client's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It comes too slowly, or has stopped.
    TooSlow,
    /// There is more of it than there may be.
    TooLarge,
    /// It is no chunked body though it should be, or ended too early.
    Broken,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooSlow => "the request's body stopped on its way, or came too slowly",
            Self::TooLarge => "the request's body is larger than it may be",
            Self::Broken => "the request's body is malformed",
        })
    }
}

impl Error for Fault {}

impl Upload {
    /// No body.
    pub fn none() -> Self {
        Self { source: Source::Nothing, pace: None, spelling: None, hints: None }
    }

    /// A body that comes by HTTP/1.1, and is waited for so long at most while none of it comes.
    pub fn http1(incoming: tollgate_http1::Incoming, patience: Duration) -> Self {
        let pace = Some(Box::new(Pace::new(patience)));
        Self { source: Source::Http1(incoming), pace, spelling: None, hints: None }
    }

    /// The same, but by HTTP/2, if there is one.
    pub fn http2(incoming: Incoming, patience: Duration) -> Self {
        let pace = (!incoming.is_end_stream()).then(|| Box::new(Pace::new(patience)));
        Self { source: Source::Http2(incoming), pace, spelling: None, hints: None }
    }

    /// The same, of a head that was spelt so.
    #[must_use]
    pub fn spelt(self, spelling: Spelt) -> Self {
        Self { spelling, ..self }
    }

    /// Sends interim responses to this client.
    #[must_use]
    pub fn hinting(self, client: Interim) -> Self {
        Self { hints: Some(Hints::to(client)), ..self }
    }

    /// Waits for the client until neither side has said anything for [`SILENCE_LEAST`], as both may speak at the same
    /// time.
    pub fn take_turns(&self) {
        if let Some(pace) = &self.pace {
            *pace.progress.answered.lock() = Some(Instant::now());
        }
    }

    /// The same, which may have so many bytes.
    ///
    /// # Errors
    /// It says itself that it has more.
    pub fn at_most(mut self, bytes: Option<u64>) -> Result<Self, Fault> {
        if let (Some(pace), Some(most)) = (&mut self.pace, bytes) {
            if self.source.size_hint().lower() > most {
                return Err(Fault::TooLarge);
            }
            pace.room = most;
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
        let progress = Progress {
            moved: Mutex::new(Instant::now()),
            awaits_client: AtomicBool::new(false),
            fault: Mutex::new(None),
            has_ended: AtomicBool::new(false),
            answered: Mutex::new(None),
        };
        Self {
            most,
            left: most,
            room: u64::MAX,
            awaited_since: None,
            timer: Timer::default(),
            progress: Arc::new(progress),
        }
    }

    fn fail<T>(&self, fault: Fault) -> Option<Result<T, BoxError>> {
        *self.progress.fault.lock() = Some(fault);
        Some(Err(fault.into()))
    }

    fn note(&mut self, came_bytes: usize) -> Result<(), Fault> {
        if let Some(since) = self.awaited_since.take() {
            self.left = self.left.saturating_sub(since.elapsed());
        }
        let earned = Duration::from_secs(1).mul_f64(came_bytes as f64 / RATE_LEAST);
        self.left = self.most.min(self.left + earned);
        self.progress.note(false);
        self.room = self.room.checked_sub(came_bytes as u64).ok_or(Fault::TooLarge)?;
        Ok(())
    }

    /// Whether the client has been waited for too long. Else this is asked again when it has.
    fn has_ended(&mut self, context: &mut Context<'_>) -> bool {
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
    /// Since when the upstream could have taken more, or all of it: now, while it would take more than has come.
    pub fn awaits_upstream_since(&self) -> Instant {
        if self.awaits_client.load(Relaxed) { Instant::now() } else { *self.moved.lock() }
    }

    fn note_answer(&self) {
        *self.answered.lock() = Some(Instant::now());
    }

    /// What is wrong with the body, if anything is.
    pub fn fault(&self) -> Option<Fault> {
        *self.fault.lock()
    }

    /// Whether all of it has come.
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Relaxed)
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
        let Self { source, pace, .. } = &mut *self;
        let polled = source.poll_frame(context);
        let Some(pace) = pace else { return polled };
        let Poll::Ready(frame) = polled else {
            let is_late = pace.has_ended(context);
            return if is_late { Poll::Ready(pace.fail(Fault::TooSlow)) } else { Poll::Pending };
        };
        let bytes = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()).map_or(0, Bytes::len);
        if let Err(fault) = pace.note(bytes) {
            return Poll::Ready(pace.fail(fault));
        }
        if frame.is_none() || source.is_end_stream() {
            pace.progress.has_ended.store(true, Relaxed);
        }
        Poll::Ready(match frame {
            Some(Ok(frame)) => Some(Ok(with_trailers(frame, headers::trailers_from_client))),
            Some(Err(_)) => pace.fail(Fault::Broken),
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

impl Source {
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

/// The next of a body that comes by HTTP/2, which has ended it only by END_STREAM (RFC 9113, section 8.1): hyper
/// takes a stream that was reset with NO_ERROR for one that has ended, too.
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

/// An upstream's body, with the connection that it comes on.
#[derive(Debug)]
pub struct Relayed {
    /// By HTTP/2. What comes by HTTP/1.1 is read from the connection.
    incoming: Option<Incoming>,
    held: Held,
    /// Of the head before it.
    spelling: Spelt,
    /// The client's body, if it is to be told of what comes.
    upload: Option<Arc<Progress>>,
    /// Fires when the time for the exchange is over.
    timer: Option<Pin<Box<Sleep>>>,
}

/// The connection that an answer comes on.
#[derive(Debug)]
enum Held {
    Lease(Lease),
    /// The request isn't sent yet.
    Duplex(Duplex),
    /// It has been given back.
    Nothing,
}

/// A connection on which an answer comes while the rest of the request is sent: by a task of its own, since a client may take
/// nothing of the answer before it has sent all.
#[derive(Debug)]
struct Duplex {
    lease: Arc<Mutex<Option<Lease>>>,
    upload: AbortHandle,
}

impl Duplex {
    fn begin(lease: Lease) -> Self {
        let lease = Arc::new(Mutex::new(Some(lease)));
        let shared = lease.clone();
        let upload = poll_fn(move |context| match shared.lock().as_mut().and_then(Lease::http1_mut) {
            Some(http1) => http1.poll_rest(context),
            None => Poll::Ready(()),
        });
        Self { lease, upload: tokio::spawn(upload).abort_handle() }
    }
}

impl Drop for Duplex {
    fn drop(&mut self) {
        self.upload.abort();
    }
}

impl Held {
    /// What is said on the connection, if that is HTTP/1.1.
    fn with<T>(&self, read: impl FnOnce(&Http1) -> T) -> Option<T> {
        match self {
            Self::Lease(lease) => lease.http1().map(read),
            Self::Duplex(duplex) => duplex.lease.lock().as_ref().and_then(Lease::http1).map(read),
            Self::Nothing => None,
        }
    }

    /// The same, to read on.
    fn with_mut<T>(&mut self, read: impl FnOnce(&mut Http1) -> T) -> Option<T> {
        match self {
            Self::Lease(lease) => lease.http1_mut().map(read),
            Self::Duplex(duplex) => duplex.lease.lock().as_mut().and_then(Lease::http1_mut).map(read),
            Self::Nothing => None,
        }
    }

    fn take(&mut self) -> Option<Lease> {
        match mem::replace(self, Self::Nothing) {
            Self::Lease(lease) => Some(lease),
            Self::Duplex(duplex) => duplex.lease.lock().take(),
            Self::Nothing => None,
        }
    }
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
    /// Of a body that comes: holds the connection until it has ended; if it is dropped before that, the
    /// connection closes.
    pub fn new(incoming: Option<Incoming>, mut lease: Lease) -> Self {
        let spelling = lease.http1_mut().and_then(Http1::take_spelling);
        let held = match lease.http1().is_none_or(Http1::is_sent) {
            true => Held::Lease(lease),
            false => Held::Duplex(Duplex::begin(lease)),
        };
        let mut relayed = Self { incoming, held, spelling, upload: None, timer: None };
        relayed.release_at_end();
        relayed
    }

    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let is_late = self.timer.as_mut().is_some_and(|timer| timer.as_mut().poll(context).is_ready());
        let frame = match is_late {
            true => Poll::Ready(Some(Err(TooLong.into()))),
            false => {
                self.poll_next(context).map_ok(|frame| with_trailers(frame, headers::trailers_towards_client))
            }
        };
        match &frame {
            Poll::Ready(Some(Ok(_))) => {
                self.upload.iter().for_each(|upload| upload.note_answer());
                self.release_at_end();
            }
            Poll::Ready(None) => self.release(),
            // A body that broke off takes its connection with it, when it is dropped.
            Poll::Ready(Some(Err(_))) | Poll::Pending => {}
        }
        frame
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.incoming {
            Some(incoming) => poll_incoming(incoming, context),
            None => self.held.with_mut(|http1| http1.poll_frame(context)).unwrap_or(Poll::Ready(None)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.incoming {
            Some(incoming) => incoming.is_end_stream(),
            None => self.held.with(Http1::has_ended).unwrap_or(true),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.incoming {
            Some(incoming) => incoming.size_hint(),
            None => self.held.with(Http1::size_hint).unwrap_or(SizeHint::with_exact(0)),
        }
    }

    fn release_at_end(&mut self) {
        if self.is_end_stream() {
            self.release();
        }
    }

    fn release(&mut self) {
        if let Some(lease) = self.held.take() {
            lease.release();
        }
    }
}

/// What a body may fail by.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// A frame as it goes on: of trailers, only what may be there.
fn with_trailers(frame: Frame<Bytes>, clean: impl FnOnce(&mut HeaderMap)) -> Frame<Bytes> {
    match frame.into_trailers() {
        Ok(mut trailers) => {
            clean(&mut trailers);
            Frame::trailers(trailers)
        }
        Err(data) => data,
    }
}

impl Body {
    /// How the head was spelt that it came with.
    pub fn spelling(&self) -> Option<&Spelling> {
        match self {
            Self::Request(upload) => upload.spelling.as_deref(),
            Self::Response(relayed) => relayed.spelling.as_deref(),
            Self::Tunnel(tunnel) => tunnel.spelling(),
            Self::Whole(_) | Self::Local(_) => None,
        }
    }

    /// Where interim responses to the request go, if its client takes any.
    pub fn hints(&self) -> Option<&Hints> {
        if let Self::Request(upload) = self { upload.hints.as_ref() } else { None }
    }

    /// Edits interim responses to the request as the route edits its answers.
    pub fn edit_hints(&mut self, edits: &Arc<Edits>) {
        if let Self::Request(Upload { hints: Some(hints), .. }) = self {
            hints.edit(edits);
        }
    }

    /// Takes the body out of a request, in which its hints stay.
    pub fn take(&mut self) -> Self {
        let left = match self {
            Self::Request(upload) => Self::Request(Upload { hints: upload.hints.take(), ..Upload::none() }),
            _ => Self::Whole(None),
        };
        mem::replace(self, left)
    }

    /// How far a client's body has come, if this is one, and it has anything.
    pub fn progress(&self) -> Option<Arc<Progress>> {
        if let Self::Request(upload) = self { upload.progress() } else { None }
    }

    /// The same, which if it is an upstream's breaks off when it hasn't ended by then, and tells the client's body that
    /// some of it comes.
    pub fn until(mut self, deadline: Option<Instant>, upload: Option<Arc<Progress>>) -> Self {
        if let Self::Response(relayed) = &mut self {
            relayed.timer = deadline.map(|deadline| Box::pin(sleep_until(deadline)));
            relayed.upload = upload.filter(|upload| upload.answered.lock().is_some());
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
            Self::Tunnel(_) => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Self::Request(upload) => upload.is_end_stream(),
            Self::Response(relayed) => relayed.is_end_stream(),
            Self::Local(body) => body.is_end_stream(),
            Self::Tunnel(_) => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Request(upload) => upload.size_hint(),
            Self::Response(relayed) => relayed.size_hint(),
            Self::Local(body) => body.size_hint(),
            // How much will be passed on, nobody knows.
            Self::Tunnel(_) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::{join, time::sleep};

    use super::*;

    async fn until_waited_in_vain(pace: &mut Pace) -> Duration {
        let since = Instant::now();
        poll_fn(|context| if pace.has_ended(context) { Poll::Ready(()) } else { Poll::Pending }).await;
        since.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_turns_may_be_silent_while_the_other_speaks() {
        const MOST: Duration = Duration::from_secs(75);
        let mut pace = Pace::new(MOST);
        assert!(until_waited_in_vain(&mut pace).await.abs_diff(MOST) < Duration::from_secs(1));

        let mut pace = Pace::new(MOST);
        pace.progress.note_answer();
        let answer = pace.progress.clone();
        let speaks = async move {
            for _ in 0..10 {
                sleep(MOST * 2).await;
                answer.note_answer();
            }
        };
        let (waited, ()) = join!(until_waited_in_vain(&mut pace), speaks);
        assert!(waited.abs_diff(MOST * 20 + SILENCE_LEAST) < Duration::from_secs(1), "{waited:?}");
    }
}
