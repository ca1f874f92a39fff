//! Leases of requests that end while Redis is away: none is taken for longer than Redis is.

use std::{sync::Arc, time::Duration};

use tokio::{
    runtime::Runtime,
    time::{Instant, sleep, timeout},
};
use tollgate_limiter::{
    Algorithm, Ask, Limit, Limiter, Quota, Rate, StoreError,
    store::{Charge, Lease, Store},
};

use crate::{
    harness::{
        PATIENCE,
        cut::{Cut, Fault},
        judge::{in_time, judge},
        open_store_within,
        redis::{Redis, cluster::Cluster},
        wait_until,
    },
    outage::cuts::FAULTS,
    topology::across::slots,
};

const BUCKET: &str = "t:l:cc:{a}";

/// Returns a charge of two leases, which last for an hour, of nine.
fn two_of_nine() -> Charge {
    Charge { cost: 2, ..slots(BUCKET, 9) }
}

async fn take(store: &Store) -> Result<Vec<Lease>, StoreError> {
    let taken = store.take(&[two_of_nine()], Instant::now() + Duration::from_millis(100)).await;
    taken.map(|decision| decision.leases)
}

async fn wait_until_none_is_taken(store: &Store) {
    let since = Instant::now();
    loop {
        let Charge { bucket, quota, .. } = two_of_nine();
        let usage = store.peek(bucket, quota, 1, Instant::now() + Duration::from_secs(1)).await;
        if usage.as_ref().is_ok_and(|usage| usage.used == 0) {
            return;
        }
        assert!(since.elapsed() < PATIENCE, "waited in vain until no lease is taken: {usage:?}");
        sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn leases_end_once_the_store_answers_again_however_connections_broke() {
    for fault in FAULTS {
        let redis = Redis::start();
        let cut = Cut::before(redis.port());
        let store = open_store_within(&cut.url(), "100ms");
        Runtime::new().unwrap().block_on(async {
            store.warm_up().await.unwrap();
            let held = take(&store).await.unwrap();
            assert_eq!(held.len(), 2);
            cut.set(fault);
            // One ends in a call that fails, the other one when nothing is asked any more.
            store.release(&held[0]);
            for _ in 0..5 {
                if let Ok(leases) = take(&store).await {
                    leases.iter().for_each(|lease| store.release(lease));
                }
            }
            store.release(&held[1]);
            cut.set(Fault::None);
            wait_until_none_is_taken(&store).await;
            assert_eq!(redis.command(&["ZCARD", BUCKET]), "0", "{fault:?}");
        });
    }
}

#[test]
fn leases_end_once_a_replica_has_taken_the_place_of_their_primary() {
    let mut cluster = Cluster::start();
    let store = open_store_within(&cluster.url(), "100ms");
    let owner = cluster.owner(BUCKET);
    Runtime::new().unwrap().block_on(async {
        store.warm_up().await.unwrap();
        let held = take(&store).await.unwrap();
        wait_until("the replica has the leases", || cluster.nodes[owner].command(&["WAIT", "1", "0"]) == "1");
        cluster.nodes[owner].kill();
        held.iter().for_each(|lease| store.release(lease));
        wait_until("the replica serves", || cluster.nodes[owner + 3].info("role") == "master");
        wait_until_none_is_taken(&store).await;
    });
}

/// The bucket of a lease of a second is there, and would end before that of an hour.
#[test]
fn a_lease_whose_bucket_can_not_be_kept_as_long_is_not_taken() {
    let redis = Redis::start();
    let store = open_store_within(&redis.url(), "1s");
    Runtime::new().unwrap().block_on(async {
        store.warm_up().await.unwrap();
        let mut short = Charge { cost: 1, ..slots(BUCKET, 9) };
        short.quota.window_us = 1_000_000;
        store.take(&[short], Instant::now() + Duration::from_secs(1)).await.unwrap();
        redis.command(&["ACL", "SETUSER", "default", "-pexpire"]);
        take(&store).await.unwrap_err();
        assert_eq!(redis.command(&["ZCARD", BUCKET]), "1");
        redis.command(&["ACL", "SETUSER", "default", "+@all"]);
        assert_eq!(take(&store).await.unwrap().len(), 2);
    });
}

#[test]
fn leases_end_once_the_server_takes_releases_again() {
    let refusals: [[&[&str]; 2]; 3] = [
        [&["CONFIG", "SET", "min-replicas-to-write", "1"], &["CONFIG", "SET", "min-replicas-to-write", "0"]],
        [&["ACL", "SETUSER", "default", "-zrem"], &["ACL", "SETUSER", "default", "+@all"]],
        [&["REPLICAOF", "127.0.0.1", "1"], &["REPLICAOF", "NO", "ONE"]],
    ];
    for [begin, end] in refusals {
        let redis = Redis::start();
        let store = open_store_within(&redis.url(), "100ms");
        Runtime::new().unwrap().block_on(async {
            store.warm_up().await.unwrap();
            let held = take(&store).await.unwrap();
            redis.command(&["CONFIG", "RESETSTAT"]);
            redis.command(begin);
            held.iter().for_each(|lease| store.release(lease));
            wait_until("the server refuses", || redis.command(&["INFO", "errorstats"]).contains("count="));
            assert_eq!(redis.command(&["ZCARD", BUCKET]), "2", "{begin:?}");
            redis.command(end);
            wait_until_none_is_taken(&store).await;
        });
    }
}

/// Redis refuses two renewals of a lease, which are due after a third and two thirds of it. The next one would come too late.
#[test]
fn a_renewal_that_fails_is_repeated_before_the_lease_ends() {
    const ENDS_AND_NOW: &str = "local now = redis.call('TIME')
        local ends = redis.call('ZRANGE', KEYS[1], '0', '0', 'WITHSCORES')[2]
        return (ends or '0') .. ' ' .. now[1] .. string.format('%06d', now[2])";
    let redis = Redis::start();
    let trial = async || {
        let limiter = Limiter::connect(&redis.url()).unwrap();
        let rate = Rate { permits: 9, window_us: 6_000_000 };
        let uploads = Arc::new(Limit::new("uploads", Quota::new(Algorithm::Concurrency, rate)));
        let _taken = limiter.acquire(Ask::new(&uploads, "alice"), None).await.unwrap();
        redis.command(&["ACL", "SETUSER", "default", "-zadd"]);
        let ends_and_now = || {
            let told = redis.command(&["EVAL", ENDS_AND_NOW, "1", "tollgate:uploads:cc:{caller=alice}"]);
            let (ends, now) = told.split_once(' ').unwrap();
            (ends.parse::<u64>().unwrap(), now.parse::<u64>().unwrap())
        };
        let (ends, now) = ends_and_now();
        let is_held = |now: u64| in_time(now < ends, || "the lease has ended".to_owned());
        sleep(Duration::from_micros(ends.saturating_sub(now).saturating_sub(1_800_000))).await;
        let (refused, now) = ends_and_now();
        redis.command(&["ACL", "SETUSER", "default", "+@all"]);
        is_held(now)?;
        assert_eq!(refused, ends);
        loop {
            let (renewed, now) = ends_and_now();
            is_held(now)?;
            if renewed > ends {
                return Ok(());
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    judge(Duration::from_millis(20), || Runtime::new().unwrap().block_on(trial()));
}

/// A bucket that has another type by now can't be changed, but nobody needs its release any more once the lease has ended.
#[test]
fn a_release_that_the_server_refuses_is_given_up_when_the_lease_has_ended() {
    let cluster = Cluster::start();
    Runtime::new().unwrap().block_on(async {
        let limiter = Limiter::connect(&cluster.url()).unwrap();
        // On a busy machine, a short lease may have ended before the release is sent.
        for seconds in [2, 4, 8] {
            let rate = Rate { permits: 9, window_us: seconds * 1_000_000 };
            let name = format!("uploads-{seconds}");
            let uploads = Arc::new(Limit::new(&name, Quota::new(Algorithm::Concurrency, rate)));
            let taken = limiter.acquire(Ask::new(&uploads, "alice"), None).await.unwrap();
            let bucket = format!("tollgate:{name}:cc:{{caller=alice}}");
            let owner = &cluster.nodes[cluster.owner(&bucket)];
            assert_eq!(owner.command(&["SET", &bucket, "another type", "EX", "60"]), "OK");
            drop(taken);
            timeout(PATIENCE, limiter.flush()).await.expect("the release is given up");
            if owner.command(&["INFO", "errorstats"]).contains("WRONGTYPE") {
                return;
            }
        }
        panic!("the server got no release");
    });
}
