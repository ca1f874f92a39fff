//! Real gateways, upstreams and Redis servers for tests, each on its own port and stopped when its value is dropped; and a
//! client that shows responses as received.

pub(crate) mod backlog;
pub(crate) mod browser;
pub(crate) mod client;
pub(crate) mod collector;
pub(crate) mod cut;
pub(crate) mod frames;
pub(crate) mod gateway;
pub(crate) mod http2;
pub(crate) mod judge;
pub(crate) mod load;
pub(crate) mod metrics;
pub(crate) mod redis;
pub(crate) mod resp;
pub(crate) mod upstream;
pub(crate) mod wire;

use std::{
    process::Command,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    time::{Duration, Instant},
};

use tollgate::config::Config;
use tollgate_limiter::store::Store;

/// Opens the store at this URL as a gateway does, with a timeout that even a busy machine doesn't exceed.
pub(crate) fn open_store(url: &str) -> Store {
    open_store_within(url, "5s")
}

/// Opens the store at this URL with a timeout.
pub(crate) fn open_store_within(url: &str, timeout: &str) -> Store {
    let text = format!(
        "[store]\nurl = \"{url}\"\ntimeout = \"{timeout}\"\n[[routes]]\npath = \"/\"\nrespond = {{ status = 204 }}"
    );
    let (config, _) =
        Config::parse("gateway.toml", &text, &|_| None).unwrap_or_else(|faults| panic!("{faults}"));
    Store::open(&config.store).unwrap()
}

/// The time after which a wait fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// The time after which a wait for other servers fails: Sentinels that disagree retry after some seconds.
const PATIENCE_WITH_OTHERS: Duration = Duration::from_secs(40);

/// Waits until `fact` is true, and fails if it doesn't become true in time.
pub(crate) fn wait_until(what: &str, mut fact: impl FnMut() -> bool) {
    let since = Instant::now();
    while !fact() {
        assert!(since.elapsed() < PATIENCE_WITH_OTHERS, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Sets a flag when it is dropped, so that threads that run until then also end if a test fails.
pub(crate) struct EndOnDrop<'f>(pub &'f AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Sends a signal to a process, by its name: `HUP`, `TERM`, `STOP`.
pub(crate) fn signal(name: &str, process: u32) {
    let status = Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status().unwrap();
    assert!(status.success(), "kill -{name} {process}");
}
