//! Closing a connection on which the client may still send.
//!
//! Closing such a connection would reset it, and the client might lose the response. So the connection is
//! shut down for writing, and received bytes are discarded until the client closes it, too, within a time
//! limit (RFC 9112, section 9.6).

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

/// The most time to discard received bytes.
pub(super) const LINGER_MOST: Duration = Duration::from_secs(30);
/// The most time without any, unless the client may need longer to receive the last response.
pub(super) const LINGER_SILENT: Duration = Duration::from_secs(2);
/// The most bytes discarded at a time.
const DISCARDED_MOST: usize = 16 << 10;

/// Closes a connection. `more_may_come` says that the client may still send, or has sent unread bytes.
///
/// # Errors
/// The connection failed.
pub(super) async fn close(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    more_may_come: bool,
) -> io::Result<()> {
    stream.shutdown().await?;
    let mut lingering = Lingering::begin(more_may_come, LINGER_SILENT);
    poll_fn(|context| lingering.poll_end(stream, context)).await;
    Ok(())
}

/// Discards received bytes until the client closes the connection.
#[derive(Debug)]
pub(super) struct Lingering {
    until: Instant,
    /// The most time without any bytes.
    silent: Duration,
    timer: Pin<Box<Sleep>>,
    more_may_come: bool,
}

impl Lingering {
    pub(super) fn begin(more_may_come: bool, silent: Duration) -> Self {
        let now = Instant::now();
        let timer = Box::pin(sleep_until(now + silent));
        Self { until: now + LINGER_MOST, silent, timer, more_may_come }
    }

    /// Waits until the client has closed the connection, or the time is over.
    pub(super) fn poll_end(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        context: &mut Context<'_>,
    ) -> Poll<()> {
        loop {
            let mut discarded = [MaybeUninit::uninit(); DISCARDED_MOST];
            let mut buffer = ReadBuf::uninit(&mut discarded);
            match Pin::new(&mut *stream).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    self.more_may_come = true;
                    let now = Instant::now();
                    // The timer isn't polled while bytes arrive without a pause.
                    if now >= self.until {
                        return Poll::Ready(());
                    }
                    self.timer.as_mut().reset(self.until.min(now + self.silent));
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
    async fn a_client_that_never_pauses_is_disconnected() {
        let mut lingering = Lingering::begin(true, LINGER_SILENT);
        lingering.until = Instant::now() + Duration::from_millis(50);
        let mut flood = repeat(b'x');
        let end = poll_fn(|context| lingering.poll_end(&mut flood, context));
        timeout(Duration::from_secs(10), end).await.expect("it ends by itself");
    }
}
