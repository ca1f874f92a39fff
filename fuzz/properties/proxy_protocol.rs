//! PROXY headers.

use std::{
    io::{Error, ErrorKind},
    net::{IpAddr, SocketAddr},
    pin::Pin,
    task::{Context, Poll},
};

use futures_util::FutureExt;
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

use crate::server::proxy_protocol::read;

/// A PROXY header is the same however it is split, and no byte beyond it is read. A client that it states can
/// be written as a header again.
pub fn proxy_protocol(bytes: &[u8]) {
    let whole = read_header(&mut &bytes[..]);
    let mut rest = bytes;
    let _ = read_header(&mut rest);
    let (header, _) = bytes.split_at(bytes.len() - rest.len());
    assert!(header.len() <= 4096);
    assert_eq!(read_header(&mut Dribble(bytes)), whole);
    let step = header.len() / 64 + 1;
    for at in (0..header.len()).step_by(step) {
        assert_eq!(read_header(&mut (&bytes[..at]).chain(&bytes[at..])), whole);
    }
    let Ok(client) = whole else { return };
    for length in (0..header.len()).step_by(step) {
        assert_eq!(read_header(&mut &header[..length]), Err(ErrorKind::UnexpectedEof));
    }
    for after in [&b""[..], b"\r\n", b"GET / HTTP/1.1\r\n\r\n"] {
        let more = [header, after].concat();
        let mut rest = &more[..];
        assert_eq!((read_header(&mut rest), rest), (Ok(client), after));
    }
    if let Some(client) = client {
        for header in [line_naming(client), binary_naming(client)] {
            assert_eq!(read_header(&mut &header[..]), Ok(Some(client)), "{}", header.escape_ascii());
        }
    }
}

/// Reads a header from bytes that are all available.
fn read_header(stream: &mut (impl AsyncRead + Unpin)) -> Result<Option<SocketAddr>, ErrorKind> {
    let read = read(stream).now_or_never().expect("all bytes are there");
    read.map_err(|error| error.kind())
}

/// A stream that yields one byte at a time.
struct Dribble<'b>(&'b [u8]);

impl AsyncRead for Dribble<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<Result<(), Error>> {
        if let Some((byte, rest)) = self.0.split_first() {
            into.put_slice(&[*byte]);
            self.0 = rest;
        }
        Poll::Ready(Ok(()))
    }
}

fn line_naming(client: SocketAddr) -> Vec<u8> {
    let (family, ip, port) = (if client.is_ipv4() { 4 } else { 6 }, client.ip(), client.port());
    format!("PROXY TCP{family} {ip} {ip} {port} {port}\r\n").into_bytes()
}

fn binary_naming(client: SocketAddr) -> Vec<u8> {
    let (family, address) = match client.ip() {
        IpAddr::V4(ip) => (0x11, ip.octets().to_vec()),
        IpAddr::V6(ip) => (0x21, ip.octets().to_vec()),
    };
    let port = client.port().to_be_bytes();
    let block = [&address[..], &address, &port, &port].concat();
    let length = [0, block.len() as u8];
    [b"\r\n\r\n\0\r\nQUIT\n\x21".as_slice(), &[family], &length, &block].concat()
}
