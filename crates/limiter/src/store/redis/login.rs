//! New users and passwords for a store that runs: it connects again with them, and keeps its counts.
//!
//! A connection that is up stays in use until another one is made with the new login, so no request meets a gap. A
//! server may get the new password after the gateway, so this is tried for as long as it takes.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use fred::types::config::{Config, ServerConfig};
use tokio::time::sleep;

use super::{
    RedisStore, StoreError, Topology,
    batcher::Batcher,
    cluster::Cluster,
    connection::Connection,
    node::SharedNode,
    url::{RedisServers, RedisUrl},
};

/// The time between attempts with a login that the server rejects.
const TRY_EVERY: Duration = Duration::from_secs(1);

impl RedisUrl {
    /// Returns true if two URLs lead to the same database of the same servers, whatever their users and passwords.
    pub(crate) fn is_same_place(&self, other: &Self) -> bool {
        let are_same_servers = match (&self.servers, &other.servers) {
            (
                RedisServers::Sentinel { sentinels, service, .. },
                RedisServers::Sentinel { sentinels: others, service: other, .. },
            ) => sentinels == others && service == other,
            (servers, others) => servers == others,
        };
        are_same_servers && self.tls == other.tls && self.database == other.database
    }

    /// Returns the settings of a connection with the users and passwords of this URL.
    fn logged_in(&self, config: &Config) -> Config {
        let mut config = config.clone();
        config.username.clone_from(&self.login.user);
        config.password.clone_from(&self.login.password);
        if let (ServerConfig::Sentinel { username, password, .. }, RedisServers::Sentinel { login, .. }) =
            (&mut config.server, &self.servers)
        {
            username.clone_from(&login.user);
            password.clone_from(&login.password);
        }
        config
    }
}

impl RedisStore {
    /// Uses the users and passwords of this URL from now on, if it leads to the same place as the store's.
    pub(crate) fn log_in(&self, url: &RedisUrl) {
        if !url.is_same_place(&self.url) {
            return;
        }
        match &self.topology {
            Topology::One(node) => node.shared.log_in(url),
            Topology::Cluster(cluster) => cluster.log_in(url),
        }
    }
}

impl Cluster {
    fn log_in(&self, url: &RedisUrl) {
        let mut access = self.access().as_ref().clone();
        access.base = url.logged_in(&access.base);
        // Nodes that are discovered from here on have it, and those before are among these.
        self.set_access(access);
        for shared in self.shared_nodes() {
            shared.log_in(url);
        }
    }
}

impl SharedNode {
    fn log_in(&self, url: &RedisUrl) {
        self.set_config(url.logged_in(&self.config()));
        for batcher in self.batchers() {
            let config = self.config();
            batcher.runtime.clone().spawn(go_over(Arc::downgrade(&batcher), config));
        }
    }
}

/// Replaces a connection by one with this login, as soon as the server accepts that, unless there is a newer login.
async fn go_over(batcher: Weak<Batcher>, config: Arc<Config>) {
    while let Some(batcher) = batcher.upgrade() {
        if !Arc::ptr_eq(&config, &batcher.shared.config()) {
            return;
        }
        // A connection that is kept would try a rejected login many times a second.
        match Connection::once(&config).made().await {
            Ok(()) if batcher.go_over_to(&config).await => return,
            Err(StoreError::Connection(error) | StoreError::Answer(error)) => {
                batcher.shared.trouble.say_error(&error);
            }
            Ok(()) | Err(_) => {}
        }
        drop(batcher);
        sleep(TRY_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_with_other_logins_lead_to_the_same_place() {
        let parse = |text: &str| RedisUrl::parse(text).unwrap();
        for (one, other, is_same) in [
            ("redis://a:b@h/1", "redis://c:d@h/1", true),
            ("redis://a:b@h/1", "redis://a:b@h/2", false),
            ("redis://h", "rediss://h", false),
            ("redis://:a@h:1", "redis://:a@h:2", false),
            ("redis-cluster://:a@h?node=i", "redis-cluster://h?node=i", true),
            (
                "redis-sentinel://:a@h?service=m&sentinelPassword=b",
                "redis-sentinel://:a@h?service=m&sentinelPassword=c",
                true,
            ),
            ("redis-sentinel://h?service=m", "redis-sentinel://h?service=n", false),
        ] {
            assert_eq!(parse(one).is_same_place(&parse(other)), is_same, "{one} {other}");
        }
    }
}
