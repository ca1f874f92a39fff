//! Tollgate: an HTTP gateway with exact distributed rate limits.
//!
//! It stands in front of backend APIs. A request is matched to a route of a TOML file, its limits
//! count it in one atomic step, in Redis or in this process, and it is forwarded or answered 429 with
//! a Retry-After that comes true.
//!
//! Other programs can share the gateway's counts: its limiter is the crate `tollgate-limiter`.
//!
//! # The gateway
//!
//! The life of a request, and the modules in reading order:
//!
//! ```text
//! server     accept, HTTP/1.1, connection limits and timeouts
//! gateway    the spine: route, limit, forward
//!   rules      request → keys → asks, settlement of costs
//!   forward    pick a server, connect or reuse, stream both ways
//! reject     every answer of the gateway's own
//! reload     another configuration in the running one's place
//! admin      the second listener, for operators
//! explain    a request that nobody sent, through all but the store
//! simulate   access logs, through route, limit and the store in this process
//! ```
//!
//! The limiter itself is `tollgate-limiter`, routes are found by `tollgate-routing`, and `tollgate-config` turns a file
//! into checked values. [`metrics`] counts and prints, [`trace`] tells of single requests, and [`cli`] is what people type.

#![cfg_attr(
    not(all(feature = "commands", feature = "opentelemetry")),
    allow(dead_code, reason = "some parts serve optional features only")
)]
#![allow(
    unreachable_pub,
    reason = "`pub` means: for other modules. Only tests and benchmarks use the crate from outside"
)]

mod admin;
pub mod cli;
mod decisions;
mod explain;
pub mod forward;
pub mod gateway;
mod keepalive;
mod log_budget;
mod metrics;
mod outbound;
#[cfg(any(test, feature = "fuzzing"))]
#[path = "../fuzz/properties/gateway.rs"]
pub mod properties;
mod reject;
mod reload;
pub mod rules;
pub mod server;
#[cfg(feature = "commands")]
pub mod simulate;
mod trace;
mod xds;

pub use tollgate_config as config;
