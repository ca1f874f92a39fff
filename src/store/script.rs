//! The `take` script, what it is called with, and what it answers.
//!
//! The script is put together from the files of lua/: the algorithms, then the walk over requests
//! that dispatches to them. A [`Call`] holds the requests that go together; equal ones travel as one
//! group with a count, of which a part may be granted.

use std::{collections::HashMap, sync::LazyLock};

use bytes::Bytes;
use sha1::{Digest, Sha1};
use smallvec::SmallVec;

use crate::algorithm::Quota;

use super::{Charges, Decision, Outcome};

/// The script's source, as `EVAL` takes it.
pub const SOURCE: &str =
    concat!(include_str!("../../lua/sliding_window.lua"), include_str!("../../lua/take.lua"));

/// The script's SHA-1 in hexadecimal, as `EVALSHA` takes it.
pub static SHA: LazyLock<String> =
    LazyLock::new(|| Sha1::digest(SOURCE).iter().map(|byte| format!("{byte:02x}")).collect());

/// The tag of the sliding window, in bucket names and in the script's arguments.
pub const SLIDING_WINDOW: &str = "sw";

/// One call of the script: some requests' charges, in order.
#[derive(Debug, Default)]
pub struct Call {
    buckets: Vec<(Bytes, Quota)>,
    places: HashMap<Bytes, usize>,
    groups: Vec<Group>,
    group_of: HashMap<Asked, usize>,
    /// For each request, its group.
    requests: Vec<usize>,
}

/// What a group's requests ask: for each charge its bucket's place, its cost, and whether it shadows.
type Asked = SmallVec<[(usize, u32, bool); 2]>;

#[derive(Debug)]
struct Group {
    asked: Asked,
    count: u64,
}

/// An argument of the script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Argument {
    /// The tag of an algorithm.
    Tag(&'static str),
    /// A number, written in decimal.
    Number(i64),
}

impl Call {
    /// Adds a request. Requests of one call that disagree on a bucket's quota, as they may around a
    /// change of the configuration, are all held to the last one's.
    pub fn push(&mut self, charges: &Charges) {
        let asked: Asked = charges
            .iter()
            .map(|charge| {
                let next = self.buckets.len();
                let place = *self.places.entry(charge.bucket.clone()).or_insert(next);
                if place == next {
                    self.buckets.push((charge.bucket.clone(), charge.quota));
                } else {
                    self.buckets[place].1 = charge.quota;
                }
                (place, charge.cost, charge.shadow)
            })
            .collect();
        let group = match self.group_of.get(&asked) {
            Some(group) => *group,
            None => {
                self.groups.push(Group { asked: asked.clone(), count: 0 });
                self.group_of.insert(asked, self.groups.len() - 1);
                self.groups.len() - 1
            }
        };
        self.groups[group].count += 1;
        self.requests.push(group);
    }

    /// The script's KEYS and ARGV: see lua/take.lua. Buckets of one quota stand together.
    pub fn encode(&self) -> (Vec<Bytes>, Vec<Argument>) {
        let mut order: Vec<usize> = (0..self.buckets.len()).collect();
        order.sort_by_key(|place| {
            let quota = self.buckets[*place].1;
            (quota.permits, quota.window_us)
        });
        let mut keys = Vec::with_capacity(order.len());
        let mut arguments = Vec::with_capacity(4 + 4 * self.groups.len());
        let mut index = vec![0; order.len()];
        for run in order.chunk_by(|left, right| self.buckets[*left].1 == self.buckets[*right].1) {
            let quota = self.buckets[run[0]].1;
            arguments.push(Argument::Tag(SLIDING_WINDOW));
            arguments.push(Argument::Number(i64::from(quota.permits)));
            arguments.push(Argument::Number(quota.window_us as i64));
            arguments.push(Argument::Number(run.len() as i64));
            for place in run {
                keys.push(self.buckets[*place].0.clone());
                index[*place] = keys.len() as i64;
            }
        }
        for group in &self.groups {
            arguments.push(Argument::Number(group.count as i64));
            arguments.push(Argument::Number(group.asked.len() as i64));
            for (place, cost, shadow) in &group.asked {
                let sign = if *shadow { -1 } else { 1 };
                arguments.push(Argument::Number(sign * index[*place]));
                arguments.push(Argument::Number(i64::from(*cost)));
            }
        }
        (keys, arguments)
    }

    /// Reads the script's answer: its time in microseconds, and the decisions in the requests' order.
    /// `None` if the answer isn't of the script's shape.
    pub fn decode(&self, answer: &[i64]) -> Option<(u64, Vec<Decision>)> {
        let (time_us, mut rest) = answer.split_first()?;
        let mut verdicts = Vec::with_capacity(self.groups.len());
        for group in &self.groups {
            let (granted, after) = rest.split_first()?;
            let (standings, after) = after.split_at_checked(4 * group.asked.len())?;
            verdicts.push((u64::try_from(*granted).ok()?, standings));
            rest = after;
        }
        let mut served = vec![0; self.groups.len()];
        let decisions = self.requests.iter().map(|group| {
            let (granted, standings) = verdicts[*group];
            let turn = served[*group];
            served[*group] += 1;
            let outcomes = self.groups[*group].asked.iter().zip(standings.chunks_exact(4));
            Decision {
                admitted: turn < granted,
                outcomes: outcomes.map(|((_, cost, _), standing)| outcome(standing, *cost, turn)).collect(),
            }
        });
        rest.is_empty().then(|| (*time_us as u64, decisions.collect()))
    }
}

/// Where the bucket stood for the `turn`-th request of a group, counted from 0: the first ones were
/// charged, and each of these left the room that the ones after it took.
fn outcome(standing: &[i64], cost: u32, turn: u64) -> Outcome {
    let [made, remaining, grow_us, delay_us] = standing else { unreachable!("chunks of four") };
    let (made, remaining) = (*made as u64, *remaining as u64);
    let charged = turn < made;
    let after_this = if charged { made - 1 - turn } else { 0 };
    Outcome {
        charged,
        remaining: remaining + after_this * u64::from(cost),
        grow_us: *grow_us as u64,
        delay_us: if charged { Some(0) } else { u64::try_from(*delay_us).ok() },
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::{algorithm::Rate, store::Charge};

    fn charge(bucket: &'static str, permits: u32) -> Charge {
        let quota = Rate { permits, window_us: 1_000_000 }.into();
        Charge { bucket: Bytes::from_static(bucket.as_bytes()), quota, cost: 1, shadow: false }
    }

    #[test]
    fn equal_requests_travel_as_one_group_and_equal_quotas_as_one_run() {
        let mut call = Call::default();
        for bucket in ["a", "b", "a", "c"] {
            call.push(&smallvec![charge(bucket, if bucket == "b" { 9 } else { 5 })]);
        }
        let (keys, arguments) = call.encode();
        assert_eq!(keys, ["a", "c", "b"]);
        let text: Vec<String> = arguments
            .iter()
            .map(|argument| match argument {
                Argument::Tag(tag) => (*tag).to_owned(),
                Argument::Number(number) => number.to_string(),
            })
            .collect();
        let expected = "sw 5 1000000 2 sw 9 1000000 1 2 1 1 1 1 1 3 1 1 1 2 1";
        assert_eq!(text.join(" "), expected);
    }

    #[test]
    fn each_grant_of_a_group_shows_its_own_remainder() {
        let mut call = Call::default();
        for _ in 0..3 {
            call.push(&smallvec![charge("a", 5)]);
        }
        let (time_us, decisions) = call.decode(&[77, 2, 2, 0, 500, 600]).unwrap();
        assert_eq!(time_us, 77);
        let seen: Vec<_> = decisions
            .iter()
            .map(|decision| {
                (decision.admitted, decision.outcomes[0].remaining, decision.outcomes[0].delay_us)
            })
            .collect();
        assert_eq!(seen, [(true, 1, Some(0)), (true, 0, Some(0)), (false, 0, Some(600))]);
    }

    #[test]
    fn an_answer_of_another_shape_is_no_decision() {
        let mut call = Call::default();
        call.push(&smallvec![charge("a", 5)]);
        for answer in
            [&[][..], &[77], &[77, 1], &[77, 1, 1, 4, 0], &[77, 1, 1, 4, 0, 0, 0], &[77, -1, 0, 4, 0, 0]]
        {
            assert_eq!(call.decode(answer), None, "{answer:?}");
        }
    }
}
