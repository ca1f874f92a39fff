//! The judgement of a case. Every finding is proof: a request was decided at some instant between its sending
//! and its arrival at the upstream or its response. A finding against a limit holds for every such instant.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    time::Duration,
};

use tollgate_limiter::{Algorithm, OnFailure, Quota};

use super::{
    cases::{Case, Counts, Harm, KEYS, Limit},
    clients::{Answer, Asked, By, Log},
    record::{Grants, Ledger},
};

/// A request at the upstream, from its arrival to just before its response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) id: u64,
    pub(crate) at_us: u64,
    pub(crate) until_us: u64,
}

/// The findings of a case: a row of the table.
#[derive(Clone, Debug)]
pub(crate) struct Findings {
    pub(crate) case: &'static str,
    pub(crate) requests: usize,
    /// The requests that reached the upstream, and those of them that a gateway admitted in place of the
    /// store.
    pub(crate) admitted: usize,
    pub(crate) by_fallback: usize,
    /// The admitted requests, as a share of what limits that never fail would have admitted.
    pub(crate) of_ideal: Option<f64>,
    /// The most permits beyond L in a window, by the record of one server, and by those of all together.
    pub(crate) over_by_one_server: Option<u64>,
    pub(crate) over_by_record: Option<u64>,
    /// The most permits in a window that are unknown to the server which has the bucket in the end.
    pub(crate) lost: u64,
    /// The most requests beyond L in a window that certainly passed, whoever admitted them; and the number
    /// that the failure explains, unless it admits everything.
    pub(crate) over: u64,
    pub(crate) over_explained: Option<u64>,
    /// The requests that were admitted in the store's name and have no grant in its record.
    pub(crate) without_grant: Option<usize>,
    pub(crate) refused: usize,
    /// The requests that were rejected in the store's name although its record had room.
    pub(crate) wrongly_refused: Option<usize>,
    /// How often the client that is alone on its key was rejected after the stated delay, and how often it
    /// retried.
    pub(crate) rejected_retries: Option<usize>,
    pub(crate) retries: usize,
    /// The responses that neither admit nor reject.
    pub(crate) failed: usize,
    pub(crate) unanswered: usize,
    /// The 99th percentile and the longest of the response times.
    pub(crate) p99: Duration,
    pub(crate) longest: Duration,
    may_fail: bool,
    is_harmed: bool,
}

/// Judges a case by the records of the clients, the upstream and the store.
pub(crate) fn judge(
    case: &Case,
    gateways: u32,
    log: &Log,
    arrivals: &[Arrival],
    ledger: &Ledger,
) -> Findings {
    let requests = &log.requests;
    let count = |of: fn(Answer) -> bool| requests.iter().filter(|asked| of(asked.answer)).count();
    let asked: HashMap<u64, &Asked> = requests.iter().map(|asked| (asked.id, asked)).collect();
    let admissions: Vec<Admission<'_>> =
        arrivals.iter().map(|arrival| (asked[&arrival.id], *arrival)).collect();
    let by_fallback =
        admissions.iter().filter(|(asked, _)| asked.answer == Answer::Admitted(By::Fallback)).count();
    let buckets: Vec<Bucket<'_>> =
        case.limits.iter().flat_map(|limit| Bucket::all_of(limit, ledger, &admissions)).collect();
    // Of several limits, the one nearest to what is explained, or farthest beyond.
    let over = buckets.iter().map(|bucket| (bucket.over(), bucket.over_explained(by_fallback, gateways)));
    let over = over.max_by(|(over, explained), (other, other_explained)| {
        (over * (other_explained + 1)).cmp(&(other * (explained + 1)))
    });
    let (over, over_explained) = over.unwrap_or_default();
    let wrongly_refused = buckets.iter().all(Bucket::is_recorded).then(|| {
        let refused = requests.iter().filter(|asked| matches!(asked.answer, Answer::Refused(By::Store, _)));
        let is_wrong = |asked: &&Asked| {
            let mut own = buckets.iter().filter(|bucket| bucket.is_of(asked.key));
            own.all(|bucket| bucket.has_room_throughout(asked.sent_us, asked.answered_us))
        };
        refused.filter(is_wrong).count()
    });
    let mut took: Vec<u64> = requests.iter().map(|asked| asked.answered_us - asked.sent_us).collect();
    took.sort_unstable();
    let took_at = |rank: usize| Duration::from_micros(took.get(rank).copied().unwrap_or(0));
    Findings {
        case: case.name,
        requests: requests.len(),
        admitted: admissions.len(),
        by_fallback,
        of_ideal: case.ideal(requests).map(|ideal| admissions.len() as f64 / ideal as f64),
        over_by_one_server: buckets.iter().filter_map(Bucket::over_by_one_server).max(),
        over_by_record: buckets.iter().filter_map(Bucket::over_by_record).max(),
        lost: buckets
            .iter()
            .map(|bucket| most_within(&bucket.lost, bucket.limit.quota.window_us))
            .max()
            .unwrap_or(0),
        over,
        over_explained: (case.on_failure != OnFailure::Allow || by_fallback == 0).then_some(over_explained),
        without_grant: buckets.iter().map(Bucket::without_grant).sum(),
        refused: count(|answer| matches!(answer, Answer::Refused(..))),
        wrongly_refused,
        rejected_retries: (case.leaves_one_alone() && log.retries > 0).then_some(log.rejected_retries),
        retries: log.retries,
        failed: count(|answer| matches!(answer, Answer::Failed(_))),
        unanswered: count(|answer| answer == Answer::Missing),
        p99: took_at(took.len() * 99 / 100),
        longest: took_at(took.len().saturating_sub(1)),
        may_fail: case.on_failure == OnFailure::Deny || matches!(case.harm, Harm::RestartGateway),
        is_harmed: !matches!(case.harm, Harm::None),
    }
}

impl Findings {
    /// Returns the violations, in words.
    pub(crate) fn faults(&self) -> Vec<String> {
        let beyond = self.over_explained.map(|explained| self.over.saturating_sub(explained) as usize);
        let unless = |excused: bool, count: usize| (!excused).then_some(count);
        let found = [
            (
                self.over_by_one_server.map(|over| over as usize),
                "permits beyond L in a window of one server's record",
            ),
            (beyond, "requests in a window beyond what the failure explains"),
            (self.without_grant, "admissions without a grant"),
            (self.wrongly_refused, "refusals proven wrong"),
            (self.rejected_retries.filter(|_| !self.is_harmed), "told times that were too short"),
            (unless(self.may_fail, self.failed), "answers that neither admit nor refuse"),
            (unless(self.may_fail, self.unanswered), "requests without an answer"),
        ];
        let found = found.iter().filter(|(count, _)| count.is_some_and(|count| count > 0));
        found.map(|(count, what)| format!("{}: {} {what}", self.case, count.unwrap_or(0))).collect()
    }
}

/// A request that reached the upstream.
type Admission<'c> = (&'c Asked, Arrival);

/// A bucket of a limit, and what is known about it. Grants are times and permits, ordered by time.
struct Bucket<'c> {
    limit: &'c Limit,
    /// The key. `None` if the limit counts all keys together.
    key: Option<usize>,
    admissions: Vec<Admission<'c>>,
    by_server: Vec<Vec<(u64, u64)>>,
    granted: Vec<(u64, u64)>,
    lost: Vec<(u64, u64)>,
}

impl<'c> Bucket<'c> {
    fn all_of(limit: &'c Limit, ledger: &Ledger, admissions: &[Admission<'c>]) -> Vec<Self> {
        let keys: Vec<Option<usize>> = match limit.counts {
            Counts::EachKey => (0..=KEYS).map(Some).collect(),
            Counts::All => vec![None],
        };
        keys.into_iter().map(|key| Self::of(limit, key, ledger, admissions)).collect()
    }

    fn of(limit: &'c Limit, key: Option<usize>, ledger: &Ledger, admissions: &[Admission<'c>]) -> Self {
        let stem = format!("tollgate:{}:", limit.name);
        let end = key.map_or("}".to_owned(), |key| format!("=k{key}}}"));
        let is_its = |name: &String| name.starts_with(&stem) && name.ends_with(&end);
        let its = |grants: &Grants| -> Vec<(u64, u64)> {
            let own = grants.iter().find(|(name, _)| is_its(name));
            own.map(|(_, grants)| grants.clone().into_iter().collect()).unwrap_or_default()
        };
        let is_of = |(asked, _): &&Admission<'_>| key.is_none_or(|key| key == asked.key);
        Self {
            limit,
            key,
            admissions: admissions.iter().filter(is_of).copied().collect(),
            by_server: ledger.by_server.iter().map(its).collect(),
            granted: its(&ledger.granted),
            lost: its(&ledger.lost),
        }
    }

    fn is_of(&self, key: usize) -> bool {
        self.key.is_none_or(|own| own == key)
    }

    /// Returns true if the record keeps grants. A lease that has ended leaves nothing.
    fn is_recorded(&self) -> bool {
        self.limit.quota.algorithm != Algorithm::Concurrency
    }

    /// Returns the most permits beyond L in a window. The record has all grants of a fixed window at its
    /// beginning.
    fn over_by(&self, grants: &[(u64, u64)]) -> Option<u64> {
        let Quota { algorithm, permits, window_us } = self.limit.quota;
        let capacity = match algorithm {
            Algorithm::FixedWindow => u64::from(permits),
            _ => promised(self.limit.quota),
        };
        self.is_recorded().then(|| most_within(grants, window_us).saturating_sub(capacity))
    }

    fn over_by_record(&self) -> Option<u64> {
        self.over_by(&self.granted)
    }

    fn over_by_one_server(&self) -> Option<u64> {
        self.by_server.iter().filter_map(|grants| self.over_by(grants)).max()
    }

    /// Returns the most requests beyond L in a window that certainly passed.
    fn over(&self) -> u64 {
        let Quota { algorithm, window_us, .. } = self.limit.quota;
        let most = match algorithm {
            Algorithm::Concurrency => most_at_once(self.admissions.iter().map(|(_, arrival)| *arrival)),
            _ => surely_within(self.spans(|_| true), window_us),
        };
        most.saturating_sub(promised(self.limit.quota))
    }

    /// Returns the permits beyond L in the record, plus those that the gateways may have added by their shares.
    fn over_explained(&self, by_fallback: usize, gateways: u32) -> u64 {
        let shares = u64::from(gateways) * promised(self.limit.quota.share(gateways));
        self.over_by_record().unwrap_or(0) + if by_fallback > 0 { shares } else { 0 }
    }

    fn without_grant(&self) -> Option<usize> {
        let is_timed = self.is_recorded() && self.limit.quota.algorithm != Algorithm::FixedWindow;
        let by_store = |asked: &Asked| asked.answer == Answer::Admitted(By::Store);
        is_timed.then(|| without_grant(self.spans(by_store), &self.granted))
    }

    /// Returns the spans in which the admissions were decided.
    fn spans(&self, of: impl Fn(&Asked) -> bool) -> Vec<(u64, u64)> {
        let own = self.admissions.iter().filter(|(asked, _)| of(asked));
        own.map(|(asked, arrival)| (asked.sent_us, arrival.at_us)).collect()
    }

    /// Returns true if one more permit would have fitted at every instant of a span. (The level of a GCRA is
    /// never above the permits granted in the window.)
    fn has_room_throughout(&self, from_us: u64, to_us: u64) -> bool {
        let Quota { algorithm, permits, window_us } = self.limit.quota;
        let cell_us =
            if let Algorithm::SlidingCells { cells } = algorithm { window_us / u64::from(cells) } else { 0 };
        let used = |at_us: u64| -> u64 {
            let first =
                self.granted.partition_point(|(grant_us, _)| *grant_us + window_us + cell_us <= at_us);
            let alive = self.granted[first..].iter().take_while(|(grant_us, _)| *grant_us <= at_us);
            alive.map(|(_, permits)| permits).sum()
        };
        let first = self.granted.partition_point(|(grant_us, _)| *grant_us < from_us);
        let grants = self.granted[first..].iter().map(|(grant_us, _)| *grant_us);
        let mut instants = [from_us].into_iter().chain(grants.take_while(|grant_us| *grant_us <= to_us));
        instants.all(|at_us| used(at_us) < u64::from(permits))
    }
}

/// Returns the most requests in any window, or at a time, that the algorithm allows (docs/algorithms.md).
fn promised(quota: Quota) -> u64 {
    let permits = u64::from(quota.permits);
    match quota.algorithm {
        Algorithm::FixedWindow => 2 * permits - 1,
        Algorithm::Gcra { .. } => permits + u64::from(quota.capacity()),
        _ => permits,
    }
}

/// Returns the most permits in a window (t - W, t].
pub(crate) fn most_within(grants: &[(u64, u64)], window_us: u64) -> u64 {
    let (mut first, mut sum, mut most) = (0, 0, 0);
    for (at_us, permits) in grants {
        sum += permits;
        while grants[first].0 + window_us <= *at_us {
            sum -= grants[first].1;
            first += 1;
        }
        most = most.max(sum);
    }
    most
}

/// Returns the most spans that lie completely in a window (t - W, t]. Events at any instant of each of them
/// happened within that window.
pub(crate) fn surely_within(mut spans: Vec<(u64, u64)>, window_us: u64) -> u64 {
    spans.sort_unstable_by_key(|(_, to_us)| *to_us);
    let ending = |last: usize| {
        let to_us = spans[last].1;
        let first = spans.partition_point(|(_, other_us)| other_us + window_us <= to_us);
        spans[first..=last].iter().filter(|(from_us, _)| from_us + window_us > to_us).count() as u64
    };
    (0..spans.len()).map(ending).max().unwrap_or(0)
}

/// Returns the most requests that the upstream had at one instant.
pub(crate) fn most_at_once(arrivals: impl Iterator<Item = Arrival>) -> u64 {
    let changes = arrivals.flat_map(|Arrival { at_us, until_us, .. }| [(at_us, 1), (until_us, -1_i64)]);
    let mut changes: Vec<(u64, i64)> = changes.collect();
    // A request that ends when another begins doesn't overlap it.
    changes.sort_unstable();
    let held = changes.iter().scan(0, |held, (_, change)| {
        *held += change;
        Some(*held)
    });
    held.max().unwrap_or(0) as u64
}

/// Returns the number of spans without a permit if as many as possible get one that was granted within them.
/// Each grant goes to the span that ends first.
pub(crate) fn without_grant(mut spans: Vec<(u64, u64)>, granted: &[(u64, u64)]) -> usize {
    spans.sort_unstable();
    let (mut next, mut open, mut without) = (0, BinaryHeap::new(), 0);
    for (at_us, permits) in granted {
        while next < spans.len() && spans[next].0 <= *at_us {
            open.push(Reverse(spans[next].1));
            next += 1;
        }
        while open.peek().is_some_and(|Reverse(to_us)| to_us < at_us) {
            open.pop();
            without += 1;
        }
        for _ in 0..*permits {
            open.pop();
        }
    }
    without + open.len() + spans.len() - next
}
