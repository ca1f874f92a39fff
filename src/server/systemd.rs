//! Messages to the supervisor (sd_notify(3)). Without NOTIFY_SOCKET, none is sent.

use sd_notify::NotifyState::{self, Ready, Reloading, Stopping, Watchdog};
use tokio::{runtime::Handle, time::interval};

/// Reports that the server listens and all workers run.
pub(super) fn ready() {
    notify(&[Ready]);
}

/// Reports that the configuration is being reloaded. Ends with [`ready`].
pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[Reloading, now]),
        Err(error) => tracing::warn!("can't notify the supervisor of the reload: {error}"),
    }
}

/// Reports that the server drains.
pub(super) fn stopping() {
    notify(&[Stopping]);
}

/// Reports at intervals that all workers respond, if the supervisor asks for that (WATCHDOG_USEC).
pub(super) async fn watchdog(workers: Vec<Handle>) {
    let Some(within) = sd_notify::watchdog_enabled().filter(|within| !within.is_zero()) else { return };
    let mut due = interval(within / 2);
    loop {
        due.tick().await;
        for worker in &workers {
            if worker.spawn(async {}).await.is_err() {
                return;
            }
        }
        notify(&[Watchdog]);
    }
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("can't notify the supervisor: {error}");
    }
}
