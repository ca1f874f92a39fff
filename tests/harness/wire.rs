//! An upstream that speaks bytes, for what a well-behaved server wouldn't do or wouldn't show.

use std::{
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::Duration,
};

/// A server that hands each connection to a function, on a thread of its own.
pub(crate) struct WireUpstream {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

/// A connection as the upstream sees it.
pub(crate) struct Wire {
    /// How many connections came before it.
    pub(crate) number: usize,
    stream: BufReader<TcpStream>,
}

impl WireUpstream {
    pub(crate) fn start(serve: impl Fn(Wire) + Send + Sync + 'static) -> Self {
        Self::start_on(TcpListener::bind("127.0.0.1:0").unwrap(), serve)
    }

    /// The same at this address.
    pub(crate) fn start_on(listener: TcpListener, serve: impl Fn(Wire) + Send + Sync + 'static) -> Self {
        let upstream = Self { address: listener.local_addr().unwrap(), connections: Arc::default() };
        let (connections, serve) = (upstream.connections.clone(), Arc::new(serve));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let number = connections.fetch_add(1, SeqCst);
                let wire = Wire { number, stream: BufReader::new(stream.unwrap()) };
                let serve = serve.clone();
                thread::spawn(move || serve(wire));
            }
        });
        upstream
    }

    /// Answers every request with these bytes, and keeps the connection.
    pub(crate) fn answering(answer: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self::start(move |mut wire| {
            while wire.request().is_some() {
                wire.send(answer.as_ref());
            }
        })
    }

    /// Answers every request with these bytes, each when it is told to, and all of them when nobody can tell any more.
    pub(crate) fn answering_when_told(answer: &'static [u8]) -> (Self, mpsc::Sender<()>) {
        let (tell, told) = mpsc::channel();
        let told = Mutex::new(told);
        let upstream = Self::start(move |mut wire| {
            while wire.request().is_some() {
                let _ = told.lock().unwrap().recv();
                wire.send(answer);
            }
        });
        (upstream, tell)
    }

    /// Answers without an end, and tells when nothing more of that is taken.
    pub(crate) fn without_end() -> (Self, mpsc::Receiver<()>) {
        let (ended, end) = mpsc::channel();
        let upstream = Self::start(move |mut wire| {
            wire.request();
            wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n");
            while wire.stream().write_all(&[b'x'; 64 << 10]).is_ok() {}
            ended.send(()).unwrap();
        });
        (upstream, end)
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Connections that have been made to it.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(SeqCst)
    }
}

impl Wire {
    /// The header of the next request as it came, or none if the gateway has closed the connection.
    pub(crate) fn request(&mut self) -> Option<String> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if self.stream.read_until(b'\n', &mut head).unwrap_or(0) == 0 {
                return None;
            }
        }
        Some(head.into_iter().map(char::from).collect())
    }

    /// The next request as it came, with its body; or none if the gateway has closed the connection. What has come
    /// of one that broke off is lost.
    pub(crate) fn message(&mut self) -> Option<String> {
        let mut message = self.request()?;
        let head = message.to_ascii_lowercase();
        let length = head.split("\r\n").find_map(|line| line.strip_prefix("content-length: "));
        if head.contains("\r\ntransfer-encoding:") {
            loop {
                let line = self.line()?;
                let size = usize::from_str_radix(line.trim_end(), 16).unwrap();
                message += &line;
                if size == 0 {
                    break;
                }
                let mut chunk = vec![0; size + 2];
                self.stream.read_exact(&mut chunk).ok()?;
                message.extend(chunk.into_iter().map(char::from));
            }
            while !message.ends_with("\r\n\r\n") {
                message += &self.line()?;
            }
        } else if let Some(length) = length {
            let mut body = vec![0; length.parse().unwrap()];
            self.stream.read_exact(&mut body).ok()?;
            message.extend(body.into_iter().map(char::from));
        }
        Some(message)
    }

    fn line(&mut self) -> Option<String> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line).ok()?;
        line.ends_with(b"\r\n").then(|| line.into_iter().map(char::from).collect())
    }

    /// All that comes until the gateway closes the connection, or breaks it off.
    pub(crate) fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        let _ = self.stream.read_to_end(&mut rest);
        rest.into_iter().map(char::from).collect()
    }

    /// Sends bytes as they are. Whether the gateway takes them is for the test to see.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.get_mut().write_all(bytes);
    }

    pub(crate) fn read(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// The next byte, if one comes.
    pub(crate) fn try_read(&mut self) -> std::io::Result<u8> {
        let mut byte = [0];
        self.stream.read_exact(&mut byte)?;
        Ok(byte[0])
    }

    /// What comes.
    pub(crate) fn reader(&mut self) -> &mut impl Read {
        &mut self.stream
    }

    /// Waits until the gateway closes the connection, or breaks it off.
    pub(crate) fn wait_for_end(&mut self) {
        let _ = self.stream.read_to_end(&mut Vec::new());
    }

    /// Writes until the gateway has taken none of it for a second, and says how much it took. It must come to less than
    /// `endless` bytes.
    pub(crate) fn write_until_held_up(&mut self, endless: usize) -> usize {
        self.stream().set_write_timeout(Some(Duration::from_secs(1))).unwrap();
        let mut written = 0;
        loop {
            match self.stream().write(&[b'x'; 64 << 10]) {
                Ok(length) => written += length,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    return written;
                }
            }
            assert!(written < endless, "nothing held it up");
        }
    }

    /// The connection, with what has been read ahead of it.
    pub(crate) fn into_stream(self) -> BufReader<TcpStream> {
        self.stream
    }

    /// The connection itself.
    pub(crate) fn stream(&mut self) -> &mut TcpStream {
        self.stream.get_mut()
    }
}
