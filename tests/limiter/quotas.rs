//! Requests that wait for one bucket, whose quotas change, differ, or are known to Redis alone.

use std::{
    panic::resume_unwind,
    sync::mpsc::{RecvTimeoutError, channel},
    thread,
};

use tokio::time::timeout;
use tollgate_limiter::{Admission, Key, Override, RedissonType, SetWhen};

use super::*;
use crate::harness::redis::Redis;

/// The time after which a test has failed. What it doesn't end would wait for hours.
const BOUND: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

/// Runs a test on each store, on a thread of its own: a queue that spins would block that for ever.
fn on_both_stores<F: Future<Output = ()>>(test: impl Fn(Arc<Limiter>) -> F + Copy + Send + 'static) {
    let redis = Redis::start();
    for url in ["memory:".to_owned(), redis.url()] {
        on(url, test);
    }
}

fn on<F: Future<Output = ()>>(url: String, test: impl Fn(Arc<Limiter>) -> F + Send + 'static) {
    let (done, is_done) = channel();
    let thread = thread::spawn(move || {
        block_on(async {
            let limiter = patient(&url);
            limiter.warm_up().await.unwrap();
            test(limiter).await;
        });
        done.send(())
    });
    match is_done.recv_timeout(BOUND) {
        Err(RecvTimeoutError::Timeout) => panic!("a queue spins, or holds a request beyond its time"),
        _ => drop(thread.join().unwrap_or_else(|panic| resume_unwind(panic))),
    }
}

type Waiter = JoinHandle<Result<Admission, Refusal>>;

/// Starts to acquire without a deadline, and returns when the request waits.
async fn begin(limiter: &Arc<Limiter>, ask: Ask) -> Waiter {
    let acquiring = limiter.clone();
    let waiter = queued(limiter, async move { acquiring.acquire(&ask, None).await }).await;
    assert!(!waiter.is_finished(), "it waits");
    waiter
}

/// Returns the delay that a request is told which can't wait: in hours, or `None` if it never fits.
async fn hours_told(limiter: &Arc<Limiter>, ask: Ask) -> Option<u32> {
    let refused = limited(limiter.acquire(&ask, after(50)).await.unwrap_err());
    let delay = Duration::from_micros(refused.delay_us()?);
    let hours = delay.as_secs().div_ceil(HOUR.as_secs()) as u32;
    // The bucket was filled within the test's time.
    assert!(hours * HOUR - delay <= BOUND, "{delay:?}");
    Some(hours)
}

async fn never_fits(waiter: Waiter) {
    assert_eq!(limited(waiter.await.unwrap().unwrap_err()).delay_us(), None);
}

#[test]
fn who_waits_is_refused_when_its_rate_falls_below_its_cost() {
    on_both_stores(async |limiter| {
        let limit = limit("l", "3/h");
        let set = async |rate: &str| {
            let rate = tollgate_limiter::read_rate(&limit, rate).unwrap();
            let set = Override { rate, scope: None, lasts: None };
            limiter.set_override(&limit, None, &set, SetWhen::Always).await.unwrap();
        };
        limiter.try_acquire(ask(&limit, 3)).await.unwrap();
        let costs_3 = begin(&limiter, ask(&limit, 3)).await;
        let costs_1 = begin(&limiter, ask(&limit, 1)).await;
        let costs_2 = begin(&limiter, ask(&limit, 2)).await;
        set("2/h").await;
        never_fits(costs_3).await;
        // Behind those of 1 and 2 permits.
        assert_eq!(hours_told(&limiter, ask(&limit, 1)).await, Some(3));
        set("1/h").await;
        never_fits(costs_2).await;
        assert_eq!(hours_told(&limiter, ask(&limit, 1)).await, Some(2));
        set("0").await;
        never_fits(costs_1).await;
        assert_eq!((limiter.waiting(), hours_told(&limiter, ask(&limit, 1)).await), (0, None));
    });
}

#[test]
fn who_waits_is_refused_when_a_reload_lowers_its_rate_below_its_cost() {
    on_both_stores(async |limiter| {
        let limit = limit("l", "3/h");
        limiter.try_acquire(ask(&limit, 3)).await.unwrap();
        let costs_3 = begin(&limiter, ask(&limit, 3)).await;
        let costs_2 = begin(&limiter, ask(&limit, 2)).await;
        let edited = Limit::new("l", quota("2/h"));
        limiter.renew_waits([(&edited, Box::new(|_: &_| None) as _)]);
        never_fits(costs_3).await;
        limiter.reset(&ask(&limit, 1)).await.unwrap();
        costs_2.await.unwrap().unwrap();
    });
}

#[test]
fn each_is_held_to_the_quota_that_it_states() {
    on_both_stores(async |limiter| {
        let limit = limit("l", "1/h");
        let stating = |permits, cost| {
            let rate = Rate { permits, window_us: HOUR.as_micros() as u64 };
            ask(&limit, cost).rate(Some(rate))
        };
        limiter.try_acquire(stating(1, 1)).await.unwrap();
        let few = begin(&limiter, stating(1, 1)).await;
        let many = begin(&limiter, stating(10, 5)).await;
        // Others are served meanwhile.
        limiter.try_acquire(Ask::new(&limit, "another")).await.unwrap();
        // It would fit now, but not before those who came first.
        assert_eq!(hours_told(&limiter, stating(10, 3)).await, Some(1));
        // It comes behind the one permit that is the first's, and that of five.
        assert_eq!(hours_told(&limiter, stating(10, 5)).await, Some(2));
        let refusal = limiter.acquire(stating(6, 1), after(50)).await.unwrap_err();
        assert_eq!(limited(refusal).standings()[0].quota.permits, 6);
        assert_eq!(hours_told(&limiter, stating(10, 11)).await, None);
        assert!(!few.is_finished() && !many.is_finished());
        limiter.reset(&stating(1, 1)).await.unwrap();
        few.await.unwrap().unwrap();
        many.await.unwrap().unwrap();
    });
}

/// The rate of Redis is 100 an hour for one key, and 2 for another. The limit's own is 5.
#[test]
fn the_rate_of_redis_holds_for_those_who_wait() {
    let redis = Redis::start();
    for (key, permits) in [("it:more", "100"), ("it:less", "2")] {
        redis.command(&[
            "HSET",
            key,
            "rate",
            permits,
            "interval",
            "3600000",
            "type",
            "0",
            "keepAliveTime",
            "0",
        ]);
    }
    on(redis.url(), async |limiter| {
        let limit = Limit::new("l", quota("5/h"))
            .shared_with_redisson("it:{key}".parse().unwrap(), RedissonType::Overall);
        let limit = Arc::new(limit);
        let more = |cost| Ask::new(&limit, Key::verbatim("more")).cost(cost);
        limiter.try_acquire(more(100)).await.unwrap();
        let costs_1 = begin(&limiter, more(1)).await;
        let costs_50 = begin(&limiter, more(50)).await;
        limiter.try_acquire(Ask::new(&limit, Key::verbatim("another"))).await.unwrap();
        for (cost, told) in [(49, Some(1)), (50, Some(2)), (100, Some(2)), (101, None)] {
            assert_eq!(hours_told(&limiter, more(cost)).await, told, "{cost} of 100");
        }
        assert!(!costs_1.is_finished() && !costs_50.is_finished());
        limiter.reset(&more(1)).await.unwrap();
        costs_1.await.unwrap().unwrap();
        costs_50.await.unwrap().unwrap();

        let less = |cost| Ask::new(&limit, Key::verbatim("less")).cost(cost);
        limiter.try_acquire(less(2)).await.unwrap();
        let _first = begin(&limiter, less(2)).await;
        let _second = begin(&limiter, less(1)).await;
        for (cost, told) in [(1, Some(2)), (2, Some(3)), (3, None)] {
            assert_eq!(hours_told(&limiter, less(cost)).await, told, "{cost} of 2");
        }
    });
}

#[test]
fn without_the_store_nobody_waits_behind_others_for_longer_than_it_may() {
    let mut redis = Redis::start();
    block_on(async {
        let (limiter, limit) = (patient(&redis.url()), limit("l", "2/h"));
        limiter.warm_up().await.unwrap();
        limiter.try_acquire(ask(&limit, 2)).await.unwrap();
        let _first = begin(&limiter, ask(&limit, 1)).await;
        redis.kill();
        // The store doesn't tell when two are free, but the first one isn't served before.
        let told = timeout(BOUND, hours_told(&limiter, ask(&limit, 1))).await;
        assert_eq!(told.expect("it is refused"), Some(1));
    });
}

/// Returns a limit whose rate was lowered for a second, to one permit an hour.
async fn for_a_second(limiter: &Limiter, name: &str) -> Arc<Limit> {
    let limit = limit(name, "60/min");
    let set = Override { rate: "1/h".parse().unwrap(), scope: None, lasts: Some(Duration::from_secs(1)) };
    limiter.set_override(&limit, None, &set, SetWhen::Always).await.unwrap();
    limit
}

#[test]
fn the_end_of_a_rate_that_was_set_for_a_time_is_noticed() {
    on_both_stores(async |limiter| {
        let [alone, followed] = [for_a_second(&limiter, "a").await, for_a_second(&limiter, "b").await];
        let mut waiters = Vec::new();
        for limit in [&alone, &followed] {
            limiter.try_acquire(ask(limit, 1)).await.unwrap();
            waiters.push(begin(&limiter, ask(limit, 1)).await);
        }
        while limiter.quota(&followed, None).permits == 1 {
            sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(limiter.waiting(), 2);
        // A newcomer notices it at once, and the other queue by itself.
        limiter.acquire(ask(&followed, 1), after(3_000)).await.unwrap();
        for waiter in waiters {
            waiter.await.unwrap().unwrap();
        }
    });
}

#[test]
fn what_others_change_in_redis_without_a_message_is_noticed() {
    let redis = Arc::new(Redis::start());
    on(redis.url(), move |limiter| others_forget_counts(limiter, redis.clone()));
}

async fn others_forget_counts(limiter: Arc<Limiter>, redis: Arc<Redis>) {
    let own = limit("l", "2/h");
    let of_java = Limit::new("j", quota("5/h"))
        .shared_with_redisson("it:{key}".parse().unwrap(), RedissonType::Overall);
    let of_java = Arc::new(of_java);
    let java = |cost| Ask::new(&of_java, Key::verbatim("a")).cost(cost);
    limiter.try_acquire(ask(&own, 2)).await.unwrap();
    limiter.try_acquire(java(5)).await.unwrap();
    let mut waiters = Vec::new();
    for ask in [ask(&own, 1), ask(&own, 1), java(1), java(4)] {
        waiters.push(begin(&limiter, ask).await);
    }
    for pattern in ["*:l:*", "{it:a}:*"] {
        let counts = redis.keys(pattern);
        assert!(!counts.is_empty(), "{pattern}");
        counts.iter().for_each(|key| drop(redis.command(&["DEL", key])));
    }
    for waiter in waiters {
        waiter.await.unwrap().unwrap();
    }
}
