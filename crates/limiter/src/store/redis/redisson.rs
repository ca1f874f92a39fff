//! The rates of limiters in the layout of Redisson, read and changed by lua/redisson_rate.lua.

use std::time::Duration;

use bytes::Bytes;
use fred::types::Value;
use tokio::time::Instant;

use crate::{
    Counted, RedissonName,
    algorithm::{Algorithm, Quota, Rate, RedissonType},
    redisson::derived_keys,
    store::{StoreError, overrides::SetWhen},
};

use super::RedisStore;

const SOURCE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/lua/redisson_rate.lua"));

impl RedisStore {
    /// Returns the rate that Redis has for a limiter, if it has one.
    pub(in crate::store) async fn redisson_rate(
        &self,
        bucket: &[u8],
        deadline: Instant,
    ) -> Result<Option<Rate>, StoreError> {
        let Value::Array(values) = self.run_redisson(bucket, &["get"], deadline).await? else {
            return Err(StoreError::Malformed);
        };
        let numbers = values.iter().map(Value::as_u64).collect::<Option<Vec<_>>>();
        match numbers.as_deref() {
            Some([]) => Ok(None),
            Some(&[permits, interval_ms]) => {
                let permits = u32::try_from(permits).unwrap_or(u32::MAX).min(Rate::MAX_PERMITS);
                Ok(Some(Rate { permits, window_us: interval_ms.saturating_mul(1_000) }))
            }
            _ => Err(StoreError::Malformed),
        }
    }

    /// Returns the names of limiters, of those that it finds among some 10,000 keys of one server.
    pub(in crate::store) async fn redisson_names(
        &self,
        name: &RedissonName,
        deadline: Instant,
    ) -> Result<Vec<String>, StoreError> {
        const ROUNDS: usize = 10;
        const NAMES_MOST: usize = 100;
        let (mut cursor, mut names) = ("0".to_owned(), Vec::new());
        for _ in 0..ROUNDS {
            let words = ["SCAN", &cursor, "MATCH", &name.pattern(), "COUNT", "1000", "TYPE", "hash"];
            let words = words.map(|word| Bytes::copy_from_slice(word.as_bytes())).into();
            let answer = self.command(&name.of("*"), words, deadline).await?;
            let Value::Array(parts) = answer else { return Err(StoreError::Malformed) };
            let [next, Value::Array(found)] = &parts[..] else { return Err(StoreError::Malformed) };
            names.extend(found.iter().filter_map(Value::as_string));
            cursor = next.as_string().ok_or(StoreError::Malformed)?;
            if cursor == "0" {
                break;
            }
        }
        // SCAN may name a key more than once.
        names.sort_unstable();
        names.dedup();
        names.truncate(NAMES_MOST);
        Ok(names)
    }

    /// Changes the rate of a limiter. Returns true if something was changed.
    pub(in crate::store) async fn change_redisson(
        &self,
        bucket: &[u8],
        quota: Quota,
        when: SetWhen,
        counted: Counted,
        deadline: Instant,
    ) -> Result<bool, StoreError> {
        let [permits, interval_ms] =
            [quota.permits.into(), quota.window_us / 1_000].map(|n: u64| n.to_string());
        let operation = match when {
            SetWhen::Always => "set",
            SetWhen::IfAbsent => "set-if-absent",
            SetWhen::IfPresent => "update",
        };
        let counted_by = match quota.algorithm {
            Algorithm::Redisson(RedissonType::PerClient) => "-1",
            _ => "-0",
        };
        let keeps = if counted == Counted::Kept { "1" } else { "0" };
        self.change(bucket, &[operation, &permits, &interval_ms, counted_by, "-", keeps], deadline).await
    }

    /// Deletes a limiter, or sets a time to live. Returns false if there is none.
    pub(in crate::store) async fn act_on_redisson(
        &self,
        bucket: &[u8],
        act: &str,
        ms: u64,
        deadline: Instant,
    ) -> Result<bool, StoreError> {
        self.change(bucket, &[act, &ms.to_string()], deadline).await
    }

    /// Returns the time after which a limiter expires. `None` if it stays, or there is none.
    pub(in crate::store) async fn redisson_ttl(
        &self,
        bucket: &[u8],
        deadline: Instant,
    ) -> Result<Option<Duration>, StoreError> {
        match self.run_redisson(bucket, &["ttl"], deadline).await? {
            Value::Integer(ms) => Ok(u64::try_from(ms).ok().map(Duration::from_millis)),
            _ => Err(StoreError::Malformed),
        }
    }

    /// Gives permits back to a limiter, as Redisson does. Returns true if it had less than its rate.
    pub(in crate::store) async fn release_redisson(
        &self,
        bucket: &[u8],
        permits: u32,
        deadline: Instant,
    ) -> Result<bool, StoreError> {
        self.change(bucket, &["release", &permits.to_string()], deadline).await
    }

    async fn change(&self, bucket: &[u8], words: &[&str], deadline: Instant) -> Result<bool, StoreError> {
        match self.run_redisson(bucket, words, deadline).await? {
            Value::Integer(changed) => Ok(changed != 0),
            _ => Err(StoreError::Malformed),
        }
    }

    async fn run_redisson(
        &self,
        bucket: &[u8],
        words: &[&str],
        deadline: Instant,
    ) -> Result<Value, StoreError> {
        let [own_value, value, own_permits, permits] = derived_keys(bucket).map(Bytes::from);
        let key = str::from_utf8(bucket).map_err(|_| StoreError::Malformed)?;
        let mut command: Vec<Bytes> = ["EVAL", SOURCE, "5"].map(Bytes::from).into();
        command.extend([Bytes::copy_from_slice(bucket), own_value, own_permits, value, permits]);
        command.extend(words.iter().map(|word| Bytes::copy_from_slice(word.as_bytes())));
        self.command(key, command, deadline).await
    }
}
