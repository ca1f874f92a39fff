//! The script, what it is called with, and its reply.
//!
//! The script is put together from the files of lua/: a shortcut for the most frequent call (lone.lua), the algorithms, then the
//! walk over operations (walk.lua), which decides and asks the algorithms. A [`Call`] holds the operations that go together; equal
//! requests travel as one group with a count, of which a part may be granted.
//!
//! What a call encodes and how its reply is read must agree, so both stand in one file.

mod list;

use std::{
    collections::HashMap,
    fmt::Write,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use hashbrown::{HashTable, hash_table::Entry};
use sha1::{Digest, Sha1};
use smallvec::SmallVec;

use crate::{
    algorithm::{Algorithm, Quota, Rate, RedissonType},
    redisson, text,
};

use self::list::{List, Value};
use super::{Act, Charge, Charges, Decision, Lease, LeaseId, Operation, Outcome, Refund, Reply, Usage};

/// The script's source, as `EVAL` takes it.
///
/// # Examples
///
/// ```
/// assert!(tollgate_limiter::store::script::SOURCE.contains("KEYS"));
/// ```
pub const SOURCE: &str = concat!(
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/lua/lone.lua")),
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/lua/sliding_window.lua")),
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/lua/sliding_cells.lua")),
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/lua/refundable.lua")),
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/lua/fixed_window.lua")),
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/lua/calendar_window.lua")),
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/lua/gcra.lua")),
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/lua/concurrency.lua")),
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/lua/redisson.lua")),
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/lua/walk.lua")),
);

/// The script's SHA-1 in hexadecimal, as `EVALSHA` takes it.
pub(crate) static SHA: LazyLock<String> =
    LazyLock::new(|| Sha1::digest(SOURCE).iter().map(|byte| format!("{byte:02x}")).collect());

/// The number of this process in the names of leases, random so that it differs from all others.
static PROCESS: LazyLock<u64> = LazyLock::new(|| fastrand::u64(..));
static CALLS: AtomicU64 = AtomicU64::new(0);

/// One call of the script: some operations, in order.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::{Quota, store::{Act, Operation, Reply, script::{Call, ScriptReply}}};
///
/// let mut call = Call::default();
/// call.push(&Operation::On { bucket: "uploads:cc:{alice}".into(), quota: Quota::concurrency(1), act: Act::Reset });
/// let (keys, _argument) = call.encode();
/// assert_eq!(keys, ["uploads:cc:{alice}"]);
/// let reply = ScriptReply { numbers: vec![7], failures: Vec::new() };
/// assert_eq!(call.decode(&reply), Some((7, vec![Ok(Reply::Done)])));
/// ```
#[derive(Debug)]
pub struct Call {
    /// Counts this process's calls, to name leases by.
    number: u64,
    buckets: Vec<CallBucket>,
    /// The index of each bucket, by its name.
    places: HashTable<usize>,
    steps: Vec<CallStep>,
    /// The steps of requests that aren't the first to name their first bucket.
    group_of: HashMap<GroupKey, usize>,
    /// For each operation, its step.
    operations: Vec<usize>,
    /// The requests that name a bucket more than once, by their operation: for each charge, its place in what they ask.
    repeats: HashMap<usize, SmallVec<[usize; 4]>>,
    /// True if operations hold one bucket to different quotas, or a request charges it and shadows there.
    has_variants: bool,
    /// See [`Self::size`].
    size: usize,
}

impl Default for Call {
    fn default() -> Self {
        Self {
            number: CALLS.fetch_add(1, Relaxed),
            buckets: Vec::new(),
            places: HashTable::new(),
            steps: Vec::new(),
            group_of: HashMap::new(),
            operations: Vec::new(),
            repeats: HashMap::new(),
            has_variants: false,
            size: 0,
        }
    }
}

/// The reply of the script to a call.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::store::script::{Call, ScriptReply};
///
/// let reply = ScriptReply { numbers: vec![7], failures: Vec::new() };
/// assert_eq!(Call::default().decode(&reply), Some((7, Vec::new())));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScriptReply {
    /// The server's time in microseconds, then the results of the steps that were done, as lua/walk.lua documents them. Those of
    /// a group: the number of requests admitted, and for each charge how often it was made, what is left, the microseconds until
    /// there is more room, and those until its cost fits (0: this limit has room, negative: never).
    pub numbers: Vec<i64>,
    /// The steps that failed, each with the error's text. They have changed nothing.
    pub failures: Vec<(usize, String)>,
}

impl ScriptReply {
    /// Reads a reply as the script writes it, in MessagePack. `None` if it isn't one.
    pub fn read(mut reply: &[u8]) -> Option<Self> {
        let mut read = Self { numbers: Vec::with_capacity(reply.len() / 2), failures: Vec::new() };
        while !reply.is_empty() {
            match list::take(&mut reply)? {
                Value::ListStart => {}
                Value::Number(number) => read.numbers.push(number),
                Value::Text(text) => {
                    let place = usize::try_from(read.numbers.pop()?).ok()?;
                    read.failures.push((place, String::from_utf8_lossy(text).into_owned()));
                }
            }
        }
        Some(read)
    }
}

/// A bucket of a call, held to one quota. With another quota it has another place, and another index in KEYS.
#[derive(Debug)]
struct CallBucket {
    name: Bytes,
    hash: u64,
    quota: Quota,
    /// The place of the bucket with the first quota that it was named with.
    key: usize,
    /// The place of the bucket with the next such quota.
    variant: Option<usize>,
    /// The number of steps that name it, and the first of them.
    steps: usize,
    first: usize,
}

/// The charges of equal requests: for each bucket its place, the cost of all charges on it, and whether they shadow. A negative cost
/// must fit, but another charge of the request records it, which names the bucket with another quota.
type GroupKey = SmallVec<[(usize, i64, bool); 2]>;

#[derive(Debug)]
enum CallStep {
    /// Equal requests.
    Group { asked: GroupKey, count: u64 },
    /// An act on the bucket of this place.
    On(usize, Act),
}

impl Call {
    /// Adds an operation. Each is held to its own quota, also if others of the call name the bucket with another one.
    pub fn push(&mut self, operation: &Operation) {
        let step = match operation {
            Operation::Take(charges) => self.group(charges),
            Operation::On { bucket, quota, act } => {
                let place = self.place(bucket, *quota);
                self.buckets[place].steps += 1;
                self.size += 1;
                self.steps.push(CallStep::On(place, *act));
                self.steps.len() - 1
            }
        };
        self.operations.push(step);
    }

    /// Returns the number of charges that the script makes one by one. Those of equal requests are one, except for leases.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Returns the step of requests with these charges, one more of which it counts.
    fn group(&mut self, charges: &Charges) -> usize {
        // A hot key's come one after the other.
        let last = self.operations.last().copied().filter(|step| self.is_group_of(*step, charges));
        let step = last.unwrap_or_else(|| self.step_of(charges));
        if let CallStep::Group { asked, count } = &mut self.steps[step] {
            let buckets = &self.buckets;
            let is_lease =
                |(place, ..): &&(usize, i64, bool)| buckets[*place].quota.algorithm == Algorithm::Concurrency;
            self.size += if *count == 0 { asked.len() } else { asked.iter().filter(is_lease).count() };
            *count += 1;
        }
        step
    }

    /// Returns the step of requests with these charges, which may be new.
    fn step_of(&mut self, charges: &Charges) -> usize {
        let asked = self.asked(charges);
        let next = self.steps.len();
        // The step that was the first to name a bucket is mostly of the same requests.
        let first = asked.first().map_or(next, |(place, ..)| self.buckets[*place].first);
        let step = match self.steps.get(first) {
            None => next,
            // The script looks for one request at a time.
            Some(_) if self.has_variants && is_mixed(&asked) => next,
            Some(CallStep::Group { asked: other, .. }) if *other == asked => first,
            Some(_) => *self.group_of.entry(asked.clone()).or_insert(next),
        };
        if step == next {
            asked.iter().for_each(|(place, ..)| self.buckets[*place].steps += 1);
            self.steps.push(CallStep::Group { asked, count: 0 });
        }
        step
    }

    /// Adds up the costs of charges on the same bucket: the script sees each bucket of a request once.
    fn asked(&mut self, charges: &Charges) -> GroupKey {
        let mut asked = GroupKey::new();
        let mut places: SmallVec<[usize; 4]> = SmallVec::new();
        for Charge { bucket, quota, cost, shadow } in charges {
            let place = self.place(bucket, *quota);
            let is_same = |(other, _, shadows): &(usize, i64, bool)| (*other, *shadows) == (place, *shadow);
            let at = asked.iter().position(is_same);
            match at {
                Some(at) => asked[at].1 += i64::from(*cost),
                None => asked.push((place, i64::from(*cost), *shadow)),
            }
            places.push(at.unwrap_or(asked.len() - 1));
        }
        let shadows_own = |(at, (place, _, shadow)): (usize, &(usize, i64, bool))| {
            asked[..at].iter().any(|other| (other.0, other.2) == (*place, !shadow))
        };
        self.has_variants |= asked.iter().enumerate().any(shadows_own);
        if self.has_variants {
            self.look_beside(&mut asked);
            looks_last(&mut asked, &mut places);
        }
        if places.iter().enumerate().any(|(charge, place)| charge != *place) {
            self.repeats.insert(self.operations.len(), places);
        }
        asked
    }

    /// Makes one of several charges of a request on one bucket, with different quotas, record the cost of all that enforce, or of all
    /// that shadow if none enforces. The others only look whether it fits their quota, too.
    fn look_beside(&self, asked: &mut GroupKey) {
        let own = asked.clone();
        let key = |(place, ..): &(usize, i64, bool)| self.buckets[*place].key;
        for charge in asked {
            let same = || own.iter().filter(|other| key(other) == key(charge));
            let total: i64 = same().filter(|other| other.2 == charge.2).map(|(_, cost, _)| *cost).sum();
            let recording = same().find(|(.., shadow)| !shadow).or_else(|| same().next());
            let records =
                recording.is_none_or(|(place, _, shadow)| (*place, *shadow) == (charge.0, charge.2));
            charge.1 = if records { total } else { -total.max(1) };
        }
    }

    fn is_group_of(&self, step: usize, charges: &Charges) -> bool {
        let CallStep::Group { asked, .. } = &self.steps[step] else { return false };
        let is_same = |((place, cost, shadow), charge): (&(usize, i64, bool), &Charge)| {
            let CallBucket { name, quota, .. } = &self.buckets[*place];
            (name, *quota, *cost, *shadow)
                == (&charge.bucket, charge.quota, i64::from(charge.cost), charge.shadow)
        };
        asked.len() == charges.len() && asked.iter().zip(charges).all(is_same)
    }

    fn place(&mut self, bucket: &Bytes, quota: Quota) -> usize {
        let Self { buckets, places, steps, .. } = self;
        let is_its = |place: &usize| buckets[*place].name == *bucket;
        let hash_of = |place: &usize| buckets[*place].hash;
        let hash = text::hash(bucket);
        match places.entry(hash, is_its, hash_of) {
            Entry::Occupied(known) => {
                let place = *known.get();
                if buckets[place].quota == quota { place } else { self.variant(place, quota) }
            }
            Entry::Vacant(vacant) => {
                let place = buckets.len();
                vacant.insert(place);
                let (name, first) = (bucket.clone(), steps.len());
                buckets.push(CallBucket { name, hash, quota, key: place, variant: None, steps: 0, first });
                place
            }
        }
    }

    /// Returns the place of a bucket with another quota than that of its first place.
    fn variant(&mut self, key: usize, quota: Quota) -> usize {
        let mut last = key;
        while let Some(place) = self.buckets[last].variant {
            if self.buckets[place].quota == quota {
                return place;
            }
            last = place;
        }
        let (place, first) = (self.buckets.len(), self.steps.len());
        let CallBucket { name, hash, .. } = &self.buckets[key];
        let variant =
            CallBucket { name: name.clone(), hash: *hash, quota, key, variant: None, steps: 0, first };
        self.buckets.push(variant);
        self.buckets[last].variant = Some(place);
        self.has_variants = true;
        place
    }

    /// Returns the script's KEYS and its argument, which lua/walk.lua documents. Buckets of one quota stand together, and quotas of one
    /// algorithm.
    pub fn encode(&self) -> (Vec<Bytes>, Bytes) {
        let order = self.in_order(|_| true);
        let quota = |place: &usize| self.buckets[*place].quota;
        let mut keys = Vec::with_capacity(order.len());
        let mut list = List::with_capacity(5 + 4 * self.steps.len());
        let mut index = vec![0; order.len()];
        for run in order.chunk_by(|left, right| quota(left) == quota(right)) {
            self.write_quota(quota(&run[0]), &mut list);
            list.push(run.len() as i64);
            for place in run {
                keys.push(self.buckets[*place].name.clone());
                index[*place] = keys.len() as i64;
            }
        }
        // What these algorithms keep beside the bucket stands behind all buckets.
        let several = order.iter().map(|place| &self.buckets[*place]);
        let several = several.filter(|bucket| bucket.quota.algorithm.is_changed_by_others());
        keys.extend(several.flat_map(|bucket| redisson::derived_keys(&bucket.name)).map(Bytes::from));
        let mut open = vec![None; if self.has_variants { order.len() } else { 0 }];
        for step in &self.steps {
            if self.has_variants {
                self.write_closes(step, &mut open, &index, &mut list);
            }
            self.write_step(step, &index, &mut list);
        }
        (keys, list.finish())
    }

    /// Has the script write buckets that a step names with another quota than the steps before it. `open` has the place with which
    /// the script has read a bucket and not written it yet, by the bucket's first place.
    fn write_closes(&self, step: &CallStep, open: &mut [Option<usize>], index: &[i64], list: &mut List) {
        let on;
        let asked: &[_] = match step {
            CallStep::Group { asked, .. } => asked,
            CallStep::On(place, _) => {
                on = [(*place, 0, false)];
                &on
            }
        };
        for (place, ..) in asked {
            let open = &mut open[self.buckets[*place].key];
            if let Some(other) = open.filter(|other| *other != *place || is_mixed(asked)) {
                list.push_text("close");
                list.push(index[other]);
                list.push(0);
                *open = None;
            }
        }
        if !self.is_alone(step) {
            let charged = asked.iter().filter(|(_, cost, _)| *cost >= 0);
            charged.for_each(|(place, ..)| open[self.buckets[*place].key] = Some(*place));
        }
    }

    /// Returns true if a step is about one enforcing charge, on a bucket that no other step names with its quota.
    fn is_alone(&self, step: &CallStep) -> bool {
        let CallStep::Group { asked, .. } = step else { return false };
        matches!(asked[..], [(place, _, false)] if self.buckets[place].steps == 1)
    }

    /// Returns the places of the buckets with such a quota, in the order of their keys.
    fn in_order(&self, is_such: impl Fn(Quota) -> bool) -> Vec<usize> {
        let quota = |place: usize| self.buckets[place].quota;
        let mut order: Vec<usize> = (0..self.buckets.len()).filter(|place| is_such(quota(*place))).collect();
        order.sort_by_key(|place| {
            let Quota { algorithm, permits, window_us } = quota(*place);
            (algorithm, permits, window_us)
        });
        order
    }

    /// Writes an algorithm's name, the rate, and the algorithm's parameter.
    fn write_quota(&self, quota: Quota, list: &mut List) {
        list.push_text(match quota.algorithm {
            Algorithm::SlidingWindow => "sw",
            Algorithm::SlidingCells { .. } => "sc",
            Algorithm::Refundable { .. } => "rl",
            Algorithm::FixedWindow => "fw",
            Algorithm::Calendar(_) => "ca",
            Algorithm::Gcra { .. } => "gc",
            Algorithm::Concurrency => "cc",
            Algorithm::Redisson(_) => "rs",
        });
        list.push(i64::from(quota.permits));
        list.push(quota.window_us as i64);
        match quota.algorithm {
            Algorithm::SlidingWindow | Algorithm::FixedWindow => list.push(0),
            Algorithm::Calendar(calendar) => list.push_text(&calendar.parameter()),
            Algorithm::SlidingCells { cells } => list.push(i64::from(cells)),
            Algorithm::Refundable { cells } => list.push(i64::from(cells.unwrap_or(0))),
            Algorithm::Gcra { .. } => list.push(i64::from(quota.capacity())),
            Algorithm::Concurrency => list.push_text(&call_name(self.number)),
            Algorithm::Redisson(counted) => {
                let mut parameter = Vec::with_capacity(64);
                parameter.extend(&fastrand::u128(..).to_be_bytes()[..14]);
                parameter.push(if counted == RedissonType::Overall { b'0' } else { b'1' });
                parameter.extend(redisson::CLIENT.as_bytes());
                list.push_bytes(&parameter);
            }
        }
    }

    /// Writes a step. `index` has the place of each bucket in KEYS.
    fn write_step(&self, step: &CallStep, index: &[i64], list: &mut List) {
        match step {
            CallStep::Group { asked, count } => {
                if self.is_alone(step) {
                    // A negative count marks requests with one charge.
                    let (place, cost, _) = asked[0];
                    list.push(-(*count as i64));
                    list.push(index[place]);
                    list.push(cost);
                    return;
                }
                list.push(*count as i64);
                list.push(asked.len() as i64);
                for (place, cost, shadow) in asked {
                    list.push(if *shadow { -index[*place] } else { index[*place] });
                    list.push(*cost);
                }
            }
            CallStep::On(place, act) => {
                list.push_text(match act {
                    Act::Record(_) => "record",
                    Act::Report(_) => "report",
                    Act::Renew(_) => "renew",
                    Act::Release(_) => "release",
                    Act::Refund(_) => "refund",
                    Act::Peek(_) => "peek",
                    Act::Reset => "reset",
                });
                list.push(index[*place]);
                match act {
                    Act::Record(cost) | Act::Report(cost) | Act::Peek(cost) => list.push(i64::from(*cost)),
                    Act::Renew(lease) | Act::Release(lease) => list.push_text(&lease_name(*lease)),
                    Act::Refund(refund) => list.push_bytes(&refund_bytes(*refund)),
                    Act::Reset => list.push(0),
                }
            }
        }
    }

    /// Reads the script's reply: its time in microseconds, and the replies in the operations' order, or the errors in their place.
    /// `None` if the reply isn't of the script's shape.
    pub fn decode(&self, reply: &ScriptReply) -> Option<(u64, Vec<Result<Reply, String>>)> {
        let (time_us, mut rest) = reply.numbers.split_first()?;
        let time_us = *time_us as u64;
        let mut results = Vec::with_capacity(self.steps.len());
        // How many leases each bucket has granted so far, in the order of the walk.
        let mut leased = vec![0; self.buckets.len()];
        for (place, step) in self.steps.iter().enumerate() {
            let failure = reply.failures.iter().find(|(failed, _)| *failed == place);
            let (result, after) = match step {
                _ if let Some((_, text)) = failure => (Said::Failed(text), rest),
                CallStep::Group { asked, .. } => {
                    let (granted, after) = rest.split_first()?;
                    let (states, after) = after.split_at_checked(4 * asked.len())?;
                    let granted = u64::try_from(*granted).ok()?;
                    let before = self.count_leases(asked, states, &mut leased);
                    (Said::Group { granted, states, leased: before, served: 0 }, after)
                }
                CallStep::On(_, Act::Peek(_) | Act::Report(_)) => {
                    let (usage, after) = rest.split_first_chunk::<3>()?;
                    (Said::Usage(*usage), after)
                }
                CallStep::On(_, Act::Refund(_)) => {
                    let (permits, after) = rest.split_first()?;
                    (Said::Refunded(u64::try_from(*permits).ok()?), after)
                }
                CallStep::On(..) => (Said::Done, rest),
            };
            results.push(result);
            rest = after;
        }
        let held = self.read_held(rest)?;
        let replies = self.operations.iter().enumerate().map(|(operation, step)| {
            let reply = self.reply(time_us, *step, &mut results[*step], &held);
            reply.map(|reply| self.repeated(operation, reply))
        });
        Some((time_us, replies.collect()))
    }

    /// Reads what the buckets that others change are held to.
    fn read_held(&self, numbers: &[i64]) -> Option<Vec<HeldBucket>> {
        let (each, []) = numbers.as_chunks::<3>() else { return None };
        let places = self.in_order(|quota| quota.algorithm.is_changed_by_others());
        let held = places.iter().zip(each).map(|(&place, &[permits, interval_ms, _])| {
            let permits = u32::try_from(permits).unwrap_or(u32::MAX).min(Rate::MAX_PERMITS);
            let rate = Rate { permits, window_us: (interval_ms.max(1) as u64).saturating_mul(1_000) };
            let rate = Some(rate).filter(|rate| *rate != self.buckets[place].quota.rate());
            HeldBucket { place, rate }
        });
        (places.len() == each.len()).then(|| held.collect())
    }

    /// Returns the milliseconds by which grants of others are ahead of the store's clock, if that is more than an interval.
    pub(crate) fn ahead_ms(&self, reply: &ScriptReply) -> Option<u64> {
        let buckets = self.buckets.iter().filter(|bucket| bucket.quota.algorithm.is_changed_by_others());
        let held = reply.numbers.rchunks_exact(3).take(buckets.count());
        held.map(|held| held[2].max(0) as u64).max().filter(|ahead_ms| *ahead_ms > 0)
    }

    /// Returns the reply with an outcome for each charge of the request.
    fn repeated(&self, operation: usize, reply: Reply) -> Reply {
        match (self.repeats.get(&operation), reply) {
            (Some(places), Reply::Decision(mut decision)) => {
                decision.outcomes = places.iter().map(|at| decision.outcomes[*at]).collect();
                Reply::Decision(decision)
            }
            (_, reply) => reply,
        }
    }

    /// Adds the leases that a group's charges made, and returns how many there were before.
    fn count_leases(&self, asked: &GroupKey, states: &[i64], leased: &mut [u64]) -> SmallVec<[u64; 2]> {
        let charges = asked.iter().zip(states.chunks_exact(4));
        let count = charges.map(|((place, cost, _), standing)| {
            let leased = &mut leased[self.buckets[*place].key];
            let before = *leased;
            let made = (standing[0].max(0) as u64).saturating_mul((*cost).max(0) as u64);
            *leased = before.saturating_add(made);
            before
        });
        count.collect()
    }

    fn reply(
        &self,
        time_us: u64,
        step: usize,
        said: &mut Said<'_>,
        held: &[HeldBucket],
    ) -> Result<Reply, String> {
        let rate_of = |place: usize| held.iter().find(|held| held.place == place).and_then(|held| held.rate);
        Ok(match (&self.steps[step], said) {
            (_, Said::Failed(text)) => return Err((*text).to_owned()),
            (CallStep::Group { asked, .. }, Said::Group { granted, states, leased, served }) => {
                let turn = *served;
                *served += 1;
                let mut decision = Decision {
                    time_us,
                    admitted: turn < *granted,
                    outcomes: SmallVec::new(),
                    leases: Vec::new(),
                };
                let charges = asked.iter().zip(states.chunks_exact(4)).zip(leased);
                for (((place, cost, _), standing), leased) in charges {
                    let outcome = Outcome { rate: rate_of(*place), ..outcome(standing, *cost, turn) };
                    if outcome.charged {
                        decision.leases.extend(self.leases(*place, *cost, turn, *leased));
                    }
                    decision.outcomes.push(outcome);
                }
                Reply::Decision(decision)
            }
            (CallStep::On(place, _), Said::Usage([used, grow_us, delay_us])) => Reply::Usage(Usage {
                used: *used as u64,
                grow_us: *grow_us as u64,
                delay_us: u64::try_from(*delay_us).ok(),
                rate: rate_of(*place),
            }),
            (_, Said::Refunded(permits)) => Reply::Refunded(*permits),
            _ => Reply::Done,
        })
    }

    /// Returns the leases that it may have granted, if its reply is unknown.
    pub(crate) fn leases_at_most(&self) -> impl Iterator<Item = Lease> {
        let mut leased = vec![0_u64; self.buckets.len()];
        let groups = self.steps.iter().filter_map(|step| match step {
            CallStep::Group { asked, count } => Some((asked, *count as i64)),
            CallStep::On(..) => None,
        });
        let costs = groups.flat_map(|(asked, count)| {
            asked.iter().map(move |(place, cost, _)| (*place, cost.max(&0).saturating_mul(count)))
        });
        costs.flat_map(move |(place, cost)| {
            let leased = &mut leased[self.buckets[place].key];
            let before = *leased;
            *leased = before.saturating_add(cost as u64);
            self.leases(place, cost, 0, before)
        })
    }

    /// Returns the leases of the `turn`-th request of a group, whose bucket had leased so many to earlier groups. There are none
    /// unless the bucket counts requests in flight.
    fn leases(&self, place: usize, cost: i64, turn: u64, leased: u64) -> impl Iterator<Item = Lease> {
        let CallBucket { name, quota, .. } = &self.buckets[place];
        let (cost, call) = (cost.max(0) as u64, self.number);
        let before = leased.saturating_add(turn.saturating_mul(cost));
        let most = if quota.algorithm == Algorithm::Concurrency { cost } else { 0 };
        (1..=most).map(move |number| {
            let id = LeaseId { call, turn: before.saturating_add(number) };
            Lease { bucket: name.clone(), quota: *quota, id }
        })
    }
}

/// A bucket that others change, and the rate that the store holds it to.
struct HeldBucket {
    place: usize,
    /// `None` if it is the rate of the call.
    rate: Option<Rate>,
}

/// The result of a step.
enum Said<'a> {
    Failed(&'a str),
    Group { granted: u64, states: &'a [i64], leased: SmallVec<[u64; 2]>, served: u64 },
    Usage([i64; 3]),
    Refunded(u64),
    Done,
}

/// Returns a refund as lua/refundable.lua reads it.
fn refund_bytes(Refund { permits, granted_us }: Refund) -> [u8; 11] {
    let mut bytes = [0; 11];
    bytes[..4].copy_from_slice(&permits.to_be_bytes());
    bytes[4..].copy_from_slice(&granted_us.unwrap_or(0).to_be_bytes()[1..]);
    bytes
}

/// Returns the name of the leases of a call, before their turn.
fn call_name(call: u64) -> String {
    format!("{:x}.{call:x}.", *PROCESS)
}

/// Moves the charges that only look behind the others, so that they see what those record.
fn looks_last(asked: &mut GroupKey, places: &mut [usize]) {
    let mut order: SmallVec<[usize; 4]> = (0..asked.len()).collect();
    order.sort_by_key(|at| asked[*at].1 < 0);
    *asked = order.iter().map(|at| asked[*at]).collect();
    for place in places {
        *place = order.iter().position(|at| at == place).expect("each has a place");
    }
}

/// Returns true if a request names a bucket with several quotas, or charges it and shadows there.
fn is_mixed(asked: &[(usize, i64, bool)]) -> bool {
    asked.iter().any(|(_, cost, _)| *cost < 0)
}

fn lease_name(lease: LeaseId) -> String {
    let mut name = call_name(lease.call);
    write!(name, "{}", lease.turn).expect("writing to a string succeeds");
    name
}

/// Returns the outcome for the `turn`-th request of a group, counted from 0: the first ones were
/// charged, and each of these left the room that the ones after it took.
fn outcome(standing: &[i64], cost: i64, turn: u64) -> Outcome {
    let [made, remaining, grow_us, delay_us] = standing else { unreachable!("chunks of four") };
    let (made, remaining) = (*made as u64, *remaining as u64);
    let charged = turn < made;
    let after_this = if charged { made - 1 - turn } else { 0 };
    Outcome {
        charged,
        remaining: remaining.saturating_add(after_this.saturating_mul(cost.unsigned_abs())),
        grow_us: *grow_us as u64,
        delay_us: if charged { Some(0) } else { u64::try_from(*delay_us).ok() },
        rate: None,
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::algorithm::Rate;

    fn charge(bucket: &'static str, permits: u32) -> Charge {
        let quota = Rate { permits, window_us: 1_000_000 }.into();
        Charge { bucket: Bytes::from_static(bucket.as_bytes()), quota, cost: 1, shadow: false }
    }

    fn take(charge: Charge) -> Operation {
        Operation::Take(smallvec![charge])
    }

    fn numbers(numbers: &[i64]) -> ScriptReply {
        ScriptReply { numbers: numbers.to_vec(), failures: Vec::new() }
    }

    #[test]
    fn equal_requests_travel_as_one_group_and_equal_quotas_as_one_run() {
        let mut call = Call::default();
        for bucket in ["a", "b", "a", "c"] {
            call.push(&take(charge(bucket, if bucket == "b" { 9 } else { 5 })));
        }
        let (keys, list) = call.encode();
        assert_eq!(keys, ["a", "c", "b"]);
        let second = [0xd2, 0, 15, 66, 64];
        let expected: Vec<u8> = [
            &[0xdd, 0, 0, 0, 19][..],
            &[0xd9, 2, b's', b'w', 5],
            &second,
            &[0, 2],
            &[0xd9, 2, b's', b'w', 9],
            &second,
            &[0, 1],
            // Nothing else names any of them.
            &[-2_i8 as u8, 1, 1],
            &[-1_i8 as u8, 3, 1],
            &[-1_i8 as u8, 2, 1],
        ]
        .concat();
        assert_eq!(list, expected);
    }

    #[test]
    fn the_size_of_a_call_counts_equal_requests_once_unless_each_is_decided_by_itself() {
        let size = |charges: &[Charge]| {
            let mut call = Call::default();
            for _ in 0..50 {
                call.push(&Operation::Take(charges.into()));
                call.push(&take(charge("other", 5)));
            }
            call.size()
        };
        let lease = Charge { quota: Quota::concurrency(9), ..charge("leases", 9) };
        let [tight, wide] = [charge("b", 5), charge("b", 7)];
        assert_eq!(size(&[charge("a", 5), charge("b", 5)]), 2 + 1);
        assert_eq!(size(&[charge("a", 5), lease]), 1 + 50 + 1);
        assert_eq!(size(&[tight.clone(), wide]), 50 * 2 + 1);
        assert_eq!(size(&[tight.clone(), Charge { shadow: true, ..tight }]), 50 * 2 + 1);
    }

    #[test]
    fn each_grant_of_a_group_shows_its_own_remainder() {
        let mut call = Call::default();
        for _ in 0..3 {
            call.push(&take(charge("a", 5)));
        }
        let (time_us, replies) = call.decode(&numbers(&[77, 2, 2, 0, 500, 600])).unwrap();
        assert_eq!(time_us, 77);
        let seen: Vec<_> = replies
            .iter()
            .map(|reply| match reply {
                Ok(Reply::Decision(Decision { admitted, outcomes, .. })) => {
                    (*admitted, outcomes[0].remaining, outcomes[0].delay_us)
                }
                reply => panic!("{reply:?}"),
            })
            .collect();
        assert_eq!(seen, [(true, 1, Some(0)), (true, 0, Some(0)), (false, 0, Some(600))]);
    }

    #[test]
    fn steps_that_failed_stand_behind_the_numbers() {
        let read = ScriptReply::read(b"\x95\x4d\x01\xa2no\x02\xa3bad");
        let failures = vec![(1, "no".to_owned()), (2, "bad".to_owned())];
        assert_eq!(read, Some(ScriptReply { numbers: vec![77], failures }));
        for broken in [&b"\xa2no"[..], b"\x93\x4d\xff\xa2no", b"\x93\x4d\x01\xa2n"] {
            assert_eq!(ScriptReply::read(broken), None, "{}", broken.escape_ascii());
        }
    }

    #[test]
    fn an_answer_of_another_shape_is_no_decision() {
        let mut call = Call::default();
        call.push(&take(charge("a", 5)));
        for answer in
            [&[][..], &[77], &[77, 1], &[77, 1, 1, 4, 0], &[77, 1, 1, 4, 0, 0, 0], &[77, -1, 0, 4, 0, 0]]
        {
            assert_eq!(call.decode(&numbers(answer)), None, "{answer:?}");
        }
    }
}
