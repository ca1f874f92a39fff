//! Bounds on the frames of HTTP/2: on those that have no effect, and on those of one turn.
//!
//! h2 bounds resets, malformed requests and empty DATA, but reads WINDOW_UPDATE, PRIORITY, PING, SETTINGS and frames of
//! unknown types as fast as they come: three clients that send nothing else occupy a core. So each connection has an
//! allowance. Every frame but DATA with content uses it up, whatever its type. Time, requests and the bytes that are sent
//! to the client refill it, far beyond what clients need to acknowledge, prioritise or flow-control what they asked for.
//! A connection that exceeds it is closed.
//!
//! h2 reads all that has arrived before the first request in it is answered. A byte of a head may stand for a field, and takes a
//! hundred times its memory. So each time the connection is polled, h2 gets the frames of one turn, and the rest when the
//! requests in them and the worker's other connections have had theirs. docs/adr/0015-frames-without-effect.md has the figures.

use std::{
    io::{self, IoSlice},
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

use super::{Status, client::Watch};

/// The allowance at the beginning, and its growth per second.
const AT_ONCE: u32 = 1_000;
const A_SECOND: f64 = 1_000.0;
/// The growth of the allowance per request.
const A_REQUEST: u32 = 128;
/// The bytes sent to the client for which the allowance grows by one.
const BYTES_SENT: u64 = 8;
/// The largest allowance.
const SAVED_MOST: u64 = 65_536;
/// The cost of a WINDOW_UPDATE. Clients may send two for each DATA frame, which may have a single byte.
const WINDOW_UPDATE_TAKES: u32 = 1;
/// The cost of any other frame. It exceeds the growth from its response, so no frame pays for itself: the
/// response to PING has 17 bytes, to SETTINGS 9, a reset 13, and a rejected head 27.
const OTHERS_TAKE: u32 = 4;

/// The size of a turn, after which the next frame waits. Each frame takes some of it, and each byte of a head one.
const TURN: usize = 512;
const TURN_OF_FRAME: usize = 16;

/// The length of the connection preface (RFC 9113, section 3.4), and of a frame header (section 4.1).
const PREFACE: usize = 24;
const HEAD: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const WINDOW_UPDATE: u8 = 8;
const PADDED: u8 = 8;

/// An HTTP/2 connection whose frames come in turns. It fails if its client sends too many without effect.
#[derive(Debug)]
pub(super) struct Metered<S> {
    stream: S,
    watch: Arc<Watch>,
    status: Arc<Status>,
    frames: Frames,
    allowance: Allowance,
    /// The bytes received that wait for the next turn.
    waiting: Vec<u8>,
}

/// The position in the stream of frames: the bytes to skip, then the received bytes of the next frame header.
#[derive(Debug)]
struct Frames {
    skipped: usize,
    head: [u8; HEAD],
    filled: usize,
    /// True if the next byte is the length of the padding in a DATA frame.
    is_padded: bool,
    /// The part of the turn that is used up.
    turn: usize,
}

/// The rest of the allowance, and what it has already been increased for.
#[derive(Debug)]
struct Allowance {
    left: u32,
    refilled: Instant,
    requests: u32,
    /// The bytes sent since the last refill.
    bytes_sent: u64,
}

impl<S> Metered<S> {
    /// Meters a connection that begins with the HTTP/2 preface.
    pub(super) fn new(stream: S, watch: Arc<Watch>, status: Arc<Status>) -> Self {
        let frames = Frames { skipped: PREFACE, head: [0; HEAD], filled: 0, is_padded: false, turn: 0 };
        let allowance = Allowance { left: AT_ONCE, refilled: Instant::now(), requests: 0, bytes_sent: 0 };
        Self { stream, watch, status, frames, allowance, waiting: Vec::new() }
    }

    fn note_write(&mut self, written: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(length)) = written {
            self.allowance.bytes_sent += *length as u64;
        }
    }
}

impl Frames {
    /// Reads the next bytes up to the end of the turn. Returns their number, and the cost of the frames that begin in them.
    fn read(&mut self, received: &[u8]) -> (usize, u32) {
        let (mut bytes, mut taken) = (received, 0);
        while !bytes.is_empty() {
            if self.skipped == 0 && self.filled == 0 && self.turn >= TURN {
                break;
            }
            if mem::take(&mut self.is_padded) && self.skipped <= 1 + usize::from(bytes[0]) {
                taken += OTHERS_TAKE;
            }
            let skipped = self.skipped.min(bytes.len());
            self.skipped -= skipped;
            bytes = &bytes[skipped..];
            let coming = (HEAD - self.filled).min(bytes.len());
            self.head[self.filled..self.filled + coming].copy_from_slice(&bytes[..coming]);
            self.filled += coming;
            bytes = &bytes[coming..];
            if self.filled == HEAD {
                self.filled = 0;
                let [high, middle, low, kind, flags, ..] = self.head;
                self.skipped = u32::from_be_bytes([0, high, middle, low]) as usize;
                let is_of_head = matches!(kind, HEADERS | CONTINUATION);
                self.turn += TURN_OF_FRAME + if is_of_head { self.skipped } else { 0 };
                self.is_padded = kind == DATA && flags & PADDED != 0 && self.skipped > 0;
                taken += match kind {
                    DATA if self.skipped > 0 => 0,
                    WINDOW_UPDATE => WINDOW_UPDATE_TAKES,
                    _ => OTHERS_TAKE,
                };
            }
        }
        (received.len() - bytes.len(), taken)
    }
}

impl Allowance {
    /// Takes this cost from the allowance. Returns false if it doesn't suffice.
    fn take(&mut self, taken: u32, watch: &Watch) -> bool {
        if taken > self.left {
            self.refill(Instant::now(), watch.requests());
        }
        let rest = self.left.checked_sub(taken);
        self.left = rest.unwrap_or_default();
        rest.is_some()
    }

    fn refill(&mut self, now: Instant, requests: u32) {
        let seconds = now.saturating_duration_since(self.refilled).as_secs_f64();
        let by_time = (seconds * A_SECOND).min(AT_ONCE.into()) as u64;
        let by_requests = u64::from(A_REQUEST) * u64::from(requests.saturating_sub(self.requests));
        let saved = u64::from(self.left) + by_time + by_requests + self.bytes_sent / BYTES_SENT;
        let left = saved.min(SAVED_MOST) as u32;
        *self = Self { left, refilled: now, requests, bytes_sent: 0 };
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, watch, status, frames, allowance, waiting } = &mut *self;
        if watch.begins_turn() {
            frames.turn = 0;
        } else if frames.turn >= TURN {
            // The task is woken for the next turn.
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let taken = if waiting.is_empty() {
            ready!(Pin::new(stream).poll_read(context, buffer))?;
            let received = &buffer.filled()[before..];
            let (length, taken) = frames.read(received);
            waiting.extend_from_slice(&received[length..]);
            buffer.set_filled(before + length);
            taken
        } else {
            let (length, taken) = frames.read(&waiting[..waiting.len().min(buffer.remaining())]);
            buffer.put_slice(&waiting[..length]);
            waiting.drain(..length);
            if waiting.is_empty() {
                // An idle connection keeps no memory for it.
                *waiting = Vec::new();
            }
            taken
        };
        if frames.turn >= TURN {
            context.waker().wake_by_ref();
        }
        if taken > 0 && !allowance.take(taken, watch) {
            status.note_closed("frames");
            return Poll::Ready(Err(io::Error::other("too many frames without effect")));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note_write(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.note_write(&written);
        written
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
    use std::time::Duration;

    use super::*;

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let length = (payload as u32).to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], &vec![0; payload]].concat()
    }

    /// A DATA frame that has so many bytes of padding.
    fn padded(padding: u8, payload: usize) -> Vec<u8> {
        let mut frame = frame(DATA, PADDED, payload);
        frame[HEAD] = padding;
        frame
    }

    #[test]
    fn frames_are_found_however_they_are_split() {
        let connection = [
            vec![b'P'; PREFACE],
            frame(4, 0, 0),
            frame(1, 4, 300),
            frame(DATA, 0, 1),
            frame(DATA, 0, 0),
            frame(DATA, PADDED, 0),
            padded(0, 1),
            padded(0, 2),
            padded(255, 256),
            padded(254, 256),
            frame(8, 0, 4),
            frame(0x42, 0xff, 20_000),
            frame(DATA, 0, 16_384),
            frame(6, 0, 8),
        ]
        .concat();
        for size in [1, 2, 8, 9, 10, 100, connection.len()] {
            let mut frames =
                Frames { skipped: PREFACE, head: [0; HEAD], filled: 0, is_padded: false, turn: 0 };
            let taken = connection.chunks(size).map(|bytes| {
                let (length, taken) = frames.read(bytes);
                assert_eq!(length, bytes.len());
                taken
            });
            assert_eq!(taken.sum::<u32>(), 8 * OTHERS_TAKE + WINDOW_UPDATE_TAKES, "{size} at a time");
        }
    }

    #[test]
    fn an_allowance_is_refilled_by_time_requests_and_bytes_sent() {
        let begin = Instant::now();
        let mut allowance = Allowance { left: 7, refilled: begin, requests: 0, bytes_sent: 80 };
        allowance.refill(begin, 0);
        assert_eq!((allowance.left, allowance.bytes_sent), (17, 0));
        allowance.refill(begin, 2);
        assert_eq!(allowance.left, 17 + 2 * A_REQUEST);
        allowance.refill(begin + Duration::from_millis(100), 2);
        assert_eq!(allowance.left, 117 + 2 * A_REQUEST);
        allowance.left = 0;
        allowance.refill(begin + Duration::from_secs(3_600), 2);
        assert_eq!(allowance.left, AT_ONCE);
        allowance.bytes_sent = 1 << 40;
        allowance.refill(begin + Duration::from_secs(3_600), u32::MAX);
        assert_eq!(u64::from(allowance.left), SAVED_MOST);
    }
}
