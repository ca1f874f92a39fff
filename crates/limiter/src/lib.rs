//! Exact rate limits, shared by many processes over Redis or kept in one.
//!
//! A [`Limit`] is a named rule. An [`Ask`] is what a request asks of one: a key to count by, and a cost. The
//! [`Limiter`] takes all that a request asks at once. The result is an [`Admission`], or a [`Refusal`] that states when
//! to come back.
//!
//! ```
//! # use std::sync::Arc;
//! # use tollgate_limiter::{Ask, Limit, Limiter, Rate};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let limiter = Limiter::connect("memory:")?; // or "redis://127.0.0.1:6379", with the feature `redis`
//! let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
//! limiter.try_acquire(Ask::new(&logins, "alice")).await?; // or a refusal, which tells when to come back
//! # Ok(())
//! # }
//! ```

mod admission;
pub mod algorithm;
mod blocking;
mod charged_ask;
pub mod duration;
pub mod fields;
mod grants;
#[cfg(feature = "layer")]
pub mod grpc;
pub mod key;
mod key_state;
#[cfg(feature = "layer")]
pub mod layer;
mod limit;
mod limiter;
pub mod metrics;
mod overrides;
#[cfg(all(feature = "redis", any(test, feature = "fuzzing")))]
#[path = "../../../fuzz/properties/limiter.rs"]
pub mod properties;
mod redisson;
mod refusals;
#[cfg(feature = "layer")]
pub mod response;
mod settings;
mod standing;
pub mod store;
pub mod text;
mod wait;

#[cfg(feature = "layer")]
pub use self::layer::RateLimitLayer;

#[cfg(feature = "redis")]
pub use self::store::redis::{
    tls::{ClientTls, Identity},
    url::RedisUrl,
};
pub use self::{
    admission::{Admission, Limited, Refusal},
    algorithm::{
        Algorithm, Quota, Rate, RedissonType,
        calendar::{Calendar, CalendarRate, CalendarUnit},
    },
    blocking::{BlockingAdmission, BlockingLimiter},
    key::{Key, Prefixes},
    key_state::KeyState,
    limit::{Ask, Asks, Limit},
    limiter::Limiter,
    overrides::read_rate,
    redisson::RedissonName,
    settings::{Counted, OnFailure, RatelimitHeaders, Scope},
    standing::{Effect, Origin, Standing, Standings, tightest_of_each},
    store::{
        NodeState, Outcome, StoreError, StoreSettings, StoreUrl, Usage,
        overrides::{Override, SetWhen},
    },
    wait::RateOfKey,
};

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
