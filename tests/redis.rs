//! Tests with real Redis servers: standalone, Sentinel, Cluster, failures and restarts.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

#[allow(dead_code)] // Each test target uses a part of it.
mod harness;

mod outage;
mod redisson;
mod release;
mod restarts;
mod store;
mod topology;
