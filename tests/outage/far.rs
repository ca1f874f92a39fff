//! Several calls to a distant server are in flight, within a bound.

use std::{sync::Arc, time::Duration};

use tokio::{
    runtime::Builder,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tollgate_limiter::{
    Rate, StoreError,
    store::{Charge, Store},
};

use crate::harness::{
    cut::{Cut, Fault},
    open_store_within,
    redis::Redis,
    wait_until,
};

const TIMEOUT: Duration = Duration::from_millis(1_000);

fn charge(key: &str) -> Charge {
    let quota = "1000000/h".parse::<Rate>().unwrap().into();
    Charge { bucket: format!("t:l:sw:{{{key}}}").into(), quota, cost: 1, shadow: false }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Takes so many permits in this time, one after the other, whether they are answered or not.
fn take_steadily(store: &Arc<Store>, count: u32, within: Duration) -> JoinSet<Result<(), StoreError>> {
    let (begin, mut tasks) = (Instant::now(), JoinSet::new());
    for turn in 0..count {
        let store = store.clone();
        tasks.spawn(async move {
            sleep_until(begin + within * turn / count).await;
            store.take(&[charge("steady")], Instant::now() + TIMEOUT).await.map(drop)
        });
    }
    tasks
}

#[test]
fn at_most_sixteen_calls_are_in_flight_however_many_requests_come() {
    let redis = Redis::start();
    let cut = Cut::before(redis.port());
    let store = Arc::new(open_store_within(&cut.url(), "1s"));
    run(async {
        store.warm_up().await.unwrap();
        cut.set(Fault::Delay(Duration::from_millis(400)));
        while store.take(&[charge("far")], Instant::now() + TIMEOUT).await.is_err() {}
        // What is asked from now on is done at once, and no answer comes.
        cut.set(Fault::SwallowReplies);
        let before = redis.scripts();
        let tasks = take_steadily(&store, 2_000, TIMEOUT * 9 / 10);
        sleep(TIMEOUT * 9 / 10).await;
        let calls = redis.scripts() - before;
        assert!((4..=16).contains(&calls), "{calls} calls are in flight");
        drop(tasks);
    });
}

#[test]
fn requests_that_come_while_a_near_server_stands_still_are_not_sent_after_their_deadline() {
    let redis = Redis::start();
    let store = Arc::new(open_store_within(&redis.url(), "5s"));
    run(async {
        store.warm_up().await.unwrap();
        redis.pause();
        let ask = |key: String, within_ms| {
            let store = store.clone();
            let deadline = Instant::now() + Duration::from_millis(within_ms);
            tokio::spawn(async move { store.take(&[charge(&key)], deadline).await })
        };
        let first = ask("first".to_owned(), 4_000);
        sleep(Duration::from_millis(20)).await;
        let others: Vec<_> = (0..50).map(|turn| ask(format!("late {turn}"), 100)).collect();
        for other in others {
            assert!(matches!(other.await.unwrap(), Err(StoreError::Timeout)));
        }
        redis.resume();
        first.await.unwrap().unwrap();
        store.take(&[charge("after")], Instant::now() + TIMEOUT).await.unwrap();
    });
    // Who got the failure policy was not charged.
    wait_until("only the others are charged", || redis.keys("t:*").len() == 2);
}
