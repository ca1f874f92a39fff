//! The definition of each algorithm, as simple as possible, compared with both stores; and the promises.

use std::{cell::RefCell, slice::from_ref};

use proptest::{prelude::*, test_runner::TestRunner};
use tollgate_limiter::{
    Algorithm, Quota,
    store::{Act, Charge, LeaseId, Outcome},
};

use crate::store::stepped::{SECOND, START, Stepped, charge, quota};

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
            rate: None,
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

/// A definition: what is admitted, and what is said of it.
trait Definition: Default {
    fn take(&mut self, quota: Quota, time_us: u64, cost: u32) -> Outcome;
}

/// Cells: when each one's first and last permit was granted, and how many.
#[derive(Default)]
struct Cells(Vec<(u64, u64, u64)>);

impl Definition for Cells {
    fn take(&mut self, quota: Quota, time_us: u64, cost: u32) -> Outcome {
        let Algorithm::SlidingCells { cells } = quota.algorithm else { unreachable!() };
        let (permits, cost) = (u64::from(quota.permits), u64::from(cost));
        self.0.retain(|(_, last_us, _)| last_us + quota.window_us > time_us);
        let used = |cells: &[(u64, u64, u64)]| cells.iter().map(|(.., sum)| sum).sum::<u64>();
        let charged = used(&self.0) + cost <= permits;
        if charged {
            let cell_us = quota.window_us / u64::from(cells);
            match self.0.last_mut() {
                Some((first_us, last_us, sum)) if time_us < *first_us + cell_us => {
                    (*last_us, *sum) = (time_us, *sum + cost);
                }
                _ => self.0.push((time_us, time_us, cost)),
            }
        }
        let ends = |at: usize| self.0[at].1 + quota.window_us - time_us;
        let enough = (0..self.0.len()).find(|at| used(&self.0[at + 1..]) + cost <= permits);
        Outcome {
            charged,
            remaining: permits.saturating_sub(used(&self.0)),
            grow_us: if self.0.is_empty() { 0 } else { ends(0) },
            delay_us: if charged { Some(0) } else { enough.map(ends).filter(|_| cost <= permits) },
            rate: None,
        }
    }
}

/// The fixed window: when it began, and what was granted.
#[derive(Default)]
struct Fixed(u64, u64);

impl Definition for Fixed {
    fn take(&mut self, quota: Quota, time_us: u64, cost: u32) -> Outcome {
        let (permits, cost) = (u64::from(quota.permits), u64::from(cost));
        if time_us >= self.0 + quota.window_us {
            *self = Self(time_us, 0);
        }
        let charged = self.1 + cost <= permits;
        if charged {
            if self.1 == 0 {
                self.0 = time_us;
            }
            self.1 += cost;
        }
        let ends_us = if self.1 == 0 { 0 } else { self.0 + quota.window_us - time_us };
        Outcome {
            charged,
            remaining: permits - self.1,
            grow_us: ends_us,
            delay_us: if charged { Some(0) } else { (cost <= permits).then_some(ends_us) },
            rate: None,
        }
    }
}

/// GCRA as the standard has it, by the theoretical arrival time: the time at which the bucket is empty. In units
/// of a microsecond / L, so that all of it is exact.
#[derive(Default)]
struct Arrival(u128);

impl Definition for Arrival {
    fn take(&mut self, quota: Quota, time_us: u64, cost: u32) -> Outcome {
        let (rate, increment, burst) =
            (u128::from(quota.permits), u128::from(quota.window_us), u128::from(quota.capacity()));
        let (now, asked) = (u128::from(time_us) * rate, u128::from(cost) * increment);
        let empty = self.0.max(now);
        let charged = empty + asked <= now + burst * increment;
        if charged {
            self.0 = empty + asked;
        }
        let level = self.0.max(now) - now;
        let used = level.div_ceil(increment);
        let until = |most: u128| (level.saturating_sub(most * increment)).div_ceil(rate) as u64;
        Outcome {
            charged,
            remaining: (burst - used) as u64,
            grow_us: if used == 0 { 0 } else { until(used - 1) },
            delay_us: if charged { Some(0) } else { burst.checked_sub(u128::from(cost)).map(until) },
            rate: None,
        }
    }
}

/// A schedule under one quota; the second number of permits is a burst.
fn agrees_with<D: Definition>(store: Stepped, cases: u32, algorithm: fn(u32) -> Algorithm) {
    let store = RefCell::new(store);
    let strategy = (steps(moves()), 1..9_u32, 1..40_000_u64);
    check(cases, &strategy, |(steps, parameter, odd_ms)| {
        let mut store = store.borrow_mut();
        store.clear();
        let (mut time_us, mut definition) = (START, D::default());
        // In whole seconds ends are met exactly; odd windows make fractions.
        let window_us = if odd_ms % 2 == 0 { steps[0].window_us } else { odd_ms * 1_000 };
        let quota = Quota { algorithm: algorithm(parameter), permits: steps[0].permits, window_us };
        for step in steps {
            time_us += step.move_us as u64;
            let decision = store.take(time_us, &one(quota, step.cost));
            let expected = definition.take(quota, time_us, step.cost);
            prop_assert_eq!(decision.outcomes[0], expected, "{:?} of {:?}", step, quota);
        }
        Ok(())
    });
}

macro_rules! agree_with_their_definitions {
    ($($name:ident: $definition:ty, $algorithm:expr;)*) => {
        mod definition_in_memory {
            use super::*;
            $(#[test] fn $name() { agrees_with::<$definition>(Stepped::memory(), 3_000, $algorithm); })*
        }
        mod definition_on_redis {
            use super::*;
            $(#[test] fn $name() { agrees_with::<$definition>(Stepped::redis(), 500, $algorithm); })*
        }
    };
}

agree_with_their_definitions! {
    cells: Cells, |cells| Algorithm::SlidingCells { cells };
    fixed_window: Fixed, |_| Algorithm::FixedWindow;
    gcra: Arrival, |burst| Algorithm::Gcra { burst: Some(burst) };
    gcra_with_the_burst_of_its_rate: Arrival, |_| Algorithm::Gcra { burst: None };
}

/// A permit in cells counts for W at least, and for less than W + W / m.
fn cells_free_late_by_less_than_a_cell(store: Stepped, cases: u32) {
    let store = RefCell::new(store);
    check(cases, &(steps(moves()), 1..9_u32), |(steps, cells)| {
        let mut store = store.borrow_mut();
        store.clear();
        let algorithm = Algorithm::SlidingCells { cells };
        let quota = Quota { algorithm, permits: 9, window_us: steps[0].window_us };
        let (mut time_us, mut granted) = (START, Vec::new());
        for step in steps {
            time_us += step.move_us as u64;
            if store.take(time_us, &one(quota, step.cost)).admitted {
                granted.push((time_us, u64::from(step.cost)));
            }
            let used = store.peek(time_us, &one(quota, 1)[0]).used;
            let younger_than = |age_us: u64| -> u64 {
                granted.iter().filter(|(at_us, _)| at_us + age_us > time_us).map(|(_, cost)| cost).sum()
            };
            let cell_us = quota.window_us / u64::from(cells);
            prop_assert!(younger_than(quota.window_us) <= used);
            prop_assert!(used <= younger_than(quota.window_us + cell_us), "{} in use at {}", used, time_us);
        }
        Ok(())
    });
}

#[test]
fn cells_free_late_by_less_than_a_cell_in_memory() {
    cells_free_late_by_less_than_a_cell(Stepped::memory(), 2_000);
}

#[test]
fn cells_free_late_by_less_than_a_cell_on_redis() {
    cells_free_late_by_less_than_a_cell(Stepped::redis(), 300);
}

/// Leases are a list of ends.
fn leases_agree_with_a_list(store: Stepped, cases: u32) {
    let store = RefCell::new(store);
    let step = (0..4 * SECOND, 0..3_u8, 0..20_usize, 1..5_u32);
    check(cases, &prop::collection::vec(step, 1..40), |steps| {
        let mut store = store.borrow_mut();
        store.clear();
        let (mut time_us, mut list) = (START, Vec::<(LeaseId, u64)>::new());
        for (move_us, deed, at, permits) in steps {
            time_us += move_us;
            list.retain(|(_, ends_us)| *ends_us > time_us);
            let quota = Quota { algorithm: Algorithm::Concurrency, permits, window_us: 5 * SECOND };
            let [charge] = one(quota, 1);
            match list.get_mut(at) {
                Some((id, ends_us)) if deed == 0 => {
                    store.act(time_us, &charge, Act::Renew(*id));
                    *ends_us = time_us + quota.window_us;
                }
                Some((id, _)) if deed == 1 => {
                    store.act(time_us, &charge, Act::Release(*id));
                    list.remove(at);
                }
                _ => {
                    let decision = store.take(time_us, from_ref(&charge));
                    prop_assert_eq!(decision.admitted, list.len() < permits as usize);
                    list.extend(decision.leases.iter().map(|lease| (lease.id, time_us + quota.window_us)));
                }
            }
            prop_assert_eq!(store.peek(time_us, &charge).used, list.len() as u64);
        }
        Ok(())
    });
}

#[test]
fn leases_agree_with_a_list_in_memory() {
    leases_agree_with_a_list(Stepped::memory(), 2_000);
}

#[test]
fn leases_agree_with_a_list_on_redis() {
    leases_agree_with_a_list(Stepped::redis(), 300);
}

/// A caller comes, and if refused comes back one microsecond early, and again in time.
/// `worst` is the most that a rate of so many permits lets pass in a window.
fn keeps_its_promises(store: Stepped, cases: u32, algorithm: Algorithm, worst: fn(u32) -> u32) {
    let store = RefCell::new(store);
    check(cases, &steps(moves()), |steps| {
        let mut store = store.borrow_mut();
        store.clear();
        let quota = Quota { algorithm, ..quota(steps[0].permits, steps[0].window_us) };
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
            prop_assert!(permits <= worst(quota.permits), "{} permits of {}", permits, quota);
        }
        Ok(())
    });
}

macro_rules! keep_their_promises {
    ($($name:ident: $algorithm:expr, $worst:expr;)*) => {
        mod promises_in_memory {
            use super::*;
            $(#[test] fn $name() { keeps_its_promises(Stepped::memory(), 1_500, $algorithm, $worst); })*
        }
        mod promises_on_redis {
            use super::*;
            $(#[test] fn $name() { keeps_its_promises(Stepped::redis(), 300, $algorithm, $worst); })*
        }
    };
}

keep_their_promises! {
    sliding_window: Algorithm::SlidingWindow, |permits| permits;
    sliding_cells: Algorithm::SlidingCells { cells: 3 }, |permits| permits;
    fixed_window: Algorithm::FixedWindow, |permits| 2 * permits - 1;
    gcra: Algorithm::Gcra { burst: None }, |permits| 2 * permits;
}
