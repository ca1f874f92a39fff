//! A client's connection and the body of its request, which is read by another task.

use std::{
    fmt,
    future::{Future, poll_fn},
    io, mem,
    pin::{Pin, pin},
    sync::{Arc, Weak},
    task::{Context, Poll, Waker, ready},
};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::task::coop::unconstrained;

use super::{Input, Output, Stream, body::Decoder};

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// The most bytes of interim responses that are queued for a client. Further ones are dropped.
const INTERIM_MOST: usize = 16 << 10;
/// The most bytes of an unread body that are skipped, so that the connection can be used again.
const SKIPPED_MOST: usize = 64 << 10;
/// The least bytes that a chunk of it counts as: each takes time, however small it is.
const SKIPPED_CHUNK: usize = 16;

/// A client's connection, with its unused input and the body being received.
#[derive(Debug)]
pub struct Wire<S> {
    /// The stream.
    pub stream: S,
    /// The bytes received and not used yet.
    pub input: Input,
    decoder: Decoder,
    /// True until somebody reads the body.
    is_unread: bool,
    /// The number of pieces of bodies that have been read.
    pieces: usize,
    /// True if the client waits for `100 Continue` before it sends the body.
    expects_continue: bool,
    /// The interim responses to be written, including `100 Continue`.
    interim: Output,
    /// The task that reads the body and waits for the interim responses to be written.
    writer: Option<Waker>,
    /// The task that waits for more of the body.
    reader: BodyReader,
    /// True if the reader of the body has been dropped.
    is_given_up: bool,
    /// True if receiving the body has failed.
    is_broken: bool,
    /// The connection's task, woken when the body has ended or is given up.
    task: Option<Waker>,
}

/// The task that waits for more of a body. It is woken when the connection is dropped, which ends the body.
#[derive(Debug, Default)]
struct BodyReader(Option<Waker>);

impl BodyReader {
    fn wait(&mut self, context: &Context<'_>) {
        if !self.0.as_ref().is_some_and(|task| task.will_wake(context.waker())) {
            self.0 = Some(context.waker().clone());
        }
    }
}

impl Drop for BodyReader {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(Waker::wake);
    }
}

/// Sends interim responses (RFC 9110, section 15.2) to the client of a request before the final response.
#[derive(Clone)]
pub struct Interim(Weak<dyn BodySource>);

/// The body of a request, read from its connection on demand. If the connection ends first, the body ends
/// with an error.
pub struct Incoming {
    wire: Weak<dyn BodySource>,
    has_ended: bool,
}

impl<S: Stream> Wire<S> {
    /// Creates a connection from which some bytes may have been read already.
    pub fn new(stream: S, input: Input) -> Self {
        Self {
            stream,
            input,
            decoder: Decoder::Length(0),
            is_unread: false,
            pieces: 0,
            expects_continue: false,
            interim: Output::default(),
            writer: None,
            reader: BodyReader::default(),
            is_given_up: false,
            is_broken: false,
            task: None,
        }
    }

    /// Returns true if no more of a body will come.
    pub fn body_has_ended(&self) -> bool {
        self.decoder.has_ended()
    }

    /// Begins the response; no interim response is sent after that. Returns the bytes of interim responses
    /// not written yet, and whether the body may still end. It can't if nobody reads it and there is more of
    /// it than has arrived.
    pub fn begin_response(&mut self) -> (Vec<u8>, bool) {
        self.expects_continue = false;
        // The connection writes them before the response.
        let rest = mem::take(&mut self.interim).into_rest();
        self.wake_writer();
        let end = self.poll_body_end(&mut Context::from_waker(Waker::noop()));
        (rest, !matches!(end, Poll::Ready(false)))
    }

    /// Waits until the client has hung up, and sends interim responses meanwhile. A hang-up shows only behind
    /// everything that the client has sent, so a body that nobody has read yet and bytes after the body are read
    /// ahead, up to the limit of [`Input::poll_ahead`]. A body's reader notices the hang-up itself.
    pub fn poll_left(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        if !self.interim.is_empty()
            && let Poll::Ready(written) = self.interim.poll_flush(&mut self.stream, context)
        {
            if let Err(error) = written {
                return Poll::Ready(error);
            }
            self.wake_writer();
        }
        if !self.body_has_ended() {
            self.wake_later(context);
            if self.is_being_read() {
                return Poll::Pending;
            }
        }
        loop {
            match ready!(self.input.poll_ahead(&mut self.stream, context)) {
                Ok(0) => return Poll::Ready(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) => return Poll::Ready(error),
            }
        }
    }

    /// Returns true if [`Self::poll_left`] doesn't look for the client's hang-up: the body is being read, and its reader may be waiting for the
    /// server; or as much has been read ahead as may be.
    pub fn hides_hang_up(&self) -> bool {
        self.is_being_read() || self.input.is_full()
    }

    fn is_being_read(&self) -> bool {
        !self.body_has_ended() && !self.is_unread && !self.is_given_up
    }

    /// Returns the number of pieces of the body that have been read, to compare it with a later one.
    pub fn pieces(&self) -> usize {
        self.pieces
    }

    /// Waits until nobody reads the body any more. Returns true if it has ended. A rest of the body is
    /// skipped if it has arrived and isn't too much.
    pub fn poll_body_end(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        if !self.body_has_ended() && !self.is_given_up {
            self.wake_later(context);
            return Poll::Pending;
        }
        // Unconstrained, because a task that has used up its cooperative budget would be told that no more has arrived.
        pin!(unconstrained(poll_fn(|context| Poll::Ready(self.skip_arrived(context))))).poll(context)
    }

    /// Skips what has arrived of the body, if it isn't too much. Returns true if the body has ended.
    fn skip_arrived(&mut self, context: &mut Context<'_>) -> bool {
        let mut most = SKIPPED_MOST;
        while !self.body_has_ended() && most > 0 && self.decoder.size_hint().lower() <= most as u64 {
            let frame = self.decoder.poll_frame(&mut self.input, &mut self.stream, context);
            let Poll::Ready(Some(Ok(frame))) = frame else { break };
            most = most.saturating_sub(frame.data_ref().map_or(0, Bytes::len).max(SKIPPED_CHUNK));
        }
        self.body_has_ended()
    }

    fn wake_later(&mut self, context: &Context<'_>) {
        if !self.task.as_ref().is_some_and(|task| task.will_wake(context.waker())) {
            self.task = Some(context.waker().clone());
        }
    }

    fn wake_writer(&mut self) {
        self.writer.take().into_iter().for_each(Waker::wake);
    }

    /// Sends `100 Continue`, if the client waits for it.
    fn poll_continue(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if mem::take(&mut self.expects_continue) && self.input.bytes().is_empty() {
            self.interim.bytes().extend_from_slice(CONTINUE);
        }
        if self.interim.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let written = self.interim.poll_flush(&mut self.stream, context);
        self.writer = written.is_pending().then(|| context.waker().clone());
        written
    }
}

impl Interim {
    /// Creates a sender to the client of the current request on this connection.
    pub fn to<S: Stream>(wire: &Arc<Mutex<Wire<S>>>) -> Self {
        let wire: Weak<Mutex<Wire<S>>> = Arc::downgrade(wire);
        Self(wire)
    }

    /// Sends the head of an interim response, including the empty line that ends it. It is dropped if the
    /// client has left or too many bytes are queued.
    pub fn send(&self, head: &[u8]) {
        if let Some(wire) = self.0.upgrade() {
            wire.queue_interim(head);
        }
    }
}

impl Incoming {
    /// Begins to receive a body. If the client expects `100 Continue`, the first read sends it.
    pub fn begin<S: Stream>(wire: &Arc<Mutex<Wire<S>>>, decoder: Decoder, expects_continue: bool) -> Self {
        let mut locked = wire.lock();
        let has_ended = decoder.has_ended();
        (locked.decoder, locked.expects_continue) = (decoder, expects_continue);
        (locked.is_unread, locked.is_given_up) = (true, false);
        drop(locked);
        let wire: Arc<dyn BodySource> = wire.clone();
        Self { wire: Arc::downgrade(&wire), has_ended }
    }
}

/// A connection from which a body is read.
trait BodySource: Send + Sync {
    /// Returns the next frame of the body, and whether the body has ended with it.
    fn poll_frame(&self, context: &mut Context<'_>) -> (Poll<Option<io::Result<Frame<Bytes>>>>, bool);
    fn size_hint(&self) -> SizeHint;
    /// Stops reading. The rest of the body is skipped.
    fn give_up(&self);
    /// Queues the head of an interim response.
    fn queue_interim(&self, head: &[u8]);
}

impl<S: Stream> BodySource for Mutex<Wire<S>> {
    fn poll_frame(&self, context: &mut Context<'_>) -> (Poll<Option<io::Result<Frame<Bytes>>>>, bool) {
        let wire = &mut *self.lock();
        wire.is_unread = false;
        match wire.poll_continue(context) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => return (Poll::Ready(Some(Err(error))), false),
            Poll::Pending => {
                wire.reader.wait(context);
                return (Poll::Pending, false);
            }
        }
        let frame = wire.decoder.poll_frame(&mut wire.input, &mut wire.stream, context);
        if matches!(frame, Poll::Ready(Some(Err(_)))) && !mem::replace(&mut wire.is_broken, true) {
            // Reports the error on the next poll, so that the bytes received before are delivered first.
            context.waker().wake_by_ref();
            return (Poll::Pending, false);
        }
        let has_ended = wire.body_has_ended();
        wire.pieces = wire.pieces.wrapping_add(usize::from(frame.is_ready()));
        if has_ended {
            wire.reader.0 = None;
        } else if frame.is_pending() {
            wire.reader.wait(context);
        }
        if has_ended && let Some(task) = wire.task.take_if(|task| !task.will_wake(context.waker())) {
            task.wake();
        }
        (frame, has_ended)
    }

    fn size_hint(&self) -> SizeHint {
        self.lock().decoder.size_hint()
    }

    fn give_up(&self) {
        let mut wire = self.lock();
        wire.is_given_up = true;
        wire.reader.0 = None;
        wire.task.take().into_iter().for_each(Waker::wake);
    }

    fn queue_interim(&self, head: &[u8]) {
        let mut wire = self.lock();
        if wire.interim.unwritten() < INTERIM_MOST {
            wire.interim.bytes().extend_from_slice(head);
        }
    }
}

impl HttpBody for Incoming {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let Some(wire) = self.wire.upgrade() else {
            return Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into())));
        };
        let (frame, has_ended) = wire.poll_frame(context);
        self.has_ended = has_ended;
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended
    }

    fn size_hint(&self) -> SizeHint {
        match self.wire.upgrade() {
            Some(wire) if !self.has_ended => wire.size_hint(),
            _ => SizeHint::with_exact(0),
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.has_ended
            && let Some(wire) = self.wire.upgrade()
        {
            wire.give_up();
        }
    }
}

impl fmt::Debug for Interim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Interim").finish_non_exhaustive()
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming").field("has_ended", &self.has_ended).finish_non_exhaustive()
    }
}
