//! Requests and responses over HTTP/1.1.

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
    connector::CountedConnection,
    hints::HINTS_MOST,
};
use crate::server::http1::head::read;
use tollgate_http1::{Incoming, Input, Wire, head};

use super::parts;

/// The most bytes of a request's head.
const HEAD_MOST: usize = 16 << 10;

/// A response is the same however it is split, and hyper reads it in the same way.
pub fn answer(bytes: &[u8]) {
    let [method, bytes] = parts(bytes);
    let method = if method == b"HEAD" { Method::HEAD } else { Method::GET };
    let whole = ours(&method, bytes, bytes.len().max(1));
    for step in [1, 7] {
        assert_eq!(ours(&method, bytes, step), whole, "{step} bytes at a time");
    }
    let mut hypers = hypers(&method, bytes);
    if is_rejected_only_here(bytes) {
        // Nothing is accepted here that hyper rejects.
        match (&whole, &mut hypers) {
            (None, hypers) => *hypers = None,
            (Some(ReadResponse { body: None, .. }), Some(hypers)) => hypers.body = None,
            _ => {}
        }
    }
    assert_eq!(whole, hypers);
}

/// Returns true if bytes may contain something that hyper accepts and Tollgate rejects: a chunk size with too
/// many digits, a trailer line that ends with LF alone, an invalid Content-Length beside chunks, another
/// transfer coding than `chunked` alone, or very many interim responses.
fn is_rejected_only_here(bytes: &[u8]) -> bool {
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

/// Returns true if any head may have another transfer coding than `chunked`, or several of them.
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

/// A response as it was read. There is no body if it is cut off or malformed.
#[derive(Debug, PartialEq)]
struct ReadResponse {
    status: StatusCode,
    version: Version,
    headers: HeaderMap,
    body: Option<(Vec<u8>, Option<HeaderMap>)>,
}

fn ours(method: &Method, bytes: &[u8], step: usize) -> Option<ReadResponse> {
    let mut request = Request::new(Body::Whole(None));
    *request.method_mut() = method.clone();
    let mut connection = Http1::new(Pieces::of(bytes, step), CountedConnection::default());
    run(async {
        let (head, ()) = connection.send(&mut request).await.ok()?.into_parts();
        let body = match head.status {
            StatusCode::SWITCHING_PROTOCOLS => Some((Vec::new(), None)),
            _ => collect(ResponseBody(&mut connection)).await,
        };
        Some(ReadResponse { status: head.status, version: head.version, headers: head.headers, body })
    })
}

fn hypers(method: &Method, bytes: &[u8]) -> Option<ReadResponse> {
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
        Some(ReadResponse { status: head.status, version: head.version, headers: head.headers, body })
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

/// The response body on a connection.
struct ResponseBody<'c>(&'c mut Http1);

impl HttpBody for ResponseBody<'_> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.0.poll_frame(context)
    }
}

/// A sequence of requests is the same however it is split, and hyper reads it in the same way; above all,
/// each request begins and ends at the same byte.
pub fn requests(bytes: &[u8]) {
    let whole = our_requests(bytes, bytes.len().max(1));
    for step in [1, 7] {
        assert_eq!(our_requests(bytes, step), whole, "{step} bytes at a time");
    }
    let mut hypers = hypers_requests(bytes);
    if is_rejected_only_here(bytes) {
        // Nothing is accepted here that hyper rejects.
        hypers.truncate(whole.len());
        if let (Some(ReadRequest { body: None, .. }), Some(last)) = (whole.last(), hypers.last_mut()) {
            last.body = None;
        }
    }
    assert_eq!(whole, hypers);
}

/// A request as it was read. There is no body if it is cut off or malformed.
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
    let wire = Arc::new(Mutex::new(Wire::new(Pieces::of(bytes, step).at_once(), Input::default())));
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
            // Tollgate rewrites the length in any case.
            let _ = head::unify_length(&mut read.headers);
            requests.lock().push(read);
            let mut response = Response::new(Empty::<Bytes>::new());
            // After a 200 to CONNECT, the following bytes wouldn't be a request.
            *response.status_mut() = StatusCode::NOT_FOUND;
            Ok::<_, Infallible>(response)
        });
        let stream = TokioIo::new(Pieces::of(bytes, bytes.len().max(1)).at_once());
        let mut hyper = server::Builder::new();
        hyper.half_close(true).max_header_size(HEAD_MOST).max_buf_size(HEAD_MOST + (64 << 10));
        // The result of the connection doesn't matter.
        let _ = hyper.serve_connection(stream, service).await;
    });
    requests.into_inner()
}

/// A connection that yields these bytes after the first write, `step` at a time, and then ends.
struct Pieces {
    bytes: Vec<u8>,
    read: usize,
    step: usize,
    was_written: bool,
    reader: Option<Waker>,
}

impl Pieces {
    fn of(bytes: &[u8], step: usize) -> Self {
        Self { bytes: bytes.to_vec(), read: 0, step, was_written: false, reader: None }
    }

    fn at_once(self) -> Self {
        Self { was_written: true, ..self }
    }
}

impl AsyncRead for Pieces {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.was_written {
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
        self.was_written = true;
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
