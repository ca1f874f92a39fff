//! HTTP/1.1 with clients: requests are processed one after the other.
//!
//! The memory for a request is boxed, so that idle connections don't reserve it. While a request is in
//! flight, bytes after it are read ahead within a limit, since a hang-up of the client is visible only behind
//! them.
//!
//! The steps of a connection, from a head to the end of its response, stand in one file, since each continues where the one before it left off.

pub(crate) mod head;
mod silence;
#[cfg(test)]
mod tests;

use std::{
    future::poll_fn,
    io, mem,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::{Request, Response, StatusCode, Version};
use parking_lot::Mutex;
use tokio::{
    io::AsyncWrite,
    task::yield_now,
    time::{Instant, timeout},
};

use crate::gateway::{AnswerBody, Repeats, Upload, Written};
use tollgate_http1::{
    Incoming, Input, Interim, Output, Stream, Wire,
    body::{Decoder, Encoder},
    head::{Spelt, Unreadable, request},
};

use self::{head::RequestFraming, silence::Silence};
use super::{
    connection::ClientConnection,
    linger::{self, LINGER_MOST},
    watched::Watched,
};

/// The time that the end of a body may come later than its last byte.
const END_WITHIN: Duration = Duration::from_secs(5);

/// The most requests of a client in a row. If it has sent more, the worker's other connections get their turn before the next one.
const TURN_MOST: usize = 16;
/// So many bytes of a head count as another request: keys in unusual spellings take long to read.
const TURN_BYTES: usize = 512;

/// A client's HTTP/1.1 connection.
pub(super) struct Http1Server<'c, S> {
    connection: &'c ClientConnection,
    wire: Arc<Mutex<Wire<Watched<S>>>>,
    output: Output,
    /// The current request, if it consists of a head only and an identical one may follow.
    whole: Bytes,
    repeats: Repeats,
    /// The number of requests received since the client was last waited for, with what their heads add.
    turn: usize,
}

/// A request, or the error in its head with the bytes received.
type ReadRequest = Result<(Request<Spelt>, RequestFraming, Decoder), (Unreadable, Bytes)>;

/// The step after a response.
enum AfterResponse {
    Request,
    End,
    Tunnel(Box<AnswerBody>),
}

impl<'c, S: Stream> Http1Server<'c, S> {
    /// Creates a connection from which some bytes may have been read already.
    pub(super) fn new(connection: &'c ClientConnection, stream: Watched<S>, input: Input) -> Self {
        let wire = Arc::new(Mutex::new(Wire::new(stream, input)));
        let (output, whole, repeats) = Default::default();
        Self { connection, wire, output, whole, repeats, turn: 0 }
    }

    /// Serves the connection until it ends.
    ///
    /// # Errors
    /// The connection failed, or the client left before the end of a response.
    pub(super) async fn serve(mut self) -> io::Result<()> {
        let is_unreadable = loop {
            if self.turn >= TURN_MOST {
                self.turn = 0;
                yield_now().await;
            }
            let Some(request) = self.next_request().await? else { break false };
            self.turn += 1;
            let (request, framing, decoder) = match request {
                Ok(request) => request,
                Err((fault, head)) => {
                    let connection = self.connection;
                    connection.status.note_unreadable(fault.code());
                    let gateway = connection.gateway.load();
                    let answer = gateway.answer_unreadable(connection.peer(), &head, fault);
                    drop((gateway, head));
                    write(answer, &RequestFraming::UNREADABLE, Instant::now(), &mut self.output);
                    poll_fn(|context| self.poll_flush(context)).await?;
                    break true;
                }
            };
            // Boxed, so that an idle connection doesn't reserve its memory; created in the box, so that it
            // isn't copied.
            let exchange = Box::write(Box::new_uninit(), self.exchange(request, framing, decoder));
            match Box::into_pin(exchange).await? {
                AfterResponse::Request => {}
                AfterResponse::End => break false,
                AfterResponse::Tunnel(answer) => return self.tunnel(answer).await,
            }
        };
        // What follows has a time limit of its own.
        self.connection.watch.await_nothing();
        timeout(LINGER_MOST, Box::pin(self.close(is_unreadable))).await.unwrap_or(Ok(()))
    }

    /// Closes the connection behind a response. `is_unreadable` says that the request could not be read to its end.
    async fn close(self, is_unreadable: bool) -> io::Result<()> {
        if !self.wire.lock().body_has_ended() {
            // The upstream may still need the rest of the body although it has responded. The client may be
            // waiting for the end of the response.
            poll_fn(|context| Pin::new(&mut self.wire.lock().stream).poll_shutdown(context)).await?;
            poll_fn(|context| self.wire.lock().poll_body_end(context)).await;
        }
        let Some(wire) = Arc::into_inner(self.wire) else { return Ok(()) };
        let mut wire = wire.into_inner();
        // Bytes that were read ahead are no longer in the system's buffer, where lingering would find them.
        let more_may_come = is_unreadable || !wire.body_has_ended() || !wire.input.bytes().is_empty();
        linger::close(&mut wire.stream, more_may_come).await
    }

    /// Returns the next request. `None` if the client has closed the connection, or if it is to be closed.
    async fn next_request(&mut self) -> io::Result<Option<ReadRequest>> {
        let Self { connection, wire, output, whole, repeats, turn } = self;
        let (watch, head_most) = (&connection.watch, connection.settings.max_header_bytes);
        // The bytes received that are not a complete head.
        let mut partial = 0;
        poll_fn(|context| {
            let wire = &mut *wire.lock();
            loop {
                if !output.is_empty() && output.poll_flush(&mut wire.stream, context)?.is_pending() {
                    return wire.poll_left(context).map(Err);
                }
                let Wire { stream, input, .. } = wire;
                let bytes = input.bytes();
                if partial == 0
                    && *turn + 1 < TURN_MOST
                    && !connection.is_last()
                    && let Some((length, answer, now)) = repeats.refuse(bytes, &connection.gateway)
                {
                    input.take(length);
                    watch.begin_request();
                    write(answer, &RequestFraming::REPEATED, now, output);
                    watch.end_request(now);
                    *turn += 1;
                    continue;
                }
                // A head that arrives byte by byte isn't parsed for each byte.
                if partial == 0 && !bytes.is_empty()
                    || bytes[partial..].contains(&b'\n')
                    || bytes.len() >= head_most
                {
                    let there = bytes.len();
                    match parse(input, head_most, whole) {
                        Some(read) => {
                            *turn += (there - input.bytes().len()) / TURN_BYTES;
                            return Poll::Ready(Ok(Some(read)));
                        }
                        None => partial = input.bytes().len(),
                    }
                }
                match input.poll_more(stream, context)? {
                    Poll::Ready(0) if input.bytes().is_empty() => return Poll::Ready(Ok(None)),
                    Poll::Ready(0) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                    Poll::Ready(_) => {}
                    Poll::Pending if watch.is_ending() && input.bytes().is_empty() => {
                        return Poll::Ready(Ok(None));
                    }
                    Poll::Pending => {
                        watch.note_task(context.waker());
                        *turn = 0;
                        return Poll::Pending;
                    }
                }
            }
        })
        .await
    }

    /// Processes a request.
    async fn exchange(
        &mut self,
        request: Request<Spelt>,
        framing: RequestFraming,
        decoder: Decoder,
    ) -> io::Result<AfterResponse> {
        let connection = self.connection;
        let body = match decoder.has_ended() {
            true => Upload::none(),
            false => {
                let incoming = Incoming::begin(&self.wire, decoder, framing.expects_continue);
                Upload::http1(incoming, connection.settings.timeouts.idle)
            }
        };
        connection.watch.begin_request();
        let response = {
            let body = match framing.version {
                Version::HTTP_11 => body.hinting(Interim::to(&self.wire)),
                _ => body,
            };
            let request = request.map(|spelling| body.spelt(spelling));
            let mut answered = pin!(connection.respond(request, connection.claim_place()));
            poll_fn(|context| match answered.as_mut().poll(context) {
                Poll::Ready(response) => Poll::Ready(Ok(response)),
                Poll::Pending => self.wire.lock().poll_left(context).map(Err),
            })
            .await?
        };
        self.answer(response, &framing).await
    }

    /// Sends a response, and waits until the whole request has been received.
    async fn answer(
        &mut self,
        response: Response<AnswerBody>,
        framing: &RequestFraming,
    ) -> io::Result<AfterResponse> {
        let (mut head, body) = response.into_parts();
        let is_tunnel = head.status == StatusCode::SWITCHING_PROTOCOLS;
        let (interim, may_end) = self.wire.lock().begin_response();
        let out = self.output.bytes();
        out.extend_from_slice(&interim);
        let length = if body.is_end_stream() { Some(0) } else { body.size_hint().exact() };
        let persists = framing.persists && may_end && !self.connection.is_last();
        let whole = mem::take(&mut self.whole);
        if body.is_refused() {
            let connection = self.connection;
            let (peer, gateway) = (connection.peer(), connection.gateway.load());
            self.repeats.note_refused(&whole, peer, &gateway, connection.describe());
        } else {
            self.repeats = Repeats::None;
        }
        drop(whole);
        let now = Instant::now();
        let (encoder, persists) =
            head::write(&mut head, length, framing, persists, now, body.spelling(), out);
        drop(head);
        out.extend_from_slice(body.lines());
        out.extend_from_slice(b"\r\n");
        if is_tunnel {
            poll_fn(|context| self.poll_flush(context)).await?;
            return Ok(AfterResponse::Tunnel(body.into()));
        }
        let mut sending =
            UnsentResponse { body: Some(body), encoder, now: Some(now), silence: Silence::default() };
        poll_fn(|context| self.poll_send(&mut sending, context)).await?;
        Ok(if persists && self.receive_rest().await { AfterResponse::Request } else { AfterResponse::End })
    }

    /// Waits until the rest of a request has been received. Returns false if it never will be.
    async fn receive_rest(&self) -> bool {
        if self.wire.lock().body_has_ended() {
            return true;
        }
        // In flight, so that what arrives isn't taken for the next head.
        self.connection.watch.begin_request();
        let has_ended = poll_fn(|context| self.wire.lock().poll_body_end(context)).await;
        self.connection.watch.end_request(Instant::now());
        has_ended
    }

    /// Sends a response until its end.
    fn poll_send(&mut self, sending: &mut UnsentResponse, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let is_waiting = self.poll_fill(sending, context)?.is_pending();
            sending.now = None;
            if self.poll_flush(context)?.is_pending() || is_waiting {
                let mut wire = self.wire.lock();
                if let Poll::Ready(error) = wire.poll_left(context) {
                    return Poll::Ready(Err(error));
                }
                let idle = self.connection.settings.timeouts.idle;
                if !wire.hides_hang_up() {
                    return Poll::Pending;
                }
                ready!(sending.silence.poll(wire.pieces(), idle, context));
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            if sending.body.is_none() {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Encodes the available part of a response body while the output takes more.
    fn poll_fill(&mut self, sending: &mut UnsentResponse, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let UnsentResponse { body, encoder, now, silence } = sending;
        while let Some(unsent) = body
            && self.output.takes_more()
        {
            let has_ended = encoder.has_ended() || unsent.is_end_stream();
            match if has_ended { None } else { ready!(Pin::new(&mut *unsent).poll_frame(context)) } {
                Some(Ok(frame)) => {
                    *silence = Silence::default();
                    encoder.encode(frame, &mut self.output);
                }
                Some(Err(error)) => {
                    // The part received so far is sent, but not the end.
                    let _ = self.poll_flush(context);
                    return Poll::Ready(Err(io::Error::other(error)));
                }
                None => {
                    encoder.end(&mut self.output)?;
                    let now = now.unwrap_or_else(Instant::now);
                    self.connection.watch.end_request(now);
                    if !unsent.is_end_stream() && unsent.size_hint().exact() == Some(0) {
                        body.take().into_iter().for_each(receive_end);
                        break;
                    }
                    unsent.end(now);
                    *body = None;
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.output.poll_flush(&mut self.wire.lock().stream, context)
    }

    /// Runs a tunnel until it ends.
    async fn tunnel(self, answer: Box<AnswerBody>) -> io::Result<()> {
        let idle = self.connection.settings.timeouts.idle;
        let Some(wire) = Arc::into_inner(self.wire) else { return Ok(()) };
        let Wire { stream, input, .. } = wire.into_inner();
        // Boxed, so that other connections don't reserve its memory.
        answer.tunnel(input.before(stream), idle).boxed().await
    }
}

/// The unsent rest of a response.
struct UnsentResponse {
    body: Option<AnswerBody>,
    encoder: Encoder,
    /// The time of the response's beginning, until the first wait.
    now: Option<Instant>,
    /// The silence of an exchange whose client may have hung up unnoticed.
    silence: Silence,
}

/// Receives the end of a body that was sent up to its stated length. An HTTP/2 upstream may end it later, with trailers that
/// state a cost. The client doesn't wait for that.
fn receive_end(mut body: AnswerBody) {
    let end = timeout(END_WITHIN, async move { while let Some(Ok(_)) = body.frame().await {} });
    let mut end = Box::pin(end);
    // Mostly the end has arrived with the last byte.
    if end.as_mut().now_or_never().is_none() {
        tokio::spawn(end);
    }
}

/// Writes a complete response.
fn write(answer: Written, framing: &RequestFraming, now: Instant, output: &mut Output) {
    let Written { status, lines, body } = answer;
    let (mut head, ()) = Response::default().into_parts();
    head.status = status;
    let out = output.bytes();
    head::write(&mut head, Some(body.len() as u64), framing, framing.persists, now, None, out);
    out.extend_from_slice(&lines);
    out.extend_from_slice(b"\r\n");
    output.push(body, b"");
}

/// Parses a request, if its head has arrived. If an identical request may follow and the head is all of it, the
/// head is put into `whole`.
fn parse(input: &mut Input, head_most: usize, whole: &mut Bytes) -> Option<ReadRequest> {
    let mut received = input.bytes().clone();
    let mut request = match request(input, head_most) {
        Ok(request) => request?,
        Err(fault) => return Some(Err((blame(fault, &received, head_most), received))),
    };
    Some(match head::read(&mut request, head_most) {
        Ok((framing, decoder)) => {
            if decoder.has_ended() && framing.may_repeat() {
                received.truncate(received.len() - input.bytes().len());
                *whole = received;
            }
            Ok((request, framing, decoder))
        }
        Err(fault) => Err((fault, received)),
    })
}

/// Returns the error of a head. If even its first line is too large, the target is to blame.
fn blame(fault: Unreadable, head: &[u8], head_most: usize) -> Unreadable {
    let first_line = head.iter().position(|byte| *byte == b'\n').unwrap_or(head.len());
    match fault {
        Unreadable::TooLarge if first_line >= head_most => Unreadable::TargetTooLong,
        fault => fault,
    }
}
