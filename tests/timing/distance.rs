//! A distant store decides, as long as it answers in time.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use crate::{
    harness::{
        EndOnDrop,
        cut::{Cut, Fault},
        gateway::Gateway,
        redis::Redis,
        resp::Connection,
        wait_until,
    },
    sleep_until,
};

const REQUESTS: usize = 300;
const CLIENTS: usize = 20;
const EVERY: Duration = Duration::from_millis(10);
/// By how much a machine that can judge may delay anything.
const NOISE: Duration = Duration::from_millis(2);
const TRIES: usize = 8;

/// A gateway with the default deadline of 50 ms, whose path `/` has a limit that denies without its store.
fn gateway(cut: &Cut) -> Gateway {
    Gateway::start(&format!(
        "[server]\nworkers = 2\n[store]\nurl = \"{}\"\n\
         [limits.l]\nkey = \"query:n\"\nrate = \"1000000/h\"\non_failure = \"deny\"\n\
         [[routes]]\npath = \"/\"\nrespond = {{ status = 200 }}\nlimits = [\"l\"]\n\
         [[routes]]\npath = \"/free\"\nrespond = {{ status = 200 }}\n",
        cut.url()
    ))
}

/// How many of 300 requests, 100 a second, have failed; and how much of what was done beside them was late.
fn ask_steadily(gateway: &Gateway, cut: &Cut, round_trip: Duration) -> (usize, usize) {
    let (failed, late, ends) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let begin = Instant::now() + EVERY;
    let ask = |client: usize| {
        let (mut limited, mut free) = (gateway.client(), gateway.client());
        for turn in (client..REQUESTS).step_by(CLIENTS) {
            let due = begin + EVERY * turn as u32;
            sleep_until(due);
            late.fetch_add((due.elapsed() > NOISE).into(), SeqCst);
            let since = Instant::now();
            assert_eq!(free.get("/free").status, 200);
            late.fetch_add((since.elapsed() > NOISE).into(), SeqCst);
            failed.fetch_add((limited.get(&format!("/?n={turn}")).status != 200).into(), SeqCst);
        }
    };
    let (ask, late_answers, is_over) = (&ask, &late, &ends);
    thread::scope(|scope| {
        let _end = EndOnDrop(is_over);
        for _ in 0..4 {
            scope.spawn(move || {
                let mut connection = Connection::connect(cut.port());
                while !is_over.load(SeqCst) {
                    let since = Instant::now();
                    connection.command(&["PING"]);
                    late_answers.fetch_add((since.elapsed() > round_trip + NOISE).into(), SeqCst);
                    thread::sleep(EVERY);
                }
            });
        }
        let clients: Vec<_> = (0..CLIENTS).map(|client| scope.spawn(move || ask(client))).collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
    });
    (failed.into_inner(), late.into_inner())
}

#[test]
fn a_store_that_answers_five_milliseconds_before_the_deadline_decides() {
    for milliseconds in [24, 32, 45] {
        let redis = Redis::start();
        let cut = Cut::before(redis.port());
        // The proxy's timer may add a millisecond in each direction.
        let round_trip = Duration::from_millis(milliseconds - 2);
        cut.set(Fault::Delay(round_trip / 2));
        let gateway = gateway(&cut);
        wait_until("the store is used", || gateway.get("/?n=first").status == 200);
        let mut seen = Vec::new();
        while seen.len() < TRIES && seen.last().is_none_or(|(failed, _)| *failed > 0) {
            seen.push(ask_steadily(&gateway, &cut, round_trip + NOISE));
        }
        // A busy machine may be why some have failed: then it has delayed as much of what needs no store in time.
        assert!(seen.iter().any(|(failed, late)| failed <= late), "{milliseconds} ms: {seen:?}");
    }
}

#[test]
fn a_store_that_answers_too_late_is_logged_with_the_round_trip() {
    let redis = Redis::start();
    let cut = Cut::before(redis.port());
    let gateway = gateway(&cut);
    wait_until("the store is used", || gateway.get("/?n=first").status == 200);
    cut.set(Fault::Delay(Duration::from_millis(35)));
    wait_until("it is told", || {
        gateway.get("/?n=late");
        gateway.log().contains("the store answers late")
    });
    let log = gateway.log();
    let (_, told) = log.split_once("a round trip takes ").unwrap();
    let (took, _) = told.split_once("ms").unwrap();
    assert!((70.0..500.0).contains(&took.parse::<f64>().unwrap()), "{log}");
    for _ in 0..20 {
        gateway.get("/?n=late");
    }
    assert_eq!(gateway.log().matches("the store answers late").count(), 1, "{}", gateway.log());
}
