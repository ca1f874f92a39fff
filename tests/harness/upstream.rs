//! An upstream: a real server in the test's process, which records its requests.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
};

use bytes::Bytes;
use futures_util::stream::unfold;
use http_body_util::{BodyExt, StreamBody, combinators::BoxBody};
use hyper::{
    Request, Response,
    body::{Frame, Incoming},
    http::request::Parts,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{HandshakeKind, ServerConfig, ServerConnection};
use socket2::SockRef;
use tokio::{net::TcpListener, sync::watch};
use tokio_rustls::TlsAcceptor;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4_096;

/// The body of a response.
pub(crate) type Body = BoxBody<Bytes, Infallible>;

/// A server whose responses come from a function. It ends with the test's process.
pub(crate) struct Upstream {
    scheme: &'static str,
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Parts>>>,
    connections: Arc<Mutex<Vec<Shaken>>>,
    open: Arc<AtomicUsize>,
}

/// The protocol of an upstream.
#[derive(Clone)]
pub(crate) enum Speech {
    /// HTTP/1.1 in cleartext.
    Http1,
    /// HTTP/2 in cleartext.
    Http2(http2::Builder<TokioExecutor>),
    /// HTTP/1.1 or HTTP/2 over TLS, as negotiated.
    Tls(Arc<ServerConfig>),
}

/// The result of a TLS handshake.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shaken {
    /// The name that the client requested.
    pub(crate) server_name: Option<String>,
    pub(crate) is_resumed: bool,
    pub(crate) protocol: Option<String>,
    /// True if the client has presented a certificate.
    pub(crate) client_is_known: bool,
}

impl Shaken {
    fn of(tls: &ServerConnection) -> Self {
        Self {
            server_name: tls.server_name().map(str::to_owned),
            is_resumed: tls.handshake_kind() == Some(HandshakeKind::Resumed),
            protocol: tls.alpn_protocol().map(|protocol| String::from_utf8(protocol.to_vec()).unwrap()),
            client_is_known: tls.peer_certificates().is_some(),
        }
    }
}

impl Upstream {
    /// Starts a server that returns 200 with a short text.
    pub(crate) fn hello() -> Self {
        Self::start(|_| async { Response::new(whole("hello")) })
    }

    /// Starts a server that returns the request's body as it arrives.
    pub(crate) fn mirror() -> Self {
        Self::start(|request| async {
            let body = request.into_body();
            Response::new(BodyExt::boxed(body.map_err(|error| panic!("the body broke off: {error}"))))
        })
    }

    /// Starts a server that returns `piece` twice, each on a signal.
    pub(crate) fn in_two_pieces() -> (watch::Sender<i32>, Self) {
        let (piece, pieces) = watch::channel(0);
        let upstream = Self::start(move |_| {
            let pieces = pieces.clone();
            async move {
                let stream = unfold((0, pieces), |(sent, mut pieces)| async move {
                    pieces.wait_for(|count| *count > sent).await.ok()?;
                    (sent < 2).then(|| (Ok(Frame::data("piece".into())), (sent + 1, pieces)))
                });
                Response::new(BodyExt::boxed(StreamBody::new(stream)))
            }
        });
        (piece, upstream)
    }

    /// Starts a server whose responses come from a function.
    pub(crate) fn start<F>(answer: impl Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Response<Body>> + Send + 'static,
    {
        Self::speaking(Speech::Http1, answer)
    }

    /// Starts a server with a protocol, whose responses come from a function.
    pub(crate) fn speaking<F>(
        speech: Speech,
        answer: impl Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Response<Body>> + Send + 'static,
    {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        // The standard library's backlog of 128 is too short for bursts: a connection that it drops costs a second or more.
        SockRef::from(&listener).listen(BACKLOG).unwrap();
        listener.set_nonblocking(true).unwrap();
        let scheme = if matches!(speech, Speech::Tls(_)) { "https" } else { "http" };
        let address = listener.local_addr().unwrap();
        let upstream = Self {
            scheme,
            address,
            requests: Arc::default(),
            connections: Arc::default(),
            open: Arc::default(),
        };
        let (requests, connections) = (upstream.requests.clone(), upstream.connections.clone());
        let open = upstream.open.clone();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).unwrap();
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    stream.set_nodelay(true).unwrap();
                    let (answer, seen) = (answer.clone(), requests.clone());
                    let service = service_fn(move |request: Request<Incoming>| {
                        let (parts, body) = request.into_parts();
                        seen.lock().unwrap().push(parts.clone());
                        let answered = answer(Request::from_parts(parts, body));
                        async { Ok::<_, Infallible>(answered.await) }
                    });
                    let (speech, connections, open) = (speech.clone(), connections.clone(), open.clone());
                    open.fetch_add(1, SeqCst);
                    tokio::spawn(async move {
                        let http1 = http1::Builder::new();
                        match speech {
                            Speech::Http1 => {
                                connections.lock().unwrap().push(Shaken::default());
                                let _ = http1.serve_connection(TokioIo::new(stream), service).await;
                            }
                            Speech::Http2(http2) => {
                                connections.lock().unwrap().push(Shaken::default());
                                let _ = http2.serve_connection(TokioIo::new(stream), service).await;
                            }
                            Speech::Tls(config) => {
                                let Ok(stream) = TlsAcceptor::from(config).accept(stream).await else {
                                    return;
                                };
                                let tls = stream.get_ref().1;
                                connections.lock().unwrap().push(Shaken::of(tls));
                                if tls.alpn_protocol() == Some(b"h2") {
                                    let http2 = http2::Builder::new(TokioExecutor::new());
                                    let _ = http2.serve_connection(TokioIo::new(stream), service).await;
                                } else {
                                    let _ = http1.serve_connection(TokioIo::new(stream), service).await;
                                }
                            }
                        }
                        open.fetch_sub(1, SeqCst);
                    });
                }
            });
        });
        upstream
    }

    pub(crate) fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    /// Returns the number of connections so far.
    pub(crate) fn connections(&self) -> Vec<Shaken> {
        self.connections.lock().unwrap().clone()
    }

    /// Returns the number of open connections.
    pub(crate) fn open(&self) -> usize {
        self.open.load(SeqCst)
    }

    /// Returns the number of requests received.
    pub(crate) fn count(&self) -> usize {
        self.requests.lock().unwrap().len()
    }

    /// Returns the number of matching requests received.
    pub(crate) fn seen(&self, is_meant: impl Fn(&Parts) -> bool) -> usize {
        self.requests.lock().unwrap().iter().filter(|parts| is_meant(parts)).count()
    }

    /// Returns the newest request received.
    pub(crate) fn last(&self) -> Parts {
        self.requests.lock().unwrap().last().expect("a request has reached the upstream").clone()
    }
}

/// Returns a complete body.
pub(crate) fn whole(text: impl Into<Bytes>) -> Body {
    BoxBody::new(http_body_util::Full::new(text.into()))
}
