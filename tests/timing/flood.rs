//! A flood on a key that is refused, and what of it Redis sees.

use std::{thread, time::Duration};

use crate::harness::{gateway::Gateway, load::Load, redis::Redis};

const WORKERS: u64 = 2;
const CLIENTS: usize = 64;

fn a_flood_costs_redis_next_to_nothing(permits: u32, window_s: u64, windows: u64) {
    let redis = Redis::start();
    let gateway = Gateway::start(&format!(
        "[server]\nworkers = {WORKERS}\n{}[[routes]]\npath = \"/\"\nrespond = {{ status = 200 }}\n\
         limits = [{{ name = \"l\", key = \"global\", rate = \"{permits}/{window_s}s\" }}]",
        redis.store()
    ));
    // All of them ask before any is answered.
    redis.pause();
    let load = Load::start(&gateway, CLIENTS, || "/".to_owned());
    thread::sleep(Duration::from_millis(200));
    redis.resume();
    load.wait_for(1_000);
    let mut seen = Vec::new();
    for _ in 0..windows {
        let before = redis.scripts();
        thread::sleep(Duration::from_secs(window_s));
        seen.push(redis.scripts() - before);
    }
    let answers = load.end().len();
    let most = WORKERS * window_s.div_ceil(5) + 2;
    assert!(answers > 1_000, "{answers} answers are no flood");
    assert!(seen.iter().all(|scripts| *scripts <= most), "{seen:?} scripts a window of at most {most}");
}

#[test]
fn a_flood_costs_redis_next_to_nothing_in_a_window_of_1_s() {
    a_flood_costs_redis_next_to_nothing(1, 1, 5);
    a_flood_costs_redis_next_to_nothing(5, 1, 5);
    a_flood_costs_redis_next_to_nothing(20, 1, 5);
}

#[test]
fn a_flood_costs_redis_next_to_nothing_in_a_window_of_2_s() {
    a_flood_costs_redis_next_to_nothing(5, 2, 3);
}

#[test]
fn a_flood_costs_redis_next_to_nothing_in_a_window_of_6_s() {
    a_flood_costs_redis_next_to_nothing(5, 6, 2);
}
