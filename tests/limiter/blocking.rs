//! The limiter of threads without a runtime.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use tollgate_limiter::{Ask, BlockingLimiter, Counted, Limit, Quota, Rate, StoreSettings};

use crate::{
    harness::{redis::Redis, wait_until},
    limiter::limit,
};

/// Opens a store that even a busy machine answers in time.
fn open(url: &str) -> BlockingLimiter {
    let settings = StoreSettings { timeout: Duration::from_secs(5), ..StoreSettings::at(url).unwrap() };
    BlockingLimiter::open(&settings).unwrap()
}

fn on_both_stores(fact: impl Fn(&BlockingLimiter)) {
    fact(&open("memory:"));
    let redis = Redis::start();
    fact(&open(&redis.url()));
}

#[test]
fn threads_share_the_permits_and_wait_for_them() {
    on_both_stores(|limiter| {
        let ask = Ask::new(&limit("mails", "10/200ms"), "alice");
        let since = Instant::now();
        thread::scope(|scope| {
            for _ in 0..5 {
                scope.spawn(|| {
                    for _ in 0..6 {
                        limiter.acquire(&ask, None).unwrap();
                    }
                });
            }
        });
        assert!(since.elapsed() >= Duration::from_millis(399), "{:?}", since.elapsed());
        let ask = Ask::new(&limit("letters", "10/2s"), "alice").cost(10);
        limiter.acquire(ask.clone(), None).unwrap();
        let refusal = limiter.try_acquire(ask.clone()).unwrap_err();
        assert!(refusal.retry_after() > Some(Duration::ZERO));
        limiter.acquire(ask, Some(Duration::from_secs(10))).unwrap();
    });
}

#[test]
fn what_a_thread_holds_is_given_back_where_it_is_dropped() {
    on_both_stores(|limiter| {
        let exports = Arc::new(Limit::new("exports", Quota::concurrency(1)));
        let ask = Ask::new(&exports, "alice");
        let running = limiter.try_acquire(&ask).unwrap();
        assert!(running.has_leases());
        assert!(limiter.try_acquire(&ask).is_err());
        thread::spawn(move || drop(running)).join().unwrap();
        wait_until("the permit is free", || limiter.try_acquire(&ask).is_ok());
    });
}

#[test]
fn what_is_held_outlives_the_limiter() {
    let redis = Redis::start();
    let exports = Arc::new(Limit::new("exports", Quota::concurrency(1)));
    let ask = Ask::new(&exports, "alice");
    let limiter = open(&redis.url());
    let running = limiter.try_acquire(&ask).unwrap();
    drop(limiter);
    let other = open(&redis.url());
    assert!(other.try_acquire(&ask).is_err());
    drop(running);
    wait_until("the permit is free", || other.try_acquire(&ask).is_ok());
}

#[test]
fn rates_are_set_and_costs_are_recorded() {
    on_both_stores(|limiter| {
        let tokens = limit("tokens", "100/min");
        let ask = Ask::new(&tokens, "alice");
        assert!(!limiter.update_rate(&ask, "9/min".parse::<Rate>().unwrap(), Counted::Kept).unwrap());
        assert!(limiter.set_rate_if_absent(&ask, "50/min".parse().unwrap()).unwrap());
        limiter.try_acquire(ask.clone().settled_later(10)).unwrap().record("tokens", 9);
        wait_until("the rest is recorded", || limiter.peek(&ask).unwrap().used() == 10);
        limiter.set_rate(&ask, "20/min".parse().unwrap(), Counted::Kept).unwrap();
        assert_eq!(limiter.peek(&ask).unwrap().remaining(), 10);
        limiter.reset(&ask).unwrap();
        assert_eq!(limiter.peek(&ask).unwrap().remaining(), 20);
    });
}
