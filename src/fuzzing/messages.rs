//! What clients ask, and servers answer, by HTTP/1.1.

use std::{
    convert::Infallible,
    future::poll_fn,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
};

use http_body::Body as HttpBody;
use http_body_util::{BodyExt, Empty};
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode, Uri, Version,
    body::{Bytes, Frame},
    client::conn::http1,
    server::conn::http1 as server,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::forward::{
    body::{Body, BoxError},
    connection::Http1,
    connector::{Connector, CountedConnection},
    hints::HINTS_MOST,
};
use crate::server::http1::head::read;
use tollgate_http1::{Incoming, Input, Wire, head};

use super::parts;

/// Bytes that the head of a request may have.
const HEAD_MOST: usize = 16 << 10;

/// An answer is the same however it comes, and what hyper takes it for.
pub fn answer(bytes: &[u8]) {
    let [method, bytes] = parts(bytes);
    let method = if method == b"HEAD" { Method::HEAD } else { Method::GET };
    let whole = ours(&method, bytes, bytes.len().max(1));
    for step in [1, 7] {
        assert_eq!(ours(&method, bytes, step), whole, "{step} bytes at a time");
    }
    let mut hypers = hypers(&method, bytes);
    if is_refused_here_alone(bytes) {
        // Nothing is read here that hyper doesn't read.
        match (&whole, &mut hypers) {
            (None, hypers) => *hypers = None,
            (Some(Answer { body: None, .. }), Some(hypers)) => hypers.body = None,
            _ => {}
        }
    }
    assert_eq!(whole, hypers);
}

/// Whether there may be what hyper takes and we don't: a size of a chunk with more digits than numbers have here, a line of trailers
/// that ends with LF alone, a length that is none beside chunks, a coding that isn't `chunked` alone, or informational answers
/// in great number.
fn is_refused_here_alone(bytes: &[u8]) -> bool {
    let text = bytes.to_ascii_lowercase();
    let has = |name: &[u8]| text.windows(name.len()).any(|window| window == name);
    if has(b"content-length") && has(b"transfer-encoding") || has_other_coding(&text) {
        return true;
    }
    if text.windows(7).filter(|window| window == b"http/1.").count() > HINTS_MOST {
        return true;
    }
    let is_long = bytes.windows(17).any(|digits| digits.iter().all(u8::is_ascii_hexdigit));
    is_long || bytes.windows(2).any(|pair| pair[0] != b'\r' && pair[1] == b'\n')
}

/// Whether anything may be taken for a head with another transfer coding than `chunked`, or with several lines of them.
fn has_other_coding(text: &[u8]) -> bool {
    const NAME: &[u8] = b"transfer-encoding";
    let mut is_coded = false;
    text.split(|byte| *byte == b'\n').any(|line| {
        is_coded &= !line.trim_ascii().is_empty();
        if !line.windows(NAME.len()).any(|window| window == NAME) {
            return false;
        }
        let value = line.strip_prefix(NAME).and_then(|rest| rest.strip_prefix(b":"));
        std::mem::replace(&mut is_coded, true) || value.is_none_or(|value| value.trim_ascii() != b"chunked")
    })
}

/// What is read of an answer, if there is one: its body too, unless that breaks off or is malformed.
#[derive(Debug, PartialEq)]
struct Answer {
    status: StatusCode,
    version: Version,
    headers: HeaderMap,
    body: Option<(Vec<u8>, Option<HeaderMap>)>,
}

fn ours(method: &Method, bytes: &[u8], step: usize) -> Option<Answer> {
    let mut request = Request::new(Body::Whole(None));
    *request.method_mut() = method.clone();
    let counted = CountedConnection::begin(&Arc::new(Connector::of(None, false))).expect("there is room");
    let mut connection = Http1::new(Pieces::of(bytes, step), counted);
    run(async {
        let (head, ()) = connection.send(&mut request).await.ok()?.into_parts();
        let body = match head.status {
            StatusCode::SWITCHING_PROTOCOLS => Some((Vec::new(), None)),
            _ => collect(Coming(&mut connection)).await,
        };
        Some(Answer { status: head.status, version: head.version, headers: head.headers, body })
    })
}

fn hypers(method: &Method, bytes: &[u8]) -> Option<Answer> {
    let mut request = Request::new(Empty::<Bytes>::new());
    *request.method_mut() = method.clone();
    run(async {
        let stream = TokioIo::new(Pieces::of(bytes, bytes.len().max(1)));
        let (mut sender, connection) = http1::handshake(stream).await.ok()?;
        tokio::spawn(connection.with_upgrades());
        let (head, body) = sender.send_request(request).await.ok()?.into_parts();
        let body = match head.status {
            StatusCode::SWITCHING_PROTOCOLS => Some((Vec::new(), None)),
            _ => collect(body).await,
        };
        Some(Answer { status: head.status, version: head.version, headers: head.headers, body })
    })
}

async fn collect<B: HttpBody<Data = Bytes> + Unpin>(mut body: B) -> Option<(Vec<u8>, Option<HeaderMap>)> {
    let (mut data, mut trailers) = (Vec::new(), None);
    while let Some(frame) = body.frame().await {
        match frame.ok()?.into_data() {
            Ok(more) => data.extend_from_slice(&more),
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    Some((data, trailers))
}

fn run<T>(answered: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(answered)
}

/// The body that comes on a connection.
struct Coming<'c>(&'c mut Http1);

impl HttpBody for Coming<'_> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.0.poll_frame(context)
    }
}

/// Requests that follow each other are the same however they come, and what hyper takes them for: where each begins and ends
/// above all.
pub fn requests(bytes: &[u8]) {
    let whole = our_requests(bytes, bytes.len().max(1));
    for step in [1, 7] {
        assert_eq!(our_requests(bytes, step), whole, "{step} bytes at a time");
    }
    let mut hypers = hypers_requests(bytes);
    if is_refused_here_alone(bytes) {
        // Nothing is read here that hyper doesn't read.
        hypers.truncate(whole.len());
        if let (Some(ReadRequest { body: None, .. }), Some(last)) = (whole.last(), hypers.last_mut()) {
            last.body = None;
        }
    }
    assert_eq!(whole, hypers);
}

/// What is read of a request: its body too, unless that breaks off or is malformed.
#[derive(Debug, PartialEq)]
struct ReadRequest {
    method: Method,
    uri: Uri,
    version: Version,
    headers: HeaderMap,
    body: Option<(Vec<u8>, Option<HeaderMap>)>,
}

impl ReadRequest {
    async fn read<B: HttpBody<Data = Bytes> + Unpin>(request: Request<B>) -> Self {
        let (head, body) = request.into_parts();
        let body = collect(body).await;
        Self { method: head.method, uri: head.uri, version: head.version, headers: head.headers, body }
    }
}

fn our_requests(bytes: &[u8], step: usize) -> Vec<ReadRequest> {
    let wire = Arc::new(Mutex::new(Wire::new(Pieces::of(bytes, step).on_request(), Input::default())));
    let mut requests = Vec::new();
    run(async {
        loop {
            let head = poll_fn(|context| {
                let Wire { stream, input, .. } = &mut *wire.lock();
                loop {
                    match head::request(input, HEAD_MOST) {
                        Ok(None) if ready!(input.poll_more(stream, context)).is_ok_and(|more| more > 0) => {}
                        head => return Poll::Ready(head.ok().flatten()),
                    }
                }
            });
            let Some(mut request) = head.await else { return };
            let Ok((framing, decoder)) = read(&mut request, HEAD_MOST) else { return };
            let body = Incoming::begin(&wire, decoder, false);
            requests.push(ReadRequest::read(request.map(|_| body)).await);
            if !framing.persists || requests.last().is_some_and(|request| request.body.is_none()) {
                return;
            }
        }
    });
    requests
}

fn hypers_requests(bytes: &[u8]) -> Vec<ReadRequest> {
    let requests = Mutex::new(Vec::new());
    run(async {
        let service = service_fn(|request: Request<hyper::body::Incoming>| async {
            let mut read = ReadRequest::read(request).await;
            // We write a length anew, however it came.
            let _ = head::unify_length(&mut read.headers);
            requests.lock().push(read);
            let mut response = Response::new(Empty::<Bytes>::new());
            // After 200 to CONNECT nothing would be a request.
            *response.status_mut() = StatusCode::NOT_FOUND;
            Ok::<_, Infallible>(response)
        });
        let stream = TokioIo::new(Pieces::of(bytes, bytes.len().max(1)).on_request());
        let mut hyper = server::Builder::new();
        hyper.half_close(true).max_header_size(HEAD_MOST).max_buf_size(HEAD_MOST + (64 << 10));
        // How it ends is of no interest.
        let _ = hyper.serve_connection(stream, service).await;
    });
    requests.into_inner()
}

/// A connection on which these bytes come when something has been asked, so many at a time, and nothing after them.
struct Pieces {
    bytes: Vec<u8>,
    read: usize,
    step: usize,
    is_asked: bool,
    reader: Option<Waker>,
}

impl Pieces {
    fn of(bytes: &[u8], step: usize) -> Self {
        Self { bytes: bytes.to_vec(), read: 0, step, is_asked: false, reader: None }
    }

    fn on_request(self) -> Self {
        Self { is_asked: true, ..self }
    }
}

impl AsyncRead for Pieces {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.is_asked {
            self.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        let end = self.bytes.len().min(self.read + self.step.min(buffer.remaining()));
        buffer.put_slice(&self.bytes[self.read..end]);
        self.read = end;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pieces {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.is_asked = true;
        self.reader.take().into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
