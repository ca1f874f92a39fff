//! One contract for both stores, with stepped time. Faults are numbered as in the list of other limiters' faults. Tests that
//! need a server's own clock are in `server`.

use smallvec::smallvec;
use tollgate_limiter::{
    Rate,
    store::{Charge, Charges, Outcome},
};

use crate::store::stepped::{SECOND, START, Stepped, charge, quota};

on_both_stores! {
    fault_01_refused_requests_are_not_counted
    fault_04_requests_of_one_instant_all_count
    fault_07_a_permit_frees_at_exactly_its_time_plus_the_window
    fault_08_the_delay_is_when_enough_permits_have_left
    fault_09_what_is_used_follows_from_the_log_alone
    fault_09_the_rest_counts_however_many_have_ended
    fault_11_a_refusal_changes_nothing
    fault_12_the_greatest_costs_are_exact
    fault_12_more_than_the_limit_can_never_be_admitted
    fault_13_nothing_is_charged_where_one_limit_refuses
    fault_16_an_edited_limit_keeps_its_count
    fault_16_a_grown_window_keeps_what_is_still_there
    a_shadowing_limit_is_charged_only_when_all_admit_and_it_has_room
    a_clock_that_steps_back_makes_the_store_stricter
    equal_requests_are_granted_in_part
    a_refusal_in_a_batch_does_not_stop_the_smaller_one_behind_it
    requests_of_one_batch_are_held_to_their_own_quotas
    a_request_that_names_a_bucket_with_two_quotas_needs_room_in_both
}

/// Whether one request is admitted, and how its only bucket stands.
fn take(store: &mut Stepped, time_us: u64, charge: Charge) -> (bool, Outcome) {
    let decision = store.take(time_us, &[charge]);
    (decision.admitted, decision.outcomes[0])
}

fn fault_01_refused_requests_are_not_counted(store: &mut Stepped) {
    let asked = (0..20).map(|turn| 3 * turn);
    let admitted: Vec<u64> =
        asked.filter(|at| take(store, START + at * SECOND, charge("b", "2/10s", 1)).0).collect();
    assert_eq!(admitted, [0, 3, 12, 15, 24, 27, 36, 39, 48, 51]);
}

fn fault_04_requests_of_one_instant_all_count(store: &mut Stepped) {
    let one = charge("b", "60/s", 1);
    for left in (10..60).rev() {
        assert_eq!(take(store, START, one.clone()).1.remaining, left);
    }
    let together = vec![smallvec![one]; 50];
    let decisions = store.take_all(START, &together);
    assert_eq!(decisions.iter().filter(|decision| decision.admitted).count(), 10);
}

fn fault_07_a_permit_frees_at_exactly_its_time_plus_the_window(store: &mut Stepped) {
    let one = charge("b", "1/10s", 1);
    assert!(take(store, START, one.clone()).0);
    let (admitted, outcome) = take(store, START + 10 * SECOND - 1, one.clone());
    assert!(!admitted);
    assert_eq!((outcome.delay_us, outcome.grow_us), (Some(1), 1));
    assert!(take(store, START + 10 * SECOND, one).0);
}

fn fault_08_the_delay_is_when_enough_permits_have_left(store: &mut Stepped) {
    for at_ms in [0, 100, 200, 300, 400] {
        assert!(take(store, START + at_ms * 1_000, charge("b", "5/1000ms", 1)).0);
    }
    for (cost, delay_ms) in [(1, 500), (2, 600), (3, 700), (4, 800), (5, 900)] {
        let (admitted, outcome) = take(store, START + 500_000, charge("b", "5/1000ms", cost));
        assert!(!admitted);
        assert_eq!((outcome.delay_us, outcome.grow_us), (Some(delay_ms * 1_000), 500_000));
    }
}

fn fault_09_what_is_used_follows_from_the_log_alone(store: &mut Stepped) {
    // Costs of 1 to 4 in turn, a second each: in use is what the last four seconds took.
    for turn in 0..40 {
        let cost = 1 + turn % 4;
        let (admitted, outcome) = take(store, START + u64::from(turn) * SECOND, charge("b", "12/4s", cost));
        assert!(admitted);
        let used: u32 = (0..4.min(turn + 1)).map(|back| 1 + (turn - back) % 4).sum();
        assert_eq!(outcome.remaining, u64::from(12 - used), "turn {turn}");
    }
}

fn fault_09_the_rest_counts_however_many_have_ended(store: &mut Stepped) {
    const GRANTS: u64 = 40;
    let asked = |cost: u64| charge("b", "99/40s", cost as u32);
    // So many end between two grants, and then so many more.
    for (ended, more) in (0..GRANTS).map(|ended| (ended, 7 * ended % (GRANTS - ended))) {
        store.clear();
        for at in 0..GRANTS {
            assert!(take(store, START + at * SECOND, asked(1)).0);
        }
        for (ended, granted) in [(ended, 1), (ended + more, 2)] {
            // The next one ends in a microsecond, and each a second after the other.
            let now = START + (40 + ended) * SECOND - 1;
            let (_, outcome) = take(store, now, asked(1));
            let left = 99 - (GRANTS - ended) - granted;
            assert_eq!((outcome.remaining, outcome.grow_us), (left, 1), "{ended} have ended");
            for missing in 1..=GRANTS - ended {
                let delay_us = store.peek(now, &asked(left + missing)).delay_us;
                assert_eq!(delay_us, Some((missing - 1) * SECOND + 1), "{ended} have ended");
            }
        }
    }
}

fn fault_11_a_refusal_changes_nothing(store: &mut Stepped) {
    assert!(take(store, START, charge("b", "3/10s", 2)).0);
    let first = take(store, START + SECOND, charge("b", "3/10s", 2));
    for _ in 0..100 {
        assert_eq!(take(store, START + SECOND, charge("b", "3/10s", 2)), first);
    }
    assert!(take(store, START + SECOND, charge("b", "3/10s", 1)).0);
    assert!(take(store, START + 10 * SECOND, charge("b", "3/10s", 2)).0);
}

fn fault_12_the_greatest_costs_are_exact(store: &mut Stepped) {
    let most = Rate::MAX_PERMITS;
    let ask = |cost| Charge { quota: quota(most, Rate::MAX_WINDOW_US), ..charge("b", "1/s", cost) };
    assert_eq!(take(store, START, ask(most - 1)).1.remaining, 1);
    assert_eq!(take(store, START + 1, ask(2)).1.delay_us, Some(Rate::MAX_WINDOW_US - 1));
    assert!(take(store, START + 2, ask(1)).0);
    assert_eq!(take(store, START + 3, ask(most)).1.delay_us, Some(Rate::MAX_WINDOW_US - 1));
    assert!(take(store, START + 2 + Rate::MAX_WINDOW_US, ask(most)).0);
}

fn fault_12_more_than_the_limit_can_never_be_admitted(store: &mut Stepped) {
    let too_much = charge("b", "5/10s", 6);
    let (admitted, outcome) = take(store, START, too_much.clone());
    assert!(!admitted);
    assert_eq!(outcome, Outcome { charged: false, remaining: 5, grow_us: 0, delay_us: None, rate: None });
    assert!(take(store, START, charge("b", "5/10s", 5)).0);
    assert_eq!(take(store, START, too_much).1.delay_us, None);
}

fn fault_13_nothing_is_charged_where_one_limit_refuses(store: &mut Stepped) {
    let (tight, wide) = (charge("tight", "1/10s", 1), charge("wide", "9/20s", 1));
    assert!(store.take(START, &[tight.clone(), wide.clone()]).admitted);
    for both in [[tight.clone(), wide.clone()], [wide.clone(), tight.clone()]] {
        let refused = store.take(START + SECOND, &both);
        assert!(!refused.admitted && refused.outcomes.iter().all(|outcome| !outcome.charged));
        for (charge, outcome) in both.iter().zip(&refused.outcomes) {
            let expected = if charge.bucket == "tight" { (0, Some(9 * SECOND)) } else { (8, Some(0)) };
            assert_eq!((outcome.remaining, outcome.delay_us), expected);
        }
    }
    // Both refuse: each says when it will have room.
    assert!(take(store, START + 2 * SECOND, charge("wide", "9/20s", 8)).0);
    let refused = store.take(START + 3 * SECOND, &[tight, wide]);
    let delays: Vec<_> = refused.outcomes.iter().map(|outcome| outcome.delay_us).collect();
    assert_eq!(delays, [Some(7 * SECOND), Some(17 * SECOND)]);
}

fn fault_16_an_edited_limit_keeps_its_count(store: &mut Stepped) {
    for second in 0..7 {
        assert!(take(store, START + second * SECOND, charge("b", "10/20s", 1)).0);
    }
    let now = START + 10 * SECOND;
    // 7 in use of 5: 3 must leave, the third of them at 2 s.
    let (admitted, outcome) = take(store, now, charge("b", "5/20s", 1));
    assert!(!admitted);
    assert_eq!((outcome.remaining, outcome.delay_us), (0, Some(12 * SECOND)));
    assert_eq!(take(store, now, charge("b", "12/20s", 1)).1.remaining, 4);
    // A shorter window lets those go that are older.
    assert_eq!(take(store, now, charge("b", "12/5s", 1)).1.remaining, 12 - 3);
}

fn fault_16_a_grown_window_keeps_what_is_still_there(store: &mut Stepped) {
    assert!(take(store, START, charge("b", "1/s", 1)).0);
    let (admitted, outcome) = take(store, START + 500_000, charge("b", "1/min", 1));
    assert!(!admitted);
    assert_eq!(outcome.delay_us, Some(59_500_000));
    // What other callers do after the old window's end clears nothing away.
    let others = (0..20_000).map(|name| smallvec![charge(&name.to_string(), "1/s", 1)]);
    store.take_all(START + 2 * SECOND, &others.collect::<Vec<Charges>>());
    assert_eq!(take(store, START + 3 * SECOND, charge("b", "1/min", 1)).1.delay_us, Some(57 * SECOND));
}

fn a_shadowing_limit_is_charged_only_when_all_admit_and_it_has_room(store: &mut Stepped) {
    let shadow = Charge { shadow: true, ..charge("shadow", "1/20s", 1) };
    let both = [shadow, charge("enforcing", "2/10s", 1)];
    let standing = |store: &mut Stepped, at: u64| {
        let decision = store.take(START + at * SECOND, &both);
        let outcomes = decision.outcomes;
        (decision.admitted, [0, 1].map(|at| (outcomes[at].charged, outcomes[at].delay_us.unwrap() / SECOND)))
    };
    assert_eq!(standing(store, 0), (true, [(true, 0), (true, 0)]));
    assert_eq!(standing(store, 1), (true, [(false, 19), (true, 0)]));
    assert_eq!(standing(store, 2), (false, [(false, 18), (false, 8)]));
    assert_eq!(standing(store, 19), (true, [(false, 1), (true, 0)]));
    assert_eq!(standing(store, 20), (true, [(true, 0), (true, 0)]));
    // Room in the shadow, none where it matters: nothing is charged.
    store.take(START + 39 * SECOND, &[charge("enforcing", "2/10s", 2)]);
    assert_eq!(standing(store, 40), (false, [(false, 0), (false, 9)]));
    assert_eq!(standing(store, 49), (true, [(true, 0), (true, 0)]));
}

fn a_clock_that_steps_back_makes_the_store_stricter(store: &mut Stepped) {
    let at = |second: u64| START + second * SECOND;
    assert!(take(store, at(7), charge("b", "3/10s", 1)).0);
    assert!(take(store, at(9), charge("b", "3/10s", 1)).0);
    // Granted at 4 s, counted at 9 s.
    assert!(take(store, at(4), charge("b", "3/10s", 1)).0);
    let (admitted, outcome) = take(store, at(5), charge("b", "3/10s", 1));
    assert!(!admitted);
    assert_eq!((outcome.delay_us, outcome.grow_us), (Some(12 * SECOND), 12 * SECOND));
    assert_eq!(take(store, at(5), charge("b", "3/10s", 2)).1.delay_us, Some(14 * SECOND));
    assert_eq!(take(store, at(17), charge("b", "3/10s", 3)).1.delay_us, Some(2 * SECOND));
    assert!(take(store, at(17), charge("b", "3/10s", 1)).0);
    // What had ended by then doesn't come back.
    assert_eq!(take(store, at(12), charge("b", "3/10s", 1)).1.grow_us, 7 * SECOND);
    assert!(take(store, at(27), charge("b", "3/10s", 3)).0);
}

fn equal_requests_are_granted_in_part(store: &mut Stepped) {
    assert!(take(store, START, charge("b", "8/10s", 1)).0);
    let decisions = store.take_all(START + SECOND, &vec![smallvec![charge("b", "8/10s", 3)]; 4]);
    let seen: Vec<_> = decisions
        .iter()
        .map(|decision| {
            (decision.admitted, decision.outcomes[0].remaining, decision.outcomes[0].delay_us.unwrap())
        })
        .collect();
    // The two that don't fit wait for one permit of before and for one of those granted now.
    let delay_us = 10 * SECOND;
    assert_eq!(seen, [(true, 4, 0), (true, 1, 0), (false, 1, delay_us), (false, 1, delay_us)]);
}

fn a_refusal_in_a_batch_does_not_stop_the_smaller_one_behind_it(store: &mut Stepped) {
    let requests: Vec<Charges> = [3, 4, 2].map(|cost| smallvec![charge("b", "5/10s", cost)]).into();
    let admitted: Vec<bool> =
        store.take_all(START, &requests).iter().map(|decision| decision.admitted).collect();
    assert_eq!(admitted, [true, false, true]);
}

fn requests_of_one_batch_are_held_to_their_own_quotas(store: &mut Stepped) {
    let [narrow, wide] = ["5/h", "1000/h"].map(|rate| charge("b", rate, 1));
    assert!(take(store, START, Charge { cost: 4, ..wide.clone() }).0);
    // In any order: the narrow quota has room for one, if that comes before the wide one's.
    let [first, second, third] =
        [[&narrow, &wide, &narrow], [&wide, &narrow, &wide], [&narrow, &narrow, &wide]]
            .map(|order| order.map(|charge| smallvec![charge.clone()]));
    let mut admitted = |requests: &[Charges]| {
        let decisions = store.take_all(START + SECOND, requests);
        decisions
            .iter()
            .map(|decision| (decision.admitted, decision.outcomes[0].remaining))
            .collect::<Vec<_>>()
    };
    assert_eq!(admitted(&first), [(true, 0), (true, 994), (false, 0)]);
    assert_eq!(admitted(&second), [(true, 993), (false, 0), (true, 992)]);
    assert_eq!(admitted(&third), [(false, 0), (false, 0), (true, 991)]);
    // With other costs on the bucket, and others' buckets, in the call.
    let asked = |charges: &[&Charge]| charges.iter().map(|charge| (*charge).clone()).collect::<Charges>();
    let [three, other] = [Charge { cost: 3, ..wide.clone() }, charge("other", "9/h", 1)];
    let decisions = [asked(&[&wide, &other]), asked(&[&narrow, &other]), asked(&[&three, &other])];
    assert_eq!(admitted(&decisions), [(true, 990), (false, 0), (true, 987)]);
}

fn a_request_that_names_a_bucket_with_two_quotas_needs_room_in_both(store: &mut Stepped) {
    let [narrow, wide] = ["5/h", "1000/h"].map(|rate| charge("b", rate, 1));
    let mut both = |left: &Charge, right: &Charge| {
        let decision = store.take(START, &[left.clone(), right.clone()]);
        let seen = decision.outcomes.iter().map(|outcome| (outcome.remaining, outcome.delay_us));
        (decision.admitted, seen.collect::<Vec<_>>())
    };
    // Their costs add up.
    assert_eq!(both(&narrow, &wide), (true, vec![(3, Some(0)), (998, Some(0))]));
    assert_eq!(both(&wide, &narrow), (true, vec![(996, Some(0)), (1, Some(0))]));
    // Each tells its own delay, and nothing is charged.
    let hour = Some(3_600 * SECOND);
    for _ in 0..2 {
        assert_eq!(both(&narrow, &wide), (false, vec![(1, hour), (996, Some(0))]));
        assert_eq!(both(&wide, &narrow), (false, vec![(996, Some(0)), (1, hour)]));
    }
    assert_eq!(store.peek(START, &wide).used, 4);
}
