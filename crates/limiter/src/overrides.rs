//! What holds in place of the file's rates: kept by the store, followed by this gateway.
//!
//! A change is told to all gateways on a channel, with the version before it: so a gateway that knows that one needs
//! nothing else of the store. Each asks for the version every second, in case a message was lost, and then reads all.
//! Requests look into what was read last, which costs nothing while nothing is overridden.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Release},
        },
    },
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    Algorithm, Calendar, CalendarRate, Key, Limit, Quota, Rate, Scope,
    store::overrides::{Names, Override, OverrideChange, Overrides},
};

/// The overrides that this gateway knows.
#[derive(Debug)]
pub(crate) struct Overridden {
    pub(crate) names: Names,
    read: ArcSwap<KnownOverrides>,
    /// Held to replace it by what follows from it.
    replacing: Mutex<()>,
    /// True once there has been an override. Until then requests look at nothing else.
    any_yet: AtomicBool,
}

/// The overrides that were read last, with their version, since two may read at a time.
#[derive(Clone, Debug, Default)]
struct KnownOverrides {
    version: u64,
    limits: HashMap<String, Arc<LimitOverrides>>,
}

#[derive(Clone, Debug, Default)]
struct LimitOverrides {
    own: Option<HeldRate>,
    keys: HashMap<Arc<str>, HeldRate>,
}

/// The place of a change in the order of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Follows {
    /// It was known.
    Known,
    /// It is the next one.
    Next,
    /// Others that came before it aren't known.
    Later,
}

#[derive(Clone, Copy, Debug)]
struct HeldRate {
    rate: Rate,
    scope: Option<Scope>,
    until: Option<Instant>,
}

impl KnownOverrides {
    fn of(overrides: Overrides, now: Instant) -> Self {
        let mut read = Self { version: overrides.version, ..Self::default() };
        overrides.entries.into_iter().for_each(|(field, set)| read.set(&field, Some(set), now));
        read
    }

    fn set(&mut self, field: &str, set: Option<Override>, now: Instant) {
        let held = set.map(|Override { rate, scope, lasts }| HeldRate {
            rate,
            scope,
            until: lasts.map(|lasts| now + lasts),
        });
        let (limit, key) = field.split_once(' ').map_or((field, None), |(limit, key)| (limit, Some(key)));
        let of_limit = Arc::make_mut(self.limits.entry(limit.to_owned()).or_default());
        match (key, held) {
            (None, held) => of_limit.own = held,
            (Some(key), Some(held)) => drop(of_limit.keys.insert(key.into(), held)),
            (Some(key), None) => drop(of_limit.keys.remove(key)),
        }
        if of_limit.own.is_none() && of_limit.keys.is_empty() {
            self.limits.remove(limit);
        }
    }

    /// Drops those that have ended. The store drops them without a change.
    fn drop_ended(&mut self, now: Instant) {
        self.limits.retain(|_, of_limit| {
            if of_limit.count(|held| !held.holds(|| now)) > 0 {
                let of_limit = Arc::make_mut(of_limit);
                of_limit.own = of_limit.own.filter(|held| held.holds(|| now));
                of_limit.keys.retain(|_, held| held.holds(|| now));
            }
            of_limit.count(|_| true) > 0
        });
    }
}

impl LimitOverrides {
    fn count(&self, counts: impl Fn(&HeldRate) -> bool) -> usize {
        self.keys.values().chain(&self.own).filter(|held| counts(held)).count()
    }
}

impl HeldRate {
    /// Returns true until it ends. Most never do, so the time is asked for last.
    fn holds(&self, now: impl FnOnce() -> Instant) -> bool {
        self.until.is_none_or(|until| until > now())
    }

    fn as_set(&self, now: Instant) -> Override {
        let lasts = self.until.map(|until| until.saturating_duration_since(now));
        Override { rate: self.rate, scope: self.scope, lasts }
    }

    /// The limit may have had another algorithm when it was set: what is no window of this one's isn't taken
    /// for one.
    fn rate_for(&self, own: Quota) -> Rate {
        let has_window = self.rate.window_us > 0
            && !matches!(own.algorithm, Algorithm::Concurrency | Algorithm::Calendar(_));
        Rate { window_us: if has_window { self.rate.window_us } else { own.window_us }, ..self.rate }
    }
}

impl Overridden {
    pub(crate) fn new(key_prefix: &str) -> Self {
        let (read, replacing, any_yet) = Default::default();
        Self { names: Names::new(key_prefix), read, replacing, any_yet }
    }

    pub(crate) fn version(&self) -> u64 {
        self.read.load().version
    }

    /// Notes a change. One that follows others that aren't known holds at once, but doesn't count as known: their
    /// messages are on their way, and its own behind them.
    pub(crate) fn note(&self, change: OverrideChange) -> Follows {
        let (_replacing, now) = (self.replacing.lock(), Instant::now());
        let read = self.read.load_full();
        if change.version <= read.version {
            return Follows::Known;
        }
        let follows = if change.before == read.version { Follows::Next } else { Follows::Later };
        let mut next = KnownOverrides::clone(&read);
        if follows == Follows::Next {
            next.version = change.version;
        }
        next.drop_ended(now);
        next.set(&change.field, change.set, now);
        self.replace(next);
        follows
    }

    /// Notes all that the store had, which was asked when this version was known. What has been noted meanwhile may be
    /// later than that.
    pub(crate) fn note_all(&self, overrides: Overrides, asked_at: u64) {
        let _replacing = self.replacing.lock();
        let known = self.version();
        if known == asked_at || overrides.version >= known {
            self.replace(KnownOverrides::of(overrides, Instant::now()));
        }
    }

    fn replace(&self, read: KnownOverrides) {
        if !read.limits.is_empty() {
            self.any_yet.store(true, Release);
        }
        self.read.store(Arc::new(read));
    }

    /// Returns the number of overrides that hold.
    pub(crate) fn len(&self) -> usize {
        let (read, now) = (self.read.load(), Instant::now());
        read.limits.values().map(|limit| limit.count(|held| held.holds(|| now))).sum()
    }

    /// Returns those that hold, by the name of the limit, or that and a key's text with a space between them.
    pub(crate) fn entries(&self) -> Vec<(String, Override)> {
        let (read, now) = (self.read.load(), Instant::now());
        let mut entries = Vec::new();
        for (limit, of_limit) in &read.limits {
            let own = of_limit.own.iter().map(|held| (limit.clone(), held));
            let keys = of_limit.keys.iter().map(|(key, held)| (format!("{limit} {key}"), held));
            let holding = own.chain(keys).filter(|(_, held)| held.holds(|| now));
            entries.extend(holding.map(|(field, held)| (field, held.as_set(now))));
        }
        entries.sort_by(|(one, _), (other, _)| one.cmp(other));
        entries
    }

    /// Returns the override of a key: that of the key itself, or else that of the limit.
    pub(crate) fn of(&self, limit: &Limit, key: Option<&Key>) -> Option<(Rate, Option<Scope>)> {
        if !self.any_yet.load(Acquire) {
            return None;
        }
        let read = self.read.load();
        let of_limit = read.limits.get(limit.name())?;
        let own = key.and_then(|key| of_limit.keys.get(key.as_str()));
        let mut held = own.into_iter().chain(&of_limit.own);
        let held = held.find(|held| held.holds(Instant::now))?;
        let quota = Quota::new(limit.quota.algorithm, held.rate_for(limit.quota));
        Some((quota.made_countable()?.rate(), held.scope))
    }
}

/// Reads the rate of an override for a limit: as in the file, or `0` to let nothing pass.
///
/// # Examples
///
/// ```
/// # use tollgate_limiter::{Limit, Rate, read_rate};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let logins = Limit::new("logins", "5/min".parse::<Rate>()?);
/// assert_eq!(read_rate(&logins, "0")?.permits, 0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// A message and, on a line of its own, the remedy.
pub fn read_rate(limit: &Limit, text: &str) -> Result<Rate, String> {
    let own = limit.quota.rate();
    let rate = match (text, limit.quota.algorithm) {
        ("0", _) => Rate { permits: 0, ..own },
        (_, Algorithm::Concurrency) => {
            // In whatever time, its bounds are those of a rate.
            let rate = format!("{text}/s").parse::<Rate>();
            let rate = rate
                .map_err(|_| format!("`{text}` isn't how many may run at a time\nwrite a number: \"20\""))?;
            Rate { window_us: 0, ..rate }
        }
        (_, Algorithm::Calendar(Calendar { unit, .. })) => {
            let rate: CalendarRate = text.parse()?;
            if rate.unit != unit {
                let (permits, unit) = (rate.permits, unit.name());
                return Err(format!("`{text}` has another unit than the limit\nwrite \"{permits}/{unit}\""));
            }
            rate.into()
        }
        _ => text.parse()?,
    };
    let quota = Quota::new(limit.quota.algorithm, rate);
    if !quota.is_countable() {
        return Err(format!("`{text}` is more than `gcra` can count exactly\nuse a shorter time"));
    }
    Ok(rate)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn overridden(rate: &str) -> Overridden {
        let held = HeldRate { rate: rate.parse().unwrap(), scope: None, until: None };
        let of_limit = Arc::new(LimitOverrides { own: Some(held), ..LimitOverrides::default() });
        let overridden = Overridden::new("t");
        overridden
            .replace(KnownOverrides { version: 1, limits: HashMap::from([("l".to_owned(), of_limit)]) });
        overridden
    }

    #[test]
    fn what_has_ended_is_neither_counted_nor_kept() {
        let overridden = Overridden::new("t");
        let set = |version: u64, lasts: Option<Duration>| {
            let set = Override { rate: "5/s".parse().unwrap(), scope: None, lasts };
            let field = format!("{} caller={version}", if version < 20 { "l" } else { "m" });
            overridden.note(OverrideChange { before: version - 1, version, field, set: Some(set) });
        };
        let kept =
            || overridden.read.load().limits.values().map(|limit| limit.count(|_| true)).collect::<Vec<_>>();
        set(1, Some(Duration::from_secs(3_600)));
        set(2, None);
        for version in 3..40 {
            set(version, Some(Duration::ZERO));
            assert_eq!(overridden.len(), 2);
        }
        // The last one is dropped by the next change.
        assert_eq!(kept().iter().sum::<usize>(), 3);
        set(40, None);
        assert_eq!((overridden.len(), kept().iter().sum()), (3, 3));
    }

    /// A lease of a millisecond would end before it is renewed.
    #[test]
    fn the_window_of_a_rate_is_no_lease() {
        let limit = Limit::new("l", Quota::concurrency(5));
        let rate = Rate { permits: 7, window_us: 30_000_000 };
        assert_eq!(overridden("7/1ms").of(&limit, None), Some((rate, None)));
    }

    #[test]
    fn a_rate_that_the_algorithm_cannot_count_has_the_longest_window_that_it_can() {
        let gcra = |burst| {
            let quota = Quota::new(Algorithm::Gcra { burst }, "5/s".parse().unwrap());
            let (rate, _) = overridden("1/366d").of(&Limit::new("l", quota), None).unwrap();
            (rate.permits, rate.window_us / 86_400_000_000, Quota::new(quota.algorithm, rate).is_countable())
        };
        assert_eq!([Some(284), None].map(gcra), [(1, 366, true); 2]);
        assert_eq!(gcra(Some(4_000)), (1, 26, true));
        let quota = |burst| Quota::new(Algorithm::Gcra { burst }, "5/s".parse().unwrap());
        let of = |burst| overridden("1000000/366d").of(&Limit::new("l", quota(burst)), None);
        // It isn't faster, and has whole seconds.
        assert_eq!(of(Some(4_000)), Some(("71208/2251799s".parse().unwrap(), None)));
        assert_eq!(of(None), None);
    }
}
