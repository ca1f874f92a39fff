//! Gateways are counted by their signs of life: the script of lua/, at chosen instants.

use crate::{
    harness::{
        redis::Redis,
        resp::{Connection, Value},
    },
    store::stepped::{SECOND, START},
};

const SCRIPT: &str = include_str!("../../lua/instances.lua");
const SET: &str = "tollgate:instances";
const LIFETIME: u64 = 15 * SECOND;

/// A server on which gateways give signs of life.
struct Signs {
    redis: Connection,
    script: String,
}

impl Signs {
    /// Gives a sign of life at a time. Returns how many gateways there are.
    fn give(&mut self, time_us: u64, gateway: &str) -> i64 {
        self.redis.command(&["SET", "clock", &time_us.to_string()]);
        let words = ["EVAL", &self.script, "1", SET, gateway, &LIFETIME.to_string()];
        match self.redis.command(&words) {
            Value::Integer(count) => count,
            answer => panic!("{answer:?}"),
        }
    }
}

#[test]
fn a_gateway_counts_until_its_lifetime_has_passed_since_its_last_sign() {
    let server = Redis::start();
    let clock = "call('TIME')";
    assert_eq!(SCRIPT.matches(clock).count(), 1);
    let script = SCRIPT.replace(clock, "{ 0, call('GET', 'clock') }");
    let mut signs = Signs { redis: server.connect(), script };
    assert_eq!(signs.give(START, "a"), 1);
    assert_eq!(signs.give(START + SECOND, "b"), 2);
    assert_eq!(signs.give(START + 2 * SECOND, "b"), 2);
    assert_eq!(signs.give(START + LIFETIME - 1, "b"), 2);
    assert_eq!(signs.give(START + LIFETIME, "b"), 1);
    let lives_ms = signs.redis.command(&["PTTL", SET]).integer();
    assert!((1..=15_000).contains(&lives_ms), "{lives_ms}");

    // The clock is set back by an hour: what was ahead counts from then on.
    let back = START - 3_600 * SECOND;
    assert_eq!(signs.give(back, "a"), 2);
    assert_eq!(signs.give(back + LIFETIME - 1, "a"), 2);
    assert_eq!(signs.give(back + LIFETIME, "a"), 1);
}
