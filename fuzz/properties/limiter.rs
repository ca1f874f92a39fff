//! Properties of calls to the store and of its replies that hold for any bytes. A module of the crate `tollgate-limiter`, so
//! that it can use private items.

#[cfg(test)]
mod corpus;
mod parts;

use bytes::Bytes;
use fred::types::Value;
use smallvec::smallvec;

use self::parts::parts;
use crate::{
    Algorithm, Quota, Rate,
    store::{
        Act, Charge, LeaseId, Operation, Refund, Reply,
        overrides::{OverrideChange, read_value as read_override},
        redis::{call, overrides, slots},
        script::Call,
    },
};

/// Any reply of a server is decoded as a reply to the operations, or rejected.
pub fn reply(bytes: &[u8]) {
    let [operations, answer] = parts(bytes);
    let operations = read_operations(operations);
    let Some(answer) = read_value(&mut &answer[..], 0) else { return };
    read_as_replies(&operations, &answer);
    for range in slots::read_ranges(answer.clone(), "asked").unwrap_or_default() {
        assert!(range.first <= range.last && usize::from(range.last) < slots::SLOTS);
    }
    let time = Value::Array(vec![Value::Integer(0), Value::Integer(1)]);
    let table = overrides::read(&time, &answer).map(|read| read.entries).unwrap_or_default();
    let change =
        answer.as_string().and_then(|text| OverrideChange::read(&format!("overrides 0 1 1 set {text}")));
    for set in table.into_iter().map(|(_, set)| set).chain(change.and_then(|change| change.set)) {
        assert!(set.rate.permits <= Rate::MAX_PERMITS && set.rate.window_us <= Rate::MAX_WINDOW_US);
        let ends_us = set.lasts.map_or(0, |lasts| lasts.as_micros() + 1);
        let written = format!("{} {ends_us}", overrides::written(&set));
        assert_eq!(read_override(&written, 1), Some(set));
    }
}

fn read_as_replies(operations: &[Operation], answer: &Value) {
    let mut call = Call::default();
    operations.iter().for_each(|operation| call.push(operation));
    let Some((_, replies)) = call::read(answer).and_then(|answer| call.decode(&answer)) else { return };
    assert_eq!(operations.len(), replies.len());
    for (operation, reply) in operations.iter().zip(replies) {
        let Ok(reply) = reply else { continue };
        match (operation, reply) {
            (Operation::Take(charges), Reply::Decision(decision)) => {
                assert_eq!(charges.len(), decision.outcomes.len());
                assert!(decision.leases.len() <= charges.len());
            }
            (Operation::On { act: Act::Peek(_) | Act::Report(_), .. }, Reply::Usage(_)) => {}
            (Operation::On { act: Act::Refund(_), .. }, Reply::Refunded(_)) => {}
            (Operation::On { act, .. }, Reply::Done)
                if !matches!(act, Act::Peek(_) | Act::Report(_) | Act::Refund(_)) => {}
            (operation, reply) => panic!("{operation:?} is answered by {reply:?}"),
        }
    }
}

/// An encoded call can be decoded by the grammar of lua/walk.lua: each bucket appears once and with its
/// quota, and each operation refers to existing buckets.
pub fn call(bytes: &[u8]) {
    let operations = read_operations(bytes);
    let mut call = Call::default();
    operations.iter().for_each(|operation| call.push(operation));
    let (keys, list) = call.encode();
    let mut distinct = keys.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), keys.len());

    let words = read_list(&list);
    let mut words = &words[..];
    skip_buckets(&mut words, keys.len() as i64);
    assert_eq!(count_operations(words, keys.len() as i64), operations.len() as i64);
}

/// Skips the runs of buckets in a call.
fn skip_buckets(words: &mut &[Word], buckets: i64) {
    let mut known = 0;
    while known < buckets {
        let [Word::Text(tag), Word::Number(permits), Word::Number(window_us), _, Word::Number(count)] =
            take(words)
        else {
            panic!("{words:?} isn't a run of buckets")
        };
        assert!(
            ["sw", "sc", "rl", "fw", "gc", "cc"].contains(&tag.as_str())
                && permits > 0
                && window_us > 0
                && count > 0
        );
        known += count;
    }
    assert_eq!(known, buckets);
}

/// Returns the number of operations in the rest of a call on so many buckets.
fn count_operations(mut words: &[Word], buckets: i64) -> i64 {
    let is_place = |place: i64| (1..=buckets).contains(&place.abs());
    let mut counted = 0;
    while !words.is_empty() {
        match take(&mut words) {
            [Word::Text(act), Word::Number(place)] => {
                assert!(
                    ["record", "renew", "release", "peek", "reset", "report", "refund"]
                        .contains(&act.as_str())
                        && is_place(place)
                );
                let [_argument] = take(&mut words);
                counted += 1;
            }
            [Word::Number(count), Word::Number(place)] if count < 0 => {
                let [Word::Number(_cost)] = take(&mut words) else { panic!("no cost") };
                assert!(place > 0 && is_place(place));
                counted -= count;
            }
            [Word::Number(count), Word::Number(charges)] => {
                for _ in 0..charges {
                    let [Word::Number(place), Word::Number(_cost)] = take(&mut words) else {
                        panic!("no charge")
                    };
                    assert!(is_place(place));
                }
                counted += count;
            }
            other => panic!("{other:?} isn't an operation"),
        }
    }
    counted
}

/// Parses operations. Each is a word of a letter, the digit of a bucket and a cost: `t012` takes 12 permits.
fn read_operations(text: &[u8]) -> Vec<Operation> {
    let words = text.split(|byte| *byte == b' ').take(300);
    words
        .filter_map(|word| word.split_first_chunk::<2>())
        .filter_map(|([act, digit], cost)| {
            let cost: u32 = str::from_utf8(cost).ok()?.parse().unwrap_or(1);
            let charge = |digit: u8, shadow| {
                let (bucket, quota) = bucket(digit);
                let cost =
                    if quota.algorithm == Algorithm::Concurrency { 1 } else { cost.min(Rate::MAX_PERMITS) };
                Charge { bucket, quota, cost, shadow }
            };
            let lease = LeaseId { call: u64::from(cost), turn: 1 };
            let (bucket, quota) = bucket(*digit);
            let act = match act {
                b't' => return Some(Operation::Take(smallvec![charge(*digit, false)])),
                b's' => {
                    return Some(Operation::Take(smallvec![charge(*digit, false), charge(digit ^ 1, true)]));
                }
                b'r' => Act::Record(cost),
                b'p' => Act::Peek(cost),
                b'o' => Act::Report(cost),
                b'b' => Act::Refund(Refund { permits: cost, granted_us: None }),
                b'n' => Act::Renew(lease),
                b'l' => Act::Release(lease),
                b'z' => Act::Reset,
                _ => return None,
            };
            Some(Operation::On { bucket, quota, act })
        })
        .collect()
}

fn bucket(digit: u8) -> (Bytes, Quota) {
    let rate = Rate { permits: 5, window_us: 1_000_000 };
    let quota = match digit % 7 {
        0 | 1 => rate.into(),
        2 => Quota::new(Algorithm::FixedWindow, rate),
        3 => Quota::new(Algorithm::Gcra { burst: Some(7) }, rate),
        4 => Quota::new(Algorithm::SlidingCells { cells: 3 }, rate),
        5 => Quota::new(Algorithm::Refundable { cells: None }, rate),
        _ => Quota::concurrency(5),
    };
    (Bytes::from(vec![b'b', digit]), quota)
}

#[derive(Debug, Clone)]
enum Word {
    Number(i64),
    Text(String),
}

fn take<const N: usize>(words: &mut &[Word]) -> [Word; N] {
    let (first, rest) = words.split_first_chunk().unwrap_or_else(|| panic!("{words:?} ends too soon"));
    *words = rest;
    first.clone()
}

/// Decodes a MessagePack list, in the forms that are used.
fn read_list(list: &[u8]) -> Vec<Word> {
    let (header, mut rest) = list.split_first_chunk::<5>().expect("a header");
    assert_eq!(header[0], 0xdd);
    let length = u32::from_be_bytes(header[1..].try_into().expect("four bytes"));
    let mut words = Vec::new();
    while let Some((form, after)) = rest.split_first() {
        let (word, after) = match form {
            0xd2 => {
                let (number, after) = after.split_first_chunk().expect("four bytes");
                (Word::Number(i64::from(i32::from_be_bytes(*number))), after)
            }
            0xd3 => {
                let (number, after) = after.split_first_chunk().expect("eight bytes");
                (Word::Number(i64::from_be_bytes(*number)), after)
            }
            0xd9 => {
                let (text, after) = after[1..].split_at(usize::from(after[0]));
                // The argument of a refund is binary.
                (Word::Text(String::from_utf8_lossy(text).into_owned()), after)
            }
            small => {
                let small = i8::from_be_bytes([*small]);
                assert!(small >= -32, "{small}");
                (Word::Number(i64::from(small)), after)
            }
        };
        words.push(word);
        rest = after;
    }
    assert_eq!(words.len(), length as usize);
    words
}

/// Parses a value of the Redis protocol, as the client represents it. Lines may end with LF alone.
fn read_value(bytes: &mut &[u8], depth: usize) -> Option<Value> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let (line, rest) = (bytes[..end].trim_ascii_end(), &bytes[end + 1..]);
    *bytes = rest;
    let (kind, text) = line.split_first()?;
    let text = str::from_utf8(text).ok()?;
    Some(match kind {
        b':' => Value::Integer(text.parse().ok()?),
        b'+' | b'-' => Value::from(text),
        b'_' => Value::Null,
        b'#' => Value::Boolean(text == "t"),
        b',' => Value::Double(text.parse().ok()?),
        b'$' => {
            let (text, rest) = bytes.split_at_checked(text.parse().ok()?)?;
            *bytes = rest.strip_prefix(b"\r").unwrap_or(rest).strip_prefix(b"\n").unwrap_or(rest);
            match str::from_utf8(text) {
                Ok(text) => Value::from(text),
                Err(_) => Value::Bytes(Bytes::copy_from_slice(text)),
            }
        }
        b'*' if depth < 8 => {
            let count = text.parse::<usize>().ok().filter(|count| *count <= bytes.len())?;
            let values = (0..count).map(|_| read_value(bytes, depth + 1));
            Value::Array(values.collect::<Option<_>>()?)
        }
        _ => return None,
    })
}

// The numbers of mutations that an unoptimized build tries in a few seconds.
#[cfg(test)]
corpus::tests! {
    call: 20_000
    reply: 20_000
}
