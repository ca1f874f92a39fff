//! The behaviour of each algorithm, and other operations on buckets: one contract for both stores, with stepped time. The
//! sliding window's own properties are in `contract`.

use std::slice::from_ref;

use smallvec::smallvec;
use tollgate_limiter::{
    Algorithm, Quota, Rate,
    store::{Act, Charge, Decision, Lease, Operation, Reply, Usage},
};

use crate::store::stepped::{SECOND, START, Stepped, charge, decision, on, under};

on_both_stores! {
    fault_01_refused_requests_are_not_counted
    fault_04_requests_of_one_instant_all_count
    fault_12_more_than_the_limit_can_never_be_admitted
    fault_16_an_edited_limit_keeps_its_count
    fault_16_an_edited_concurrency_keeps_its_leases
    a_debt_past_the_limit_is_waited_off
    debts_have_a_bound
    a_charge_of_nothing_needs_room_for_one
    a_look_changes_nothing
    a_look_says_when_its_cost_fits
    a_reset_forgets_all
    a_reset_forgets_what_its_own_call_charged
    a_record_counts_for_what_comes_behind_it_in_the_call
    limits_of_all_algorithms_are_charged_together_or_not_at_all
    a_clock_that_steps_back_frees_nothing_early
    a_shadowing_charge_of_another_window_only_looks
    a_cell_frees_all_its_permits_when_it_leaves
    a_cell_takes_over_the_time_of_its_last_grant
    a_fixed_window_begins_with_a_grant_and_frees_all_at_its_end
    a_fixed_window_admits_at_worst_twice_the_limit_less_one
    gcra_admits_a_burst_and_then_evenly
    gcra_admits_at_worst_burst_and_limit
    gcra_keeps_the_permits_when_its_window_changes
    gcra_admits_what_it_would_have_when_its_rate_rises
    gcra_is_exact_near_its_greatest_level
    gcra_forgives_no_debt
    the_costs_of_equal_buckets_add_up
    no_more_leases_than_the_limit
    a_released_lease_is_free_at_once
    a_lease_that_is_not_renewed_ends
    a_renewed_lease_lasts_from_then
    a_lease_that_ended_is_taken_again_by_its_renewal
    leases_of_one_call_are_apart
}

const CELLS: Algorithm = Algorithm::SlidingCells { cells: 5 };
const GCRA: Algorithm = Algorithm::Gcra { burst: None };
/// Those that count permits over time.
const RATES: [Algorithm; 4] = [Algorithm::SlidingWindow, CELLS, Algorithm::FixedWindow, GCRA];

/// A charge on a bucket of the algorithm's own.
fn ask(algorithm: Algorithm, rate: &str, cost: u32) -> Charge {
    under(algorithm, charge(&algorithm.tag(), rate, cost))
}

fn is_admitted(store: &mut Stepped, time_us: u64, charge: &Charge) -> bool {
    store.take(time_us, from_ref(charge)).admitted
}

/// How long a request must wait, 0 if it was admitted; `None` if it never will be.
fn delay_us(store: &mut Stepped, time_us: u64, charge: &Charge) -> Option<u64> {
    store.take(time_us, from_ref(charge)).outcomes[0].delay_us
}

fn used(store: &mut Stepped, time_us: u64, charge: &Charge) -> u64 {
    store.peek(time_us, charge).used
}

/// A refused caller is admitted at exactly the delay, and one microsecond earlier isn't. Returns the delay.
fn comes_back(store: &mut Stepped, time_us: u64, charge: &Charge) -> u64 {
    let delay = delay_us(store, time_us, charge).unwrap();
    assert_ne!(delay, 0, "{charge:?}");
    assert_eq!(delay_us(store, time_us + delay - 1, charge), Some(1), "{charge:?}");
    assert_eq!(delay_us(store, time_us + delay, charge), Some(0), "{charge:?}");
    delay
}

fn fault_01_refused_requests_are_not_counted(store: &mut Stepped) {
    for algorithm in RATES {
        let full = ask(algorithm, "3/10s", 3);
        assert!(is_admitted(store, START, &full));
        for later in 1..50 {
            assert!(!is_admitted(store, START + later * 1_000, &full), "{algorithm:?}");
        }
        // In cells a permit may free late, but here all came at one instant.
        assert!(is_admitted(store, START + 10 * SECOND, &full), "{algorithm:?}");
    }
}

fn fault_04_requests_of_one_instant_all_count(store: &mut Stepped) {
    for algorithm in RATES {
        let one = ask(algorithm, "60/s", 1);
        for left in (10..60).rev() {
            assert_eq!(store.take(START, from_ref(&one)).outcomes[0].remaining, left, "{algorithm:?}");
        }
        let decisions = store.take_all(START, &vec![smallvec![one]; 50]);
        assert_eq!(decisions.iter().filter(|decision| decision.admitted).count(), 10, "{algorithm:?}");
    }
}

fn fault_12_more_than_the_limit_can_never_be_admitted(store: &mut Stepped) {
    for algorithm in RATES {
        assert_eq!(delay_us(store, START, &ask(algorithm, "5/10s", 6)), None);
        assert_eq!(used(store, START, &ask(algorithm, "5/10s", 1)), 0);
    }
    assert_eq!(delay_us(store, START, &ask(Algorithm::Gcra { burst: Some(3) }, "5/10s", 4)), None);
    let blocked = Quota { permits: 0, ..Quota::from(Rate { permits: 1, window_us: SECOND }) };
    for algorithm in [Algorithm::Concurrency, Algorithm::Gcra { burst: Some(3) }, CELLS] {
        let charge = Charge { quota: Quota { algorithm, ..blocked }, ..ask(algorithm, "1/s", 1) };
        assert_eq!(delay_us(store, START, &charge), None, "{algorithm:?}");
    }
}

fn fault_16_an_edited_limit_keeps_its_count(store: &mut Stepped) {
    for algorithm in RATES {
        assert!(is_admitted(store, START, &ask(algorithm, "100/100s", 60)), "{algorithm:?}");
        assert!(!is_admitted(store, START, &ask(algorithm, "50/100s", 1)), "{algorithm:?}");
        assert_eq!(used(store, START, &ask(algorithm, "50/100s", 1)), 60, "{algorithm:?}");
        let decision = store.take(START, &[ask(algorithm, "90/100s", 10)]);
        assert_eq!((decision.admitted, decision.outcomes[0].remaining), (true, 20), "{algorithm:?}");
        // A longer window holds for what is there.
        let delay = delay_us(store, START + SECOND, &ask(algorithm, "70/1000s", 70)).unwrap();
        assert_eq!(delay, 999 * SECOND, "{algorithm:?}");
    }
}

fn fault_16_an_edited_concurrency_keeps_its_leases(store: &mut Stepped) {
    for permits in [1, 2, 3] {
        assert_eq!(leases_of(store, START, permits, 5).len(), 1);
    }
    assert!(leases_of(store, START, 2, 5).is_empty());
    assert_eq!(used(store, START, &lease(2)), 3);
    assert_eq!(leases_of(store, START, 5, 5).len(), 2);
}

fn a_debt_past_the_limit_is_waited_off(store: &mut Stepped) {
    for (algorithm, delay_s) in
        [(Algorithm::SlidingWindow, 9), (CELLS, 9), (Algorithm::FixedWindow, 8), (GCRA, 24)]
    {
        let one = ask(algorithm, "10/10s", 1);
        assert!(is_admitted(store, START, &ask(algorithm, "10/10s", 5)));
        store.act(START + SECOND, &one, Act::Record(30));
        // Of the 30 that came at 1 s, 21 must leave at least; 33 (2 have drained) - 9 of a rate of one a second.
        let now = START + 2 * SECOND;
        let usage = store.peek(now, &one);
        assert!(usage.used >= 33 && usage.delay_us == Some(delay_s * SECOND), "{algorithm:?}: {usage:?}");
        let refused = store.take(now, from_ref(&one));
        assert_eq!((refused.admitted, refused.outcomes[0].remaining), (false, 0));
        assert_eq!(comes_back(store, now, &one), delay_s * SECOND, "{algorithm:?}");
    }
}

fn debts_have_a_bound(store: &mut Stepped) {
    for algorithm in RATES {
        let one = ask(algorithm, "10/1ms", 1);
        for _ in 0..4 {
            store.act(START, &one, Act::Record(u32::MAX >> 1));
        }
        assert_eq!(used(store, START, &one), 4_000_000_000, "{algorithm:?}");
        assert!(!is_admitted(store, START, &one));
    }
}

fn a_charge_of_nothing_needs_room_for_one(store: &mut Stepped) {
    for algorithm in RATES {
        let nothing = ask(algorithm, "2/10s", 0);
        for _ in 0..5 {
            let decision = store.take(START, from_ref(&nothing));
            assert_eq!((decision.admitted, decision.outcomes[0].remaining), (true, 2), "{algorithm:?}");
            assert_eq!(decision.outcomes[0].grow_us, 0);
        }
        assert!(is_admitted(store, START, &ask(algorithm, "2/10s", 2)));
        let together = store.take_all(START + SECOND, &vec![smallvec![nothing.clone()]; 3]);
        assert!(together.iter().all(|decision| !decision.admitted), "{algorithm:?}");
        comes_back(store, START + SECOND, &nothing);
    }
}

fn a_look_changes_nothing(store: &mut Stepped) {
    for algorithm in RATES {
        let one = ask(algorithm, "3/10s", 1);
        let nothing = Usage { used: 0, grow_us: 0, delay_us: Some(0), rate: None };
        assert_eq!(store.peek(START, &one), nothing);
        assert!(is_admitted(store, START, &ask(algorithm, "3/10s", 3)));
        let first = store.peek(START + SECOND, &one);
        for _ in 0..10 {
            assert_eq!(store.peek(START + SECOND, &one), first, "{algorithm:?}");
        }
        // Not even one with another quota, or at another time.
        store.peek(START + 90 * SECOND, &ask(algorithm, "3/1ms", 1));
        if matches!(algorithm, Algorithm::FixedWindow | Algorithm::Gcra { .. }) {
            assert_eq!(store.peek(START + SECOND, &one), first, "{algorithm:?}");
        }
    }
}

fn a_look_says_when_its_cost_fits(store: &mut Stepped) {
    for at in 0..5 {
        assert!(is_admitted(store, START + at * SECOND, &ask(Algorithm::SlidingWindow, "5/10s", 1)));
    }
    let now = START + 5 * SECOND;
    for (cost, delay_s) in [(0, Some(0)), (1, Some(5)), (3, Some(7)), (5, Some(9)), (6, None)] {
        let usage = store.peek(now, &ask(Algorithm::SlidingWindow, "5/10s", cost));
        let delay_us = delay_s.map(|seconds| seconds * SECOND);
        assert_eq!(usage, Usage { used: 5, grow_us: 5 * SECOND, delay_us, rate: None });
    }
}

fn a_reset_forgets_all(store: &mut Stepped) {
    for algorithm in RATES {
        let full = ask(algorithm, "3/10s", 3);
        for later in 0..3 {
            assert!(is_admitted(store, START + later, &full), "{algorithm:?}");
            assert_eq!(store.act(START + later, &full, Act::Reset), Reply::Done);
        }
        assert_eq!(
            store.peek(START + 3, &full),
            Usage { used: 0, grow_us: 0, delay_us: Some(0), rate: None }
        );
        // One that isn't there is as well forgotten.
        store.act(START + 3, &full, Act::Reset);
    }
    assert_eq!(leases_of(store, START, 2, 2).len(), 2);
    store.act(START, &lease(2), Act::Reset);
    assert_eq!(leases_of(store, START, 2, 3).len(), 2);
}

fn a_reset_forgets_what_its_own_call_charged(store: &mut Stepped) {
    for algorithm in RATES {
        let (two, three) = (ask(algorithm, "3/10s", 2), ask(algorithm, "3/10s", 3));
        let operations = [
            Operation::Take(smallvec![two.clone()]),
            Operation::Take(smallvec![three.clone()]),
            on(&two, Act::Reset),
            on(&two, Act::Peek(1)),
            on(&two, Act::Record(1)),
            Operation::Take(smallvec![ask(algorithm, "3/10s", 1)]),
        ];
        let replies = store.operate(START, &operations);
        let is_admitted = |at: usize| decision(replies[at].clone()).admitted;
        assert_eq!([0, 1, 5].map(is_admitted), [true, false, true], "{algorithm:?}");
        assert_eq!(replies[3], Reply::Usage(Usage { used: 0, grow_us: 0, delay_us: Some(0), rate: None }));
        assert_eq!(used(store, START + 1, &two), 2, "{algorithm:?}");
    }
}

fn a_record_counts_for_what_comes_behind_it_in_the_call(store: &mut Stepped) {
    for algorithm in RATES {
        let (one, two) = (ask(algorithm, "3/10s", 1), ask(algorithm, "3/10s", 2));
        let operations = [
            Operation::Take(smallvec![one.clone()]),
            on(&one, Act::Record(1)),
            Operation::Take(smallvec![two.clone()]),
            on(&one, Act::Record(7)),
        ];
        let replies = store.operate(START, &operations);
        assert!(decision(replies[0].clone()).admitted && !decision(replies[2].clone()).admitted);
        assert_eq!(used(store, START, &one), 9, "{algorithm:?}");
    }
}

fn limits_of_all_algorithms_are_charged_together_or_not_at_all(store: &mut Stepped) {
    let rate_of = |tight: Algorithm, algorithm| if algorithm == tight { "2/10s" } else { "9/10s" };
    for tight in RATES {
        let all = RATES.map(|algorithm| ask(algorithm, rate_of(tight, algorithm), 1));
        for turn in 0..4 {
            let decision = store.take(START, &all);
            assert_eq!(decision.admitted, turn < 2, "{tight:?}");
            for (charge, outcome) in all.iter().zip(&decision.outcomes) {
                let left = u64::from(charge.quota.permits) - (turn + 1).min(2);
                assert_eq!(outcome.remaining, left, "{charge:?}");
            }
        }
        store.clear();
    }
    // A refused request takes no lease.
    let held = [ask(Algorithm::SlidingWindow, "1/10s", 1), lease(5)];
    assert_eq!(store.take(START, &held).leases.len(), 1);
    let refused = store.take(START, &held);
    assert!(!refused.admitted && refused.leases.is_empty());
    assert_eq!(used(store, START, &lease(5)), 1);
}

fn a_clock_that_steps_back_frees_nothing_early(store: &mut Stepped) {
    for algorithm in RATES {
        let full = ask(algorithm, "4/10s", 4);
        assert!(is_admitted(store, START + 20 * SECOND, &full));
        // It would free at 30 s; seen from 15 s, that is 15 s away.
        let refused = store.take(START + 15 * SECOND, from_ref(&full));
        assert_eq!(refused.outcomes[0].delay_us, Some(15 * SECOND), "{algorithm:?}");
        assert!(!is_admitted(store, START + 30 * SECOND - 1, &full), "{algorithm:?}");
        assert!(is_admitted(store, START + 30 * SECOND, &full), "{algorithm:?}");
    }
}

fn a_shadowing_charge_of_another_window_only_looks(store: &mut Stepped) {
    let [enforcing, short] = ["5/10s", "5/s"].map(|rate| ask(Algorithm::FixedWindow, rate, 1));
    let shadow = Charge { shadow: true, ..short };
    for charges in [[&shadow, &enforcing], [&enforcing, &shadow]].map(|charges| charges.map(Charge::clone)) {
        store.clear();
        for turn in 0..4 {
            let time_us = START + 2 * turn * SECOND;
            assert!(store.take(time_us, &charges).admitted);
            assert_eq!(used(store, time_us, &enforcing), turn + 1);
        }
    }
}

fn a_cell_frees_all_its_permits_when_it_leaves(store: &mut Stepped) {
    // Cells of 2 s.
    let one = ask(CELLS, "5/10s", 1);
    for at_ms in [0, 500, 1_999, 2_000, 6_000] {
        assert!(is_admitted(store, START + at_ms * 1_000, &one));
    }
    let now = START + 7 * SECOND;
    // Three are one entry, at 1,999 ms.
    for (cost, at_ms) in [(1, 1_999), (3, 1_999), (4, 2_000), (5, 6_000)] {
        let delay = delay_us(store, now, &ask(CELLS, "5/10s", cost));
        assert_eq!(delay, Some(START + at_ms * 1_000 + 10 * SECOND - now), "{cost}");
    }
    comes_back(store, now, &one);
}

fn a_cell_takes_over_the_time_of_its_last_grant(store: &mut Stepped) {
    let (one, two) = (ask(CELLS, "9/10s", 1), ask(CELLS, "9/10s", 2));
    assert!(is_admitted(store, START, &one));
    // Two groups of one call fall into the cell that is open, and a third waits for all of it.
    let operations = [
        Operation::Take(smallvec![two.clone()]),
        Operation::Take(smallvec![one.clone()]),
        Operation::Take(smallvec![ask(CELLS, "9/10s", 6)]),
    ];
    let replies: Vec<Decision> =
        store.operate(START + SECOND, &operations).into_iter().map(decision).collect();
    let seen = |at: usize| (replies[at].outcomes[0].remaining, replies[at].outcomes[0].grow_us);
    assert_eq!([0, 1, 2].map(seen), [(6, 10 * SECOND), (5, 10 * SECOND), (5, 10 * SECOND)]);
    assert_eq!(replies[2].outcomes[0].delay_us, Some(10 * SECOND));
    assert_eq!(store.peek(START + 11 * SECOND - 1, &one).used, 4);
    assert_eq!(store.peek(START + 11 * SECOND, &one).used, 0);
}

fn a_fixed_window_begins_with_a_grant_and_frees_all_at_its_end(store: &mut Stepped) {
    let one = ask(Algorithm::FixedWindow, "3/10s", 1);
    let begun = START + 7_123_457;
    for at in [0, 4, 9] {
        assert!(is_admitted(store, begun + at * SECOND, &one));
    }
    for cost in 1..=3 {
        let all = ask(Algorithm::FixedWindow, "3/10s", cost);
        assert_eq!(delay_us(store, begun + 9 * SECOND, &all), Some(SECOND));
    }
    assert_eq!(delay_us(store, begun + 10 * SECOND - 1, &one), Some(1));
    assert!(is_admitted(store, begun + 10 * SECOND, &ask(Algorithm::FixedWindow, "3/10s", 3)));
}

fn a_fixed_window_admits_at_worst_twice_the_limit_less_one(store: &mut Stepped) {
    let one = ask(Algorithm::FixedWindow, "5/10s", 1);
    assert!(is_admitted(store, START, &one));
    let around_the_end = (0..10).map(|turn| START + 10 * SECOND - 5 + turn);
    let admitted = around_the_end.filter(|at| is_admitted(store, *at, &one)).count();
    assert_eq!(admitted, 2 * 5 - 1);
}

fn gcra_admits_a_burst_and_then_evenly(store: &mut Stepped) {
    let one = ask(Algorithm::Gcra { burst: Some(3) }, "10/10s", 1);
    let admitted = (0..80).filter(|at| is_admitted(store, START + at * SECOND / 10, &one));
    assert_eq!(admitted.collect::<Vec<_>>(), [0, 1, 2, 10, 20, 30, 40, 50, 60, 70]);
    assert_eq!(comes_back(store, START + 8 * SECOND - 1, &one), 1);
    // Two fit when two have drained.
    let two = ask(Algorithm::Gcra { burst: Some(3) }, "10/10s", 2);
    assert_eq!(comes_back(store, START + 8 * SECOND, &two), 2 * SECOND);
}

fn gcra_admits_at_worst_burst_and_limit(store: &mut Stepped) {
    let one = ask(Algorithm::Gcra { burst: Some(4) }, "5/10s", 1);
    let admitted = (0..=10_000).filter(|at| is_admitted(store, START + at * 1_000, &one)).count();
    assert_eq!(admitted, 4 + 5);
}

fn gcra_keeps_the_permits_when_its_window_changes(store: &mut Stepped) {
    let at = |rate: &str| ask(GCRA, rate, 1);
    assert!(is_admitted(store, START, &ask(GCRA, "10/10s", 8)));
    for (rate, a_permit_us) in [("10/10s", SECOND), ("10/100s", 10 * SECOND), ("10/1s", SECOND / 10)] {
        let usage = store.peek(START, &at(rate));
        assert_eq!(usage, Usage { used: 8, grow_us: a_permit_us, delay_us: Some(0), rate: None }, "{rate}");
    }
    // Half a permit has drained, and 7.5 are outstanding: in any units, until a grant and after it.
    let half = START + SECOND / 2;
    assert_eq!(
        store.peek(half, &at("10/10s")),
        Usage { used: 8, grow_us: SECOND / 2, delay_us: Some(0), rate: None }
    );
    assert!(is_admitted(store, half, &at("10/10s")));
    for (rate, half_a_permit_us) in [("10/10s", SECOND / 2), ("10/100s", 5 * SECOND), ("10/1s", SECOND / 20)]
    {
        let usage = store.peek(half, &at(rate));
        assert_eq!(
            usage,
            Usage { used: 9, grow_us: half_a_permit_us, delay_us: Some(0), rate: None },
            "{rate}"
        );
    }
}

fn gcra_admits_what_it_would_have_when_its_rate_rises(store: &mut Stepped) {
    let asked = |rate: &str, cost| ask(Algorithm::Gcra { burst: Some(20) }, rate, cost);
    assert!(is_admitted(store, START, &asked("5/10s", 15)));
    for (rate, later) in [("5/10s", 0), ("6/10s", 0), ("50/10s", 0), ("50/1s", 0), ("50/1s", SECOND)] {
        let usage = store.peek(START + later, &asked(rate, 5));
        assert_eq!(usage.delay_us, Some(0), "{rate}");
    }
    assert!(is_admitted(store, START, &asked("50/1s", 5)));
    assert_eq!(comes_back(store, START, &asked("50/1s", 1)), SECOND / 50);
}

fn gcra_is_exact_near_its_greatest_level(store: &mut Stepped) {
    // 284 * 366 days is 0.3 % below 2^53 microseconds.
    let charge = |cost| Charge {
        quota: Quota { algorithm: GCRA, permits: 284, window_us: Rate::MAX_WINDOW_US },
        ..ask(GCRA, "1/s", cost)
    };
    assert!(is_admitted(store, START, &charge(283)));
    assert!(is_admitted(store, START + 1, &charge(1)));
    let a_permit_us = Rate::MAX_WINDOW_US.div_ceil(284);
    assert_eq!(comes_back(store, START + 1, &charge(1)), a_permit_us - 1);
    let most = Charge {
        quota: Quota { permits: Rate::MAX_PERMITS, window_us: 1_000, ..charge(1).quota },
        ..charge(1)
    };
    store.act(START, &most, Act::Reset);
    assert!(is_admitted(store, START, &Charge { cost: Rate::MAX_PERMITS, ..most.clone() }));
    assert_eq!(comes_back(store, START, &most), 1);
}

fn gcra_forgives_no_debt(store: &mut Stepped) {
    const DAY: u64 = 86_400 * SECOND;
    let one = ask(GCRA, "100000/day", 1);
    store.act(START, &one, Act::Record(1_000_000));
    let usage = store.peek(START, &one);
    // There is room for one more when 900,001 permits have drained, nine days and a permit's time later.
    let expected =
        Usage { used: 1_000_000, grow_us: 9 * DAY + 864_000, delay_us: Some(9 * DAY + 864_000), rate: None };
    assert_eq!(usage, expected);
    // Nothing is lost when it drains, by whole windows or a fraction of one, and when more is recorded.
    assert_eq!(store.peek(START + 3 * DAY, &one).used, 700_000);
    store.act(START + 3 * DAY + 864_000 / 2, &one, Act::Record(1));
    assert_eq!(store.peek(START + 3 * DAY + 864_000 / 2, &one).used, 700_001);
    let delay_us = store.peek(START + 3 * DAY + 864_000 / 2, &one).delay_us;
    assert_eq!(delay_us, Some(6 * DAY + 864_000 * 3 / 2));
    // In the units of another window the permits are the same.
    assert_eq!(store.peek(START + 3 * DAY + 864_000 / 2, &ask(GCRA, "100000/h", 1)).used, 700_001);
    store.act(START, &one, Act::Reset);
    for _ in 0..3 {
        store.act(START, &one, Act::Record(u32::MAX >> 1));
    }
    assert_eq!(store.peek(START, &one).used, 4_000_000_000);
    assert_eq!(store.peek(START + 10_000 * DAY, &one).used, 3_000_000_000);
    assert_eq!(comes_back(store, START + 39_999 * DAY, &one), 864_000);
}

fn the_costs_of_equal_buckets_add_up(store: &mut Stepped) {
    for algorithm in [Algorithm::SlidingWindow, CELLS, Algorithm::FixedWindow, GCRA, Algorithm::Concurrency] {
        let name = format!("{algorithm:?}");
        let one = Charge { bucket: name.into(), ..ask(algorithm, "5/10s", 1) };
        let twice = || [one.clone(), one.clone()];
        let left = |decision: &Decision| decision.outcomes.iter().map(|outcome| outcome.remaining).collect();
        let seen: Vec<(bool, Vec<u64>)> = (0..3)
            .map(|_| store.take(START, &twice()))
            .map(|decision| (decision.admitted, left(&decision)))
            .collect();
        assert_eq!(seen, [(true, vec![3, 3]), (true, vec![1, 1]), (false, vec![1, 1])], "{algorithm:?}");
        assert!(is_admitted(store, START, &one), "{algorithm:?}");
        assert!(!is_admitted(store, START, &one), "{algorithm:?}");
        // More than there ever is.
        let six = [one.clone(), one.clone(), one.clone(), one.clone(), one.clone(), one.clone()];
        let never = store.take(START + 100 * SECOND, &six);
        assert_eq!((never.admitted, never.outcomes[5].delay_us), (false, None), "{algorithm:?}");
    }
}

/// One request at a time of `permits`, held for 10 s unless renewed.
fn lease(permits: u32) -> Charge {
    let quota = Quota { algorithm: Algorithm::Concurrency, permits, window_us: 10 * SECOND };
    Charge { quota, ..ask(Algorithm::Concurrency, "1/s", 1) }
}

/// The leases that some requests at one instant got.
fn leases_of(store: &mut Stepped, time_us: u64, permits: u32, requests: usize) -> Vec<Lease> {
    let decisions = store.take_all(time_us, &vec![smallvec![lease(permits)]; requests]);
    decisions.into_iter().flat_map(|decision| decision.leases).collect()
}

fn no_more_leases_than_the_limit(store: &mut Stepped) {
    assert_eq!(leases_of(store, START, 3, 2).len(), 2);
    assert_eq!(leases_of(store, START + SECOND, 3, 4).len(), 1);
    let refused = store.take(START + 2 * SECOND, &[lease(3)]);
    assert_eq!((refused.admitted, refused.outcomes[0].delay_us), (false, Some(SECOND)));
}

fn a_released_lease_is_free_at_once(store: &mut Stepped) {
    let held = leases_of(store, START, 2, 2);
    store.act(START + 1, &lease(2), Act::Release(held[0].id));
    assert_eq!(used(store, START + 1, &lease(2)), 1);
    // Twice released is once released, and doesn't take another's.
    store.act(START + 1, &lease(2), Act::Release(held[0].id));
    assert_eq!(leases_of(store, START + 1, 2, 5).len(), 1);
    let operations = [
        Operation::Take(smallvec![lease(2)]),
        on(&lease(2), Act::Release(held[1].id)),
        on(&lease(2), Act::Peek(1)),
    ];
    let replies = store.operate(START + 2, &operations);
    assert!(!decision(replies[0].clone()).admitted);
    assert_eq!(replies[2], Reply::Usage(Usage { used: 1, grow_us: SECOND, delay_us: Some(0), rate: None }));
}

fn a_lease_that_is_not_renewed_ends(store: &mut Stepped) {
    assert_eq!(leases_of(store, START, 1, 1).len(), 1);
    assert!(leases_of(store, START + 10 * SECOND - 1, 1, 1).is_empty());
    assert_eq!(leases_of(store, START + 10 * SECOND, 1, 1).len(), 1);
}

fn a_renewed_lease_lasts_from_then(store: &mut Stepped) {
    let held = leases_of(store, START, 2, 2);
    store.act(START + 6 * SECOND, &lease(2), Act::Renew(held[1].id));
    assert_eq!(used(store, START + 10 * SECOND - 1, &lease(2)), 2);
    assert_eq!(used(store, START + 10 * SECOND, &lease(2)), 1);
    assert_eq!(used(store, START + 16 * SECOND - 1, &lease(2)), 1);
    assert_eq!(used(store, START + 16 * SECOND, &lease(2)), 0);
}

fn a_lease_that_ended_is_taken_again_by_its_renewal(store: &mut Stepped) {
    let held = leases_of(store, START, 1, 1);
    let later = START + 10 * SECOND;
    assert_eq!(leases_of(store, later, 1, 1).len(), 1);
    store.act(later + 1, &lease(1), Act::Renew(held[0].id));
    assert_eq!(used(store, later + 1, &lease(1)), 2);
    // In one call, too: what was counted before it is counted anew.
    let operations = [
        on(&lease(9), Act::Peek(1)),
        on(&lease(9), Act::Release(held[0].id)),
        Operation::Take(smallvec![lease(9)]),
        on(&lease(9), Act::Renew(held[0].id)),
        on(&lease(9), Act::Peek(1)),
    ];
    let replies = store.operate(later + 2, &operations);
    let used = |at: usize| if let Reply::Usage(Usage { used, .. }) = replies[at] { used } else { 0 };
    assert_eq!([used(0), used(4)], [2, 3]);
}

fn leases_of_one_call_are_apart(store: &mut Stepped) {
    let mut ids: Vec<_> = leases_of(store, START, 1_500, 1_200).iter().map(|lease| lease.id).collect();
    ids.extend(leases_of(store, START, 1_500, 1_200).iter().map(|lease| lease.id));
    // Other charges in the call, and a reset between them.
    let other = ask(Algorithm::SlidingWindow, "900/s", 1);
    let operations = [
        Operation::Take(smallvec![lease(1_600)]),
        Operation::Take(smallvec![other, lease(1_600)]),
        Operation::Take(smallvec![lease(1_600)]),
    ];
    for reply in store.operate(START, &operations) {
        ids.extend(decision(reply).leases.iter().map(|lease| lease.id));
    }
    assert_eq!(ids.len(), 1_503);
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 1_503);
    assert_eq!(used(store, START, &lease(1)), 1_503);
    for id in ids {
        store.act(START + 1, &lease(1), Act::Release(id));
    }
    assert_eq!(used(store, START + 1, &lease(1)), 0);
}
