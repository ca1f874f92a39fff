//! Full load for a while: neither memory nor queues grow.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::{
    harness::{
        gateway::Gateway,
        judge::{in_time, judge},
        load::Load,
        redis::Redis,
    },
    median,
};

/// Of the load that is judged, and before that: by then all that is kept for reuse has been made.
const LASTS: Duration = Duration::from_secs(20);
const WARM_AFTER: Duration = Duration::from_secs(10);
const CLIENTS: usize = 32;
/// What a busy machine's pauses add for a while. A few bytes lost with each request would be more.
const MEMORY_NOISE_KIB: usize = 2 << 10;
const GROWTHS_MOST: usize = 3;
/// The clients alone keep a small machine busy.
const PAUSE: Duration = Duration::from_millis(10);

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
fn full_load_grows_nothing() {
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
    thread::sleep(WARM_AFTER);
    let (mut client, mut growths) = (gateway.client(), 0);
    judge(PAUSE, || {
        let begun = Instant::now();
        let (mut memory, mut took, mut queued) = (Vec::new(), Vec::new(), 0);
        while begun.elapsed() < LASTS {
            thread::sleep(LASTS / 400);
            let since = Instant::now();
            client.get("/hot");
            took.push(since.elapsed());
            memory.push(gateway.memory_kib("VmRSS"));
            if took.len().is_multiple_of(10) {
                queued = queued.max(queued_in(&redis));
            }
        }
        assert!(queued < 1 << 20, "{queued} bytes wait in Redis");
        let [early, late] = halves(memory);
        let grew = format!("grew from {early} to {late} KiB");
        growths += usize::from(late >= early + MEMORY_NOISE_KIB);
        // What is lost with each request is lost each time, however busy the machine is.
        assert!(growths < GROWTHS_MOST, "{grew}");
        in_time(late < early + MEMORY_NOISE_KIB, || grew)?;
        // A queue that grew would make answers later and later.
        let [early, late] = halves(took);
        in_time(late < 2 * early, || format!("the median answer took {early:?}, and {late:?} at the end"))
    });
    let answers = load.end();
    assert!(answers.iter().all(|answer| matches!(answer.status, 200 | 429)));
}

/// Returns the medians of the first half of these values, and of the second.
fn halves<T: Ord + Copy>(mut values: Vec<T>) -> [T; 2] {
    let second = values.split_off(values.len() / 2);
    [values, second].map(median)
}
