//! A Cluster: its nodes fail, move slots, and take over.

use std::{
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::time;
use tollgate_limiter::{StoreError, store::Charge};

use crate::{
    harness::{
        gateway::Gateway,
        judge::{Late, in_time, judge, within},
        open_store,
        redis::{Redis, cluster::Cluster, tls::Certificates},
        wait_until,
    },
    topology::{ask, assert_five_pass, await_store, by_key, server::RIGHTS},
};

/// A decision of a node that answers takes less.
const SOON: Duration = Duration::from_millis(500);
/// What the machine may keep a thread waiting for, and all decisions are there in time.
const PAUSE: Duration = Duration::from_millis(20);

fn toml(cluster: &Cluster) -> String {
    by_key(&format!("url = \"{}\"", cluster.url()))
}

/// The primary that counts this `x-key`.
fn owner_of(cluster: &Cluster, key: &str) -> usize {
    cluster.owner(&format!("{{header:x-key={key}}}"))
}

/// Keys that a primary has, or that it hasn't.
fn keys(cluster: &Cluster, primary: usize, has: bool) -> impl Iterator<Item = String> + use<> {
    let owners = (0..).map(|number| format!("k{number}"));
    let owners = owners.map(|key| (owner_of(cluster, &key), key)).take(400).collect::<Vec<_>>();
    owners.into_iter().filter(move |(owner, _)| (*owner == primary) == has).map(|(_, key)| key)
}

#[test]
fn two_gateways_on_a_cluster_are_one_limiter() {
    let cluster = Cluster::start();
    let gateways = [Gateway::start(&toml(&cluster)), Gateway::start(&toml(&cluster))];
    let gateways = [&gateways[0], &gateways[1]];
    for primary in 0..3 {
        for key in keys(&cluster, primary, true).take(5) {
            assert_five_pass(&gateways, &key);
        }
        assert_eq!(cluster.nodes[primary].keys("*").len(), 5);
    }
    for gateway in gateways {
        gateway.assert_not_logged("the store");
    }
}

#[test]
fn a_limit_holds_on_a_cluster_with_tls_for_a_user_with_only_the_documented_rights() {
    let files = Certificates::for_server(&["127.0.0.1"]);
    let cluster = Cluster::with_tls(&files);
    let rights: Vec<&str> = RIGHTS.split_whitespace().chain(["+cluster|slots", "+asking"]).collect();
    for node in &cluster.nodes {
        node.command(&[&["ACL", "SETUSER", "gateway", "on", ">hunter2"], rights.as_slice()].concat());
        node.command(&["ACL", "SETUSER", "default", "-evalsha", "-eval"]);
    }
    let url = cluster.url().replace("redis-cluster://", "rediss-cluster://gateway:hunter2@");
    let ca = files.path("ca.pem");
    let toml = by_key(&format!("url = \"{url}\"\ntls = {{ ca = {ca:?} }}"));
    // A busy machine takes long over the handshakes, and may start without some of the nodes.
    let gateway = Gateway::start(&toml.replace("timeout = \"1s\"", "timeout = \"5s\""));
    for primary in 0..3 {
        let mut keys = keys(&cluster, primary, true);
        await_store(&gateway, &keys.next().unwrap());
        assert_five_pass(&[&gateway], &keys.next().unwrap());
    }
    gateway.assert_not_logged("rights");
}

#[test]
fn limits_with_the_same_key_are_one_step() {
    let cluster = Cluster::start();
    let gateway = Gateway::start(&format!(
        r#"
        [store]
        url = "{}"
        timeout = "1s"
        on_failure = "deny"
        [limits.narrow]
        key = "ip"
        rate = "3/h"
        [limits.wide]
        key = "ip"
        rate = "9/h"
        [[routes]]
        path = "/"
        respond = {{}}
        limits = ["wide", "narrow"]
        [[routes]]
        path = "/wide"
        respond = {{}}
        limits = ["wide"]
        "#,
        cluster.url()
    ));
    let passed = |path: &str, times| (0..times).filter(|_| gateway.get(path).status == 200).count();
    assert_eq!(passed("/", 8), 3);
    // What the narrow one refused, the wide one wasn't charged.
    assert_eq!(passed("/wide", 8), 6);
}

fn charge(bucket: &str) -> Charge {
    crate::topology::across::charge(bucket, 10, 1)
}

#[test]
fn a_slot_that_moves_keeps_its_counts_and_is_never_out_of_reach() {
    judge(PAUSE, a_slot_moves);
}

fn a_slot_moves() -> Result<(), Late> {
    let cluster = Cluster::start();
    let store = open_store(&cluster.url());
    // Two buckets of one slot; the other one is made while the slot moves.
    let [old, new] = ["t:old:sw:{a}", "t:new:sw:{a}"];
    let (from, slot) = (cluster.owner(old), cluster.slot(old));
    let to = (from + 1) % 3;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let take = async |bucket: &'static str| {
        let asked = Instant::now();
        let decision = store.take(&[charge(bucket)], time::Instant::now() + 10 * SOON).await.unwrap();
        within(asked.elapsed(), SOON, "a decision")?;
        assert!(decision.admitted);
        Ok(decision.outcomes[0].remaining)
    };
    let left = |bucket| runtime.block_on(take(bucket));
    runtime.block_on(store.warm_up()).unwrap();
    assert_eq!(left(old)?, 9);
    cluster.begin_to_move(slot, from, to);
    // Still at its old place; the one that isn't anywhere yet is made at its new one.
    assert_eq!([left(old)?, left(new)?, left(new)?], [8, 9, 8]);
    // Both at once would be one call, which no server could answer as a whole.
    let both = runtime.block_on(async { tokio::join!(take(old), take(new)) });
    assert_eq!((both.0?, both.1?), (7, 7));
    cluster.migrate(old, from, to);
    assert_eq!([left(old)?, left(new)?], [6, 6]);
    cluster.end_move(slot, to);
    assert_eq!([left(old)?, left(new)?, left(old)?, left(new)?], [5, 5, 4, 4]);
    assert_eq!(cluster.nodes[to].keys("t:*").len(), 2);
    Ok(())
}

/// Nodes that have no name, where names are preferred, are referred to as `?`.
#[test]
fn a_redirection_without_a_host_leads_to_the_host_of_the_node_that_gives_it() {
    let cluster = Cluster::start();
    for node in &cluster.nodes {
        node.command(&["CONFIG", "SET", "cluster-preferred-endpoint-type", "hostname"]);
    }
    let store = open_store(&cluster.url());
    let [old, new] = ["t:old:sw:{a}", "t:new:sw:{a}"];
    let (from, slot) = (cluster.owner(old), cluster.slot(old));
    let to = (from + 1) % 3;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let left = |bucket| {
        let take = async { store.take(&[charge(bucket)], time::Instant::now() + 10 * SOON).await };
        runtime.block_on(take).unwrap().outcomes[0].remaining
    };
    runtime.block_on(store.warm_up()).unwrap();
    assert_eq!(left(old), 9);
    cluster.begin_to_move(slot, from, to);
    assert_eq!(left(new), 9);
    cluster.migrate(old, from, to);
    cluster.end_move(slot, to);
    assert_eq!([left(old), left(new)], [8, 8]);
}

#[test]
fn a_redirection_to_a_node_that_fails_is_not_waited_for() {
    let mut cluster = Cluster::start();
    let store = open_store(&cluster.url());
    // A bucket that isn't anywhere yet, in a slot that is moving to the node that fails; and a bucket of that node.
    let new = "t:new:sw:{a}";
    let (from, slot) = (cluster.owner(new), cluster.slot(new));
    let to = (from + 1) % 3;
    let mut buckets = (0..).map(|number| format!("t:l:sw:{{{number}}}"));
    let of_the_lost = buckets.find(|bucket| cluster.owner(bucket) == to).unwrap();
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let take = async |bucket| store.take(&[charge(bucket)], time::Instant::now() + 10 * SOON).await;
        store.warm_up().await.unwrap();
        cluster.begin_to_move(slot, from, to);
        cluster.nodes[to].kill();
        take(&of_the_lost).await.unwrap_err();
        // Also once the client has noticed.
        while cluster.nodes[to + 3].info("role") != "master" {
            let error = take(new).await.unwrap_err();
            assert!(matches!(error, StoreError::Open), "{error:?}");
        }
    });
}

/// Asks for keys of other primaries while one is gone, and then for its own until it is replaced.
fn assert_one_failure_is_the_only_one(fail: impl Fn(&mut Redis)) {
    judge(PAUSE, || one_failure_is_the_only_one(&fail));
}

fn one_failure_is_the_only_one(fail: impl Fn(&mut Redis)) -> Result<(), Late> {
    let mut cluster = Cluster::start();
    let gateway = Gateway::start(&toml(&cluster).replace("\"1s\"", "\"200ms\""));
    let mut others = keys(&cluster, 1, false);
    let of_the_lost: Vec<_> = keys(&cluster, 1, true).collect();
    for key in of_the_lost.iter().take(5) {
        assert_eq!(ask(&gateway, key), 200);
    }
    fail(&mut cluster.nodes[1]);
    let since = Instant::now();
    let (mut refused, mut served, mut slowest, mut failed) = (0, 0, Duration::ZERO, None);
    // One of its own after each other one, until the replica serves.
    wait_until("the replica serves", || {
        let asked = Instant::now();
        // A key is asked once, so nothing but a failure can refuse it.
        if let Some(key) = others.next() {
            if ask(&gateway, &key) != 200 {
                failed.get_or_insert_with(|| (since.elapsed(), gateway.log()));
            }
            slowest = slowest.max(asked.elapsed());
            served += 1;
        }
        let status = ask(&gateway, &of_the_lost[5]);
        refused += usize::from(status == 503);
        status == 200
    });
    in_time(failed.is_none(), || format!("a key of another primary had no answer: {failed:?}"))?;
    within(slowest, SOON, "asking for a key of another primary")?;
    in_time(refused > 0 && served > 5, || format!("{refused} refused, {served} served"))?;
    // What the others counted meanwhile was exact: each of these keys has been charged once.
    for key in keys(&cluster, 1, false).take(served.min(20)) {
        let rest = [(); 5].map(|()| ask(&gateway, &key));
        in_time(!rest.contains(&503), || format!("{key} had no answer"))?;
        assert_eq!(rest, [200, 200, 200, 200, 429], "{key}");
    }
    // By then all of them are at their places again.
    for key in of_the_lost.iter().skip(10).take(20) {
        let status = ask(&gateway, key);
        in_time(status == 200, || format!("{status}: {}", gateway.log()))?;
    }
    let fresh = [(); 8].map(|()| ask(&gateway, "fresh"));
    in_time(!fresh.contains(&503), || format!("a fresh key had no answer: {fresh:?}"))?;
    assert_eq!(fresh, [200, 200, 200, 200, 200, 429, 429, 429], "{}", gateway.log());
    Ok(())
}

#[test]
fn a_primary_that_is_killed_fails_alone_and_is_replaced() {
    assert_one_failure_is_the_only_one(Redis::kill);
}

#[test]
fn a_primary_that_hangs_fails_alone_and_is_replaced() {
    assert_one_failure_is_the_only_one(|redis| redis.pause());
}

/// Asks for one key through two gateways for as long as its limit has room, and meanwhile does something to its
/// slot, time after time. Not one request fails, and the limit is exact.
fn assert_exact_under_load(disturb: impl Fn(&Cluster, usize)) {
    const PERMITS: usize = 3_000;
    let cluster = Cluster::start();
    let toml = toml(&cluster).replace("5/h", &format!("{PERMITS}/h"));
    let gateways = [Gateway::start(&toml), Gateway::start(&toml)];
    let asked = AtomicUsize::new(0);
    let count = |turn: usize| {
        let mut client = gateways[turn % 2].client();
        let statuses = std::iter::from_fn(|| {
            let status = client.ask("GET /\nx-key: a").status;
            asked.fetch_add(1, SeqCst);
            (status != 429).then_some(status)
        });
        statuses.fold(
            [0, 0],
            |[passed, failed], status| {
                if status == 200 { [passed + 1, failed] } else { [passed, failed + 1] }
            },
        )
    };
    let counts = thread::scope(|scope| {
        let clients: Vec<_> = (0..4).map(|turn| scope.spawn(move || count(turn))).collect();
        let mut times = 0;
        while asked.load(SeqCst) < PERMITS {
            disturb(&cluster, times);
            times += 1;
        }
        assert!(times > 2, "{times}");
        clients.into_iter().map(|client| client.join().unwrap()).collect::<Vec<_>>()
    });
    let [passed, failed] = [0, 1].map(|at| counts.iter().map(|count| count[at]).sum::<usize>());
    assert_eq!((passed, failed), (PERMITS, 0), "{}{}", gateways[0].log(), gateways[1].log());
}

#[test]
fn a_slot_that_moves_to_and_fro_under_load_keeps_its_count() {
    let bucket = "tollgate:per-key:sw:{header:x-key=a}";
    assert_exact_under_load(|cluster, times| {
        let home = cluster.owner(bucket);
        let [from, to] = [times, times + 1].map(|times| (home + times % 2) % 3);
        cluster.begin_to_move(cluster.slot(bucket), from, to);
        cluster.migrate(bucket, from, to);
        cluster.end_move(cluster.slot(bucket), to);
    });
}

#[test]
fn a_primary_that_hands_over_to_its_replica_under_load_keeps_its_counts() {
    assert_exact_under_load(|cluster, times| {
        let replica = &cluster.nodes[owner_of(cluster, "a") + 3];
        if times == 0 {
            replica.command(&["CLUSTER", "FAILOVER"]);
        }
        wait_until("the replica has taken over", || replica.info("role") == "master");
    });
}

#[test]
fn a_gateway_starts_without_its_cluster_and_finds_it_later() {
    let mut cluster = Cluster::start();
    for node in &mut cluster.nodes {
        node.kill();
    }
    let gateway = Gateway::start(&toml(&cluster));
    assert_eq!(ask(&gateway, "a"), 503);
    wait_until("the cause is told", || gateway.log().contains("can't read the slots"));
    for node in &mut cluster.nodes {
        node.restart();
    }
    wait_until("the cluster is asked", || ask(&gateway, "b") == 200);
    for primary in 0..3 {
        // Another key each time, so that none is used up.
        let mut keys = keys(&cluster, primary, true);
        wait_until("all of it is asked", || ask(&gateway, &keys.next().unwrap()) == 200);
    }
}

#[test]
fn the_url_of_one_server_that_is_a_node_is_told_what_to_be() {
    let cluster = Cluster::start();
    let gateway = Gateway::start(&by_key(&format!("url = \"{}\"", cluster.nodes[0].url())));
    assert_eq!(ask(&gateway, &keys(&cluster, 1, true).next().unwrap()), 503);
    wait_until("the remedy is told", || gateway.log().contains("redis-cluster://"));
}

#[test]
fn a_command_runs_where_its_key_is() {
    let cluster = Cluster::start();
    let store = open_store(&cluster.url());
    let tollgate_limiter::store::Store::Redis(redis) = &store else { panic!("{store:?}") };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        redis.warm_up().await.unwrap();
        for key in ["a", "b", "c", "d", "e", "f"] {
            let deadline = time::Instant::now() + 10 * SOON;
            let words = ["SET", key, "1"].map(|word| Bytes::copy_from_slice(word.as_bytes())).to_vec();
            redis.command(key, words, deadline).await.unwrap();
            assert_eq!(cluster.nodes[cluster.owner(key)].command(&["GET", key]), "1");
        }
    });
}
