//! Messages from one gateway to all others.

use std::time::Duration;

use bytes::Bytes;
use tokio::{
    runtime,
    time::{Instant, timeout},
};
use tollgate_limiter::store::{Store, redis::RedisStore};

use crate::harness::{
    open_store,
    redis::{Redis, cluster::Cluster},
};

const PATIENCE: Duration = Duration::from_secs(10);

fn redis(store: &Store) -> &RedisStore {
    let Store::Redis(redis) = store else { panic!("{store:?}") };
    redis
}

/// Says something until it is heard: a subscription takes a moment.
async fn assert_is_heard(store: &RedisStore, message: &str, heard: &mut tokio::sync::mpsc::Receiver<Bytes>) {
    let since = Instant::now();
    loop {
        assert!(since.elapsed() < PATIENCE, "`{message}` is never heard");
        let deadline = Instant::now() + Duration::from_secs(1);
        let said = store.publish("tollgate:changes", Bytes::from(message.to_owned()), deadline).await;
        while let Ok(Some(text)) = timeout(Duration::from_millis(20), heard.recv()).await {
            if said.is_ok() && text == message.as_bytes() {
                return;
            }
        }
    }
}

#[test]
fn a_message_reaches_who_listens_also_after_a_restart() {
    let mut redis_server = Redis::start();
    let (store, other) = (open_store(&redis_server.url()), open_store(&redis_server.url()));
    runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        redis(&store).warm_up().await.unwrap();
        let mut heard = redis(&other).subscribe("tollgate:changes".to_owned());
        assert_is_heard(redis(&store), "one", &mut heard).await;
        redis_server.kill();
        redis_server.restart();
        assert_is_heard(redis(&store), "two", &mut heard).await;
    });
}

#[test]
fn a_message_reaches_who_listens_to_any_node_of_a_cluster() {
    let mut cluster = Cluster::start();
    let store = open_store(&cluster.url());
    let others: Vec<_> = (0..4).map(|_| open_store(&cluster.url())).collect();
    runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        redis(&store).warm_up().await.unwrap();
        let mut listeners = Vec::new();
        for other in &others {
            redis(other).warm_up().await.unwrap();
            listeners.push(redis(other).subscribe("tollgate:changes".to_owned()));
        }
        for heard in &mut listeners {
            assert_is_heard(redis(&store), "one", heard).await;
        }
        let lost = cluster.owner("tollgate:changes");
        cluster.nodes[(lost + 1) % 3].kill();
        for heard in &mut listeners {
            assert_is_heard(redis(&store), "two", heard).await;
        }
    });
}
