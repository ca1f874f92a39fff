//! A store that goes away delays nobody, and is used as soon as it is back.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use crate::harness::{
    gateway::Gateway,
    load::{Answered, Load},
    redis::Redis,
    wait_until,
};

const AWAY: Duration = Duration::from_secs(2);
/// The store's deadline of 50 ms, and as much again.
const ANSWERED_WITHIN: Duration = Duration::from_millis(100);
/// For all of them, however late a busy machine lets a thread run.
const NOTHING_HANGS: Duration = Duration::from_secs(10);
const BACK_WITHIN: Duration = Duration::from_millis(500);

#[test]
fn answers_stay_in_time_while_the_store_is_away_and_it_is_back_at_once() {
    type Step = fn(&mut Redis);
    let outages: [(&str, Step, Step); 2] =
        [("stopped", |redis| redis.pause(), |redis| redis.resume()), ("killed", Redis::kill, Redis::restart)];
    for (outage, leave, come_back) in outages {
        let mut redis = Redis::start();
        let gateway = Gateway::start(&format!(
            "[server]\nworkers = 2\n[store]\nurl = \"{}\"\n\
             [limits.l]\nkey = \"query:phase\"\nplain = true\nrate = \"1000000/h\"\n\
             [[routes]]\npath = \"/\"\nrespond = {{ status = 200 }}\nlimits = [\"l\"]\n",
            redis.url()
        ));
        let phase = Arc::new(AtomicUsize::new(0));
        let asked = phase.clone();
        let load = Load::start(&gateway, 8, move || format!("/?phase={}", asked.load(SeqCst)));
        load.wait_for(1_000);
        leave(&mut redis);
        thread::sleep(AWAY);
        // Only what is asked from now on is counted under this key.
        phase.store(1, SeqCst);
        come_back(&mut redis);
        let back = Instant::now();
        wait_until("the store is used", || {
            redis.command(&["EXISTS", "tollgate:l:sw:{query:phase=1}"]) == "1"
        });
        let back = back.elapsed();
        load.wait_for(1_000);
        assert!(back < BACK_WITHIN, "{outage}: used again after {back:?}");
        let mut took: Vec<Duration> = load.end().iter().map(Answered::took).collect();
        took.sort_unstable();
        let (of_a_hundred, slowest) = (took[took.len() * 99 / 100], took[took.len() - 1]);
        assert!(of_a_hundred < ANSWERED_WITHIN, "{outage}: one of a hundred answers took {of_a_hundred:?}");
        assert!(slowest < NOTHING_HANGS, "{outage}: an answer took {slowest:?}");
    }
}
