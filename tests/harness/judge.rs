//! Judgements of time on a machine that does other things, too.
//!
//! A trial that was too late is repeated. While it runs, threads that do nothing but sleep tell how long the machine
//! kept them waiting. A trial that was late although nobody was kept waiting speaks against the gateway, and a few
//! of those fail the test. If the machine was too busy in each trial within the bounds, nothing can be said: the
//! test passes, and says so on stderr with all figures.

use std::{
    fmt,
    io::Write,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Late trials on a calm machine that fail a test.
const CALM_MOST: usize = 3;
const TRIALS_MOST: usize = 15;
/// No trial begins after this time.
const LASTS_MOST: Duration = Duration::from_secs(60);
/// Threads that sleep, so that some lie on each core of a small machine.
const SLEEPERS: usize = 3;
const NAP: Duration = Duration::from_millis(1);

/// The reason why a trial counts neither for nor against the gateway: something took too long.
#[derive(Debug)]
pub(crate) struct Late(String);

impl Late {
    pub(crate) fn because(reason: impl fmt::Display) -> Self {
        Self(reason.to_string())
    }
}

/// Returns `Late` with these words, unless the condition holds.
pub(crate) fn in_time(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), Late> {
    if holds { Ok(()) } else { Err(Late(otherwise())) }
}

/// Returns `Late` if something took this long or longer.
pub(crate) fn within(took: Duration, bound: Duration, what: &str) -> Result<(), Late> {
    in_time(took < bound, || format!("{what} took {took:?} of {bound:?}"))
}

/// Repeats a trial until it is in time. A trial in which the machine kept a thread waiting for longer than `pause` is
/// allowed to be late. What doesn't depend on time a trial asserts by itself.
pub(crate) fn judge<T>(pause: Duration, mut trial: impl FnMut() -> Result<T, Late>) -> Option<T> {
    let (begun, mut verdict) = (Instant::now(), Verdict::default());
    loop {
        let machine = Machine::watch();
        let outcome = trial();
        let paused = machine.longest_pause();
        match outcome {
            Ok(value) => return Some(value),
            Err(Late(reason)) => verdict.note(&reason, paused, paused <= pause),
        }
        let is_last = verdict.trials.len() >= TRIALS_MOST || begun.elapsed() > LASTS_MOST;
        assert!(!verdict.is_against(is_last), "too late, and not because of the machine:{verdict}");
        if is_last {
            break;
        }
    }
    // Not by `eprintln`, which is shown of failed tests only.
    let name = thread::current().name().unwrap_or("a test").to_owned();
    let notice = format!("\nTHE MACHINE IS TOO BUSY TO JUDGE {name}: {verdict}\n");
    std::io::stderr().write_all(notice.as_bytes()).unwrap();
    None
}

/// The late trials so far.
#[derive(Default)]
struct Verdict {
    trials: Vec<String>,
    calm: usize,
}

impl Verdict {
    fn note(&mut self, reason: &str, paused: Duration, is_calm: bool) {
        let machine = if is_calm { "calm" } else { "busy" };
        self.trials
            .push(format!("{reason} (the machine was {machine}: it kept a thread waiting for {paused:?})"));
        self.calm += usize::from(is_calm);
    }

    /// Whether enough of the trials were late on a calm machine. If there won't be another one, most of them are.
    fn is_against(&self, is_last: bool) -> bool {
        self.calm >= CALM_MOST || (is_last && 2 * self.calm > self.trials.len())
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.trials.iter().try_for_each(|trial| write!(f, "\n  {trial}"))
    }
}

/// Threads that sleep, and note how much longer they slept than they wanted to.
struct Machine {
    is_over: Arc<AtomicBool>,
    sleepers: Vec<JoinHandle<Duration>>,
}

impl Machine {
    fn watch() -> Self {
        let is_over = Arc::<AtomicBool>::default();
        let sleeper = |_| {
            let is_over = is_over.clone();
            thread::spawn(move || {
                let mut longest = Duration::ZERO;
                while !is_over.load(SeqCst) {
                    let since = Instant::now();
                    thread::sleep(NAP);
                    longest = longest.max(since.elapsed() - NAP);
                }
                longest
            })
        };
        let sleepers = (0..SLEEPERS).map(sleeper).collect();
        Self { is_over, sleepers }
    }

    fn longest_pause(self) -> Duration {
        self.is_over.store(true, SeqCst);
        self.sleepers.into_iter().map(|sleeper| sleeper.join().unwrap()).max().unwrap()
    }
}
