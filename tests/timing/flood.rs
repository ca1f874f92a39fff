//! A flood on a full key, and the part of it that reaches Redis.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use crate::{
    harness::{
        EndOnDrop,
        gateway::Gateway,
        judge::{Late, in_time, judge},
        redis::Redis,
        resp::Connection,
        wait_until,
    },
    sleep_until,
};

const WORKERS: usize = 2;
const CLIENTS: usize = 64;
/// Between two requests of a client, so that machines with few cores are not busy beyond all timing.
const EVERY: Duration = Duration::from_millis(15);

/// The machine may keep a client waiting for so long, and the flood is one.
const PAUSE: Duration = Duration::from_millis(20);

fn most(window: Duration) -> usize {
    WORKERS * window.as_secs().div_ceil(5) as usize + 2
}

/// A gateway that is flooded.
struct Flooded {
    gateway: Gateway,
    key: AtomicUsize,
    refused: AtomicUsize,
    is_over: AtomicBool,
}

impl Flooded {
    fn start(redis: &Redis, limits: &[String]) -> Self {
        let gateway = Gateway::start(&format!(
            "[server]\nworkers = {WORKERS}\n{}[[routes]]\npath = \"/\"\nrespond = {{ status = 200 }}\n\
             limits = [{}]",
            redis.store(),
            limits.join(", ")
        ));
        let (key, refused, is_over) = Default::default();
        Self { gateway, key, refused, is_over }
    }

    fn be_a_client(&self) {
        let mut client = self.gateway.client();
        while !self.is_over.load(SeqCst) {
            let answer = client.get_with("/", &format!("x-key: {}\r\n", self.key.load(SeqCst)));
            self.refused.fetch_add(usize::from(answer.status == 429), SeqCst);
            thread::sleep(EVERY);
        }
    }

    /// Has another key refused, and counts the scripts that its flood costs after its burst, until its permits come
    /// back.
    fn scripts_in_window(&self, redis: &Redis, window: Duration) -> Result<u64, Late> {
        let refused = || self.refused.load(SeqCst);
        let begun = self.burst(redis);
        let before = refused();
        wait_until("the burst is over", || refused() > before + 2 * CLIENTS);
        let (since, before, scripts) = (Instant::now(), refused(), redis.scripts());
        sleep_until(begun + window - window / 50);
        let scripts = redis.scripts() - scripts;
        in_time(begun.elapsed() < window, || format!("counted {:?} after the burst", begun.elapsed()))?;
        let (refused, lasted) = (refused() - before, since.elapsed());
        in_time(refused as f64 > 500.0 * lasted.as_secs_f64(), || {
            format!("{refused} refusals in {lasted:?} are no flood")
        })?;
        Ok(scripts)
    }

    /// What the judge says, who looks on while the clients are there.
    fn while_flooded<T>(&self, judge: impl FnOnce() -> T) -> T {
        thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| self.be_a_client());
            }
            let _end = EndOnDrop(&self.is_over);
            judge()
        })
    }

    /// Has all clients ask for another key before any is answered. Returns since when they are.
    fn burst(&self, redis: &Redis) -> Instant {
        redis.pause();
        self.key.fetch_add(1, SeqCst);
        thread::sleep(Duration::from_millis(200));
        let begun = Instant::now();
        redis.resume();
        begun
    }
}

fn limit(name: &str, rate: &str) -> String {
    format!(r#"{{ name = "{name}", key = "header:x-key", rate = "{rate}" }}"#)
}

/// In each window another key is refused: its burst is admitted at once, and then it is flooded until the window's
/// end.
fn a_flood_costs_redis_next_to_nothing(permits: u32, window_s: u64, windows: usize) {
    let redis = Redis::start();
    let flooded = Flooded::start(&redis, &[limit("l", &format!("{permits}/{window_s}s"))]);
    let most = most(Duration::from_secs(window_s)) as u64;
    flooded.while_flooded(|| {
        for _ in 0..windows {
            judge(PAUSE, || {
                let seen = flooded.scripts_in_window(&redis, Duration::from_secs(window_s))?;
                assert!(seen <= most, "{seen} scripts in a window, of at most {most}");
                Ok(())
            });
        }
    });
}

/// A script that Redis has run.
struct Script {
    at_s: f64,
    has_admitted: bool,
}

/// Those that a monitor has seen until somebody said `ECHO`.
fn scripts(monitor: &mut Connection) -> Vec<Script> {
    let mut scripts: Vec<Script> = Vec::new();
    loop {
        let line = monitor.value();
        let words: Vec<&str> = line.text().splitn(5, ' ').collect();
        match words[3] {
            r#""EVALSHA""# | r#""EVAL""# => {
                scripts.push(Script { at_s: words[0].parse().unwrap(), has_admitted: false });
            }
            r#""ZADD""# => scripts.last_mut().unwrap().has_admitted = true,
            r#""ECHO""# => return scripts,
            _ => {}
        }
    }
}

/// One key is flooded for some windows, in each of which its permits come back and are taken. Judged is each window
/// that begins with a script, after the key's first ones. Permits that come back at several times take a script each.
fn no_window_costs_redis_more(limits: &[String], window: Duration, windows: u32) {
    judge(PAUSE, || costs_of_windows(limits, window, windows));
}

fn costs_of_windows(limits: &[String], window: Duration, windows: u32) -> Result<(), Late> {
    let redis = Redis::start();
    let flooded = Flooded::start(&redis, limits);
    let mut monitor = redis.connect();
    monitor.command(&["MONITOR"]);
    flooded.while_flooded(|| {
        let begun = flooded.burst(&redis);
        sleep_until(begun + window * windows + window / 2);
    });
    redis.command(&["ECHO", "over"]);
    let (scripts, window_s) = (scripts(&mut monitor), window.as_secs_f64());
    let first = scripts.iter().position(|script| script.at_s > scripts[0].at_s + window_s / 2.0).unwrap();
    let seen = (first..scripts.len()).map(|begin| {
        let end_s = scripts[begin].at_s + window_s;
        let in_window = || scripts[begin..].iter().take_while(|script| script.at_s < end_s);
        (in_window().count(), in_window().filter(|script| script.has_admitted).count())
    });
    let (seen, most): (Vec<(usize, usize)>, usize) = (seen.collect(), most(window));
    let admitted = scripts[first..].iter().filter(|script| script.has_admitted).count();
    assert!(2 * admitted >= windows as usize, "{admitted} scripts that admitted are too few: {seen:?}");
    in_time(seen.iter().all(|(seen, admitted)| *seen <= most + admitted.saturating_sub(1)), || {
        format!("{seen:?} scripts in a window, and of them such that admitted, of at most {most}")
    })
}

#[test]
fn a_flood_costs_redis_next_to_nothing_in_a_window_of_1_s() {
    for permits in [1, 5, 20] {
        a_flood_costs_redis_next_to_nothing(permits, 1, 3);
    }
}

#[test]
fn a_flood_costs_redis_next_to_nothing_in_a_window_of_2_s() {
    a_flood_costs_redis_next_to_nothing(5, 2, 2);
}

#[test]
fn a_flood_costs_redis_next_to_nothing_in_a_window_of_6_s() {
    a_flood_costs_redis_next_to_nothing(5, 6, 1);
}

#[test]
fn no_window_costs_redis_more_while_a_permit_comes_back() {
    for (window_s, windows) in [(1, 4), (2, 2), (6, 1)] {
        let limits = [limit("l", &format!("1/{window_s}s"))];
        no_window_costs_redis_more(&limits, Duration::from_secs(window_s), windows);
    }
}

#[test]
fn no_window_costs_redis_more_while_several_permits_come_back_at_one_time() {
    no_window_costs_redis_more(&[limit("l", "5/1s")], Duration::from_secs(1), 4);
}

#[test]
fn no_window_costs_redis_more_while_permits_for_one_request_come_back() {
    let limit = r#"{ name = "l", key = "header:x-key", rate = "5/1s", cost = 3 }"#;
    no_window_costs_redis_more(&[limit.to_owned()], Duration::from_secs(1), 4);
}

#[test]
fn no_window_costs_redis_more_while_a_permit_of_two_limits_comes_back() {
    no_window_costs_redis_more(&[limit("l", "1/1s"), limit("m", "100/10s")], Duration::from_secs(1), 4);
}
