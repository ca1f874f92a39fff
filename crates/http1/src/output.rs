//! The bytes to be written to a connection.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use tokio::io::AsyncWrite;

/// The most bytes of data that are copied behind the bytes before them, so that a message is sent in one
/// piece.
const COPIED_MOST: usize = 8 << 10;

/// The bytes to be written to a connection: a buffer, then data too large to copy, then the end of that data.
/// If empty, it holds no memory.
#[derive(Debug, Default)]
pub struct Output {
    bytes: Vec<u8>,
    written: usize,
    data: Bytes,
    end: &'static [u8],
    /// True if the stream may hold written bytes back until it is flushed.
    is_unflushed: bool,
}

impl Output {
    /// Returns true if everything has been written and flushed.
    pub fn is_empty(&self) -> bool {
        self.has_written() && !self.is_unflushed
    }

    /// Returns true if more can be added before the current bytes are written.
    pub fn takes_more(&self) -> bool {
        self.data.is_empty() && self.end.is_empty() && self.bytes.len() <= COPIED_MOST
    }

    /// Returns the buffer to append to. Only while the output [takes more](Self::takes_more).
    pub fn bytes(&mut self) -> &mut Vec<u8> {
        debug_assert!(self.data.is_empty() && self.end.is_empty(), "bytes would come after data");
        &mut self.bytes
    }

    /// Returns the number of bytes not written yet.
    pub fn unwritten(&self) -> usize {
        self.bytes.len() - self.written + self.data.len() + self.end.len()
    }

    /// Returns the bytes not written yet. Large data must have been written.
    pub fn into_rest(mut self) -> Vec<u8> {
        debug_assert!(self.data.is_empty() && self.end.is_empty(), "data would be lost");
        self.bytes.split_off(self.written)
    }

    /// Appends data and what ends it. Only while the output [takes more](Self::takes_more).
    pub fn push(&mut self, data: Bytes, end: &'static [u8]) {
        let bytes = self.bytes();
        if data.len() <= COPIED_MOST {
            bytes.extend_from_slice(&data);
            bytes.extend_from_slice(end);
        } else {
            (self.data, self.end) = (data, end);
        }
    }

    /// Writes everything that the stream accepts, then flushes it.
    ///
    /// # Errors
    /// The connection failed.
    pub fn poll_flush(
        &mut self,
        stream: &mut (impl AsyncWrite + Unpin + ?Sized),
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.has_written() {
            let mut stream = Pin::new(&mut *stream);
            let bytes = &self.bytes[self.written..];
            // A plain write is cheaper and usually enough, since most output is in one piece.
            let written = if self.data.is_empty() && (bytes.is_empty() || self.end.is_empty()) {
                stream.poll_write(context, if bytes.is_empty() { self.end } else { bytes })
            } else {
                let slices = [bytes, &self.data, self.end].map(IoSlice::new);
                stream.as_mut().poll_write_vectored(context, &slices)
            };
            match ready!(written)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.advance(written),
            }
        }
        if self.is_unflushed {
            ready!(Pin::new(stream).poll_flush(context))?;
            self.is_unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    fn has_written(&self) -> bool {
        self.bytes.is_empty() && self.data.is_empty() && self.end.is_empty()
    }

    fn advance(&mut self, mut written: usize) {
        self.is_unflushed = true;
        let of_bytes = written.min(self.bytes.len() - self.written);
        self.written += of_bytes;
        if self.written == self.bytes.len() {
            (self.bytes, self.written) = (Vec::new(), 0);
        }
        written -= of_bytes;
        let of_data = written.min(self.data.len());
        self.data.advance(of_data);
        if self.data.is_empty() {
            self.data = Bytes::new();
        }
        self.end = &self.end[written - of_data..];
    }
}
