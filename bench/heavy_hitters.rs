//! The cost for a request of recording its key, in nanoseconds: `cargo bench --bench heavy_hitters`.

#![allow(clippy::print_stdout, reason = "it prints what it measures")]

use std::hint::black_box;

use tokio::time::Instant;
use tollgate::rules::heavy_hitters::HeavyHitters;

const TIMES: u32 = 2_000_000;

fn main() {
    let names = |count: usize| -> Vec<String> {
        (0..count).map(|at| format!("header:x-api-key=sha256/{at:032x}")).collect()
    };
    for (what, keys) in [
        ("one key", names(1)),
        ("as many keys as counters", names(64)),
        ("each key another one", names(100_000)),
    ] {
        let hitters = HeavyHitters::default();
        let (now, started) = (Instant::now(), std::time::Instant::now());
        for key in keys.iter().cycle().take(TIMES as usize) {
            hitters.note(black_box(&**key).into(), now);
        }
        println!("{:5.1} ns  {what}", started.elapsed().as_nanos() as f64 / f64::from(TIMES));
    }
}
