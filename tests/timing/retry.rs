//! A refused client that waits for the stated delay is admitted, and not earlier.

use std::{
    cell::RefCell,
    collections::VecDeque,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::runtime::Builder;
use tollgate_limiter::{Quota, Rate, store::Charge};

use crate::{
    gateway,
    harness::{
        client::Answer,
        gateway::Gateway,
        judge::{Late, in_time, judge},
        open_store,
        redis::Redis,
    },
    median, sleep_until,
};

const TRIALS: u32 = 32;
const MILLISECOND: Duration = Duration::from_millis(1);
/// How much later than there is room a caller may be told to come, by the median: for what the answer was rounded up
/// by. The time that the two requests took, between which the room was, isn't the store's.
const LATE: Duration = Duration::from_millis(2);
/// How much before the time that it was told a caller comes too early: the less, the more is judged, unless the
/// machine lets it come too late for that.
const EARLY: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(64)];
/// Half of the requests must come when they are to.
const PAUSE: Duration = Duration::from_millis(1);

fn quota(rate: &str) -> Quota {
    rate.parse::<Rate>().unwrap().into()
}

/// A request that was admitted.
struct Admitted {
    sent: Instant,
    received: Instant,
    /// By limit.
    costs: Vec<u32>,
}

/// Returns between which instants these costs have room in all limits for the first time.
fn room_at(log: &[Admitted], limits: &[Quota], costs: &[u32]) -> Option<[Instant; 2]> {
    let room_in = |at: usize| {
        let mut kept = costs[at];
        let leaving = log.iter().rev().find(|admitted| {
            kept += admitted.costs[at];
            kept > limits[at].permits
        });
        let window = Duration::from_micros(limits[at].window_us);
        leaving.map(|leaving| [leaving.sent + window, leaving.received + window])
    };
    let rooms = (0..limits.len()).filter_map(room_in);
    rooms.reduce(|[from, until], [other_from, other_until]| [from.max(other_from), until.max(other_until)])
}

/// `ask` makes a request with a cost for each limit. If refused, it says for how long, rounded up by
/// less than `rounding`.
fn the_wait_is_exact(
    limits: &[Quota],
    greatest_cost: u32,
    rounding: Duration,
    ask: impl Fn(&[u32]) -> Option<Duration>,
) {
    let mut log = Vec::new();
    judge(PAUSE, || the_wait_of_some_is_exact(&mut log, limits, greatest_cost, rounding, &ask));
}

fn the_wait_of_some_is_exact(
    log: &mut Vec<Admitted>,
    limits: &[Quota],
    greatest_cost: u32,
    rounding: Duration,
    ask: impl Fn(&[u32]) -> Option<Duration>,
) -> Result<(), Late> {
    let mut ask = |costs: &[u32]| {
        let sent = Instant::now();
        let told = ask(costs);
        let received = Instant::now();
        let room = room_at(log, limits, costs);
        if told.is_none() {
            assert!(room.is_none_or(|[from, _]| received >= from), "admitted without room");
            log.push(Admitted { sent, received, costs: costs.to_vec() });
        }
        (sent, told, received, room)
    };
    let (mut early, mut late) = (0, Vec::new());
    let [least_early, most_early] = EARLY;
    let mut by = least_early;
    for trial in 0..TRIALS {
        let costs = (0..limits.len() as u32).map(|limit| 1 + (trial + limit) % greatest_cost);
        let costs: Vec<u32> = costs.collect();
        let (sent, told, received, [_, room_until]) = loop {
            if let (sent, Some(told), received, room) = ask(&costs) {
                break (sent, told, received, room.expect("refused for what was admitted"));
            }
        };
        late.push((sent + told).saturating_duration_since(room_until));

        sleep_until(sent + told.saturating_sub(rounding + by));
        let (_, too_early, answered, _) = ask(&costs);
        if answered < sent + told.saturating_sub(rounding) {
            assert!(too_early.is_some(), "told to wait for {told:?}, and admitted before");
            early += 1;
            by = least_early;
        } else {
            by = most_early.min(2 * by);
        }
        if too_early.is_some() {
            sleep_until(received + told);
            let (_, again, ..) = ask(&costs);
            assert_eq!(again, None, "refused after the wait of {told:?} that was told");
        }
    }
    in_time(early >= TRIALS / 4, || {
        format!("only {early} of {TRIALS} requests were early enough to judge by")
    })?;
    let late = median(late);
    in_time(late < LATE, || format!("told to come {late:?} late"))
}

/// When a refusal of a gateway says to come back.
fn told(answer: &Answer) -> Option<Duration> {
    if answer.status == 200 {
        return None;
    }
    assert_eq!(answer.status, 429);
    let told_ms = answer.retry_after_ms();
    let seconds = told_ms.div_ceil(1_000).max(1).to_string();
    assert_eq!(answer.header("retry-after"), Some(seconds.as_str()), "{told_ms} ms");
    Some(Duration::from_millis(told_ms))
}

fn the_wait_gateways_tell_is_exact(gateways: usize, store_url: &str, rates: &[&str], greatest_cost: u32) {
    let limits = rates.iter().enumerate().map(|(at, rate)| {
        format!(r#"{{ name = "l{at}", key = "ip", rate = "{rate}", cost = "header:x-cost-{at}" }}"#)
    });
    let limits: Vec<String> = limits.collect();
    let limits: Vec<&str> = limits.iter().map(String::as_str).collect();
    let gateways: Vec<_> = (0..gateways).map(|_| gateway(store_url, &limits)).collect();
    let clients = RefCell::new(gateways.iter().map(Gateway::client).collect::<VecDeque<_>>());
    let quotas: Vec<Quota> = rates.iter().map(|rate| quota(rate)).collect();
    the_wait_is_exact(&quotas, greatest_cost, MILLISECOND, |costs| {
        let costs = costs.iter().enumerate().map(|(at, cost)| format!("x-cost-{at}: {cost}\r\n"));
        // One gateway after the other.
        let mut clients = clients.borrow_mut();
        clients.rotate_left(1);
        told(&clients[0].get_with("/", &costs.collect::<String>()))
    });
}

fn the_wait_a_gateway_tells_is_exact(store_url: &str, rates: &[&str]) {
    the_wait_gateways_tell_is_exact(1, store_url, rates, 1);
}

#[test]
fn the_wait_is_exact_with_eight_gateways() {
    the_wait_gateways_tell_is_exact(8, &Redis::start().url(), &["5/100ms"], 1);
}

#[test]
fn the_wait_for_requests_of_several_costs_is_exact_on_redis() {
    the_wait_gateways_tell_is_exact(1, &Redis::start().url(), &["7/100ms"], 3);
}

#[test]
fn the_wait_is_exact_in_memory() {
    the_wait_a_gateway_tells_is_exact("memory:", &["5/100ms"]);
}

#[test]
fn the_wait_is_exact_on_redis() {
    the_wait_a_gateway_tells_is_exact(&Redis::start().url(), &["5/100ms"]);
}

#[test]
fn the_wait_for_two_limits_is_exact_in_memory() {
    the_wait_a_gateway_tells_is_exact("memory:", &["2/50ms", "4/200ms"]);
}

#[test]
fn the_wait_for_two_limits_is_exact_on_redis() {
    the_wait_a_gateway_tells_is_exact(&Redis::start().url(), &["2/50ms", "4/200ms"]);
}

/// Requests that cost several permits, which a store can decide and a gateway's file can't ask for.
fn the_wait_a_store_tells_is_exact(store_url: &str) {
    let store = open_store(store_url);
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(store.warm_up()).unwrap();
    let quotas: Vec<Quota> = ["7/100ms", "11/150ms"].map(quota).into();
    the_wait_is_exact(&quotas, 5, Duration::ZERO, |costs| {
        let charge = |at: usize| Charge {
            bucket: Bytes::from(format!("b{at}")),
            quota: quotas[at],
            cost: costs[at],
            shadow: false,
        };
        let charges: Vec<_> = (0..quotas.len()).map(charge).collect();
        let deadline = tokio::time::Instant::now() + Duration::from_secs(5);
        let decision = runtime.block_on(store.take(&charges, deadline)).unwrap();
        let delays = decision.outcomes.iter().map(|outcome| outcome.delay_us.unwrap());
        (!decision.admitted).then(|| Duration::from_micros(delays.max().unwrap()))
    });
}

#[test]
fn the_wait_for_several_permits_is_exact_in_memory() {
    the_wait_a_store_tells_is_exact("memory:");
}

#[test]
fn the_wait_for_several_permits_is_exact_on_redis() {
    the_wait_a_store_tells_is_exact(&Redis::start().url());
}

#[test]
fn retry_after_is_in_seconds_never_rounded_down_and_at_least_one() {
    for (rate, seconds) in [("1/300ms", "1"), ("1/1500ms", "2"), ("1/10s", "10"), ("1/h", "3600")] {
        let gateway = gateway("memory:", &[&format!(r#"{{ name = "l", key = "ip", rate = "{rate}" }}"#)]);
        let mut client = gateway.client();
        assert_eq!(told(&client.get("/")), None);
        let refused = client.get("/");
        assert!(told(&refused).is_some());
        assert_eq!(refused.header("retry-after"), Some(seconds), "{rate}");
    }
}
