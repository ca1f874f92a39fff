//! Connections to servers: how they are made, and how a request is sent on one.

use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use futures_util::task::AtomicWaker;
use http_body::Body as _;
use hyper::{
    Request, Response, Uri, Version,
    body::Incoming,
    client::conn::{TrySendError, http1, http2},
    header::{CONNECTION, HOST, HeaderValue, TE, TRANSFER_ENCODING},
    http::uri::{Authority, Scheme},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::UnixStream,
    sync::Notify,
    time::{Instant, timeout_at},
};
use tokio_rustls::TlsConnector;

use crate::config::{self, ServerUrl, Tls};

use super::{
    Failure,
    address::{Address, Location},
    body::Body,
};

/// Fields that an answer may have.
const RESPONSE_FIELDS_MOST: usize = 256;
/// Bytes that are read ahead of an answer, which its head must fit into.
const RESPONSE_BUFFER: usize = 128 << 10;
const H2: &[u8] = b"h2";
const HTTP_1_1: &[u8] = b"http/1.1";

/// How the servers of an upstream are spoken to, and how many connections to them there are.
pub struct Connector {
    terms: Option<Arc<Tls>>,
    http2: bool,
    /// What TLS needs, or why there is none. Sessions are resumed by it.
    tls: Option<Result<TlsConnector, rustls::Error>>,
    connections: AtomicUsize,
    connections_most: AtomicUsize,
}

impl Connector {
    /// Speaks as the configuration says. One of `before` that does, too, goes on, with its connections.
    pub fn new(config: &config::Upstream, before: Option<&Arc<Self>>) -> Arc<Self> {
        let alike = before.filter(|before| before.terms == config.tls && before.http2 == config.http2);
        let connector =
            alike.cloned().unwrap_or_else(|| Arc::new(Self::of(config.tls.clone(), config.http2)));
        connector.connections_most.store(config.max_connections, Relaxed);
        connector
    }

    /// Speaks by TLS where an url asks for it, and by HTTP/2 if that is wanted.
    pub(super) fn of(terms: Option<Arc<Tls>>, http2: bool) -> Self {
        let tls = terms.as_ref().map(|terms| {
            let mut client = terms.client()?;
            client.alpn_protocols = match http2 {
                true => vec![H2.to_vec(), HTTP_1_1.to_vec()],
                false => vec![HTTP_1_1.to_vec()],
            };
            Ok(TlsConnector::from(Arc::new(client)))
        });
        Self {
            terms,
            http2,
            tls,
            connections: AtomicUsize::new(0),
            connections_most: AtomicUsize::new(usize::MAX),
        }
    }

    /// Whether HTTP/2 is spoken, at least to servers that can.
    pub fn prefers_http2(&self) -> bool {
        self.http2
    }

    /// Whether there are more connections than there may be: requests in flight never need so many, but with those that
    /// idle they can be.
    pub fn has_too_many(&self) -> bool {
        self.connections.load(Relaxed) > self.connections_most.load(Relaxed)
    }

    /// Makes a connection to a server.
    ///
    /// # Errors
    /// The server can't be reached, or not in time.
    pub async fn connect(
        self: &Arc<Self>,
        url: &ServerUrl,
        location: &Location,
        deadline: Instant,
    ) -> Result<Connection, Failure> {
        let counted = Counted::begin(self)?;
        match location {
            Location::Unix(path) => {
                let connecting = timeout_at(deadline, UnixStream::connect(path)).await;
                let stream =
                    connecting.map_err(|_| Failure::ConnectTimeout)?.map_err(Failure::Unreachable)?;
                Connection::begin(stream, self.http2, None, counted, deadline).await
            }
            Location::Tcp(addresses) => {
                let (stream, address) = addresses.connect(deadline).await?;
                stream.set_nodelay(true).map_err(Failure::Unreachable)?;
                let Some((name, tls)) = self.tls_to(url)? else {
                    return Connection::begin(stream, self.http2, Some(address), counted, deadline).await;
                };
                let shaking = timeout_at(deadline, tls.connect(name, stream)).await;
                let stream = shaking.map_err(|_| Failure::ConnectTimeout)?.map_err(Failure::Tls)?;
                let speaks_http2 = stream.get_ref().1.alpn_protocol() == Some(H2);
                Connection::begin(stream, speaks_http2, Some(address), counted, deadline).await
            }
        }
    }

    /// What TLS to a server needs, if its url asks for TLS, and the name that it must prove.
    fn tls_to(&self, url: &ServerUrl) -> Result<Option<(ServerName<'static>, &TlsConnector)>, Failure> {
        let (ServerUrl::Tcp { tls: true, host, .. }, Some(tls)) = (url, &self.tls) else { return Ok(None) };
        let failed = |error: rustls::Error| Failure::Tls(io::Error::other(error));
        let tls = tls.as_ref().map_err(|error| failed(error.clone()))?;
        let named = self.terms.as_ref().and_then(|terms| terms.server_name.clone());
        let name = named.map_or_else(|| ServerName::try_from(host.clone()), Ok);
        let name = name.map_err(|error| Failure::Tls(io::Error::other(error)))?;
        Ok(Some((name, tls)))
    }
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").field("http2", &self.http2).finish_non_exhaustive()
    }
}

/// A place among the connections of an upstream.
struct Counted(Arc<Connector>);

impl Counted {
    /// # Errors
    /// There are as many connections for HTTP/2 as there may be. (Those for HTTP/1.1 are bounded by the requests in
    /// flight.)
    fn begin(connector: &Arc<Connector>) -> Result<Self, Failure> {
        let most = if connector.http2 { connector.connections_most.load(Relaxed) } else { usize::MAX };
        let within = |connections| (connections < most).then_some(connections + 1);
        connector.connections.fetch_update(Relaxed, Relaxed, within).map_err(|_| Failure::Busy)?;
        Ok(Self(connector.clone()))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Relaxed);
    }
}

/// A connection on which a request can be sent.
#[derive(Debug)]
pub struct Connection {
    sender: Sender,
    /// None for a unix socket.
    address: Option<Arc<Address>>,
}

#[derive(Debug)]
enum Sender {
    Http1 {
        sender: http1::SendRequest<Body>,
        /// Whether the server has said anything since a request was sent.
        has_heard: Arc<AtomicBool>,
        /// Whether the server has answered in HTTP/1.0: hyper would send it no more chunked bodies, but empty ones.
        is_old: bool,
    },
    Http2 {
        sender: http2::SendRequest<Body>,
        stream: Stream,
    },
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
    /// Whether the server hasn't answered in time: it may be gone, and nobody would notice.
    is_suspect: AtomicBool,
}

impl Connection {
    /// Begins to speak on a stream.
    async fn begin<S>(
        stream: S,
        http2: bool,
        address: Option<Arc<Address>>,
        counted: Counted,
        deadline: Instant,
    ) -> Result<Self, Failure>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        if http2 {
            return Self::begin_http2(stream, address, counted, deadline).await;
        }
        let has_heard = Arc::<AtomicBool>::default();
        let heard = has_heard.clone();
        let io = TokioIo::new(Listening { stream, on_read: move || heard.store(true, Relaxed) });
        let mut builder = http1::Builder::new();
        builder.preserve_header_case(true).max_headers(RESPONSE_FIELDS_MOST);
        builder.max_header_size(RESPONSE_BUFFER).max_buf_size(RESPONSE_BUFFER);
        let (sender, connection) = builder.handshake(io).await.map_err(Failure::Broken)?;
        // How it ends is for the exchange on it to report.
        tokio::spawn(async { drop((connection.await, counted)) });
        Ok(Self { sender: Sender::Http1 { sender, has_heard, is_old: false }, address })
    }

    /// Begins to speak HTTP/2, and waits until the server has said how many streams it takes.
    async fn begin_http2<S>(
        stream: S,
        address: Option<Arc<Address>>,
        counted: Counted,
        deadline: Instant,
    ) -> Result<Self, Failure>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let streams = Arc::new(Streams::default());
        let heard = streams.clone();
        // What a server says first is how many it takes.
        let io = TokioIo::new(Listening { stream, on_read: move || heard.has_read.wake() });
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.initial_max_send_streams(0).max_header_list_size(RESPONSE_BUFFER as u32);
        let (sender, mut connection) = builder.handshake(io).await.map_err(Failure::Broken)?;
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
            drop((connection, counted));
            told.news.notify_one();
        });
        let told = async {
            while streams.most.load(Relaxed) == 0 && !sender.is_closed() {
                streams.news.notified().await;
            }
        };
        timeout_at(deadline, told).await.map_err(|_| Failure::ConnectTimeout)?;
        streams.lent.store(1, Relaxed);
        Ok(Self { sender: Sender::Http2 { sender, stream: Stream(streams) }, address })
    }

    /// Another hold of the connection, if it takes more requests at a time.
    pub fn share(&self) -> Option<Self> {
        let Sender::Http2 { sender, stream: Stream(streams) } = &self.sender else { return None };
        let more = |lent| (lent <= streams.most.load(Relaxed)).then_some(lent + 1);
        streams.lent.fetch_update(Relaxed, Relaxed, more).ok()?;
        let sender = Sender::Http2 { sender: sender.clone(), stream: Stream(streams.clone()) };
        Some(Self { sender, address: self.address.clone() })
    }

    /// Whether it is one that can be shared.
    pub fn is_http2(&self) -> bool {
        matches!(self.sender, Sender::Http2 { .. })
    }

    /// Whether nobody but this value holds it.
    pub fn is_idle(&self) -> bool {
        match &self.sender {
            Sender::Http1 { .. } => true,
            Sender::Http2 { stream, .. } => stream.0.lent.load(Relaxed) <= 1,
        }
    }

    /// Sends a request, and gives the answer as it begins.
    ///
    /// # Errors
    /// It broke before the answer. A request that wasn't sent comes back.
    pub async fn send(
        &mut self,
        mut request: Request<Body>,
        url: &ServerUrl,
    ) -> Result<Response<Incoming>, TrySendError<Request<Body>>> {
        match &mut self.sender {
            Sender::Http1 { sender, has_heard, is_old } => {
                has_heard.store(false, Relaxed);
                for_http1(&mut request);
                let answered = sender.try_send_request(request).await;
                *is_old = answered.as_ref().is_ok_and(|response| response.version() == Version::HTTP_10);
                answered
            }
            Sender::Http2 { sender, .. } => {
                for_http2(&mut request, url);
                sender.try_send_request(request).await
            }
        }
    }

    /// Whether the server has said anything since a request was sent, as far as that can be told of one request.
    pub fn has_heard(&self) -> bool {
        match &self.sender {
            Sender::Http1 { has_heard, .. } => has_heard.load(Relaxed),
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
            Sender::Http1 { sender, is_old, .. } => sender.is_ready() && !is_old,
            Sender::Http2 { sender, stream } => sender.is_ready() && !stream.0.is_suspect.load(Relaxed),
        };
        is_ready && !self.address.as_ref().is_some_and(|address| address.is_gone())
    }

    /// Whether no request can be sent any more.
    pub fn is_closed(&self) -> bool {
        match &self.sender {
            Sender::Http1 { sender, is_old, .. } => sender.is_closed() || *is_old,
            Sender::Http2 { sender, .. } => sender.is_closed(),
        }
    }

    /// Waits until a request can be sent, or no more.
    pub async fn ready(&mut self) -> Result<(), hyper::Error> {
        match &mut self.sender {
            Sender::Http1 { sender, .. } => sender.ready().await,
            Sender::Http2 { sender, .. } => sender.ready().await,
        }
    }
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
    *request.version_mut() = Version::HTTP_11;
    if request.headers().contains_key(TE) {
        // It is for the next server only (RFC 9110, section 10.1.4).
        request.headers_mut().insert(CONNECTION, HeaderValue::from_static("te"));
    }
    if request.body().size_hint().exact().is_none() {
        // hyper would take a GET for one without a body.
        request.headers_mut().insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
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

/// A stream that tells when something has come.
struct Listening<S, F> {
    stream: S,
    on_read: F,
}

impl<S: AsyncRead + Unpin, F: Fn() + Unpin> AsyncRead for Listening<S, F> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            (self.on_read)();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin, F: Unpin> AsyncWrite for Listening<S, F> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
