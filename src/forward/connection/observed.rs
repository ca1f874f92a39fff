//! The byte stream below an HTTP/2 connection to a server.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// HEADERS, and its flag END_STREAM (RFC 9113, section 6.2).
const HEADERS: u8 = 1;
const END_STREAM: u8 = 1;
/// The length of a frame header (RFC 9113, section 4.1).
const FRAME_HEADER: usize = 9;

/// Counts the HEADERS frames that don't end their stream. These are the heads of interim responses and of
/// responses with a body.
#[derive(Debug, Default)]
pub(super) struct HeadCount {
    /// The part of the frame header that has arrived.
    head: [u8; FRAME_HEADER],
    filled: usize,
    /// The number of bytes of the frame still to come.
    rest: usize,
}

impl HeadCount {
    /// Returns the number of heads in the next bytes.
    pub(super) fn count(&mut self, mut bytes: &[u8]) -> usize {
        let mut heads = 0;
        while !bytes.is_empty() {
            let passed = self.rest.min(bytes.len());
            self.rest -= passed;
            bytes = &bytes[passed..];
            let taken = (FRAME_HEADER - self.filled).min(bytes.len());
            self.head[self.filled..self.filled + taken].copy_from_slice(&bytes[..taken]);
            self.filled += taken;
            bytes = &bytes[taken..];
            if self.filled == FRAME_HEADER {
                let [high, middle, low, kind, flags, ..] = self.head;
                self.rest = u32::from_be_bytes([0, high, middle, low]) as usize;
                self.filled = 0;
                heads += usize::from(kind == HEADERS && flags & END_STREAM == 0);
            }
        }
        heads
    }
}

/// A byte stream that passes everything read to a function, and fails if the function does.
pub(super) struct ObservedStream<S, F> {
    stream: S,
    on_read: F,
}

impl<S, F> ObservedStream<S, F> {
    /// Observes a stream.
    pub(super) fn new(stream: S, on_read: F) -> Self {
        Self { stream, on_read }
    }
}

impl<S: AsyncRead + Unpin, F: FnMut(&[u8]) -> io::Result<()> + Unpin> AsyncRead for ObservedStream<S, F> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let read = &buffer.filled()[before..];
        Poll::Ready(if read.is_empty() { Ok(()) } else { (self.on_read)(read) })
    }
}

impl<S: AsyncWrite + Unpin, F: Unpin> AsyncWrite for ObservedStream<S, F> {
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
        match slices {
            // A plain write is cheaper, and a request is usually in one piece.
            [only] => Pin::new(&mut self.stream).poll_write(context, only),
            _ => Pin::new(&mut self.stream).poll_write_vectored(context, slices),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_counted_however_frames_are_torn() {
        let frame = |kind, flags, payload: &[u8]| {
            let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
            [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
        };
        let frames = [
            frame(4, 0, &[0; 12]),
            frame(HEADERS, 4, &[HEADERS; 300]),
            frame(0, 0, &[1; 9]),
            frame(HEADERS, 4, b""),
            // Trailers, or an answer without a body.
            frame(HEADERS, 4 | END_STREAM, b"x"),
            frame(HEADERS, 0, b"x"),
            frame(9, 4, b"x"),
        ]
        .concat();
        for size in 1..frames.len() {
            let mut count = HeadCount::default();
            let heads: usize = frames.chunks(size).map(|piece| count.count(piece)).sum();
            assert_eq!(heads, 3, "{size} bytes at a time");
        }
    }
}
