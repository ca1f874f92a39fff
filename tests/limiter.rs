//! The limiter as an embedded library, on the in-process store and on a real Redis.

mod blocking;
mod bounds;
mod delays;
mod failing;
mod fairness;
mod overrides;
mod quotas;
mod refusing;
mod releasing;
mod sharing;
mod waiting;

use std::{future::Future, sync::Arc, time::Duration};

use tokio::{
    runtime::Builder,
    task::JoinHandle,
    time::{Instant, sleep},
};
use tollgate::config::Config;
use tollgate_limiter::{Ask, Limit, Limited, Limiter, Quota, Rate, Refusal};

/// Returns a limiter on the store at this URL, with additional keys of its table.
fn open(url: &str, keys: &str) -> Arc<Limiter> {
    let text =
        format!("[store]\nurl = \"{url}\"\n{keys}\n[[routes]]\npath = \"/\"\nrespond = {{ status = 204 }}");
    let (config, _) =
        Config::parse("gateway.toml", &text, &|_| None).unwrap_or_else(|faults| panic!("{faults}"));
    Limiter::open(&config.store).unwrap()
}

/// Returns a limiter with a timeout that even a busy machine doesn't exceed.
fn patient(url: &str) -> Arc<Limiter> {
    open(url, "timeout = \"5s\"")
}

/// Runs on a single-threaded runtime, as a worker does.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn quota(rate: &str) -> Quota {
    rate.parse::<Rate>().unwrap().into()
}

/// Returns a limit with this rate.
fn limit(name: &str, rate: &str) -> Arc<Limit> {
    Arc::new(Limit::new(name, quota(rate)))
}

fn ask(limit: &Arc<Limit>, cost: u32) -> Ask {
    Ask::new(limit, "caller").cost(cost)
}

fn after(ms: u64) -> Option<Instant> {
    Some(Instant::now() + Duration::from_millis(ms))
}

fn limited(refusal: Refusal) -> Limited {
    match refusal {
        Refusal::Limited(limited) => *limited,
        refusal => panic!("{refusal:?}"),
    }
}

/// Starts a request, and returns when it waits or is over: one more waits, unless another has left meanwhile.
async fn queued<T: Send + 'static>(
    limiter: &Limiter,
    request: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    let before = limiter.waiting();
    let request = tokio::spawn(request);
    let begun = Instant::now();
    while limiter.waiting() <= before && !request.is_finished() && begun.elapsed() < Duration::from_secs(1) {
        sleep(Duration::from_millis(1)).await;
    }
    request
}

/// Returns the delay that a refusal states.
fn told(refusal: Refusal) -> Duration {
    Duration::from_micros(limited(refusal).delay_us().expect("it fits some time"))
}
