//! The clients. They record when each request was sent, and its result. All processes share one machine's
//! clock.

use std::{
    error::Error,
    net::SocketAddr,
    thread::{self, JoinHandle},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::{
    Request, Response,
    body::Incoming,
    client::conn::http1::{self, SendRequest},
};
use hyper_util::rt::TokioIo;
use tokio::{
    net::TcpStream,
    runtime::Builder,
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::cases::{Case, KEYS, WINDOW};

/// The longest pause between two requests of a client; on average it is half of it.
const PAUSE: Duration = Duration::from_millis(20);
/// The time after which a client gives up.
const PATIENCE: Duration = Duration::from_secs(10);

/// A request, and its result.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) id: u64,
    pub(crate) key: usize,
    pub(crate) sent_us: u64,
    pub(crate) answered_us: u64,
    pub(crate) answer: Answer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Admitted(By),
    /// 429, with the delay if it is stated exactly.
    Refused(By, Option<Duration>),
    /// Another status.
    Failed(u16),
    /// A failed connection, or none.
    Missing,
}

/// The origin of a decision, derived from the quota in the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// The store, or an earlier reply of it.
    Store,
    /// The gateway in place of the store: by its share, or by admitting all requests.
    Fallback,
}

/// The records of all clients.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) requests: Vec<Asked>,
    /// How often a client that is alone on its key was rejected after it had waited as told; and how often it
    /// had waited.
    pub(crate) rejected_retries: usize,
    pub(crate) retries: usize,
}

/// Returns the time in microseconds, in Redis' form.
pub(crate) fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64
}

/// Starts clients, distributed over the gateways, that send requests for this time; and a patient client,
/// alone on its key.
pub(crate) fn start(case: &Case, gateways: &[SocketAddr], clients: usize, span: Duration) -> JoinHandle<Log> {
    let permits = case.limits[0].quota.permits;
    let gateways = gateways.to_vec();
    thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let end = Instant::now() + span;
            let mut all = JoinSet::new();
            for number in 0..=clients {
                let client = Client::new(number as u64, gateways[number % gateways.len()], permits, end);
                if number < clients {
                    all.spawn(client.ask_at_random());
                } else {
                    all.spawn(client.ask_patiently());
                }
            }
            let mut log = Log::default();
            for client in all.join_all().await {
                log.requests.extend(client.log.requests);
                log.rejected_retries += client.log.rejected_retries;
                log.retries += client.log.retries;
            }
            log
        })
    })
}

struct Client {
    /// The id of the next request, unique within a case.
    id: u64,
    gateway: SocketAddr,
    /// The permits of the first limit.
    permits: u32,
    end: Instant,
    connection: Option<SendRequest<Empty<Bytes>>>,
    log: Log,
}

impl Client {
    fn new(number: u64, gateway: SocketAddr, permits: u32, end: Instant) -> Self {
        Self { id: number << 32, gateway, permits, end, connection: None, log: Log::default() }
    }

    /// Sends requests for random keys, regardless of the responses. Keys come into use one after the other,
    /// so that later some are always full and others aren't.
    async fn ask_at_random(mut self) -> Self {
        let begun = Instant::now();
        let mut next = begun;
        loop {
            next = Instant::now().max(next + PAUSE.mul_f64(fastrand::f64()));
            if next >= self.end {
                return self;
            }
            sleep_until(next).await;
            let open = begun.elapsed().as_millis() * KEYS as u128 / WINDOW.as_millis() + 1;
            self.ask(fastrand::usize(..KEYS.min(open as usize))).await;
        }
    }

    /// Sends requests on its own key until one is rejected, and retries after the stated delay.
    async fn ask_patiently(mut self) -> Self {
        let mut has_waited = false;
        while Instant::now() < self.end {
            let answer = self.ask(KEYS).await;
            if has_waited && matches!(answer, Answer::Admitted(By::Store) | Answer::Refused(By::Store, _)) {
                self.log.retries += 1;
                self.log.rejected_retries += usize::from(matches!(answer, Answer::Refused(..)));
            }
            has_waited = false;
            match answer {
                Answer::Refused(by, Some(delay)) => {
                    sleep_until(self.end.min(Instant::now() + delay)).await;
                    has_waited = by == By::Store;
                }
                Answer::Admitted(_) => sleep(PAUSE / 20).await,
                _ => sleep(PAUSE).await,
            }
        }
        self
    }

    async fn ask(&mut self, key: usize) -> Answer {
        let (id, sent_us) = (self.id, now_us());
        self.id += 1;
        let answer = match timeout(PATIENCE, self.exchange(id, key)).await {
            Ok(Ok(response)) => self.read(&response),
            _ => {
                self.connection = None;
                Answer::Missing
            }
        };
        self.log.requests.push(Asked { id, key, sent_us, answered_us: now_us(), answer });
        answer
    }

    async fn exchange(&mut self, id: u64, key: usize) -> Result<Response<Incoming>, Box<dyn Error>> {
        if self.connection.as_ref().is_none_or(SendRequest::is_closed) {
            let stream = TcpStream::connect(self.gateway).await?;
            stream.set_nodelay(true)?;
            let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection);
            self.connection = Some(sender);
        }
        let sender = self.connection.as_mut().unwrap();
        sender.ready().await?;
        let request = Request::get("/").header("host", "tollgate.test");
        let request = request.header("x-key", format!("k{key}")).header("x-id", id);
        let mut response = sender.send_request(request.body(Empty::new())?).await?;
        while let Some(frame) = response.frame().await {
            frame?;
        }
        Ok(response)
    }

    fn read(&self, response: &Response<Incoming>) -> Answer {
        let field = |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap());
        // `"each";q=100;w=1, …`
        let permits =
            field("ratelimit-policy").and_then(|policy| policy.split([';', ',']).nth(1)?.strip_prefix("q="));
        let by = if permits == Some(&self.permits.to_string()) { By::Store } else { By::Fallback };
        match response.status().as_u16() {
            200 => Answer::Admitted(by),
            429 => {
                let delay_ms = field("retry-after-ms").map(|delay_ms| delay_ms.parse().unwrap());
                Answer::Refused(by, delay_ms.map(Duration::from_millis))
            }
            status => Answer::Failed(status),
        }
    }
}
