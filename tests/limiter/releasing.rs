//! Permits that are given back, and costs that are reported.

use tokio::time::timeout;
use tollgate_limiter::{Algorithm, Limiter, StoreError};

use super::*;
use crate::harness::{PATIENCE, redis::Redis};

fn refundable(algorithm: Algorithm) -> Arc<Limit> {
    let rate = "10/h".parse().unwrap();
    Arc::new(Limit::new("refundable", Quota::new(algorithm, rate)).with_refunds())
}

async fn left(limiter: &Limiter, limit: &Arc<Limit>) -> u64 {
    10 - limiter.peek(&ask(limit, 1)).await.unwrap().usage.used
}

#[test]
fn a_release_makes_a_grant_cheaper_in_any_algorithm_and_store() {
    let redis = Redis::start();
    for url in ["memory:".to_owned(), redis.url()] {
        for algorithm in [
            Algorithm::SlidingWindow,
            Algorithm::SlidingCells { cells: 10 },
            Algorithm::FixedWindow,
            Algorithm::Gcra { burst: None },
        ] {
            block_on(async {
                redis.command(&["FLUSHALL"]);
                let (limiter, limit) = (patient(&url), refundable(algorithm));
                let admission = limiter.try_acquire(&[ask(&limit, 8)]).await.unwrap();
                limited(limiter.try_acquire(&[ask(&limit, 3)]).await.unwrap_err());
                assert!(limiter.release(&ask(&limit, 5), Some(&admission)).await.unwrap());
                limiter.try_acquire(&[ask(&limit, 7)]).await.unwrap();
                // No more comes back than it took.
                assert!(limiter.release(&ask(&limit, 9), Some(&admission)).await.unwrap());
                // A meter doesn't give back what may have drained meanwhile.
                let drained = u64::from(matches!(algorithm, Algorithm::Gcra { .. }));
                let seen = left(&limiter, &limit).await;
                assert!((3 - 2 * drained..=3).contains(&seen), "{algorithm:?} {url}: {seen}");
                assert!(!limiter.release(&ask(&limit, 1), Some(&admission)).await.unwrap());
                // Without the admission, the oldest in use come back.
                assert!(limiter.release(&ask(&limit, 2), None).await.unwrap());
                let seen = left(&limiter, &limit).await;
                assert!((5 - 2 * drained..=5).contains(&seen), "{algorithm:?} {url}: {seen}");
            });
        }
    }
}

#[test]
fn a_waiting_request_is_served_by_a_release() {
    let redis = Redis::start();
    for url in ["memory:".to_owned(), redis.url()] {
        block_on(async {
            let (limiter, limit) = (patient(&url), refundable(Algorithm::SlidingWindow));
            let admission = limiter.try_acquire(&[ask(&limit, 10)]).await.unwrap();
            let asks = [ask(&limit, 4)];
            let waiting = limiter.acquire(&asks, None);
            let release = async {
                while limiter.waiting() == 0 {
                    tokio::task::yield_now().await;
                }
                limiter.release(&ask(&limit, 4), Some(&admission)).await.unwrap()
            };
            let (served, released) = tokio::join!(waiting, release);
            assert!(released && served.is_ok());
        });
    }
}

#[test]
fn a_limit_without_refunds_says_so() {
    block_on(async {
        let (limiter, limit) = (patient("memory:"), limit("plain", "10/h"));
        let admission = limiter.try_acquire(&[ask(&limit, 1)]).await.unwrap();
        let released = limiter.release(&ask(&limit, 1), Some(&admission)).await;
        assert!(matches!(released, Err(StoreError::Unsupported(_))));
    });
}

#[test]
fn reports_are_recorded_while_the_store_is_away() {
    let redis = Redis::away();
    block_on(async {
        let (limiter, limit) = (patient(&redis.url()), limit("tokens", "10/h"));
        assert!(limiter.report(&[ask(&limit, 4)], None).await.is_ok());
        limited(limiter.report(&[ask(&limit, 7)], None).await.unwrap_err());
        limited(limiter.try_acquire(&[ask(&limit, 0)]).await.unwrap_err());
    });
}

#[test]
fn reports_that_the_store_refused_are_recorded_when_it_takes_them() {
    let redis = Redis::start();
    let takes_writes = |replicas| drop(redis.command(&["CONFIG", "SET", "min-replicas-to-write", replicas]));
    block_on(async {
        let (limiter, limit) = (patient(&redis.url()), limit("tokens", "10/h"));
        takes_writes("1");
        assert!(limiter.report(&[ask(&limit, 4)], None).await.is_ok());
        takes_writes("0");
        let recorded = async { while left(&limiter, &limit).await != 6 {} };
        timeout(PATIENCE, recorded).await.expect("it is recorded");
    });
}
