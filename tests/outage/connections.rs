//! Workers that Redis accepts no connection from, while it answers on those of others.

use std::{sync::Arc, thread, time::Duration};

use tokio::{
    runtime::Builder,
    time::{Instant, timeout},
};
use tollgate_limiter::{
    Rate, StoreError,
    store::{Charge, Store},
};

use crate::{
    harness::{open_store_within, redis::Redis, resp::Connection, wait_until},
    outage::one_limit,
};

/// Returns the connections of Redis other than those that subscribe, each with its id and its last command.
fn connections(operator: &mut Connection) -> Vec<String> {
    operator.command(&["CLIENT", "LIST", "TYPE", "normal"]).text().lines().map(str::to_owned).collect()
}

/// Returns the ids of those whose last command was a decision.
fn callers(operator: &mut Connection) -> Vec<String> {
    let all = connections(operator).into_iter();
    let of_calls = all.filter(|connection| connection.contains(" cmd=evalsha "));
    of_calls.map(|connection| connection.split(['=', ' ']).nth(1).unwrap().to_owned()).collect()
}

#[test]
fn a_worker_that_cannot_connect_asks_by_the_connection_of_another() {
    let redis = Redis::start();
    let gateway = one_limit(&redis.store(), "key = \"global\"\nrate = \"100000/h\"\non_failure = \"deny\"");
    let mut operator = redis.connect();
    let mut clients = [(); 8].map(|()| gateway.client());
    let mut all_pass = || clients.iter_mut().all(|client| client.get("/").status == 200);
    wait_until("both workers have asked", || all_pass() && callers(&mut operator).len() == 2);
    // The thread beside the workers, which asks for rates that were set at run time, and the operator.
    wait_until("all are connected", || connections(&mut operator).len() == 4);
    let worker = callers(&mut operator).remove(0);
    operator.command(&["CONFIG", "SET", "maxclients", "1"]);
    operator.command(&["CLIENT", "KILL", "ID", &worker]);
    let mut has_rejected = || {
        let stats = operator.command(&["INFO", "stats"]);
        !stats.text().contains("rejected_connections:0\r")
    };
    wait_until("the worker is rejected", &mut has_rejected);
    // A call on which the loss shows opens the breaker, which closes again.
    wait_until("all are decided by the store", &mut all_pass);
    for turn in 0..100 {
        assert!(all_pass(), "turn {turn}: {}", gateway.log());
    }
    assert_eq!(connections(&mut operator).len(), 3);
    operator.command(&["CONFIG", "SET", "maxclients", "1000"]);
    wait_until("the worker is connected", || connections(&mut operator).len() == 4);
    assert!(all_pass());
}

/// Takes a permit. The store must answer or give up within five seconds.
async fn take(store: &Store) -> Result<(), StoreError> {
    let quota = "1000/h".parse::<Rate>().unwrap().into();
    let charges = [Charge { bucket: "t:l:sw:{key}".into(), quota, cost: 1, shadow: false }];
    let taken = store.take(&charges, Instant::now() + Duration::from_secs(5));
    timeout(Duration::from_secs(30), taken).await.expect("the deadline holds").map(drop)
}

#[test]
fn a_thread_that_stands_still_holds_up_no_other_one() {
    let redis = Redis::start();
    let store = Arc::new(open_store_within(&redis.url(), "5s"));
    // It is connected, and nothing drives it from here on.
    let still = Builder::new_current_thread().enable_all().build().unwrap();
    still.block_on(store.warm_up()).unwrap();
    let mut operator = redis.connect();
    let other = thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            take(&store).await.expect("a new thread asks by its own connection");
            let own = callers(&mut operator).pop().unwrap();
            operator.command(&["CONFIG", "SET", "maxclients", "1"]);
            operator.command(&["CLIENT", "KILL", "ID", &own]);
            let mut failed = 0;
            while failed < 3 {
                failed += usize::from(take(&store).await.is_err());
            }
        });
    });
    other.join().unwrap();
}
