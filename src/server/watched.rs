//! A byte stream that tells the watch of its connection what the client does.

use std::{
    io::IoSlice,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::io::{self, AsyncRead, AsyncWrite, ReadBuf};

use super::{
    client::{RECEIVED_WITHIN, Watch},
    linger::{LINGER_SILENT, Lingering},
};

/// A byte stream that updates the watch of its connection.
#[derive(Debug)]
pub(super) struct Watched<S> {
    pub(super) stream: S,
    pub(super) watch: Arc<Watch>,
    /// True if the watch has recorded that the client doesn't read.
    is_blocked: bool,
    lingering: Option<Lingering>,
}

impl<S> Watched<S> {
    /// Creates a watched stream.
    pub(super) fn new(stream: S, watch: Arc<Watch>) -> Self {
        Self { stream, watch, is_blocked: false, lingering: None }
    }

    fn note_write(&mut self, is_blocked: bool) {
        if is_blocked || self.is_blocked {
            self.is_blocked = is_blocked;
            self.watch.note_write(is_blocked);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        if buffer.filled().len() > before {
            self.watch.note_read();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note_write(written.is_pending());
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.note_write(written.is_pending());
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        // TLS accepts written data but may hold it back.
        self.note_write(flushed.is_pending());
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, watch, lingering, .. } = &mut *self;
        if lingering.is_none() {
            ready!(Pin::new(&mut *stream).poll_shutdown(context))?;
        }
        // HTTP/1.1 lingers where it must. With HTTP/2, a client may send as long as it receives, but one at fault gets no more time.
        if watch.is_http2() && watch.is_ending() {
            let begin = || {
                watch.await_nothing();
                let silent = if watch.may_receive() { RECEIVED_WITHIN } else { LINGER_SILENT };
                Lingering::begin(true, silent)
            };
            ready!(lingering.get_or_insert_with(begin).poll_end(stream, context));
        }
        Poll::Ready(Ok(()))
    }
}
