//! A connection on which requests come, and their bodies, which are read elsewhere.

use std::{
    fmt, io, mem,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, Waker, ready},
};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;

use super::{Input, Output, Stream, body::Decoder};

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// Bytes of interim responses that wait for a client before further ones are dropped.
const INTERIM_MOST: usize = 16 << 10;

/// A connection, what has come of it, and the body that is coming.
#[derive(Debug)]
pub struct Wire<S> {
    /// The connection itself.
    pub stream: S,
    /// What has come, and isn't used yet.
    pub input: Input,
    decoder: Decoder,
    /// The client waits to be told that its body is wanted.
    expects_continue: bool,
    /// Interim responses, that one among them, and the task that reads the body and waits until it is written.
    interim: Output,
    writer: Option<Waker>,
    /// Who was to read the body wants no more of it.
    is_given_up: bool,
    /// The body has broken off.
    is_broken: bool,
    /// Woken when the body has ended, or is given up.
    task: Option<Waker>,
}

/// Sends interim responses (RFC 9110, section 15.2) to the client of a request, before the final one.
#[derive(Clone)]
pub struct Interim(Weak<dyn Source>);

/// The body of a request, which is read from its connection as it is asked for. It ends with the connection, too, but then
/// by an error.
pub struct Incoming {
    wire: Weak<dyn Source>,
    has_ended: bool,
}

impl<S: Stream> Wire<S> {
    /// A connection of which something has come.
    pub fn new(stream: S, input: Input) -> Self {
        Self {
            stream,
            input,
            decoder: Decoder::Length(0),
            expects_continue: false,
            interim: Output::default(),
            writer: None,
            is_given_up: false,
            is_broken: false,
            task: None,
        }
    }

    /// Whether nothing of a body is to come any more.
    pub fn body_has_ended(&self) -> bool {
        self.decoder.has_ended()
    }

    /// Begins the answer, before which no more interim responses go out. Returns what is left to be written of those, and whether
    /// the body may end: unless nobody reads it, and there is more of it than came with the head.
    pub fn begin_answer(&mut self) -> (Vec<u8>, bool) {
        self.expects_continue = false;
        // The connection writes the rest with the answer.
        let rest = mem::take(&mut self.interim).into_rest();
        self.wake_writer();
        let end = self.poll_body_end(&mut Context::from_waker(Waker::noop()));
        (rest, !matches!(end, Poll::Ready(false)))
    }

    /// Waits until the client has hung up, and sends interim responses meanwhile. A hang-up shows behind all that the client has
    /// sent, so what follows its body is read ahead, as far as [`Input::poll_ahead`] goes.
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
            return Poll::Pending;
        }
        loop {
            match ready!(self.input.poll_ahead(&mut self.stream, context)) {
                Ok(0) => return Poll::Ready(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) => return Poll::Ready(error),
            }
        }
    }

    /// Waits until nobody reads the body any more, and tells whether it has ended then. What is left of it is passed over, if
    /// it is there in one piece.
    pub fn poll_body_end(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        if !self.body_has_ended() && !self.is_given_up {
            self.wake_later(context);
            return Poll::Pending;
        }
        if !self.body_has_ended() {
            let _ = self.decoder.poll_frame(&mut self.input, &mut self.stream, context);
        }
        Poll::Ready(self.body_has_ended())
    }

    fn wake_later(&mut self, context: &Context<'_>) {
        if !self.task.as_ref().is_some_and(|task| task.will_wake(context.waker())) {
            self.task = Some(context.waker().clone());
        }
    }

    fn wake_writer(&mut self) {
        self.writer.take().into_iter().for_each(Waker::wake);
    }

    /// Tells the client that its body is wanted, if it waits for that.
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
    /// To the client of the request that is answered on this connection.
    pub fn to<S: Stream>(wire: &Arc<Mutex<Wire<S>>>) -> Self {
        let wire: Weak<Mutex<Wire<S>>> = Arc::downgrade(wire);
        Self(wire)
    }

    /// Sends the head of one with the empty line that ends it; unless the client has left, or takes none of those before it.
    pub fn send(&self, head: &[u8]) {
        if let Some(wire) = self.0.upgrade() {
            wire.inform(head);
        }
    }
}

impl Incoming {
    /// A body that comes now, perhaps only if the client is told that it is wanted.
    pub fn begin<S: Stream>(wire: &Arc<Mutex<Wire<S>>>, decoder: Decoder, expects_continue: bool) -> Self {
        let mut locked = wire.lock();
        let has_ended = decoder.has_ended();
        (locked.decoder, locked.expects_continue, locked.is_given_up) = (decoder, expects_continue, false);
        drop(locked);
        let wire: Arc<dyn Source> = wire.clone();
        Self { wire: Arc::downgrade(&wire), has_ended }
    }
}

/// What bodies come from.
trait Source: Send + Sync {
    /// The next of the body, and whether that was the last.
    fn poll_frame(&self, context: &mut Context<'_>) -> (Poll<Option<io::Result<Frame<Bytes>>>>, bool);
    fn size_hint(&self) -> SizeHint;
    /// Has what is left of the body be passed over.
    fn give_up(&self);
    /// Has the head of an interim response written.
    fn inform(&self, head: &[u8]);
}

impl<S: Stream> Source for Mutex<Wire<S>> {
    fn poll_frame(&self, context: &mut Context<'_>) -> (Poll<Option<io::Result<Frame<Bytes>>>>, bool) {
        let wire = &mut *self.lock();
        match wire.poll_continue(context) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => return (Poll::Ready(Some(Err(error))), false),
            Poll::Pending => return (Poll::Pending, false),
        }
        let frame = wire.decoder.poll_frame(&mut wire.input, &mut wire.stream, context);
        if matches!(frame, Poll::Ready(Some(Err(_)))) && !mem::replace(&mut wire.is_broken, true) {
            // It is found broken again; first, what has come of it can go on.
            context.waker().wake_by_ref();
            return (Poll::Pending, false);
        }
        let has_ended = wire.body_has_ended();
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
        wire.task.take().into_iter().for_each(Waker::wake);
    }

    fn inform(&self, head: &[u8]) {
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
