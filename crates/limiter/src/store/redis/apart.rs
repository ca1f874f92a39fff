//! Kinds of operations that share no call, because the server's user lacks a right that some of them need.
//!
//! Redis refuses a whole call for a key that the user may not access, and ends a script at a command that the user may not run. It doesn't
//! say for which operation. So all kinds in such a call are apart for a while: from then on only those fail that need the right. Operations on
//! the same limits are of one kind.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::Algorithm;

use super::{Operation, StoreError};

/// The time for which kinds are apart after a call of theirs lacked a right.
const APART: Duration = Duration::from_secs(60);
/// The most kinds that are apart.
const KINDS_MOST: usize = 1_024;

/// The kinds that are apart, with the end of that time.
#[derive(Default)]
pub(super) struct Apart {
    kinds: Mutex<BTreeMap<u64, Instant>>,
    /// False if no kind is apart.
    is_used: AtomicBool,
}

impl Apart {
    /// Sets the kinds of these operations apart from now on. Too many are forgotten for them.
    pub(super) fn add<'a>(&self, operations: impl Iterator<Item = &'a Operation>) {
        let now = Instant::now();
        let mut kinds = self.kinds.lock();
        kinds.retain(|_, until| *until > now);
        if kinds.len() >= KINDS_MOST {
            kinds.clear();
        }
        kinds.extend(operations.map(|operation| (kind(operation), now + APART)));
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
        kinds.retain(|_, until| *until > now);
        self.is_used.store(!kinds.is_empty(), Relaxed);
        None
    }
}

/// Returns a number that operations on the same limits have in common, and hardly any others. The limit is what a bucket's name has before the
/// key. One shared with Redisson has a free name, so such limits are told apart by their rates.
fn kind(operation: &Operation) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (bucket, quota) in operation.buckets() {
        match quota.algorithm {
            Algorithm::Redisson(_) => quota.hash(&mut hasher),
            _ => bucket.split(|byte| *byte == b'{').next().hash(&mut hasher),
        }
    }
    hasher.finish()
}

/// Returns true if the server has refused a whole call because its user may not access one of the keys. Nothing ran.
pub(super) fn is_of_a_key(error: &StoreError) -> bool {
    let StoreError::Answer(error) = error else { return false };
    // A user who may not run EVALSHA is told so in other words, as is a script.
    error.details().starts_with("NOPERM") && error.details().contains("to access")
}

/// Returns true if the server has ended a call at a command that its user may not run. What it wrote before remains.
pub(super) fn is_of_a_command(error: &StoreError) -> bool {
    let StoreError::Answer(error) = error else { return false };
    error.details().contains("can't run this command")
}
