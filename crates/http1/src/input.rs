//! The bytes received on a connection.

use std::{
    cell::RefCell,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The most bytes read at a time, and the most read ahead.
const READ_MOST: usize = 64 << 10;

thread_local! {
    /// Reads go here first, so that an idle connection holds no buffer.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_MOST].into());
}

/// The bytes received on a connection and not used yet. If empty, it holds no memory.
#[derive(Debug, Default)]
pub struct Input(Bytes);

impl Input {
    /// Reads at most [`READ_MOST`] bytes and returns their number: 0 at the end of the stream.
    ///
    /// # Errors
    /// The connection failed.
    pub fn poll_more(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin + ?Sized),
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        self.poll_some(READ_MOST, stream, context)
    }

    /// Reads ahead while fewer than [`READ_MOST`] bytes are unused. Returns the number of bytes read: 0 at
    /// the end of the stream.
    ///
    /// # Errors
    /// The connection failed.
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

    /// Returns true if no more is read ahead.
    pub fn is_full(&self) -> bool {
        self.0.len() >= READ_MOST
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

    /// Appends bytes.
    pub fn push(&mut self, more: &[u8]) {
        if self.0.is_empty() {
            self.0 = Bytes::copy_from_slice(more);
        } else if !more.is_empty() {
            // The memory is rarely shared, so the buffer usually grows in place.
            let mut all = std::mem::take(&mut self.0).try_into_mut().unwrap_or_else(BytesMut::from);
            all.extend_from_slice(more);
            self.0 = all.freeze();
        }
    }

    /// Returns the unused bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }

    /// Takes the first `length` bytes. That many must have been received.
    pub fn take(&mut self, length: usize) -> Bytes {
        if length == self.0.len() { std::mem::take(&mut self.0) } else { self.0.split_to(length) }
    }

    /// Returns a stream that yields these bytes before those of `stream`.
    pub fn before<S>(self, stream: S) -> Ahead<S> {
        Ahead { bytes: self.0, stream }
    }
}

/// A stream with bytes that were read ahead of it.
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
