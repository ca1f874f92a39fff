//! A flood on a key that is refused, and what of it Redis sees.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use crate::{
    harness::{gateway::Gateway, redis::Redis, wait_until},
    sleep_until,
};

const WORKERS: u64 = 2;
const CLIENTS: usize = 64;
/// Between two requests of a client, so that machines with few cores are not busy beyond all timing.
const PAUSE: Duration = Duration::from_millis(15);

/// In each window another key is refused: its burst is admitted at once, and then it is flooded until the window's
/// end.
fn a_flood_costs_redis_next_to_nothing(permits: u32, window_s: u64, windows: usize) {
    let redis = Redis::start();
    let gateway = Gateway::start(&format!(
        "[server]\nworkers = {WORKERS}\n{}[[routes]]\npath = \"/\"\nrespond = {{ status = 200 }}\n\
         limits = [{{ name = \"l\", key = \"header:x-key\", rate = \"{permits}/{window_s}s\" }}]",
        redis.store()
    ));
    let (is_over, key, refused) = <(AtomicBool, AtomicUsize, AtomicUsize)>::default();
    let flood = || {
        let mut client = gateway.client();
        while !is_over.load(SeqCst) {
            let answer = client.get_with("/", &format!("x-key: {}\r\n", key.load(SeqCst)));
            refused.fetch_add(usize::from(answer.status == 429), SeqCst);
            thread::sleep(PAUSE);
        }
    };
    let seen: Vec<u64> = thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(flood);
        }
        let seen = (0..windows).map(|_| {
            // All ask before any is answered.
            redis.pause();
            key.fetch_add(1, SeqCst);
            thread::sleep(Duration::from_millis(200));
            let begun = Instant::now();
            redis.resume();
            let before = refused.load(SeqCst);
            wait_until("the burst is over", || refused.load(SeqCst) > before + 2 * CLIENTS);
            let (before, scripts) = (refused.load(SeqCst), redis.scripts());
            sleep_until(begun + Duration::from_secs(window_s));
            let refused = refused.load(SeqCst) - before;
            assert!(refused > 500 * window_s as usize, "{refused} refusals are no flood");
            redis.scripts() - scripts
        });
        let seen = seen.collect();
        is_over.store(true, SeqCst);
        seen
    });
    let most = WORKERS * window_s.div_ceil(5) + 2;
    assert!(seen.iter().all(|seen| *seen <= most), "{seen:?} scripts in a window, of at most {most}");
}

#[test]
fn a_flood_costs_redis_next_to_nothing_in_a_window_of_1_s() {
    for permits in [1, 5, 20] {
        a_flood_costs_redis_next_to_nothing(permits, 1, 7);
    }
}

#[test]
fn a_flood_costs_redis_next_to_nothing_in_a_window_of_2_s() {
    a_flood_costs_redis_next_to_nothing(5, 2, 5);
}

#[test]
fn a_flood_costs_redis_next_to_nothing_in_a_window_of_6_s() {
    a_flood_costs_redis_next_to_nothing(5, 6, 2);
}
