//! The script and its twin make the same decisions, for any combination in a call.

use std::{cell::RefCell, slice::from_ref};

use proptest::prelude::*;
use tollgate_limiter::{
    Algorithm, Calendar, CalendarUnit, Quota,
    store::{Act, Charge, Charges, LeaseId, Operation, Reply, memory::MemoryStore},
};

use crate::store::{
    oracle::check,
    stepped::{SECOND, START, Script, charge, decision, on, quota, serially, take_at},
};

/// What one bucket is held to: permits, and the units of time in its window.
pub(super) type Terms = (u32, u64);

/// A charge of a request: which bucket, its cost, whether it shadows, and by how many permits its quota exceeds the bucket's terms.
type Asked = (usize, u32, bool, u32);

/// A call: time passes, one limit is edited, and requests come together.
#[derive(Clone, Debug)]
struct Step {
    move_us: u64,
    edited: usize,
    terms: Terms,
    requests: Vec<Vec<Asked>>,
}

const BUCKETS: [&str; 3] = ["a", "b", "c"];

fn terms() -> impl Strategy<Value = Terms> {
    (1..13_u32, 1..6_u64)
}

/// Draws the number of permits by which a quota exceeds its bucket's terms. Requests of one time, and one request, may differ in it.
fn excess() -> impl Strategy<Value = u32> {
    prop_oneof![3 => Just(0), 1 => 1..6_u32]
}

/// Draws the costs and quotas with which a request names its first bucket again, and whether it shadows there: seldom any.
fn repeats() -> impl Strategy<Value = Vec<(u32, bool, u32)>> {
    let repeat = (1..4_u32, prop::bool::weighted(0.3), excess());
    prop_oneof![4 => Just(Vec::new()), 1 => prop::collection::vec(repeat, 1..3)]
}

fn repeated(mut asked: Vec<Asked>, repeats: Vec<(u32, bool, u32)>) -> Vec<Asked> {
    if let Some(&(at, ..)) = asked.first() {
        asked.extend(repeats.into_iter().map(|(cost, shadow, excess)| (at, cost, shadow, excess)));
    }
    asked
}

/// One to three charges, each on another bucket, but for some on the first one again.
fn request() -> impl Strategy<Value = Vec<Asked>> {
    let cost = prop_oneof![3 => 1..3_u32, 1 => 1..14_u32];
    let charges = prop::collection::vec((cost, prop::bool::weighted(0.2), excess()), BUCKETS.len());
    let order = Just((0..BUCKETS.len()).collect::<Vec<_>>()).prop_shuffle();
    (charges, order, 1..=BUCKETS.len(), repeats()).prop_map(|(charges, order, most, repeats)| {
        let charges = order.into_iter().zip(charges).take(most);
        repeated(charges.map(|(at, (cost, shadow, excess))| (at, cost, shadow, excess)).collect(), repeats)
    })
}

fn schedule() -> impl Strategy<Value = ([Terms; 3], Vec<Step>)> {
    let moves = prop_oneof![
        2 => 1..4_u64,
        4 => (1..4_u64, 0..3_u64).prop_map(|(seconds, off)| seconds * SECOND - 1 + off),
        2 => 1..2 * SECOND,
    ];
    // Few kinds of requests, so that equal ones meet.
    let requests = prop::collection::vec(request(), 1..4)
        .prop_flat_map(|kinds| prop::collection::vec(prop::sample::select(kinds), 1..8));
    let step = (moves, 0..BUCKETS.len(), terms(), requests)
        .prop_map(|(move_us, edited, terms, requests)| Step { move_us, edited, terms, requests });
    ([terms(), terms(), terms()], prop::collection::vec(step, 1..25))
}

/// What the requests of a step charge. The script keeps some dead entries that its twin has dropped, and
/// a grown window would wake them: windows only shrink here.
fn charges(step: &Step, terms: &mut [Terms; 3], unit_us: u64) -> Vec<Charges> {
    let (permits, window) = &mut terms[step.edited];
    (*permits, *window) = (step.terms.0, step.terms.1.min(*window));
    let charge = |&(at, cost, shadow, excess): &Asked| {
        let (permits, window) = terms[at];
        Charge {
            quota: quota(permits + excess, window * unit_us),
            shadow,
            ..charge(BUCKETS[at], "1/s", cost)
        }
    };
    step.requests.iter().map(|request| request.iter().map(charge).collect()).collect()
}

fn takes(requests: &[Charges]) -> Vec<Operation> {
    requests.iter().cloned().map(Operation::Take).collect()
}

fn take_of(twin: &MemoryStore, time_us: u64, operation: &Operation) -> tollgate_limiter::store::Decision {
    decision(twin.operate_at(time_us, operation).unwrap())
}

/// Windows are some `unit_us` long.
fn the_twin_agrees(cases: u32, unit_us: u64, script: Script) {
    let script = RefCell::new(script);
    check(cases, &(schedule(), 0..60_u64), |((mut terms, steps), before_the_end)| {
        let script = &mut *script.borrow_mut();
        script.command(&["FLUSHALL"]);
        let twin = MemoryStore::new(1 << 30);
        let mut stepped_us = START;
        script.set_clock(stepped_us);
        // Each log has an entry already, whose total is soon to start over.
        let (time_us, _) = script.take(&[charge("never", "1/s", 2)]);
        for bucket in BUCKETS {
            script.plant(bucket, time_us, u64::from(u32::MAX) - before_the_end, 1);
            take_at(&twin, time_us, &[charge(bucket, "1/s", 1)]).unwrap();
        }
        for step in steps {
            stepped_us += step.move_us;
            script.set_clock(stepped_us);
            let requests = charges(&step, &mut terms, unit_us);
            let (time_us, decisions) = script.call(&requests);
            let expected = serially(&takes(&requests), |operation| take_of(&twin, time_us, operation));
            prop_assert_eq!(decisions, expected, "{:?}", requests);
        }
        Ok(())
    });
}

#[test]
fn the_twin_agrees_at_every_instant() {
    the_twin_agrees(2_000, SECOND, Script::with_stepped_clock());
}

#[test]
fn the_twin_agrees_by_the_servers_clock() {
    the_twin_agrees(1_000, 1_000, Script::with_server_clock());
}

#[test]
fn a_batch_is_answered_as_single_calls_are() {
    let scripts = RefCell::new([Script::with_stepped_clock(), Script::with_stepped_clock()]);
    check(500, &schedule(), |(mut terms, steps)| {
        let [together, single] = &mut *scripts.borrow_mut();
        let mut stepped_us = START;
        for script in [&mut *together, &mut *single] {
            script.command(&["FLUSHALL"]);
        }
        for step in steps {
            stepped_us += step.move_us;
            together.set_clock(stepped_us);
            single.set_clock(stepped_us);
            let requests = charges(&step, &mut terms, SECOND);
            let expected = serially(&takes(&requests), |operation| {
                decision(single.operate(from_ref(operation)).1.remove(0))
            });
            prop_assert_eq!(together.call(&requests).1, expected, "{:?}", requests);
        }
        Ok(())
    });
}

/// Requests of one limit, one call each: what time has passed, the limit's terms, and the cost.
fn lone_requests() -> impl Strategy<Value = Vec<(u64, Terms, u32)>> {
    let terms = (1..30_u32, prop_oneof![30 => Just(8_u64), 1 => Just(1), 1 => Just(100)]);
    let move_us = prop_oneof![5 => 0..3 * SECOND, 1 => Just(0), 1 => 1..3_u64, 1 => 0..20 * SECOND];
    prop::collection::vec((move_us, terms, 0..3_u32), 1..80)
}

#[test]
fn a_request_alone_leaves_what_one_in_company_leaves() {
    let script = RefCell::new(Script::with_stepped_clock());
    check(300, &lone_requests(), |requests| {
        let mut script = script.borrow_mut();
        script.command(&["FLUSHALL"]);
        let mut stepped_us = START;
        for (move_us, (permits, seconds), cost) in requests {
            stepped_us += move_us;
            script.set_clock(stepped_us);
            let on =
                |bucket| Charge { quota: quota(permits, seconds * SECOND), ..charge(bucket, "1/s", cost) };
            let (_, alone) = script.take(&[on("alone")]);
            let company = Operation::Take([on("another")].into());
            let mut replies = script.operate(&[Operation::Take([on("in company")].into()), company]).1;
            prop_assert_eq!(alone, decision(replies.remove(0)));
            let mut left = |bucket| {
                let entries = script.command(&["ZRANGE", bucket, "0", "-1"]);
                (entries, script.expires_ms(bucket))
            };
            let ((entries, expires_ms), (others, others_expire_ms)) = (left("alone"), left("in company"));
            prop_assert_eq!(entries, others);
            prop_assert!(
                expires_ms.abs_diff(others_expire_ms) < 5_000,
                "{} {}",
                expires_ms,
                others_expire_ms
            );
        }
        Ok(())
    });
}

/// Calendar windows of which one ends at [`START`].
const HOURS: Calendar = Calendar { unit: CalendarUnit::Hour, offset_minutes: 120 };

/// Buckets under every algorithm.
pub(super) const KINDS: [Algorithm; 8] = [
    Algorithm::SlidingWindow,
    Algorithm::SlidingCells { cells: 4 },
    Algorithm::SlidingCells { cells: 1 },
    Algorithm::FixedWindow,
    Algorithm::Calendar(HOURS),
    Algorithm::Gcra { burst: None },
    Algorithm::Gcra { burst: Some(7) },
    Algorithm::Concurrency,
];

/// An operation: the buckets are of KINDS, and a lease is one of those that were granted so far.
#[derive(Clone, Debug)]
enum Deed {
    Take(Vec<Asked>),
    Record(usize, u32),
    Report(usize, u32),
    Peek(usize, u32),
    Reset(usize),
    Renew(usize),
    Release(usize),
}

#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) move_us: i64,
    pub(super) edited: usize,
    pub(super) terms: Terms,
    deeds: Vec<Deed>,
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let cost = || prop_oneof![2 => 0..3_u32, 1 => 1..14_u32];
    let charges = prop::collection::vec((cost(), prop::bool::weighted(0.2), excess()), KINDS.len());
    let order = Just((0..KINDS.len()).collect::<Vec<_>>()).prop_shuffle();
    let take = (charges, order, 1..4_usize, repeats()).prop_map(|(charges, order, most, repeats)| {
        let charges = order.into_iter().zip(charges).take(most);
        let asked = charges.map(|(at, (cost, shadow, excess))| (at, cost, shadow, excess)).collect();
        let lease = |(at, cost, shadow, excess)| {
            (at, if KINDS[at] == Algorithm::Concurrency { 1 } else { cost }, shadow, excess)
        };
        Deed::Take(repeated(asked, repeats).into_iter().map(lease).collect())
    });
    let counted = 0..KINDS.len() - 1;
    let deed = prop_oneof![
        12 => take,
        2 => (counted.clone(), prop_oneof![1..20_u32, Just(u32::MAX >> 1)]).prop_map(|(at, cost)| Deed::Record(at, cost)),
        2 => (counted, prop_oneof![5 => 0..20_u32, 1 => Just(u32::MAX >> 1)]).prop_map(|(at, cost)| Deed::Report(at, cost)),
        2 => (0..KINDS.len(), 0..14_u32).prop_map(|(at, cost)| Deed::Peek(at, cost)),
        1 => (0..KINDS.len()).prop_map(Deed::Reset),
        1 => (0..20_usize).prop_map(Deed::Renew),
        2 => (0..20_usize).prop_map(Deed::Release),
    ];
    prop::collection::vec(deed, 1..5)
        .prop_flat_map(|kinds| prop::collection::vec(prop::sample::select(kinds), 1..9))
}

pub(super) fn calls() -> impl Strategy<Value = Vec<Call>> {
    let moves = prop_oneof![
        2 => 0..4_i64,
        4 => (1..4_i64, 0..3_i64).prop_map(|(seconds, off)| seconds * SECOND as i64 - 1 + off),
        3 => 1..2 * SECOND as i64,
    ];
    let call = (moves, 0..KINDS.len(), (0..13_u32, 1..9_u64), deeds())
        .prop_map(|(move_us, edited, terms, deeds)| Call { move_us, edited, terms, deeds });
    prop::collection::vec(call, 1..30)
}

/// The operations of a call. `leases` holds those that one of the stores has granted.
pub(super) fn operations(call: &Call, terms: &[Terms], leases: &[LeaseId]) -> Vec<Operation> {
    let charge = |&(at, cost, shadow, excess): &Asked| {
        let (permits, seconds) = terms[at];
        let quota = Quota { algorithm: KINDS[at], permits: permits + excess, window_us: seconds * SECOND };
        Charge { quota, shadow, ..charge(&format!("{at}"), "1/s", cost) }
    };
    let act = |at: usize, act: Act| Some(on(&charge(&(at, 1, false, 0)), act));
    let leased = |lease: &usize, renewal: fn(LeaseId) -> Act| {
        (!leases.is_empty())
            .then(|| on(&charge(&(KINDS.len() - 1, 1, false, 0)), renewal(leases[lease % leases.len()])))
    };
    let operation = |deed: &Deed| match deed {
        Deed::Take(asked) => Some(Operation::Take(asked.iter().map(charge).collect())),
        Deed::Record(at, cost) => act(*at, Act::Record(*cost)),
        Deed::Report(at, cost) => act(*at, Act::Report(*cost)),
        Deed::Peek(at, cost) => act(*at, Act::Peek(*cost)),
        Deed::Reset(at) => act(*at, Act::Reset),
        Deed::Renew(lease) => leased(lease, Act::Renew),
        Deed::Release(lease) => leased(lease, Act::Release),
    };
    call.deeds.iter().filter_map(operation).collect()
}

/// A reply without the names of its leases, which it adds to `leases`.
pub(super) fn without_leases(reply: Reply, leases: &mut Vec<LeaseId>) -> Reply {
    match reply {
        Reply::Decision(mut decision) => {
            leases.extend(decision.leases.drain(..).map(|lease| lease.id));
            Reply::Decision(decision)
        }
        reply => reply,
    }
}

/// `edit` changes the terms of a bucket.
fn the_twin_agrees_on_all(
    cases: u32,
    calls: &impl Strategy<Value = Vec<Call>>,
    edit: fn(Algorithm, &mut Terms, Terms),
) {
    let script = RefCell::new(Script::with_stepped_clock());
    check(cases, calls, |calls| {
        let script = &mut *script.borrow_mut();
        script.command(&["FLUSHALL"]);
        let twin = MemoryStore::new(1 << 30);
        let (mut time_us, mut terms) = (START - 9 * SECOND, [(9, 5); KINDS.len()]);
        let (mut leases, mut twins) = (Vec::new(), Vec::new());
        for call in calls {
            time_us = time_us.strict_add_signed(call.move_us);
            edit(KINDS[call.edited], &mut terms[call.edited], call.terms);
            script.set_clock(time_us);
            let (_, replies) = script.operate(&operations(&call, &terms, &leases));
            let replies: Vec<_> =
                replies.into_iter().map(|reply| without_leases(reply, &mut leases)).collect();
            let own = operations(&call, &terms, &twins);
            let expected = serially(&own, |operation| twin.operate_at(time_us, operation).unwrap());
            let expected: Vec<_> =
                expected.into_iter().map(|reply| without_leases(reply, &mut twins)).collect();
            prop_assert_eq!(replies, expected, "{:?}", own);
        }
        for key in script.command(&["KEYS", "*"]).list().iter().filter(|key| key.text() != "clock") {
            let expiry_ms = script.command(&["PTTL", key.text()]).integer();
            prop_assert!(expiry_ms != -1, "{} has no expiry", key.text());
        }
        Ok(())
    });
}

#[test]
fn the_twin_agrees_on_all_algorithms_and_operations() {
    the_twin_agrees_on_all(3_000, &calls(), |algorithm, held, (permits, seconds)| {
        // As above: a grown window would wake entries that the twin has dropped.
        let may_grow = !matches!(algorithm, Algorithm::SlidingWindow | Algorithm::SlidingCells { .. });
        *held = (permits, if may_grow { seconds } else { seconds.min(held.1) });
    });
}

/// What is decided by the last grant alone, both remember alike.
#[test]
fn the_twin_agrees_when_the_clock_steps_back() {
    let back_and_forth = calls().prop_flat_map(|calls| {
        let signs = prop::collection::vec(prop::bool::weighted(0.7), calls.len());
        (Just(calls), signs).prop_map(|(mut calls, signs)| {
            for (call, is_forward) in calls.iter_mut().zip(signs) {
                call.move_us = if is_forward { call.move_us } else { -call.move_us };
                // The windows and meters, with debts that don't last for centuries.
                call.deeds.retain(|deed| match deed {
                    Deed::Record(_, 100..) | Deed::Report(_, 100..) => false,
                    Deed::Take(asked) => asked.iter().all(|(at, ..)| (3..7).contains(at)),
                    Deed::Record(at, _) | Deed::Report(at, _) | Deed::Peek(at, _) | Deed::Reset(at) => {
                        (3..7).contains(at)
                    }
                    Deed::Renew(_) | Deed::Release(_) => false,
                });
            }
            calls
        })
    });
    the_twin_agrees_on_all(1_500, &back_and_forth, |_, held, terms| *held = terms);
}
