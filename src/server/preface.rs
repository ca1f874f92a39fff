//! The preface with which a client says that it speaks HTTP/2, without having been asked (RFC 9113, section 3.3).

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{self, AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection of which the first bytes have been read ahead, and are read once more.
#[derive(Debug)]
pub(super) struct Ahead<S> {
    bytes: [u8; PREFACE.len()],
    /// So many have come, of which these have been read once more.
    came: usize,
    taken: usize,
    stream: S,
}

/// Reads as much as tells whether the connection begins with the preface.
///
/// # Errors
/// It broke.
pub(super) async fn read<S: AsyncRead + Unpin>(stream: S) -> io::Result<(bool, Ahead<S>)> {
    let mut ahead = Ahead { bytes: [0; PREFACE.len()], came: 0, taken: 0, stream };
    while ahead.came < PREFACE.len() && PREFACE.starts_with(&ahead.bytes[..ahead.came]) {
        match ahead.stream.read(&mut ahead.bytes[ahead.came..]).await? {
            0 => break,
            more => ahead.came += more,
        }
    }
    Ok((ahead.bytes == *PREFACE, ahead))
}

impl<S: AsyncRead + Unpin> AsyncRead for Ahead<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { bytes, came, taken, stream } = &mut *self;
        if taken == came {
            return Pin::new(stream).poll_read(context, buffer);
        }
        let rest = &bytes[*taken..*came];
        let more = rest.len().min(buffer.remaining());
        buffer.put_slice(&rest[..more]);
        *taken += more;
        // With what follows: hyper would double its buffer for that, if it came by itself.
        match Pin::new(stream).poll_read(context, buffer) {
            Poll::Pending => Poll::Ready(Ok(())),
            read => read,
        }
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn what_was_read_ahead_comes_with_what_follows() {
        let request = b"GET /orders HTTP/1.1\r\nHost: shop.example\r\n\r\n";
        let (_, mut ahead) = read(&request[..]).await.unwrap();
        let mut buffer = [0; 100];
        let came = ahead.read(&mut buffer).await.unwrap();
        assert_eq!(buffer[..came], request[..]);
    }

    #[tokio::test]
    async fn what_was_read_ahead_waits_for_nothing() {
        let (mut client, server) = duplex(100);
        client.write_all(b"GET /orders").await.unwrap();
        let (_, mut ahead) = read(server).await.unwrap();
        let mut buffer = [0; 100];
        let came = ahead.read(&mut buffer).await.unwrap();
        assert_eq!(buffer[..came], b"GET /orders"[..]);
        client.write_all(b" HTTP/1.1").await.unwrap();
        let came = ahead.read(&mut buffer).await.unwrap();
        assert_eq!(buffer[..came], b" HTTP/1.1"[..]);
    }
}
