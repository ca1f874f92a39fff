//! Charges of one request on several nodes: all or none, and never too many.

use std::{future::ready, sync::Arc, thread, time::Duration};

use bytes::Bytes;
use tokio::{runtime, time::Instant};
use tollgate_limiter::{
    Algorithm, Ask, Limit, Limiter, Quota, Rate, StoreSettings,
    store::{Charge, Decision, Store},
};

use crate::harness::{
    PATIENCE, open_store, open_store_within,
    redis::{Redis, cluster::Cluster},
};

/// A charge on a bucket with so many permits an hour.
pub(crate) fn charge(bucket: &str, permits: u32, cost: u32) -> Charge {
    let quota = Rate { permits, window_us: 3_600_000_000 }.into();
    Charge { bucket: Bytes::copy_from_slice(bucket.as_bytes()), quota, cost, shadow: false }
}

/// Three buckets, each on another primary.
fn buckets(cluster: &Cluster) -> [String; 3] {
    [0, 1, 2].map(|primary| {
        let mut buckets = (0..).map(|number| format!("t:l{primary}:sw:{{{number}}}"));
        buckets.find(|bucket| cluster.owner(bucket) == primary).unwrap()
    })
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

async fn take(store: &Store, charges: &[Charge]) -> Decision {
    let deadline = Instant::now() + Duration::from_secs(5);
    store.take(charges, deadline).await.unwrap()
}

async fn used(store: &Store, charge: &Charge) -> u64 {
    let deadline = Instant::now() + Duration::from_secs(5);
    let usage = store.peek(charge.bucket.clone(), charge.quota, 1, deadline).await.unwrap();
    usage.used
}

#[test]
fn all_are_charged_or_none() {
    let cluster = Cluster::start();
    let store = open_store(&cluster.url());
    let [a, b, c] = buckets(&cluster);
    block_on(async {
        store.warm_up().await.unwrap();
        let shadow = Charge { shadow: true, ..charge(&c, 2, 1) };
        let asked = [charge(&a, 9, 2), shadow, charge(&b, 4, 1)];
        for turn in 1..=4 {
            let decision = take(&store, &asked).await;
            assert!(decision.admitted);
            let seen: Vec<_> =
                decision.outcomes.iter().map(|outcome| (outcome.charged, outcome.remaining)).collect();
            // What shadows is charged while it has room, and refuses nobody.
            assert_eq!(
                seen,
                [(true, 9 - 2 * turn), (turn <= 2, 2_u64.saturating_sub(turn)), (true, 4 - turn)]
            );
        }
        // There is room in the first, not in the last.
        let refused = take(&store, &[charge(&a, 9, 1), charge(&c, 9, 1), charge(&b, 4, 1)]).await;
        assert!(!refused.admitted);
        let delays: Vec<_> = refused.outcomes.iter().map(|outcome| outcome.delay_us).collect();
        assert_eq!((delays[0], delays[1]), (Some(0), Some(0)));
        assert!(delays[2].unwrap() > 3_590_000_000, "{delays:?}");
        // Two don't fit where one does; ten never fit.
        let outcomes = take(&store, &[charge(&a, 9, 2), charge(&b, 5, 10)]).await.outcomes;
        assert!(outcomes[0].delay_us.unwrap() > 3_590_000_000 && outcomes[1].delay_us.is_none());
        assert_eq!(
            [used(&store, &asked[0]).await, used(&store, &asked[1]).await, used(&store, &asked[2]).await],
            [8, 2, 4]
        );
        assert_eq!(store.charges_left_behind(), 0);
    });
}

/// Each slot's grant has the time of its own server, which the other one's is before or after.
#[test]
fn the_first_grant_of_a_window_can_be_given_back() {
    let cluster = Cluster::start();
    block_on(async {
        let settings = StoreSettings::at(&cluster.url()).unwrap();
        let limiter = Limiter::open(&StoreSettings { timeout: Duration::from_secs(5), ..settings }).unwrap();
        limiter.warm_up().await.unwrap();
        let limits = ["one", "other"].map(|name| {
            let quota = Quota::new(Algorithm::FixedWindow, "9/h".parse().unwrap());
            Arc::new(Limit::new(name, quota).with_refunds())
        });
        for user in 0..10 {
            let asks = limits.each_ref().map(|limit| Ask::new(limit, format!("{} {user}", limit.name())));
            let admission = limiter.try_acquire(&asks).await.unwrap();
            for ask in &asks {
                assert!(limiter.release(ask, Some(&admission)).await.unwrap(), "{ask:?}");
                assert_eq!(limiter.peek(ask).await.unwrap().used(), 0);
            }
        }
    });
}

/// A shadowing charge doesn't record again what an enforcing one records.
#[test]
fn a_bucket_that_is_charged_is_only_looked_at_by_what_shadows() {
    let cluster = Cluster::start();
    let store = open_store(&cluster.url());
    let [a, b, _] = buckets(&cluster);
    block_on(async {
        store.warm_up().await.unwrap();
        let own = charge(&a, 3, 2);
        let asked = [Charge { shadow: true, ..own.clone() }, own.clone(), charge(&b, 5, 1)];
        let decision = take(&store, &asked).await;
        let seen =
            decision.outcomes.iter().map(|outcome| (outcome.charged, outcome.delay_us, outcome.remaining));
        assert!(seen.eq([(false, Some(0), 1), (true, Some(0), 1), (true, Some(0), 4)]), "{decision:?}");
        let refused = take(&store, &asked).await;
        let delays: Vec<_> = refused.outcomes.iter().map(|outcome| outcome.delay_us.unwrap()).collect();
        assert!(delays[0] > 3_590_000_000 && delays[1] > 3_590_000_000 && delays[2] == 0, "{refused:?}");
        assert_eq!(used(&store, &own).await, 2);
    });
}

/// Decides requests on several threads at once, and returns those that were admitted.
fn contend(store: &Arc<Store>, asked: &[Charge]) -> Vec<Decision> {
    let one_thread = || {
        block_on(async {
            store.warm_up().await.unwrap();
            let mut admitted = Vec::new();
            for _ in 0..20 {
                let ask = || take(store, asked);
                let (one, two, three, four) = tokio::join!(ask(), ask(), ask(), ask());
                admitted.extend([one, two, three, four].into_iter().filter(|decision| decision.admitted));
            }
            // Leases are given back by this thread, which tells nobody when.
            tokio::time::sleep(Duration::from_millis(500)).await;
            admitted
        })
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(one_thread)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn at_once_they_never_exceed_a_limit_and_what_stays_behind_is_counted() {
    let cluster = Cluster::start();
    let store = Arc::new(open_store(&cluster.url()));
    let [a, b, c] = buckets(&cluster);
    let asked = [charge(&a, 100, 1), charge(&b, 90, 1), charge(&c, 95, 1)];
    let admitted = contend(&store, &asked).len() as u64;
    assert!(admitted <= 90 && admitted > 45, "{admitted}");
    let left_behind = store.charges_left_behind();
    // Not on what the threads that have ended left.
    let store = open_store(&cluster.url());
    let total = block_on(async {
        store.warm_up().await.unwrap();
        let mut total = 0;
        for charge in &asked {
            let used = used(&store, charge).await;
            assert!(used >= admitted && used <= u64::from(charge.quota.permits), "{used}");
            total += used;
        }
        total
    });
    assert_eq!(total, 3 * admitted + left_behind);
}

#[test]
fn leases_of_a_request_that_is_refused_are_given_back() {
    let cluster = Cluster::start();
    let store = Arc::new(open_store(&cluster.url()));
    let [a, b, _] = buckets(&cluster);
    let asked = [slots(&a, 12), slots(&b, 10)];
    let admitted = contend(&store, &asked);
    assert!(admitted.len() <= 10 && !admitted.is_empty(), "{}", admitted.len());
    assert!(admitted.iter().all(|decision| decision.leases.len() == 2));
    assert_eq!(store.charges_left_behind(), 0);
    let store = open_store(&cluster.url());
    block_on(async {
        store.warm_up().await.unwrap();
        wait_until_used(&store, &asked, admitted.len()).await;
        for lease in admitted.iter().flat_map(|decision| &decision.leases) {
            store.release(lease);
        }
        wait_until_used(&store, &asked, 0).await;
    });
}

/// Returns a charge on a bucket of which so many may be in use at once.
pub(crate) fn slots(bucket: &str, permits: u32) -> Charge {
    let quota = Quota::new(Algorithm::Concurrency, Rate { permits, window_us: 3_600_000_000 });
    Charge { quota, ..charge(bucket, 1, 1) }
}

#[test]
fn a_shadow_limit_whose_node_fails_decides_nothing() {
    let cases: [fn(&mut Redis); 2] = [Redis::kill, |redis| redis.pause()];
    for fail in cases {
        let mut cluster = Cluster::start();
        let store = open_store_within(&cluster.url(), "1s");
        let [a, b, _] = buckets(&cluster);
        let asked = [charge(&a, 5, 1), Charge { shadow: true, ..charge(&b, 5, 1) }];
        block_on(async {
            store.warm_up().await.unwrap();
            fail(&mut cluster.nodes[1]);
            for turn in 0..8 {
                let deadline = Instant::now() + Duration::from_secs(1);
                let decision = store.take(&asked, deadline).await.unwrap();
                assert_eq!((decision.admitted, decision.outcomes[0].charged), (turn < 5, turn < 5), "{turn}");
            }
        });
    }
}

#[test]
fn leases_of_a_request_that_ends_while_a_shadow_limit_is_asked_are_given_back() {
    let cluster = Cluster::start();
    let store = open_store(&cluster.url());
    let [a, b, _] = buckets(&cluster);
    let asked = [slots(&a, 2), Charge { shadow: true, ..charge(&b, 5, 1) }];
    block_on(async {
        store.warm_up().await.unwrap();
        cluster.nodes[1].pause();
        let is_granted = async {
            wait_until_used(&store, &asked[..1], 1).await;
            // By the next answer, the request has seen its own.
            used(&store, &asked[0]).await
        };
        tokio::select! {
            decision = take(&store, &asked) => panic!("{decision:?}"),
            used = is_granted => assert_eq!(used, 1),
        }
        wait_until_used(&store, &asked[..1], 0).await;
    });
}

#[test]
fn leases_of_a_request_that_ends_when_its_answer_has_come_are_given_back() {
    let redis = Redis::start();
    let store = open_store(&redis.url());
    let asked = [slots("t:l:cc:{a}", 2)];
    block_on(async {
        store.warm_up().await.unwrap();
        let mut taken = Box::pin(take(&store, &asked));
        tokio::select! {
            biased;
            decision = &mut taken => panic!("{decision:?}"),
            () = ready(()) => {}
        }
        // Answers come in the order of the questions.
        wait_until_used(&store, &asked, 1).await;
        drop(taken);
        wait_until_used(&store, &asked, 0).await;
    });
}

/// Waits until so much of each is in use.
async fn wait_until_used(store: &Store, charges: &[Charge], expected: usize) {
    for charge in charges {
        let since = Instant::now();
        while used(store, charge).await != expected as u64 {
            assert!(since.elapsed() < PATIENCE, "waited in vain until {expected} are in use");
        }
    }
}
