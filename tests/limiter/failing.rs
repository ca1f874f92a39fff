//! A store that fails, in a program with a log of its own.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep};
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

use crate::{
    harness::{PATIENCE, redis::Redis},
    limiter::{ask, block_on, limit, patient},
};

/// A log that panics when it is told that the store fails.
struct PanickingLog(Arc<AtomicBool>);

impl Subscriber for PanickingLog {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        if text.0.contains("the store fails") {
            self.0.store(true, SeqCst);
            panic!("the log is full");
        }
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, _: &Field, value: &dyn fmt::Debug) {
        self.0 += &format!("{value:?}");
    }
}

/// Asks until a condition holds.
async fn ask_until(what: &str, mut ask: impl AsyncFnMut() -> bool) {
    let since = Instant::now();
    while !ask().await {
        assert!(since.elapsed() < PATIENCE, "asked in vain until {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

#[test]
fn a_store_is_used_again_even_if_logging_its_failure_panics() {
    let mut redis = Redis::start();
    block_on(async {
        let limiter = patient(&redis.url());
        limiter.warm_up().await.unwrap();
        let ask = ask(&limit("l", "5/h"), 1);
        let has_panicked = Arc::<AtomicBool>::default();
        let log = tracing::subscriber::set_default(PanickingLog(has_panicked.clone()));
        redis.kill();
        ask_until("the log panics", async || limiter.peek(&ask).await.is_err() && has_panicked.load(SeqCst))
            .await;
        drop(log);
        redis.restart();
        ask_until("the store answers", async || limiter.peek(&ask).await.is_ok()).await;
    });
}
