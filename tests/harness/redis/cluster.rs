//! A Redis Cluster of three primaries, each with a replica.

use std::{
    ops::RangeInclusive,
    time::{Duration, Instant},
};

use super::{Redis, free_port, tls::Certificates};
use crate::harness::wait_until;

const PRIMARIES: usize = 3;
const SLOTS: u16 = 16_384;

/// A cluster that serves all slots. Dropping it kills its servers.
pub(crate) struct Cluster {
    /// The primaries at the start, in the order of their slots, and then their replicas.
    pub(crate) nodes: Vec<Redis>,
    ids: Vec<String>,
    /// The ports by which the servers know each other: with TLS, or without.
    ports: Vec<u16>,
}

impl Cluster {
    pub(crate) fn start() -> Self {
        Self::start_with(None)
    }

    /// Starts a cluster with TLS.
    pub(crate) fn with_tls(files: &Certificates) -> Self {
        Self::start_with(Some(files))
    }

    fn start_with(files: Option<&Certificates>) -> Self {
        let mut ports = Vec::new();
        let start = |_| {
            let bus = free_port().to_string();
            let usual = [
                "--cluster-enabled",
                "yes",
                "--cluster-port",
                &bus,
                "--cluster-node-timeout",
                "1000",
                "--cluster-replica-validity-factor",
                "0",
                // Else all of it is down while one primary is.
                "--cluster-require-full-coverage",
                "no",
                "--repl-diskless-sync-delay",
                "0",
                "--repl-ping-replica-period",
                "1",
            ];
            let Some(files) = files else {
                let node = Redis::start_with(&usual);
                ports.push(node.port());
                return node;
            };
            let among_them = ["--tls-cluster", "yes", "--tls-replication", "yes"];
            let (node, port) = files.start("no", &[&usual[..], &among_them[..]].concat());
            ports.push(port);
            node
        };
        let nodes: Vec<Redis> = (0..2 * PRIMARIES).map(start).collect();
        let ids = nodes.iter().map(|node| node.command(&["CLUSTER", "MYID"])).collect();
        let cluster = Self { nodes, ids, ports };
        cluster.join();
        cluster
    }

    /// Makes the servers a cluster.
    fn join(&self) {
        for (at, node) in self.nodes.iter().enumerate() {
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()]);
        }
        for (at, node) in self.nodes[..PRIMARIES].iter().enumerate() {
            let slots = Self::slots(at);
            let (first, last) = (slots.start().to_string(), slots.end().to_string());
            node.command(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
        }
        let all = (2 * PRIMARIES).to_string();
        let knows_all = |node: &Redis| cluster_info(node, "cluster_known_nodes") == all;
        self.meet();
        let mut met = Instant::now();
        wait_until("all know each other", || {
            // A server forgets another one that hasn't answered within a second, as on a busy machine.
            if met.elapsed() > Duration::from_secs(5) {
                self.meet();
                met = Instant::now();
            }
            self.nodes.iter().all(knows_all)
        });
        for (at, node) in self.nodes[PRIMARIES..].iter().enumerate() {
            node.command(&["CLUSTER", "REPLICATE", &self.ids[at]]);
        }
        wait_until("all slots are served, with replicas", || {
            let knows_all = |node: &Redis| {
                let slots = node.command(&["CLUSTER", "SLOTS"]);
                let knows = |id: &String| slots.contains(id.as_str());
                cluster_info(node, "cluster_state") == "ok" && self.ids.iter().all(knows)
            };
            let follows = |node: &Redis| node.info("master_link_status") == "up";
            self.nodes.iter().all(knows_all) && self.nodes[PRIMARIES..].iter().all(follows)
        });
    }

    /// Has the first server meet the others.
    fn meet(&self) {
        for (node, port) in self.nodes.iter().zip(&self.ports).skip(1) {
            let bus = node.command(&["CONFIG", "GET", "cluster-port"]);
            let bus = bus.lines().last().unwrap().to_owned();
            self.nodes[0].command(&["CLUSTER", "MEET", "127.0.0.1", &port.to_string(), &bus]);
        }
    }

    /// Returns the slots that a primary has at the start.
    pub(crate) fn slots(primary: usize) -> RangeInclusive<u16> {
        let first = |at: usize| (at * usize::from(SLOTS) / PRIMARIES) as u16;
        first(primary)..=first(primary + 1) - 1
    }

    /// Returns the primary that has the slot of this key at the start.
    pub(crate) fn owner(&self, key: &str) -> usize {
        let slot = self.slot(key);
        (0..PRIMARIES).find(|primary| Self::slots(*primary).contains(&slot)).unwrap()
    }

    pub(crate) fn slot(&self, key: &str) -> u16 {
        fred::util::redis_keyslot(key.as_bytes())
    }

    /// Returns a URL with the first and the last primary.
    pub(crate) fn url(&self) -> String {
        let [first, last] = [0, PRIMARIES - 1].map(|at| self.ports[at]);
        format!("redis-cluster://127.0.0.1:{first}?node=127.0.0.1:{last}")
    }

    /// Begins to move a slot from a primary to another one.
    pub(crate) fn begin_to_move(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        self.nodes[to].command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &self.ids[from]]);
        self.nodes[from].command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &self.ids[to]]);
    }

    /// Moves a key of a slot that is being moved.
    pub(crate) fn migrate(&self, key: &str, from: usize, to: usize) {
        let port = self.nodes[to].port().to_string();
        let answer = self.nodes[from].command(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
        assert_eq!(answer, "OK", "{key}");
    }

    /// Ends the move of a slot.
    pub(crate) fn end_move(&self, slot: u16, to: usize) {
        for node in [to].into_iter().chain((0..PRIMARIES).filter(|node| *node != to)) {
            self.nodes[node].command(&["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &self.ids[to]]);
        }
    }
}

fn cluster_info(node: &Redis, field: &str) -> String {
    let info = node.command(&["CLUSTER", "INFO"]);
    let line = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_default().trim_end().to_owned()
}
