//! The layout of Redisson's `RRateLimiter`: what the real client left in Redis, replayed; facts that its tests state; faults
//! that it had; and the real client beside gateways, where Maven is installed.

mod cluster;
mod facts;
mod faults;
mod java;
mod migration;
mod rates;
mod sharing;
mod transcripts;

use bytes::Bytes;
use tollgate_limiter::{
    Algorithm, Quota, Rate, RedissonType,
    store::{Act, Charge, Operation, Reply, Usage, script::Call},
};

use crate::{
    harness::resp::Value,
    store::stepped::{Script, decision, on},
};

/// Permits of the limiter with this name.
fn charge(name: &str, rate: &str, cost: u32) -> Charge {
    let quota = Quota::new(Algorithm::Redisson(RedissonType::Overall), rate.parse::<Rate>().unwrap());
    Charge { bucket: Bytes::from(name.to_owned()), quota, cost, shadow: false }
}

/// Returns the id of this process in limiters of the type PER_CLIENT.
fn client_id() -> String {
    let mut call = Call::default();
    call.push(&Operation::Take([charge("x", "1/s", 1)][..].into()));
    let (keys, _) = call.encode();
    assert_eq!(keys.len(), 5, "all keys are declared");
    let value = str::from_utf8(&keys[1]).unwrap();
    value.strip_prefix("{x}:value:").unwrap().to_owned()
}

/// Sets the clock in milliseconds.
fn at(script: &mut Script, ms: u64) {
    script.set_clock(1_000 * ms);
}

/// Returns true if a request passes, and the milliseconds until it would: `None` if it never can.
fn take(script: &mut Script, charge: &Charge) -> (bool, Option<u64>) {
    let (_, decided) = script.take(std::slice::from_ref(charge));
    (decided.admitted, decided.outcomes[0].delay_us.map(|us| us.div_ceil(1_000)))
}

/// Returns the number of equal requests that pass if they come together.
fn take_many(script: &mut Script, charge: &Charge, times: usize) -> usize {
    let operations = vec![Operation::Take([charge.clone()][..].into()); times];
    let (_, replies) = script.operate(&operations);
    replies.into_iter().map(decision).filter(|decision| decision.admitted).count()
}

fn peek(script: &mut Script, charge: &Charge) -> Usage {
    match script.operate(&[on(charge, Act::Peek(charge.cost))]).1.remove(0) {
        Reply::Usage(usage) => usage,
        reply => panic!("{reply:?}"),
    }
}

/// The error of a request that changed nothing.
fn fault(script: &mut Script, charge: &Charge) -> String {
    script.try_operate(&[Operation::Take([charge.clone()][..].into())]).1.remove(0).unwrap_err()
}

/// Runs lua/redisson_rate.lua at the script's clock, as gateways do.
fn change(script: &mut Script, name: &str, words: &[&str]) -> Value {
    const SOURCE: &str = include_str!("../lua/redisson_rate.lua");
    let source = SOURCE.replace("redis.call('TIME')", "{ 0, redis.call('GET', 'clock') }");
    let mut call = Call::default();
    call.push(&Operation::Take([charge(name, "1/s", 1)][..].into()));
    let (keys, _) = call.encode();
    // The script's order: the hash, the value and the permits of this process, those overall.
    let keys = [0, 1, 3, 2, 4].map(|at| str::from_utf8(&keys[at]).unwrap());
    let words = [&["EVAL", &source, "5"], &keys[..], words].concat();
    script.command(&words)
}

/// Java's release().
fn release(script: &mut Script, name: &str, permits: u32) {
    change(script, name, &["release", &permits.to_string()]);
}

/// Plants a grant as Java writes it.
fn plant(script: &mut Script, name: &str, ms: u64, permits: u32) {
    let mut member = vec![16];
    member.extend(fastrand::u128(..).to_be_bytes());
    member.extend(permits.to_le_bytes());
    let (ms, permits) = (ms.to_string(), permits.to_string());
    let key = format!("{{{name}}}:permits");
    let words: [&[u8]; 4] = [b"ZADD", key.as_bytes(), ms.as_bytes(), &member];
    script.command(&words);
    script.command(&["DECRBY", &format!("{{{name}}}:value"), &permits]);
}
