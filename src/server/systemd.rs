//! What a supervisor is told (sd_notify(3)). Without NOTIFY_SOCKET nobody is told anything.

use sd_notify::NotifyState::{self, Ready, Reloading, Stopping, Watchdog};
use tokio::{runtime::Handle, time::interval};

/// All listen, and all workers run.
pub(super) fn ready() {
    tell(&[Ready]);
}

/// The configuration is being read again, until it is [`ready`].
pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[Reloading, now]),
        Err(error) => tracing::warn!("can't tell the supervisor of the reload: {error}"),
    }
}

/// It drains.
pub(super) fn stopping() {
    tell(&[Stopping]);
}

/// Tells that all is well for as long as every worker turns, if the supervisor wants that (WATCHDOG_USEC).
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
        tell(&[Watchdog]);
    }
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("can't tell the supervisor: {error}");
    }
}
