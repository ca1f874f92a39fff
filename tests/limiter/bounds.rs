//! What happens at the bounds of memory and of decisions that wait.

use std::{sync::Arc, time::Duration};

use tokio::{task::JoinSet, time::timeout};
use tollgate_limiter::{Ask, Limit, OnFailure, Refusal, StoreError};

use crate::{
    harness::redis::Redis,
    limiter::{ask, block_on, open, quota},
};

/// Decisions that may wait for the store, and those of a call or two that are under way.
const PENDING_MOST: usize = 8_192 + 2 * 256;
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
fn a_key_is_looked_up_though_there_is_no_memory_for_it() {
    block_on(async {
        let limiter = open("memory:", "max_memory = \"1MiB\"");
        let limit = Arc::new(Limit::new("l", quota("1000000/h")).with_bans_of(Duration::from_secs(60)));
        for key in 0..20_000 {
            limiter.try_acquire(&[Ask::new(&limit, key.to_string())]).await.unwrap();
        }
        let nobody = Ask::new(&limit, "nobody");
        assert_eq!(limiter.banned_for(&nobody).await.unwrap(), None);
        assert!(limiter.peek(&nobody).await.unwrap().is_by_network);
    });
}
