//! A simulation counts as the gateway does, and says what no log tells.

use super::{limited, simulate};

/// Returns a line in JSON with these further fields.
fn json_line(second: u32, target: &str, more: &str) -> String {
    format!(
        "{{\"time\":\"2026-11-21T07:00:{second:02}Z\",\"client\":\"192.0.2.7\",\"method\":\"GET\",\"target\":\"{target}\"{more}}}\n"
    )
}

/// What a response has not used of the estimate comes back, for the count and for the demand, when the response has ended.
#[test]
fn refunds_are_replayed() {
    let estimated =
        "key = \"ip\"\nrate = \"100/h\"\ncost = { response_header = \"x-tokens\", estimate = 50 }";
    let used = |second, tokens| json_line(second, "/", &format!(",\"sent_http_x_tokens\":\"{tokens}\""));
    let log: String = (0..5).map(|at| used(at, 10)).chain([used(5, 0), used(6, 10), used(7, 10)]).collect();
    for algorithm in ["sliding-window", "sliding-cells", "fixed-window", "gcra"] {
        let terms = format!("{estimated}\nrefunds = true\nalgorithm = \"{algorithm}\"");
        let report = simulate(&limited(&terms), &log);
        assert_eq!((report.requests.refused, report.limits[0].busiest[0].peak), (1, 110), "{algorithm}");
    }
    let report = simulate(&limited(estimated), &log);
    assert_eq!((report.requests.refused, report.limits[0].busiest[0].peak), (6, 400));

    let slow = |second, took| {
        json_line(second, "/", &format!(",\"sent_http_x_tokens\":\"10\",\"duration_ms\":{took}"))
    };
    let log = [slow(0, 10_000), slow(1, 10_000), slow(2, 0), slow(30, 0)].concat();
    let report = simulate(&limited(&format!("{estimated}\nrefunds = true")), &log);
    assert_eq!((report.requests.refused, report.limits[0].busiest[0].peak), (1, 150));
}
