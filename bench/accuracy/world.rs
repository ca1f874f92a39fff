//! The servers of a case, and what befalls them.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use tollgate_limiter::Algorithm;

use super::{
    Arguments, Findings,
    cases::{Case, Harm, Place},
    clients,
    judge::{Arrival, judge},
    record::{Ledger, Record},
};
use crate::harness::{
    cut::{self, Cut},
    gateway::Gateway,
    redis::{Redis, cluster::Cluster, free_port, sentinel::Sentinels},
    wire::WireUpstream,
};

/// How long the upstream takes for a request, where it counts how many are in flight.
const SERVED_IN: Duration = Duration::from_millis(20);

/// Runs a case, and judges it.
pub(crate) fn run(case: &Case, arguments: &Arguments) -> Findings {
    eprintln!("{}", case.name);
    let (upstream, arrivals) = record_arrivals(case);
    let mut world = World::start(case, arguments.gateways, &upstream.url());
    let span = Duration::from_secs(arguments.seconds);
    let begun = Instant::now();
    let clients = clients::start(case, &world.addresses, arguments.clients, span);
    let wait_for =
        |tenths: u32| thread::sleep((begun + span * tenths / 10).saturating_duration_since(Instant::now()));
    wait_for(3);
    world.harm(case.harm);
    wait_for(5);
    world.end_harm(case.harm);
    let log = clients.join().unwrap();
    let ledger = Ledger::of(&world.records, case.limits[0].quota);
    let arrivals = arrivals.lock().unwrap();
    judge(case, arguments.gateways, &log, &arrivals, &ledger)
}

/// An upstream that notes what reaches it.
fn record_arrivals(case: &Case) -> (WireUpstream, Arc<Mutex<Vec<Arrival>>>) {
    let arrivals = Arc::<Mutex<Vec<Arrival>>>::default();
    let noted = arrivals.clone();
    let is_in_flight = case.limits.iter().any(|limit| limit.quota.algorithm == Algorithm::Concurrency);
    let upstream = WireUpstream::start(move |mut wire| {
        while let Some(head) = wire.request() {
            let at_us = clients::now_us();
            if is_in_flight {
                thread::sleep(SERVED_IN);
            }
            let id =
                head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("x-id: ")?.parse().ok());
            let (id, until_us) = (id.expect("the clients' requests have an id"), clients::now_us());
            noted.lock().unwrap().push(Arrival { id, at_us, until_us });
            wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
    });
    (upstream, arrivals)
}

enum Servers {
    One(Redis),
    Sentinels(Sentinels),
    Cluster(Cluster),
}

struct World {
    servers: Servers,
    cut: Option<Cut>,
    records: Vec<Record>,
    gateways: Vec<Gateway>,
    addresses: Vec<SocketAddr>,
    /// The first gateway's.
    toml: String,
}

impl World {
    fn start(case: &Case, gateways: u32, upstream_url: &str) -> Self {
        let (servers, url) = match case.store {
            Place::Server => {
                // It has its file when it is started again.
                let server = Redis::start_with(&["--appendonly", "yes", "--appendfsync", "no"]);
                let url = server.url();
                (Servers::One(server), url)
            }
            Place::Sentinels => {
                let sentinels = Sentinels::start();
                let url = sentinels.url();
                (Servers::Sentinels(sentinels), url)
            }
            Place::Cluster => {
                let cluster = Cluster::start();
                let url = cluster.url();
                (Servers::Cluster(cluster), url)
            }
        };
        let records = match &servers {
            Servers::One(server) => vec![Record::of(server)],
            Servers::Sentinels(sentinels) => sentinels.servers.iter().map(Record::of).collect(),
            Servers::Cluster(cluster) => cluster.nodes.iter().map(Record::of).collect(),
        };
        let (cut, are_behind) = match (&servers, case.harm) {
            (Servers::One(server), Harm::Cut { gateways, .. }) => {
                (Some(Cut::before(server.port())), gateways)
            }
            _ => (None, 0),
        };
        let url_of = |gateway: usize| match &cut {
            Some(cut) if gateway < are_behind => format!("redis://127.0.0.1:{}", cut.port()),
            _ => url.clone(),
        };
        let toml_of = |gateway: usize| case.toml(&url_of(gateway), gateways, upstream_url);
        let address = |_| SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let addresses: Vec<SocketAddr> = (0..gateways).map(address).collect();
        let gateways =
            addresses.iter().enumerate().map(|(gateway, address)| start(&toml_of(gateway), *address));
        let (gateways, toml) = (gateways.collect(), toml_of(0));
        Self { servers, cut, records, gateways, addresses, toml }
    }

    fn harm(&mut self, harm: Harm) {
        match (harm, &mut self.servers) {
            (Harm::None, _) => {}
            (Harm::Restart, Servers::One(server)) => server.kill(),
            (Harm::RestartEmpty, Servers::One(server)) => {
                server.kill();
                fs::remove_dir_all(server.folder().join("appendonlydir")).unwrap();
                server.restart();
                self.records.push(Record::of(server));
            }
            (Harm::Pause, Servers::One(server)) => server.pause(),
            (Harm::Cut { fault, .. }, _) => self.cut.as_ref().unwrap().set(fault),
            (Harm::FailOver, Servers::Sentinels(sentinels)) => sentinels.fail_over(),
            (Harm::KillPrimary, Servers::Sentinels(sentinels)) => sentinels.servers[0].kill(),
            (Harm::KillPrimary, Servers::Cluster(cluster)) => {
                let owner = cluster.owner("{header:x-key=k0}");
                cluster.nodes[owner].kill();
            }
            (Harm::RestartGateway, _) => drop(self.gateways.remove(0)),
            (harm, _) => panic!("{harm:?} can't befall these servers"),
        }
    }

    fn end_harm(&mut self, harm: Harm) {
        match (harm, &mut self.servers) {
            (Harm::Restart, Servers::One(server)) => server.restart(),
            (Harm::Pause, Servers::One(server)) => server.resume(),
            (Harm::Cut { .. }, _) => self.cut.as_ref().unwrap().set(cut::Fault::None),
            (Harm::RestartGateway, _) => self.gateways.insert(0, start(&self.toml, self.addresses[0])),
            _ => {}
        }
    }
}

fn start(toml: &str, address: SocketAddr) -> Gateway {
    Gateway::start_with(toml, &["run", "--listen", &address.to_string()], &[])
}
