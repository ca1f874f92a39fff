//! An HTTP/1.1 client that sends given bytes and shows the response as received.

use std::{
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use socket2::{Domain, Socket, Type};

/// The time limit for bytes of a response.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// A persistent connection.
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
}

/// A response. Field names are in lower case.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(READ_TIMEOUT)).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    pub(crate) fn get(&mut self, path: &str) -> Answer {
        self.get_with(path, "")
    }

    /// Sends a GET with additional header lines, each ended by CRLF, and returns the response.
    pub(crate) fn get_with(&mut self, path: &str, lines: &str) -> Answer {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: tollgate.test\r\n{lines}\r\n").as_bytes());
        self.answer()
    }

    /// Sends a request and returns the response. It is written as `GET /path`, a line for each field, an empty line, and the body.
    /// Host is added if it is missing.
    pub(crate) fn ask(&mut self, request: &str) -> Answer {
        let (head, body) = request.split_once("\n\n").unwrap_or((request, ""));
        let (line, fields) = head.split_once('\n').unwrap_or((head, ""));
        let mut fields: Vec<String> =
            fields.lines().map(|field| format!("{}\r\n", field.trim_start())).collect();
        if !fields.iter().any(|field| field.to_ascii_lowercase().starts_with("host:")) {
            fields.insert(0, "Host: tollgate.test\r\n".to_owned());
        }
        self.send(format!("{line} HTTP/1.1\r\n{}\r\n{body}", fields.concat()).as_bytes());
        let answer = self.head();
        if line.starts_with("HEAD ") || matches!(answer.status, 204 | 304) {
            answer
        } else {
            self.body(answer)
        }
    }

    /// Sends bytes unchanged.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap();
    }

    /// Reads the response to a request other than HEAD.
    pub(crate) fn answer(&mut self) -> Answer {
        let answer = self.head();
        self.body(answer)
    }

    fn body(&mut self, mut answer: Answer) -> Answer {
        answer.body = self.body_of(&answer);
        answer
    }

    /// Reads the body after a header.
    pub(crate) fn body_of(&mut self, answer: &Answer) -> Vec<u8> {
        match answer.header("transfer-encoding") {
            Some("chunked") => self.chunks(),
            _ => self.bytes(answer.header("content-length").map_or(0, |length| length.parse().unwrap())),
        }
    }

    /// Reads the header of a response unchanged, as Latin-1, with the empty line.
    pub(crate) fn raw_head(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let read = self.stream.read_until(b'\n', &mut head).unwrap();
            assert_ne!(read, 0, "the answer broke off: {:?}", String::from_utf8_lossy(&head));
        }
        head.into_iter().map(char::from).collect()
    }

    /// Reads the header of a response.
    pub(crate) fn head(&mut self) -> Answer {
        let line = self.line();
        let status =
            line.split(' ').nth(1).unwrap_or_else(|| panic!("no status line: {line:?}")).parse().unwrap();
        let mut headers = Vec::new();
        loop {
            let line = self.line();
            if line.is_empty() {
                return Answer { status, headers, body: Vec::new() };
            }
            let (name, value) = line.split_once(':').unwrap_or_else(|| panic!("no field: {line:?}"));
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }

    /// Reads a number of bytes of a body.
    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).unwrap();
        body
    }

    /// Reads until the gateway closes or resets the connection.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        if let Err(error) = self.stream.read_to_end(&mut rest) {
            assert_ne!(error.kind(), ErrorKind::WouldBlock, "the connection stays open");
        }
        rest
    }

    /// Reads until the gateway closes the connection, and fails if it resets it.
    pub(crate) fn try_rest(&mut self) -> std::io::Result<Vec<u8>> {
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).map(|_| rest)
    }

    /// Returns another handle of the connection, to write while this one reads.
    pub(crate) fn writer(&self) -> TcpStream {
        self.stream.get_ref().try_clone().unwrap()
    }

    /// Returns the data received from now on, as it arrives.
    pub(crate) fn into_reader(self) -> impl BufRead {
        self.stream
    }

    /// Returns true if everything was read and the gateway has closed the connection.
    pub(crate) fn is_closed(&mut self) -> bool {
        self.stream.fill_buf().map_or_else(|error| error.kind() != ErrorKind::WouldBlock, <[u8]>::is_empty)
    }

    /// Returns true if bytes, or the end of the connection, arrive within this time.
    pub(crate) fn hears_within(&mut self, time: Duration) -> bool {
        self.stream.get_ref().set_read_timeout(Some(time)).unwrap();
        let heard = self.stream.fill_buf();
        let heard = heard.map_or_else(|error| error.kind() != ErrorKind::WouldBlock, |_| true);
        self.stream.get_ref().set_read_timeout(Some(READ_TIMEOUT)).unwrap();
        heard
    }

    fn chunks(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let chunk = self.chunk();
            if chunk.is_empty() {
                return body;
            }
            body.extend(chunk);
        }
    }

    /// Reads the next chunk of a body.
    pub(crate) fn chunk(&mut self) -> Vec<u8> {
        let size = usize::from_str_radix(self.line().trim(), 16).unwrap();
        let chunk = self.bytes(size);
        self.line();
        chunk
    }

    fn line(&mut self) -> String {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line).unwrap();
        assert!(line.ends_with(b"\r\n"), "the answer broke off: {:?}", String::from_utf8_lossy(&line));
        String::from_utf8(line[..line.len() - 2].to_vec()).unwrap()
    }
}

impl Answer {
    /// Returns the first line of a field.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// Returns all lines of a field.
    pub(crate) fn lines(&self, name: &str) -> Vec<&str> {
        self.headers.iter().filter(|(other, _)| other == name).map(|(_, value)| value.as_str()).collect()
    }

    /// Returns Retry-After-Ms of a refusal.
    pub(crate) fn retry_after_ms(&self) -> u64 {
        self.header("retry-after-ms").unwrap_or_else(|| panic!("{self:?}")).parse().unwrap()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.text()))
    }
}

/// A connection with a receive buffer of this size.
pub(crate) fn connect_with_buffer(address: SocketAddr, size: usize) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(size).unwrap();
    socket.connect(&address.into()).unwrap();
    socket.into()
}
