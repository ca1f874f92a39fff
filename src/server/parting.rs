//! How a connection of a client ends that isn't idle: what it is told, and that it can read that.
//!
//! hyper answers what it can't read as a request by itself, with a status and nothing else. It does so when nothing is
//! owed to the client, and so is told from all other that it writes; the gateway's own answer goes out in its place.
//!
//! A client that still sends when it is answered would be reset by a connection that closes, and may lose the
//! answer. So the connection is shut for writing, and what comes is thrown away until the client has closed it, too
//! (RFC 9112, section 9.6), but not for long.

use std::{
    mem::MaybeUninit,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, Bytes};
use hyper::{Response, header::CONTENT_LENGTH};
use tokio::{
    io::{self, AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};

use crate::gateway::Gateway;

use super::client::Watched;

/// How long what comes is thrown away at most, and for how long if nothing comes.
const LINGER_MOST: Duration = Duration::from_secs(30);
const LINGER_SILENT: Duration = Duration::from_secs(2);
/// What a message ends with that has no body.
const HEAD_END: &[u8] = b"\r\n\r\n";
/// Bytes that are thrown away at a time.
const THROWN_AWAY: usize = 16 << 10;

/// A connection that ends so.
#[derive(Debug)]
pub(super) struct Parting<S> {
    stream: Watched<S>,
    /// The greatest head of a request.
    head_most: usize,
    /// Bytes that have come since the last answer up to a line's end, and whether that has come.
    line: (usize, bool),
    /// What is left to be written in place of hyper's own answer, if it has given one.
    answer: Option<Bytes>,
    lingering: Option<Box<Lingering>>,
}

/// What still comes is thrown away.
#[derive(Debug)]
struct Lingering {
    until: Instant,
    timer: Pin<Box<Sleep>>,
    more_may_come: bool,
}

impl<S> Parting<S> {
    /// Of a client whose requests may have heads of so many bytes.
    pub(super) fn new(stream: Watched<S>, head_most: usize) -> Self {
        Self { stream, head_most, line: (0, false), answer: None, lingering: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Parting<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let (bytes, false) = self.line {
            let more = &buffer.filled()[before..];
            let end = more.iter().position(|byte| *byte == b'\n');
            self.line = (bytes + end.unwrap_or(more.len()), end.is_some());
        }
        read
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Parting<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Self { stream, head_most, line, answer, .. } = &mut *self;
        // To look at the end first is cheap: other answers mostly have bodies.
        if answer.is_none() && bytes.ends_with(HEAD_END) && stream.watch.owes_nothing() {
            *answer = in_place_of(bytes, line.0 >= *head_most);
        }
        let Some(answer) = answer else {
            *line = (0, false);
            return Pin::new(stream).poll_write(context, bytes);
        };
        while !answer.is_empty() {
            let written = ready!(Pin::new(&mut *stream).poll_write(context, answer))?;
            answer.advance(written);
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, answer, lingering, .. } = &mut *self;
        if stream.watch.is_in_flight() {
            // It is a tunnel, whose client may have more to say to the upstream.
            return Pin::new(stream).poll_shutdown(context);
        }
        if lingering.is_none() {
            ready!(Pin::new(&mut *stream).poll_shutdown(context))?;
        }
        let more_may_come = answer.is_some() || stream.watch.was_answered_early();
        let lingering = lingering.get_or_insert_with(|| Lingering::begin(more_may_come));
        // Nothing is awaited of the client any more, so its watch needn't know.
        lingering.poll_end(&mut stream.stream, context).map(Ok)
    }
}

impl Lingering {
    fn begin(more_may_come: bool) -> Box<Self> {
        let now = Instant::now();
        let timer = Box::pin(sleep_until(now + LINGER_SILENT));
        Box::new(Self { until: now + LINGER_MOST, timer, more_may_come })
    }

    /// Waits until the client has closed the connection, too, or for as long as it is waited for.
    fn poll_end(&mut self, stream: &mut (impl AsyncRead + Unpin), context: &mut Context<'_>) -> Poll<()> {
        loop {
            let mut thrown_away = [MaybeUninit::uninit(); THROWN_AWAY];
            let mut buffer = ReadBuf::uninit(&mut thrown_away);
            match Pin::new(&mut *stream).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    self.more_may_come = true;
                    let now = Instant::now();
                    // The timer isn't asked as long as more comes at once.
                    if now >= self.until {
                        return Poll::Ready(());
                    }
                    self.timer.as_mut().reset(self.until.min(now + LINGER_SILENT));
                }
                Poll::Pending if self.more_may_come => return self.timer.as_mut().poll(context),
                _ => return Poll::Ready(()),
            }
        }
    }
}

/// The gateway's own answer in place of hyper's to what it couldn't read, if it is such a one.
fn in_place_of(hypers: &[u8], is_target_too_long: bool) -> Option<Bytes> {
    let head = std::str::from_utf8(hypers).ok()?.strip_suffix("\r\n\r\n")?;
    let mut lines = head.split("\r\n");
    let status = lines.next()?.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    let response: Response<Bytes> = Gateway::answer_to_unreadable(status, is_target_too_long)?;
    let mut answer = format!("HTTP/1.1 {}\r\n", response.status()).into_bytes();
    let mut add = |name: &str, value: &[u8]| {
        answer.extend_from_slice(name.as_bytes());
        answer.extend_from_slice(b": ");
        answer.extend_from_slice(value);
        answer.extend_from_slice(b"\r\n");
    };
    // What hyper says of the connection, and the date.
    for (name, value) in
        lines.filter_map(|line| line.split_once(": ")).filter(|(name, _)| *name != CONTENT_LENGTH)
    {
        add(name, value.as_bytes());
    }
    for (name, value) in response.headers() {
        add(name.as_str(), value.as_bytes());
    }
    add(CONTENT_LENGTH.as_str(), response.body().len().to_string().as_bytes());
    answer.extend_from_slice(b"\r\n");
    answer.extend_from_slice(response.body());
    Some(answer.into())
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, time::Duration};

    use tokio::{io::repeat, time::timeout};

    use super::*;

    #[tokio::test]
    async fn who_sends_without_a_pause_is_not_listened_to_for_ever() {
        let mut lingering = Lingering::begin(true);
        lingering.until = Instant::now() + Duration::from_millis(50);
        let mut flood = repeat(b'x');
        let end = poll_fn(|context| lingering.poll_end(&mut flood, context));
        timeout(Duration::from_secs(10), end).await.expect("it ends by itself");
    }
}
