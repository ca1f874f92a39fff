//! HTTP/1.1 with clients: one request after the other, each answered before the next is looked at.
//!
//! What a connection needs for a request is boxed with it, lest it weigh on those that idle. While a request is answered, what
//! follows it is read ahead within a bound, because a client's hang-up shows only behind it.

pub(crate) mod head;
#[cfg(test)]
mod tests;

use std::{
    future::poll_fn,
    io, mem,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures_util::FutureExt;
use http_body::Body as _;
use hyper::{Request, Response, StatusCode, Version};
use parking_lot::Mutex;
use tokio::{io::AsyncWrite, time::Instant};

use crate::gateway::{AnswerBody, Refused, Upload, Written};
use tollgate_http1::{
    Incoming, Input, Interim, Output, Stream, Wire,
    body::{Decoder, Encoder},
    head::{Spelt, Unreadable, request},
};

use self::head::Asked;
use super::{client::Watched, connection::Connection, parting};

/// Bytes of a refused request's head for which it is kept, to be refused again if it comes again.
const REFUSED_MOST: usize = 2 << 10;

/// A connection of a client.
pub(super) struct Http1<'c, S> {
    connection: &'c Connection,
    wire: Arc<Mutex<Wire<Watched<S>>>>,
    output: Output,
    /// The request that is answered, if its head is all of it, and another one like it may follow.
    whole: Bytes,
    /// The head of what was refused last, and by what it is refused again.
    refused: Option<(Box<[u8]>, Box<Refused>)>,
}

/// What follows an answer.
enum Next {
    Request,
    End,
    Tunnel(Box<AnswerBody>),
}

impl<'c, S: Stream> Http1<'c, S> {
    /// On which something may have come.
    pub(super) fn new(connection: &'c Connection, stream: Watched<S>, input: Input) -> Self {
        let wire = Arc::new(Mutex::new(Wire::new(stream, input)));
        Self { connection, wire, output: Output::default(), whole: Bytes::new(), refused: None }
    }

    /// Serves it to its end.
    ///
    /// # Errors
    /// It broke, or the client left while something was owed to it.
    pub(super) async fn serve(mut self) -> io::Result<()> {
        let is_unreadable = loop {
            let Some(request) = self.next_request().await? else { break false };
            let (request, asked, decoder) = match request {
                Ok(request) => request,
                Err((fault, head)) => {
                    let connection = self.connection;
                    connection.status.note_unreadable(fault.code());
                    let gateway = connection.gateway.load();
                    let answer = gateway.answer_unreadable(connection.peer(), &head, fault);
                    drop((gateway, head));
                    write(answer, &Asked::UNREADABLE, Instant::now(), &mut self.output);
                    poll_fn(|context| self.poll_flush(context)).await?;
                    break true;
                }
            };
            // In a box, lest a connection that idles keep room for it; and made in there, lest it be copied.
            let exchange = Box::write(Box::new_uninit(), self.exchange(request, asked, decoder));
            match Box::into_pin(exchange).await? {
                Next::Request => {}
                Next::End => break false,
                Next::Tunnel(answer) => return self.tunnel(answer).await,
            }
        };
        if !self.wire.lock().body_has_ended() {
            // Who reads it may have use for the rest, though it is answered; and the client may wait for the answer's end.
            poll_fn(|context| Pin::new(&mut self.wire.lock().stream).poll_shutdown(context)).await?;
            poll_fn(|context| self.wire.lock().poll_body_end(context)).await;
        }
        let Some(wire) = Arc::into_inner(self.wire) else { return Ok(()) };
        let mut wire = wire.into_inner();
        // What has been read ahead isn't in the system's buffer any more, where it would be found.
        let more_may_come = is_unreadable || !wire.body_has_ended() || !wire.input.bytes().is_empty();
        // Nothing is awaited of the client any more, so its watch needn't know.
        Box::pin(parting::part(&mut wire.stream.stream, more_may_come)).await
    }

    /// The next request, unless the client has closed the connection, or it is to end.
    async fn next_request(
        &mut self,
    ) -> io::Result<Option<Result<(Request<Spelt>, Asked, Decoder), (Unreadable, Bytes)>>> {
        let Self { connection, wire, output, whole, refused } = self;
        let Connection { terms, watch, .. } = connection;
        let head_most = terms.max_header_bytes;
        // Bytes of it that are no whole head.
        let mut partial = 0;
        poll_fn(|context| {
            let wire = &mut *wire.lock();
            loop {
                if !output.is_empty() && output.poll_flush(&mut wire.stream, context)?.is_pending() {
                    return wire.poll_left(context).map(Err);
                }
                let Wire { stream, input, .. } = wire;
                let bytes = input.bytes();
                if let Some((head, refused)) = refused
                    && partial == 0
                    && bytes.starts_with(head)
                    && !connection.is_last()
                    && let Some((answer, now)) = refused.refuse(&connection.gateway.load())
                {
                    input.take(head.len());
                    watch.begin_request();
                    write(answer, &Asked::AGAIN, now, output);
                    watch.end_request(now);
                    continue;
                }
                // Who sends a head byte by byte doesn't have all of it read as often.
                if partial == 0 && !bytes.is_empty()
                    || bytes[partial..].contains(&b'\n')
                    || bytes.len() >= head_most
                {
                    let mut came = bytes.clone();
                    match request(input, head_most) {
                        Ok(None) => partial = input.bytes().len(),
                        Ok(Some(mut request)) => {
                            let read = match head::read(&mut request, head_most) {
                                Ok((asked, decoder)) => Ok((request, asked, decoder)),
                                Err(fault) => Err((fault, came.clone())),
                            };
                            if let Ok((_, asked, decoder)) = &read
                                && decoder.has_ended()
                                && asked.may_come_again()
                            {
                                came.truncate(came.len() - input.bytes().len());
                                *whole = came;
                            }
                            return Poll::Ready(Ok(Some(read)));
                        }
                        Err(fault) => {
                            let fault = blame(fault, &came, head_most);
                            return Poll::Ready(Ok(Some(Err((fault, came)))));
                        }
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
                        return Poll::Pending;
                    }
                }
            }
        })
        .await
    }

    /// Answers a request.
    async fn exchange(
        &mut self,
        request: Request<Spelt>,
        asked: Asked,
        decoder: Decoder,
    ) -> io::Result<Next> {
        let connection = self.connection;
        let body = match decoder.has_ended() {
            true => Upload::none(),
            false => {
                let incoming = Incoming::begin(&self.wire, decoder, asked.expects_continue);
                Upload::http1(incoming, connection.terms.patience.idle)
            }
        };
        connection.watch.begin_request();
        let response = {
            let body = match asked.version {
                Version::HTTP_11 => body.hinting(Interim::to(&self.wire)),
                _ => body,
            };
            let request = request.map(|spelling| body.spelt(spelling));
            let mut answered = pin!(connection.respond(request, !connection.is_turned_away));
            poll_fn(|context| match answered.as_mut().poll(context) {
                Poll::Ready(response) => Poll::Ready(Ok(response)),
                Poll::Pending => self.wire.lock().poll_left(context).map(Err),
            })
            .await?
        };
        self.answer(response, &asked).await
    }

    /// Sends an answer, and waits until all of the request has come.
    async fn answer(&mut self, response: Response<AnswerBody>, asked: &Asked) -> io::Result<Next> {
        let (mut head, mut body) = response.into_parts();
        let is_tunnel = head.status == StatusCode::SWITCHING_PROTOCOLS;
        let (begun, may_end) = self.wire.lock().begin_response();
        let out = self.output.bytes();
        out.extend_from_slice(&begun);
        let length = if body.is_end_stream() { Some(0) } else { body.size_hint().exact() };
        let persists = asked.persists && may_end && !self.connection.is_last();
        let whole = mem::take(&mut self.whole);
        let is_kept = (1..=REFUSED_MOST).contains(&whole.len());
        self.refused =
            body.take_refused().filter(|_| is_kept).map(|refused| (whole.as_ref().into(), refused));
        let now = Instant::now();
        let (encoder, persists) = head::write(&mut head, length, asked, persists, now, body.spelling(), out);
        drop(head);
        out.extend_from_slice(body.lines());
        out.extend_from_slice(b"\r\n");
        if is_tunnel {
            poll_fn(|context| self.poll_flush(context)).await?;
            return Ok(Next::Tunnel(body.into()));
        }
        let mut sending = Sending { body: Some(body), encoder, now: Some(now) };
        poll_fn(|context| self.poll_send(&mut sending, context)).await?;
        let goes_on = persists && poll_fn(|context| self.wire.lock().poll_body_end(context)).await;
        Ok(if goes_on { Next::Request } else { Next::End })
    }

    /// Sends what there is of an answer, until all of it is sent.
    fn poll_send(&mut self, sending: &mut Sending, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let is_waiting = self.poll_fill(sending, context)?.is_pending();
            sending.now = None;
            if self.poll_flush(context)?.is_pending() || is_waiting {
                return self.wire.lock().poll_left(context).map(Err);
            }
            if sending.body.is_none() {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Encodes what there is of an answer's body, as long as there is room, or until its end.
    fn poll_fill(&mut self, sending: &mut Sending, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Sending { body, encoder, now } = sending;
        while let Some(coming) = body
            && self.output.takes_more()
        {
            let has_ended = encoder.has_ended() || coming.is_end_stream();
            match if has_ended { None } else { ready!(Pin::new(&mut *coming).poll_frame(context)) } {
                Some(Ok(frame)) => encoder.encode(frame, &mut self.output),
                Some(Err(error)) => {
                    // What has come of it goes out, but no end.
                    let _ = self.poll_flush(context);
                    return Poll::Ready(Err(io::Error::other(error)));
                }
                None => {
                    encoder.end(&mut self.output)?;
                    let now = now.unwrap_or_else(Instant::now);
                    self.connection.watch.end_request(now);
                    coming.end(now);
                    *body = None;
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.output.poll_flush(&mut self.wire.lock().stream, context)
    }

    /// Keeps a tunnel open to its end.
    async fn tunnel(self, answer: Box<AnswerBody>) -> io::Result<()> {
        let idle = self.connection.terms.patience.idle;
        let Some(wire) = Arc::into_inner(self.wire) else { return Ok(()) };
        let Wire { stream, input, .. } = wire.into_inner();
        // In a box, lest all connections keep room for it.
        answer.tunnel(input.before(stream), idle).boxed().await
    }
}

/// An answer that is sent: what is left of it.
struct Sending {
    body: Option<AnswerBody>,
    encoder: Encoder,
    /// Until there is something to wait for.
    now: Option<Instant>,
}

/// Writes an answer that is there whole to a request that is read this way.
fn write(answer: Written, asked: &Asked, now: Instant, output: &mut Output) {
    let Written { status, lines, body } = answer;
    let (mut head, ()) = Response::default().into_parts();
    head.status = status;
    let out = output.bytes();
    head::write(&mut head, Some(body.len() as u64), asked, asked.persists, now, None, out);
    out.extend_from_slice(&lines);
    out.extend_from_slice(b"\r\n");
    output.push(body, b"");
}

/// What is too large of a head: if it is its first line already, the target.
fn blame(fault: Unreadable, head: &[u8], head_most: usize) -> Unreadable {
    let first_line = head.iter().position(|byte| *byte == b'\n').unwrap_or(head.len());
    match fault {
        Unreadable::TooLarge if first_line >= head_most => Unreadable::TargetTooLong,
        fault => fault,
    }
}
