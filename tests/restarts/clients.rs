//! Clients that send requests during restarts, and count the responses.

use std::{
    collections::HashMap,
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use crate::harness::wait_until;

/// What a client does with its connections.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Manner {
    /// Keeps one, and opens another if it is closed before any byte of an answer, or can't be opened.
    Retries,
    /// Keeps one until an answer closes it, and takes any failure for what it is.
    KeepsOne,
    /// Opens one for each request, and takes any failure for what it is.
    OpensEach,
}

/// Clients that are running.
pub(crate) struct Clients {
    ends: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    running: Vec<JoinHandle<HashMap<String, usize>>>,
}

type Connection = BufReader<TcpStream>;

/// No answer, and whether none of it had come.
struct Broken {
    before_any_byte: bool,
    cause: String,
}

impl Clients {
    /// Starts so many, which ask for these paths in turn, wherever the function says.
    pub(crate) fn start(
        count: usize,
        manner: Manner,
        paths: &'static [&'static str],
        place: impl Fn() -> SocketAddr + Clone + Send + 'static,
    ) -> Self {
        let (ends, answered) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let running = (0..count).map(|_| {
            let (ends, answered, place) = (ends.clone(), answered.clone(), place.clone());
            thread::spawn(move || {
                let (mut connection, mut outcomes) = (None, HashMap::new());
                for path in paths.iter().cycle().take_while(|_| !ends.load(SeqCst)) {
                    let outcome = ask(&mut connection, manner, path, &place);
                    *outcomes.entry(format!("{path} {outcome}")).or_default() += 1;
                    answered.fetch_add(1, SeqCst);
                    // Some hundred requests a second, of all.
                    thread::sleep(Duration::from_millis(20));
                }
                outcomes
            })
        });
        let running = running.collect();
        Self { ends, answered, running }
    }

    /// Waits for so many more outcomes.
    pub(crate) fn wait_for(&self, more: usize) {
        let goal = self.answered.load(SeqCst) + more;
        wait_until("requests are answered", || self.answered.load(SeqCst) >= goal);
    }

    /// Ends them, and tells how often each outcome was had: a path with a status, or with what was wrong.
    pub(crate) fn end(self) -> HashMap<String, usize> {
        self.ends.store(true, SeqCst);
        let mut outcomes = HashMap::new();
        for (outcome, count) in self.running.into_iter().flat_map(|client| client.join().unwrap()) {
            *outcomes.entry(outcome).or_default() += count;
        }
        outcomes
    }
}

fn ask(
    connection: &mut Option<Connection>,
    manner: Manner,
    path: &str,
    place: &impl Fn() -> SocketAddr,
) -> String {
    loop {
        let asked = match connection.take() {
            Some(open) => Ok(open),
            None => open(place()).map_err(|error| Broken { before_any_byte: true, cause: error.to_string() }),
        };
        let broken = match asked.and_then(|mut open| exchange(&mut open, path).map(|answer| (open, answer))) {
            Ok((open, (status, closes))) => {
                if !closes && manner != Manner::OpensEach {
                    *connection = Some(open);
                }
                return status;
            }
            Err(broken) => broken,
        };
        if manner != Manner::Retries || !broken.before_any_byte {
            return broken.cause;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

fn open(place: SocketAddr) -> io::Result<Connection> {
    let stream = TcpStream::connect(place)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    Ok(BufReader::new(stream))
}

/// Asks once: the status, and whether the connection is to be closed.
fn exchange(connection: &mut Connection, path: &str) -> Result<(String, bool), Broken> {
    let early = |error: io::Error| Broken { before_any_byte: true, cause: error.to_string() };
    let late = |cause: String| Broken { before_any_byte: false, cause };
    let request = format!("GET {path} HTTP/1.1\r\nHost: tollgate.test\r\n\r\n");
    connection.get_mut().write_all(request.as_bytes()).map_err(early)?;
    if connection.fill_buf().map_err(early)?.is_empty() {
        return Err(early(io::ErrorKind::UnexpectedEof.into()));
    }
    let (mut head, mut length) = (Vec::new(), 0);
    loop {
        let mut line = String::new();
        connection.read_line(&mut line).map_err(|error| late(error.to_string()))?;
        match line.trim_end().to_ascii_lowercase() {
            line if line.is_empty() => break,
            line => {
                length = line.strip_prefix("content-length: ").map_or(length, |bytes| bytes.parse().unwrap());
                head.push(line);
            }
        }
    }
    connection.read_exact(&mut vec![0; length]).map_err(|error| late(error.to_string()))?;
    let status = head.first().and_then(|line| line.split(' ').nth(1)).map(str::to_owned);
    let status = status.ok_or_else(|| late("the answer broke off".to_owned()))?;
    Ok((status, head.iter().any(|line| line == "connection: close")))
}
