//! What a simulation found, in numbers.

mod notes;

use std::{
    cmp::Reverse,
    time::{Duration, SystemTime},
};

use serde::Serialize;

use crate::algorithm::{Algorithm, Quota};

use self::notes::{is_judged, notes};
use super::{
    log::LinesRead,
    replay::{self, Replay},
    tally::{KeyTally, Timeline},
};

/// Keys that are named of a limit.
const BUSIEST: usize = 10;
/// Points of a curve.
const POINTS_MOST: usize = 200;

/// What a simulation found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The lines of the logs.
    pub lines: LinesRead,
    /// When the first request came (RFC 3339).
    pub from: Option<String>,
    /// When the last one came.
    pub to: Option<String>,
    /// What became of the requests.
    pub requests: Requests,
    /// The limits by name.
    pub limits: Vec<LimitReport>,
    /// What a comparison found.
    pub against: Option<Changes>,
    /// What is to be known before the numbers are believed.
    pub notes: Vec<String>,
    /// Requests over time.
    pub timeline: Bars,
}

/// What became of requests.
#[derive(Debug, Serialize)]
pub struct Requests {
    /// All of them.
    pub all: u64,
    /// They passed all their limits, or have none.
    pub admitted: u64,
    /// A limit refused them.
    pub refused: u64,
    /// No route takes them: 404.
    pub unrouted: u64,
    /// The gateway can't read their target: 400.
    pub rejected: u64,
    /// There was no memory to count them.
    pub undecided: u64,
}

/// What a limit did.
#[derive(Debug, Serialize)]
pub struct LimitReport {
    /// Its name.
    pub limit: String,
    /// Its rate.
    pub rate: String,
    /// The permits of that.
    pub permits: u64,
    /// How it counts.
    pub algorithm: &'static str,
    /// Whether it only shadows: what it refuses is what it would refuse.
    pub shadows: bool,
    /// Whether the log tells enough to judge it.
    pub judged: bool,
    /// Requests of its routes.
    pub requests: u64,
    /// Those that it refused.
    pub refused: u64,
    /// Their share of the requests, in percent.
    pub refused_percent: f64,
    /// Of those that it refused: there would have been room within its `wait`.
    pub within_wait: u64,
    /// Those that are exempt.
    pub exempt: u64,
    /// Those that lack the key, or may have it, and weren't counted.
    pub skipped: u64,
    /// Different keys.
    pub keys: usize,
    /// Keys with a request that was refused.
    pub keys_refused: usize,
    /// The 99th percentile of the keys' use, in percent: what a key asked for at most in any window, of its quota.
    pub use_p99_percent: Option<f64>,
    /// The smallest rates that refuse few.
    pub smallest: Option<Smallest>,
    /// The busiest keys, by requests.
    pub busiest: Vec<Busy>,
    /// Pairs: under a rate of so many permits, so many percent of the keys have a refused request.
    pub curve: Vec<(u64, f64)>,
}

/// The smallest rates of a limit under which no more than a share of its keys has any refused request.
#[derive(Debug, Serialize)]
pub struct Smallest {
    /// None of them.
    pub nobody: AtLeast,
    /// 1 %.
    pub one_percent: AtLeast,
    /// 5 %.
    pub five_percent: AtLeast,
    /// One to begin with: that for 1 %, rounded up to two digits.
    pub first: AtLeast,
    /// Keys that ask for more than that.
    pub above_first: usize,
    /// Whether a smaller rate would refuse more; else it might do, too.
    pub is_exact: bool,
}

/// A rate that is enough.
#[derive(Debug, Serialize)]
pub struct AtLeast {
    /// Its permits.
    pub permits: u64,
    /// As the file has it.
    pub rate: String,
}

/// A key that is busy.
#[derive(Debug, Serialize)]
pub struct Busy {
    /// As in the bucket's name.
    pub key: String,
    /// Its requests.
    pub requests: u64,
    /// Those that were refused.
    pub refused: u64,
    /// The permits that it asked for at most in any window.
    pub peak: u64,
    /// That, of its quota, in percent.
    pub use_percent: f64,
}

/// What changes from one configuration to another.
#[derive(Debug, Serialize)]
pub struct Changes {
    /// Requests that are refused now and weren't.
    pub newly_refused: u64,
    /// Requests that were refused and aren't now.
    pub newly_admitted: u64,
    /// The limits that refuse now, with the keys that have most of these.
    pub refused_by: Vec<Changed>,
    /// The limits that refused, with the keys that have most of these.
    pub admitted_by: Vec<Changed>,
}

/// What changes by a limit.
#[derive(Debug, Serialize)]
pub struct Changed {
    /// Its name.
    pub limit: String,
    /// Requests that are treated otherwise.
    pub requests: u64,
    /// The keys that have most of them.
    pub keys: Vec<(String, u64)>,
}

/// Requests over time.
#[derive(Debug, Serialize)]
pub struct Bars {
    /// When the first begins, in seconds since 1970.
    pub start: u64,
    /// How long each lasts, in seconds.
    pub seconds: u64,
    /// Requests, and how many of them were refused.
    pub bars: Vec<[u64; 2]>,
}

impl Report {
    pub(super) fn new(
        replay: &Replay,
        against: Option<&Replay>,
        lines: &LinesRead,
        bounds: Option<(u64, u64)>,
    ) -> Self {
        let Timeline { start_us, bar_us, bars } = &replay.timeline;
        let replay::Counts { admitted, refused, unrouted, rejected, undecided, .. } = replay.counts;
        let all = admitted + refused + unrouted + rejected + undecided;
        let changes = against.map(|against| Changes {
            newly_refused: replay.differing,
            newly_admitted: against.differing,
            refused_by: changed(replay),
            admitted_by: changed(against),
        });
        Self {
            lines: lines.clone(),
            from: bounds.map(|(from_us, _)| time(from_us)),
            to: bounds.map(|(_, to_us)| time(to_us)),
            requests: Requests { all, admitted, refused, unrouted, rejected, undecided },
            limits: replay.limits.iter().map(LimitReport::new).collect(),
            against: changes,
            notes: notes(replay, lines),
            timeline: Bars { start: start_us / 1_000_000, seconds: bar_us / 1_000_000, bars: bars.clone() },
        }
    }
}

/// RFC 3339, in whole seconds.
fn time(us: u64) -> String {
    humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + Duration::from_micros(us)).to_string()
}

impl LimitReport {
    fn new(of_limit: &replay::OfLimit) -> Self {
        let (limit, tally) = (of_limit.rule.limit(), &of_limit.tally);
        let quota = limit.quota();
        // Keys with a rate of their own say nothing of the limit's.
        let mut peaks: Vec<u64> = tally
            .keys()
            .filter(|(_, key)| is_held_to(quota, key))
            .map(|(_, key)| key.demand.peak())
            .collect();
        peaks.sort_unstable_by_key(|peak| Reverse(*peak));
        let mut uses: Vec<f64> = tally.keys().map(|(_, key)| key.use_percent()).collect();
        uses.sort_unstable_by(f64::total_cmp);
        let mut keys: Vec<_> = tally.keys().collect();
        keys.sort_unstable_by_key(|(text, key)| (Reverse(key.requests), *text));
        let busy = |(text, key): &(&str, &KeyTally)| Busy {
            key: (*text).to_owned(),
            requests: key.requests,
            refused: key.refused,
            peak: key.demand.peak(),
            use_percent: key.use_percent(),
        };
        Self {
            limit: limit.name().to_owned(),
            rate: quota.to_string(),
            permits: u64::from(quota.permits),
            algorithm: quota.algorithm.name(),
            shadows: limit.shadows(),
            judged: is_judged(tally),
            requests: tally.requests,
            refused: tally.refused,
            refused_percent: percent(tally.refused, tally.requests),
            within_wait: tally.within_wait,
            exempt: tally.exempt,
            skipped: tally.skipped,
            keys: keys.len(),
            keys_refused: keys.iter().filter(|(_, key)| key.refused > 0).count(),
            // By nearest rank.
            use_p99_percent: (uses.len() * 99).div_ceil(100).checked_sub(1).map(|rank| uses[rank]),
            smallest: Smallest::new(quota, &peaks, tally.is_coarse),
            busiest: keys.iter().take(BUSIEST).map(busy).collect(),
            curve: curve(&peaks),
        }
    }
}

/// Whether a key has the limit's own rate. (Leases of a simulation last for ever.)
fn is_held_to(quota: Quota, key: &KeyTally) -> bool {
    key.quota.permits == quota.permits
        && (key.quota.window_us == quota.window_us || quota.algorithm == Algorithm::Concurrency)
}

impl KeyTally {
    fn use_percent(&self) -> f64 {
        percent(self.demand.peak(), u64::from(self.quota.capacity()))
    }
}

impl Smallest {
    /// By the peaks of all keys, the highest first.
    fn new(quota: Quota, peaks: &[u64], is_coarse: bool) -> Option<Self> {
        let is_exact = !matches!(quota.algorithm, Algorithm::Gcra { .. }) && !is_coarse;
        // With a burst of its own no rate may be enough.
        if peaks.is_empty() || matches!(quota.algorithm, Algorithm::Gcra { burst: Some(_) }) {
            return None;
        }
        let rate = |permits: u64| {
            let rate = Quota { permits: u32::try_from(permits).unwrap_or(u32::MAX), ..quota }.to_string();
            AtLeast { permits, rate }
        };
        // So many percent of the keys may ask for more than this.
        let peak = |percent: usize| peaks.get(peaks.len() * percent / 100).copied().unwrap_or(1);
        let first = rounded_up(peak(1));
        Some(Self {
            nobody: rate(peak(0)),
            one_percent: rate(peak(1)),
            five_percent: rate(peak(5)),
            first: rate(first),
            above_first: peaks.partition_point(|peak| *peak > first),
            is_exact,
        })
    }
}

/// The next number of no more than two digits and zeros.
fn rounded_up(number: u64) -> u64 {
    let unit = 10_u64.pow(number.checked_ilog10().unwrap_or(0).saturating_sub(1));
    number.div_ceil(unit).saturating_mul(unit)
}

/// A number with its thousands apart: `1,234,567`.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut apart = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            apart.push(',');
        }
        apart.push(digit);
    }
    apart
}

/// How many keys have a refused request under which rate, by the peaks of all, the highest first.
fn curve(peaks: &[u64]) -> Vec<(u64, f64)> {
    let all = peaks.len() as u64;
    let mut points: Vec<(u64, f64)> = Vec::new();
    for (above, peak) in peaks.iter().enumerate() {
        if points.last().is_none_or(|(rate, _)| rate != peak) {
            points.push((*peak, percent(above as u64, all)));
        }
    }
    if let Some((lowest, _)) = points.last().filter(|(lowest, _)| *lowest > 1) {
        points.push((lowest - 1, 100.0));
    }
    points.reverse();
    let step = points.len().div_ceil(POINTS_MOST).max(1);
    let last = points.len().saturating_sub(1);
    let kept = points.into_iter().enumerate().filter(|(at, _)| at % step == 0 || *at == last);
    kept.map(|(_, point)| point).collect()
}

fn percent(part: u64, whole: u64) -> f64 {
    let percent = if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 };
    (percent * 100.0).round() / 100.0
}

fn changed(replay: &Replay) -> Vec<Changed> {
    let limits = replay.limits.iter().filter(|limit| limit.tally.differs > 0);
    limits
        .map(|replay::OfLimit { rule, tally, .. }| {
            let mut keys: Vec<_> = tally.keys().filter(|(_, key)| key.differs > 0).collect();
            keys.sort_unstable_by_key(|(text, key)| (Reverse(key.differs), *text));
            let keys = keys.iter().take(BUSIEST).map(|(text, key)| ((*text).to_owned(), key.differs));
            Changed { limit: rule.limit().name().to_owned(), requests: tally.differs, keys: keys.collect() }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_to_begin_with_has_two_digits() {
        let numbers = [0, 1, 9, 99, 100, 101, 194, 1_585, 4_294_967_295];
        assert_eq!(numbers.map(rounded_up), [0, 1, 9, 99, 100, 110, 200, 1_600, 4_300_000_000]);
        assert_eq!([0, 999, 1_000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
    }
}
