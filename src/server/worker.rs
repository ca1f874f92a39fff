//! A worker serves its connections on one thread.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
};
use tokio::{
    net::TcpStream,
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::{MissedTickBehavior, interval, timeout},
};

use crate::gateway::{Gateway, StoreError};

use super::{Accepted, Counted, Terms, proxy_protocol};

/// How often connections to upstreams are looked through for idle ones.
const CLOSE_IDLE_EVERY: Duration = Duration::from_secs(1);
/// Bytes that a connection buffers of a body on its way, beside what its header may take.
const BODY_BUFFER: usize = 64 << 10;

/// Serves what is accepted until the server lets go of the inbox; then drains.
pub(super) async fn work(
    terms: Terms,
    gateway: &Arc<ArcSwap<Gateway>>,
    mut accepted: mpsc::Receiver<Accepted>,
    ready: oneshot::Sender<Result<(), StoreError>>,
) {
    let warm = gateway.load_full().warm_up().await;
    // The server waits for it, unless it has failed to start and is gone.
    let _ = ready.send(warm);

    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(terms.header_timeout)
        .max_header_size(terms.max_header_bytes)
        .max_buf_size(terms.max_header_bytes + BODY_BUFFER)
        // Header and body in one write. (`pipeline_flush` would do that, too, but withholds an answer while
        // more of the connection is to be read, and buffers a body without bound for a slow reader.)
        .writev(false);
    let graceful = GracefulShutdown::new();
    // Connections of which isn't known yet whose they are. A drain closes them.
    let mut unknown = JoinSet::new();
    let mut idle = interval(CLOSE_IDLE_EVERY);
    idle.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            next = accepted.recv() => match next {
                Some(Accepted { stream, peer, counted }) => match TcpStream::from_std(stream) {
                    Ok(mut stream) if gateway.load().expects_proxy_header(peer.ip()) => {
                        unknown.spawn(async move {
                            let client = proxy_protocol::client(&mut stream, peer, terms.header_timeout).await?;
                            Some((stream, client, counted))
                        });
                    }
                    Ok(stream) => serve(&http, &graceful, gateway.clone(), stream, peer, counted),
                    Err(error) => tracing::warn!("can't serve a connection: {error}"),
                },
                None => break,
            },
            Some(Ok(Some((stream, client, counted)))) = unknown.join_next() => {
                serve(&http, &graceful, gateway.clone(), stream, client, counted);
            }
            _ = idle.tick() => gateway.load().close_idle(),
        }
    }
    if timeout(terms.drain_timeout, graceful.shutdown()).await.is_err() {
        tracing::warn!("requests are still in flight at the end of the drain: cut off");
    }
}

fn serve(
    http: &http1::Builder,
    graceful: &GracefulShutdown,
    gateway: Arc<ArcSwap<Gateway>>,
    stream: TcpStream,
    peer: SocketAddr,
    counted: Counted,
) {
    let service = service_fn(move |request| {
        let gateway = gateway.load_full();
        async move { Ok::<_, Infallible>(gateway.answer(peer.ip(), request).await) }
    });
    let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), service));
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%peer, "a connection ended early: {error}");
        }
        drop(counted);
    });
}
