//! An open-loop load generator: it sends each request when it is due, however many wait for a response.
//! Latency counts from the time at which a request was due, so a slow response doesn't hide the requests that waited
//! behind it (coordinated omission). Requests arrive at random (a Poisson process). `rustc -O` builds it.
//!
//!     open_loop PORT[,PORT]... PATH SECONDS RATE KEYS HOT_RATE BURST
//!
//! Each request goes to one of the ports at random. KEYS is the number of values of `X-Key`, in turn. In addition, HOT_RATE requests per second have the key `hot`, and in
//! the middle third of the time BURST times as many.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::str::FromStr;
use std::time::{Duration, Instant};

const SEED: u64 = 0x9E37_79B9_7F4A_7C15;
/// The most requests in flight. More of them wait, and their time counts.
const CONNECTIONS: usize = 128;
/// The seconds at the start that don't count.
const WARM_UP: f64 = 0.5;
/// The time to sleep if there is nothing to do: the precision of the latencies.
const PAUSE: Duration = Duration::from_micros(20);
/// The seconds that the last responses have. Those that are missing then count as broken.
const LAST_SECONDS: f64 = 2.0;

/// A connection, and the response that it receives.
struct Connection {
    /// The place of its port among all.
    place: usize,
    stream: TcpStream,
    received: Vec<u8>,
    request: Request,
}

/// A request and the second at which it is due.
#[derive(Clone, Copy, Default)]
struct Request {
    due: f64,
    is_hot: bool,
}

/// The state of a response.
enum Response {
    Incomplete,
    Complete { status: u16 },
    Broken,
}

/// Counts and latencies in seconds.
#[derive(Default)]
struct Results {
    latencies: Vec<f64>,
    /// The times by which the generator itself was late.
    delays: Vec<f64>,
    not_2xx: usize,
    hot: usize,
    hot_not_2xx: usize,
    broken: usize,
}

/// A source of random numbers between 0 and 1 (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) as f64 + 1.0) / (1u64 << 53) as f64
    }

    /// Returns the time until the next request.
    fn pause(&mut self, rate: f64) -> f64 {
        if rate > 0.0 { -self.next().ln() / rate } else { f64::INFINITY }
    }
}

impl Connection {
    fn open(ports: &[u16], place: usize) -> Self {
        let stream =
            TcpStream::connect(("127.0.0.1", ports[place])).expect("the gateway accepts connections");
        stream.set_nodelay(true).expect("a socket");
        stream.set_nonblocking(true).expect("a socket");
        Self { place, stream, received: Vec::new(), request: Request::default() }
    }

    /// Reads what has arrived.
    fn read(&mut self) -> Response {
        let mut buffer = [0; 4096];
        match self.stream.read(&mut buffer) {
            Ok(0) => return Response::Broken,
            Ok(count) => self.received.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Response::Incomplete,
            Err(_) => return Response::Broken,
        }
        let Some(end) = self.received.windows(4).position(|bytes| bytes == b"\r\n\r\n") else {
            return Response::Incomplete;
        };
        let head = String::from_utf8_lossy(&self.received[..end]).to_ascii_lowercase();
        let length = head.split("content-length:").nth(1).and_then(|rest| rest.lines().next());
        let length: usize = length.and_then(|digits| digits.trim().parse().ok()).expect("a Content-Length");
        if self.received.len() < end + 4 + length {
            return Response::Incomplete;
        }
        self.received.clear();
        Response::Complete { status: head[9..12].parse().expect("a status") }
    }
}

impl Results {
    fn add(&mut self, request: Request, status: u16, now: f64) {
        let is_2xx = (200..300).contains(&status);
        if request.is_hot {
            self.hot += 1;
            self.hot_not_2xx += usize::from(!is_2xx);
        } else if request.due >= WARM_UP {
            self.latencies.push(now - request.due);
            self.not_2xx += usize::from(!is_2xx);
        }
    }

    fn print(mut self) {
        let [p50, p99, p999, most] = percentiles(&mut self.latencies);
        let [_, late, ..] = percentiles(&mut self.delays);
        let Self { latencies, not_2xx, hot, hot_not_2xx, broken, .. } = self;
        let requests = latencies.len();
        print!(r#"{{"requests": {requests}, "not_2xx": {not_2xx}, "broken": {broken}, "hot": {hot}, "#);
        print!(
            r#""hot_not_2xx": {hot_not_2xx}, "p50_us": {p50:.0}, "p99_us": {p99:.0}, "p999_us": {p999:.0}, "#
        );
        println!(r#""most_us": {most:.0}, "late_us": {late:.0}}}"#);
    }
}

/// Returns p50, p99, p99.9 and the greatest of times, in microseconds.
fn percentiles(times: &mut [f64]) -> [f64; 4] {
    times.sort_unstable_by(f64::total_cmp);
    let last = times.len().checked_sub(1).expect("a request was answered");
    [0.5, 0.99, 0.999, 1.0].map(|share| times[(last as f64 * share) as usize] * 1e6)
}

/// The requests of a run, and the connections that they share.
struct Run {
    texts: Vec<Vec<u8>>,
    hot_text: Vec<u8>,
    ports: Vec<u16>,
    /// The connections of each port that have no request.
    idle: Vec<Vec<Connection>>,
    busy: Vec<Connection>,
    waiting: VecDeque<Request>,
    sent: usize,
    draws: Random,
    results: Results,
}

impl Run {
    fn new(ports: Vec<u16>, path: &str, keys: usize) -> Self {
        let text = |key: &str| {
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nX-Key: {key}\r\n\r\n").into_bytes()
        };
        Self {
            texts: (0..keys).map(|key| text(&format!("k{key}"))).collect(),
            hot_text: text("hot"),
            idle: (0..ports.len())
                .map(|place| {
                    (0..CONNECTIONS / ports.len()).map(|_| Connection::open(&ports, place)).collect()
                })
                .collect(),
            ports,
            busy: Vec::new(),
            waiting: VecDeque::new(),
            sent: 0,
            draws: Random(SEED),
            results: Results::default(),
        }
    }

    /// Takes an idle connection to a random port, or to the next one that has any.
    fn take_idle(&mut self) -> Option<Connection> {
        let count = self.idle.len();
        let first = (self.draws.next() * count as f64) as usize;
        (first..first + count).find_map(|place| self.idle[place % count].pop())
    }

    /// Sends waiting requests on idle connections. Returns whether there were any.
    fn send(&mut self) -> bool {
        let before = self.busy.len();
        while !self.waiting.is_empty()
            && let Some(mut connection) = self.take_idle()
            && let Some(request) = self.waiting.pop_front()
        {
            let text =
                if request.is_hot { &self.hot_text } else { &self.texts[self.sent % self.texts.len()] };
            self.sent += usize::from(!request.is_hot);
            connection.request = request;
            // If the connection is broken, reading from it will tell.
            let _ = connection.stream.write(text);
            self.busy.push(connection);
        }
        self.busy.len() > before
    }

    /// Takes the responses that have arrived. Returns whether there were any.
    fn receive(&mut self, begun: Instant) -> bool {
        let (before, mut position) = (self.busy.len(), 0);
        while position < self.busy.len() {
            match self.busy[position].read() {
                Response::Incomplete => position += 1,
                Response::Complete { status } => {
                    let connection = self.busy.swap_remove(position);
                    self.results.add(connection.request, status, begun.elapsed().as_secs_f64());
                    self.idle[connection.place].push(connection);
                }
                Response::Broken => {
                    let place = self.busy.swap_remove(position).place;
                    self.results.broken += 1;
                    self.idle[place].push(Connection::open(&self.ports, place));
                }
            }
        }
        self.busy.len() < before
    }

    fn is_done(&self) -> bool {
        self.busy.is_empty() && self.waiting.is_empty()
    }
}

fn argument<T: FromStr>(number: usize) -> T {
    let text = std::env::args().nth(number);
    text.and_then(|text| text.parse().ok()).expect("the arguments at the top of the source")
}

fn main() {
    let (ports, path): (String, String) = (argument(1), argument(2));
    let ports = ports.split(',').map(|port| port.parse().expect("a port")).collect();
    let (seconds, rate, keys): (f64, f64, usize) = (argument(3), argument(4), argument(5));
    let (hot_rate, burst): (f64, f64) = (argument(6), argument(7));
    let mut run = Run::new(ports, &path, keys);
    let mut random = Random(SEED);
    let (mut next, mut next_hot) = (random.pause(rate), random.pause(hot_rate));
    // Otherwise the kernel makes each pause longer by 50 µs.
    let _ = std::fs::write("/proc/self/timerslack_ns", "1");
    let begun = Instant::now();
    loop {
        let now = begun.elapsed().as_secs_f64();
        while next <= now && next < seconds {
            run.results.delays.push(now - next);
            run.waiting.push_back(Request { due: next, is_hot: false });
            next += random.pause(rate);
        }
        while next_hot <= now && next_hot < seconds {
            run.waiting.push_back(Request { due: next_hot, is_hot: true });
            let in_burst = (seconds / 3.0..seconds * 2.0 / 3.0).contains(&next_hot);
            next_hot += random.pause(if in_burst { hot_rate * burst } else { hot_rate });
        }
        if !(run.send() | run.receive(begun)) {
            std::thread::sleep(PAUSE);
        }
        if now > seconds && run.is_done() || now > seconds + LAST_SECONDS {
            run.results.broken += run.busy.len() + run.waiting.len();
            return run.results.print();
        }
    }
}
