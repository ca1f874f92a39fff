//! Connections to servers, and how a request is sent on one.

mod http1;
mod listening;

use std::{
    future::poll_fn,
    io,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
};

use futures_util::task::AtomicWaker;
use http_body::Body as _;
use hyper::{
    Request, Response, Uri, Version,
    body::Incoming,
    client::conn::http2,
    header::{CONNECTION, HOST, HeaderValue, TE, TRANSFER_ENCODING},
    http::uri::{Authority, Scheme},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use crate::config::ServerUrl;
use tollgate_http1::{Ahead, Stream as Io};

pub(crate) use self::http1::Http1;

use self::listening::{HeadCount, Listening};

use super::{
    Failure,
    address::Address,
    body::{Body, BoxError},
    connector::Counted,
    hints::HINTS_MOST,
    retry,
    timer::Timer,
};

/// Bytes that are read ahead of an answer, which its head must fit into.
const RESPONSE_BUFFER: usize = 128 << 10;
/// The same of all answers of a connection for HTTP/2: the most that there is (RFC 9113, section 6.9.1), or clients who take
/// nothing would hold up the others' answers.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;

/// Interim responses that may come on a connection for HTTP/2 with several requests, beside those that each brings in.
const HINTS_RESERVE: usize = 10 * HINTS_MOST;

/// A connection on which a request can be sent.
#[derive(Debug)]
pub struct Connection {
    sender: Sender,
    /// None for a unix socket.
    address: Option<Arc<Address>>,
    /// Of the answer that is waited for.
    pub(super) timer: Timer,
}

#[derive(Debug)]
enum Sender {
    Http1(Box<Http1>),
    Http2 { sender: http2::SendRequest<Body>, stream: Stream },
}

/// The streams of a connection for HTTP/2.
#[derive(Debug, Default)]
struct Streams {
    /// Those of requests, and one of who keeps the connection.
    lent: AtomicUsize,
    /// That the server takes; 0 as long as it hasn't said.
    most: AtomicUsize,
    news: Notify,
    /// Woken when something comes.
    has_read: AtomicWaker,
    /// Whether the server hasn't answered in time, or refuses requests: it gets no others on this connection.
    is_suspect: AtomicBool,
    /// Heads of answers that may come yet: [`Self::expect`].
    heads_left: AtomicUsize,
}

impl Streams {
    /// Notes that a request is sent, to which an answer may come, and some interim ones before that.
    fn expect(&self) {
        let most = self.lent.load(Relaxed) + HINTS_RESERVE;
        let more = |left: usize| Some((left + 1 + HINTS_MOST).min(most));
        let _ = self.heads_left.fetch_update(Relaxed, Relaxed, more);
    }

    /// Notes that so many heads have come.
    ///
    /// # Errors
    /// Those are more than the requests account for. h2 keeps interim ones until somebody looks at their stream, in any number.
    fn note_heads(&self, heads: usize) -> io::Result<()> {
        let fewer = |left: usize| left.checked_sub(heads);
        let counted = self.heads_left.fetch_update(Relaxed, Relaxed, fewer);
        let without_end = |_| io::Error::new(io::ErrorKind::InvalidData, "interim responses without end");
        counted.map(drop).map_err(without_end)
    }
}

impl Connection {
    /// Begins to speak on a stream.
    pub(super) async fn begin(
        stream: impl Io,
        http2: bool,
        address: Option<Arc<Address>>,
        counted: Counted,
        deadline: Instant,
    ) -> Result<Self, Failure> {
        if http2 {
            // In a box, lest connections for HTTP/1.1 need room for it.
            return Box::pin(Self::begin_http2(stream, address, counted, deadline)).await;
        }
        Ok(Self {
            sender: Sender::Http1(Box::new(Http1::new(stream, counted))),
            address,
            timer: Timer::default(),
        })
    }

    /// Begins to speak HTTP/2, and waits until the server has said how many streams it takes.
    async fn begin_http2(
        stream: impl Io,
        address: Option<Arc<Address>>,
        counted: Counted,
        deadline: Instant,
    ) -> Result<Self, Failure> {
        let streams = Arc::new(Streams::default());
        let (heard, mut heads) = (streams.clone(), HeadCount::default());
        let listener = move |bytes: &[u8]| {
            // What a server says first is how many it takes.
            heard.has_read.wake();
            heard.note_heads(heads.count(bytes))
        };
        let io = TokioIo::new(Listening::new(stream, counted, listener));
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .initial_max_send_streams(0)
            .max_header_list_size(RESPONSE_BUFFER as u32)
            .initial_stream_window_size(RESPONSE_BUFFER as u32)
            .initial_connection_window_size(CONNECTION_WINDOW);
        let (sender, mut connection) = builder.handshake(io).await.map_err(Failure::broken)?;
        let told = streams.clone();
        tokio::spawn(async move {
            let ended = poll_fn(|context| {
                let polled = pin!(&mut connection).poll(context);
                let most = connection.current_max_send_streams();
                if told.most.swap(most, Relaxed) != most {
                    told.news.notify_one();
                }
                if most == 0 {
                    told.has_read.register(context.waker());
                }
                polled
            });
            drop(ended.await);
            drop(connection);
            told.news.notify_one();
        });
        let told = async {
            while streams.most.load(Relaxed) == 0 && !sender.is_closed() {
                streams.news.notified().await;
            }
        };
        timeout_at(deadline, told).await.map_err(|_| Failure::ConnectTimeout)?;
        streams.lent.store(1, Relaxed);
        Ok(Self {
            sender: Sender::Http2 { sender, stream: Stream(streams) },
            address,
            timer: Timer::default(),
        })
    }

    /// Another hold of the connection, if it takes more requests at a time.
    pub fn share(&self) -> Option<Self> {
        let Sender::Http2 { sender, stream: Stream(streams) } = &self.sender else { return None };
        let more = |lent| (lent <= streams.most.load(Relaxed)).then_some(lent + 1);
        streams.lent.fetch_update(Relaxed, Relaxed, more).ok()?;
        let sender = Sender::Http2 { sender: sender.clone(), stream: Stream(streams.clone()) };
        Some(Self { sender, address: self.address.clone(), timer: Timer::default() })
    }

    /// Whether it is one that can be shared.
    pub fn is_http2(&self) -> bool {
        matches!(self.sender, Sender::Http2 { .. })
    }

    /// Whether nobody but this value holds it.
    pub fn is_idle(&self) -> bool {
        match &self.sender {
            Sender::Http1(_) => true,
            Sender::Http2 { stream, .. } => stream.0.lent.load(Relaxed) <= 1,
        }
    }

    /// Sends a request, and gives the answer as it begins. Of HTTP/1.1 the body comes by [`Self::http1`].
    ///
    /// # Errors
    /// It broke before the answer. The request is there still if it can be sent once more, as it has no body or wasn't sent;
    /// whether that is safe is told.
    pub async fn send(
        &mut self,
        request: &mut Option<Request<Body>>,
        url: &ServerUrl,
    ) -> Result<Response<Option<Incoming>>, Unanswered> {
        let there = request.as_mut().expect("a request is there as long as it may be sent");
        match &mut self.sender {
            Sender::Http1(http1) => {
                for_http1(there);
                let has_body = !there.body().is_end_stream();
                let answered = http1.send(there).await;
                if has_body || answered.is_ok() {
                    *request = None;
                }
                let is_safe = !http1.has_sent();
                answered.map(|head| head.map(|()| None)).map_err(|cause| Unanswered { cause, is_safe })
            }
            Sender::Http2 { sender, stream } => {
                stream.0.expect();
                for_http2(there, url);
                let copy = retry::copy(there);
                let sent = request.take().into_iter().map(|request| sender.try_send_request(request));
                let answered = sent.last().expect("it was there").await;
                answered.map(|answer| answer.map(Some)).map_err(|mut unsent| {
                    let given_back = unsent.take_message();
                    let cause = unsent.into_error();
                    let was_refused = retry::was_refused(&cause);
                    if was_refused {
                        // It would be refused there again.
                        stream.0.is_suspect.store(true, Relaxed);
                    }
                    let is_safe = given_back.is_some() || was_refused;
                    *request = given_back.or(copy);
                    Unanswered { cause: cause.into(), is_safe }
                })
            }
        }
    }

    /// What is said on it, if that is HTTP/1.1.
    pub(super) fn http1(&self) -> Option<&Http1> {
        match &self.sender {
            Sender::Http1(http1) => Some(http1),
            Sender::Http2 { .. } => None,
        }
    }

    /// The same, to read on.
    pub(super) fn http1_mut(&mut self) -> Option<&mut Http1> {
        match &mut self.sender {
            Sender::Http1(http1) => Some(http1),
            Sender::Http2 { .. } => None,
        }
    }

    /// What is under it, and its place among the connections, if HTTP/1.1 was spoken on it, and now another protocol is.
    pub(super) fn into_stream(self) -> Option<(Ahead<Box<dyn Io>>, Counted)> {
        match self.sender {
            Sender::Http1(http1) => Some(http1.into_stream()),
            Sender::Http2 { .. } => None,
        }
    }

    /// Whether the server has said anything since a request was sent, as far as that can be told of one request.
    pub fn has_heard(&self) -> bool {
        match &self.sender {
            Sender::Http1(http1) => http1.has_heard(),
            Sender::Http2 { .. } => false,
        }
    }

    /// Has no other request sent on it, since it hasn't answered in time.
    pub fn suspect(&self) {
        if let Sender::Http2 { stream, .. } = &self.sender {
            stream.0.is_suspect.store(true, Relaxed);
        }
    }

    /// Whether a request can be sent now, to an address that is still the server's.
    pub fn is_ready(&self) -> bool {
        let is_ready = match &self.sender {
            Sender::Http1(http1) => http1.is_ready(),
            Sender::Http2 { sender, stream } => sender.is_ready() && !stream.0.is_suspect.load(Relaxed),
        };
        is_ready && !self.address.as_ref().is_some_and(|address| address.is_gone())
    }

    /// Whether the server has left a connection open on which nothing was asked.
    pub fn is_open(&mut self) -> bool {
        match &mut self.sender {
            Sender::Http1(http1) => http1.is_quiet(),
            Sender::Http2 { .. } => true,
        }
    }

    /// Whether no request can be sent any more.
    pub fn is_closed(&self) -> bool {
        match &self.sender {
            Sender::Http1(http1) => http1.is_closed(),
            Sender::Http2 { sender, .. } => sender.is_closed(),
        }
    }

    /// Waits until a request can be sent, or no more.
    pub async fn ready(&mut self) -> Result<(), BoxError> {
        match &mut self.sender {
            Sender::Http1(http1) => http1.ready().await,
            Sender::Http2 { sender, .. } => Ok(sender.ready().await?),
        }
    }
}

/// Why there is no answer to a request that was sent.
#[derive(Debug)]
pub struct Unanswered {
    /// What was wrong with the connection, or with the request's body.
    pub cause: BoxError,
    /// The server has done nothing for it.
    pub is_safe: bool,
}

/// A hold of a stream.
#[derive(Debug)]
struct Stream(Arc<Streams>);

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.lent.fetch_sub(1, Relaxed);
    }
}

/// Writes a request as HTTP/1.1 has it.
fn for_http1(request: &mut Request<Body>) {
    if let Some(authority) = request.uri().authority() {
        // It was to be sent by HTTP/2.
        let host = HeaderValue::from_str(authority.as_str()).expect("an authority is visible ASCII");
        request.headers_mut().insert(HOST, host);
        let path = request.uri().path_and_query().cloned();
        *request.uri_mut() = path.map(Uri::from).unwrap_or_default();
    }
    if request.headers().contains_key(TE) {
        // It is for the next server only (RFC 9110, section 10.1.4).
        request.headers_mut().insert(CONNECTION, HeaderValue::from_static("TE"));
    }
}

/// Writes a request as HTTP/2 has it: with the host in the target (RFC 9113, section 8.3.1).
fn for_http2(request: &mut Request<Body>, url: &ServerUrl) {
    *request.version_mut() = Version::HTTP_2;
    if request.uri().authority().is_some() {
        return;
    }
    request.headers_mut().remove(TRANSFER_ENCODING);
    request.headers_mut().remove(CONNECTION);
    let host = request.headers_mut().remove(HOST);
    let named = host.and_then(|host| Authority::from_maybe_shared(host).ok());
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = Some(if url.is_tls() { Scheme::HTTPS } else { Scheme::HTTP });
    parts.authority = named.or_else(|| url.authority().parse().ok());
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
}
