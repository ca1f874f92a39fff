//! What servers answer, by HTTP/1.1.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use http_body::Body as HttpBody;
use http_body_util::{BodyExt, Empty};
use hyper::{
    HeaderMap, Method, Request, StatusCode, Version,
    body::{Bytes, Frame},
    client::conn::http1,
};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::forward::{
    body::{Body, BoxError},
    connection::Http1,
    connector::{Connector, Counted},
};

use super::parts;

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

/// Whether there may be a size of a chunk with more digits than numbers have here, or a line of trailers that ends with LF
/// alone.
fn is_refused_here_alone(bytes: &[u8]) -> bool {
    let is_long = bytes.windows(17).any(|digits| digits.iter().all(u8::is_ascii_hexdigit));
    is_long || bytes.windows(2).any(|pair| pair[0] != b'\r' && pair[1] == b'\n')
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
    let counted = Counted::begin(&Arc::new(Connector::of(None, false))).expect("there is room");
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
