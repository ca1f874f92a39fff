//! Listens to Sentinels, so that a switch of the primary takes effect at once.
//!
//! The client notices one by itself only when the old primary closes its connections or refuses to write. In a
//! planned failover that takes Sentinel some ten seconds, in which the old primary would count for nobody.
//!
//! A Sentinel may hang, and a message may come while nobody listens, so the Sentinel is also asked now and then. And a Sentinel that is
//! cut off from the others may go on naming an old primary, so each of them is heeded in turn.

use std::{collections::BTreeSet, sync::Weak, time::Duration};

use bytes::Bytes;
use fred::types::{
    Value,
    config::{Config, Server, ServerConfig},
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout},
};

use super::{
    StoreError,
    channel::{self, RECONNECT_EVERY},
    connection::{CONNECT_TIMEOUT, Connection, failure},
    node::SharedNode,
};

/// The message by which Sentinels announce a new primary. After it come the service and the addresses of the old and the new one.
const SWITCHED: &str = "+switch-master";
/// The time between questions to a Sentinel, for which a switch may go unnoticed if no message tells of it.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// The time for which a Sentinel is heeded, if there are others.
const HEEDED_FOR: Duration = Duration::from_secs(5);
/// A thread's attempts to reach a new primary. One that fails lasts [`CONNECT_TIMEOUT`] at most.
const ATTEMPTS: usize = 20;

/// A primary as a Sentinel names it.
struct Primary {
    /// Grows with each failover. A Sentinel that has missed one has an older epoch.
    epoch: u64,
    /// The host and the port, as in messages.
    address: String,
}

impl Primary {
    /// Reads the answer to SENTINEL MASTER, in which each name is followed by its value.
    fn read(answer: &[Value]) -> Option<Self> {
        let field = |name| {
            let pair = answer.chunks_exact(2).find(|pair| pair[0].as_str().as_deref() == Some(name))?;
            pair[1].as_string()
        };
        let address = format!("{} {}", field("ip")?, field("port")?);
        Some(Self { epoch: field("config-epoch")?.parse().ok()?, address })
    }
}

/// Heeds one of the Sentinels of a node at a time, in turn, for as long as there is a node.
pub(super) async fn watch(shared: Weak<SharedNode>) {
    let (mut opinions, mut turn) = (Opinions::default(), fastrand::u16(..) as usize);
    while let Some(config) = shared.upgrade().map(|shared| shared.config()) {
        let Some(sentinel) = Sentinel::in_turn(&config, turn) else { return };
        turn += 1;
        let (sender, said) = mpsc::channel::<Bytes>(1);
        // Who has no right to listen still asks. If the Sentinel is gone, asking fails.
        let listening = async {
            loop {
                channel::listen(SWITCHED, &sentinel.config, &sender).await;
                sleep(HEEDED_FOR).await;
            }
        };
        tokio::select! {
            () = listening => {}
            () = sentinel.heed(&shared, said, &mut opinions) => {}
        }
        sleep(RECONNECT_EVERY).await;
    }
}

/// One of the Sentinels of a node.
struct Sentinel {
    server: Server,
    /// The settings of a connection to it.
    config: Config,
    /// The name of the primary with its replicas.
    service: String,
    /// The place among the Sentinels.
    place: usize,
    /// The number of Sentinels.
    count: usize,
}

impl Sentinel {
    /// Returns the one whose turn it is. `None` if a node has no Sentinels.
    fn in_turn(config: &Config, turn: usize) -> Option<Self> {
        let ServerConfig::Sentinel { hosts, service_name, username, password } = &config.server else {
            return None;
        };
        let place = turn % hosts.len().max(1);
        let server = hosts.get(place)?.clone();
        let config = Config {
            server: ServerConfig::Centralized { server: server.clone() },
            username: username.clone(),
            password: password.clone(),
            database: None,
            ..config.clone()
        };
        Some(Self { server, config, service: service_name.clone(), place, count: hosts.len() })
    }

    /// Asks for the primary, and hears what is said of it, until it is another one's turn or this one is gone.
    async fn heed(
        &self,
        shared: &Weak<SharedNode>,
        mut said: mpsc::Receiver<Bytes>,
        opinions: &mut Opinions,
    ) {
        let mut connection = Connection::once(&self.config);
        if connection.made().await.is_err() {
            return;
        }
        let since = Instant::now();
        let mut is_first = true;
        while shared.strong_count() > 0
            && !(self.count > 1 && since.elapsed() >= HEEDED_FOR)
            && let Ok(named) = ask(&connection, &self.service).await
        {
            if let Some(named) = named {
                let address = named.address.clone();
                let is_new = opinions.note(named, self.place, self.count);
                if is_new == Some(true) || is_new.is_some() && is_first && is_elsewhere(shared, &address) {
                    tracing::info!("the store's Sentinels name another primary: {address}");
                    follow(shared, &self.server);
                }
            }
            is_first = false;
            let Ok(Some(message)) = timeout(ASK_EVERY, said.recv()).await else { continue };
            let announced = String::from_utf8_lossy(&message);
            if let Some(address) = switched_to(&announced, &self.service) {
                tracing::info!("the store's Sentinels have switched to another primary: {announced}");
                opinions.note_switch(address);
                follow(shared, &self.server);
            }
        }
    }
}

/// Returns the address of the new primary that a Sentinel announces, after the service and the old address, if it is about this
/// service.
fn switched_to<'a>(announced: &'a str, service: &str) -> Option<&'a str> {
    let (name, addresses) = announced.split_once(' ')?;
    addresses.splitn(3, ' ').nth(2).filter(|_| name == service)
}

/// Asks a Sentinel for the primary. `None` if it doesn't say, which its user may have no right to ask.
///
/// # Errors
/// It doesn't answer, so it may announce nothing either.
async fn ask(connection: &Connection, service: &str) -> Result<Option<Primary>, StoreError> {
    let words = vec!["MASTER".into(), service.into()];
    match connection.command("SENTINEL", words, CONNECT_TIMEOUT).await.map_err(failure) {
        Ok(Value::Array(fields)) => Ok(Primary::read(&fields)),
        Ok(_) | Err(StoreError::Answer(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The primary that a node's Sentinels name, as far as they agree.
#[derive(Default)]
struct Opinions {
    /// The primary that is believed in.
    known: Option<Primary>,
    /// The Sentinels that have named another one since the last that named this one, by their places.
    against: BTreeSet<usize>,
}

impl Opinions {
    /// Notes the primary that a Sentinel names. Another one is believed in if it comes from a later failover, or if more than half of
    /// the Sentinels name another: the epochs of those that were set up again begin at 0. Returns whether it is another one than
    /// before, or `None` if this Sentinel isn't believed.
    fn note(&mut self, named: Primary, sentinel: usize, sentinels: usize) -> Option<bool> {
        let Some(known) = &mut self.known else {
            self.known = Some(named);
            return Some(false);
        };
        let is_another = named.address != known.address;
        if is_another && named.epoch <= known.epoch {
            self.against.insert(sentinel);
            if self.against.len() * 2 <= sentinels {
                return None;
            }
        }
        // One that is yet to be set up again has the old epoch.
        *known = Primary { epoch: named.epoch.max(known.epoch), ..named };
        self.against.clear();
        Some(is_another)
    }

    /// Notes the address of a primary that has taken over.
    fn note_switch(&mut self, address: &str) {
        if let Some(known) = &mut self.known {
            known.address = address.to_owned();
        }
        self.against.clear();
    }
}

/// Returns true if a thread is connected to another server than this one.
fn is_elsewhere(shared: &Weak<SharedNode>, address: &str) -> bool {
    let Some(shared) = shared.upgrade() else { return false };
    let mut servers = shared.batchers().into_iter().filter_map(|batcher| batcher.server());
    servers.any(|server| format!("{} {}", server.host, server.port) != address)
}

/// Connects all threads to the primary that this Sentinel names: others may not know it yet.
fn follow(shared: &Weak<SharedNode>, sentinel: &Server) {
    let Some(shared) = shared.upgrade() else { return };
    for batcher in shared.batchers() {
        let sentinel = sentinel.clone();
        batcher.runtime.clone().spawn(async move {
            // The old primary may be as well as the new one, and would go on counting.
            for _ in 0..ATTEMPTS {
                // The login may change meanwhile.
                let mut config = batcher.shared.config().as_ref().clone();
                if let ServerConfig::Sentinel { hosts, .. } = &mut config.server {
                    *hosts = vec![sentinel.clone()];
                }
                if batcher.go_over_to(&config).await {
                    return;
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentinel_that_has_missed_a_failover_is_not_followed() {
        let mut opinions = Opinions::default();
        let mut named = |sentinel, epoch, address: &str| {
            opinions.note(Primary { epoch, address: address.to_owned() }, sentinel, 3)
        };
        assert_eq!([named(0, 1, "a 1"), named(0, 1, "a 1")], [Some(false); 2]);
        assert_eq!([named(0, 2, "b 1"), named(1, 1, "a 1"), named(1, 1, "a 1")], [Some(true), None, None]);
        assert_eq!([named(2, 2, "b 1"), named(0, 3, "a 1")], [Some(false), Some(true)]);
        // One of another opinion isn't believed, however often it is asked.
        for _ in 0..3 {
            assert_eq!(
                [named(0, 3, "b 1"), named(1, 3, "a 1"), named(2, 3, "a 1")],
                [None, Some(false), Some(false)]
            );
        }
        // Two of three are, though their epochs begin at 0 again.
        assert_eq!(
            [named(0, 0, "c 1"), named(1, 0, "c 1"), named(2, 0, "c 1")],
            [None, Some(true), Some(false)]
        );
        assert_eq!(
            [named(2, 3, "a 1"), named(0, 1, "c 1"), named(2, 4, "a 1")],
            [None, Some(false), Some(true)]
        );
    }
}
