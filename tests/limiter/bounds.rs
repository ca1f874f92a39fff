//! Past a bound nobody waits: it is decided at once.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use tollgate::{
    config::OnFailure,
    limit::{Ask, Limit, Refusal},
    store::StoreError,
};

use crate::{ask, block_on, harness::redis::Redis, limit, limited, open, patient, quota};

/// Decisions that may wait for the store, and those of a call or two that are under way.
const PENDING_MOST: usize = 8_192 + 2 * 256;
/// Requests that may wait for room.
const WAITING_MOST: usize = 10_000;
/// For what happens at once, on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(20);

#[test]
fn of_too_many_decisions_that_wait_for_the_store_the_last_fail_at_once() {
    let redis = Redis::start();
    block_on(async {
        let limiter = open(&redis.url(), "timeout = \"1m\"");
        limiter.warm_up().await.unwrap();
        let limit = Arc::new(Limit::new("l", quota("20000/h")).on_failure(OnFailure::Deny));
        redis.pause();
        let mut decisions = JoinSet::new();
        for _ in 0..PENDING_MOST + 500 {
            let (limiter, limit) = (limiter.clone(), limit.clone());
            decisions.spawn(async move { limiter.try_acquire(&[ask(&limit, 1)]).await.map(drop) });
        }
        for _ in 0..500 {
            let decided = timeout(AT_ONCE, decisions.join_next()).await.expect("it fails at once");
            let decided = decided.unwrap().unwrap();
            assert!(
                matches!(decided, Err(Refusal::StoreUnavailable { cause: StoreError::Overloaded, .. })),
                "{decided:?}"
            );
        }
        redis.resume();
        let decided = decisions.join_all().await;
        let admitted = decided.iter().filter(|decided| decided.is_ok()).count();
        assert!(admitted >= 8_192, "{admitted}");
    });
}

#[test]
fn of_too_many_requests_that_wait_for_room_the_last_is_refused_at_once() {
    block_on(async {
        let limiter = patient("memory:");
        let limit = limit("l", "1/h");
        let asks = |key: usize| [Ask::new(&limit, key.to_string().as_str())];
        let mut waiting = JoinSet::new();
        for number in 0..=WAITING_MOST {
            let (limiter, asks) = (limiter.clone(), asks(number % 1_000));
            // The first of a key is admitted.
            let _ = limiter.try_acquire(&asks).await;
            waiting.spawn(async move { limiter.acquire(&asks, None).await.map(drop) });
        }
        let refused = timeout(AT_ONCE, waiting.join_next()).await.expect("one is refused at once");
        limited(refused.unwrap().unwrap().unwrap_err());
        sleep(Duration::from_millis(100)).await;
        assert!(waiting.try_join_next().is_none(), "the others wait");
    });
}
