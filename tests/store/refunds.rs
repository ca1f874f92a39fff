//! Limits that give permits back: the script and its twin agree, no window exceeds its limit, and nothing is refused
//! needlessly beyond the length of a cell.

use std::cell::RefCell;

use proptest::prelude::*;
use tollgate_limiter::{
    Algorithm, Calendar, CalendarUnit, Quota,
    store::{Act, Charge, Operation, Refund, Reply, memory::MemoryStore},
};

use crate::store::{
    oracle::check,
    stepped::{SECOND, START, Script, Stepped, charge, on, serially},
};

/// All that can give permits back.
const KINDS: [Algorithm; 7] = [
    Algorithm::Refundable { cells: None },
    Algorithm::Refundable { cells: Some(4) },
    Algorithm::Refundable { cells: Some(1) },
    Algorithm::FixedWindow,
    Algorithm::Calendar(Calendar { unit: CalendarUnit::Day, offset_minutes: 0 }),
    Algorithm::Gcra { burst: None },
    Algorithm::Gcra { burst: Some(7) },
];

/// What is done to one of the buckets.
#[derive(Clone, Debug)]
enum Deed {
    Take(usize, u32),
    Record(usize, u32),
    Report(usize, u32),
    Peek(usize, u32),
    Reset(usize),
    /// Permits, and of how many calls ago if that is known.
    Refund(usize, u32, Option<usize>),
}

#[derive(Clone, Debug)]
struct Call {
    move_us: u64,
    edited: usize,
    permits: u32,
    deeds: Vec<Deed>,
}

fn deed() -> impl Strategy<Value = Deed> {
    let at = || 0..KINDS.len();
    let cost = || prop_oneof![3 => 0..3_u32, 1 => 1..14_u32];
    let grant = prop::option::weighted(0.8, 0..12_usize);
    prop_oneof![
        12 => (at(), cost()).prop_map(|(at, cost)| Deed::Take(at, cost)),
        1 => (at(), 1..20_u32).prop_map(|(at, cost)| Deed::Record(at, cost)),
        1 => (at(), 1..20_u32).prop_map(|(at, cost)| Deed::Report(at, cost)),
        2 => (at(), cost()).prop_map(|(at, cost)| Deed::Peek(at, cost)),
        1 => at().prop_map(Deed::Reset),
        8 => (at(), prop_oneof![6 => 0..6_u32, 1 => Just(u32::MAX >> 1)], grant)
            .prop_map(|(at, permits, grant)| Deed::Refund(at, permits, grant)),
    ]
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let moves = prop_oneof![
        2 => 0..4_u64,
        3 => (1..4_u64, 0..3_u64).prop_map(|(seconds, off)| seconds * SECOND - 1 + off),
        3 => 1..2 * SECOND,
    ];
    let call = (moves, 0..KINDS.len(), 0..13_u32, prop::collection::vec(deed(), 1..8))
        .prop_map(|(move_us, edited, permits, deeds)| Call { move_us, edited, permits, deeds });
    prop::collection::vec(call, 1..40)
}

fn operations(call: &Call, permits: &[u32], window_us: u64, times: &[u64]) -> Vec<Operation> {
    let charge = |at: usize, cost: u32| {
        let quota = Quota { algorithm: KINDS[at], permits: permits[at], window_us };
        Charge { quota, ..charge(&format!("{at}"), "1/s", cost) }
    };
    let operation = |deed: &Deed| match *deed {
        Deed::Take(at, cost) => Operation::Take([charge(at, cost)].into()),
        Deed::Record(at, cost) => on(&charge(at, 1), Act::Record(cost)),
        Deed::Report(at, cost) => on(&charge(at, 1), Act::Report(cost)),
        Deed::Peek(at, cost) => on(&charge(at, 1), Act::Peek(cost)),
        Deed::Reset(at) => on(&charge(at, 1), Act::Reset),
        Deed::Refund(at, permits, known) => {
            let granted_us = known.map(|ago| times[times.len().saturating_sub(1 + ago)]);
            on(&charge(at, 1), Act::Refund(Refund { permits, granted_us }))
        }
    };
    call.deeds.iter().map(operation).collect()
}

#[test]
fn the_twin_agrees_on_refunds() {
    let script = RefCell::new(Script::with_stepped_clock());
    check(2_000, &calls(), |calls| {
        let script = &mut *script.borrow_mut();
        script.command(&["FLUSHALL"]);
        let twin = MemoryStore::new(1 << 30);
        let (mut times, mut permits) = (vec![START], [9; KINDS.len()]);
        for call in calls {
            times.push(times[times.len() - 1] + call.move_us);
            permits[call.edited] = call.permits;
            let time_us = times[times.len() - 1];
            script.set_clock(time_us);
            let operations = operations(&call, &permits, 5 * SECOND, &times);
            let replies = script.operate(&operations).1;
            let expected = serially(&operations, |operation| twin.operate_at(time_us, operation).unwrap());
            prop_assert_eq!(replies, expected, "{:?}", operations);
        }
        for key in script.command(&["KEYS", "*"]).list().iter().filter(|key| key.text() != "clock") {
            let expiry_ms = script.command(&["PTTL", key.text()]).integer();
            prop_assert!(expiry_ms != -1, "{} has no expiry", key.text());
        }
        Ok(())
    });
}

/// What one of many grants does: time passes, it costs so much, and one so many grants ago is refunded so much.
type Turn = (u64, u32, Option<(usize, u32)>);

fn turns(most: usize) -> impl Strategy<Value = Vec<Turn>> {
    let moves = prop_oneof![20 => 0..60_000_u64, 1 => 0..12 * SECOND, 1 => Just(0)];
    let refund = prop::option::weighted(0.5, (0..200_usize, 1..12_u32));
    prop::collection::vec((moves, 1..12_u32, refund), most / 2..most)
}

/// A grant of the model: its time, its cost, and what was given back of it while it was alive.
#[derive(Debug)]
struct Given {
    at_us: u64,
    cost: u32,
    refunded: u32,
}

/// Permits that those grants use that were made after a time.
fn used_after(grants: &[Given], after_us: u64) -> u64 {
    let alive = grants.iter().filter(|grant| grant.at_us > after_us);
    alive.map(|grant| u64::from(grant.cost - grant.refunded)).sum()
}

/// Holds a store against a log that is edited. `lag_us` is the length of a cell, while so many grants are alive.
fn keeps_its_promises(store: Stepped, cases: u32, algorithm: Algorithm, lag_us: fn(usize, u64) -> u64) {
    const WINDOW: u64 = 10 * SECOND;
    let store = RefCell::new(store);
    let quota = Quota { algorithm, permits: 700, window_us: WINDOW };
    check(cases, &turns(500), |turns| {
        let store = &mut *store.borrow_mut();
        store.clear();
        let (mut time_us, mut grants, mut refused) = (START, Vec::<Given>::new(), None);
        for (move_us, cost, refund) in turns {
            time_us += move_us;
            let asked = Charge { quota, ..charge("b", "1/s", cost) };
            let decision = store.take(time_us, std::slice::from_ref(&asked));
            let alive = grants.iter().filter(|grant| grant.at_us > time_us - WINDOW).count();
            if decision.admitted {
                grants.push(Given { at_us: time_us, cost, refunded: 0 });
                let used = used_after(&grants, time_us - WINDOW);
                prop_assert!(used <= 700, "{used} in a window");
                refused = None;
            } else {
                let lagging = used_after(&grants, time_us - WINDOW - lag_us(alive, WINDOW));
                prop_assert!(lagging + u64::from(cost) > 700, "{} used, {} more refused", lagging, cost);
                refused = Some((asked.clone(), decision.outcomes[0].delay_us.unwrap()));
            }
            let Some((ago, permits)) = refund else { continue };
            let Some(at) = grants.len().checked_sub(1 + ago) else { continue };
            let grant = &mut grants[at];
            let permits = permits.min(grant.cost - grant.refunded);
            let granted_us = Some(grant.at_us);
            let is_alive = grant.at_us + WINDOW > time_us;
            let reply = store.act(time_us, &asked, Act::Refund(Refund { permits, granted_us }));
            let given = if is_alive { permits } else { 0 };
            prop_assert_eq!(reply, Reply::Refunded(given.into()));
            grant.refunded += given;
            if given > 0 {
                refused = None;
            }
        }
        if let Some((asked, delay_us)) = refused {
            let early = store.peek(time_us + delay_us - 1, &asked);
            prop_assert!(early.delay_us != Some(0), "the delay is too long");
            prop_assert_eq!(
                store.peek(time_us + delay_us, &asked).delay_us,
                Some(0),
                "the delay is too short"
            );
        }
        Ok(())
    });
}

const EXACTLY: Algorithm = Algorithm::Refundable { cells: None };
const CELLS: Algorithm = Algorithm::Refundable { cells: Some(20) };

fn exact_then_coarse(alive: usize, window_us: u64) -> u64 {
    if alive <= 128 { 0 } else { window_us / 128 }
}

fn a_twentieth(_: usize, window_us: u64) -> u64 {
    window_us / 20
}

#[test]
fn the_in_process_store_keeps_its_promises() {
    keeps_its_promises(Stepped::memory(), 300, EXACTLY, exact_then_coarse);
    keeps_its_promises(Stepped::memory(), 300, CELLS, a_twentieth);
}

#[test]
fn the_script_keeps_its_promises() {
    keeps_its_promises(Stepped::redis(), 40, EXACTLY, exact_then_coarse);
    keeps_its_promises(Stepped::redis(), 20, CELLS, a_twentieth);
}

/// The level of a leaky bucket, if its grants had cost less from the start: in permits times W.
fn level(grants: &[Given], quota: Quota, time_us: u64) -> u128 {
    let (mut level, mut last_us) = (0_u128, START);
    for Given { at_us, cost, refunded } in grants {
        level = level.saturating_sub(u128::from(at_us - last_us) * u128::from(quota.permits));
        level += u128::from(cost - refunded) * u128::from(quota.window_us);
        last_us = *at_us;
    }
    level.saturating_sub(u128::from(time_us - last_us) * u128::from(quota.permits))
}

#[test]
fn a_meter_never_gives_back_what_has_drained() {
    for store in [Stepped::memory(), Stepped::redis()] {
        let cases = if matches!(store, Stepped::Memory(_)) { 500 } else { 40 };
        let store = RefCell::new(store);
        let quota =
            Quota { algorithm: Algorithm::Gcra { burst: Some(60) }, permits: 100, window_us: 10 * SECOND };
        check(cases, &turns(120), |turns| {
            let store = &mut *store.borrow_mut();
            store.clear();
            let (mut time_us, mut grants) = (START, Vec::<Given>::new());
            for (move_us, cost, refund) in turns {
                time_us += 4 * move_us;
                let asked = Charge { quota, ..charge("b", "1/s", cost) };
                let decision = store.take(time_us, std::slice::from_ref(&asked));
                if decision.admitted {
                    grants.push(Given { at_us: time_us, cost, refunded: 0 });
                    let level = level(&grants, quota, time_us);
                    prop_assert!(level <= 60 * u128::from(quota.window_us), "{level}");
                }
                let Some((ago, permits)) = refund else { continue };
                let Some(at) = grants.len().checked_sub(1 + ago % 10) else { continue };
                let permits = permits.min(grants[at].cost - grants[at].refunded);
                let granted_us = Some(grants[at].at_us);
                store.act(time_us, &asked, Act::Refund(Refund { permits, granted_us }));
                grants[at].refunded += permits;
            }
            Ok(())
        });
    }
}

/// A log that is edited, without any bound: the best that refunds can give.
#[derive(Default)]
struct Edited(Vec<Given>);

impl Edited {
    fn take(&mut self, quota: Quota, time_us: u64, cost: u32) -> bool {
        self.0.retain(|grant| grant.at_us + quota.window_us > time_us);
        let fits = used_after(&self.0, 0) + u64::from(cost) <= u64::from(quota.permits);
        if fits {
            self.0.push(Given { at_us: time_us, cost, refunded: 0 });
        }
        fits
    }

    fn refund(&mut self, at_us: u64, permits: u32) {
        if let Some(grant) = self.0.iter_mut().find(|grant| grant.at_us == at_us) {
            grant.refunded += permits;
        }
    }
}

/// Estimates of 1,000 tokens of 100,000 a minute, of which 900 come back after two seconds, at 20 requests a second.
/// Returns how many are admitted in ten minutes by the store, and by a log that is edited.
fn admitted_tokens(store: &mut Stepped, algorithm: Algorithm, knows_grant: bool) -> (usize, usize) {
    let quota = Quota { algorithm, permits: 100_000, window_us: 60 * SECOND };
    let asked = Charge { quota, ..charge("tokens", "1/s", 1_000) };
    let (mut edited, mut own, mut best) = (Edited::default(), Vec::new(), Vec::new());
    for turn in 0..12_000 {
        let time_us = START + turn * SECOND / 20;
        let before_us = time_us - 2 * SECOND;
        if own.binary_search(&before_us).is_ok() {
            let granted_us = Some(before_us).filter(|_| knows_grant);
            store.act(time_us, &asked, Act::Refund(Refund { permits: 900, granted_us }));
        }
        if best.binary_search(&before_us).is_ok() {
            edited.refund(before_us, 900);
        }
        let decision = store.take(time_us, std::slice::from_ref(&asked));
        if decision.admitted {
            own.push(time_us);
        }
        if edited.take(quota, time_us, 1_000) {
            best.push(time_us);
        }
    }
    (own.len(), best.len())
}

#[test]
fn refunds_admit_nearly_what_a_log_that_is_edited_admits() {
    for (name, mut store) in [("memory", Stepped::memory()), ("redis", Stepped::redis())] {
        let (own, best) = admitted_tokens(&mut store, EXACTLY, true);
        assert!(own * 100 >= best * 95 && own <= best, "{name}: {own} of {best}");
    }
    let mut store = Stepped::memory();
    let (oldest, best) = admitted_tokens(&mut store, EXACTLY, false);
    assert!(oldest < best / 4);
    store.clear();
    let (cells, _) = admitted_tokens(&mut store, Algorithm::Refundable { cells: Some(60) }, true);
    assert!(cells * 100 >= best * 95, "{cells} of {best}");
}
