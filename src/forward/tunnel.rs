//! Tunnels: connections with another protocol after a 101 response (RFC 9110, section 7.8). The gateway forwards bytes in both
//! directions without interpreting them.
//!
//! Only WebSocket (RFC 6455) is supported. The upgrade of other protocols is ignored: through h2c, a client could send requests past
//! the limits.

use std::{fmt, io, time::Duration};

use hyper::{
    HeaderMap, Method, Version,
    header::{CONNECTION, HeaderValue, TE, UPGRADE},
    http::{request, response},
};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split},
    select,
    time::{Instant, sleep_until},
    try_join,
};

use tollgate_http1::{
    Ahead, Stream,
    head::{Spelling, Spelt, has_member},
};

use super::{
    Failure,
    body::SILENCE_LEAST,
    connection::Http1,
    pool::{LentConnection, TunnelCounts},
};

/// The size of a read in bytes, in each direction.
const PIECE: usize = 8 << 10;
const WEBSOCKET: &str = "websocket";

/// The upstream connection of an exchange that switches protocols after its response.
pub struct Tunnel {
    upstream: Ahead<Box<dyn Stream>>,
    /// The spelling of the response's header names.
    spelling: Spelt,
    _held: TunnelCounts,
}

/// A mark on requests that ask for a tunnel.
#[derive(Clone, Copy, Debug)]
pub struct TunnelRequested;

/// Marks a request that asks for a tunnel. Its header must be as received.
pub fn mark_if_requested(request: &mut request::Parts, has_body: bool) {
    let may_ask = request.version == Version::HTTP_11 && request.method == Method::GET && !has_body;
    // To look at each name is cheaper than to look up one that is rarely there.
    if may_ask && request.headers.keys().any(|name| *name == UPGRADE) && switches(&request.headers) {
        request.extensions.insert(TunnelRequested);
    }
}

/// Adds the header fields that ask for a tunnel, or grant it.
pub fn write(headers: &mut HeaderMap) {
    // A handshake has no trailers, so Connection names nothing else.
    headers.remove(TE);
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(WEBSOCKET));
}

/// Returns true if a message switches to WebSocket.
fn switches(headers: &HeaderMap) -> bool {
    has_member(headers, UPGRADE, WEBSOCKET) && has_member(headers, CONNECTION, "upgrade")
}

impl Tunnel {
    /// Returns the tunnel to a client that asked for one. The response's header must be as received.
    ///
    /// # Errors
    /// The upstream switches to a protocol that the client didn't ask for.
    pub fn new(
        asked: Option<TunnelRequested>,
        answer: &response::Parts,
        mut lent: LentConnection,
    ) -> Result<Self, Failure> {
        asked.filter(|_| switches(&answer.headers)).ok_or(Failure::Switched)?;
        let spelling = lent.http1_mut().and_then(Http1::take_spelling);
        let (upstream, held) = lent.into_tunnel().ok_or(Failure::Switched)?;
        Ok(Self { upstream, spelling, _held: held })
    }

    /// Returns the spelling of the response's header names.
    pub fn spelling(&self) -> Option<&Spelling> {
        self.spelling.as_deref()
    }

    /// Forwards bytes in both directions until both ends have closed, and counts those to the client. The client must have its
    /// response.
    ///
    /// # Errors
    /// A connection broke, or nothing was received from either end for `idle` and five minutes.
    pub async fn run(
        self,
        client: impl AsyncRead + AsyncWrite,
        idle: Duration,
        sent_bytes: &mut u64,
    ) -> io::Result<()> {
        copy_both(client, self.upstream, idle.max(SILENCE_LEAST), sent_bytes).await
    }
}

impl fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tunnel").finish_non_exhaustive()
    }
}

async fn copy_both(
    client: impl AsyncRead + AsyncWrite,
    upstream: impl AsyncRead + AsyncWrite,
    idle: Duration,
    sent_bytes: &mut u64,
) -> io::Result<()> {
    let (from_client, to_client) = split(client);
    let (from_upstream, to_upstream) = split(upstream);
    let moved = Mutex::new(Instant::now());
    let note = || *moved.lock() = Instant::now();
    let up = copy(from_client, to_upstream, |_| note());
    let down = copy(from_upstream, to_client, |bytes| {
        note();
        *sent_bytes += bytes as u64;
    });
    select! {
        ended = async { try_join!(up, down) } => ended.map(drop),
        () = until_idle(&moved, idle) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Forwards one direction up to and including its end. The other direction may continue.
async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut note: impl FnMut(usize),
) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        let length = from.read(&mut piece).await?;
        if length == 0 {
            return to.shutdown().await;
        }
        to.write_all(&piece[..length]).await?;
        to.flush().await?;
        note(length);
    }
}

/// Waits until no byte was forwarded for this time.
async fn until_idle(moved: &Mutex<Instant>, idle: Duration) {
    loop {
        let until = *moved.lock() + idle;
        if until <= Instant::now() {
            return;
        }
        sleep_until(until).await;
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderName;
    use tokio::{io::duplex, spawn, task::JoinHandle, time::sleep};

    use super::*;

    fn lines(field: &HeaderName, lines: &[&'static str]) -> HeaderMap {
        lines.iter().map(|line| (field.clone(), HeaderValue::from_static(line))).collect()
    }

    #[test]
    fn websocket_is_found_in_lists() {
        for (connection, upgrade, is_asked) in [
            (&["Upgrade"][..], &["websocket"][..], true),
            (&["keep-alive, UPGRADE"], &["h2c,WebSocket"], true),
            (&["close", "upgrade"], &["h2c", "websocket"], true),
            (&["keep-alive"], &["websocket"], false),
            (&[], &["websocket"], false),
            (&["upgrade"], &["h2c"], false),
            (&["upgrade"], &["websocket/13"], false),
            (&["upgrade"], &[], false),
        ] {
            let mut headers = lines(&CONNECTION, connection);
            headers.extend(lines(&UPGRADE, upgrade));
            assert_eq!(switches(&headers), is_asked, "{headers:?}");
        }
    }

    /// Returns both ends of a tunnel with this idle timeout, and its result.
    fn tunnel(
        idle: Duration,
    ) -> (impl AsyncRead + AsyncWrite, impl AsyncRead + AsyncWrite, JoinHandle<(io::Result<()>, u64)>) {
        let ((client, near), (far, upstream)) = (duplex(PIECE), duplex(PIECE));
        let ended = spawn(async move {
            let mut sent_bytes = 0;
            (copy_both(near, far, idle, &mut sent_bytes).await, sent_bytes)
        });
        (client, upstream, ended)
    }

    #[tokio::test(start_paused = true)]
    async fn a_tunnel_ends_when_nothing_was_received_from_either_end_for_a_time() {
        const IDLE: Duration = Duration::from_secs(300);
        let (mut client, mut upstream, ended) = tunnel(IDLE);
        let began = Instant::now();
        for _ in 0..4 {
            sleep(IDLE * 2 / 3).await;
            client.write_all(b"a").await.unwrap();
            sleep(IDLE * 2 / 3).await;
            upstream.write_all(b"b").await.unwrap();
        }
        let last = began.elapsed();
        let (end, sent_bytes) = ended.await.unwrap();
        assert_eq!((end.unwrap_err().kind(), sent_bytes), (io::ErrorKind::TimedOut, 4));
        assert!(
            began.elapsed() >= last + IDLE && began.elapsed() < last + IDLE * 4 / 3,
            "{:?}",
            began.elapsed()
        );
    }

    #[tokio::test]
    async fn one_direction_can_end_before_the_other() {
        let (mut client, mut upstream, ended) = tunnel(SILENCE_LEAST);
        client.write_all(b"request").await.unwrap();
        client.shutdown().await.unwrap();
        let mut received = String::new();
        upstream.read_to_string(&mut received).await.unwrap();
        assert_eq!(received, "request");
        upstream.write_all(b"answer").await.unwrap();
        upstream.shutdown().await.unwrap();
        client.read_to_string(&mut received).await.unwrap();
        assert_eq!(received, "requestanswer");
        let (end, sent_bytes) = ended.await.unwrap();
        assert!(end.is_ok() && sent_bytes == 6, "{end:?} {sent_bytes}");
    }
}
