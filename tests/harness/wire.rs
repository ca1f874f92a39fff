//! An upstream that sends and receives raw bytes, for behaviour that a well-behaved server doesn't have or show.

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

/// A server that passes each connection to a function, on its own thread.
pub(crate) struct WireUpstream {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

/// A connection, seen from the upstream.
pub(crate) struct Wire {
    /// The number of earlier connections.
    pub(crate) number: usize,
    stream: BufReader<TcpStream>,
}

impl WireUpstream {
    pub(crate) fn start(serve: impl Fn(Wire) + Send + Sync + 'static) -> Self {
        Self::start_on(TcpListener::bind("127.0.0.1:0").unwrap(), serve)
    }

    /// Starts a server at this address.
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

    /// Starts a server that answers every request with these bytes, and keeps connections open.
    pub(crate) fn answering(answer: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self::start(move |mut wire| {
            while wire.request().is_some() {
                wire.send(answer.as_ref());
            }
        })
    }

    /// Starts a server that answers each request with these bytes on a signal, and at once when the sender is gone.
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

    /// Starts a server whose responses never end, and which signals when they aren't read any more.
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

    /// Returns the number of connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(SeqCst)
    }
}

impl Wire {
    /// Returns the header of the next request unchanged. `None` if the gateway has closed the connection.
    pub(crate) fn request(&mut self) -> Option<String> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if self.stream.read_until(b'\n', &mut head).unwrap_or(0) == 0 {
                return None;
            }
        }
        Some(head.into_iter().map(char::from).collect())
    }

    /// Returns the next request unchanged, with its body. `None` if the gateway has closed the connection, even in the middle of
    /// a request.
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

    /// Reads until the gateway closes or resets the connection.
    pub(crate) fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        let _ = self.stream.read_to_end(&mut rest);
        rest.into_iter().map(char::from).collect()
    }

    /// Sends bytes unchanged. It is up to the test whether the gateway accepts them.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.get_mut().write_all(bytes);
    }

    pub(crate) fn read(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Reads the next byte, if there is one.
    pub(crate) fn try_read(&mut self) -> std::io::Result<u8> {
        let mut byte = [0];
        self.stream.read_exact(&mut byte)?;
        Ok(byte[0])
    }

    /// Reads available bytes.
    pub(crate) fn reader(&mut self) -> &mut impl Read {
        &mut self.stream
    }

    /// Waits until the gateway closes or resets the connection.
    pub(crate) fn wait_for_end(&mut self) {
        let _ = self.stream.read_to_end(&mut Vec::new());
    }

    /// Writes until the gateway has read nothing for a second, and returns the number of bytes that it read, which must be less
    /// than `endless`.
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

    /// Returns the connection, with the bytes read ahead.
    pub(crate) fn into_stream(self) -> BufReader<TcpStream> {
        self.stream
    }

    /// Returns the connection itself.
    pub(crate) fn stream(&mut self) -> &mut TcpStream {
        self.stream.get_mut()
    }
}
