//! Many requests at the same moment.

use std::{
    sync::Barrier,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::{
    gateway,
    harness::{gateway::Gateway, redis::Redis},
};

const LIMIT: &str = r#"{ name = "all", key = "global", rate = "20/2s" }"#;
const CLIENTS: u64 = 200;

/// How many of 200 requests are admitted, each sent by a client of its own after its wait.
fn admitted(gateway: &Gateway, wait: impl Fn(u64) + Sync) -> usize {
    let connected = Barrier::new(CLIENTS as usize);
    let (connected, wait) = (&connected, &wait);
    thread::scope(|scope| {
        let clients = (0..CLIENTS).map(|turn| {
            scope.spawn(move || {
                let mut client = gateway.client();
                connected.wait();
                wait(turn);
                client.get("/").status
            })
        });
        let clients: Vec<_> = clients.collect();
        clients.into_iter().map(|client| client.join().unwrap()).filter(|status| *status == 200).count()
    })
}

fn exactly_the_limit_passes(store_url: &str) {
    let gateway = gateway(store_url, &[LIMIT]);
    assert_eq!(admitted(&gateway, |_| {}), 20);
}

/// Windows that begin at whole multiples of themselves would let twice the limit pass here.
fn exactly_the_limit_passes_across_an_aligned_boundary(store_url: &str) {
    let gateway = gateway(store_url, &[LIMIT]);
    // Half of them come 50 ms before the next even second that is far enough, half of them 50 ms after it.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let boundary = UNIX_EPOCH + Duration::from_secs(now.as_secs() / 2 * 2 + 4);
    let half = Duration::from_millis(50);
    let admitted = admitted(&gateway, |turn| {
        let at = if turn % 2 == 0 { boundary - half } else { boundary + half };
        thread::sleep(at.duration_since(SystemTime::now()).unwrap());
    });
    assert_eq!(admitted, 20);
}

#[test]
fn exactly_the_limit_passes_in_memory() {
    exactly_the_limit_passes("memory:");
}

#[test]
fn exactly_the_limit_passes_on_redis() {
    exactly_the_limit_passes(&Redis::start().url());
}

#[test]
fn exactly_the_limit_passes_across_an_aligned_boundary_in_memory() {
    exactly_the_limit_passes_across_an_aligned_boundary("memory:");
}

#[test]
fn exactly_the_limit_passes_across_an_aligned_boundary_on_redis() {
    exactly_the_limit_passes_across_an_aligned_boundary(&Redis::start().url());
}
