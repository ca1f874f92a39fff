//! An algorithm decides from numbers alone whether a bucket has room: no clock, no I/O.
//!
//! Each one is the twin of a file in lua/ and gives the same decision for the same state and the
//! same time. What calls them holds the state, the lock and the clock: [`crate::store`].
//!
//! What all of them share stands in this file, with an example of each item.

pub(crate) mod calendar;
pub(crate) mod concurrency;
mod fixed_window;
mod gcra;
mod rate;
mod refundable;
mod sliding_cells;
mod sliding_window;

use std::fmt;

pub use self::rate::Rate;
use self::{
    calendar::{Calendar, CalendarWindow},
    concurrency::Leases,
    fixed_window::Window,
    gcra::Meter,
    sliding_window::Log,
};

/// The count of a bucket under one algorithm. Times are microseconds of the store's clock, and costs are permits.
///
/// # Examples
///
/// ```
/// # use tollgate_limiter::{Algorithm, Quota, algorithm::{Count, Refund, State}};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (quota, refund) = (Quota::new(Algorithm::SlidingWindow, "5/s".parse()?), Refund { permits: 1, granted_us: None });
/// let mut state = State::new(quota.algorithm);
/// let count: &mut dyn Count = state.count_mut();
/// count.charge(quota, 7, 5);
/// assert_eq!((count.used(quota), count.wait_us(quota, 8, 1), count.ends_us(quota)), (5, 999_999, 1_000_007));
/// count.give_back(quota, 8, refund);
/// count.advance(quota, 1_000_007);
/// assert_eq!((count.used(quota), count.grow_us(quota, 1_000_007)), (0, 0));
/// // What costs memory can be bounded, and given back.
/// count.charge_in_place(quota, 1_000_007, 1);
/// count.shrink();
/// assert!(count.bytes() + count.growth_bytes() > 0);
/// # Ok(())
/// # }
/// ```
pub trait Count {
    /// Lets go what has ended at `time_us`, and takes over a changed quota. The other methods say what holds
    /// at the time of the last advance.
    fn advance(&mut self, quota: Quota, time_us: u64);
    /// Permits in use: U.
    fn used(&self, quota: Quota) -> u64;
    /// Records a grant, whether it fits or not.
    fn charge(&mut self, quota: Quota, time_us: u64, cost: u32);
    /// Gives back permits of a grant, as if it had cost less: nothing if it has ended by now. If the grant isn't known, gives
    /// back the oldest permits in use.
    fn give_back(&mut self, quota: Quota, time_us: u64, refund: Refund);
    /// Microseconds until there is more room; 0 if all is free.
    fn grow_us(&self, quota: Quota, time_us: u64) -> u64;
    /// Microseconds until a cost fits that doesn't now, but can.
    fn wait_us(&self, quota: Quota, time_us: u64, cost: u32) -> u64;
    /// The time from which nothing of it counts any more.
    fn ends_us(&self, quota: Quota) -> u64;
    /// Bytes of memory beside the value's own, with the room kept for more.
    fn bytes(&self) -> usize {
        0
    }
    /// The bytes by which a charge makes it grow, at most.
    fn growth_bytes(&self) -> usize {
        0
    }
    /// Records a grant, whether it fits or not, in no more memory than it has: what it counts may then end later, but never
    /// earlier. What needs memory for each grant takes it all the same.
    fn charge_in_place(&mut self, quota: Quota, time_us: u64, cost: u32) {
        self.charge(quota, time_us, cost);
    }
    /// Gives back memory that a past burst left behind.
    fn shrink(&mut self) {}
}

/// Permits to give back.
///
/// # Examples
///
/// ```
/// # use tollgate_limiter::{Algorithm, Quota, algorithm::{Refund, State}};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let quota = Quota::new(Algorithm::SlidingWindow, "5/s".parse()?);
/// let mut state = State::new(quota.algorithm);
/// state.count_mut().charge(quota, 7, 5);
/// state.count_mut().give_back(quota, 8, Refund { permits: 3, granted_us: Some(7) });
/// assert_eq!(state.count().used(quota), 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Refund {
    /// The number of permits.
    pub permits: u32,
    /// The time of the grant that took them, in microseconds of the store's clock, if it is known.
    pub granted_us: Option<u64>,
}

/// The most permits that can be in use, debts included: any limit and nearly as much again.
const MOST_USED: u64 = 4_000_000_000;

/// The state of a bucket, under any algorithm.
///
/// # Examples
///
/// ```
/// # use tollgate_limiter::{Algorithm, Quota, algorithm::State};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let quota = Quota::new(Algorithm::FixedWindow, "5/s".parse()?);
/// let mut state = State::new(quota.algorithm);
/// state.count_mut().charge(quota, 0, 3);
/// assert_eq!(state.count().used(quota), 3);
/// let delays = [2, 3, 6].map(|cost| state.delay_us(quota, 0, cost));
/// assert_eq!(delays, [Some(0), Some(1_000_000), None]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub enum State {
    /// The state of the sliding window, in cells or not.
    Log(Log),
    /// The state of the fixed window.
    Window(Window),
    /// The state of a calendar window.
    Calendar(CalendarWindow),
    /// The state of GCRA.
    Meter(Meter),
    /// The leases of concurrency.
    Leases(Leases),
}

impl State {
    /// Returns an empty bucket. It allocates no memory.
    pub fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::SlidingWindow
            | Algorithm::SlidingCells { .. }
            | Algorithm::Refundable { .. }
            | Algorithm::Redisson(_) => Self::Log(Log::default()),
            Algorithm::FixedWindow => Self::Window(Window::default()),
            Algorithm::Calendar(calendar) => Self::Calendar(CalendarWindow::new(calendar)),
            Algorithm::Gcra { .. } => Self::Meter(Meter::default()),
            Algorithm::Concurrency => Self::Leases(Leases::default()),
        }
    }

    /// Returns the count.
    pub fn count(&self) -> &dyn Count {
        match self {
            Self::Log(log) => log,
            Self::Window(window) => window,
            Self::Calendar(window) => window,
            Self::Meter(meter) => meter,
            Self::Leases(leases) => leases,
        }
    }

    /// Returns the count, to change it.
    pub fn count_mut(&mut self) -> &mut dyn Count {
        match self {
            Self::Log(log) => log,
            Self::Window(window) => window,
            Self::Calendar(window) => window,
            Self::Meter(meter) => meter,
            Self::Leases(leases) => leases,
        }
    }

    /// Microseconds until a cost fits, 0 if it fits now; `None` if it never can, being more than the quota.
    pub fn delay_us(&self, quota: Quota, time_us: u64, cost: u32) -> Option<u64> {
        let capacity = quota.capacity();
        if cost > capacity {
            return None;
        }
        let count = self.count();
        let fits = count.used(quota) + u64::from(cost) <= u64::from(capacity);
        Some(if fits { 0 } else { count.wait_us(quota, time_us, cost) })
    }
}

/// An algorithm that counts permits, with its parameters beside the rate.
///
/// # Examples
///
/// ```
/// # use tollgate_limiter::{Algorithm, Quota};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let even = Quota::new(Algorithm::Gcra { burst: Some(5) }, "60/min".parse()?);
/// assert_eq!((even.capacity(), even.algorithm.name()), (5, "gcra"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    /// Exactly, in any window.
    SlidingWindow,
    /// The sliding window, with grants of a time W / cells counted as one.
    SlidingCells {
        /// The number of cells in a window, at least 1.
        cells: u32,
    },
    /// The sliding window, in cells or not, in a layout that can give permits back.
    Refundable {
        /// The number of cells in a window. If not given, the first 128 grants of a window count exactly, and further ones in
        /// cells of a 128th of it.
        cells: Option<u32>,
    },
    /// In windows one after the other.
    FixedWindow,
    /// In windows of the calendar.
    Calendar(Calendar),
    /// The leaky bucket as a meter: permits drain away evenly.
    Gcra {
        /// Permits that may be taken at one instant; as many as the rate has if not said.
        burst: Option<u32>,
    },
    /// Requests in flight at a time. The window is the time after which a lease ends that isn't renewed.
    Concurrency,
    /// The sliding window in the layout of Redisson's `RRateLimiter`. A rate that is set in Redis holds, whatever the
    /// quota says.
    Redisson(RedissonType),
}

/// The processes that count together in the layout of Redisson, as its `RateType`, unless Redis has another one.
///
/// # Examples
///
/// ```
/// # use tollgate_limiter::{Limit, Rate, RedissonType};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // In Java: limiter.trySetRate(RateType.PER_CLIENT, 5, Duration.ofMinutes(1))
/// let logins = Limit::new("logins", "5/min".parse::<Rate>()?)
///     .shared_with_redisson("logins:{key}".parse()?, RedissonType::PerClient);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RedissonType {
    /// All that use the store.
    #[default]
    Overall,
    /// Each process alone.
    PerClient,
}

impl Algorithm {
    /// Returns the name, as in the file.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate_limiter::Algorithm;
    ///
    /// assert_eq!(Algorithm::Gcra { burst: None }.name(), "gcra");
    /// ```
    pub fn name(self) -> &'static str {
        match self {
            Self::SlidingWindow | Self::Refundable { cells: None } | Self::Redisson(_) => "sliding-window",
            Self::SlidingCells { .. } | Self::Refundable { cells: Some(_) } => "sliding-cells",
            Self::FixedWindow | Self::Calendar(_) => "fixed-window",
            Self::Gcra { .. } => "gcra",
            Self::Concurrency => "concurrency",
        }
    }

    /// Returns the part of a bucket's name that keeps formats apart: `sw`, `sc60`, `rl`, `rl60`, `fw`,
    /// `gc`, `cc`, `rs`, and for calendar windows `cm`, `cd+0800`.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate_limiter::Algorithm;
    ///
    /// assert_eq!(Algorithm::SlidingCells { cells: 60 }.tag(), "sc60");
    /// ```
    pub fn tag(self) -> String {
        match self {
            Self::SlidingWindow => "sw".to_owned(),
            Self::SlidingCells { cells } => format!("sc{cells}"),
            Self::Refundable { cells: None } => "rl".to_owned(),
            Self::Refundable { cells: Some(cells) } => format!("rl{cells}"),
            Self::FixedWindow => "fw".to_owned(),
            Self::Calendar(calendar) => calendar.tag(),
            Self::Gcra { .. } => "gc".to_owned(),
            Self::Concurrency => "cc".to_owned(),
            Self::Redisson(_) => "rs".to_owned(),
        }
    }

    /// Returns the same algorithm in a layout that can give permits back.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate_limiter::Algorithm;
    ///
    /// assert_eq!(Algorithm::SlidingWindow.with_refunds(), Algorithm::Refundable { cells: None });
    /// ```
    #[must_use]
    pub fn with_refunds(self) -> Self {
        match self {
            Self::SlidingWindow => Self::Refundable { cells: None },
            Self::SlidingCells { cells } => Self::Refundable { cells: Some(cells) },
            other => other,
        }
    }

    /// Returns the algorithm for a rate with this window. A rate for another unit than that of the calendar counts by the calendar
    /// of its own unit or, if there is none, in windows one after the other.
    pub(crate) fn at_window(self, us: u64) -> Self {
        match self {
            Self::Calendar(calendar) => {
                calendar.with_windows_of(us).map_or(Self::FixedWindow, Self::Calendar)
            }
            other => other,
        }
    }

    /// Returns true if other programs change the bucket and its rate at any time: then only the store knows what fits, and
    /// only now.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate_limiter::{Algorithm, RedissonType};
    ///
    /// assert!(Algorithm::Redisson(RedissonType::Overall).is_changed_by_others());
    /// ```
    pub fn is_changed_by_others(self) -> bool {
        matches!(self, Self::Redisson(_))
    }
}

/// A limit compiled to numbers.
///
/// # Examples
///
/// ```
/// # use tollgate_limiter::{Quota, Rate};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let quota = Quota::from("100/10s".parse::<Rate>()?);
/// assert_eq!((quota.permits, quota.window_us), (100, 10_000_000));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Permits in a window, or at a time; 0 lets nothing pass.
    pub permits: u32,
    /// Length of the window, or of a lease, in microseconds: a whole number of milliseconds.
    pub window_us: u64,
}

impl Quota {
    /// Returns the quota of a rate under an algorithm. A window of the calendar is that of the algorithm, whatever the rate's.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::{Algorithm, Limit, Quota};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let quota = Quota::new(Algorithm::Gcra { burst: Some(20) }, "10/s".parse()?);
    /// let orders = Limit::new("orders", quota);
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(algorithm: Algorithm, rate: Rate) -> Self {
        let window_us = match algorithm {
            Algorithm::Calendar(calendar) => calendar.unit.longest_us(),
            _ => rate.window_us,
        };
        Self { algorithm, permits: rate.permits, window_us }
    }

    /// Returns a quota of requests in flight. The permit of a process that has died ends after 30 seconds.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate_limiter::{Limit, Quota};
    ///
    /// let reports = Limit::new("reports", Quota::concurrency(5));
    /// ```
    pub fn concurrency(permits: u32) -> Self {
        Self { algorithm: Algorithm::Concurrency, permits, window_us: 30_000_000 }
    }

    /// Returns the rate.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::{Quota, Rate};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let rate: Rate = "5/min".parse()?;
    /// assert_eq!(Quota::from(rate).rate(), rate);
    /// # Ok(())
    /// # }
    /// ```
    pub fn rate(self) -> Rate {
        Rate { permits: self.permits, window_us: self.window_us }
    }

    /// Returns the quota with another rate, if there is one.
    pub(crate) fn at(self, rate: Option<Rate>) -> Self {
        rate.map_or(self, |rate| Self::new(self.algorithm, rate))
    }

    /// Returns the most permits that can be in use. A greater cost is never admitted.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::{Algorithm, Quota};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let quota = Quota::new(Algorithm::Gcra { burst: Some(20) }, "10/s".parse()?);
    /// assert_eq!(quota.capacity(), 20);
    /// # Ok(())
    /// # }
    /// ```
    pub fn capacity(self) -> u32 {
        match self.algorithm {
            Algorithm::Gcra { burst: Some(burst) } if self.permits > 0 => burst,
            _ => self.permits,
        }
    }

    /// Returns true if its numbers are exact in the script: those of a GCRA level up to 2^53.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::{Algorithm, Quota};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// assert!(!Quota::new(Algorithm::Gcra { burst: None }, "1000000/366d".parse()?).is_countable());
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_countable(self) -> bool {
        !matches!(self.algorithm, Algorithm::Gcra { .. })
            || u64::from(self.capacity()).saturating_mul(self.window_us) <= gcra::MOST_LEVEL
    }

    /// Returns the quota with the longest window, in whole seconds, that [can be counted](Self::is_countable) with its burst, if its own is
    /// longer, and as many fewer permits, at least one. A file may give a limit a greater burst after a rate was set at run time. `None` if
    /// it has no burst.
    pub(crate) fn made_countable(self) -> Option<Self> {
        if self.is_countable() {
            return Some(self);
        }
        let Algorithm::Gcra { burst: Some(burst) } = self.algorithm else { return None };
        let window_us = gcra::MOST_LEVEL / u64::from(burst) / 1_000_000 * 1_000_000;
        let permits = u128::from(self.permits) * u128::from(window_us) / u128::from(self.window_us);
        Some(Self { window_us, permits: (permits as u32).max(1), ..self })
    }

    /// Returns the microseconds by which a permit may come back later than a window after its grant.
    pub(crate) fn lag_us(self) -> u64 {
        match self.algorithm {
            Algorithm::SlidingCells { cells } => sliding_cells::cell_us(self.window_us, cells),
            Algorithm::Refundable { cells } => refundable::cell_us(self.window_us, cells, usize::MAX),
            _ => 0,
        }
    }

    /// Returns the window in seconds, if it is a whole number of them, and always the same.
    pub(crate) fn window_seconds(self) -> Option<u64> {
        let is_constant = match self.algorithm {
            Algorithm::Calendar(calendar) => calendar.unit.is_of_one_length(),
            _ => true,
        };
        (is_constant && self.window_us.is_multiple_of(1_000_000)).then_some(self.window_us / 1_000_000)
    }

    /// Returns this gateway's share of the quota when `instances` count apart: `max(1, floor(L / instances))`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::{Quota, Rate};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let quota = Quota::from("100/min".parse::<Rate>()?);
    /// assert_eq!(quota.share(3).permits, 33);
    /// # Ok(())
    /// # }
    /// ```
    pub fn share(self, instances: u32) -> Self {
        let share = |permits: u32| if permits == 0 { 0 } else { (permits / instances).max(1) };
        let algorithm = match self.algorithm {
            Algorithm::Gcra { burst } => Algorithm::Gcra { burst: burst.map(share) },
            other => other,
        };
        Self { algorithm, permits: share(self.permits), ..self }
    }
}

/// The rate under the default algorithm, the sliding window.
impl From<Rate> for Quota {
    fn from(rate: Rate) -> Self {
        Self::new(Algorithm::SlidingWindow, rate)
    }
}

/// Writes the quota as `rate` in the file: `100/10s`, or `20` at a time.
impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.algorithm {
            Algorithm::Concurrency => write!(f, "{}", self.permits),
            Algorithm::Calendar(calendar) => write!(f, "{}/{}", self.permits, calendar.unit.name()),
            _ => self.rate().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_never_zero() {
        let quota = Quota { algorithm: Algorithm::SlidingWindow, permits: 5, window_us: 1_000 };
        assert_eq!(quota.share(2).permits, 2);
        assert_eq!(quota.share(9).permits, 1);
    }
}
