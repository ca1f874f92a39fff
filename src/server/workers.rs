//! The workers: their start, and the drain that ends them.

use std::{
    sync::{Arc, atomic::AtomicUsize},
    thread,
    time::Duration,
};

use arc_swap::ArcSwap;
use tokio::{
    runtime::Handle,
    sync::{Mutex, oneshot, watch},
    time::{Instant, sleep, timeout_at},
};

use super::{
    Control, FirstConnection, Stage, StartError, Status,
    clients::Clients,
    settings::{ConnectionSettings, TlsOfDoors},
    slots::ConnectionSlots,
    worker::{RetiredGateways, WorkerContext},
};
use crate::{config::Config, gateway::Gateway};

/// The longest [notice](notice).
const NOTICE_MOST: Duration = Duration::from_secs(10);

/// The workers, and what a shutdown needs to know.
pub(super) struct Workers {
    pub(super) control: Arc<Control>,
    threads: Vec<thread::JoinHandle<()>>,
    pub(super) runtimes: Vec<Handle>,
    clients: Arc<Clients>,
    /// True if a load balancer can probe readiness: at `/readyz` of the admin listener, or at `server.health`.
    is_probed: bool,
}

impl Workers {
    /// Starts the workers. Returns them, with the results of their first connections to the store.
    pub(super) fn start(
        config: &Config,
        gateway: Gateway,
    ) -> Result<(Self, Vec<FirstConnection>), StartError> {
        let server = &config.server;
        let count = match server.workers {
            0 => thread::available_parallelism()?.get(),
            workers => workers,
        };
        let tls = TlsOfDoors::new(config, None).map_err(StartError::Tls)?;
        let settings = Arc::new(ArcSwap::from_pointee(ConnectionSettings::new(server, tls, &gateway, count)));
        let gateway = Arc::new(ArcSwap::from_pointee(gateway));
        let (stage, is_at) = watch::channel(Stage::Serving);
        let connections: Vec<Arc<AtomicUsize>> = (0..count).map(|_| Arc::default()).collect();
        let status = Arc::new(Status::new(connections.clone()));
        let (mut inboxes, mut threads, mut runtimes, mut readies) =
            <(Vec<_>, Vec<_>, Vec<_>, Vec<_>)>::default();
        let context = WorkerContext {
            slots: ConnectionSlots::new(settings.clone()),
            settings,
            gateway,
            retired: RetiredGateways::default(),
            stage: is_at,
            clients: Arc::new(Clients::new(status.clone())),
            status,
        };
        for (index, connections) in connections.into_iter().enumerate() {
            let worker = context.start_worker(index, connections)?;
            inboxes.push(worker.inbox);
            threads.push(worker.thread);
            runtimes.push(worker.runtime);
            readies.push(worker.is_ready);
        }
        let control = Control {
            gateway: context.gateway,
            settings: context.settings,
            slots: context.slots,
            inboxes: inboxes.into(),
            retired: context.retired,
            status: context.status,
            stage,
            listening: Mutex::default(),
        };
        let is_probed = config.admin.is_some() || config.server.health.is_some();
        let (control, clients) = (Arc::new(control), context.clients);
        Ok((Self { control, threads, runtimes, clients, is_probed }, readies))
    }

    /// Shuts down within `timeouts.drain`. The only effect that clients see is that a connection is closed
    /// before the first byte of a response.
    pub(super) async fn drain(self) {
        let Control { slots, listening, stage, settings, .. } = &*self.control;
        let drain_timeout = settings.load().drain_timeout;
        let (end, notice) = (Instant::now() + drain_timeout, notice(drain_timeout));
        let all_gone = async |until| timeout_at(until, slots.all_free()).await;
        self.control.status.note_draining();
        tracing::info!("draining: waiting for requests in flight");
        if self.is_probed {
            sleep(notice).await;
        }
        stage.send_replace(Stage::NotListening);
        let mut listening = listening.lock().await;
        let acceptors = async { while listening.acceptors.join_next().await.is_some() {} };
        let _ = timeout_at(end - notice, acceptors).await;
        listening.acceptors.abort_all();
        let _ = all_gone(Instant::now() + notice).await;
        stage.send_replace(Stage::Closing);
        if all_gone(end - notice).await.is_err() {
            self.control.gateway.load().end_waits();
        }
        let _ = all_gone(end).await;
        let left = self.clients.requests_in_flight();
        if left > 0 {
            tracing::warn!("requests in flight cut off at the end of the drain: {left}");
        }
        stage.send_replace(Stage::Ending);
        // The threads are joined on a separate thread: a blocking task of the runtime would delay the end of
        // the process.
        let (ended, have_ended) = oneshot::channel::<()>();
        let threads = self.threads;
        thread::spawn(move || {
            // A worker that panicked needs no further cleanup.
            threads.into_iter().for_each(|worker| drop(worker.join()));
            drop(ended);
        });
        let _ = have_ended.await;
    }
}

/// Returns the time that each step of a drain gets: load balancers to notice that the gateway isn't ready,
/// idle clients to send one more request, and requests that waited for room to be answered.
fn notice(drain: Duration) -> Duration {
    (drain / 10).min(NOTICE_MOST)
}
