//! Calendar windows begin and end where the calendar says, by the clock of the store.

use std::{cell::RefCell, slice::from_ref};

use proptest::prelude::*;
use time::{Date, Duration, Month, OffsetDateTime, UtcOffset, Weekday};
use tollgate_limiter::{
    Algorithm, Calendar, CalendarUnit, Quota, Rate,
    store::{Act, Charge, Refund, Reply},
};

use crate::store::{
    oracle::check,
    stepped::{SECOND, START, Script, Stepped, charge},
};

on_both_stores! {
    windows_end_where_the_calendar_says
    boundaries_of_the_calendar
    a_window_stays_full_if_the_clock_steps_back
    permits_come_back_in_the_same_window_only
    units_and_offsets_have_counts_of_their_own
}

const UNITS: [CalendarUnit; 5] =
    [CalendarUnit::Hour, CalendarUnit::Day, CalendarUnit::Week, CalendarUnit::Month, CalendarUnit::Year];

/// A charge of one permit out of some.
fn ask(unit: CalendarUnit, offset_minutes: i16, permits: u32) -> Charge {
    let algorithm = Algorithm::Calendar(Calendar { unit, offset_minutes });
    let quota = Quota::new(algorithm, Rate { permits, window_us: SECOND });
    Charge { quota, ..charge(&algorithm.tag(), "1/s", 1) }
}

/// The end of the window at a time, by another library.
fn end_us(unit: CalendarUnit, offset_minutes: i16, time_us: u64) -> u64 {
    let offset = UtcOffset::from_whole_seconds(i32::from(offset_minutes) * 60).unwrap();
    let utc = OffsetDateTime::from_unix_timestamp_nanos(i128::from(time_us) * 1_000).unwrap();
    let local = utc.to_offset(offset);
    let date = local.date();
    let midnight = |date: Date| date.midnight().assume_offset(offset);
    let end = match unit {
        CalendarUnit::Hour => midnight(date) + Duration::hours(i64::from(local.hour()) + 1),
        CalendarUnit::Day => midnight(date.next_day().unwrap()),
        CalendarUnit::Week => midnight(date.next_occurrence(Weekday::Monday)),
        CalendarUnit::Month => {
            let year = date.year() + i32::from(date.month() == Month::December);
            midnight(Date::from_calendar_date(year, date.month().next(), 1).unwrap())
        }
        CalendarUnit::Year => midnight(Date::from_calendar_date(date.year() + 1, Month::January, 1).unwrap()),
    };
    (end.unix_timestamp_nanos() / 1_000) as u64
}

fn windows_end_where_the_calendar_says(store: &mut Stepped) {
    // From 1972 to 2243, and often close to a boundary of all units.
    let days =
        prop_oneof![2 => 730..100_000_u64, 1 => (2..273_u64).prop_map(|years| years * 365 + (years + 1) / 4)];
    let time = (days, prop_oneof![0..86_400 * SECOND, Just(0), Just(86_400 * SECOND - 1)]);
    let store = RefCell::new(store);
    let case = (time, 0..UNITS.len(), -840..=840_i16);
    check(1_500, &case, |((day, of_day_us), unit, offset)| {
        let (store, unit) = (&mut *store.borrow_mut(), UNITS[unit]);
        store.clear();
        let time_us = day * 86_400 * SECOND + of_day_us;
        let (one, end_us) = (ask(unit, offset, 1), end_us(unit, offset, time_us));
        prop_assert!(store.take(time_us, from_ref(&one)).admitted);
        for at_us in [time_us, end_us - 1] {
            let refused = store.take(at_us, from_ref(&one)).outcomes[0];
            prop_assert_eq!((refused.delay_us, refused.grow_us), (Some(end_us - at_us), end_us - at_us));
        }
        prop_assert!(store.take(end_us, from_ref(&one)).admitted);
        Ok(())
    });
}

/// Dates that calendars get wrong, in seconds since 1970, each with the last second of its window.
fn boundaries_of_the_calendar(store: &mut Stepped) {
    use CalendarUnit::{Day, Month, Week, Year};
    for (unit, offset, at, last) in [
        // 2024-02-01 to 2024-02-29, and 2025-02-01 to 2025-02-28.
        (Month, 0, 1_706_745_600, 1_709_251_199),
        (Month, 0, 1_738_368_000, 1_740_787_199),
        // 2100 is no leap year: 2100-02-01 to 2100-02-28.
        (Month, 0, 4_105_123_200, 4_107_542_399),
        (Month, 0, 1_767_225_599, 1_767_225_599),
        (Year, 0, 1_704_067_200, 1_735_689_599),
        // In Tokyo, 2026 begins nine hours earlier.
        (Year, 540, 1_767_193_200, 1_798_729_199),
        // Sunday, 2026-01-04 is the last day of the first ISO week.
        (Week, 0, 1_767_225_600, 1_767_571_199),
        (Day, -570, 1_763_683_200, 1_763_717_399),
    ] {
        let one = ask(unit, offset, 1);
        store.clear();
        assert!(store.take(at * SECOND, from_ref(&one)).admitted, "{unit:?} {at}");
        let end_us = (last + 1) * SECOND;
        let refused = store.take(at * SECOND, from_ref(&one)).outcomes[0];
        assert_eq!(refused.delay_us, Some(end_us - at * SECOND), "{unit:?} {at}");
        assert_eq!(store.peek(end_us - 1, &one).used, 1);
        assert_eq!(store.peek(end_us, &one).used, 0);
    }
}

fn a_window_stays_full_if_the_clock_steps_back(store: &mut Stepped) {
    // A month begins: 2025-12-01.
    let (begins_us, ends_us) = (1_764_547_200 * SECOND, 1_767_225_600 * SECOND);
    let one = ask(CalendarUnit::Month, 0, 1);
    assert!(store.take(begins_us + 1, from_ref(&one)).admitted);
    for at_us in [begins_us - 1, begins_us - 3 * SECOND] {
        let refused = store.take(at_us, from_ref(&one)).outcomes[0];
        assert_eq!(refused.delay_us, Some(ends_us - at_us));
    }
    assert!(store.take(ends_us, from_ref(&one)).admitted);
}

fn permits_come_back_in_the_same_window_only(store: &mut Stepped) {
    let three = Charge { cost: 3, ..ask(CalendarUnit::Hour, 0, 5) };
    let refund = |granted_us| Act::Refund(Refund { permits: 2, granted_us: Some(granted_us) });
    assert!(store.take(START + SECOND, from_ref(&three)).admitted);
    assert_eq!(store.act(START + 2 * SECOND, &three, refund(START + SECOND)), Reply::Refunded(2));
    assert_eq!(store.peek(START + 2 * SECOND, &three).used, 1);
    let later = START + 3_600 * SECOND;
    assert!(store.take(later, from_ref(&three)).admitted);
    assert_eq!(store.act(later, &three, refund(START + SECOND)), Reply::Refunded(0));
    assert_eq!(store.peek(later, &three).used, 3);
}

fn units_and_offsets_have_counts_of_their_own(store: &mut Stepped) {
    let kinds = [
        (CalendarUnit::Hour, 0),
        (CalendarUnit::Month, 0),
        (CalendarUnit::Month, 60),
        (CalendarUnit::Month, -60),
    ];
    for (unit, offset) in kinds {
        assert!(store.take(START, &[ask(unit, offset, 1)]).admitted, "{unit:?} {offset}");
    }
    let tags =
        kinds.map(|(unit, offset_minutes)| Algorithm::Calendar(Calendar { unit, offset_minutes }).tag());
    assert_eq!(tags, ["ch", "cm", "cm+0100", "cm-0100"]);
}

/// Nothing but the server's clock says when a window ends.
#[test]
fn windows_end_by_the_clock_of_redis() {
    let mut script = Script::with_server_clock();
    for unit in UNITS {
        let one = ask(unit, 330, 1);
        let (time_us, decision) = script.take(from_ref(&one));
        assert_eq!(decision.outcomes[0].grow_us, end_us(unit, 330, time_us) - time_us, "{unit:?}");
        let bucket = Algorithm::Calendar(Calendar { unit, offset_minutes: 330 }).tag();
        let expires_ms = script.expires_ms(&bucket) as u64;
        let ends_ms = end_us(unit, 330, time_us) / 1_000;
        assert!((ends_ms..ends_ms + 1_010).contains(&expires_ms), "{unit:?}: {expires_ms} {ends_ms}");
    }
}
