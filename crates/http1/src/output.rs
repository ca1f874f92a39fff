//! What is to be written to a connection.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use tokio::io::AsyncWrite;

/// Data up to so many bytes are copied behind what is before them, so that a message goes out in one piece.
const COPIED_MOST: usize = 8 << 10;

/// What is to be written to a connection: bytes, then data that were too large to be copied, then what ends these. Empty, it
/// holds no memory.
#[derive(Debug, Default)]
pub struct Output {
    bytes: Vec<u8>,
    written: usize,
    data: Bytes,
    end: &'static [u8],
    /// The stream holds something back.
    is_unflushed: bool,
}

impl Output {
    /// Whether there is nothing to write, and the stream has all.
    pub fn is_empty(&self) -> bool {
        self.has_written() && !self.is_unflushed
    }

    /// Whether it takes more before this is written.
    pub fn takes_more(&self) -> bool {
        self.data.is_empty() && self.end.is_empty() && self.bytes.len() <= COPIED_MOST
    }

    /// Where to put what is to be written, while it [takes more](Self::takes_more).
    pub fn bytes(&mut self) -> &mut Vec<u8> {
        debug_assert!(self.data.is_empty() && self.end.is_empty(), "bytes would come after data");
        &mut self.bytes
    }

    /// Bytes that wait to be written.
    pub fn unwritten(&self) -> usize {
        self.bytes.len() - self.written + self.data.len() + self.end.len()
    }

    /// Returns the bytes that aren't written yet. There must be no data among them.
    pub fn into_rest(mut self) -> Vec<u8> {
        debug_assert!(self.data.is_empty() && self.end.is_empty(), "data would be lost");
        self.bytes.split_off(self.written)
    }

    /// Has data written, and then their end, while it [takes more](Self::takes_more).
    pub fn push(&mut self, data: Bytes, end: &'static [u8]) {
        let bytes = self.bytes();
        if data.len() <= COPIED_MOST {
            bytes.extend_from_slice(&data);
            bytes.extend_from_slice(end);
        } else {
            (self.data, self.end) = (data, end);
        }
    }

    /// Writes all, as far as the stream takes it, and has the stream send it.
    ///
    /// # Errors
    /// The connection broke.
    pub fn poll_flush(
        &mut self,
        stream: &mut (impl AsyncWrite + Unpin + ?Sized),
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.has_written() {
            let mut stream = Pin::new(&mut *stream);
            let bytes = &self.bytes[self.written..];
            // What is in one piece, as it mostly is, goes out by the cheaper call.
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
