//! A primary and a replica, watched by three Sentinels.

use std::{
    fs,
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;

use super::{Redis, free_port};
use crate::harness::{resp::Connection, wait_until};

/// The Sentinels' name for the primary.
pub(crate) const SERVICE: &str = "main";

/// Sentinels that agree on a primary. Dropping it kills all servers.
pub(crate) struct Sentinels {
    sentinels: Vec<Sentinel>,
    /// The primary at the start, and the replica.
    pub(crate) servers: [Redis; 2],
}

/// A Sentinel. Dropping it kills it.
pub(crate) struct Sentinel {
    process: Child,
    port: u16,
    _folder: TempDir,
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Sentinels {
    pub(crate) fn start() -> Self {
        let quick = ["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"];
        let primary = Redis::start_with(&quick);
        let follow = ["--replicaof", &format!("127.0.0.1 {}", primary.port())];
        let replica = Redis::start_with(&[&quick[..], &follow[..]].concat());
        wait_until("the replica follows", || replica.info("master_link_status") == "up");
        let sentinels = (0..3).map(|_| Sentinel::start(primary.port())).collect();
        let set = Self { sentinels, servers: [primary, replica] };
        wait_until("the Sentinels know each other and the replica", || {
            set.sentinels.iter().all(|sentinel| {
                sentinel.of_service("num-other-sentinels") == "2" && sentinel.of_service("num-slaves") == "1"
            })
        });
        set
    }

    /// Returns a URL with two Sentinels.
    pub(crate) fn url(&self) -> String {
        let [first, second] = [0, 1].map(|at| self.sentinels[at].port);
        format!("redis-sentinel://127.0.0.1:{first}?node=127.0.0.1:{second}&service={SERVICE}")
    }

    /// Returns the port of the first Sentinel.
    pub(crate) fn port(&self) -> u16 {
        self.sentinels[0].port
    }

    /// Runs a command on each Sentinel.
    pub(crate) fn command(&self, words: &[&str]) {
        for sentinel in &self.sentinels {
            Connection::connect(sentinel.port).command(words);
        }
    }

    /// Returns the port of the primary, as the Sentinels name it.
    pub(crate) fn primary(&self) -> u16 {
        self.sentinels[0].of_service("port").parse().unwrap()
    }

    /// Promotes the replica while both servers are healthy.
    pub(crate) fn fail_over(&self) {
        let before = self.primary();
        let mut sentinel = Connection::connect(self.sentinels[0].port);
        wait_until("the replica is the primary", || {
            let is_failing_over = self.sentinels[0].of_service("flags").contains("failover_in_progress");
            if self.primary() != before {
                return true;
            }
            // On a busy machine the Sentinel may take the replica for dead, and give up.
            if !is_failing_over {
                sentinel.command(&["SENTINEL", "FAILOVER", SERVICE]);
            }
            false
        });
    }
}

impl Sentinel {
    /// Starts a Sentinel that watches the server on this port.
    pub(crate) fn start(primary: u16) -> Self {
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let path = folder.path().join("sentinel.conf");
        let lines = [
            format!("port {port}"),
            "bind 127.0.0.1".to_owned(),
            format!("dir {}", folder.path().display()),
            format!("sentinel monitor {SERVICE} 127.0.0.1 {primary} 2"),
            format!("sentinel down-after-milliseconds {SERVICE} 500"),
            format!("sentinel failover-timeout {SERVICE} 3000"),
        ];
        fs::write(&path, lines.join("\n") + "\n").unwrap();
        let process = Command::new("redis-server")
            .arg(&path)
            .arg("--sentinel")
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is needed: scripts/test.sh installs it");
        let sentinel = Self { process, port, _folder: folder };
        wait_until("the Sentinel answers", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        sentinel
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Returns its list of clients.
    pub(crate) fn clients(&self) -> String {
        Connection::connect(self.port).command(&["CLIENT", "LIST"]).text().to_owned()
    }

    /// Returns a field of the Sentinel's state of the service.
    fn of_service(&self, field: &str) -> String {
        let answer = Connection::connect(self.port).command(&["SENTINEL", "MASTER", SERVICE]);
        let fields = answer.list().chunks(2).find(|pair| pair[0].text() == field);
        fields.map(|pair| pair[1].text().to_owned()).unwrap_or_default()
    }
}
