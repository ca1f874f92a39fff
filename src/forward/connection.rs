//! A connection to a server, and what is sent on it.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use hyper::{
    Request, Response,
    body::Incoming,
    client::conn::{TrySendError, http1},
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::timeout,
};

use super::{Failure, body::Body};

/// Fields that an answer may have.
const RESPONSE_FIELDS_MOST: usize = 256;

/// A connection on which a request can be sent.
#[derive(Debug)]
pub struct Connection {
    sender: http1::SendRequest<Body>,
    /// Whether the server has said anything since a request was sent.
    has_heard: Arc<AtomicBool>,
}

impl Connection {
    /// Makes a connection.
    ///
    /// # Errors
    /// The server can't be reached, or not in time.
    pub async fn open(address: (&str, u16), connect_timeout: Duration) -> Result<Self, Failure> {
        let stream = match timeout(connect_timeout, TcpStream::connect(address)).await {
            Ok(stream) => stream.map_err(Failure::Unreachable)?,
            Err(_) => return Err(Failure::ConnectTimeout),
        };
        stream.set_nodelay(true).map_err(Failure::Unreachable)?;
        let has_heard = Arc::<AtomicBool>::default();
        let io = TokioIo::new(Listening { stream, has_heard: has_heard.clone() });
        let mut builder = http1::Builder::new();
        builder.max_headers(RESPONSE_FIELDS_MOST);
        let (sender, connection) = builder.handshake(io).await.map_err(Failure::Broken)?;
        // How it ends is for the exchange on it to report.
        tokio::spawn(async { drop(connection.await) });
        Ok(Self { sender, has_heard })
    }

    /// Sends a request, and gives the answer as it begins.
    ///
    /// # Errors
    /// It broke before the answer. A request that wasn't sent comes back.
    pub fn send(
        &mut self,
        request: Request<Body>,
    ) -> impl Future<Output = Result<Response<Incoming>, TrySendError<Request<Body>>>> + use<> {
        self.has_heard.store(false, Relaxed);
        self.sender.try_send_request(request)
    }

    /// Whether the server has said anything since a request was sent.
    pub fn has_heard(&self) -> bool {
        self.has_heard.load(Relaxed)
    }

    /// Whether a request can be sent now.
    pub fn is_ready(&self) -> bool {
        self.sender.is_ready()
    }

    /// Whether no request can be sent any more.
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Waits until a request can be sent, or no more.
    pub async fn ready(&mut self) -> Result<(), hyper::Error> {
        self.sender.ready().await
    }
}

/// A stream that tells whether anything has come.
struct Listening<S> {
    stream: S,
    has_heard: Arc<AtomicBool>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Listening<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.has_heard.store(true, Relaxed);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Listening<S> {
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
