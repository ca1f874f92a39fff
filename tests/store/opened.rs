//! Stores as the gateway opens them, each on its own clock.

use std::{sync::Arc, thread, time::Duration};

use tokio::{runtime::Builder, task::JoinSet, time::Instant};
use tollgate::config::Config;
use tollgate_limiter::{
    Ask, Limit, Limiter, Quota, StoreSettings,
    store::{Charge, Decision, Store},
};

use crate::{
    harness::{gateway::Gateway, open_store, redis::Redis, wait_until},
    store::stepped::charge,
};

/// Runs on a thread's runtime, as a worker does.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// The decisions on requests that are made at once, in their order.
async fn take_at_once(store: &Arc<Store>, requests: Vec<Vec<Charge>>) -> Vec<Decision> {
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut tasks = JoinSet::new();
    for (at, charges) in requests.into_iter().enumerate() {
        let store = store.clone();
        tasks.spawn(async move { (at, store.take(&charges, deadline).await.unwrap()) });
    }
    let mut decisions = tasks.join_all().await;
    decisions.sort_by_key(|(at, _)| *at);
    decisions.into_iter().map(|(_, decision)| decision).collect()
}

async fn take(store: &Arc<Store>, charge: Charge) -> Decision {
    take_at_once(store, vec![vec![charge]]).await.remove(0)
}

/// Four threads, each with several requests in flight, on the same two buckets.
fn fault_02_requests_at_once_never_exceed_the_limit(url: &str) {
    let store = Arc::new(open_store(url));
    let one_thread = || {
        block_on(async {
            store.warm_up().await.unwrap();
            let mut admitted = Vec::new();
            for _ in 0..20 {
                let ask = |turn: u32| vec![charge("a", "300/h", 1 + turn % 3), charge("b", "500/h", 1)];
                let decisions = take_at_once(&store, (0..30).map(ask).collect()).await;
                let with_cost = (0..30).map(|turn| 1 + turn % 3).zip(decisions);
                admitted.extend(with_cost.filter(|(_, decision)| decision.admitted));
            }
            admitted
        })
    };
    let admitted = thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(one_thread)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(admitted.iter().map(|(cost, _)| cost).sum::<u32>(), 300);
    // Each of them, and nothing else, was charged to the wider limit: every count was seen once.
    let mut left: Vec<u64> = admitted.iter().map(|(_, decision)| decision.outcomes[1].remaining).collect();
    left.sort_unstable_by(|one, other| other.cmp(one));
    assert_eq!(left, (0..500).rev().take(admitted.len()).collect::<Vec<_>>());
}

#[test]
fn fault_02_requests_at_once_never_exceed_the_limit_in_memory() {
    fault_02_requests_at_once_never_exceed_the_limit("memory:");
}

#[test]
fn fault_02_requests_at_once_never_exceed_the_limit_on_redis() {
    let redis = Redis::start();
    fault_02_requests_at_once_never_exceed_the_limit(&redis.url());
}

fn each_grant_shows_its_own_remainder(url: &str) {
    let store = Arc::new(open_store(url));
    block_on(async {
        store.warm_up().await.unwrap();
        let decisions = take_at_once(&store, vec![vec![charge("b", "8/h", 1)]; 12]).await;
        let seen: Vec<_> =
            decisions.iter().map(|decision| (decision.admitted, decision.outcomes[0].remaining)).collect();
        let expected = (0..12).map(|turn: u64| (turn < 8, 7_u64.saturating_sub(turn)));
        assert_eq!(seen, expected.collect::<Vec<_>>());
    });
}

#[test]
fn each_grant_shows_its_own_remainder_in_memory() {
    each_grant_shows_its_own_remainder("memory:");
}

#[test]
fn each_grant_shows_its_own_remainder_on_redis() {
    let redis = Redis::start();
    each_grant_shows_its_own_remainder(&redis.url());
}

/// Has 50 equal requests with so many charges come during a call.
fn equal_requests_go_together(charges: usize) {
    let redis = Redis::start();
    let store = Arc::new(open_store(&redis.url()));
    let request: Vec<_> = (0..charges).map(|number| charge(&format!("b{number}"), "99/h", 1)).collect();
    block_on(async {
        store.warm_up().await.unwrap();
        take_at_once(&store, vec![request.clone()]).await;
        redis.command(&["CONFIG", "RESETSTAT"]);
        redis.pause();
        let first = tokio::spawn({
            let (store, request) = (store.clone(), request.clone());
            async move { take_at_once(&store, vec![request]).await }
        });
        // Its call is cut before the others are there, and can't be answered before they are.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        let others = tokio::spawn({
            let store = store.clone();
            async move { take_at_once(&store, vec![request; 50]).await }
        });
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        redis.resume();
        let left = |decision: &Decision| {
            decision.outcomes.iter().map(|outcome| outcome.remaining).collect::<Vec<_>>()
        };
        assert_eq!(left(&first.await.unwrap()[0]), vec![97; charges]);
        assert_eq!(left(&others.await.unwrap()[49]), vec![47; charges]);
    });
    let stats = redis.command(&["INFO", "commandstats"]);
    assert!(stats.contains("cmdstat_evalsha:calls=2,"), "{stats}");
}

#[test]
fn requests_that_come_during_a_call_go_together_in_the_next() {
    equal_requests_go_together(1);
}

#[test]
fn equal_requests_go_together_however_many_charges_each_has() {
    equal_requests_go_together(64);
}

#[test]
fn fault_15_a_script_that_redis_has_forgotten_is_sent_anew() {
    let mut redis = Redis::start();
    let store = Arc::new(open_store(&redis.url()));
    block_on(async {
        store.warm_up().await.unwrap();
        assert_eq!(take(&store, charge("b", "9/h", 1)).await.outcomes[0].remaining, 8);
        redis.command(&["SCRIPT", "FLUSH"]);
        assert_eq!(take(&store, charge("b", "9/h", 1)).await.outcomes[0].remaining, 7);
        redis.kill();
        redis.restart();
        let since = Instant::now();
        while store.warm_up().await.is_err() {
            assert!(since.elapsed() < Duration::from_secs(10), "waited in vain until the store is back");
        }
        assert_eq!(take(&store, charge("b", "9/h", 1)).await.outcomes[0].remaining, 8);
    });
}

#[test]
fn fault_06_only_whole_milliseconds_and_positive_permits_reach_the_store() {
    let parse = |rate: &str| {
        let text = format!(
            "[limits.l]\nkey = \"ip\"\nrate = \"{rate}\"\n[[routes]]\npath = \"/\"\nlimits = [\"l\"]\nrespond = {{}}"
        );
        Config::parse("gateway.toml", &text, &|_| None).map(|(config, _)| config.limits["l"].quota)
    };
    for rate in ["5/0s", "5/1.5ms", "5/999us", "0.5/s", "0/s", "-1/s", "2147483648/s", "5/367d", "5"] {
        assert!(parse(rate).is_err(), "{rate}");
    }
    for (rate, permits, window_us) in
        [("1/1ms", 1, 1_000), ("2147483647/366d", 2_147_483_647, 31_622_400_000_000)]
    {
        let quota = parse(rate).unwrap();
        assert_eq!((quota.permits, quota.window_us), (permits, window_us));
    }
}

fn gateway_toml(url: &str, rate: &str) -> String {
    format!(
        r#"
        [store]
        url = "{url}"
        timeout = "5s"
        [limits.per-client]
        key = "ip"
        rate = "{rate}"
        [[routes]]
        path = "/"
        respond = {{ status = 200 }}
        limits = ["per-client"]
        "#
    )
}

fn fault_16_a_reload_keeps_the_count(url: &str) {
    let gateway = Gateway::start(&gateway_toml(url, "5/h"));
    let admitted = |requests| (0..requests).filter(|_| gateway.get("/").status == 200).count();
    assert_eq!(admitted(8), 5);
    gateway.reload(&gateway_toml(url, "8/2h"));
    assert_eq!(admitted(8), 3);
    gateway.reload(&gateway_toml(url, "4/h"));
    assert_eq!(admitted(2), 0);
}

#[test]
fn fault_16_a_reload_keeps_the_count_in_memory() {
    fault_16_a_reload_keeps_the_count("memory:");
}

#[test]
fn fault_16_a_reload_keeps_the_count_on_redis() {
    let redis = Redis::start();
    fault_16_a_reload_keeps_the_count(&redis.url());
    assert_eq!(redis.keys("*"), ["tollgate:per-client:sw:{ip=127.0.0.1}"]);
}

#[test]
fn a_bucket_that_nobody_asks_for_goes_by_itself() {
    let redis = Redis::start();
    let gateway = Gateway::start(&gateway_toml(&redis.url(), "5/4s"));
    assert_eq!(gateway.get("/").status, 200);
    assert_eq!(redis.keys("*").len(), 1);
    wait_until("the bucket has expired", || redis.keys("*").is_empty());
}

/// A program may have a runtime for each job, as tests do, and threads come back with other names.
#[test]
fn a_store_outlives_the_runtimes_that_use_it() {
    let redis = Redis::start();
    let store = Arc::new(open_store(&redis.url()));
    for used in 1..=5 {
        let decision = block_on(take(&store, charge("a", "5/h", 1)));
        assert_eq!((decision.admitted, decision.outcomes[0].remaining), (true, 5 - used));
    }
}

#[test]
fn a_lease_may_be_dropped_where_there_is_no_runtime() {
    let redis = Redis::start();
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    // A busy machine may be slow to answer.
    let settings =
        StoreSettings { timeout: Duration::from_secs(5), ..StoreSettings::at(&redis.url()).unwrap() };
    let limiter = runtime.block_on(async { Limiter::open(&settings).unwrap() });
    let ask = [Ask::new(&Arc::new(Limit::new("running", Quota::concurrency(1))), "alice")];
    let admission = runtime.block_on(limiter.try_acquire(&ask)).unwrap();
    thread::spawn(move || drop(admission)).join().unwrap();
    let bucket = "tollgate:running:cc:{caller=alice}";
    wait_until("it is released", || redis.command(&["EXISTS", bucket]) == "0");
}
