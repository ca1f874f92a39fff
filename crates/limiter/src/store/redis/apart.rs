//! Limits that have calls of their own, because the server's user lacks a right that some of them need.
//!
//! Redis refuses a whole call for a key that the user may not access, and ends a script at a command that he may not run. It doesn't
//! say for which operation. So all limits of such a call are apart for a while: from then on only those fail that need the right.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    mem::discriminant,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::Algorithm;

use super::{Operation, StoreError};

/// The time for which limits are apart after a call of theirs lacked a right.
const APART: Duration = Duration::from_secs(60);
/// The most kinds of operations that are apart.
const KINDS_MOST: usize = 1_024;

/// The kinds of operations that are apart, with the end of that time.
#[derive(Default)]
pub(super) struct Apart {
    kinds: Mutex<BTreeMap<u64, Instant>>,
    /// There may be some.
    is_used: AtomicBool,
}

impl Apart {
    /// Sets operations of these kinds apart from now on.
    pub(super) fn add<'a>(&self, operations: impl Iterator<Item = &'a Operation>) {
        let now = Instant::now();
        let mut kinds = self.kinds.lock();
        kinds.retain(|_, until| *until > now);
        for kind in operations.map(kind) {
            if kinds.len() < KINDS_MOST || kinds.contains_key(&kind) {
                kinds.insert(kind, now + APART);
            }
        }
        self.is_used.store(true, Relaxed);
    }

    /// Returns the kind of an operation if that is apart now.
    pub(super) fn kind_of(&self, operation: &Operation) -> Option<u64> {
        if !self.is_used.load(Relaxed) {
            return None;
        }
        let (now, kind) = (Instant::now(), kind(operation));
        let mut kinds = self.kinds.lock();
        if kinds.get(&kind).is_some_and(|until| *until > now) {
            return Some(kind);
        }
        kinds.remove(&kind);
        self.is_used.store(!kinds.is_empty(), Relaxed);
        None
    }
}

/// Returns a number that operations of the same limits have in common, and hardly any others. A bucket shared with Redisson has a name in which
/// the limit's can't be found, so such limits are told apart by their rates.
fn kind(operation: &Operation) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (bucket, quota) in operation.buckets() {
        match quota.algorithm {
            Algorithm::Redisson(_) => quota.hash(&mut hasher),
            algorithm => {
                discriminant(&algorithm).hash(&mut hasher);
                bucket.split(|byte| *byte == b'{').next().hash(&mut hasher);
            }
        }
    }
    hasher.finish()
}

/// Returns true if the server has refused a whole call because its user may not access one of the keys. Nothing ran.
pub(super) fn is_of_a_key(error: &StoreError) -> bool {
    let StoreError::Answer(error) = error else { return false };
    let text = error.details();
    text.starts_with("NOPERM") && text.contains("key") && !text.contains("script")
}

/// Returns true if the server has ended a call at a command that its user may not run. What it wrote before remains.
pub(super) fn is_of_a_command(error: &StoreError) -> bool {
    let StoreError::Answer(error) = error else { return false };
    error.details().contains("can't run this command")
}
