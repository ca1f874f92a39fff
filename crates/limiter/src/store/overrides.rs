//! The rates that hold in place of the file's, which a store keeps for all gateways that share it.
//!
//! In Redis they are one hash, changed by lua/overrides.lua; in this process a map. Each change has a version, and is
//! told on a channel: a gateway that knows the version before needs no more, and another one reads all.

use std::{
    collections::HashMap,
    time::{Duration, Instant as Now},
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{sync::mpsc, time::Instant};

use crate::{Scope, algorithm::Rate};

use super::{Store, StoreError};

/// All of them are read at once by a gateway that starts, or has missed a change.
///
/// # Examples
///
/// ```
/// assert_eq!(tollgate_limiter::store::overrides::OVERRIDES_MOST, 10_000);
/// ```
pub const OVERRIDES_MOST: usize = 10_000;
/// A century. The script's times are exact for longer, but not for ever.
pub(super) const LASTS_MOST: Duration = Duration::from_micros(100 * Rate::MAX_WINDOW_US);

/// The rate and scope that hold for a limit, or for one key of it, instead of its own.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use tollgate_limiter::{Override};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let for_an_hour =
///     Override { rate: "50/min".parse()?, scope: None, lasts: Some(Duration::from_secs(3_600)) };
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The rate; with no permits nothing passes. A window of 0 is the limit's own.
    pub rate: Rate,
    /// The scope, if not the limit's.
    pub scope: Option<Scope>,
    /// For how long from now, a century at most, if it ends by itself.
    pub lasts: Option<Duration>,
}

/// The condition under which an override is set.
///
/// # Examples
///
/// ```
/// # use tollgate_limiter::{Limit, Limiter, Override, Rate, SetWhen};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = Limiter::connect("memory:")?;
/// let logins = Limit::new("logins", "5/min".parse::<Rate>()?);
/// let set = Override { rate: "50/min".parse()?, scope: None, lasts: None };
/// assert!(!limiter.set_override(&logins, None, &set, SetWhen::IfPresent).await?);
/// assert!(limiter.set_override(&logins, None, &set, SetWhen::IfAbsent).await?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetWhen {
    /// Set it in any case.
    Always,
    /// Set it only if none is set.
    IfAbsent,
    /// Set it only if one is set.
    IfPresent,
}

impl SetWhen {
    /// Returns true if the condition holds where an override is set, or isn't.
    fn allows(self, is_set: bool) -> bool {
        match self {
            Self::Always => true,
            Self::IfAbsent => !is_set,
            Self::IfPresent => is_set,
        }
    }
}

/// All that hold, by the name of the limit or `<limit> <key>`, and their version.
#[derive(Debug, Default)]
pub(crate) struct Overrides {
    /// Another one means that something has changed.
    pub version: u64,
    /// The name of a limit, or with a space and a key's text after it, and what holds.
    pub entries: Vec<(String, Override)>,
}

/// A rate that has been set or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OverrideChange {
    /// The version that it follows.
    pub before: u64,
    /// The version that the change makes.
    pub version: u64,
    /// The name of a limit, or with a space and a key's text after it.
    pub field: String,
    /// The override that holds now, if there is one.
    pub set: Option<Override>,
}

/// Overrides in this process.
#[derive(Debug, Default)]
pub(super) struct OverrideTable {
    held: Mutex<(u64, HashMap<String, TimedOverride>)>,
}

/// An override, and the time at which it ends.
type TimedOverride = (Override, Option<Now>);

impl Store {
    /// Sets what holds for a field. Returns the change, if the condition allowed it.
    ///
    /// # Errors
    /// No answer in time: it may or may not have been set. Or there are [too many](OVERRIDES_MOST).
    pub(crate) async fn set_override(
        &self,
        names: &Names,
        field: &str,
        set: &Override,
        when: SetWhen,
        deadline: Instant,
    ) -> Result<Option<OverrideChange>, StoreError> {
        match self {
            Self::Memory(store) => store.overrides.set(field, set, when),
            Self::Redis(store) => store.set_override(names, field, set, when, deadline).await,
        }
    }

    /// Removes what holds for a field. Returns the change, if anything did.
    ///
    /// # Errors
    /// No answer in time: it may or may not have been removed.
    pub(crate) async fn unset_override(
        &self,
        names: &Names,
        field: &str,
        deadline: Instant,
    ) -> Result<Option<OverrideChange>, StoreError> {
        match self {
            Self::Memory(store) => Ok(store.overrides.unset(field)),
            Self::Redis(store) => store.unset_override(names, field, deadline).await,
        }
    }

    /// Returns all that hold now.
    ///
    /// # Errors
    /// No answer in time.
    pub(crate) async fn overrides(&self, names: &Names, deadline: Instant) -> Result<Overrides, StoreError> {
        match self {
            Self::Memory(store) => Ok(store.overrides.list()),
            Self::Redis(store) => store.overrides(names, deadline).await,
        }
    }

    /// The version of what holds: a cheap question.
    ///
    /// # Errors
    /// No answer in time.
    pub(crate) async fn overrides_version(
        &self,
        names: &Names,
        deadline: Instant,
    ) -> Result<u64, StoreError> {
        match self {
            Self::Memory(store) => Ok(store.overrides.held.lock().0),
            Self::Redis(store) => store.overrides_version(names, deadline).await,
        }
    }

    /// Returns the changes that other processes publish from now on. Those of times without a connection are lost. `None` if
    /// there are no other processes. Must be called in a tokio runtime.
    pub(crate) fn changes(&self, names: &Names) -> Option<mpsc::Receiver<Bytes>> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(store) => Some(store.subscribe(names.channel.clone())),
        }
    }

    /// Tells all others of a change.
    ///
    /// # Errors
    /// No answer in time.
    pub(crate) async fn tell(
        &self,
        names: &Names,
        message: Bytes,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        match self {
            Self::Memory(_) => Ok(()),
            Self::Redis(store) => store.publish(&names.channel, message, deadline).await,
        }
    }
}

/// The names under which a store keeps overrides and publishes their changes.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    #[cfg_attr(not(feature = "redis"), expect(dead_code, reason = "only Redis has it"))]
    pub(super) table: String,
    pub(super) channel: String,
}

impl Names {
    /// Returns the names for processes with this key prefix.
    pub(crate) fn new(key_prefix: &str) -> Self {
        Self { table: format!("{key_prefix}:overrides"), channel: format!("{key_prefix}:changes") }
    }
}

impl OverrideTable {
    fn set(&self, field: &str, set: &Override, when: SetWhen) -> Result<Option<OverrideChange>, StoreError> {
        let mut held = self.held.lock();
        held.1.retain(|_, (_, until)| until.is_none_or(|until| until > Now::now()));
        let is_new = !held.1.contains_key(field);
        if !when.allows(!is_new) {
            return Ok(None);
        }
        if is_new && held.1.len() >= OVERRIDES_MOST {
            return Err(StoreError::OverridesFull);
        }
        held.0 += 1;
        let until = set.lasts.map(|lasts| Now::now() + lasts.min(LASTS_MOST));
        held.1.insert(field.to_owned(), (set.clone(), until));
        let (field, set) = (field.to_owned(), Some(set.clone()));
        Ok(Some(OverrideChange { before: held.0 - 1, version: held.0, field, set }))
    }

    fn unset(&self, field: &str) -> Option<OverrideChange> {
        let mut held = self.held.lock();
        let (_, until) = held.1.remove(field)?;
        if until.is_some_and(|until| until <= Now::now()) {
            return None;
        }
        held.0 += 1;
        Some(OverrideChange { before: held.0 - 1, version: held.0, field: field.to_owned(), set: None })
    }

    fn list(&self) -> Overrides {
        let (held, now) = (self.held.lock(), Now::now());
        let alive = held.1.iter().filter(|(_, (_, until))| until.is_none_or(|until| until > now));
        let entries = alive.map(|(field, (set, until))| {
            let lasts = until.map(|until| until - now);
            (field.clone(), Override { lasts, ..set.clone() })
        });
        Overrides { version: held.0, entries: entries.collect() }
    }
}

impl OverrideChange {
    /// Reads what the script tells of a change. `None` if it tells something else, as that of another version may.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let mut words = text.strip_prefix("overrides ")?.splitn(4, ' ');
        let [before, version, time_us] = [words.next()?, words.next()?, words.next()?];
        let (before, version, time_us) = (before.parse().ok()?, version.parse().ok()?, time_us.parse().ok()?);
        let what = words.next()?;
        let (field, set) = match what.strip_prefix("unset ") {
            Some(field) => (field, None),
            None => {
                let value_and_field = what.strip_prefix("set ")?;
                let (at, _) = value_and_field.match_indices(' ').nth(3)?;
                let (value, field) = value_and_field.split_at(at);
                (&field[1..], read_value(value, time_us))
            }
        };
        Some(Self { before, version, field: field.to_owned(), set })
    }
}

/// Reads a value of the table. `None` if another version of this program has written it.
pub(crate) fn read_value(text: &str, time_us: u64) -> Option<Override> {
    let mut words = text.split(' ');
    let rate = Rate { permits: words.next()?.parse().ok()?, window_us: words.next()?.parse().ok()? };
    let scope = match words.next()? {
        "-" => None,
        "shared" => Some(Scope::Shared),
        "instance" => Some(Scope::Instance),
        _ => return None,
    };
    let lasts = match words.next()?.parse().ok()? {
        0 => None,
        ends_us => Some(Duration::from_micros(u64::checked_sub(ends_us, time_us)?)),
    };
    let is_sane = rate.permits <= Rate::MAX_PERMITS
        && rate.window_us <= Rate::MAX_WINDOW_US
        && rate.window_us.is_multiple_of(1_000)
        && words.next().is_none();
    is_sane.then_some(Override { rate, scope, lasts })
}
