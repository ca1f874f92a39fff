//! Operators' connections. Their number is small. If all are in use, the one that has waited longest for its client is
//! closed, and the others end with their next response. So clients that connect and send nothing block nobody, nor do those
//! that send many requests at once.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, extract::ConnectInfo};
use http_body::Body as _;
use hyper::{
    body::Incoming,
    header::{CONNECTION, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet, yield_now},
    time::{Instant, sleep},
};
use tower::ServiceExt;

use super::PATIENCE;

/// The most connections. Event streams, which are never closed to make room, have a smaller bound.
const MOST: usize = 64;
/// The TCP user timeout, which detects vanished clients of event streams, since these send nothing.
const SILENCE_MOST: Duration = Duration::from_secs(30);
/// The pause after a failure to accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The connections that are open.
#[derive(Default)]
struct Connections {
    tasks: JoinSet<()>,
    open: Vec<(WaitingSince, AbortHandle)>,
    /// Each task holds a clone, so that all know their number.
    place: Arc<()>,
}

/// The time since which a connection waits for its client. `None` while it doesn't wait.
type WaitingSince = Arc<Mutex<Option<Instant>>>;

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
                tracing::warn!("can't accept a connection to the admin port: {error}");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

impl Connections {
    fn serve(&mut self, stream: TcpStream, peer: SocketAddr, router: Router) {
        #[cfg(target_os = "linux")]
        let _ = socket2::SockRef::from(&stream).set_tcp_user_timeout(Some(SILENCE_MOST));
        let waiting = WaitingSince::new(Mutex::new(Some(Instant::now())));
        let task = self.tasks.spawn(serve(stream, peer, router, waiting.clone(), self.place.clone()));
        self.open.push((waiting, task));
    }

    /// If all connections are in use, closes the one that has waited longest. If none waits, waits for one to end.
    async fn make_room(&mut self) {
        if self.open.len() == MOST {
            // Other connections may have received requests that their tasks haven't read yet.
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

async fn serve(stream: TcpStream, peer: SocketAddr, router: Router, waiting: WaitingSince, place: Arc<()>) {
    let places = Arc::downgrade(&place);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        // Until the body has arrived, the connection still waits for its client.
        *waiting.lock() = (!request.body().is_end_stream()).then(Instant::now);
        request.extensions_mut().insert(ConnectInfo(peer));
        let (answer, waiting, places) = (router.clone().oneshot(request), waiting.clone(), places.clone());
        async move {
            // A client that pipelines requests takes turns with others.
            yield_now().await;
            let mut answer = answer.await?;
            // A response without a length is an event stream, which doesn't wait for its client.
            *waiting.lock() = answer.body().size_hint().exact().map(|_| Instant::now());
            // One is the acceptor's.
            if places.strong_count() > MOST {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, std::convert::Infallible>(answer)
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(PATIENCE);
    if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%peer, "a connection to the admin port ended early: {error}");
    }
}
