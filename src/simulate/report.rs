//! The results of a simulation, in numbers.
//!
//! Most of this file is the fields of the report, with their units.

mod notes;

use std::{
    cmp::Reverse,
    time::{Duration, SystemTime},
};

use serde::Serialize;
use tollgate_limiter::{Algorithm, Quota};

use self::notes::{is_judged, notes};
use super::{
    log::LinesRead,
    replay::{self, Replay},
    tally::{KeyTally, Timeline},
};

/// The most keys to list per limit.
const BUSIEST: usize = 10;
/// The most points of a curve.
const POINTS_MOST: usize = 200;

/// The results of a simulation.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The lines of the logs.
    pub lines: LinesRead,
    /// The time of the first request (RFC 3339).
    pub from: Option<String>,
    /// The time of the last request.
    pub to: Option<String>,
    /// The numbers of requests by outcome.
    pub requests: Requests,
    /// The limits by name.
    pub limits: Vec<LimitReport>,
    /// The differences to the other configuration.
    pub against: Option<Changes>,
    /// Notes on how far the numbers can be trusted.
    pub notes: Vec<String>,
    /// Requests over time.
    pub timeline: Bars,
}

/// The numbers of requests by outcome.
#[derive(Debug, Serialize)]
pub struct Requests {
    /// All requests.
    pub all: u64,
    /// Requests that passed all their limits, or had none.
    pub admitted: u64,
    /// Requests that a limit refused.
    pub refused: u64,
    /// Requests without a matching route (404).
    pub unrouted: u64,
    /// Requests whose target can't be read (400).
    pub rejected: u64,
    /// Requests that there was no memory to count.
    pub undecided: u64,
}

/// The results of a limit.
#[derive(Debug, Serialize)]
pub struct LimitReport {
    /// The limit's name.
    pub limit: String,
    /// The limit's rate.
    pub rate: String,
    /// The permits of the rate.
    pub permits: u64,
    /// The algorithm.
    pub algorithm: &'static str,
    /// True in shadow mode. Refused requests are then those that would have been refused.
    pub shadows: bool,
    /// True if the log has enough data to judge the limit.
    pub judged: bool,
    /// The requests of its routes.
    pub requests: u64,
    /// The requests that it refused.
    pub refused: u64,
    /// The share of refused requests, in percent.
    pub refused_percent: f64,
    /// The refused requests that would have been admitted within the limit's `wait`.
    pub within_wait: u64,
    /// The requests that were exempt.
    pub exempt: u64,
    /// The requests that weren't counted, because they had no key, or possibly none.
    pub skipped: u64,
    /// The number of different keys.
    pub keys: usize,
    /// The number of keys with a refused request.
    pub keys_refused: usize,
    /// The 99th percentile of the use of keys, in percent of the quota. A key's use is its demand in its
    /// busiest window.
    pub use_p99_percent: Option<f64>,
    /// The smallest rates that refuse few keys.
    pub smallest: Option<Smallest>,
    /// The busiest keys, by requests.
    pub busiest: Vec<Busy>,
    /// Pairs of a rate in permits and the percentage of keys with a refused request under it.
    pub curve: Vec<(u64, f64)>,
}

/// The smallest rates of a limit that keep the share of keys with a refused request below a bound.
#[derive(Debug, Serialize)]
pub struct Smallest {
    /// The smallest rate that refuses none.
    pub nobody: AtLeast,
    /// The smallest rate that refuses at most 1 % of the keys.
    pub one_percent: AtLeast,
    /// The smallest rate that refuses at most 5 % of the keys.
    pub five_percent: AtLeast,
    /// A rate to begin with: that for 1 %, rounded up to two digits.
    pub first: AtLeast,
    /// The number of keys that need more than that.
    pub above_first: usize,
    /// True if any smaller rate would refuse more; otherwise a smaller one might be enough, too.
    pub is_exact: bool,
}

/// A rate that is enough.
#[derive(Debug, Serialize)]
pub struct AtLeast {
    /// The permits.
    pub permits: u64,
    /// The rate as written in the file.
    pub rate: String,
}

/// A busy key.
#[derive(Debug, Serialize)]
pub struct Busy {
    /// The key as in the bucket's name.
    pub key: String,
    /// The requests.
    pub requests: u64,
    /// The refused requests.
    pub refused: u64,
    /// The permits needed in its busiest window.
    pub peak: u64,
    /// The demand in percent of the quota.
    pub use_percent: f64,
}

/// The differences between two configurations.
#[derive(Debug, Serialize)]
pub struct Changes {
    /// The number of requests that are refused now and weren't before.
    pub newly_refused: u64,
    /// The number of requests that were refused before and aren't now.
    pub newly_admitted: u64,
    /// The limits that refuse now, with the most affected keys.
    pub refused_by: Vec<Changed>,
    /// The limits that refused before, with the most affected keys.
    pub admitted_by: Vec<Changed>,
}

/// The differences of a limit.
#[derive(Debug, Serialize)]
pub struct Changed {
    /// The limit's name.
    pub limit: String,
    /// The number of requests that are decided differently.
    pub requests: u64,
    /// The keys with the most of these requests.
    pub keys: Vec<(String, u64)>,
}

/// Requests over time.
#[derive(Debug, Serialize)]
pub struct Bars {
    /// The start of the first bar, in seconds since 1970.
    pub start: u64,
    /// The duration of a bar in seconds.
    pub seconds: u64,
    /// The requests in each bar, and how many of them were refused.
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
        let replay::OutcomeCounts { admitted, refused, unrouted, rejected, undecided, .. } = replay.counts;
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

/// Formats a time by RFC 3339, in whole seconds.
fn time(us: u64) -> String {
    humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + Duration::from_micros(us)).to_string()
}

impl LimitReport {
    fn new(of_limit: &replay::ReplayedLimit) -> Self {
        let (limit, tally) = (of_limit.rule.limit(), &of_limit.tally);
        let quota = limit.quota();
        // Keys with an override say nothing about the limit's own rate.
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
            // The rank is rounded up.
            use_p99_percent: (uses.len() * 99).div_ceil(100).checked_sub(1).map(|rank| uses[rank]),
            smallest: Smallest::new(quota, &peaks, tally.is_coarse),
            busiest: keys.iter().take(BUSIEST).map(busy).collect(),
            curve: curve(&peaks),
        }
    }
}

/// Returns true if a key has the limit's own rate. The windows of `concurrency` differ, since leases last for
/// ever here.
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
    /// Computes the rates from the peaks of all keys, in descending order.
    fn new(quota: Quota, peaks: &[u64], is_coarse: bool) -> Option<Self> {
        let is_exact = !matches!(quota.algorithm, Algorithm::Gcra { .. }) && !is_coarse;
        // With a separate burst, no rate may be enough.
        if peaks.is_empty() || matches!(quota.algorithm, Algorithm::Gcra { burst: Some(_) }) {
            return None;
        }
        let rate = |permits: u64| {
            let rate = Quota { permits: u32::try_from(permits).unwrap_or(u32::MAX), ..quota }.to_string();
            AtLeast { permits, rate }
        };
        // This percentage of the keys may need more than the peak at this position.
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

/// Rounds up to two significant digits.
fn rounded_up(number: u64) -> u64 {
    let unit = 10_u64.pow(number.checked_ilog10().unwrap_or(0).saturating_sub(1));
    number.div_ceil(unit).saturating_mul(unit)
}

/// Formats a number with separators: `1,234,567`.
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

/// Returns a number of requests with its unit: `1 request`, `1,234 requests`.
pub fn requests_text(number: u64) -> String {
    format!("{} {}", thousands(number), if number == 1 { "request" } else { "requests" })
}

/// Returns the share of keys with a refused request by rate, from the peaks of all keys in descending order.
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
        .map(|replay::ReplayedLimit { rule, tally, .. }| {
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
