//! The cases: limits, stores, and failures.

use std::{collections::HashMap, time::Duration};

use tollgate_limiter::{Algorithm, OnFailure, Quota, algorithm::State};

use super::clients::Asked;
use crate::harness::cut;

/// The number of buckets that all clients use. A patient client has one more of its own.
pub(crate) const KEYS: usize = 8;
/// The window. It is longer than the failure, so that grants before it still count after it.
pub(crate) const WINDOW: Duration = Duration::from_secs(3);

/// A case: one row of the table.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// The description for the document.
    pub(crate) says: &'static str,
    pub(crate) store: Place,
    pub(crate) limits: &'static [Limit],
    pub(crate) on_failure: OnFailure,
    pub(crate) harm: Harm,
}

#[derive(Debug)]
pub(crate) struct Limit {
    pub(crate) name: &'static str,
    pub(crate) counts: Counts,
    pub(crate) quota: Quota,
}

/// The grouping of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counts {
    EachKey,
    All,
}

/// The kind of store.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    Server,
    Sentinels,
    Cluster,
}

/// The failure, which begins after three tenths of the time and mostly ends after half of it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Harm {
    None,
    /// The server is killed, and restarted with its data.
    Restart,
    /// The server is killed, and restarted empty at once.
    RestartEmpty,
    /// The server is stopped, and continues later.
    Pause,
    /// The connections of some gateways to the server are disturbed by a proxy.
    Cut {
        fault: cut::Fault,
        gateways: usize,
    },
    /// The Sentinels promote the replica while both servers are healthy.
    FailOver,
    /// The primary is killed and not restarted. In a Cluster, it is one of three.
    KillPrimary,
    /// A gateway is killed and restarted.
    RestartGateway,
}

const fn limit(algorithm: Algorithm, permits: u32, window: Duration) -> Limit {
    let quota = Quota { algorithm, permits, window_us: window.as_micros() as u64 };
    Limit { name: "each", counts: Counts::EachKey, quota }
}

const ONE: &[Limit] = &[limit(Algorithm::SlidingWindow, 300, WINDOW)];
const SEVERAL: &[Limit] = &[
    Limit { name: "burst", ..limit(Algorithm::SlidingWindow, 100, Duration::from_millis(600)) },
    limit(Algorithm::SlidingWindow, 300, WINDOW),
    Limit { name: "all", counts: Counts::All, ..limit(Algorithm::SlidingWindow, 1_800, WINDOW) },
];
const CELLS: &[Limit] = &[limit(Algorithm::SlidingCells { cells: 60 }, 300, WINDOW)];
const FIXED: &[Limit] = &[limit(Algorithm::FixedWindow, 300, WINDOW)];
const GCRA: &[Limit] = &[limit(Algorithm::Gcra { burst: None }, 300, WINDOW)];
const CONCURRENCY: &[Limit] = &[limit(Algorithm::Concurrency, 6, Duration::from_secs(30))];

const HEALTHY: Case = Case {
    name: "healthy",
    says: "no failure; one server",
    store: Place::Server,
    limits: ONE,
    on_failure: OnFailure::Local,
    harm: Harm::None,
};

const fn healthy(name: &'static str, says: &'static str, limits: &'static [Limit]) -> Case {
    Case { name, says, limits, ..HEALTHY }
}

const fn harmed(name: &'static str, says: &'static str, harm: Harm) -> Case {
    Case { name, says, harm, ..HEALTHY }
}

const fn cut(name: &'static str, says: &'static str, fault: cut::Fault) -> Case {
    harmed(name, says, Harm::Cut { fault, gateways: usize::MAX })
}

const fn stopped(name: &'static str, limits: &'static [Limit]) -> Case {
    Case { limits, ..harmed(name, "SIGSTOP, then SIGCONT", Harm::Pause) }
}

pub(crate) const CASES: &[Case] = &[
    HEALTHY,
    healthy(
        "healthy, several limits",
        "no failure; 100 in 600 ms and 300 in 3 s per key, 1,800 in 3 s for all",
        SEVERAL,
    ),
    healthy("healthy, sliding-cells", "no failure; 60 cells", CELLS),
    healthy("healthy, fixed-window", "no failure", FIXED),
    healthy("healthy, gcra", "no failure; a burst of L", GCRA),
    healthy("healthy, concurrency", "no failure; 6 at a time per key, served in 20 ms", CONCURRENCY),
    harmed("killed, restarted", "SIGKILL; restarted with its file", Harm::Restart),
    harmed("killed, restarted empty", "SIGKILL; restarted at once without its file", Harm::RestartEmpty),
    Case {
        on_failure: OnFailure::Deny,
        ..harmed("killed, on_failure deny", "as `killed, restarted`", Harm::Restart)
    },
    Case {
        on_failure: OnFailure::Allow,
        ..harmed("killed, on_failure allow", "as `killed, restarted`", Harm::Restart)
    },
    stopped("stopped", ONE),
    stopped("stopped, several limits", SEVERAL),
    stopped("stopped, sliding-cells", CELLS),
    stopped("stopped, fixed-window", FIXED),
    stopped("stopped, gcra", GCRA),
    stopped("stopped, concurrency", CONCURRENCY),
    cut(
        "20 ms away",
        "messages between gateways and server take 10 ms longer: replies are in time",
        cut::Fault::Delay(Duration::from_millis(10)),
    ),
    cut(
        "30 ms away",
        "messages take 15 ms longer: replies are in time, except to a call that waits for the previous one",
        cut::Fault::Delay(Duration::from_micros(14_500)),
    ),
    cut(
        "45 ms away",
        "messages take 22 ms longer: replies arrive 5 ms before the timeout",
        cut::Fault::Delay(Duration::from_micros(21_500)),
    ),
    cut(
        "200 ms away",
        "messages take 100 ms longer: no reply is in time",
        cut::Fault::Delay(Duration::from_millis(100)),
    ),
    cut(
        "reset",
        "each connection is reset after 2,000 bytes of replies, in the middle of one, and so is the next one",
        cut::Fault::ResetAfter(2_000),
    ),
    cut("black hole", "connections stay open, and nothing passes", cut::Fault::Swallow),
    cut("replies lost", "requests arrive, and no reply returns", cut::Fault::SwallowReplies),
    harmed(
        "one gateway cut off",
        "one gateway's connections are reset, and new ones refused; those of the others stay",
        Harm::Cut { fault: cut::Fault::Refuse, gateways: 1 },
    ),
    harmed("a gateway killed", "SIGKILL to one of the gateways; restarted", Harm::RestartGateway),
    Case {
        store: Place::Sentinels,
        ..harmed("sentinel, planned failover", "SENTINEL FAILOVER, with both servers healthy", Harm::FailOver)
    },
    Case {
        store: Place::Sentinels,
        ..harmed("sentinel, primary killed", "SIGKILL; the Sentinels promote the replica", Harm::KillPrimary)
    },
    Case {
        store: Place::Cluster,
        ..harmed(
            "cluster, primary killed",
            "SIGKILL to one of three primaries; its replica takes over its slots",
            Harm::KillPrimary,
        )
    },
    Case {
        store: Place::Cluster,
        limits: SEVERAL,
        ..harmed(
            "cluster, several limits",
            "the same; one of the limits counts on another slot",
            Harm::KillPrimary,
        )
    },
];

impl Case {
    /// Returns the configuration of the gateways.
    pub(crate) fn toml(&self, store_url: &str, gateways: u32, upstream_url: &str) -> String {
        let on_failure = match self.on_failure {
            OnFailure::Local => "local",
            OnFailure::Allow => "allow",
            OnFailure::Deny => "deny",
        };
        let mut toml = format!(
            "[server]\nworkers = 2\n\
             [store]\nurl = \"{store_url}\"\ninstances = {gateways}\non_failure = \"{on_failure}\"\n\
             [upstreams.recorder]\nservers = [\"{upstream_url}\"]\n"
        );
        for Limit { name, counts, quota } in self.limits {
            let key = match counts {
                Counts::EachKey => "key = \"header:x-key\"\nplain = true",
                Counts::All => "key = \"global\"",
            };
            let algorithm = quota.algorithm.name();
            toml += &format!("[limits.{name}]\n{key}\nrate = \"{quota}\"\nalgorithm = \"{algorithm}\"\n");
        }
        let names: Vec<&str> = self.limits.iter().map(|limit| limit.name).collect();
        toml + &format!("[[routes]]\npath = \"/\"\nupstream = \"recorder\"\nlimits = {names:?}\n")
    }

    /// Returns how many of these requests the limits would have admitted at the time of sending, if nothing
    /// took time or failed. `None` if it depends on the duration of requests.
    pub(crate) fn ideal(&self, requests: &[Asked]) -> Option<usize> {
        if self.limits.iter().any(|limit| limit.quota.algorithm == Algorithm::Concurrency) {
            return None;
        }
        let mut sent: Vec<(u64, usize)> = requests.iter().map(|asked| (asked.sent_us, asked.key)).collect();
        sent.sort_unstable();
        let mut buckets = HashMap::new();
        let admitted = sent.iter().filter(|(at_us, key)| {
            let bucket = |limit: &Limit| (limit.name, (limit.counts == Counts::EachKey).then_some(*key));
            let fits = self.limits.iter().all(|limit| {
                let quota = limit.quota;
                let state = buckets.entry(bucket(limit)).or_insert_with(|| State::new(quota.algorithm));
                state.count_mut().advance(quota, *at_us);
                state.delay_us(quota, *at_us, 1) == Some(0)
            });
            for limit in self.limits.iter().filter(|_| fits) {
                buckets.get_mut(&bucket(limit)).unwrap().count_mut().charge(limit.quota, *at_us, 1);
            }
            fits
        });
        Some(admitted.count())
    }

    /// Returns true if a client that is alone on its key is alone in all its buckets.
    pub(crate) fn leaves_one_alone(&self) -> bool {
        self.limits.iter().all(|limit| limit.counts == Counts::EachKey)
    }
}
