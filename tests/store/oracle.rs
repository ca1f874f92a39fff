//! The definition of the sliding window, as a plain list, against both stores; and the promises.

use std::cell::RefCell;

use proptest::{prelude::*, test_runner::TestRunner};
use tollgate::{
    algorithm::Quota,
    store::{Charge, Outcome},
};

use crate::stepped::{SECOND, START, Stepped, charge, quota};

/// All that was admitted, in order: times and costs. Nothing is clever here.
#[derive(Default)]
struct Oracle {
    log: Vec<(u64, u32)>,
    /// Whether what is dead at one look is gone for good, as in the in-process store. It matters only if
    /// the window grows or the clock steps back afterwards.
    forgets: bool,
}

impl Oracle {
    fn take(&mut self, quota: Quota, time_us: u64, cost: u32) -> Outcome {
        let now = self.log.last().map_or(time_us, |(newest_us, _)| time_us.max(*newest_us));
        let is_alive = |(at_us, _): &(u64, u32)| at_us + quota.window_us > now;
        if self.forgets {
            self.log.retain(is_alive);
        }
        let room = |log: &[(u64, u32)]| {
            let used: u64 =
                log.iter().filter(|entry| is_alive(entry)).map(|(_, cost)| u64::from(*cost)).sum();
            u64::from(quota.permits).saturating_sub(used)
        };
        let charged = u64::from(cost) <= room(&self.log);
        if charged {
            self.log.push((now, cost));
        }
        let alive = self.log.iter().copied().filter(is_alive).collect::<Vec<_>>();
        // Each entry ends in its turn; the cost fits once those have ended that leave room for it.
        let ends = |(at_us, _): (u64, u32)| at_us + quota.window_us - time_us;
        let enough = (0..alive.len()).find(|at| room(&alive[at + 1..]) >= u64::from(cost));
        Outcome {
            charged,
            remaining: room(&alive),
            grow_us: alive.first().map_or(0, |oldest| ends(*oldest)),
            delay_us: if charged { Some(0) } else { enough.map(|at| ends(alive[at])) },
        }
    }
}

/// Ask for `cost`, after the clock has moved and the limit was edited.
#[derive(Clone, Debug)]
struct Step {
    move_us: i64,
    permits: u32,
    window_us: u64,
    cost: u32,
}

/// Moves that meet the ends of windows exactly, one microsecond early and late, and in between.
fn moves() -> impl Strategy<Value = i64> {
    let grain = SECOND as i64 / 2;
    prop_oneof![
        4 => (0..4_i64, -1..2_i64).prop_map(move |(halves, off)| (halves * grain + off).max(0)),
        1 => 0..3 * grain,
    ]
}

fn steps(moves: impl Strategy<Value = i64>) -> impl Strategy<Value = Vec<Step>> {
    let step = (moves, 1..10_u32, 1..5_u64, 1..11_u32).prop_map(|(move_us, permits, seconds, cost)| Step {
        move_us,
        permits,
        window_us: seconds * SECOND,
        cost,
    });
    prop::collection::vec(step, 1..40)
}

/// Runs a property on many cases, and leaves no file behind.
pub(crate) fn check<S: Strategy>(
    cases: u32,
    strategy: &S,
    property: impl Fn(S::Value) -> Result<(), TestCaseError>,
) {
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    TestRunner::new(config).run(strategy, property).unwrap_or_else(|failure| panic!("{failure}"));
}

fn one(quota: Quota, cost: u32) -> [Charge; 1] {
    [Charge { quota, ..charge("b", "1/s", cost) }]
}

/// `window` says which window holds, given the step's and the one before.
fn agrees_with_the_oracle(store: Stepped, cases: u32, window: fn(u64, u64) -> u64) {
    let forgets = matches!(store, Stepped::Memory(_));
    let store = RefCell::new(store);
    let back_and_forth = prop_oneof![3 => moves(), 1 => moves().prop_map(|move_us| -move_us)];
    check(cases, &steps(back_and_forth), |steps| {
        let mut store = store.borrow_mut();
        store.clear();
        let mut oracle = Oracle { forgets, ..Oracle::default() };
        let (mut time_us, mut window_us) = (START, steps[0].window_us);
        for step in steps {
            time_us = time_us.strict_add_signed(step.move_us);
            window_us = window(step.window_us, window_us);
            let quota = quota(step.permits, window_us);
            let decision = store.take(time_us, &one(quota, step.cost));
            let expected = oracle.take(quota, time_us, step.cost);
            prop_assert_eq!(decision.outcomes[0], expected, "{:?} at {}", step, time_us - START + SECOND);
            prop_assert_eq!(decision.admitted, expected.charged);
        }
        Ok(())
    });
}

#[test]
fn the_in_process_store_agrees_with_the_oracle() {
    agrees_with_the_oracle(Stepped::memory(), 5_000, |window_us, _| window_us);
}

/// The script keeps some dead entries, which a grown window would wake: here windows only shrink.
#[test]
fn the_script_agrees_with_the_oracle() {
    agrees_with_the_oracle(Stepped::redis(), 1_000, u64::min);
}

/// A caller comes, and if refused comes back one microsecond early, and again in time.
fn keeps_its_promises(store: Stepped, cases: u32) {
    let store = RefCell::new(store);
    check(cases, &steps(moves()), |steps| {
        let mut store = store.borrow_mut();
        store.clear();
        let quota = quota(steps[0].permits, steps[0].window_us);
        let (mut time_us, mut admitted) = (START, Vec::new());
        for Step { move_us, cost, .. } in steps {
            time_us += move_us as u64;
            let mut take = |time_us| store.take(time_us, &one(quota, cost)).outcomes[0].delay_us;
            match take(time_us) {
                Some(0) => {}
                Some(delay_us) => {
                    prop_assert_eq!(take(time_us + delay_us - 1), Some(1));
                    time_us += delay_us;
                    prop_assert_eq!(take(time_us), Some(0));
                }
                None => {
                    prop_assert!(cost > quota.permits);
                    continue;
                }
            }
            admitted.push((time_us, cost));
        }
        // A window with the most in it begins with an admission.
        for (begin_us, _) in &admitted {
            let within = |(at_us, _): &&(u64, u32)| (*begin_us..begin_us + quota.window_us).contains(at_us);
            let permits: u32 = admitted.iter().filter(within).map(|(_, cost)| cost).sum();
            prop_assert!(permits <= quota.permits, "{} permits of {}", permits, quota);
        }
        Ok(())
    });
}

#[test]
fn the_in_process_store_keeps_its_promises() {
    keeps_its_promises(Stepped::memory(), 2_000);
}

#[test]
fn the_script_keeps_its_promises() {
    keeps_its_promises(Stepped::redis(), 500);
}
