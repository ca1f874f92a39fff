//! Tollgate: an HTTP gateway with exact distributed rate limits.
//!
//! It stands in front of backend APIs. A request is matched to a route of a TOML file, its limits
//! count it in one atomic step, in Redis or in this process, and it is forwarded or answered 429 with
//! a Retry-After that comes true.
//!
//! # As a library
//!
//! The gateway's limiter is for other programs, too, on the same counts. What they need of it is named here, at the
//! root: a [`Limiter`] takes what is asked of a [`Limit`], and a [`RateLimitLayer`] puts limits before an axum
//! service.
//!
//! ```
//! # use std::sync::Arc;
//! # use tollgate::{Ask, Limit, Limiter, Rate};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let limiter = Limiter::connect("memory:")?; // or "redis://127.0.0.1:6379"
//! let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
//! limiter.try_acquire(&[Ask::new(&logins, "alice")]).await?; // or a refusal, which tells when to come back
//! # Ok(())
//! # }
//! ```
//!
//! The modules are the gateway's parts, and change as it does.
//!
//! # The gateway
//!
//! The life of a request, and the modules in reading order:
//!
//! ```text
//! server     accept, HTTP/1.1, connection limits and timeouts
//! gateway    the spine: route, limit, forward
//!   route      request → route                         pure
//!   limit      route + request → charges → decision    keys, exemptions, failure policy
//!     store      charges → decision, in one atomic step
//!       memory     in this process
//!       redis      lua/ by EVALSHA, in group commit
//!   forward    pick a server, connect or reuse, stream both ways
//! reject     every answer of the gateway's own
//! reload     another configuration in the running one's place
//! admin      the second listener, for operators
//! explain    a request that nobody sent, through all but the store
//! simulate   access logs, through route, limit and the store in this process
//! layer      limit and reject before an axum service, without the rest
//! ```
//!
//! [`algorithm`] holds the arithmetic of limits, without clock or I/O; [`config`] turns a file into
//! checked values, [`metrics`] counts and prints, [`trace`] tells of single requests, and [`cli`] is what people type.

pub mod admin;
pub mod algorithm;
pub mod cli;
pub mod config;
pub mod decisions;
pub mod duration;
pub mod explain;
pub mod forward;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod gateway;
pub mod layer;
pub mod limit;
pub mod metrics;
pub mod reject;
pub mod reload;
pub mod server;
pub mod simulate;
pub mod store;
pub mod text;
pub mod trace;

pub use self::{
    algorithm::{Algorithm, Quota, Rate},
    config::{OnFailure, RatelimitHeaders},
    layer::RateLimitLayer,
    limit::{Admission, Ask, Key, Limit, Limited, Limiter, Refusal},
};
