//! Many requests at the same moment.

use std::{
    sync::Barrier,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use crate::{
    gateway,
    harness::{
        gateway::Gateway,
        judge::{in_time, judge},
        load::Answered,
        redis::Redis,
    },
};

const LIMIT: &str = r#"{ name = "all", key = "global", rate = "20/1s" }"#;
const WINDOW: Duration = Duration::from_secs(1);
/// By how much the requests may come late, and still all lie in one window.
const PAUSE: Duration = Duration::from_millis(100);
const CLIENTS: u64 = 200;

/// The answers to 200 requests, each sent by a client of its own after its wait.
fn ask_at_once(gateway: &Gateway, wait: impl Fn(u64) + Sync) -> Vec<Answered> {
    let connected = Barrier::new(CLIENTS as usize);
    let (connected, wait) = (&connected, &wait);
    thread::scope(|scope| {
        let clients = (0..CLIENTS).map(|turn| {
            scope.spawn(move || {
                let mut client = gateway.client();
                connected.wait();
                wait(turn);
                let sent = Instant::now();
                let status = client.get("/").status;
                Answered { sent, received: Instant::now(), status }
            })
        });
        let clients: Vec<_> = clients.collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    })
}

/// Asserts that the limit passes, and no more, if all were decided in one window.
fn judge_burst(store_url: &str, wait: impl Fn(u64) + Sync) {
    judge(PAUSE, || {
        // What a trial before this one has used is free again.
        thread::sleep(WINDOW);
        let gateway = gateway(store_url, &[LIMIT]);
        let answers = ask_at_once(&gateway, &wait);
        let first = answers.iter().map(|answer| answer.sent).min().unwrap();
        let took = answers.iter().map(|answer| answer.received).max().unwrap() - first;
        in_time(took < WINDOW, || format!("the burst lasted {took:?}"))?;
        assert_eq!(answers.iter().filter(|answer| answer.status == 200).count(), 20);
        Ok(())
    });
}

fn exactly_the_limit_passes(store_url: &str) {
    judge_burst(store_url, |_| {});
}

/// Windows that begin at whole multiples of themselves would let twice the limit pass here.
fn exactly_the_limit_passes_across_an_aligned_boundary(store_url: &str) {
    let half = Duration::from_millis(50);
    judge_burst(store_url, |turn| {
        // Half of them come 50 ms before a whole second, half of them 50 ms after it. It is so far away that all have
        // read the clock by then.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let boundary = UNIX_EPOCH + Duration::from_secs((now + WINDOW / 2).as_secs() + 1);
        let at = if turn % 2 == 0 { boundary - half } else { boundary + half };
        thread::sleep(at.duration_since(SystemTime::now()).unwrap_or_default());
    });
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
