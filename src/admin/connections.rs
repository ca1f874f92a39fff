//! Operators' connections: few at a time. If all are taken, the one that has waited longest for its client makes room for
//! the next, so that clients that connect and send nothing delay nobody.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, extract::ConnectInfo};
use http_body::Body as _;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet, yield_now},
    time::{Instant, sleep},
};
use tower::ServiceExt;

use super::PATIENCE;

/// Connections at a time. Fewer may listen to events, which make no room, so there are always some that do.
const MOST: usize = 64;
/// How long an operator's system may leave unacknowledged what it is sent: who listens to events sends nothing.
const SILENCE_MOST: Duration = Duration::from_secs(30);
/// When connections can't be accepted, the system needs time.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The connections that are open.
#[derive(Default)]
struct Connections {
    tasks: JoinSet<()>,
    open: Vec<(Waiting, AbortHandle)>,
}

/// The time since when a connection waits for its client, if it does.
type Waiting = Arc<Mutex<Option<Instant>>>;

/// Accepts operators' connections until the program ends.
pub(super) async fn accept(listener: TcpListener, router: Router) {
    let mut connections = Connections::default();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                connections.make_room().await;
                connections.serve(stream, peer, router.clone());
            }
            Err(error) => {
                tracing::warn!("can't accept an operator's connection: {error}");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

impl Connections {
    fn serve(&mut self, stream: TcpStream, peer: SocketAddr, router: Router) {
        #[cfg(target_os = "linux")]
        let _ = socket2::SockRef::from(&stream).set_tcp_user_timeout(Some(SILENCE_MOST));
        let waiting = Waiting::new(Mutex::new(Some(Instant::now())));
        let task = self.tasks.spawn(serve(stream, peer, router, waiting.clone()));
        self.open.push((waiting, task));
    }

    /// Closes a connection if there are as many as may be, or waits for one to end if all are at work.
    async fn make_room(&mut self) {
        if self.open.len() == MOST {
            // The others may have sent their requests already, but not had their turn to read them.
            yield_now().await;
        }
        loop {
            while self.tasks.try_join_next().is_some() {}
            self.open.retain(|(_, task)| !task.is_finished());
            if self.open.len() < MOST {
                return;
            }
            let waiting = self.open.iter().enumerate();
            let waiting = waiting.filter_map(|(at, (waiting, _))| Some(((*waiting.lock())?, at)));
            if let Some((_, longest)) = waiting.min() {
                self.open.swap_remove(longest).1.abort();
            } else {
                self.tasks.join_next().await;
            }
        }
    }
}

async fn serve(stream: TcpStream, peer: SocketAddr, router: Router, waiting: Waiting) {
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        // As long as its body hasn't come, the client is still waited for.
        *waiting.lock() = (!request.body().is_end_stream()).then(Instant::now);
        request.extensions_mut().insert(ConnectInfo(peer));
        let (answer, waiting) = (router.clone().oneshot(request), waiting.clone());
        async move {
            let answer = answer.await?;
            // One without a length is events, to which the client listens.
            *waiting.lock() = answer.body().size_hint().exact().map(|_| Instant::now());
            Ok::<_, std::convert::Infallible>(answer)
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(PATIENCE);
    if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%peer, "an operator's connection ended early: {error}");
    }
}
