//! Refusals without asking the store.

use std::{sync::Arc, time::Duration};

use tokio::{task::JoinSet, time::Instant};
use tollgate_limiter::{Algorithm, Ask, Limit};

use crate::{
    harness::{
        judge::{in_time, judge, within},
        redis::Redis,
    },
    limiter::{ask, block_on, limit, limited, patient, quota, told},
};

/// What the machine may keep a thread waiting for.
const PAUSE: Duration = Duration::from_millis(20);

#[test]
fn what_was_refused_lately_is_refused_here() {
    let redis = Redis::start();
    block_on(async {
        let limiter = patient(&redis.url());
        limiter.warm_up().await.unwrap();
        let (first, second) = (limit("first", "1/h"), limit("second", "2/h"));
        let both = [ask(&first, 1), ask(&second, 1)];
        limiter.try_acquire(&both).await.unwrap();
        limiter.try_acquire(&both).await.unwrap_err();
        let before = redis.scripts();
        let mut delay = Duration::MAX;
        for _ in 0..100 {
            let refused = limiter.try_acquire(&both).await.unwrap_err();
            assert_eq!(
                limited(limiter.try_acquire(&both).await.unwrap_err()).violated().collect::<Vec<_>>(),
                ["first"]
            );
            let now = told(refused);
            assert!(now <= delay, "it shrinks");
            delay = now;
        }
        assert_eq!(redis.scripts(), before);
        // Another key, and another limit, ask.
        limiter.try_acquire(&[Ask::new(&first, "other"), ask(&second, 1)]).await.unwrap();
        limiter.try_acquire(&[Ask::new(&second, "other")]).await.unwrap();
        // What fits always asks.
        let wide = limit("wide", "5/h");
        limiter.try_acquire(&[ask(&wide, 3)]).await.unwrap();
        limiter.try_acquire(&[ask(&wide, 4)]).await.unwrap_err();
        limiter.try_acquire(&[ask(&wide, 2)]).await.unwrap();
        // Which makes the other delay too short: it is told anew.
        let refused = limiter.try_acquire(&[ask(&wide, 4)]).await.unwrap_err();
        assert_eq!(limited(refused).standings()[0].outcome.remaining, 0);
    });
}

#[test]
fn a_cost_beyond_the_limit_asks_nobody() {
    let redis = Redis::start();
    block_on(async {
        let limiter = patient(&redis.url());
        let limit = limit("l", "5/h");
        let refused = limited(limiter.try_acquire(&[ask(&limit, 6)]).await.unwrap_err());
        assert_eq!(refused.delay_us(), None);
        assert_eq!(redis.scripts(), 0);
    });
}

#[test]
fn leases_are_never_remembered() {
    let redis = Redis::start();
    block_on(async {
        let (here, there) = (patient(&redis.url()), patient(&redis.url()));
        here.warm_up().await.unwrap();
        there.warm_up().await.unwrap();
        let quota = tollgate_limiter::Quota { algorithm: Algorithm::Concurrency, ..quota("1/10s") };
        let limit = Arc::new(Limit::new("l", quota));
        let held = here.try_acquire(&[ask(&limit, 1)]).await.unwrap();
        let refused = limited(there.try_acquire(&[ask(&limit, 1)]).await.unwrap_err());
        assert!(!refused.is_exact());
        drop(held);
        let since = Instant::now();
        while there.try_acquire(&[ask(&limit, 1)]).await.is_err() {
            assert!(since.elapsed() < Duration::from_secs(5));
        }
    });
}

#[test]
fn a_reset_elsewhere_is_noticed_after_the_cap() {
    judge(PAUSE, || {
        let redis = Redis::start();
        block_on(async {
            let limiter = patient(&redis.url());
            limiter.warm_up().await.unwrap();
            let limit = limit("l", "1/h");
            limiter.try_acquire(&[ask(&limit, 1)]).await.unwrap();
            limiter.try_acquire(&[ask(&limit, 1)]).await.unwrap_err();
            redis.command(&["DEL", "tollgate:l:sw:{caller=caller}"]);
            let before = redis.scripts();
            let since = Instant::now();
            while limiter.try_acquire(&[ask(&limit, 1)]).await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let noticed = since.elapsed();
            assert!(noticed.as_millis() >= 4_900, "{noticed:?}");
            within(noticed, Duration::from_secs(6), "noticing it")?;
            assert_eq!(redis.scripts(), before + 1);
            Ok(())
        })
    });
}

/// At the end of a block, on threads of their own.
#[test]
fn one_asks_for_all_at_the_end_of_a_block() {
    judge(PAUSE, || {
        let redis = Redis::start();
        block_on(async {
            let limiter = patient(&redis.url());
            limiter.warm_up().await.unwrap();
            let limit = limit("l", "1/500ms");
            limiter.try_acquire(&[ask(&limit, 1)]).await.unwrap();
            let mut admitted = 0;
            let (since, before) = (Instant::now(), redis.scripts());
            while since.elapsed() < Duration::from_millis(1_700) {
                let mut tasks = JoinSet::new();
                for _ in 0..50 {
                    let (limiter, asks) = (limiter.clone(), [ask(&limit, 1)]);
                    tasks.spawn(async move { limiter.try_acquire(&asks).await.is_ok() });
                }
                admitted += tasks.join_all().await.into_iter().filter(|admitted| *admitted).count();
            }
            let asked = redis.scripts() - before;
            within(since.elapsed(), Duration::from_millis(1_900), "asking")?;
            assert!(admitted <= 3, "{admitted} were admitted");
            in_time(admitted == 3, || format!("{admitted} were admitted"))?;
            assert!(asked <= 3 * 4 + 1, "{asked} scripts");
            Ok(())
        })
    });
}
