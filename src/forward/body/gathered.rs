//! Small pieces of a body on an HTTP/2 connection. h2 bounds the bytes that it holds for a stream, but keeps each piece with some hundred
//! bytes of its own: 64 KiB in pieces of one byte take more than 10 MB.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::PollSemaphore;

use super::BoxError;

/// The size in bytes up to which pieces are put together and counted. Of larger ones, few fit into the bytes that h2 holds.
const SMALL: usize = 1 << 10;
/// The number of small pieces of a body that aren't counted, since most bodies have no more.
const UNCOUNTED: usize = 16;
/// The most counted pieces of a body that h2 holds.
const HELD_MOST: usize = 32;

/// A body whose small pieces are put together if they come at once. If h2 holds many of them, the next one waits.
#[derive(Debug)]
pub struct Gathered<B> {
    body: B,
    /// The frame behind pieces that were put together, or the end.
    next: Option<Polled>,
    /// The number of small pieces so far.
    pieces: usize,
    /// The permits of the pieces that h2 may hold.
    room: Option<PollSemaphore>,
    /// The permit of the next piece.
    permit: Option<OwnedSemaphorePermit>,
}

/// The next frame of a body. `None` is its end.
type Polled = Option<Result<Frame<Bytes>, BoxError>>;

/// A piece that h2 holds until it is dropped.
struct HeldPiece {
    bytes: Bytes,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for HeldPiece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<B: HttpBody<Data = Bytes, Error = BoxError> + Unpin> Gathered<B> {
    /// Wraps a body.
    pub fn new(body: B) -> Self {
        Self { body, next: None, pieces: 0, room: None, permit: None }
    }

    /// Waits until another small piece may be given to h2.
    pub fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.pieces < UNCOUNTED || self.permit.is_some() {
            return Poll::Ready(());
        }
        let room = self.room.get_or_insert_with(|| PollSemaphore::new(Arc::new(Semaphore::new(HELD_MOST))));
        self.permit = ready!(room.poll_acquire(context));
        Poll::Ready(())
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Polled> {
        match self.next.take() {
            Some(next) => Poll::Ready(next),
            None => Pin::new(&mut self.body).poll_frame(context),
        }
    }

    /// Appends what is there of the small pieces behind this one.
    fn gather(&mut self, first: Bytes, context: &mut Context<'_>) -> Bytes {
        let mut gathered = BytesMut::new();
        while !self.is_end_stream() {
            let Poll::Ready(next) = self.poll_next(context) else { break };
            let room = SMALL - first.len().max(gathered.len());
            let small = next.as_ref().and_then(|next| next.as_ref().ok()?.data_ref());
            let Some(small) = small.filter(|piece| piece.len() <= room) else {
                self.next = Some(next);
                break;
            };
            if gathered.is_empty() {
                gathered.reserve(SMALL);
                gathered.extend_from_slice(&first);
            }
            gathered.extend_from_slice(small);
        }
        if gathered.is_empty() { first } else { gathered.freeze() }
    }

    /// Counts a piece as held by h2 until it is dropped.
    fn hold(&mut self, bytes: Bytes) -> Bytes {
        self.pieces += 1;
        match self.permit.take() {
            Some(_permit) => Bytes::from_owner(HeldPiece { bytes, _permit }),
            None => bytes,
        }
    }
}

impl<B: HttpBody<Data = Bytes, Error = BoxError> + Unpin> HttpBody for Gathered<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Polled> {
        ready!(self.poll_room(context));
        let polled = ready!(self.poll_next(context));
        let is_small = |frame: &Frame<Bytes>| frame.data_ref().is_some_and(|piece| piece.len() <= SMALL);
        let Some(Ok(frame)) = polled else { return Poll::Ready(polled) };
        if !is_small(&frame) {
            return Poll::Ready(Some(Ok(frame)));
        }
        let piece = frame.into_data().unwrap_or_default();
        let gathered = self.gather(piece, context);
        Poll::Ready(Some(Ok(Frame::data(self.hold(gathered)))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.next {
            None => self.body.is_end_stream(),
            Some(next) => next.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, task::Waker};

    use super::*;

    /// Gives these pieces; an empty one is still to come.
    struct Pieces(VecDeque<&'static str>);

    impl HttpBody for Pieces {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Polled> {
            match self.0.pop_front() {
                Some("") => Poll::Pending,
                piece => Poll::Ready(piece.map(|piece| Ok(Frame::data(piece.into())))),
            }
        }
    }

    fn poll(body: &mut Gathered<Pieces>) -> Poll<Option<Bytes>> {
        let polled = Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop()));
        polled.map(|frame| Some(frame?.unwrap().into_data().unwrap()))
    }

    #[test]
    fn small_pieces_that_come_at_once_are_put_together() {
        let large: &str = "l".repeat(SMALL + 1).leak();
        let half: &str = "h".repeat(SMALL / 2).leak();
        let pieces = [large, "a", "b", "", "", "c", large, half, half, "d", "e"];
        let mut body = Gathered::new(Pieces(pieces.into()));
        let whole = half.repeat(2);
        for piece in [large, "ab"] {
            assert_eq!(poll(&mut body), Poll::Ready(Some(Bytes::copy_from_slice(piece.as_bytes()))));
        }
        assert_eq!(poll(&mut body), Poll::Pending);
        for piece in ["c", large, &whole, "de"] {
            assert_eq!(poll(&mut body), Poll::Ready(Some(Bytes::copy_from_slice(piece.as_bytes()))));
        }
        assert_eq!(poll(&mut body), Poll::Ready(None));
    }

    #[test]
    fn few_small_pieces_are_held() {
        let pieces = ["a", ""].into_iter().cycle().take(1_000).collect();
        let mut body = Gathered::new(Pieces(pieces));
        let mut held = Vec::new();
        while let Poll::Ready(Some(piece)) = poll(&mut body) {
            held.push(piece);
        }
        assert_eq!(held.len(), UNCOUNTED + HELD_MOST);
        for _ in 0..100 {
            held.pop();
            let Poll::Ready(Some(piece)) = poll(&mut body) else { panic!("there is room for a piece") };
            held.push(piece);
            assert_eq!(poll(&mut body), Poll::Pending);
        }
    }
}
