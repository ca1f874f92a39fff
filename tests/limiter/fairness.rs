//! Requests that wait in several gateways for the same permits.

#![allow(clippy::print_stdout, reason = "the figures are for whoever runs the test with --nocapture")]

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use tokio::{task::JoinSet, time::sleep};

use crate::{
    harness::redis::Redis,
    limiter::{after, ask, block_on, limit, patient},
};

const GATEWAYS: usize = 3;
const PERMITS: u32 = 26;
/// Clients of a gateway. Each asks again as soon as it was admitted.
const CLIENTS: usize = 60;
const WINDOW: Duration = Duration::from_secs(1);
const WARM_UP: Duration = Duration::from_secs(2);
const WINDOWS: u32 = 10;
/// A busy machine may hold up one of the gateways, and all of them.
const ATTEMPTS: usize = 4;

/// Who was admitted when, in ten windows.
struct Admissions {
    by_gateway: [u32; GATEWAYS],
    scripts: u64,
}

impl Admissions {
    /// Counts from a first admission on, since permits that were taken together come back together.
    fn count(mut seen: Vec<(Instant, usize)>, begun: Instant, scripts: u64) -> Self {
        seen.sort_unstable();
        seen.retain(|(at, _)| *at > begun + WARM_UP);
        let gaps = seen.windows(2).take_while(|pair| pair[1].0 < begun + WARM_UP + WINDOW * 5 / 4);
        let longest =
            gaps.max_by_key(|pair| pair[1].0 - pair[0].0).expect("some are admitted in each window");
        let first = longest[1].0;
        let mut by_gateway = [0; GATEWAYS];
        for (_, gateway) in seen.iter().filter(|(at, _)| (first..first + WINDOWS * WINDOW).contains(at)) {
            by_gateway[*gateway] += 1;
        }
        Self { by_gateway, scripts }
    }

    fn are_fair(&self) -> bool {
        let (least, most) = (self.by_gateway.iter().min().unwrap(), self.by_gateway.iter().max().unwrap());
        f64::from(*most) <= 1.5 * f64::from(*least)
    }

    fn use_all_permits(&self) -> bool {
        f64::from(self.by_gateway.iter().sum::<u32>()) >= 0.95 * f64::from(PERMITS * WINDOWS)
    }
}

/// Has clients of three gateways, each on a thread of its own, wait so long at most for the same permits.
fn admissions(patience_ms: Option<u64>) -> Admissions {
    let redis = Redis::start();
    let (seen, is_over, begun) = (Mutex::new(Vec::new()), AtomicBool::new(false), Instant::now());
    let be_a_gateway = |gateway: usize| {
        block_on(async {
            let (limiter, limit) = (patient(&redis.url()), limit("l", &format!("{PERMITS}/1s")));
            limiter.warm_up().await.unwrap();
            let (admitted, mut admissions) = tokio::sync::mpsc::unbounded_channel();
            let mut clients = JoinSet::new();
            for _ in 0..CLIENTS {
                let (limiter, asks, admitted) = (limiter.clone(), [ask(&limit, 1)], admitted.clone());
                clients.spawn(async move {
                    loop {
                        match limiter.acquire(&asks, patience_ms.and_then(after)).await {
                            Ok(_) => admitted.send(Instant::now()).unwrap(),
                            // Whoever comes back sooner is only refused again.
                            Err(_) => sleep(Duration::from_millis(50)).await,
                        }
                    }
                });
            }
            while !is_over.load(Relaxed) {
                sleep(Duration::from_millis(20)).await;
                while let Ok(at) = admissions.try_recv() {
                    seen.lock().unwrap().push((at, gateway));
                }
            }
        });
    };
    thread::scope(|scope| {
        for gateway in 0..GATEWAYS {
            scope.spawn(move || be_a_gateway(gateway));
        }
        thread::sleep(WARM_UP);
        let before = redis.scripts();
        thread::sleep(WINDOW * (WINDOWS + 2));
        let scripts = redis.scripts() - before;
        is_over.store(true, Relaxed);
        Admissions::count(std::mem::take(&mut *seen.lock().unwrap()), begun, scripts)
    })
}

/// Measures again, within a bound, until no gateway is held up.
fn gateways_get_equal_shares(patience_ms: Option<u64>) {
    let mut seen = Vec::new();
    for _ in 0..ATTEMPTS {
        let admissions = admissions(patience_ms);
        assert!(admissions.scripts < 1_500, "{} scripts", admissions.scripts);
        if admissions.are_fair() && admissions.use_all_permits() {
            return;
        }
        seen.push(admissions.by_gateway);
    }
    panic!("{seen:?}");
}

#[test]
fn gateways_get_equal_shares_of_what_their_clients_wait_for() {
    gateways_get_equal_shares(None);
}

#[test]
fn gateways_get_equal_shares_of_what_their_clients_wait_for_a_while() {
    gateways_get_equal_shares(Some(2_000));
}
