//! Listens to Sentinels, so that a switch of the primary takes effect at once.
//!
//! The client notices one by itself only when the old primary closes its connections or refuses to write. In a
//! planned failover that takes Sentinel some ten seconds, in which the old primary would count for nobody.

use std::{sync::Weak, time::Duration};

use bytes::Bytes;
use fred::types::config::{Config, Server, ServerConfig};
use tokio::{sync::mpsc, time::sleep};

use super::{channel, node::Link};

/// The message by which Sentinels announce a new primary. After it come the service and the addresses of the old and the new one.
const SWITCHED: &str = "+switch-master";
/// Attempts to reach a new primary, each of which may last for the client's timeout.
const ATTEMPTS: usize = 20;
const RECONNECT_EVERY: Duration = Duration::from_millis(200);

/// Heeds any of the Sentinels of a link for as long as there is one.
pub(super) async fn watch(link: Weak<Link>) {
    while let Some(config) = link.upgrade().map(|link| link.config()) {
        let ServerConfig::Sentinel { hosts, service_name, username, password } = &config.server else {
            return;
        };
        let Some(sentinel) = fastrand::choice(hosts).cloned() else { return };
        let to_sentinel = Config {
            server: ServerConfig::Centralized { server: sentinel.clone() },
            username: username.clone(),
            password: password.clone(),
            database: None,
            ..config.as_ref().clone()
        };
        let (sender, mut said) = mpsc::channel::<Bytes>(1);
        let heed = async {
            while let Some(message) = said.recv().await {
                let text = String::from_utf8_lossy(&message);
                if text.split(' ').next() == Some(service_name) {
                    tracing::info!("the store's Sentinels have switched to another primary: {text}");
                    follow(&link, sentinel.clone());
                }
            }
        };
        tokio::select! {
            () = channel::listen(SWITCHED, &to_sentinel, &sender) => {}
            () = heed => {}
        }
        sleep(RECONNECT_EVERY).await;
    }
}

/// Connects all threads to the primary that this Sentinel names: others may not know it yet.
fn follow(link: &Weak<Link>, sentinel: Server) {
    let Some(link) = link.upgrade() else { return };
    let mut config = link.config().as_ref().clone();
    if let ServerConfig::Sentinel { hosts, .. } = &mut config.server {
        *hosts = vec![sentinel];
    }
    for batcher in link.batchers() {
        let config = config.clone();
        batcher.runtime.clone().spawn(async move {
            // The old primary may be as well as the new one, and would go on counting.
            for _ in 0..ATTEMPTS {
                if batcher.go_over_to(&config).await {
                    return;
                }
            }
        });
    }
}
