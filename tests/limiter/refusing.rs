//! Refusals without asking the store.

use std::{sync::Arc, time::Duration};

use futures_util::future::{join, join_all};
use tokio::{task::JoinSet, time::Instant};
use tollgate_limiter::{Algorithm, Ask, Limit, Limiter, Origin};

use crate::{
    harness::{
        judge::{in_time, judge, within},
        redis::Redis,
    },
    limiter::{ask, block_on, limit, limited, open, patient, quota, told},
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
            let since = Instant::now();
            limiter.try_acquire(&[ask(&limit, 1)]).await.unwrap_err();
            redis.command(&["DEL", "tollgate:l:sw:{caller=caller}"]);
            let before = redis.scripts();
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

#[test]
fn requests_of_one_key_at_different_rates_are_each_held_to_their_own() {
    let redis = Redis::start();
    block_on(async {
        let limiter = patient(&redis.url());
        limiter.warm_up().await.unwrap();
        let limit = limit("l", "100000/h");
        let [narrow, wide] = ["5/h", "100000/h"].map(|rate| ask(&limit, 1).rate(Some(rate.parse().unwrap())));
        limiter.try_acquire(&[ask(&limit, 10)]).await.unwrap();
        // Many come while a call is in flight. In the second round a refusal is known.
        for round in 1..=2 {
            let requests = (0..200).map(|turn| if turn % 2 == 0 { &narrow } else { &wide });
            let decided = join_all(requests.map(|ask| limiter.try_acquire(ask))).await;
            let admitted = decided.iter().enumerate().filter(|(_, decided)| decided.is_ok());
            let (narrow, wide): (Vec<_>, Vec<_>) = admitted.partition(|(turn, _)| turn % 2 == 0);
            assert_eq!((narrow.len(), wide.len()), (0, 100), "in round {round}");
        }
        // Each is told what its own rate leaves.
        let admission = limiter.try_acquire(&wide).await.unwrap();
        assert_eq!(admission.remaining(), Some(100_000 - 211));
        let refused = limited(limiter.try_acquire(&[wide, narrow]).await.unwrap_err());
        assert_eq!(refused.standings()[0].outcome.remaining, 100_000 - 211);
        assert_eq!(refused.standings()[1].outcome.remaining, 0);
        assert_eq!(limiter.peek(&ask(&limit, 1)).await.unwrap().usage.used, 211);
    });
}

#[test]
fn a_request_of_two_quotas_ends_what_was_told_before_it_in_its_call() {
    let redis = Redis::start();
    block_on(async {
        let limiter = patient(&redis.url());
        limiter.warm_up().await.unwrap();
        let limit = limit("l", "9/h");
        let [narrow, wide, wider] =
            ["2/h", "8/h", "9/h"].map(|rate| ask(&limit, 1).rate(Some(rate.parse().unwrap())));
        let is_known = || limiter.refuse_again(std::slice::from_ref(&narrow), Instant::now()).is_some();
        limiter.try_acquire(wide.clone().cost(2)).await.unwrap();
        let both = [wide, wider];
        let (refused, admitted) = join(limiter.try_acquire(&narrow), limiter.try_acquire(&both)).await;
        assert!(refused.is_err() && admitted.is_ok());
        assert!(!is_known(), "what was charged since makes the delay longer");
        limiter.try_acquire(&narrow).await.unwrap_err();
        assert!(is_known());
    });
}

/// Decides requests that have waited for longer than the store may take: for their bodies, or the keys of their tokens.
async fn is_decided_when_it_is_asked_for(limiter: Arc<Limiter>, timeout: Duration) {
    let limit = limit("l", "2/h");
    limiter.warm_up().await.unwrap();
    let arrival = Instant::now();
    tokio::time::sleep(timeout + Duration::from_millis(100)).await;
    let asked = Instant::now();
    let first = limiter.acquire_within_waits_until(&[ask(&limit, 1)], arrival, None).await.unwrap();
    let second = limiter.try_acquire_before(&[ask(&limit, 1)], arrival, None).await.unwrap();
    let origins = [first, second].map(|admission| admission.standings()[0].origin);
    assert_eq!(origins, [Origin::Store; 2]);
    let refused = limiter.try_acquire(&[ask(&limit, 1)]).await.unwrap_err();
    assert!(asked.elapsed() + told(refused) >= Duration::from_hours(1), "charged before it was asked for");
}

#[test]
fn a_request_is_decided_in_the_process_when_it_is_asked_for_however_long_ago_it_arrived() {
    block_on(async { is_decided_when_it_is_asked_for(open("memory:", ""), Duration::ZERO).await });
}

#[test]
fn a_request_is_decided_in_redis_when_it_is_asked_for_however_long_ago_it_arrived() {
    let redis = Redis::start();
    block_on(async {
        let limiter = open(&redis.url(), "timeout = \"1s\"");
        is_decided_when_it_is_asked_for(limiter, Duration::from_secs(1)).await;
    });
}

#[test]
fn a_request_that_arrived_before_a_refusal_ended_is_not_refused_by_it() {
    let redis = Redis::start();
    block_on(async {
        let limiter = patient(&redis.url());
        limiter.warm_up().await.unwrap();
        let limit = limit("l", "1/100ms");
        let arrival = Instant::now();
        let refused = loop {
            if let Err(refused) = limiter.try_acquire(&[ask(&limit, 1)]).await {
                break refused;
            }
        };
        tokio::time::sleep(told(refused)).await;
        limiter.acquire_within_waits(&[ask(&limit, 1)], arrival).await.unwrap();
    });
}

/// Limits of one name and rate share a bucket, but not their mode.
#[test]
fn a_limit_that_enforces_is_not_loosened_by_one_of_its_name_that_shadows() {
    let redis = Redis::start();
    for url in ["memory:".to_owned(), redis.url()] {
        block_on(async {
            let limiter = patient(&url);
            let [own, shadow] = [limit("l", "1/h"), Arc::new(Limit::new("l", quota("1/h")).shadow())];
            for limits in [[&own, &shadow], [&shadow, &own]] {
                let asks = limits.map(|limit| Ask::new(limit, limits[0].shadows().to_string()));
                assert!(limiter.try_acquire(&asks).await.is_ok());
                assert_eq!(limiter.peek(&asks[0]).await.unwrap().used(), 1);
                assert!(limiter.try_acquire(&asks).await.is_err());
            }
        });
    }
}
