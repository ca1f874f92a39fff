//! Bounds on time, on a machine that is also used for other work.
//!
//! A trial that took too long is repeated. Meanwhile, threads that only sleep measure how long the machine delayed them.
//! A late trial without such a delay counts against the gateway, and a few of them fail the test. If the machine was too
//! busy in every trial, there is no result: the test passes, and reports all figures on stderr.

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

/// The number of late trials on a calm machine that fail a test.
const CALM_MOST: usize = 3;
const TRIALS_MOST: usize = 15;
/// The time after which no trial begins.
const LASTS_MOST: Duration = Duration::from_secs(60);
/// The number of sleeping threads, so that there are some on each core of a small machine.
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

/// Repeats a trial until it is in time. A trial may be late if the machine delayed a thread for longer than `pause`. A trial
/// itself asserts everything that doesn't depend on time.
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

    /// Returns true if enough of the trials were late on a calm machine. After the last trial, most of them are enough.
    fn is_against(&self, is_last: bool) -> bool {
        self.calm >= CALM_MOST || (is_last && 2 * self.calm > self.trials.len())
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.trials.iter().try_for_each(|trial| write!(f, "\n  {trial}"))
    }
}

/// Threads that sleep, and note how much longer they slept than intended.
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
