//! Tests that judge time. Run them alone, one at a time: `cargo test --test timing -- --test-threads=1`.
//!
//! "Never early" and "never more" hold in every trial, however busy the machine is: they are judged by the instants before
//! a request was sent and after its response arrived, between which it was decided. "Not late" depends on the machine, and
//! is judged by the median of many.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

#[allow(dead_code)] // Each test target uses a part of it.
mod harness;

#[path = "timing/burst.rs"]
mod burst;
#[path = "timing/cluster.rs"]
mod cluster;
#[path = "timing/distance.rs"]
mod distance;
#[path = "timing/flood.rs"]
mod flood;
#[path = "timing/idle.rs"]
mod idle;
#[path = "timing/large.rs"]
mod large;
#[path = "timing/outage.rs"]
mod outage;
#[path = "timing/overload.rs"]
mod overload;
#[path = "timing/retry.rs"]
mod retry;
#[path = "timing/soak.rs"]
mod soak;
#[path = "timing/start.rs"]
mod start;

use std::time::Instant;

use harness::gateway::Gateway;

/// Starts a gateway whose path `/` has these limits, each a TOML table.
fn gateway(store_url: &str, limits: &[&str]) -> Gateway {
    Gateway::start(&format!(
        "[store]\nurl = \"{store_url}\"\ntimeout = \"5s\"\non_failure = \"deny\"\n\
         [[routes]]\npath = \"/\"\nrespond = {{ status = 200 }}\nlimits = [{}]",
        limits.join(", ")
    ))
}

fn sleep_until(instant: Instant) {
    std::thread::sleep(instant.saturating_duration_since(Instant::now()));
}

fn median<T: Ord + Copy>(mut values: Vec<T>) -> T {
    values.sort_unstable();
    values[values.len() / 2]
}
