//! The script and its twin give the same decisions, whatever comes together in a call.

use std::cell::RefCell;

use proptest::prelude::*;
use tollgate::store::{Charge, Charges, memory::MemoryStore};

use crate::{
    oracle::check,
    stepped::{SECOND, START, Script, charge, quota, serially, take_at},
};

/// What one bucket is held to: permits, and the units of time in its window.
type Terms = (u32, u64);

/// A charge of a request: which bucket, its cost, and whether it shadows.
type Asked = (usize, u32, bool);

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

/// One to three charges, each on another bucket.
fn request() -> impl Strategy<Value = Vec<Asked>> {
    let cost = prop_oneof![3 => 1..3_u32, 1 => 1..14_u32];
    let charges = prop::collection::vec((cost, prop::bool::weighted(0.2)), BUCKETS.len());
    (charges, Just((0..BUCKETS.len()).collect::<Vec<_>>()).prop_shuffle(), 1..=BUCKETS.len()).prop_map(
        |(charges, order, most)| {
            order.into_iter().zip(charges).take(most).map(|(at, (cost, shadow))| (at, cost, shadow)).collect()
        },
    )
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
    let charge = |&(at, cost, shadow): &Asked| {
        let (permits, window) = terms[at];
        Charge { quota: quota(permits, window * unit_us), shadow, ..charge(BUCKETS[at], "1/s", cost) }
    };
    step.requests.iter().map(|request| request.iter().map(charge).collect()).collect()
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
            let expected = serially(&requests, |charges| take_at(&twin, time_us, charges).unwrap());
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
            let expected = serially(&requests, |charges| single.take(charges).1);
            prop_assert_eq!(together.call(&requests).1, expected, "{:?}", requests);
        }
        Ok(())
    });
}
