//! Parsing of logs.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use flate2::{Compression, write::GzEncoder};

use super::{folder, get, json, limited, line, run, simulate, text};

fn packed(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn a_sliding_window_is_replayed_in_the_time_of_the_log() {
    // Faults that must not come back, number 1: refused requests don't count.
    let log: String = (0..20).map(|at| get(3 * at, "192.0.2.7")).collect();
    let report = simulate(&limited("key = \"ip\"\nrate = \"2/10s\""), &log);
    assert_eq!((report.requests.all, report.requests.admitted, report.requests.refused), (20, 10, 10));
    let limit = &report.limits[0];
    assert_eq!((limit.requests, limit.refused, limit.keys, limit.keys_refused), (20, 10, 1, 1));
    assert_eq!((limit.busiest[0].key.as_str(), limit.busiest[0].peak), ("ip=192.0.2.7", 4));
    assert_eq!(limit.use_p99_percent, Some(200.0));
    assert_eq!(limit.smallest.as_ref().unwrap().nobody.rate, "4/10s");
    assert_eq!(
        (report.from.as_deref(), report.to.as_deref()),
        (Some("2026-11-21T07:00:00Z"), Some("2026-11-21T07:00:57Z"))
    );
}

#[test]
fn packed_files_stdin_and_several_files_give_what_one_does() {
    let lines: Vec<String> = (0..600).map(|at| get(at / 3, &format!("192.0.2.{}", at % 5))).collect();
    let (first, second) = lines.split_at(250);
    // Files need not come in the order of their times.
    let folder = folder(&[
        ("gateway.toml", limited("key = \"ip\"\nrate = \"5/10s\"").as_bytes()),
        ("whole.log", lines.concat().as_bytes()),
        ("new.log", second.concat().as_bytes()),
        // Two members, as rotations that append make them.
        ("old.log.gz", &[packed(&first[..100].concat()), packed(&first[100..].concat())].concat()),
    ]);
    let whole = json(folder.path(), &["whole.log"]);
    assert_eq!(
        (&whole["requests"]["all"], whole["requests"]["refused"].as_u64() > Some(0)),
        (&600.into(), true)
    );
    assert_eq!(json(folder.path(), &["new.log", "old.log.gz"]), whole);
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["simulate", "-", "new.log", "--json"]).current_dir(&folder);
    let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    process.stdin.take().unwrap().write_all(&packed(&first.concat())).unwrap();
    let output = process.wait_with_output().unwrap();
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap(), whole);
}

#[test]
fn lines_out_of_order_are_put_in_order() {
    let mut lines: Vec<String> = (0..900).map(|at| get(at, &format!("192.0.2.{}", at % 3))).collect();
    let toml = limited("key = \"ip\"\nrate = \"2/10s\"");
    let ordered = serde_json::to_value(simulate(&toml, &lines.concat())).unwrap();
    fastrand::Rng::with_seed(7).shuffle(&mut lines);
    assert_eq!(serde_json::to_value(simulate(&toml, &lines.concat())).unwrap(), ordered);
}

#[test]
fn lines_later_than_what_is_held_count_for_the_time_that_is_reached() {
    let mut log = get(0, "192.0.2.1");
    let reached = tollgate::simulate::WAITING_MOST as u32 + 9;
    (0..reached).for_each(|_| log += &get(100, "192.0.2.2"));
    log += &get(1, "192.0.2.1");
    let report = simulate(&limited("key = \"ip\"\nrate = \"1/10s\""), &log);
    assert_eq!((report.lines.late, report.limits[0].busiest[1].refused), (1, 0));
    assert!(report.notes.iter().any(|note| note.starts_with("1 lines were too late to be put in order")));
}

/// They are held by their bytes, too: 65,536 of the longest would be four gigabytes.
#[test]
fn of_long_lines_fewer_are_held() {
    let long = line(100, "192.0.2.2", &format!("\"GET /{} HTTP/1.1\" 200 5", "x".repeat(60_000)));
    let toml = limited("key = \"ip\"\nrate = \"1/10s\"");
    let report = simulate(&toml, &(long.repeat(1_200) + &get(1, "192.0.2.1")));
    assert_eq!((report.lines.unreadable, report.lines.late), (0, 1));
}

/// What a log says is one of this gateway's keys, and can't be one, is neither kept nor shown.
#[test]
fn a_key_that_is_none_is_not_believed() {
    let toml = limited("key = \"header:x-api-key\"\nrate = \"1/h\"");
    let told = |key: &str| {
        format!(
            "{{\"time\":\"2026-11-21T07:00:00Z\",\"client\":\"192.0.2.7\",\"method\":\"GET\",\"target\":\"/\",\
             \"limits\":[{{\"limit\":\"l\",\"decision\":\"admitted\",\"key\":\"header:x-api-key={key}\"}}]}}\n"
        )
    };
    for (key, counted) in [
        ("sha256/00", "header:x-api-key=sha256/00"),
        ("\\u001b[31m", "ip=192.0.2.7"),
        ("é", "ip=192.0.2.7"),
        (&"0".repeat(5_000), "ip=192.0.2.7"),
    ] {
        assert_eq!(simulate(&toml, &told(key)).limits[0].busiest[0].key, counted);
    }
}

#[test]
fn lines_that_are_no_requests_are_counted_and_the_first_are_named() {
    let log = [
        get(0, "192.0.2.7"),
        "\n".to_owned(),
        get(1, "example.com"),
        line(2, "192.0.2.7", "\"\\x16\\x03\\x01\" 400 0 \"-\" \"-\""),
        line(3, "192.0.2.7", "\"-\" 408 0 \"-\" \"-\""),
        "192.0.2.7 - - [21/Foo/2026:07:00:00 +0000] \"GET / HTTP/1.1\" 200 5\n".to_owned(),
        "{\"client\": \"192.0.2.7\"}\n{]\n".to_owned(),
        "x".repeat(200_000) + "\n",
        get(9, "192.0.2.7"),
    ]
    .concat();
    let folder = folder(&[
        ("gateway.toml", limited("key = \"ip\"\nrate = \"1/s\"").as_bytes()),
        ("a.log", log.as_bytes()),
    ]);
    let output = run(folder.path(), &["a.log"]);
    assert!(output.status.success());
    let told = text(&output.stdout);
    assert!(
        told.starts_with("2 requests from 2026-11-21T07:00:00Z to 2026-11-21T07:00:09Z\n2 admitted\n"),
        "{told}"
    );
    let named = "8 of 10 lines can't be parsed:\n  a.log:2: empty line\n  a.log:3: invalid client address\n  \
                 a.log:4: no request\n  a.log:5: no request\n  a.log:6: invalid time\n";
    assert!(told.contains(named), "{told}");
}

#[test]
fn known_forms_are_read_alike() {
    let expected = |line: &str| {
        let toml = limited("key = [\"ip\", \"method\", \"host\", \"path:p\"]\nrate = \"9/s\"")
            .replace("/{*rest}", "/{p}");
        let report = simulate(&toml, line);
        assert_eq!(report.lines.unreadable, 0, "{line}: {:?}", report.lines.named);
        assert_eq!(
            report.limits[0].busiest[0].key,
            "12:ip=192.0.2.7,11:method=POST,21:host=shop.example.com,12:path:p=a%20b",
            "{line}"
        );
        assert_eq!(report.from.as_deref(), Some("2026-11-21T06:45:12Z"), "{line}");
    };
    for line in [
        // vhost_combined
        r#"shop.example.com:443 192.0.2.7 - "a b" [21/Nov/2026:07:45:12 +0100] "POST /a%20b?c HTTP/1.1" 201 5 "-" "-""#,
        r#"shop.example.com 192.0.2.7 - - [21/Nov/2026:04:45:12 -0200] "POST http://shop.example.com/a%20b HTTP/1.1" 201 -"#,
        // This gateway's, with a host.
        r#"{"time":"2026-11-21T06:45:12.345Z","client":"192.0.2.7","method":"POST","target":"/a%20b","status":200,"duration_ms":12.5,"host":"shop.example.com"}"#,
        // nginx
        r#"{"time_local":"21/Nov/2026:06:45:12 +0000","remote_addr":"192.0.2.7","request":"POST /a%20b?x HTTP/1.1","http_host":"shop.example.com","status":"200"}"#,
        r#"{"msec":"1795243514.100","request_time":"2.000","remote_addr":"192.0.2.7","request_method":"POST","uri":"/changed","request_uri":"/a%20b","host":"shop.example.com"}"#,
        r#"{"time_iso8601":"2026-11-21T07:45:12+01:00","remote_addr":"::ffff:192.0.2.7","request_method":"POST","uri":"/a%20b","args":"x=1","host":"shop.example.com"}"#,
        // Caddy
        r#"{"level":"info","ts":1795243513.5,"request":{"remote_ip":"10.0.0.1","client_ip":"192.0.2.7","method":"POST","host":"shop.example.com","uri":"/a%20b","headers":{"User-Agent":["x"]}},"duration":1.25,"status":200}"#,
        // Traefik
        r#"{"ClientHost":"192.0.2.7","RequestMethod":"POST","RequestPath":"/a%20b","RequestHost":"shop.example.com","DownstreamStatus":200,"Duration":1500000000,"time":"2026-11-21T06:45:14Z"}"#,
    ] {
        expected(line);
    }
}

#[test]
fn keys_of_headers_are_those_that_the_log_has() {
    let toml = limited("key = \"header:x-api-key\"\nrate = \"9/s\"\nplain = true\nmissing = \"skip\"");
    let nginx = |key: &str| {
        format!(
            "{{\"time\":\"2026-11-21T07:00:00Z\",\"client\":\"192.0.2.7\",\"method\":\"GET\",\"target\":\"/\",\"http_x_api_key\":\"{key}\"}}\n"
        )
    };
    let caddy = "{\"ts\":1795243513,\"request\":{\"client_ip\":\"192.0.2.7\",\"method\":\"GET\",\"uri\":\"/\",\"headers\":{\"X-Api-Key\":[\"tin\"]}}}\n";
    let log = [nginx("gold"), nginx("gold"), nginx("-"), nginx(""), caddy.to_owned()].concat();
    let limit = &simulate(&toml, &log).limits[0];
    let keys: Vec<_> = limit.busiest.iter().map(|busy| (busy.key.as_str(), busy.requests)).collect();
    assert_eq!(keys, [("header:x-api-key=gold", 2), ("header:x-api-key=tin", 1)]);
    assert_eq!((limit.skipped, limit.judged), (2, true));
    // What a combined log has.
    let agents =
        simulate(&limited("key = \"header:user-agent\"\nrate = \"9/s\"\nplain = true"), &get(0, "::1"));
    assert_eq!(agents.limits[0].busiest[0].key, "header:user-agent=curl%2F8");
}

#[test]
fn what_the_log_does_not_tell_is_said() {
    let log: String = (0..9).map(|at| get(at, "192.0.2.7")).collect();
    for (terms, note) in [
        (
            "key = \"header:x-api-key\"\nrate = \"1/h\"",
            "the log lacks `header:x-api-key` for 9 of 9 requests, which were counted by address; so the limit can't be judged",
        ),
        (
            "key = \"cookie:sid\"\nrate = \"1/h\"\nmissing = \"deny\"",
            "the log lacks `cookie:sid` for 9 of 9 requests, which weren't counted; so the limit can't be judged",
        ),
        (
            "key = \"host\"\nrate = \"1/h\"\nmissing = \"skip\"",
            "the log lacks `host` for 9 of 9 requests, which weren't counted",
        ),
        (
            "key = \"global\"\nrate = \"1\"\nalgorithm = \"concurrency\"",
            "the log lacks the duration of 9 of 9 requests, which weren't counted",
        ),
        (
            "key = \"ip\"\nrate = \"9/h\"\ncost = \"header:x-cost\"",
            "the log lacks the cost of 9 of 9 requests",
        ),
    ] {
        let report = simulate(&limited(terms), &log);
        assert!(report.notes.iter().any(|told| told.contains(note)), "{:?}", report.notes);
    }
    let by_claims = format!(
        "{}[[routes]]\npath = \"/a\"\nclaims = {{ plan = \"pro\" }}\nrespond = {{}}\n[jwt]\nhmac_secret = \"{}\"\n",
        limited("key = \"ip\"\nrate = \"1/h\""),
        "s".repeat(32)
    );
    let report = simulate(&by_claims, &log);
    assert_eq!(report.notes.len(), 1, "{:?}", report.notes);
    assert!(report.notes[0].starts_with("some routes match claims of tokens, which no log has: 9 requests"));
    let by_host =
        limited("key = \"ip\"\nrate = \"1/h\"").replace("path =", "host = \"a.example.com\"\npath =");
    let report = simulate(&by_host, &log);
    assert_eq!((report.requests.unrouted, report.notes.len()), (9, 1));
    let folder = folder(&[("gateway.toml", by_host.as_bytes()), ("a.log", log.as_bytes())]);
    let told = json(folder.path(), &["a.log", "--host", "a.example.com"]);
    assert_eq!((&told["requests"]["refused"], &told["notes"]), (&8.into(), &serde_json::json!([])));
}

#[test]
fn answers_settle_what_they_cost_and_requests_end() {
    let logins = limited("key = \"ip\"\nrate = \"2/h\"\nwhen_status = [\"401\"]");
    let attempt = |second, status| {
        line(second, "192.0.2.7", &format!("\"POST /login HTTP/1.1\" {status} 5 \"-\" \"-\""))
    };
    let log = [attempt(0, 200), attempt(1, 401), attempt(2, 200), attempt(3, 401), attempt(4, 200)].concat();
    let report = simulate(&logins, &log);
    assert_eq!(
        (report.requests.refused, report.limits[0].smallest.as_ref().unwrap().nobody.rate.as_str()),
        (1, "3/h")
    );

    let tokens =
        limited("key = \"ip\"\nrate = \"100/h\"\ncost = { response_header = \"x-tokens\", estimate = 10 }");
    let asked = |second: u32, tokens| {
        format!(
            "{{\"time\":\"2026-11-21T07:00:{second:02}Z\",\"client\":\"192.0.2.7\",\"method\":\"GET\",\"target\":\"/\",\"sent_http_x_tokens\":\"{tokens}\"}}\n"
        )
    };
    let report = simulate(&tokens, &[asked(0, "60"), asked(1, "5"), asked(2, "40"), asked(3, "1")].concat());
    assert_eq!((report.requests.refused, report.limits[0].busiest[0].peak), (1, 120));

    let running = limited("key = \"global\"\nrate = \"2\"\nalgorithm = \"concurrency\"\nlease = \"1s\"");
    // nginx writes when a request has ended, and how long it took.
    let took = |second, took: &str| {
        line(second, "192.0.2.7", &format!("\"GET / HTTP/1.1\" 200 5 \"-\" \"-\" {took}"))
    };
    let log = [took(10, "10.000"), took(12, "8.500"), took(13, "1.000"), took(60, "rt=55.000")].concat();
    let report = simulate(&running, &log);
    let limit = &report.limits[0];
    assert_eq!(
        (limit.refused, limit.busiest[0].peak, limit.smallest.as_ref().unwrap().nobody.rate.as_str()),
        (1, 3, "3")
    );
}

#[test]
fn a_comparison_tells_who_would_be_treated_otherwise() {
    let log: String = (0..8).map(|at| get(at, "192.0.2.1") + &get(at, "192.0.2.2")).collect();
    let toml =
        |rate: &str, exempt: &str| limited(&format!("key = \"ip\"\nrate = \"{rate}\"\nexempt = [{exempt}]"));
    let folder = folder(&[
        ("new.toml", toml("2/h", "\"192.0.2.2\"").as_bytes()),
        ("old.toml", toml("5/h", "").as_bytes()),
        ("a.log", log.as_bytes()),
    ]);
    let told =
        json(folder.path(), &["a.log", "--config", "new.toml", "--against", "old.toml"])["against"].clone();
    let expected = serde_json::json!({
        "newly_refused": 3,
        "newly_admitted": 3,
        "refused_by": [{ "limit": "l", "requests": 3, "keys": [["ip=192.0.2.1", 3]] }],
        "admitted_by": [{ "limit": "l", "requests": 3, "keys": [["ip=192.0.2.2", 3]] }],
    });
    assert_eq!(told, expected);
    let output =
        run(folder.path(), &["a.log", "--config", "new.toml", "--against", "old.toml", "--report", "r.html"]);
    assert!(text(&output.stdout).contains("changes from the file of --against: 3 newly refused, 3 newly admitted\n  refused now by l: 3\n    ip=192.0.2.1  3\n"));
    assert!(
        std::fs::read_to_string(folder.path().join("r.html"))
            .unwrap()
            .contains("3 requests are newly refused, 3 newly admitted")
    );
}

#[test]
fn the_page_asks_for_nothing_and_shows_hostile_text_as_text() {
    let hostile = "\\x22><script>alert(1)</script><img src=x onerror=alert(1)>";
    let agent = format!("\"GET /<script>/{hostile} HTTP/1.1\" 200 5 \"{hostile}\" \"{hostile}\"");
    let mut log: String = (0..5)
        .map(|at| {
            line(
                at,
                "192.0.2.7",
                &agent.replace("GET /<script>/", "GET /a?").replace(&format!("?{hostile}"), ""),
            )
        })
        .collect();
    log += &line(9, "<script>alert(2)</script>", &agent);
    let name = "<img src=x onerror=alert(3)>.log";
    let toml = limited("key = \"header:user-agent\"\nrate = \"2/h\"\nplain = true");
    let folder = folder(&[("gateway.toml", toml.as_bytes()), (name, log.as_bytes())]);
    let output = run(folder.path(), &[name, "--report", "r.html"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let page = std::fs::read_to_string(folder.path().join("r.html")).unwrap();
    assert!(
        page.contains("3 of 5 requests refused") && page.contains("<svg ") && page.contains("&lt;img src=x"),
        "{page}"
    );
    for bad in ["<script", "<img", "onerror=alert(1)>", "http://", "https://", "url(", "@import", "src=\""] {
        assert!(!page.contains(bad), "{bad}");
    }
}

#[test]
fn what_cannot_be_read_or_written_ends_with_a_complaint() {
    let good = limited("key = \"ip\"\nrate = \"2/h\"");
    let folder = folder(&[
        ("gateway.toml", good.as_bytes()),
        ("bad.toml", b"[limit]\n"),
        ("a.log", get(0, "::1").as_bytes()),
        ("cut.gz", &packed(&get(0, "::1"))[..30]),
    ]);
    for (words, status, complaint) in [
        (&["none.log"][..], 1, "can't read `none.log`: No such file"),
        (&["cut.gz"], 1, "can't read `cut.gz`: "),
        (&["."], 1, "can't read `.`: "),
        (&["a.log", "--report", "no/r.html"], 1, "can't write `no/r.html`: "),
        (&["a.log", "--config", "bad.toml"], 2, "`limit`"),
        (&["a.log", "--against", "bad.toml"], 2, "`limit`"),
        (&[], 2, "LOG"),
        (&["a.log", "--host", "a\nb"], 2, "--host"),
    ] {
        let output = run(folder.path(), words);
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{words:?}: {told}");
        assert!(told.contains(complaint) && output.stdout.is_empty(), "{words:?}: {told}");
    }
    let empty = run(folder.path(), &["/dev/null"]);
    assert!(empty.status.success() && text(&empty.stdout).starts_with("0 requests from - to -\n"));
}

#[test]
fn keys_that_servers_may_read_are_counted_as_the_gateway_counts_them() {
    let toml = limited("key = \"query:k\"\nrate = \"1/h\"\nplain = true\nexempt = [\"partner\"]");
    let asks =
        |query: &str| line(0, "192.0.2.7", &format!("\"GET /?{query} HTTP/1.1\" 200 5 \"-\" \"curl/8\""));
    let log = ["k=v", "k=r&K=v", "k=w;k=v", "k=r&K=partner", "k=partner"].map(asks).concat();
    let limit = &simulate(&toml, &log).limits[0];
    // Each is refused once, and one is exempt.
    assert_eq!((limit.refused, limit.exempt), (2, 1));
    let mut keys: Vec<_> = limit.busiest.iter().map(|busy| (busy.key.as_str(), busy.requests)).collect();
    keys.sort_unstable();
    assert_eq!(keys, [("query:k=r", 2), ("query:k=v", 3), ("query:k=w", 1), ("query:k=w%3Bk%3Dv", 1)]);
}

#[test]
fn input_that_is_not_a_log_fails_even_beside_a_log() {
    let log = "192.0.2.1 - - [10/Oct/2024:13:55:36 +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"-\"\n";
    let toml = limited("key = \"ip\"\nrate = \"5/s\"");
    let folder = folder(&[
        ("gateway.toml", toml.as_bytes()),
        ("log", log.as_bytes()),
        ("mixed", format!("{log}nonsense\n").as_bytes()),
        ("empty", b""),
    ]);
    for (words, status) in [
        (&["gateway.toml"][..], 1),
        (&["log", "gateway.toml"], 1),
        (&["none"], 1),
        (&["log"], 0),
        (&["log", "empty"], 0),
        (&["mixed"], 0),
        (&[], 2),
        (&["log", "--config", "log"], 2),
    ] {
        let output = run(folder.path(), words);
        assert_eq!(output.status.code(), Some(status), "{words:?}: {output:?}");
    }
    let told = run(folder.path(), &["gateway.toml"]);
    let told = text(&told.stderr);
    assert!(
        told.contains("`gateway.toml` is not an access log: none of its ") && told.contains("line 1: "),
        "{told}"
    );
}
