//! The examples of the limiter's crate do what their comments say, with counts in the process and in Redis.
//! `tests/layer.rs` runs the service.

#[allow(dead_code)] // It has a main.
#[path = "../crates/limiter/examples/login_guard.rs"]
mod login_guard;
#[allow(dead_code)] // It has a main.
#[path = "../crates/limiter/examples/worker.rs"]
mod worker;

use std::time::{Duration, Instant};

use tokio::runtime::Builder;
use tollgate_limiter::{BlockingLimiter, Limiter, Refusal, StoreSettings};

use self::{
    login_guard::{Login, LoginGuard},
    worker::Api,
};
use crate::harness::{redis::Redis, wait_until};

/// Runs a test with settings of each store. Even a busy machine answers in time.
fn on_both_stores(test: impl Fn(&StoreSettings)) {
    let redis = Redis::start();
    for url in ["memory:", &redis.url()] {
        test(&StoreSettings { timeout: Duration::from_secs(5), ..StoreSettings::at(url).unwrap() });
    }
}

#[test]
fn a_worker_waits_for_the_short_quota_and_gives_up_at_the_days() {
    on_both_stores(|settings| {
        Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let api = Api::new(Limiter::open(settings).unwrap(), "4/200ms", "12/day").unwrap();
            let since = Instant::now();
            for cost in [1, 3, 4, 2, 2] {
                api.permission("acme", cost).await.unwrap();
            }
            assert!(since.elapsed() >= Duration::from_millis(395), "{:?}", since.elapsed());
            let refusal = api.permission("acme", 1).await.unwrap_err();
            assert!(matches!(refusal, Refusal::Limited(_)), "{refusal:?}");
            assert!(refusal.retry_after() > Some(Duration::from_secs(80_000)));
            api.permission("another", 1).await.unwrap();
        });
    });
}

#[test]
fn a_guard_counts_wrong_passwords_only() {
    on_both_stores(|settings| {
        let guard = LoginGuard::new(BlockingLimiter::open(settings).unwrap()).unwrap();
        let address = [192, 0, 2, 7].into();
        for _ in 0..9 {
            assert_eq!(guard.login("alice", address, || true), Login::Welcome);
        }
        for guesses_left in [4, 3, 2, 1, 0] {
            // The last wrong one may still be on its way to Redis.
            wait_until("it counts", || guard.used("alice") == 4 - guesses_left);
            assert_eq!(guard.login("alice", address, || false), Login::Wrong { guesses_left });
        }
        wait_until("it counts", || guard.used("alice") == 5);
        let blocked = guard.login("alice", address, || panic!("it isn't looked at"));
        let Login::Blocked { retry_after: Some(retry_after) } = blocked else { panic!("{blocked:?}") };
        assert!(retry_after > Duration::from_secs(800) && retry_after <= Duration::from_secs(900));
        assert_eq!(guard.login("bob", address, || true), Login::Welcome);
        guard.forgive("alice").unwrap();
        assert_eq!(guard.login("alice", address, || true), Login::Welcome);
    });
}
