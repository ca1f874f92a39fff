//! A worker that respects the quota of somebody else's API by waiting for it.
//!
//! The API admits 5 requests per second and 1,000 per day for each account. All workers of an account share both: they wait
//! in one queue, and none gets a 429. The lists of the API cost as many permits as they have pages.
//!
//! ```text
//! cargo run -p tollgate-limiter --example worker
//! TOLLGATE_STORE=redis://127.0.0.1:6379 cargo run -p tollgate-limiter --features redis --example worker
//! ```

#![allow(clippy::print_stdout, reason = "the example prints")]

use std::{env, error::Error, sync::Arc, time::Duration};

use tokio::time::Instant;
use tollgate_limiter::{Ask, Limit, Limiter, OnFailure, Rate, Refusal};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let store = env::var("TOLLGATE_STORE").unwrap_or_else(|_| "memory:".to_owned());
    let api = Api::new(Limiter::connect(&store)?, "5/s", "1000/day")?;
    let began = Instant::now();
    for job in 1..=20 {
        api.permission("acme", 1).await?;
        println!("{:>6} ms: request {job}", began.elapsed().as_millis());
    }
    Ok(())
}

/// An API with quotas that must be respected.
pub(crate) struct Api {
    limiter: Arc<Limiter>,
    often: Arc<Limit>,
    daily: Arc<Limit>,
}

impl Api {
    pub(crate) fn new(limiter: Arc<Limiter>, often: &str, daily: &str) -> Result<Self, String> {
        // Without the store, nobody knows what other workers send: better none than too many.
        let limit = |name, rate: &str| {
            rate.parse::<Rate>().map(|rate| Arc::new(Limit::new(name, rate).on_failure(OnFailure::Deny)))
        };
        Ok(Self { limiter, often: limit("api-often", often)?, daily: limit("api-daily", daily)? })
    }

    /// Waits until the account may send a request of this cost.
    ///
    /// # Errors
    /// The day's quota is used up, or Redis can't be reached. The job is for later.
    pub(crate) async fn permission(&self, account: &str, cost: u32) -> Result<(), Refusal> {
        let asks = [&self.often, &self.daily].map(|limit| Ask::new(limit, account).cost(cost));
        // Longer than the short quota ever takes, and much shorter than a day. One that would wait in vain is told so at once.
        let deadline = Instant::now() + Duration::from_secs(60);
        // Both are charged in one step, so that nothing of the day is lost while waiting for the second.
        self.limiter.acquire(asks, Some(deadline)).await.map(drop)
    }
}
