//! The facts that the tests of Redisson's `RRateLimiter` state, in the library: with limits in Redisson's layout, in Tollgate's
//! own, and in the process. Where one differs, the test says so, and docs/redisson.md lists it.

mod rates;
mod waiting;

use std::{sync::Arc, time::Duration};

use tokio::{
    runtime::Builder,
    time::{Instant, sleep},
};
use tollgate_limiter::{Ask, Counted, Key, Limit, Limiter, Rate, RedissonType, StoreError, StoreSettings};

use crate::harness::redis::Redis;

/// Defines a test of each fact for each layout.
macro_rules! in_all_layouts {
    ($($fact:ident)*) => {
        mod redisson {
            $(#[test] fn $fact() { super::super::run(super::super::Layout::Redisson, super::$fact); })*
        }
        mod tollgate {
            $(#[test] fn $fact() { super::super::run(super::super::Layout::Tollgate, super::$fact); })*
        }
        mod memory {
            $(#[test] fn $fact() { super::super::run(super::super::Layout::Memory, super::$fact); })*
        }
    };
}
use in_all_layouts;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Redisson,
    Tollgate,
    Memory,
}

/// A limiter for the caller `a`, of which no rate is set yet.
struct Subject {
    layout: Layout,
    redis: Option<Redis>,
    limiter: Arc<Limiter>,
    ask: Ask,
}

fn rate(text: &str) -> Rate {
    text.parse().unwrap()
}

/// Runs a fact in a layout.
fn run(layout: Layout, fact: impl AsyncFnOnce(Subject)) {
    Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let redis = (layout != Layout::Memory).then(Redis::start);
        let url = redis.as_ref().map_or("memory:".to_owned(), Redis::url);
        // A busy machine may be slow to answer.
        let settings = StoreSettings { timeout: Duration::from_secs(5), ..StoreSettings::at(&url).unwrap() };
        let limiter = Limiter::open(&settings).unwrap();
        let ask = ask(layout, RedissonType::Overall);
        fact(Subject { layout, redis, limiter, ask }).await;
    });
}

/// An ask of a limit whose own rate never matters.
fn ask(layout: Layout, counted: RedissonType) -> Ask {
    let limit = Limit::new("facts", rate("1000000/h"));
    let limit = match (layout, counted) {
        (Layout::Redisson, counted) => limit.shared_with_redisson("facts:{key}".parse().unwrap(), counted),
        (_, RedissonType::Overall) => limit,
        (_, RedissonType::PerClient) => limit.in_this_process(),
    };
    Ask::new(&Arc::new(limit), Key::verbatim("a"))
}

impl Subject {
    fn per_client(mut self) -> Self {
        self.ask = ask(self.layout, RedissonType::PerClient);
        self
    }

    /// Has the limit take permits back, as one in Redisson's layout does by itself.
    fn with_refunds(mut self) -> Self {
        if self.layout != Layout::Redisson {
            let limit = Limit::clone(self.ask.limit()).with_refunds();
            self.ask = Ask::new(&Arc::new(limit), self.ask.key().clone());
        }
        self
    }

    async fn try_set(&self, text: &str) -> bool {
        self.limiter.set_rate_if_absent(&self.ask, rate(text)).await.unwrap()
    }

    async fn set(&self, text: &str, counted: Counted) {
        self.limiter.set_rate(&self.ask, rate(text), counted).await.unwrap();
    }

    async fn update(&self, text: &str, counted: Counted) -> bool {
        self.limiter.update_rate(&self.ask, rate(text), counted).await.unwrap()
    }

    async fn rate(&self) -> Option<Rate> {
        self.limiter.rate(&self.ask).await.unwrap()
    }

    async fn takes(&self, cost: u32) -> bool {
        self.limiter.try_acquire(self.ask.clone().cost(cost)).await.is_ok()
    }

    /// Waits until the permits are there.
    async fn acquire(&self, cost: u32) {
        self.limiter.acquire(self.ask.clone().cost(cost), None).await.unwrap();
    }

    async fn left(&self) -> u64 {
        self.limiter.peek(&self.ask).await.unwrap().remaining()
    }

    /// Waits until so many permits are left.
    async fn until_left(&self, permits: u64) {
        let since = Instant::now();
        while self.left().await != permits {
            assert!(since.elapsed() < Duration::from_secs(20), "{} are left", self.left().await);
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// The keys of Redis, except for the table of rates that were set.
    fn keys(&self) -> Vec<String> {
        let found = self.redis.as_ref().unwrap().connect().command(&["KEYS", "*"]);
        let names = found.list().iter().map(|name| name.text().to_owned());
        names.filter(|name| name != "tollgate:overrides").collect()
    }

    /// Waits until no key is left.
    async fn until_no_key(&self) {
        let since = Instant::now();
        while !self.keys().is_empty() {
            assert!(since.elapsed() < Duration::from_secs(20), "{:?}", self.keys());
            sleep(Duration::from_millis(10)).await;
        }
    }
}

fn is_unsupported<T>(result: &Result<T, StoreError>) -> bool {
    matches!(result, Err(StoreError::Unsupported(_)))
}
