//! The rates that hold in place of the file's, which a store keeps for all gateways that share it.
//!
//! In Redis they are one hash, changed by lua/overrides.lua; in this process a map. Each change has a version,
//! by which others notice it, and is told on a channel, by which they notice at once.

use std::{
    collections::HashMap,
    time::{Duration, Instant as Now},
};

use bytes::Bytes;
use fred::types::Value;
use parking_lot::Mutex;
use tokio::{sync::mpsc, time::Instant};

use crate::{algorithm::Rate, config::Scope};

use super::{Store, StoreError};

const SOURCE: &str = include_str!("../../lua/overrides.lua");
/// All of them are read by every gateway after each change, in one call of the store.
pub const OVERRIDES_MOST: usize = 10_000;
/// A century. The script's times are exact for longer, but not for ever.
const LASTS_MOST: Duration = Duration::from_micros(100 * Rate::MAX_WINDOW_US);

/// What holds for a limit, or for one key of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The rate; with no permits nothing passes. A window of 0 is the limit's own.
    pub rate: Rate,
    /// Where it counts, if not where the limit does.
    pub scope: Option<Scope>,
    /// For how long from now, a century at most, if it ends by itself.
    pub lasts: Option<Duration>,
}

/// All that hold, by the name of the limit or `<limit> <key>`, and their version.
#[derive(Debug, Default)]
pub struct Overrides {
    /// Another one means that something has changed.
    pub version: u64,
    /// The name of a limit, or with a space and a key's text after it, and what holds.
    pub entries: Vec<(String, Override)>,
}

/// Overrides in this process.
#[derive(Debug, Default)]
pub(super) struct Table {
    held: Mutex<(u64, HashMap<String, Held>)>,
}

/// What holds, and until when.
type Held = (Override, Option<Now>);

impl Store {
    /// Sets what holds for a field, or with `if_absent` does so only if nothing does. Says whether it has.
    ///
    /// # Errors
    /// No answer in time: it may or may not have been set. Or there are [too many](OVERRIDES_MOST).
    pub async fn set_override(
        &self,
        names: &Names,
        field: &str,
        set: &Override,
        if_absent: bool,
        deadline: Instant,
    ) -> Result<bool, StoreError> {
        match self {
            Self::Memory(store) => store.overrides.set(field, set, if_absent),
            Self::Redis(_) => {
                let lasts_us = set.lasts.map_or(0, |lasts| lasts.min(LASTS_MOST).as_micros().max(1));
                let if_absent = if if_absent { "1" } else { "0" };
                let [lasts_us, most] = [lasts_us, OVERRIDES_MOST as u128].map(|number| number.to_string());
                let value = written(set);
                let words = ["set", field, &value, &lasts_us, if_absent, &names.channel, &most];
                match self.run(names, &words, deadline).await? {
                    Value::Integer(-1) => Err(StoreError::OverridesFull),
                    answer => Ok(answer == Value::Integer(1)),
                }
            }
        }
    }

    /// Removes what holds for a field. Says whether anything did.
    ///
    /// # Errors
    /// No answer in time: it may or may not have been removed.
    pub async fn unset_override(
        &self,
        names: &Names,
        field: &str,
        deadline: Instant,
    ) -> Result<bool, StoreError> {
        match self {
            Self::Memory(store) => Ok(store.overrides.unset(field)),
            Self::Redis(_) => {
                let words = ["unset", field, &names.channel];
                Ok(self.run(names, &words, deadline).await? == Value::Integer(1))
            }
        }
    }

    /// All that hold now.
    ///
    /// # Errors
    /// No answer in time.
    pub async fn overrides(&self, names: &Names, deadline: Instant) -> Result<Overrides, StoreError> {
        match self {
            Self::Memory(store) => Ok(store.overrides.list()),
            Self::Redis(_) => {
                let answer = self.run(names, &["list"], deadline).await?;
                read(answer).ok_or(StoreError::Malformed)
            }
        }
    }

    /// The version of what holds: a cheap question.
    ///
    /// # Errors
    /// No answer in time.
    pub async fn overrides_version(&self, names: &Names, deadline: Instant) -> Result<u64, StoreError> {
        match self {
            Self::Memory(store) => Ok(store.overrides.held.lock().0),
            Self::Redis(store) => {
                let words =
                    ["HGET", &names.table, VERSION].map(|word| Bytes::copy_from_slice(word.as_bytes()));
                let answer = store.command(&names.table, words.into(), deadline).await?;
                Ok(read_version(&answer))
            }
        }
    }

    /// What others tell of changes from now on; what they say while there is no connection is lost. `None` where
    /// there are no others. Must be called in a tokio runtime.
    pub fn changes(&self, names: &Names) -> Option<mpsc::Receiver<Bytes>> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(store) => Some(store.subscribe(names.channel.clone())),
        }
    }

    /// Tells all others of a change.
    ///
    /// # Errors
    /// No answer in time.
    pub async fn tell(&self, names: &Names, message: Bytes, deadline: Instant) -> Result<(), StoreError> {
        match self {
            Self::Memory(_) => Ok(()),
            Self::Redis(store) => store.publish(&names.channel, message, deadline).await,
        }
    }

    async fn run(&self, names: &Names, words: &[&str], deadline: Instant) -> Result<Value, StoreError> {
        let Self::Redis(store) = self else { return Err(StoreError::Malformed) };
        let words = [&["EVAL", SOURCE, "1", &names.table], words].concat();
        let words = words.iter().map(|word| Bytes::copy_from_slice(word.as_bytes())).collect();
        store.command(&names.table, words, deadline).await
    }
}

/// Where a store keeps overrides, and where their changes are told.
#[derive(Clone, Debug)]
pub struct Names {
    table: String,
    channel: String,
}

impl Names {
    /// Those of the gateways with this prefix.
    pub fn new(key_prefix: &str) -> Self {
        Self { table: format!("{key_prefix}:overrides"), channel: format!("{key_prefix}:changes") }
    }
}

impl Table {
    fn set(&self, field: &str, set: &Override, if_absent: bool) -> Result<bool, StoreError> {
        let mut held = self.held.lock();
        held.1.retain(|_, (_, until)| until.is_none_or(|until| until > Now::now()));
        let is_new = !held.1.contains_key(field);
        if if_absent && !is_new {
            return Ok(false);
        }
        if is_new && held.1.len() >= OVERRIDES_MOST {
            return Err(StoreError::OverridesFull);
        }
        held.0 += 1;
        let until = set.lasts.map(|lasts| Now::now() + lasts.min(LASTS_MOST));
        held.1.insert(field.to_owned(), (set.clone(), until));
        Ok(true)
    }

    fn unset(&self, field: &str) -> bool {
        let mut held = self.held.lock();
        let removed = held.1.remove(field);
        held.0 += 1;
        removed.is_some_and(|(_, until)| until.is_none_or(|until| until > Now::now()))
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

/// A value of the table, without its end.
pub(crate) fn written(set: &Override) -> String {
    let scope = match set.scope {
        None => "-",
        Some(Scope::Shared) => "shared",
        Some(Scope::Instance) => "instance",
    };
    format!("{} {} {scope}", set.rate.permits, set.rate.window_us)
}

/// The field of the table that holds its version.
const VERSION: &str = "#version";

/// Reads the script's answer to `list`. What another version of this program may have written is left out.
pub(crate) fn read(answer: Value) -> Option<Overrides> {
    let Value::Array(answer) = answer else { return None };
    let [time, Value::Array(fields)] = &answer[..] else { return None };
    let time_us = time.as_u64()?;
    let mut read = Overrides::default();
    for [field, value] in fields.as_chunks().0 {
        let (Some(field), Some(text)) = (field.as_string(), value.as_string()) else { continue };
        if field == VERSION {
            read.version = read_version(value);
        } else if let Some(set) = read_value(&text, time_us) {
            read.entries.push((field, set));
        }
    }
    Some(read)
}

fn read_version(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

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
