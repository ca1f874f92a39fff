//! The smallest rates are minimal: they are replayed, and so are rates that are one permit lower.

use std::fmt::Write;

use proptest::{collection::vec, prelude::*, sample::select};

use super::{limited, simulate};

/// A log of requests: after so many milliseconds, by one of some clients, that took so many milliseconds.
fn log(requests: &[(u64, u8, u64)]) -> String {
    let mut at_ms = 1_795_243_500_000;
    requests.iter().fold(String::new(), |mut log, (pause_ms, client, took_ms)| {
        at_ms += pause_ms;
        let status = if took_ms % 3 == 0 { 401 } else { 200 };
        writeln!(
            log,
            "{{\"ts\":{at_ms},\"client\":\"192.0.2.{client}\",\"method\":\"GET\",\"target\":\"/\",\"duration_ms\":{took_ms},\"status\":{status}}}"
        )
        .unwrap();
        log
    })
}

const TERMS: [(&str, &str); 8] = [
    ("", "/2s"),
    ("cost = 3", "/2s"),
    ("when_status = [\"401\"]", "/2s"),
    ("algorithm = \"sliding-cells\"\ncells = 4", "/2s"),
    ("algorithm = \"fixed-window\"", "/2s"),
    ("algorithm = \"fixed-window\"\ncalendar = \"+05:30\"", "/month"),
    ("algorithm = \"concurrency\"", ""),
    ("algorithm = \"gcra\"", "/2s"),
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn the_smallest_rate_refuses_as_many_as_it_says_and_one_less_more(
        requests in vec((select(vec![0_u64, 1, 90, 400, 1_999, 2_000, 2_001]), 0..4_u8, 0..3_000_u64), 1..120),
        (terms, window) in select(TERMS.to_vec()),
    ) {
        let log = log(&requests);
        let limit = |permits: u64| {
            let toml = limited(&format!("key = \"ip\"\nrate = \"{permits}{window}\"\n{terms}"));
            simulate(&toml, &log).limits.remove(0)
        };
        // Whatever the rate is, what keys ask for is the same.
        let smallest = limit(7).smallest.unwrap();
        prop_assert_eq!(smallest.is_exact, !terms.contains("gcra"));
        let enough = limit(smallest.nobody.permits);
        prop_assert_eq!((enough.refused, enough.keys_refused), (0, 0));
        let [one, five] = [&smallest.one_percent, &smallest.five_percent].map(|rate| rate.permits);
        // With fewer than 20 keys, 5 % of them are none.
        prop_assert_eq!((one, five), (smallest.nobody.permits, smallest.nobody.permits));
        // A file doesn't take less than what a request costs.
        let least = if terms.contains("cost") { 3 } else { 1 };
        if smallest.is_exact && smallest.nobody.permits > least {
            let fewer = limit(smallest.nobody.permits - 1);
            prop_assert!(fewer.refused > 0);
        }
        // The curve says how many keys would be refused at any rate that is on it.
        if smallest.is_exact {
            for (permits, percent) in enough.curve.iter().filter(|(permits, _)| *permits >= least) {
                let limit = limit(*permits);
                let refused = 100.0 * limit.keys_refused as f64 / limit.keys as f64;
                prop_assert!((refused - percent).abs() < 0.01, "{refused} {percent} at {permits}");
            }
        }
    }
}

#[test]
fn a_share_of_the_keys_may_be_refused() {
    // Of 100 clients, the one of number n asks n + 1 times in a second.
    let requests = (0..100).flat_map(|client| (0..=client).map(move |_| (0, client, 1)));
    let report = simulate(&limited("key = \"ip\"\nrate = \"50/s\""), &log(&requests.collect::<Vec<_>>()));
    let limit = &report.limits[0];
    let smallest = limit.smallest.as_ref().unwrap();
    let rates =
        [&smallest.nobody, &smallest.one_percent, &smallest.five_percent].map(|rate| rate.rate.as_str());
    assert_eq!(rates, ["100/s", "99/s", "95/s"]);
    assert_eq!((smallest.first.rate.as_str(), smallest.above_first), ("99/s", 1));
    assert_eq!((limit.keys_refused, limit.refused, limit.use_p99_percent), (50, 50 * 51 / 2, Some(198.0)));
}

/// Keys with a rate of their own say nothing of the limit's.
#[test]
fn overrides_of_the_file_hold() {
    let terms = "key = \"ip\"\nrate = \"2/h\"\noverrides = [{ key = \"192.0.2.1\", rate = \"9/h\" }]";
    let requests: Vec<_> = (0..20).map(|at| (1, at % 2, 1)).collect();
    let limit = simulate(&limited(terms), &log(&requests)).limits.remove(0);
    assert_eq!(limit.busiest.iter().map(|busy| busy.refused).collect::<Vec<_>>(), [8, 1]);
    assert_eq!(limit.smallest.unwrap().nobody.rate, "10/h");
}
