//! Kinds of operations that share no call with others, because the server's user lacks a right that they need.
//!
//! Redis refuses a whole call for a key that the user may not access, and ends a script at a command that the user may not run. It doesn't
//! say for which operation. Which limits need the key shows when the parts of the call are sent again. A script that ended may have written,
//! so it isn't sent again; but all limits of an algorithm need the same commands.

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
    /// Sets these kinds apart from now on. If there are too many, all others are no longer apart.
    pub(super) fn add(&self, more: impl Iterator<Item = u64>) {
        let mut kinds = self.kinds.lock();
        if kinds.len() >= KINDS_MOST {
            kinds.clear();
        }
        let until = Instant::now() + APART;
        kinds.extend(more.map(|kind| (kind, until)));
        self.is_used.store(true, Relaxed);
    }

    /// Returns the kind by which an operation is apart now, if it is.
    pub(super) fn kind_of(&self, operation: &Operation) -> Option<u64> {
        if !self.is_used.load(Relaxed) {
            return None;
        }
        let now = Instant::now();
        let mut kinds = self.kinds.lock();
        kinds.retain(|_, until| *until > now);
        self.is_used.store(!kinds.is_empty(), Relaxed);
        [by_limits(operation), by_algorithms(operation)].into_iter().find(|kind| kinds.contains_key(kind))
    }
}

/// Returns the kind of all operations on the same limits. A limit is what a bucket's name has before the key. A bucket shared with Redisson has
/// a free name, so such limits are told apart by their rates.
pub(super) fn by_limits(operation: &Operation) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (bucket, quota) in operation.buckets() {
        match quota.algorithm {
            Algorithm::Redisson(_) => quota.hash(&mut hasher),
            _ => bucket.split(|byte| *byte == b'{').next().hash(&mut hasher),
        }
    }
    hasher.finish()
}

/// Returns the kind of all operations with the same algorithms.
pub(super) fn by_algorithms(operation: &Operation) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (_, quota) in operation.buckets() {
        discriminant(&quota.algorithm).hash(&mut hasher);
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
    // The words of Redis up to 7.0, and those of later ones, which say it also of EVALSHA itself, with NOPERM in front.
    let words = ["can't run this command", "no permissions to run the"];
    let text = error.details();
    !text.starts_with("NOPERM") && words.iter().any(|words| text.contains(words))
}
