//! Delays stated by a gateway itself, compared with those of the store.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};
use tollgate_limiter::{Ask, Limit, Limiter};

use crate::{
    harness::redis::Redis,
    limiter::{ask, block_on, limit, limited, patient, told},
};

const MS: Duration = Duration::from_millis(1);

/// When a cost fits, as a limiter tells it, and how long it took to tell.
async fn refused_until(limiter: &Arc<Limiter>, ask: Ask) -> (Instant, Duration) {
    let since = Instant::now();
    let refusal = limiter.try_acquire(&[ask]).await.unwrap_err();
    let now = Instant::now();
    (now + told(refusal), now - since)
}

/// How long a request is refused, as a limiter tells it that may know it already.
async fn refused_for(limiter: &Arc<Limiter>, asks: &[Ask]) -> Duration {
    match limiter.refuse_again(asks, Instant::now()) {
        Some(limited) => Duration::from_micros(limited.delay_us().unwrap()),
        None => told(limiter.try_acquire(asks).await.unwrap_err()),
    }
}

/// When a cost fits, as the store tells it: at the earliest, and at the latest.
async fn free_at(limiter: &Arc<Limiter>, ask: &Ask) -> (Instant, Instant) {
    let since = Instant::now();
    let delay_us = limiter.peek(ask).await.unwrap().usage.delay_us.unwrap();
    [since, Instant::now()].map(|at| at + Duration::from_micros(delay_us)).into()
}

/// Uses permits of a limit one after the other. Returns how long the slowest call took.
async fn fill(limiter: &Arc<Limiter>, limit: &Arc<Limit>, costs: impl IntoIterator<Item = u32>) -> Duration {
    let mut slowest = Duration::ZERO;
    for cost in costs {
        let since = Instant::now();
        limiter.try_acquire(&[ask(limit, cost)]).await.unwrap();
        slowest = slowest.max(since.elapsed());
        sleep(40 * MS).await;
    }
    slowest
}

#[test]
fn each_of_many_costs_is_told_its_own_delay() {
    let redis = Redis::start();
    block_on(async {
        let limiter = patient(&redis.url());
        limiter.warm_up().await.unwrap();
        // A window that doesn't end before the test, however busy the machine is.
        let limit = limit("l", "40/h");
        let mut slowest = fill(&limiter, &limit, [1; 40]).await;
        for round in 0..2 {
            for cost in (1..=40).rev() {
                let (told, took) = refused_until(&limiter, ask(&limit, cost)).await;
                slowest = slowest.max(took);
                let (earliest, latest) = free_at(&limiter, &ask(&limit, cost)).await;
                // A delay counts from the answer of the call that asked for it, which may be any earlier one, and so it is late by as
                // long as that took.
                let late = told.saturating_duration_since(latest);
                assert!(late <= slowest + MS, "round {round}: {cost} is told {late:?} too much");
                assert!(told + MS >= earliest, "round {round}: {cost} is told too little");
                slowest = slowest.max(latest - earliest);
            }
        }
    });
}

#[test]
fn a_delay_is_asked_for_again_where_other_gateways_may_have_made_it_longer() {
    let redis = Redis::start();
    block_on(async {
        let (here, there) = (patient(&redis.url()), patient(&redis.url()));
        here.warm_up().await.unwrap();
        there.warm_up().await.unwrap();
        let limit = limit("l", "10/5s");
        fill(&here, &limit, [1; 6]).await;
        let (before, _) = refused_until(&here, ask(&limit, 8)).await;
        there.try_acquire(&[ask(&limit, 3)]).await.unwrap();
        let (told, _) = refused_until(&here, ask(&limit, 8)).await;
        assert!(told >= before + 100 * MS, "the delay of before: {:?}", told - before);
        tokio::time::sleep_until(told).await;
        here.try_acquire(&[ask(&limit, 8)]).await.expect("nobody has taken the room");
    });
}

/// Both limits are full. A cost that the store hasn't refused yet is greater than one that it has, so only for how long isn't known.
#[test]
fn of_two_full_limits_the_longer_delay_is_told_for_each_cost() {
    let redis = Redis::start();
    block_on(async {
        let shared = limit("hourly", "60/h");
        let own = Arc::new(Limit::new("hourly", shared.quota()).in_this_process());
        for hourly in [shared, own] {
            redis.command(&["FLUSHALL"]);
            let limiter = patient(&redis.url());
            limiter.warm_up().await.unwrap();
            let few = limit("few", "3/5min");
            let both = |cost| [ask(&hourly, cost), ask(&few, 1)];
            for cost in [30, 20, 10] {
                limiter.try_acquire(&both(cost)).await.unwrap();
            }
            for cost in [20, 30, 31, 20] {
                let told = refused_for(&limiter, &both(cost)).await;
                assert!(told > Duration::from_secs(3_000), "{cost} is told {told:?}");
            }
        }
    });
}

/// A limit that isn't known to be full may be so for longer than one that is.
#[test]
fn a_full_limit_does_not_hide_the_longer_delay_of_another_one() {
    let redis = Redis::start();
    block_on(async {
        let limiter = patient(&redis.url());
        limiter.warm_up().await.unwrap();
        let (hourly, few) = (limit("hourly", "10/h"), limit("few", "3/5min"));
        let both = |key: &str, cost| [Ask::new(&hourly, key).cost(cost), ask(&few, 1)];
        for (key, cost) in [("one", 8), ("other", 3), ("other", 3)] {
            limiter.try_acquire(&both(key, cost)).await.unwrap();
        }
        limited(limiter.try_acquire(&both("other", 9)).await.unwrap_err());
        for _ in 0..3 {
            let told = refused_for(&limiter, &both("one", 5)).await;
            assert!(told > Duration::from_secs(3_000), "{told:?}");
        }
        // Of one that has room it is known for a while.
        let before = redis.scripts();
        for _ in 0..100 {
            let told = refused_for(&limiter, &both("third", 5)).await;
            assert!(told < Duration::from_secs(301), "{told:?}");
        }
        let asked = redis.scripts() - before;
        assert!(asked <= 4, "{asked} scripts");
    });
}

#[test]
fn a_full_limit_of_this_process_does_not_hide_the_longer_delay_in_redis() {
    let redis = Redis::start();
    block_on(async {
        let limiter = patient(&redis.url());
        limiter.warm_up().await.unwrap();
        let hourly = limit("hourly", "60/h");
        let own = Arc::new(Limit::new("own", limit("own", "40/5min").quota()).in_this_process());
        let both = |cost| [ask(&hourly, cost), ask(&own, cost)];
        limiter.try_acquire(&both(40)).await.unwrap();
        let before = redis.scripts();
        for cost in [39, 39, 20, 39] {
            let told = refused_for(&limiter, &both(cost)).await;
            assert_eq!(told > Duration::from_secs(3_000), cost > 20, "{cost} is told {told:?}");
        }
        let asked = redis.scripts() - before;
        assert!(asked <= 4, "{asked} scripts");
    });
}

/// A ban that is given here is known here at once, also by a request that a limit in the process refuses.
#[test]
fn a_full_limit_of_this_process_does_not_hide_a_ban() {
    let redis = Redis::start();
    block_on(async {
        let limiter = patient(&redis.url());
        limiter.warm_up().await.unwrap();
        let logins = Arc::new(Limit::new("logins", limit("l", "9/min").quota()).with_bans_of(3_600_000 * MS));
        let own = Arc::new(Limit::new("own", limit("own", "1/5min").quota()).in_this_process());
        let both = [ask(&logins, 1), ask(&own, 1)];
        limiter.try_acquire(&both).await.unwrap();
        assert!(refused_for(&limiter, &both).await < Duration::from_secs(301));
        assert!(limiter.ban(&both[0]).await.unwrap());
        let told = refused_for(&limiter, &both).await;
        assert!(told > Duration::from_secs(3_500), "{told:?}");
    });
}

/// A client may invent keys beside a full one, of which it isn't known whether they have room.
#[test]
fn a_full_key_beside_ever_new_ones_asks_now_and_then() {
    let redis = Redis::start();
    block_on(async {
        let (few, many) = (limit("few", "3/h"), limit("many", "9/h"));
        let own = Arc::new(Limit::new("own", few.quota()).in_this_process());
        for full in [few, own] {
            let limiter = patient(&redis.url());
            limiter.warm_up().await.unwrap();
            let invented = |number: u32| [ask(&full, 1), Ask::new(&many, number.to_string())];
            for number in 0..3 {
                limiter.try_acquire(&invented(number)).await.unwrap();
            }
            let (since, before) = (Instant::now(), redis.scripts());
            for number in 0..2_000 {
                refused_for(&limiter, &invented(number)).await;
            }
            let (asked, most) = (redis.scripts() - before, 128 + 50 * (since.elapsed().as_secs() + 1));
            assert!(asked <= most, "{asked} scripts, of at most {most}");
        }
    });
}

/// How often the store is asked by a flood of requests with these costs, and how often it may be.
async fn asked_by(redis: &Redis, costs: impl Iterator<Item = u32>) -> (u64, u64) {
    let limiter = patient(&redis.url());
    limiter.warm_up().await.unwrap();
    let limit = limit("l", "100000/1h");
    // The first entries are small, so that the delays differ; and room is left, so that others might take it.
    fill(&limiter, &limit, [1, 2, 3, 4, 5, 6, 7, 99_900]).await;
    limiter.try_acquire(&[ask(&limit, 100)]).await.unwrap_err();
    let (since, before) = (Instant::now(), redis.scripts());
    for cost in costs {
        let (told, _) = refused_until(&limiter, ask(&limit, cost)).await;
        assert!(told > since + Duration::from_secs(3_590), "{cost} is told too little");
    }
    (redis.scripts() - before, 128 + 50 * (since.elapsed().as_secs() + 1))
}

/// The first are each asked for, and of the rest some each second.
#[test]
fn a_flood_of_ever_other_costs_asks_now_and_then() {
    let redis = Redis::start();
    block_on(async {
        let (asked, most) = asked_by(&redis, (0..5_000).map(|request| 200 + request * 7 % 800)).await;
        assert!(asked <= most, "{asked} scripts, of at most {most}");
    });
}

/// Each is more than any of which the store has told the delay.
#[test]
fn a_flood_of_ever_greater_costs_asks_now_and_then() {
    let redis = Redis::start();
    block_on(async {
        let (asked, most) = asked_by(&redis, (0..5_000).map(|request| 200 + request)).await;
        assert!(asked <= most, "{asked} scripts, of at most {most}");
    });
}
