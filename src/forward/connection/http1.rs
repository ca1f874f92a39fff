//! HTTP/1.1 connections to servers: one exchange at a time, whose request and response may be in transit at
//! the same time. There is no task for a connection; the task that waits for the response also sends the
//! request.

use std::{
    fmt,
    future::poll_fn,
    io,
    pin::{Pin, pin},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode, Version,
    header::{CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING},
};
use tokio::{task::coop::unconstrained, time::timeout};

use crate::forward::{
    body::{Body, BoxError},
    connector::CountedConnection,
    hints::{HINTS_MOST, Hints},
};
use tollgate_http1::{
    Ahead, Input, Output, Stream,
    body::{Decoder, Encoder},
    head::{self, Spelt, Unreadable},
};

use super::{RESPONSE_BUFFER, discard};

/// An HTTP/1.1 connection.
pub(crate) struct Http1 {
    stream: Box<dyn Stream>,
    input: Input,
    output: Output,
    /// The unsent rest of the request body.
    upload: Option<(Body, Encoder)>,
    /// The rest of the request body after the server has stopped reading.
    unread: Option<Body>,
    /// The spelling of the response's header names, and the decoder of its body.
    spelling: Spelt,
    decoder: Decoder,
    /// True if another request may follow.
    persists: bool,
    /// True if the response has no body although its head may state one, so that a faulty server may send one.
    omits_body: bool,
    /// The number of interim responses to the current request.
    hints: usize,
    /// True once the whole head has been written: before that, the server can't have processed the request; and true if the server has
    /// sent anything since the request began.
    has_sent: bool,
    has_received: bool,
    /// Set when a piece of the body comes from the client.
    has_moved: bool,
    /// The error in sending the rest of the request, and the task that reads the response meanwhile.
    fault: Option<BoxError>,
    reader: Option<Waker>,
    counted: CountedConnection,
}

impl Http1 {
    /// Starts HTTP/1.1 on a byte stream.
    pub(crate) fn new(stream: impl Stream, counted: CountedConnection) -> Self {
        Self {
            stream: Box::new(stream),
            input: Input::default(),
            output: Output::default(),
            upload: None,
            unread: None,
            spelling: None,
            decoder: Decoder::Length(0),
            persists: true,
            omits_body: false,
            hints: 0,
            has_sent: false,
            has_received: false,
            has_moved: false,
            fault: None,
            reader: None,
            counted,
        }
    }

    /// Sends a request and returns the head of the response. The request body is taken. Interim responses are
    /// forwarded to the client at once.
    ///
    /// # Errors
    /// The connection failed before the response, the response isn't HTTP, or the request body failed.
    pub(crate) async fn send(&mut self, request: &mut Request<Body>) -> Result<Response<()>, BoxError> {
        let is_head = request.method() == Method::HEAD;
        self.begin(request);
        let hints = request.body().hints();
        poll_fn(|context| self.poll_response(is_head, hints, context)).await
    }

    /// Returns the spelling of the response's header names.
    pub(crate) fn take_spelling(&mut self) -> Spelt {
        self.spelling.take()
    }

    /// Returns true if the server may have processed the request.
    pub(super) fn has_sent(&self) -> bool {
        self.has_sent
    }

    /// Returns true if the server has sent anything since the request was sent.
    pub(super) fn has_received(&self) -> bool {
        self.has_received
    }

    /// Returns true if the exchange has ended and another may follow.
    pub(super) fn is_ready(&self) -> bool {
        let has_ended = self.decoder.has_ended() && self.is_sent();
        // Bytes that arrive unasked must not be taken for the next response.
        has_ended && self.persists && self.input.bytes().is_empty()
    }

    /// Returns true if a faulty server may still send a body, which must not be taken for the next response.
    pub(super) fn omits_body(&self) -> bool {
        self.omits_body
    }

    /// Returns true if no other exchange can follow.
    pub(crate) fn is_closed(&self) -> bool {
        !self.persists
    }

    /// Returns true if the server has neither sent anything nor closed the connection.
    pub(super) fn is_quiet(&mut self) -> bool {
        // The reactor already knows if something has arrived, so this usually costs no system call.
        // Unconstrained, because a task that has used up its cooperative budget would be told that nothing
        // has.
        let more = poll_fn(|context| self.input.poll_more(&mut *self.stream, context));
        pin!(unconstrained(more)).poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    /// Waits until the request has been sent, after the response has ended. Returns false if it can't be, or if nothing moves for this
    /// time: a client may never finish a request that is already answered.
    pub(crate) async fn ready(&mut self, patience: Duration) -> bool {
        loop {
            let unwritten = self.output.unwritten();
            self.has_moved = false;
            match timeout(patience, poll_fn(|context| self.poll_upload(context))).await {
                Ok(sent) => return sent.is_ok(),
                Err(_) if self.has_moved || self.output.unwritten() < unwritten => {}
                Err(_) => return false,
            }
        }
    }

    /// Has the rest of the request body [discarded](discard), if the server won't read it, after the response has ended.
    pub(crate) fn discard_unread(&mut self) {
        self.unread.take().or(self.upload.take().map(|(body, _)| body)).into_iter().for_each(discard);
    }

    /// Returns the byte stream, after the server has switched to another protocol.
    pub(super) fn into_stream(self) -> (Ahead<Box<dyn Stream>>, CountedConnection) {
        (self.input.before(self.stream), self.counted)
    }

    /// Returns the next frame of the response body. Another task sends the rest of the request.
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

    /// Sends the rest of the request while the response is being received. If this fails, the response fails
    /// too.
    pub(crate) fn poll_rest(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Err(fault) = ready!(self.poll_upload(context)) {
            (self.fault, self.upload, self.persists) = (Some(fault), None, false);
            self.reader.take().into_iter().for_each(Waker::wake);
        }
        Poll::Ready(())
    }

    /// Returns true if the whole request has been sent.
    pub(crate) fn is_sent(&self) -> bool {
        self.upload.is_none() && self.output.is_empty()
    }

    /// Returns true if the response has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.decoder.has_ended()
    }

    /// Returns the length of the rest of the response body.
    pub(crate) fn size_hint(&self) -> SizeHint {
        self.decoder.size_hint()
    }

    /// Writes the head of a request.
    fn begin(&mut self, request: &mut Request<Body>) {
        (self.has_sent, self.has_received, self.hints) = (false, false, 0);
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

    fn poll_response(
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
                // A final response follows an interim one (RFC 9110, section 15.2).
                if answer.status().is_informational() && answer.status() != StatusCode::SWITCHING_PROTOCOLS {
                    self.hints += 1;
                    if self.hints > HINTS_MOST {
                        return Poll::Ready(Err(malformed("too many interim responses")));
                    }
                    if let Some(hints) = hints {
                        hints.forward(answer);
                    }
                    continue;
                }
                self.decoder = decoder(is_head, &answer)?;
                self.omits_body = is_head || self.decoder.has_ended() && states_body(answer.headers());
                // A server that answers in HTTP/1.0 can't be sent chunks.
                self.persists &= answer.version() == Version::HTTP_11
                    && head::persists(answer.version(), answer.headers())
                    && answer.status() != StatusCode::SWITCHING_PROTOCOLS
                    && !matches!(self.decoder, Decoder::UntilClose);
                let (head, spelling) = answer.into_parts();
                self.spelling = spelling;
                return Poll::Ready(Ok(Response::from_parts(head, ())));
            }
            if ready!(self.input.poll_more(&mut *self.stream, context))? == 0 {
                let ended = io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection");
                return Poll::Ready(Err(ended.into()));
            }
            self.has_received = true;
        }
    }

    /// Sends the part of the request that is available. If the server stops reading, that is no error here,
    /// since it may have responded.
    ///
    /// # Errors
    /// The request body failed.
    fn poll_upload(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        loop {
            // Output is collected first, so that available data is sent together.
            if self.output.takes_more()
                && let Some((body, encoder)) = &mut self.upload
                && let Poll::Ready(frame) = Pin::new(body).poll_frame(context)
            {
                match frame {
                    Some(frame) => {
                        self.has_moved = true;
                        encoder.encode(frame?, &mut self.output);
                    }
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
                    self.unread = self.upload.take().map(|(body, _)| body);
                    (self.output, self.persists) = (Output::default(), false);
                }
            }
        }
    }
}

/// Frames the request body, and sets the header fields for that. `None` if there is no body.
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

/// Returns the decoder for the body of a response (RFC 9112, section 6.3).
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
        // The end of such a body could be found, but it can't be forwarded, since no coding is.
        Some(false) => Err(malformed("a transfer coding other than chunked")),
        None => Ok(head::content_length(headers)
            .map_err(|_| malformed("an invalid Content-Length"))?
            .map_or(Decoder::UntilClose, Decoder::Length)),
    }
}

/// Returns true if a header states a body that isn't empty.
fn states_body(headers: &HeaderMap) -> bool {
    headers.contains_key(TRANSFER_ENCODING) || headers.get(CONTENT_LENGTH).is_some_and(|length| length != "0")
}

fn unreadable(error: Unreadable) -> BoxError {
    malformed(match error {
        Unreadable::Malformed | Unreadable::TargetTooLong => "the response is not HTTP/1",
        Unreadable::TooLarge => "the response head is too large",
    })
}

/// Returns the error of a response that isn't valid.
pub(super) fn malformed(what: &'static str) -> BoxError {
    io::Error::new(io::ErrorKind::InvalidData, what).into()
}

impl fmt::Debug for Http1 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http1").field("persists", &self.persists).finish_non_exhaustive()
    }
}
