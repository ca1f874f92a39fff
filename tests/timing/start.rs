//! A gateway that starts without its store serves at once.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use crate::{
    harness::{
        client::Client,
        gateway::Gateway,
        redis::{Redis, free_port},
        wait_until,
    },
    median,
};

/// The store's deadline of 50 ms, and as much again.
const ANSWERED_WITHIN: Duration = Duration::from_millis(100);
/// Without the store's deadline.
const AT_ONCE: Duration = Duration::from_millis(25);
const TRIES: usize = 5;

/// Starts a gateway with this store, and returns how long the responses of its first second took, and the statuses.
fn first_second(store_url: &str) -> Vec<(Duration, u16)> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let toml = format!(
        "[server]\nworkers = 2\n[store]\nurl = \"{store_url}\"\n\
         [limits.l]\nkey = \"global\"\nrate = \"1000000/h\"\non_failure = \"allow\"\n\
         [[routes]]\npath = \"/\"\nrespond = {{ status = 200 }}\nlimits = [\"l\"]\n"
    );
    thread::scope(|scope| {
        let gateway =
            scope.spawn(|| Gateway::start_with(&toml, &["run", "--listen", &address.to_string()], &[]));
        let mut seen = Vec::new();
        wait_until("it listens", || TcpStream::connect(address).is_ok());
        let until = Instant::now() + Duration::from_secs(1);
        while Instant::now() < until {
            let since = Instant::now();
            let status = Client::connect(address).get("/").status;
            seen.push((since.elapsed(), status));
        }
        drop(gateway.join().unwrap());
        seen
    })
}

/// Asserts that no response of the first second takes longer than the deadline, and that from then on none waits. A busy
/// machine may need several tries.
fn assert_serves_at_once(store_url: &str) {
    let mut slowest = Vec::new();
    for _ in 0..TRIES {
        let seen = first_second(store_url);
        assert!(seen.iter().all(|(_, status)| *status == 200), "{seen:?}");
        let took: Vec<Duration> = seen.iter().map(|(took, _)| *took).collect();
        let longest = *took.iter().max().unwrap();
        slowest.push((longest, median(took)));
        if longest < ANSWERED_WITHIN {
            break;
        }
    }
    assert!(slowest.iter().any(|(longest, _)| *longest < ANSWERED_WITHIN), "{slowest:?}");
    assert!(slowest.iter().any(|(_, median)| *median < AT_ONCE), "{slowest:?}");
}

#[test]
fn a_gateway_whose_store_is_down_serves_at_once() {
    assert_serves_at_once(&Redis::away().url());
}

#[test]
fn a_gateway_whose_seeds_are_down_serves_at_once() {
    let [one, other, third] = [(); 3].map(|()| free_port());
    assert_serves_at_once(&format!(
        "redis-cluster://127.0.0.1:{one}?node=127.0.0.1:{other}&node=127.0.0.1:{third}"
    ));
}

/// Servers that accept connections, and say nothing.
fn hung() -> [TcpListener; 3] {
    [(); 3].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap())
}

#[test]
fn a_gateway_whose_store_hangs_serves_within_the_deadline() {
    let [server, ..] = hung();
    assert_serves_at_once(&format!("redis://{}", server.local_addr().unwrap()));
}

#[test]
fn a_gateway_whose_seeds_hang_serves_within_the_deadline() {
    let seeds = hung();
    let [one, other, third] = seeds.each_ref().map(|seed| seed.local_addr().unwrap());
    assert_serves_at_once(&format!("redis-cluster://{one}?node={other}&node={third}"));
}
