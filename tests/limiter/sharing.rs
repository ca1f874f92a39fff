//! Limits that count in this process, shadow limits, and limits that outlive the store.

use std::{sync::Arc, time::Duration};

use tollgate_limiter::{Algorithm, Ask, Limit, Limiter, OnFailure, Origin, Quota, Refusal};

use crate::{
    harness::redis::Redis,
    limiter::{after, ask, block_on, limit, limited, open, patient, quota, told},
};

async fn admits(limiter: &Arc<Limiter>, asks: &[Ask]) -> bool {
    limiter.try_acquire(asks).await.is_ok()
}

#[test]
fn a_limit_of_this_process_never_asks_the_store() {
    let redis = Redis::start();
    block_on(async {
        let (here, there) = (patient(&redis.url()), patient(&redis.url()));
        let own = Arc::new(Limit::new("own", quota("2/h")).in_this_process());
        for limiter in [&here, &there] {
            assert_eq!(
                [true, true, false],
                [
                    admits(limiter, &[ask(&own, 1)]).await,
                    admits(limiter, &[ask(&own, 1)]).await,
                    admits(limiter, &[ask(&own, 1)]).await,
                ]
            );
        }
        assert_eq!((redis.scripts(), redis.keys("*").len()), (0, 0));
    });
}

#[test]
fn the_costs_of_one_key_that_is_asked_twice_add_up() {
    let redis = Redis::start();
    for url in ["memory:", &redis.url()] {
        block_on(async {
            let limiter = patient(url);
            let five = limit("five", "5/h");
            let twice = [ask(&five, 1), ask(&five, 1)];
            let mut admitted = 0;
            while admitted < 9 && admits(&limiter, &twice).await {
                admitted += 2;
            }
            assert_eq!(admitted, 4, "{url}");
            // It isn't remembered of the cost of one that it was refused.
            assert!(admits(&limiter, &twice[..1]).await, "{url}");
            assert!(!admits(&limiter, &twice[..1]).await, "{url}");
            let refused = limiter.try_acquire(&[ask(&five, 3), ask(&five, 3)]).await.unwrap_err();
            assert_eq!(limited(refused).delay_us(), None, "{url}");
        });
    }
}

#[test]
fn what_the_store_refuses_is_given_back_here() {
    let redis = Redis::start();
    let own_quotas = [
        quota("3/h"),
        Quota { algorithm: Algorithm::FixedWindow, ..quota("3/h") },
        Quota { algorithm: Algorithm::Gcra { burst: None }, ..quota("3/h") },
        Quota { algorithm: Algorithm::SlidingCells { cells: 60 }, ..quota("3/h") },
        Quota { algorithm: Algorithm::Concurrency, ..quota("3/h") },
    ];
    for (turn, own_quota) in own_quotas.into_iter().enumerate() {
        block_on(async {
            let (limiter, there) = (patient(&redis.url()), patient(&redis.url()));
            limiter.warm_up().await.unwrap();
            there.warm_up().await.unwrap();
            let own = Arc::new(Limit::new("own", own_quota).in_this_process());
            let shared = limit(&format!("shared-{turn}"), "1/h");
            let _held = limiter.try_acquire(&[ask(&own, 1), ask(&shared, 1)]).await.unwrap();
            for name in 0..10 {
                // Each of them refuses for the first time, which isn't known here.
                let full = limit(&format!("full-{turn}-{name}"), "1/h");
                there.try_acquire(&[ask(&full, 1)]).await.unwrap();
                let refused = limiter.try_acquire(&[ask(&own, 1), ask(&full, 1)]).await.unwrap_err();
                assert_eq!(limited(refused).violated().collect::<Vec<_>>(), [full.name()]);
            }
            let mut held = Vec::new();
            for _ in 0..2 {
                held.push(limiter.try_acquire(&[ask(&own, 1)]).await.unwrap());
            }
            assert!(!admits(&limiter, &[ask(&own, 1)]).await, "{own_quota:?}");
        });
    }
}

#[test]
fn a_shadow_refuses_nobody_and_is_charged_as_it_has_room() {
    let redis = Redis::start();
    for url in ["memory:", &redis.url()] {
        block_on(async {
            let limiter = patient(url);
            limiter.warm_up().await.unwrap();
            let shadow = Arc::new(Limit::new("shadow", quota("3/h")).shadow());
            let real = limit("real", "9/h");
            let left = async |cost| {
                let asks = [ask(&shadow, cost), ask(&real, cost)];
                let admission = limiter.acquire(&asks, after(5_000)).await.unwrap();
                let standings = admission.standings();
                assert!(standings.iter().all(|standing| !standing.refuses()));
                [standings[0].outcome.remaining, standings[1].outcome.remaining]
            };
            assert_eq!(left(2).await, [1, 7]);
            // No room for two, and room for one.
            assert_eq!(left(2).await, [1, 5]);
            assert_eq!(left(1).await, [0, 4]);
            // It was refused by its shadow again and again, and still passes.
            assert_eq!(left(3).await, [0, 1]);
            assert_eq!(left(1).await, [0, 0]);
            let refused = limited(limiter.try_acquire(&[ask(&shadow, 1), ask(&real, 1)]).await.unwrap_err());
            assert_eq!(refused.violated().collect::<Vec<_>>(), ["real"]);
        });
    }
}

#[test]
fn a_shadow_is_not_charged_when_another_limit_refuses() {
    let redis = Redis::start();
    for url in ["memory:", &redis.url()] {
        block_on(async {
            let limiter = patient(url);
            limiter.warm_up().await.unwrap();
            let shadow = Arc::new(Limit::new("shadow", quota("5/h")).shadow());
            let real = limit("real", "1/h");
            let both = [ask(&shadow, 1), ask(&real, 1)];
            assert!(admits(&limiter, &both).await);
            assert!(!admits(&limiter, &both).await && !admits(&limiter, &both).await);
            let admission = limiter.try_acquire(&[ask(&shadow, 1)]).await.unwrap();
            assert_eq!(admission.standings()[0].outcome.remaining, 3);
        });
    }
}

#[test]
fn without_the_store_each_gateway_counts_its_share() {
    let redis = Redis::away();
    block_on(async {
        let limiter = open(&redis.url(), "instances = 4\ntimeout = \"20ms\"");
        for (name, algorithm, permits, share) in [
            ("sliding", Algorithm::SlidingWindow, 10, 2),
            ("small", Algorithm::SlidingWindow, 3, 1),
            ("cells", Algorithm::SlidingCells { cells: 60 }, 10, 2),
            ("fixed", Algorithm::FixedWindow, 10, 2),
            ("meter", Algorithm::Gcra { burst: Some(20) }, 10, 5),
            ("leases", Algorithm::Concurrency, 10, 2),
        ] {
            let limit = Arc::new(Limit::new(name, Quota { algorithm, permits, ..quota("1/h") }));
            let mut held = Vec::new();
            while let Ok(admission) = limiter.try_acquire(&[ask(&limit, 1)]).await {
                held.push(admission);
            }
            assert_eq!(held.len(), share, "{name}");
        }
        // A cost between L' and L is charged as L', and only beyond L it is never.
        let costly = limit("costly", "10/h");
        let admission = limiter.try_acquire(&[ask(&costly, 9)]).await.unwrap();
        assert_eq!(
            (admission.standings()[0].outcome.remaining, admission.standings()[0].quota.permits),
            (0, 2)
        );
        assert!(
            told(limiter.try_acquire(&[ask(&costly, 9)]).await.unwrap_err()) > Duration::from_secs(3_000)
        );
        let never = limiter.try_acquire(&[ask(&costly, 11)]).await.unwrap_err();
        assert_eq!(limited(never).delay_us(), None);
        let burst = Arc::new(Limit::new(
            "burst",
            Quota { algorithm: Algorithm::Gcra { burst: Some(20) }, ..quota("10/h") },
        ));
        assert!(admits(&limiter, &[ask(&burst, 20)]).await);
        assert!(!admits(&limiter, &[ask(&burst, 1)]).await);
        // One `deny` decides.
        let deny = Arc::new(Limit::new("deny", quota("10/h")).on_failure(OnFailure::Deny));
        let allow = Arc::new(Limit::new("allow", quota("1/h")).on_failure(OnFailure::Allow));
        let refused = limiter.try_acquire(&[ask(&allow, 1), ask(&deny, 1)]).await.unwrap_err();
        assert!(matches!(refused, Refusal::StoreUnavailable { .. }));
        for _ in 0..3 {
            assert!(admits(&limiter, &[ask(&allow, 1)]).await);
        }
    });
}

#[test]
fn without_the_store_nothing_comes_back_that_was_not_charged() {
    let redis = Redis::away();
    block_on(async {
        let limiter = open(&redis.url(), "instances = 2");
        let limit = Arc::new(Limit::new("l", quota("10/h")).with_refunds());
        // Half of ten is five: so many are charged of eight.
        let admission = limiter.try_acquire(&[ask(&limit, 8)]).await.unwrap();
        assert!(!limiter.release(&ask(&limit, 3), Some(&admission)).await.unwrap());
        limited(limiter.try_acquire(&[ask(&limit, 1)]).await.unwrap_err());
        assert!(limiter.release(&ask(&limit, 4), Some(&admission)).await.unwrap());
        limiter.try_acquire(&[ask(&limit, 4)]).await.unwrap();
        limited(limiter.try_acquire(&[ask(&limit, 1)]).await.unwrap_err());
    });
}

/// Half of two and of three permits is one, and the costs add up to two.
#[test]
fn without_the_store_a_request_of_two_quotas_is_held_to_the_smaller_share() {
    let redis = Redis::away();
    block_on(async {
        let (limiter, limit) = (open(&redis.url(), "instances = 2"), limit("l", "9/h"));
        let both = ["2/h", "3/h"].map(|rate| ask(&limit, 1).rate(Some(rate.parse().unwrap())));
        let admission = limiter.try_acquire(&both).await.unwrap();
        assert!(admission.standings().iter().all(|standing| standing.origin == Origin::FallbackLocal));
        let refused = limited(limiter.try_acquire(&both).await.unwrap_err());
        assert!(refused.delay_us().is_some(), "there is room within an hour");
    });
}

#[test]
fn debts_delay_what_comes_next() {
    let redis = Redis::start();
    for url in ["memory:", &redis.url()] {
        block_on(async {
            let limiter = patient(url);
            limiter.warm_up().await.unwrap();
            let limit = limit("l", "10/h");
            let first = limiter.try_acquire(&[ask(&limit, 2).settled_later(2)]).await.unwrap();
            // It is told locally from here on, until the debt.
            for cost in [9, 9, 10, 10] {
                assert!(!admits(&limiter, &[ask(&limit, cost)]).await, "{cost}");
            }
            first.record("l", 30);
            for cost in [0, 1] {
                let refused = limited(limiter.try_acquire(&[ask(&limit, cost)]).await.unwrap_err());
                assert_eq!(refused.standings()[0].outcome.remaining, 0, "{cost}");
            }
        });
    }
}
