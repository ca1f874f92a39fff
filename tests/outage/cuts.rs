//! Connections that break, hang or lose data: nothing is charged twice, and every request gets a response.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread::{self, sleep},
    time::{Duration, Instant},
};

use tokio::runtime::Builder;
use tollgate_limiter::{Rate, store::Charge};

use crate::{
    harness::{
        EndOnDrop, PATIENCE,
        cut::{Cut, Fault},
        gateway::Gateway,
        judge::{in_time, judge, within},
        load::{Answered, Load, most_within},
        open_store_within,
        redis::Redis,
        wait_until,
    },
    outage::{assert_policies_hold, await_store, one_limit, policies},
};

/// A gateway behind the proxy, with one limit.
fn behind(cut: &Cut, limit: &str) -> Gateway {
    one_limit(&format!("[store]\nurl = \"{}\"\ntimeout = \"200ms\"", cut.url()), limit)
}

pub(crate) const FAULTS: [Fault; 8] = [
    Fault::Refuse,
    Fault::Reset,
    Fault::ResetAfter(0),
    Fault::ResetAfter(3),
    Fault::Delay(Duration::from_millis(200)),
    Fault::Swallow,
    Fault::SwallowReplies,
    Fault::Garble,
];

#[test]
fn each_policy_holds_however_connections_break_and_the_store_is_used_again() {
    for fault in FAULTS {
        let redis = Redis::start();
        let cut = Cut::before(redis.port());
        let gateway = Gateway::start(&policies(&cut.url()));
        await_store(&gateway);
        cut.set(fault);
        assert_policies_hold(&gateway);
        cut.set(Fault::None);
        await_store(&gateway);
        wait_until("it is told", || gateway.log().contains("the store fails"));
    }
}

/// While other connections are well, the timeouts of one that isn't are never in a row.
#[test]
fn a_connection_that_is_silent_alone_is_replaced() {
    let redis = Redis::start();
    let cut = Cut::before(redis.port());
    let store = open_store_within(&cut.url(), "100ms");
    let (turns, ends) = (Mutex::new(()), AtomicBool::new(false));
    // Each thread has a connection of its own.
    let runtime = || Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let take = || async {
        let charge = Charge {
            bucket: "t:l:sw:{a}".into(),
            quota: "1000000/h".parse::<Rate>().unwrap().into(),
            cost: 1,
            shadow: false,
        };
        store.take(&[charge], tokio::time::Instant::now() + Duration::from_millis(100)).await
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let runtime = runtime();
            while !ends.load(SeqCst) {
                drop(turns.lock().map(|_turn| runtime.block_on(take())));
                sleep(Duration::from_millis(2));
            }
        });
        let _end = EndOnDrop(&ends);
        let runtime = runtime();
        wait_until("it is connected", || runtime.block_on(take()).is_ok());
        let turn = turns.lock().unwrap();
        cut.set(Fault::Swallow);
        runtime.block_on(take()).unwrap_err();
        cut.set(Fault::None);
        drop(turn);
        let since = Instant::now();
        let mut is_replaced = false;
        while !is_replaced && since.elapsed() < PATIENCE {
            is_replaced = runtime.block_on(take()).is_ok();
        }
        assert!(is_replaced);
    });
}

/// A random way to break connections, for a while.
fn break_somehow(cut: &Cut) {
    cut.set(match fastrand::u32(..6) {
        0 => Fault::Reset,
        1 => Fault::Swallow,
        2 => Fault::SwallowReplies,
        3 => Fault::Delay(Duration::from_millis(fastrand::u64(5..80))),
        _ => Fault::ResetAfter(fastrand::usize(..5_000)),
    });
    sleep(Duration::from_millis(fastrand::u64(20..150)));
    cut.set(Fault::None);
}

#[test]
fn nothing_is_charged_twice_and_every_grant_is_charged_whatever_is_cut() {
    let redis = Redis::start();
    let cut = Cut::before(redis.port());
    // Each request has a bucket of its own.
    let limit = "key = \"query:n\"\nplain = true\nrate = \"100/h\"\non_failure = \"deny\"";
    let gateway = behind(&cut, limit);
    let requests = Arc::<AtomicUsize>::default();
    let next = requests.clone();
    let load = Load::start(&gateway, 16, move || format!("/?n={}", next.fetch_add(1, SeqCst)));
    for _ in 0..15 {
        wait_until("all is well", || gateway.get("/?n=probe").status == 200);
        load.wait_for(200);
        break_somehow(&cut);
    }
    let answers = load.end();
    let granted = answers.iter().filter(|answer| answer.status == 200).count();
    assert!(granted > 1_000 && granted < answers.len(), "{granted} of {}", answers.len());

    let mut connection = redis.connect();
    let charges = connection.command(&["EVAL", CHARGES, "0"]);
    let [buckets, most] = [0, 1].map(|at| charges.list()[at].integer() as usize);
    assert_eq!(most, 1, "a request was charged {most} times");
    // What was granted was charged; what was charged beyond that had its reply lost.
    assert!((granted..=answers.len()).contains(&buckets), "{buckets} for {granted} of {}", answers.len());
}

/// The longest pause of a thread on a machine that can judge.
const PAUSE: Duration = Duration::from_millis(20);

/// How many numbered buckets there are, and the most calls that have charged one of them.
const CHARGES: &str = "local buckets, most = redis.call('KEYS', 'tollgate:l:*=[0-9]*'), 0 \
    for _, bucket in ipairs(buckets) do \
        local entries = redis.call('ZRANGE', bucket, 0, -1) \
        most = math.max(most, #entries) \
    end return { #buckets, most }";

#[test]
fn a_limit_holds_in_every_window_while_connections_are_cut_and_all_of_it_is_there_after_one() {
    const PERMITS: usize = 40;
    const WINDOW: Duration = Duration::from_secs(3);
    let redis = Redis::start();
    let cuts = [(); 2].map(|()| Cut::before(redis.port()));
    let limit = format!("key = \"global\"\nrate = \"{PERMITS}/3s\"\non_failure = \"deny\"");
    let gateways = [0, 1].map(|at| behind(&cuts[at], &limit));
    let loads = [0, 1].map(|at| Load::start(&gateways[at], 4, || "/".to_owned()));
    let until = Instant::now() + 2 * WINDOW;
    while Instant::now() < until {
        cuts.iter().for_each(break_somehow);
        sleep(Duration::from_millis(100));
    }
    let answers = loads.into_iter().flat_map(Load::end);
    let granted: Vec<Answered> = answers.filter(|answer| answer.status == 200).collect();
    assert!(most_within(&granted, WINDOW) <= PERMITS);
    assert!(granted.len() > PERMITS, "{}", granted.len());

    // No reply that was lost holds a permit for longer than a window.
    for gateway in &gateways {
        let mut passed = 0;
        wait_until("the connections of all workers are well", || {
            match gateway.get("/").status {
                200 => passed += 1,
                503 => passed = 0,
                _ => {}
            }
            passed == 12
        });
    }
    judge(PAUSE, || {
        sleep(WINDOW);
        let begun = Instant::now();
        let statuses = (0..PERMITS + 5).map(|turn| gateways[turn % 2].get("/").status);
        let statuses: Vec<u16> = statuses.collect();
        within(begun.elapsed(), WINDOW, "asking for all of them")?;
        in_time(!statuses.contains(&503), || format!("the store had no time for {statuses:?}"))?;
        assert_eq!(statuses, [[200; PERMITS].as_slice(), &[429; 5]].concat());
        Ok(())
    });
}

#[test]
fn memory_stays_flat_over_ten_outages_and_cuts_under_load() {
    let mut redis = Redis::start();
    let cut = Cut::before(redis.port());
    // No key is ever refused, so that each request asks.
    let gateway = behind(&cut, "key = \"query:n\"\nrate = \"1000000/s\"");
    let load = Load::start(&gateway, 8, || format!("/?n={}", fastrand::u32(..1_000)));
    let await_use = |redis: &Redis| {
        let before = redis.scripts();
        wait_until("the store is used", || redis.scripts() > before + 100);
    };
    let mut before = 0;
    for cycle in 0..10 {
        cut.set(FAULTS[cycle % FAULTS.len()]);
        load.wait_for(1_000);
        cut.set(Fault::None);
        await_use(&redis);
        redis.kill();
        load.wait_for(1_000);
        redis.restart();
        await_use(&redis);
        redis.pause();
        load.wait_for(1_000);
        redis.resume();
        await_use(&redis);
        if cycle == 2 {
            before = gateway.memory_kib("VmRSS");
        }
    }
    let growth = gateway.memory_kib("VmRSS").saturating_sub(before);
    assert!(growth < 5 << 10, "grew by {growth} KiB");
    let slowest = load.end().iter().map(Answered::took).max().unwrap();
    assert!(slowest < PATIENCE, "{slowest:?}");
}
