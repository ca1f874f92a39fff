//! What has come of a connection.

use std::{
    cell::RefCell,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that are read at a time, and of what is read ahead, at most.
const READ_MOST: usize = 64 << 10;

thread_local! {
    /// What is read goes here first, so that a connection that waits holds no buffer.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_MOST].into());
}

/// What has come of a connection and isn't used yet. Empty, it holds no memory.
#[derive(Debug, Default)]
pub struct Input(Bytes);

impl Input {
    /// Reads what is there, of [`READ_MOST`] bytes, and tells how many that is: 0 at the end.
    ///
    /// # Errors
    /// The connection broke.
    pub fn poll_more(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin + ?Sized),
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        self.poll_some(READ_MOST, stream, context)
    }

    /// Reads ahead of what is asked for while fewer than [`READ_MOST`] bytes are there, and tells how many that is: 0 at the
    /// end.
    ///
    /// # Errors
    /// The connection broke.
    pub fn poll_ahead(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin + ?Sized),
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        match READ_MOST.saturating_sub(self.0.len()) {
            0 => Poll::Pending,
            room => self.poll_some(room, stream, context),
        }
    }

    fn poll_some(
        &mut self,
        most: usize,
        stream: &mut (impl AsyncRead + Unpin + ?Sized),
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        SCRATCH.with_borrow_mut(|scratch| {
            let mut buffer = ReadBuf::new(&mut scratch[..most]);
            ready!(Pin::new(stream).poll_read(context, &mut buffer))?;
            self.push(buffer.filled());
            Poll::Ready(Ok(buffer.filled().len()))
        })
    }

    /// Puts something behind what is there.
    pub fn push(&mut self, more: &[u8]) {
        if self.0.is_empty() {
            self.0 = Bytes::copy_from_slice(more);
        } else if !more.is_empty() {
            // Mostly nobody else holds it, and it grows where it is.
            let mut all = std::mem::take(&mut self.0).try_into_mut().unwrap_or_else(BytesMut::from);
            all.extend_from_slice(more);
            self.0 = all.freeze();
        }
    }

    /// What is there.
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }

    /// Takes the first so many bytes, of those that are there.
    pub fn take(&mut self, length: usize) -> Bytes {
        if length == self.0.len() { std::mem::take(&mut self.0) } else { self.0.split_to(length) }
    }

    /// The stream, of which this is read first.
    pub fn before<S>(self, stream: S) -> Ahead<S> {
        Ahead { bytes: self.0, stream }
    }
}

/// A stream of which something has been read ahead.
#[derive(Debug)]
pub struct Ahead<S> {
    bytes: Bytes,
    stream: S,
}

impl<S: AsyncRead + Unpin> AsyncRead for Ahead<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.bytes.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let length = self.bytes.len().min(buffer.remaining());
        buffer.put_slice(&self.bytes[..length]);
        self.bytes.advance(length);
        if self.bytes.is_empty() {
            self.bytes = Bytes::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Ahead<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
