//! Decisions that count once the replicas have them.
//!
//! In a planned failover Sentinel promotes the replica, and names it about a second later. What the old primary
//! decides meanwhile is lost. Its replica has left it by then, so a primary that has lost a replica may be one that
//! has been replaced: its decisions don't count until the replica is back, another primary is named, or so much time
//! has passed that the replica must have failed by itself.

use std::collections::HashMap;

use fred::{
    error::{Error, ErrorKind},
    types::{CustomCommand, Value, config::Server},
};
use parking_lot::Mutex;
use tokio::time::{Duration, Instant};

use super::{
    call::Answered,
    connection::{Connection, SHORTEST_WAIT},
};

/// A replica that has been away for so long has failed. Sentinel looks for what it has promoted once a second.
const GONE_AFTER: Duration = Duration::from_secs(5);
/// Servers whose replicas are known. There are more only if the primary has moved as often.
const SERVERS_MOST: usize = 16;

/// The replicas of the servers that were primaries.
#[derive(Default)]
pub(super) struct Replicas(Mutex<HashMap<Server, ReplicaCount>>);

/// The replicas of one server.
#[derive(Default)]
struct ReplicaCount {
    /// The number of replicas that must have a decision.
    expected: usize,
    /// The time since when there have been fewer.
    fewer_since: Option<Instant>,
}

impl Replicas {
    /// Runs a command that writes, and waits until the replicas have what it wrote, or may not have it.
    ///
    /// # Errors
    /// There is no answer to the command.
    pub(super) async fn send(
        &self,
        connection: &Connection,
        command: CustomCommand,
        arguments: Vec<Value>,
        wait: Duration,
    ) -> Result<Answered, Error> {
        // The server tells how many replicas have it before the client gives up.
        let patience_ms = (wait * 4 / 5).max(SHORTEST_WAIT).as_millis() as i64;
        let wait_for = |replicas: usize| {
            connection.command("WAIT", vec![(replicas as i64).into(), patience_ms.into()], wait)
        };
        let Some(server) = connection.server() else {
            return connection.send(command, arguments, wait).await.map(|answer| (answer, None));
        };
        let known = self.expected(&server);
        // One behind the other, in one go. Without a replica, WAIT may be answered too late, and what is behind it, too.
        let (answer, role, have) = tokio::join!(
            biased;
            connection.send(command, arguments, wait),
            connection.command("ROLE", Vec::new(), wait),
            wait_for(known),
        );
        let confirmed = async {
            let expected = self.note(server, connected(&role?), Instant::now());
            let mut have = have?;
            if expected > known {
                have = wait_for(expected).await?;
            }
            match have.as_usize() {
                Some(have) if have >= expected => Ok(()),
                _ => Err(Error::new(ErrorKind::Timeout, "the replicas don't have it")),
            }
        };
        Ok((answer?, confirmed.await.err()))
    }

    fn expected(&self, server: &Server) -> usize {
        self.0.lock().get(server).map_or(0, |known| known.expected)
    }

    /// Notes how many replicas a server has. Returns how many must have a decision.
    fn note(&self, server: Server, connected: usize, now: Instant) -> usize {
        let mut servers = self.0.lock();
        if servers.len() >= SERVERS_MOST && !servers.contains_key(&server) {
            servers.clear();
        }
        let name = server.to_string();
        let known = servers.entry(server).or_default();
        if connected >= known.expected {
            *known = ReplicaCount { expected: connected, fewer_since: None };
            return connected;
        }
        if known.fewer_since.is_none() {
            tracing::warn!(server = name, "the store has lost a replica: each limit's on_failure applies");
        }
        if now - *known.fewer_since.get_or_insert(now) >= GONE_AFTER {
            tracing::warn!(server = name, replicas = connected, "the store continues without a replica");
            *known = ReplicaCount { expected: connected, fewer_since: None };
        }
        known.expected
    }
}

/// Returns how many replicas a server says that it has (`ROLE`).
fn connected(role: &Value) -> usize {
    match role {
        Value::Array(fields) => match &fields[..] {
            [_, _, Value::Array(replicas)] => replicas.len(),
            _ => 0,
        },
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_that_has_gone_is_waited_for_until_it_must_have_failed() {
        let (replicas, begin) = (Replicas::default(), Instant::now());
        let server = || Server::new("a", 6379);
        let note = |connected, after| replicas.note(server(), connected, begin + after);
        assert_eq!([note(0, Duration::ZERO), note(2, Duration::ZERO)], [0, 2]);
        assert_eq!([note(1, Duration::ZERO), note(1, GONE_AFTER / 2)], [2, 2]);
        // It was back in between.
        assert_eq!([note(2, GONE_AFTER / 2), note(1, GONE_AFTER)], [2, 2]);
        assert_eq!(note(1, GONE_AFTER * 2), 1);
        assert_eq!(replicas.expected(&server()), 1);
        assert_eq!(replicas.expected(&Server::new("b", 6379)), 0);
    }

    #[test]
    fn a_server_tells_its_replicas() {
        let replica = || Value::Array(vec!["127.0.0.1".into(), "6380".into(), "14".into()]);
        let role = Value::Array(vec!["master".into(), 14.into(), Value::Array(vec![replica(), replica()])]);
        assert_eq!(connected(&role), 2);
        let role = Value::Array(vec!["slave".into(), "a".into(), 6379.into(), "connected".into(), 14.into()]);
        assert_eq!(connected(&role), 0);
    }
}
