//! The overrides that a Redis server keeps: one hash, changed by lua/overrides.lua.

use bytes::Bytes;
use fred::types::Value;
use tokio::time::Instant;

use crate::{
    Scope,
    store::{
        StoreError,
        overrides::{
            LASTS_MOST, Names, OVERRIDES_MOST, Override, OverrideChange, Overrides, SetWhen, read_value,
        },
    },
};

use super::RedisStore;

const SOURCE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/lua/overrides.lua"));
/// The field of the table that holds its version.
const VERSION: &str = "#version";

impl RedisStore {
    /// Sets what holds for a field. Returns the change, if the condition allowed it.
    pub(in crate::store) async fn set_override(
        &self,
        names: &Names,
        field: &str,
        set: &Override,
        when: SetWhen,
        deadline: Instant,
    ) -> Result<Option<OverrideChange>, StoreError> {
        let lasts_us = set.lasts.map_or(0, |lasts| lasts.min(LASTS_MOST).as_micros().max(1));
        let when = match when {
            SetWhen::Always => "0",
            SetWhen::IfAbsent => "1",
            SetWhen::IfPresent => "2",
        };
        let [lasts_us, most] = [lasts_us, OVERRIDES_MOST as u128].map(|number| number.to_string());
        let value = written(set);
        let words = ["set", field, &value, &lasts_us, when, &names.channel, &most];
        match self.run(names, &words, deadline).await? {
            Value::Integer(-1) => Err(StoreError::OverridesFull),
            answer => read_answer(&answer),
        }
    }

    /// Removes what holds for a field. Returns the change, if anything did.
    pub(in crate::store) async fn unset_override(
        &self,
        names: &Names,
        field: &str,
        deadline: Instant,
    ) -> Result<Option<OverrideChange>, StoreError> {
        let words = ["unset", field, &names.channel];
        read_answer(&self.run(names, &words, deadline).await?)
    }

    /// Returns all that hold now.
    pub(in crate::store) async fn overrides(
        &self,
        names: &Names,
        deadline: Instant,
    ) -> Result<Overrides, StoreError> {
        // Not by a script, which takes four times as long for it. The time comes first: none ends here before
        // it does there.
        let time = self.table_command(names, &["TIME"], deadline).await?;
        let fields = self.table_command(names, &["HGETALL", &names.table], deadline).await?;
        read(&time, &fields).ok_or(StoreError::Malformed)
    }

    /// Returns the version of what holds: a cheap question.
    pub(in crate::store) async fn overrides_version(
        &self,
        names: &Names,
        deadline: Instant,
    ) -> Result<u64, StoreError> {
        Ok(read_version(&self.table_command(names, &["HGET", &names.table, VERSION], deadline).await?))
    }

    async fn run(&self, names: &Names, words: &[&str], deadline: Instant) -> Result<Value, StoreError> {
        self.table_command(names, &[&["EVAL", SOURCE, "1", &names.table], words].concat(), deadline).await
    }

    /// Runs a command where the table is.
    async fn table_command(
        &self,
        names: &Names,
        words: &[&str],
        deadline: Instant,
    ) -> Result<Value, StoreError> {
        let words = words.iter().map(|word| Bytes::copy_from_slice(word.as_bytes())).collect();
        self.command(&names.table, words, deadline).await
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

/// Reads the script's answer to a change.
fn read_answer(answer: &Value) -> Result<Option<OverrideChange>, StoreError> {
    match answer {
        Value::Integer(0) => Ok(None),
        answer => {
            let change = answer.as_string().and_then(|text| OverrideChange::read(&text));
            change.map(Some).ok_or(StoreError::Malformed)
        }
    }
}

/// Reads what a server says of its time and of the table. What another version of this program may have written is
/// left out.
pub(crate) fn read(time: &Value, fields: &Value) -> Option<Overrides> {
    let (Value::Array(time), Value::Array(fields)) = (time, fields) else { return None };
    let [seconds, microseconds] = &time[..] else { return None };
    let time_us = seconds.as_u64()?.checked_mul(1_000_000)?.checked_add(microseconds.as_u64()?)?;
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
