//! One end of an HTTP/2 connection, which sends given frames and shows received ones (RFC 9113, section 4.1).

use std::{
    io::{BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use super::wire::Wire;

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
pub(crate) const PADDED: u8 = 8;
/// SETTINGS_MAX_CONCURRENT_STREAMS.
pub(crate) const MAX_CONCURRENT_STREAMS: u16 = 3;
/// SETTINGS_INITIAL_WINDOW_SIZE.
pub(crate) const INITIAL_WINDOW: u16 = 4;
pub(crate) const NO_ERROR: u32 = 0;
pub(crate) const PROTOCOL_ERROR: u32 = 1;
pub(crate) const INTERNAL_ERROR: u32 = 2;
pub(crate) const REFUSED_STREAM: u32 = 7;
pub(crate) const HTTP_1_1_REQUIRED: u32 = 13;
pub(crate) const CANCEL: u32 = 8;
pub(crate) const COMPRESSION_ERROR: u32 = 9;
pub(crate) const ENHANCE_YOUR_CALM: u32 = 11;

/// The time limit for a frame.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// A connection.
pub(crate) struct Frames {
    stream: BufReader<TcpStream>,
    /// True if it answers PINGs, as the protocol requires.
    pub(crate) answers_pings: bool,
}

/// A frame.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    /// Returns the code of a RST_STREAM or GOAWAY.
    pub(crate) fn code(&self) -> u32 {
        let at = if self.kind == GOAWAY { 4 } else { 0 };
        u32::from_be_bytes(self.payload[at..at + 4].try_into().unwrap())
    }

    /// The status that a HEADERS begins with, by its index (RFC 7541, appendix A), or in Huffman's code as the first
    /// answer of a connection may have it (appendix B); else 0.
    pub(crate) fn status(&self) -> u16 {
        let indexed =
            [(0x88, 200), (0x89, 204), (0x8a, 206), (0x8b, 304), (0x8c, 400), (0x8d, 404), (0x8e, 500)];
        let [first, length, code @ ..] = &*self.payload else { return 0 };
        if let Some((_, status)) = indexed.iter().find(|(byte, _)| byte == first) {
            return *status;
        }
        if !matches!((first, length), (0x48, 0x80..)) {
            return 0;
        }
        // `0` to `2` have 5 bits, the other digits 6.
        let code = code.iter().chain(&[0; 3]).take(3).fold(0, |bits, byte| bits << 8 | u32::from(*byte));
        let (mut status, mut at) = (0, 24);
        for _ in 0..3 {
            let (short, long) = (code >> (at - 5) & 0x1f, code >> (at - 6) & 0x3f);
            let (digit, bits) = if short < 3 { (short, 5) } else { (long - 0x16, 6) };
            (status, at) = (10 * status + digit as u16, at - bits);
        }
        status
    }

    pub(crate) fn ends_stream(&self) -> bool {
        matches!(self.kind, DATA | HEADERS) && self.flags & END_STREAM != 0
    }
}

/// The received data of a stream.
#[derive(Debug)]
pub(crate) struct Told {
    /// The status of the first HEADERS, as [`Frame::status`] reads it. 0 if there are none.
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
    pub(crate) end: End,
}

/// The end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// END_STREAM.
    Whole,
    /// RST_STREAM with this code.
    Reset(u32),
    /// The end of the connection, with the code of GOAWAY if that reported an error.
    Gone(Option<u32>),
}

impl Told {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    /// Returns the code of the gateway's problem (RFC 9457).
    pub(crate) fn code(&self) -> String {
        let problem: serde_json::Value =
            serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        problem["code"].as_str().unwrap().to_owned()
    }
}

/// Returns the bytes of a frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Encodes fields as literals without indexing (RFC 7541, section 6.2.2).
pub(crate) fn fields(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            let length = text.len();
            if length < 127 {
                block.push(length as u8);
            } else {
                block.push(127);
                let mut rest = length - 127;
                while rest >= 128 {
                    block.push((rest % 128) as u8 | 128);
                    rest /= 128;
                }
                block.push(rest as u8);
            }
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

/// Returns the fields of a GET, with additional ones.
pub(crate) fn get<'f>(path: &'f str, more: &[(&'f str, &'f str)]) -> Vec<(&'f str, &'f str)> {
    let get = [(":method", "GET"), (":scheme", "http"), (":authority", "tollgate.test"), (":path", path)];
    [&get[..], more].concat()
}

impl Frames {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        Self::connect_with(address, &[])
    }

    /// Connects with these settings.
    pub(crate) fn connect_with(address: SocketAddr, settings: &[(u16, u32)]) -> Self {
        Self::on(TcpStream::connect(address).unwrap(), settings)
    }

    /// Begins with these settings on a connection.
    pub(crate) fn on(stream: TcpStream, settings: &[(u16, u32)]) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(READ_TIMEOUT)).unwrap();
        let mut client = Self { stream: BufReader::new(stream), answers_pings: true };
        let settings: Vec<u8> = settings
            .iter()
            .flat_map(|(name, value)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat())
            .collect();
        client.write(&[PREFACE, &frame(SETTINGS, 0, 0, &settings)].concat());
        client
    }

    /// Accepts a connection as a server.
    pub(crate) fn accept(mut wire: Wire) -> Self {
        assert_eq!(wire.read(PREFACE.len()), PREFACE);
        let mut server = Self { stream: wire.into_stream(), answers_pings: true };
        server.send(SETTINGS, 0, 0, &[]);
        server
    }

    /// Sends bytes unchanged. It is up to the test whether the gateway accepts them.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        let _ = self.stream.get_mut().write_all(bytes);
    }

    pub(crate) fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.write(&frame(kind, flags, stream, payload));
    }

    /// Sends a request without a body.
    pub(crate) fn ask(&mut self, stream: u32, of: &[(&str, &str)]) {
        self.send(HEADERS, END_HEADERS | END_STREAM, stream, &fields(of));
    }

    /// Sends so many requests without a body at once, on the streams from 1 on.
    pub(crate) fn ask_at_once(&mut self, count: u32, of: &[(&str, &str)]) {
        let head = fields(of);
        let ask = |at| frame(HEADERS, END_HEADERS | END_STREAM, 2 * at + 1, &head);
        self.write(&(0..count).map(ask).collect::<Vec<_>>().concat());
    }

    pub(crate) fn reset(&mut self, stream: u32) {
        self.reset_with(stream, CANCEL);
    }

    pub(crate) fn reset_with(&mut self, stream: u32, code: u32) {
        self.send(RST_STREAM, 0, stream, &code.to_be_bytes());
    }

    /// Returns the data received on a stream, up to its end.
    pub(crate) fn told(&mut self, stream: u32) -> Told {
        let mut told = Told { status: 0, body: Vec::new(), end: End::Gone(None) };
        while let Some(frame) = self.next() {
            match frame.kind {
                GOAWAY if frame.code() != NO_ERROR => told.end = End::Gone(Some(frame.code())),
                _ if frame.stream != stream => continue,
                RST_STREAM => return Told { end: End::Reset(frame.code()), ..told },
                HEADERS if told.status == 0 => told.status = frame.status(),
                DATA => told.body.extend(&frame.payload),
                _ => {}
            }
            if frame.ends_stream() {
                return Told { end: End::Whole, ..told };
            }
        }
        told
    }

    /// Closes the sending side of the connection.
    pub(crate) fn close(&mut self) {
        self.stream.get_mut().shutdown(std::net::Shutdown::Write).unwrap();
    }

    /// Returns another handle of the connection, to write while this one reads.
    pub(crate) fn writer(&self) -> TcpStream {
        self.stream.get_ref().try_clone().unwrap()
    }

    /// Returns the next frame other than SETTINGS and PING, which are answered. `None` if the connection has ended.
    pub(crate) fn next(&mut self) -> Option<Frame> {
        loop {
            let mut head = [0; 9];
            self.stream.read_exact(&mut head).ok()?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; length as usize];
            self.stream.read_exact(&mut payload).ok()?;
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
            let frame = Frame { kind: head[3], flags: head[4], stream, payload };
            match frame.kind {
                SETTINGS if frame.flags & ACK == 0 => self.send(SETTINGS, ACK, 0, &[]),
                PING if frame.flags & ACK == 0 && self.answers_pings => {
                    self.send(PING, ACK, 0, &frame.payload);
                }
                SETTINGS | PING | WINDOW_UPDATE => {}
                _ => return Some(frame),
            }
        }
    }

    /// Returns the next frame of this kind.
    pub(crate) fn next_of(&mut self, kind: u8) -> Frame {
        loop {
            let frame =
                self.next().unwrap_or_else(|| panic!("the connection ended before a frame of kind {kind}"));
            if frame.kind == kind {
                return frame;
            }
        }
    }

    /// Returns the code of the last GOAWAY, if there was one.
    pub(crate) fn end(&mut self) -> Option<u32> {
        let mut code = None;
        while let Some(frame) = self.next() {
            code = (frame.kind == GOAWAY).then(|| frame.code()).or(code);
        }
        code
    }
}
