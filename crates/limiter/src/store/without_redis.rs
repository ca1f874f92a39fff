//! The store on Redis of a crate without the feature `redis`: there is none, so that nothing here is ever called.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use tokio::{sync::mpsc, time::Instant};

use crate::{
    Counted, RedissonName,
    algorithm::{Quota, Rate},
    metrics::Page,
};

use super::{
    Charges, Decision, NodeState, Operation, Reply, StoreError,
    overrides::{Names, Override, OverrideChange, Overrides, SetWhen},
};

/// A store that can't be made.
#[derive(Debug)]
pub struct RedisStore(Infallible);

#[expect(missing_docs, clippy::unused_async, reason = "nothing can be called")]
impl RedisStore {
    pub async fn warm_up(&self) -> Result<(), StoreError> {
        match self.0 {}
    }

    pub async fn take(&self, _: Charges, _: Instant) -> Result<(Decision, Vec<u64>), StoreError> {
        match self.0 {}
    }

    pub async fn operate(&self, _: Operation, _: Instant) -> Result<Reply, StoreError> {
        match self.0 {}
    }

    pub(crate) fn ask_by(&self, _: Instant) -> Instant {
        match self.0 {}
    }

    pub fn send(&self, _: Operation) {
        match self.0 {}
    }

    pub fn note_undone(&self, _: Operation, _: &StoreError) {
        match self.0 {}
    }

    pub async fn flush(&self) {
        match self.0 {}
    }

    pub fn charges_left_behind(&self) -> u64 {
        match self.0 {}
    }

    pub fn answers(&self) -> bool {
        match self.0 {}
    }

    pub fn nodes(&self) -> Vec<NodeState> {
        match self.0 {}
    }

    pub fn write_metrics(&self, _: &mut Page<'_>) {
        match self.0 {}
    }

    pub async fn redisson_rate(&self, _: &[u8], _: Instant) -> Result<Option<Rate>, StoreError> {
        match self.0 {}
    }

    pub async fn redisson_names(&self, _: &RedissonName, _: Instant) -> Result<Vec<String>, StoreError> {
        match self.0 {}
    }

    pub async fn change_redisson(
        &self,
        _: &[u8],
        _: Quota,
        _: SetWhen,
        _: Counted,
        _: Instant,
    ) -> Result<bool, StoreError> {
        match self.0 {}
    }

    pub async fn act_on_redisson(&self, _: &[u8], _: &str, _: u64, _: Instant) -> Result<bool, StoreError> {
        match self.0 {}
    }

    pub async fn redisson_ttl(&self, _: &[u8], _: Instant) -> Result<Option<Duration>, StoreError> {
        match self.0 {}
    }

    pub async fn release_redisson(&self, _: &[u8], _: u32, _: Instant) -> Result<bool, StoreError> {
        match self.0 {}
    }

    pub(crate) async fn set_override(
        &self,
        _: &Names,
        _: &str,
        _: &Override,
        _: SetWhen,
        _: Instant,
    ) -> Result<Option<OverrideChange>, StoreError> {
        match self.0 {}
    }

    pub(crate) async fn unset_override(
        &self,
        _: &Names,
        _: &str,
        _: Instant,
    ) -> Result<Option<OverrideChange>, StoreError> {
        match self.0 {}
    }

    pub(crate) async fn overrides(&self, _: &Names, _: Instant) -> Result<Overrides, StoreError> {
        match self.0 {}
    }

    pub(crate) async fn overrides_version(&self, _: &Names, _: Instant) -> Result<u64, StoreError> {
        match self.0 {}
    }

    pub async fn count_instances(&self, _: &str, _: Instant) -> Result<u32, StoreError> {
        match self.0 {}
    }

    pub fn subscribe(&self, _: String) -> mpsc::Receiver<Bytes> {
        match self.0 {}
    }

    pub async fn publish(&self, _: &str, _: Bytes, _: Instant) -> Result<(), StoreError> {
        match self.0 {}
    }
}
