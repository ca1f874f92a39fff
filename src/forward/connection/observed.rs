//! The byte stream below an HTTP/2 connection to a server.

use std::{
    io, mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{received::LARGE, streams::Http2Streams};

/// DATA (RFC 9113, section 6.1).
const DATA: u8 = 0;
/// A type of frame that isn't known (RFC 9113, section 5.5).
const UNKNOWN: u8 = 0xff;
/// HEADERS, and its flag END_STREAM (RFC 9113, section 6.2).
const HEADERS: u8 = 1;
const END_STREAM: u8 = 1;
/// SETTINGS, its flag ACK, and the length of a setting (RFC 9113, section 6.5).
const SETTINGS: u8 = 4;
const ACK: u8 = 1;
const SETTING: usize = 6;
/// SETTINGS_MAX_CONCURRENT_STREAMS (RFC 9113, section 6.5.2).
const MAX_CONCURRENT_STREAMS: u16 = 3;
/// The length of a frame header (RFC 9113, section 4.1).
const FRAME_HEADER: usize = 9;
/// The index of a frame's type in its header.
const KIND_AT: usize = 3;

/// Before h2 is told of the end, it has what came before, the requests get their heads, and the connection's task reads their bodies: h2
/// forgets that a response is complete if its request isn't.
const TURNS_BEFORE_END: u8 = 3;

/// Scans the frames of a server for response heads, small pieces of bodies, and the number of streams that the server allows, since h2
/// tells none of them when it arrives.
#[derive(Debug, Default)]
struct FrameScanner {
    /// The part of the frame header that has arrived.
    head: [u8; FRAME_HEADER],
    filled: usize,
    /// The number of bytes of the frame still to come.
    rest: usize,
    /// The last bytes of a SETTINGS frame.
    setting: u64,
    /// The number of streams in a SETTINGS frame whose end is still to come.
    stated: Option<usize>,
    streams_most: Option<usize>,
}

/// The frames that begin in scanned bytes.
#[derive(Debug, Default)]
struct Scanned {
    /// The number of HEADERS frames that don't end their stream: the heads of interim responses and of responses with a body.
    heads: usize,
    /// The number of DATA frames that are small.
    small: usize,
}

impl FrameScanner {
    /// Scans the next bytes. Empty DATA frames that don't end their stream become frames of an unknown type, which are ignored: h2 ends a
    /// connection after 100 of them, and some servers send one per response.
    fn scan(&mut self, mut bytes: &mut [u8]) -> Scanned {
        let mut scanned = Scanned::default();
        while !bytes.is_empty() {
            if self.filled < FRAME_HEADER {
                let (begun, taken) = (self.filled, (FRAME_HEADER - self.filled).min(bytes.len()));
                let (head, next) = bytes.split_at_mut(taken);
                self.head[begun..begun + taken].copy_from_slice(head);
                self.filled += taken;
                bytes = next;
                if self.filled < FRAME_HEADER {
                    break;
                }
                let [high, middle, low, kind, flags, ..] = self.head;
                self.rest = u32::from_be_bytes([0, high, middle, low]) as usize;
                // The type has been passed on if the frame is torn behind it.
                if kind == DATA && self.rest == 0 && flags == 0 && begun <= KIND_AT {
                    head[KIND_AT - begun] = UNKNOWN;
                }
                scanned.heads += usize::from(kind == HEADERS && flags & END_STREAM == 0);
                scanned.small += usize::from(kind == DATA && self.rest < LARGE);
            }
            let (payload, next) = bytes.split_at_mut(self.rest.min(bytes.len()));
            bytes = next;
            if self.is_in_settings() {
                self.read_settings(payload);
            }
            self.rest -= payload.len();
            if self.rest == 0 {
                self.end_frame();
            }
        }
        scanned
    }

    /// Returns the number of streams that the server allows by its last settings. `None` before the first ones.
    fn streams_most(&self) -> Option<usize> {
        self.streams_most
    }

    fn is_in_settings(&self) -> bool {
        let [_, _, _, kind, flags, ..] = self.head;
        kind == SETTINGS && flags & ACK == 0
    }

    /// Reads a part of the settings. A setting is an identifier of two bytes and a value of four.
    fn read_settings(&mut self, payload: &[u8]) {
        for (byte, rest) in payload.iter().zip((0..self.rest).rev()) {
            self.setting = self.setting << 8 | u64::from(*byte);
            let (identifier, value) = ((self.setting >> 32) as u16, self.setting as u32);
            if rest % SETTING == 0 && identifier == MAX_CONCURRENT_STREAMS {
                self.stated = Some(value as usize);
            }
        }
    }

    /// Applies settings that are complete. Those without a number of streams don't change it; at first, it isn't bounded.
    fn end_frame(&mut self) {
        self.filled = 0;
        if self.is_in_settings() {
            self.streams_most = self.stated.take().or(self.streams_most).or(Some(usize::MAX));
        }
    }
}

/// The byte stream of an HTTP/2 connection, whose frames are noted as they arrive.
pub(super) struct ObservedStream<S> {
    stream: S,
    frames: FrameScanner,
    streams: Arc<Http2Streams>,
    /// The end of the stream, and how often the connection's task has yet to run before h2 is told.
    end: Option<(io::Result<()>, u8)>,
}

impl<S> ObservedStream<S> {
    /// Observes a stream.
    pub(super) fn new(stream: S, streams: Arc<Http2Streams>) -> Self {
        Self { stream, frames: FrameScanner::default(), streams, end: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ObservedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.streams.received.are_due() {
            // The connection's task is to put them together first.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let Self { stream, frames, streams, end } = &mut *self;
        let before = buffer.filled().len();
        if end.is_none() {
            let read = ready!(Pin::new(stream).poll_read(context, buffer));
            if buffer.filled().len() == before {
                *end = Some((read, TURNS_BEFORE_END));
            }
        }
        if let Some((result, turns)) = end {
            let Some(left) = turns.checked_sub(1) else { return Poll::Ready(mem::replace(result, Ok(()))) };
            *turns = left;
            streams.received.expect_no_more();
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let read = &mut buffer.filled_mut()[before..];
        *streams.silent_since.lock() = None;
        let scanned = frames.scan(read);
        streams.note_most(frames.streams_most());
        streams.received.note_small(scanned.small);
        Poll::Ready(streams.note_heads(scanned.heads))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ObservedStream<S> {
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

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    #[test]
    fn heads_are_counted_however_frames_are_torn() {
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
            let mut scanner = FrameScanner::default();
            let heads: usize = frames.clone().chunks_mut(size).map(|piece| scanner.scan(piece).heads).sum();
            assert_eq!(heads, 3, "{size} bytes at a time");
        }
    }

    #[test]
    fn the_last_settings_with_a_number_of_streams_count_however_frames_are_torn() {
        let settings = |settings: &[(u16, u32)]| {
            let payload = settings.iter().flat_map(|(identifier, value)| {
                [&identifier.to_be_bytes()[..], &value.to_be_bytes()].concat()
            });
            frame(SETTINGS, 0, &payload.collect::<Vec<_>>())
        };
        let (window, streams) = (4, MAX_CONCURRENT_STREAMS);
        let steps = [
            (frame(SETTINGS, ACK, b""), None),
            (settings(&[]), Some(usize::MAX)),
            (settings(&[(streams, 100)]), Some(100)),
            // The same bytes in other places are no setting.
            (frame(0, 0, &settings(&[(streams, 5)])), Some(100)),
            (settings(&[(window, 3), (6, 0x0003_0000)]), Some(100)),
            (settings(&[(window, 1 << 20), (streams, 7), (streams, 2), (window, 9)]), Some(2)),
            (settings(&[]), Some(2)),
            (settings(&[(streams, 0)]), Some(0)),
            (settings(&[(streams, u32::MAX)]), Some(u32::MAX as usize)),
        ];
        for size in 1..60 {
            let mut scanner = FrameScanner::default();
            for (frame, most) in &steps {
                let (last, before) = frame.split_last().unwrap();
                let most_before = scanner.streams_most();
                before.to_vec().chunks_mut(size).for_each(|piece| assert_eq!(scanner.scan(piece).heads, 0));
                assert_eq!(scanner.streams_most(), most_before, "settings that aren't complete");
                scanner.scan(&mut [*last]);
                assert_eq!(scanner.streams_most(), *most, "{frame:?}, {size} bytes at a time");
            }
        }
    }

    #[test]
    fn empty_data_is_no_longer_data_unless_it_ends_its_stream() {
        let frames = |kind| {
            let ended = frame(DATA, END_STREAM, b"");
            [frame(DATA, 0, &[DATA; 9]), frame(kind, 0, b""), frame(kind, 0, b""), ended].concat()
        };
        // Not torn within a header.
        for size in [18, 27, 45] {
            let mut read = frames(DATA);
            let mut scanner = FrameScanner::default();
            let small: usize = read.chunks_mut(size).map(|piece| scanner.scan(piece).small).sum();
            assert_eq!((small, read), (4, frames(UNKNOWN)), "{size} bytes at a time");
        }
    }
}
