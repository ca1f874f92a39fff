//! A simulation counts as the gateway does, and says what no log tells.

use super::{get, limited, line, simulate};

/// Returns a line in JSON with these further fields.
fn json_line(second: u32, target: &str, more: &str) -> String {
    format!(
        "{{\"time\":\"2026-11-21T07:00:{second:02}Z\",\"client\":\"192.0.2.7\",\"method\":\"GET\",\"target\":\"{target}\"{more}}}\n"
    )
}

/// The part of an estimate that a response has not used comes back when it has ended, for the count and for the demand.
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

/// A route's own cost counts also if the key comes from the gateway's log.
#[test]
fn the_cost_of_a_route_holds_for_keys_of_the_log() {
    let toml = limited("key = \"header:x-api-key\"\nrate = \"10/h\"")
        .replace("limits = [\"l\"]", "limits = [{ name = \"l\", cost = 5 }]");
    let key =
        ",\"limits\":[{\"limit\":\"l\",\"decision\":\"admitted\",\"key\":\"header:x-api-key=sha256/1f\"}]";
    let log: String = (0..3).map(|at| json_line(at, "/", key)).collect();
    let report = simulate(&toml, &log);
    assert_eq!((report.requests.refused, report.limits[0].busiest[0].peak), (1, 15));
}

/// A limit that refuses requests without a key doesn't hide them from the others, which are judged alone.
#[test]
fn what_one_limit_denies_is_demand_of_the_others() {
    let toml = limited("key = \"header:x-api-key\"\nrate = \"1/h\"\nmissing = \"deny\"")
        .replace("limits = [\"l\"]", "limits = [\"l\", \"z\"]");
    let toml = format!("{toml}[limits.z]\nkey = \"ip\"\nrate = \"1/h\"\n");
    let log: String = (0..3).map(|at| json_line(at, "/", ",\"headers\":{}")).collect();
    let report = simulate(&toml, &log);
    let [denying, other] = &report.limits[..] else { panic!("{:?}", report.limits) };
    assert_eq!((report.requests.refused, denying.refused, other.refused), (3, 3, 0));
    assert_eq!((other.requests, other.busiest[0].peak), (3, 3));
}

/// The gateway answers health checks and `OPTIONS *` itself, before any limit.
#[test]
fn what_the_gateway_answers_itself_is_not_counted() {
    let toml = format!("[server]\nhealth = \"/-/ready\"\n{}", limited("key = \"ip\"\nrate = \"1/h\""));
    let of = |line_of: &str| line(0, "192.0.2.7", &format!("\"{line_of} HTTP/1.1\" 200 5 \"-\" \"-\""));
    let log = [of("GET /-/ready"), of("HEAD /-/ready?a"), of("OPTIONS *"), of("POST /-/ready")].concat();
    let report = simulate(&toml, &log);
    assert_eq!((report.requests.admitted, report.requests.rejected), (4, 0));
    assert_eq!(report.limits[0].requests, 1);
}

#[test]
fn reports_rates_and_query_values_that_no_log_has_are_noted() {
    let log: String = (0..4).map(|at| get(at, "192.0.2.7")).collect();
    let report = simulate(&limited("key = \"ip\"\nrate = \"1/h\"\nusage = \"reported\""), &log);
    assert_eq!((report.requests.refused, report.limits[0].judged), (0, false));
    let note = "limit `l`: no log has the usage that is reported for 4 of 4 requests, which weren't counted";
    assert_eq!(report.notes, [note]);

    let stated = "key = \"ip\"\nrate = \"9/h\"\nrate_from = \"header:x-quota\"\nmax = 100";
    let report = simulate(&limited(stated), &log);
    let note =
        "limit `l`: the log lacks `header:x-quota` for 4 of 4 requests, which were held to the file's rate";
    assert_eq!(report.notes, [note]);
    let logged = (0..4).map(|at| json_line(at, "/", ",\"http_x_quota\":\"2\"")).collect::<String>();
    let report = simulate(&limited(stated), &logged);
    assert_eq!((report.requests.refused, report.notes.len()), (2, 0));

    let toml = limited("key = \"ip\"\nrate = \"9/h\"");
    let toml = format!("{toml}[[routes]]\npath = \"/a\"\nquery = {{ preview = \"1\" }}\nrespond = {{}}\n");
    // This gateway's log masks the values of queries.
    let log =
        [json_line(0, "/a?preview=*", ""), json_line(1, "/a?preview=1", ""), json_line(2, "/a", "")].concat();
    let report = simulate(&toml, &log);
    assert_eq!((report.limits[0].requests, report.notes.len()), (2, 1), "{:?}", report.notes);
    assert!(report.notes[0].contains("query values that the log lacks for 1 request:"), "{:?}", report.notes);
}

/// The gateway's log tells that a request had no key. The file that is simulated says what that means.
#[test]
fn requests_without_a_key_in_the_gateways_log_have_none() {
    let decided = |decision: &str| {
        let limits =
            format!(",\"limits\":[{{\"limit\":\"l\",\"decision\":\"{decision}\",\"origin\":\"terms\"}}]");
        (0..3).map(|at| json_line(at, "/", &limits)).collect::<String>()
    };
    for decision in ["refused", "skipped"] {
        for (missing, refused, skipped) in [("deny", 3, 0), ("skip", 0, 3), ("ip", 2, 0)] {
            let terms = format!("key = \"cookie:sid\"\nrate = \"1/h\"\nmissing = \"{missing}\"");
            let report = simulate(&limited(&terms), &decided(decision));
            let limit = &report.limits[0];
            assert_eq!((limit.refused, limit.skipped), (refused, skipped), "{decision}, {missing}");
            assert_eq!((report.requests.refused, &report.notes[..]), (refused, &[][..]), "{missing}");
        }
    }
}

/// Caddy hides credentials. Clients whose key is hidden aren't one client, nor clients without a key.
#[test]
fn a_hidden_header_is_unknown() {
    let headers = ",\"headers\":{\"Authorization\":[\"REDACTED\"],\"Cookie\":[\"REDACTED\"]}";
    let log: String = (0..4).map(|at| json_line(at, "/", headers)).collect();
    for key in ["header:authorization", "cookie:sid"] {
        let report =
            simulate(&limited(&format!("key = \"{key}\"\nrate = \"1/h\"\nmissing = \"skip\"")), &log);
        assert_eq!((report.requests.refused, report.limits[0].judged), (0, false));
        let note = format!(
            "limit `l`: the log lacks `{key}` for 4 of 4 requests, which weren't counted; so the limit can't be judged"
        );
        assert_eq!(report.notes, [note]);
    }
}

/// A time so late that it can't be written is none. It made the report panic.
#[test]
fn a_time_far_in_the_future_is_invalid() {
    let late = "192.0.2.7 - - [31/Dec/9999:23:59:59 -0500] \"GET / HTTP/1.1\" 200 5\n";
    let later = json_line(0, "/", "").replace("2026-11-21T07:00:00Z", "9999-12-31T23:59:59-05:00");
    let log = [&get(0, "::1"), late, &later, &late.replace("9999", "5137")].concat();
    let report = simulate(&limited("key = \"ip\"\nrate = \"9/h\""), &log);
    assert_eq!((report.lines.unreadable, report.to.as_deref()), (2, Some("5138-01-01T04:59:59Z")));
    assert!(report.page().contains("<svg"));
}
