//! How a connection of a client ends that isn't idle.
//!
//! A client that still sends when it is answered would be reset by a connection that closes, and may lose the
//! answer. So the connection is shut for writing, and what comes is thrown away until the client has closed it, too
//! (RFC 9112, section 9.6), but not for long.

use std::{
    future::poll_fn,
    mem::MaybeUninit,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{self, AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};

/// How long what comes is thrown away at most, and for how long if nothing comes.
const LINGER_MOST: Duration = Duration::from_secs(30);
const LINGER_SILENT: Duration = Duration::from_secs(2);
/// Bytes that are thrown away at a time.
const THROWN_AWAY: usize = 16 << 10;

/// Ends a connection on which more may come, or has come already.
///
/// # Errors
/// It broke.
pub(super) async fn part(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    more_may_come: bool,
) -> io::Result<()> {
    stream.shutdown().await?;
    let mut lingering = Lingering::begin(more_may_come);
    poll_fn(|context| lingering.poll_end(stream, context)).await;
    Ok(())
}

/// What still comes is thrown away.
#[derive(Debug)]
struct Lingering {
    until: Instant,
    timer: Pin<Box<Sleep>>,
    more_may_come: bool,
}

impl Lingering {
    fn begin(more_may_come: bool) -> Self {
        let now = Instant::now();
        let timer = Box::pin(sleep_until(now + LINGER_SILENT));
        Self { until: now + LINGER_MOST, timer, more_may_come }
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
