//! Which keys of a limit ask most, in bounded memory: Space-Saving (Metwally, Agrawal, El Abbadi: Efficient
//! Computation of Frequent and Top-k Elements in Data Streams, ICDT 2005).
//!
//! Each thread has some counters, each with its key. A key without one takes over the counter with the least count, and
//! counts on from that: so a count is too high by what was taken over, at most, and a key that has more than its share of a
//! thread's requests, one in [`COUNTERS`], always has a counter. To read is to sum up the threads; where one has no counter for
//! a key, it may have missed as many as its least count (Agarwal et al.: Mergeable Summaries, PODS 2012).
//!
//! All counts are halved each minute, so what counts is the present. They are rounded down, so that a key that isn't noted
//! any more disappears. The bounds hold for the sum of each thread's count, which is halved and rounded in the same way.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use thread_local::ThreadLocal;
use tokio::time::Instant;
use tollgate_limiter::{Key, text};

/// The counters of a thread. All of them are searched for each request.
const COUNTERS: usize = 64;
const HALVED_EVERY: Duration = Duration::from_secs(60);

/// A key with its hash.
#[derive(Clone, Copy, Debug)]
pub struct Noted<'k> {
    key: &'k str,
    hash: u64,
}

impl<'k> From<&'k Key> for Noted<'k> {
    fn from(key: &'k Key) -> Self {
        Self { key: key.as_str(), hash: key.text_hash() }
    }
}

impl<'k> From<&'k str> for Noted<'k> {
    fn from(key: &'k str) -> Self {
        Self { key, hash: text::hash(key.as_bytes()) }
    }
}

/// Counts the keys that are noted most.
#[derive(Debug)]
pub struct HeavyHitters {
    since: Instant,
    /// The counters of each thread. Only the thread takes their lock, except while they are read.
    threads: ThreadLocal<Mutex<Counters>>,
}

/// A key, and how often it was noted: of late, as [`HeavyHitters::weighed_seconds`] says.
#[derive(Debug, PartialEq, Eq)]
pub struct Hits {
    /// The key's text.
    pub key: String,
    /// A lower bound of its count.
    pub at_least: u64,
    /// An upper bound of its count.
    pub at_most: u64,
}

impl Default for HeavyHitters {
    fn default() -> Self {
        Self { since: Instant::now(), threads: ThreadLocal::new() }
    }
}

impl HeavyHitters {
    /// Notes a key once.
    pub fn note(&self, key: Noted<'_>, now: Instant) {
        let mut counters = self.threads.get_or_default().lock();
        if counters.next_halving.is_none_or(|until| until <= now) {
            let halvings = self.halvings(now);
            counters.age(halvings);
            counters.next_halving = Some(self.since + HALVED_EVERY * (halvings + 1));
        }
        counters.note(key);
    }

    /// The keys that have counters, those first that were noted most.
    pub fn read(&self, now: Instant) -> Vec<Hits> {
        let mut found = HashMap::<String, Hits>::new();
        // What a thread without a counter for a key may have missed of it, and the sum of that.
        let (mut floors, mut all_floors) = (HashMap::<String, u64>::new(), 0);
        for counters in &self.threads {
            let mut counters = counters.lock();
            counters.age(self.halvings(now));
            let floor = counters.floor();
            all_floors += floor;
            for (Taken { key, over }, count) in counters.keys.iter().zip(&counters.counts) {
                let hits = found.entry(key.clone());
                let hits = hits.or_insert_with(|| Hits { key: key.clone(), at_least: 0, at_most: 0 });
                hits.at_least += count - over;
                hits.at_most += count;
                *floors.entry(key.clone()).or_default() += floor;
            }
        }
        let mut found: Vec<Hits> = found.into_values().collect();
        found.iter_mut().for_each(|hits| hits.at_most += all_floors - floors[&hits.key]);
        found.retain(|hits| hits.at_least > 0);
        found.sort_unstable_by(|one, other| other.at_least.cmp(&one.at_least).then(one.key.cmp(&other.key)));
        found
    }

    /// Returns the seconds over which the counts were taken, with halved minutes counted half: a count divided by this is a rate.
    pub fn weighed_seconds(&self, now: Instant) -> f64 {
        let (age, minute) = (now.saturating_duration_since(self.since), HALVED_EVERY.as_secs_f64());
        let halved = minute * (1.0 - 0.5_f64.powi(self.halvings(now) as i32));
        halved + age.as_secs_f64() % minute
    }

    /// Returns the number of times that counts have been halved by this time.
    fn halvings(&self, now: Instant) -> u32 {
        (now.saturating_duration_since(self.since).as_secs() / HALVED_EVERY.as_secs()) as u32
    }
}

/// The counters of one thread. Each list has one entry for each counter in use.
#[derive(Debug, Default)]
struct Counters {
    halvings: u32,
    /// The time of the next halving, so that most requests needn't count them.
    next_halving: Option<Instant>,
    hashes: Vec<u64>,
    counts: Vec<u64>,
    keys: Vec<Taken>,
}

/// The key of a counter.
#[derive(Debug)]
struct Taken {
    key: String,
    /// The most that the counter has counted for earlier keys.
    over: u64,
}

impl Counters {
    fn note(&mut self, Noted { key, hash }: Noted<'_>) {
        if let Some(own) = self.hashes.iter().position(|other| *other == hash) {
            self.counts[own] += 1;
        } else if self.keys.len() < COUNTERS {
            self.hashes.push(hash);
            self.counts.push(1);
            self.keys.push(Taken { key: key.to_owned(), over: 0 });
        } else {
            let least = self.floor();
            let at = self.counts.iter().position(|count| *count == least).expect("one has the least count");
            let taken = &mut self.keys[at];
            taken.key.clear();
            taken.key.push_str(key);
            taken.over = least;
            self.hashes[at] = hash;
            self.counts[at] = least + 1;
        }
    }

    /// Returns the most often that a key without a counter can have been noted: 0 while a counter is free.
    fn floor(&self) -> u64 {
        if self.keys.len() < COUNTERS { 0 } else { self.counts.iter().copied().min().unwrap_or(0) }
    }

    /// Halves the counts until they are halved so often in all.
    fn age(&mut self, halvings: u32) {
        let more = halvings.saturating_sub(self.halvings).min(u64::BITS - 1);
        if more > 0 {
            self.halvings = halvings;
            for (count, taken) in self.counts.iter_mut().zip(&mut self.keys) {
                // Rounding both bounds of the key's count keeps them bounds. Rounding `over` wouldn't.
                let at_least = (*count - taken.over) >> more;
                *count >>= more;
                taken.over = *count - at_least;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Arc, Barrier},
        thread,
    };

    use super::*;

    fn read(hitters: &HeavyHitters) -> Vec<(String, u64, u64)> {
        let hits = hitters.read(hitters.since).into_iter();
        hits.map(|hits| (hits.key, hits.at_least, hits.at_most)).collect()
    }

    #[test]
    fn few_keys_are_counted_exactly_over_all_threads() {
        let hitters = Arc::<HeavyHitters>::default();
        let threads = (1..=3).map(|times| {
            let hitters = hitters.clone();
            thread::spawn(move || {
                (0..times).for_each(|_| hitters.note("a".into(), hitters.since));
                hitters.note("b".into(), hitters.since);
            })
        });
        threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(read(&hitters), [("a".to_owned(), 6, 6), ("b".to_owned(), 3, 3)]);
    }

    proptest::proptest! {
        #![proptest_config(proptest::test_runner::Config::with_cases(64))]
        /// The theorems of the paper, over two threads of which one has a few keys more often. Between the halves of a stream,
        /// counts may be halved some times.
        #[test]
        fn counts_lie_within_their_bounds(
            mut streams in proptest::array::uniform2(proptest::collection::vec(0_u32..300, 0..2_000)),
            hot in proptest::collection::vec(0_u32..8, 0..1_000),
            halvings in 0_u32..4,
        ) {
            streams[0].extend(hot);
            let hitters = HeavyHitters::default();
            let later = hitters.since + HALVED_EVERY * halvings;
            // Both live at a time, or they were one thread to the counters.
            let both = Barrier::new(2);
            thread::scope(|scope| {
                for stream in &streams {
                    let (hitters, both) = (&hitters, &both);
                    scope.spawn(move || {
                        both.wait();
                        let (first, second) = stream.split_at(stream.len() / 2);
                        first.iter().for_each(|key| hitters.note((&*key.to_string()).into(), hitters.since));
                        second.iter().for_each(|key| hitters.note((&*key.to_string()).into(), later));
                        both.wait();
                    });
                }
            });
            let count = |stream: &[u32], key| stream.iter().filter(|other| **other == key).count();
            let times = |stream: &[u32], key| {
                let (first, second) = stream.split_at(stream.len() / 2);
                (count(first, key) >> halvings) + count(second, key)
            };
            let counters = hitters.threads.iter().map(|counters| counters.lock().keys.len()).max();
            proptest::prop_assert!(counters <= Some(COUNTERS));
            let hits = hitters.read(later);
            for Hits { key, at_least, at_most } in &hits {
                let all: usize = streams.iter().map(|stream| times(stream, key.parse().unwrap())).sum();
                let bounds = *at_least as usize..=*at_most as usize;
                proptest::prop_assert!(bounds.contains(&all), "{}: {} of {:?}", key, all, bounds);
            }
            for stream in &streams {
                let all = ((stream.len() / 2) >> halvings) + stream.len().div_ceil(2);
                // Rounding costs a key at most one.
                let rounded = usize::from(halvings > 0);
                let is_heavy = |key: &u32| times(stream, *key) > all / COUNTERS + rounded;
                for key in (0..300).filter(is_heavy) {
                    let is_told = hits.iter().any(|hits| hits.key == key.to_string());
                    proptest::prop_assert!(is_told, "{} is missed", key);
                }
            }
        }
    }

    #[test]
    fn a_key_that_is_no_longer_noted_disappears() {
        let hitters = HeavyHitters::default();
        (0..5).for_each(|_| hitters.note("a".into(), hitters.since));
        hitters.note("b".into(), hitters.since);
        for (minutes, expected) in
            [(0, vec![("a", 5), ("b", 1)]), (1, vec![("a", 2)]), (2, vec![("a", 1)]), (3, vec![])]
        {
            let hits = hitters.read(hitters.since + minutes * HALVED_EVERY);
            let hits: Vec<_> = hits.iter().map(|hits| (&*hits.key, hits.at_least)).collect();
            assert_eq!(hits, expected, "after {minutes} minutes");
        }
    }

    #[test]
    fn what_was_counts_half_as_much_each_minute() {
        let hitters = HeavyHitters::default();
        (0..100).for_each(|_| hitters.note("a".into(), hitters.since));
        let later = hitters.since + 2 * HALVED_EVERY + Duration::from_secs(30);
        hitters.note("b".into(), later);
        let hits: Vec<_> = hitters.read(later).into_iter().map(|hits| (hits.key, hits.at_most)).collect();
        assert_eq!(hits, [("a".to_owned(), 25), ("b".to_owned(), 1)]);
        assert_eq!(hitters.weighed_seconds(later), 60.0 * 0.75 + 30.0);
        assert_eq!(hitters.weighed_seconds(hitters.since + HALVED_EVERY / 2), 30.0);
        hitters.note("c".into(), hitters.since + Duration::from_secs(u64::from(u32::MAX)));
    }
}
