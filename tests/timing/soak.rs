//! A minute at full load: no memory grows, and no queue.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::{
    harness::{
        gateway::Gateway,
        load::{Answered, Load},
        redis::Redis,
    },
    median,
};

const LASTS: Duration = Duration::from_secs(60);
/// By then all that is kept for reuse has been made.
const WARM_AFTER: Duration = Duration::from_secs(20);
const CLIENTS: usize = 32;
/// What a busy machine's pauses add for a while. A few bytes lost with each request would be more.
const MEMORY_NOISE_KIB: usize = 4 << 10;

/// Bytes that Redis holds for its clients: what it has been sent and hasn't run, and answers that weren't fetched.
fn queued_in(redis: &Redis) -> usize {
    let clients = redis.command(&["CLIENT", "LIST"]);
    let fields = clients.split_whitespace().filter_map(|field| {
        let (name, value) = field.split_once('=')?;
        matches!(name, "qbuf" | "omem").then(|| value.parse::<usize>().unwrap())
    });
    fields.sum()
}

#[test]
fn a_minute_at_full_load_grows_nothing() {
    let redis = Redis::start();
    let gateway = Gateway::start(&format!(
        "[server]\nworkers = 2\n{}\
         [limits.wide]\nkey = \"query:n\"\nrate = \"100/s\"\n\
         [limits.all]\nkey = \"global\"\nrate = \"100000000/s\"\n\
         [limits.tight]\nkey = \"query:n\"\nrate = \"1/s\"\nmode = \"shadow\"\n\
         [[routes]]\npath = \"/\"\nrespond = {{ status = 200 }}\nlimits = [\"all\", \"wide\", \"tight\"]\n\
         [[routes]]\npath = \"/hot\"\nrespond = {{ status = 200 }}\nlimits = [{{ name = \"hot\", key = \"global\", rate = \"1000/s\" }}]\n",
        redis.store()
    ));
    let load = Load::start(&gateway, CLIENTS, || match fastrand::u32(..10_000) {
        0..2_000 => "/hot".to_owned(),
        number => format!("/?n={number}"),
    });
    let begun = Instant::now();
    let (mut memory, mut queued) = (Vec::new(), 0);
    while begun.elapsed() < LASTS {
        thread::sleep(Duration::from_secs(1));
        if begun.elapsed() > WARM_AFTER {
            memory.push(gateway.memory_kib("VmRSS"));
            queued = queued.max(queued_in(&redis));
        }
    }
    let answers = load.end();
    assert!(answers.iter().all(|answer| matches!(answer.status, 200 | 429)));

    let (early, late) = memory.split_at(memory.len() / 2);
    let [early, late] = [early, late].map(|half| median(half.to_vec()));
    assert!(late < early + MEMORY_NOISE_KIB, "grew from {early} to {late} KiB: {memory:?}");
    assert!(queued < 1 << 20, "{queued} bytes wait in Redis");
    // A queue that grew would make answers later and later.
    let median_from = |from: Duration, to: Duration| {
        let within = answers.iter().filter(|answer| (begun + from..begun + to).contains(&answer.sent));
        median(within.map(Answered::took).collect())
    };
    let [early, late] = [median_from(WARM_AFTER, LASTS * 2 / 3), median_from(LASTS * 2 / 3, LASTS)];
    assert!(late < 2 * early, "the median answer took {early:?}, and {late:?} at the end");
}
