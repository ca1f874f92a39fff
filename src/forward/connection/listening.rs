//! The stream of a connection to a server on which HTTP/2 is spoken.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::forward::connector::Counted;

/// HEADERS, and its flag END_STREAM (RFC 9113, section 6.2).
const HEADERS: u8 = 1;
const END_STREAM: u8 = 1;
/// Bytes before what is in a frame (RFC 9113, section 4.1).
const FRAME_HEAD: usize = 9;

/// Counts the heads that don't end their streams in the frames of HTTP/2: those of answers with a body, and of interim ones.
#[derive(Debug, Default)]
pub(super) struct HeadCount {
    /// The frame's own head, as far as it has come.
    head: [u8; FRAME_HEAD],
    filled: usize,
    /// Bytes of the frame that are to come yet.
    rest: usize,
}

impl HeadCount {
    /// Returns how many there are in the frames that go on with these bytes.
    pub(super) fn count(&mut self, mut bytes: &[u8]) -> usize {
        let mut heads = 0;
        while !bytes.is_empty() {
            let passed = self.rest.min(bytes.len());
            self.rest -= passed;
            bytes = &bytes[passed..];
            let taken = (FRAME_HEAD - self.filled).min(bytes.len());
            self.head[self.filled..self.filled + taken].copy_from_slice(&bytes[..taken]);
            self.filled += taken;
            bytes = &bytes[taken..];
            if self.filled == FRAME_HEAD {
                let [high, middle, low, kind, flags, ..] = self.head;
                self.rest = u32::from_be_bytes([0, high, middle, low]) as usize;
                self.filled = 0;
                heads += usize::from(kind == HEADERS && flags & END_STREAM == 0);
            }
        }
        heads
    }
}

/// A stream that tells of all that has come, and breaks if that can't be. It counts among the connections of its upstream.
pub(super) struct Listening<S, F> {
    stream: S,
    on_read: F,
    _counted: Counted,
}

impl<S, F> Listening<S, F> {
    /// Listens to a stream.
    pub(super) fn new(stream: S, counted: Counted, on_read: F) -> Self {
        Self { stream, on_read, _counted: counted }
    }
}

impl<S: AsyncRead + Unpin, F: FnMut(&[u8]) -> io::Result<()> + Unpin> AsyncRead for Listening<S, F> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let came = &buffer.filled()[before..];
        Poll::Ready(if came.is_empty() { Ok(()) } else { (self.on_read)(came) })
    }
}

impl<S: AsyncWrite + Unpin, F: Unpin> AsyncWrite for Listening<S, F> {
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
            // What is mostly all of a request is sent by the cheaper call.
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
