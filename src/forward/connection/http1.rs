//! A connection to a server on which HTTP/1.1 is spoken: one exchange at a time, whose request and answer may be on their
//! way at the same time. No task works on it: who waits for the answer sends the request as well.

use std::{
    fmt,
    future::poll_fn,
    io,
    pin::{Pin, pin},
    task::{Context, Poll, Waker, ready},
};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use hyper::{
    Method, Request, Response, StatusCode, Version,
    header::{CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING},
};
use tokio::task::coop::unconstrained;

use crate::forward::{
    body::{Body, BoxError},
    connector::Counted,
    hints::{HINTS_MOST, Hints},
};
use tollgate_http1::{
    Ahead, Input, Output, Stream,
    body::{Decoder, Encoder},
    head::{self, Spelt, Unreadable},
};

use super::RESPONSE_BUFFER;

/// A connection for one exchange after the other.
pub(crate) struct Http1 {
    stream: Box<dyn Stream>,
    input: Input,
    output: Output,
    /// What of the request's body isn't sent yet.
    upload: Option<(Body, Encoder)>,
    /// Of the answer's head, and of its body.
    spelling: Spelt,
    decoder: Decoder,
    /// Whether another request may follow.
    persists: bool,
    /// Interim responses to the request so far.
    hints: usize,
    /// Whether any of the request may have reached the server, and the server has said anything since.
    has_sent: bool,
    has_heard: bool,
    /// What the rest of the request has failed by, and who reads the answer meanwhile.
    fault: Option<BoxError>,
    reader: Option<Waker>,
    counted: Counted,
}

impl Http1 {
    /// Begins to speak on a stream.
    pub(crate) fn new(stream: impl Stream, counted: Counted) -> Self {
        Self {
            stream: Box::new(stream),
            input: Input::default(),
            output: Output::default(),
            upload: None,
            spelling: None,
            decoder: Decoder::Length(0),
            persists: true,
            hints: 0,
            has_sent: false,
            has_heard: false,
            fault: None,
            reader: None,
            counted,
        }
    }

    /// Sends a request, of which a body is taken, and gives the answer's head. Interim responses go to the client at once.
    ///
    /// # Errors
    /// It broke before the answer, which may not be HTTP; or the request's body did.
    pub(crate) async fn send(&mut self, request: &mut Request<Body>) -> Result<Response<()>, BoxError> {
        let is_head = request.method() == Method::HEAD;
        self.begin(request);
        let hints = request.body().hints();
        poll_fn(|context| self.poll_answer(is_head, hints, context)).await
    }

    /// How the head of the answer was spelt.
    pub(crate) fn take_spelling(&mut self) -> Spelt {
        self.spelling.take()
    }

    /// Whether any of the request may have reached the server.
    pub(super) fn has_sent(&self) -> bool {
        self.has_sent
    }

    /// Whether the server has said anything since the request was sent.
    pub(super) fn has_heard(&self) -> bool {
        self.has_heard
    }

    /// Whether the exchange has ended, and another one may follow.
    pub(super) fn is_ready(&self) -> bool {
        let has_ended = self.decoder.has_ended() && self.is_sent();
        // What comes without having been asked for is no answer to what is asked next.
        has_ended && self.persists && self.input.bytes().is_empty()
    }

    /// Whether no other exchange can follow.
    pub(super) fn is_closed(&self) -> bool {
        !self.persists
    }

    /// Whether the server has left it as it was, since nothing was asked of it.
    pub(super) fn is_quiet(&mut self) -> bool {
        // As long as nothing has come, nothing is asked of the kernel. A task that is to pause, having done so much, must be told
        // all the same.
        let more = poll_fn(|context| self.input.poll_more(&mut *self.stream, context));
        pin!(unconstrained(more)).poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    /// Waits until the request has been sent, the answer having ended.
    pub(super) async fn ready(&mut self) -> Result<(), BoxError> {
        poll_fn(|context| self.poll_upload(context)).await
    }

    /// The connection itself, on which the server speaks another protocol now.
    pub(super) fn into_stream(self) -> (Ahead<Box<dyn Stream>>, Counted) {
        (self.input.before(self.stream), self.counted)
    }

    /// The next of the answer's body. Somebody else sends the rest of the request.
    pub(crate) fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(fault) = self.fault.take() {
            return Poll::Ready(Some(Err(fault)));
        }
        let frame = self.decoder.poll_frame(&mut self.input, &mut *self.stream, context);
        if frame.is_pending() && !self.is_sent() {
            self.reader = Some(context.waker().clone());
        }
        frame.map(|frame| frame.map(|frame| frame.map_err(Into::into)))
    }

    /// Sends the rest of the request while the answer comes. If that fails the answer breaks off.
    pub(crate) fn poll_rest(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Err(fault) = ready!(self.poll_upload(context)) {
            (self.fault, self.upload, self.persists) = (Some(fault), None, false);
            self.reader.take().into_iter().for_each(Waker::wake);
        }
        Poll::Ready(())
    }

    /// Whether the request has been sent.
    pub(crate) fn is_sent(&self) -> bool {
        self.upload.is_none() && self.output.is_empty()
    }

    /// Whether the answer has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.decoder.has_ended()
    }

    /// How long the rest of the answer is.
    pub(crate) fn size_hint(&self) -> SizeHint {
        self.decoder.size_hint()
    }

    /// Writes a request's head.
    fn begin(&mut self, request: &mut Request<Body>) {
        (self.has_sent, self.has_heard, self.hints) = (false, false, 0);
        let encoder = frame(request);
        let bytes = self.output.bytes();
        bytes.reserve(512);
        bytes.extend_from_slice(request.method().as_str().as_bytes());
        bytes.push(b' ');
        let path = request.uri().path_and_query();
        bytes.extend_from_slice(path.map_or("/", |path| path.as_str()).as_bytes());
        bytes.extend_from_slice(b" HTTP/1.1\r\n");
        head::write(request.headers(), request.body().spelling(), bytes);
        bytes.extend_from_slice(b"\r\n");
        self.upload = encoder.map(|encoder| (request.body_mut().take(), encoder));
    }

    fn poll_answer(
        &mut self,
        is_head: bool,
        hints: Option<&Hints>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Response<()>, BoxError>> {
        if let Poll::Ready(Err(error)) = self.poll_upload(context) {
            return Poll::Ready(Err(error));
        }
        loop {
            if !self.input.bytes().is_empty()
                && let Some(answer) = head::response(&mut self.input, RESPONSE_BUFFER).map_err(unreadable)?
            {
                // An interim one is followed by another (RFC 9110, section 15.2).
                if answer.status().is_informational() && answer.status() != StatusCode::SWITCHING_PROTOCOLS {
                    self.hints += 1;
                    if self.hints > HINTS_MOST {
                        return Poll::Ready(Err(malformed("interim responses without end")));
                    }
                    if let Some(hints) = hints {
                        hints.pass(answer);
                    }
                    continue;
                }
                self.decoder = decoder(is_head, &answer)?;
                // Who answers in HTTP/1.0 can't be sent chunks.
                self.persists &= answer.version() == Version::HTTP_11
                    && head::persists(answer.version(), answer.headers())
                    && answer.status() != StatusCode::SWITCHING_PROTOCOLS
                    && !matches!(self.decoder, Decoder::UntilClose);
                let (head, spelling) = answer.into_parts();
                self.spelling = spelling;
                return Poll::Ready(Ok(Response::from_parts(head, ())));
            }
            if ready!(self.input.poll_more(&mut *self.stream, context))? == 0 {
                let ended = io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed");
                return Poll::Ready(Err(ended.into()));
            }
            self.has_heard = true;
        }
    }

    /// Sends what there is of the request. A server that takes no more of it may have answered all the same.
    ///
    /// # Errors
    /// The request's body failed.
    fn poll_upload(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        loop {
            // What is there already goes out together.
            if self.output.takes_more()
                && let Some((body, encoder)) = &mut self.upload
                && let Poll::Ready(frame) = Pin::new(body).poll_frame(context)
            {
                match frame {
                    Some(frame) => encoder.encode(frame?, &mut self.output),
                    None => {
                        encoder.end(&mut self.output)?;
                        self.upload = None;
                    }
                }
                continue;
            }
            if self.output.is_empty() {
                return if self.upload.is_none() { Poll::Ready(Ok(())) } else { Poll::Pending };
            }
            match ready!(self.output.poll_flush(&mut *self.stream, context)) {
                Ok(()) => self.has_sent = true,
                Err(_) => {
                    (self.output, self.upload, self.persists) = (Output::default(), None, false);
                }
            }
        }
    }
}

/// Says how long a request's body is, if it has one, and how that is framed.
fn frame(request: &mut Request<Body>) -> Option<Encoder> {
    let (is_empty, length) = (request.body().is_end_stream(), request.body().size_hint().exact());
    let headers = request.headers_mut();
    if is_empty {
        return None;
    }
    let Some(length) = length else {
        headers.remove(CONTENT_LENGTH);
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        return Some(Encoder::chunked(headers));
    };
    if head::unify_length(headers) != Ok(Some(length)) {
        headers.insert(CONTENT_LENGTH, length.into());
    }
    Some(Encoder::Length(length))
}

/// How long the body of an answer is (RFC 9112, section 6.3).
fn decoder<B>(is_head: bool, answer: &Response<B>) -> Result<Decoder, BoxError> {
    let headers = answer.headers();
    let status = answer.status();
    let has_none = matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    if has_none || status.is_informational() || is_head {
        return Ok(Decoder::Length(0));
    }
    match head::is_chunked(headers) {
        Some(_) if answer.version() == Version::HTTP_10 => Err(malformed("a transfer coding in HTTP/1.0")),
        Some(true) => Ok(Decoder::chunked(RESPONSE_BUFFER)),
        // Where it ends could be told, but not what it is: no coding goes on.
        Some(false) => Err(malformed("a transfer coding other than chunked")),
        None => Ok(head::content_length(headers)
            .map_err(|_| malformed("a Content-Length that is no length"))?
            .map_or(Decoder::UntilClose, Decoder::Length)),
    }
}

fn unreadable(error: Unreadable) -> BoxError {
    malformed(match error {
        Unreadable::Malformed | Unreadable::TargetTooLong => "the answer is no HTTP/1",
        Unreadable::TooLarge => "the answer's head is too large",
    })
}

fn malformed(what: &'static str) -> BoxError {
    io::Error::new(io::ErrorKind::InvalidData, what).into()
}

impl fmt::Debug for Http1 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http1").field("persists", &self.persists).finish_non_exhaustive()
    }
}
