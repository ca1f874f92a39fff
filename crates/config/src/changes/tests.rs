use super::*;

const OLD: &str = r#"
    [upstreams.a]
    builtin = "echo"
    [upstreams.b]
    builtin = "echo"
    [limits.per-client]
    key = "ip"
    rate = "100/10s"
    [limits.per-key]
    key = "header:x-api-key"
    rate = "5/s"
    [[routes]]
    path = "/a"
    upstream = "a"
    limits = ["per-client", "per-key"]
    [[routes]]
    path = "/a"
    methods = ["GET"]
    upstream = "a"
"#;

fn changes(edits: &[(&str, &str)]) -> Vec<String> {
    let edited = edits.iter().fold(OLD.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    });
    let config = |text| Config::parse("gateway.toml", text, &|_| None).expect("a good file").0;
    config(&edited).changes(&config(OLD), [&Value::Null; 2])
}

#[test]
fn the_same_file_changes_nothing() {
    assert!(changes(&[]).is_empty());
}

#[test]
fn a_rate_changes_and_the_counts_stay() {
    assert_eq!(changes(&[("100/10s", "50/10s")]), ["limit `per-client` 100/10s → 50/10s: counts kept"]);
}

#[test]
fn a_key_changes_and_the_counts_go() {
    assert_eq!(
        changes(&[("\"ip\"", "\"ip\"\nmode = \"shadow\""), ("header:x-api-key", "global")]),
        ["limit `per-client`: `mode` changed", "limit `per-key` uses other keys: counts start over"]
    );
}

#[test]
fn an_algorithm_changes_and_the_counts_go() {
    assert_eq!(
        changes(&[("\"100/10s\"", "\"20\"\nalgorithm = \"concurrency\"\nlease = \"10s\"")]),
        [
            "limit `per-client` 100/10s → 20: counts start over",
            "limit `per-client` uses another algorithm: counts start over",
            "limit `per-client`: `lease` changed"
        ]
    );
    let by = |algorithm| format!("\"100/10s\"\nalgorithm = \"{algorithm}\"");
    let starts_over = "limit `per-client` uses another algorithm: counts start over";
    assert_eq!(changes(&[("\"100/10s\"", &by("sliding-cells"))]), [starts_over]);
    assert_eq!(
        changes(&[("\"100/10s\"", "\"100/10s\"\nrefunds = true")]),
        [
            "limit `per-client` counts in another way: counts start over",
            "limit `per-client`: `refunds` changed"
        ]
    );
    assert_eq!(changes(&[("\"5/s\"", "\"5/s\"\nscope = \"instance\"")]).len(), 1);
}

#[test]
fn changed_keys_are_named_without_credentials() {
    let keys = "\"5/s\"\ncost = 2\nwhen_status = \"4xx\"\nwait = \"1s\"\noverrides = [{ key = \"hunter2\", rate = \"9/s\" }]";
    let named = |key| format!("limit `per-key`: `{key}` changed");
    assert_eq!(changes(&[("\"5/s\"", keys)]), ["cost", "when_status", "wait", "overrides"].map(named));
}

#[test]
fn added_and_removed_entries_are_named() {
    assert_eq!(
        changes(&[
            ("upstreams.b", "upstreams.c"),
            (", \"per-key\"", ""),
            ("[limits.per-key]", "[limits.new]")
        ]),
        [
            "upstream `b` removed",
            "upstream `c` added",
            "limit `per-key` removed",
            "limit `new` added",
            "route `/a` changed"
        ]
    );
}

#[test]
fn changed_keys_of_a_route_are_named() {
    let with = |keys: &str| changes(&[("[\"per-client\", \"per-key\"]", &format!("[\"per-key\"]\n{keys}"))]);
    assert_eq!(with(""), ["route `/a` changed"], "there are two of that name");
    let named = "[[routes]]\nname = \"one\"\npath = \"/one\"\nrespond = { status = 200 }\n";
    let old = Config::parse("gateway.toml", named, &|_| None).expect("a good file").0;
    let new = "[server]\nmax_body = \"1MiB\"\n[upstreams.a]\nbuiltin = \"echo\"\n[[routes]]\nname = \"one\"\npath = \"/two\"\n\
               upstream = \"a\"\nrewrite = \"/\"\nrequest_headers = { set = { x-key = \"hunter2\" } }\n\
               preserve_host = false\non_limit = { status = 503 }\n";
    let new = Config::parse("gateway.toml", new, &|_| None).expect("a good file").0;
    let keys = ["path", "upstream", "rewrite", "request_headers", "preserve_host", "on_limit"];
    let mut expected = vec!["`server.max_body` changed".to_owned(), "upstream `a` added".to_owned()];
    expected.extend(keys.map(|key| format!("route `one`: `{key}` changed")));
    assert_eq!(new.changes(&old, [&Value::Null; 2]), expected);
}

#[test]
fn changed_keys_of_an_upstream_are_named() {
    let b = "[upstreams.b]\n    builtin = \"echo\"";
    let named = |key| format!("upstream `b`: `{key}` changed");
    assert_eq!(
        changes(&[(b, "[upstreams.b]\nservers = \"http://b\"\nbalance = \"random\"\neject = {}")]),
        ["servers", "balance", "eject"].map(named)
    );
}

#[test]
fn sample_changes_at_once_and_otlp_at_the_next_start() {
    let changes = |old: &str, new: &str| {
        let config = |tracing| Config::parse("gateway.toml", &format!("{tracing}{OLD}"), &|_| None);
        config(new).expect("a good file").0.changes(&config(old).expect("a good file").0, [&Value::Null; 2])
    };
    let (share, at_next_start) =
        ("`tracing.sample` changed", "`tracing` changed: takes effect at the next start");
    let with = |keys: &str| format!("[tracing]\n{keys}\n");
    assert_eq!(changes(&with(""), &with("sample = 0.5")), [share]);
    assert_eq!(changes(&with(""), ""), [at_next_start]);
    assert_eq!(changes("", &with("sample = 0.5")), [at_next_start]);
    let elsewhere = with("otlp = \"http://a:4317\"\nsample = 0.5");
    assert_eq!(changes(&with(""), &elsewhere), [share, at_next_start]);
}

#[test]
fn changes_that_need_a_restart_are_marked() {
    let settings =
        "[server]\nworkers = 2\nescaped_slashes = \"reject\"\n[store]\nurl = \"redis://:x@h\"\n[upstreams.a]";
    assert_eq!(
        changes(&[("[upstreams.a]", settings)]),
        [
            "`server.escaped_slashes` changed",
            "`server.workers` changed: takes effect at the next start",
            "`store.url` changed: takes effect at the next start"
        ]
    );
}

#[test]
fn a_new_password_of_the_store_needs_no_restart() {
    let changes = |old: &str, new: &str| {
        let config = |url: &str| {
            let text = format!("[store]\nurl = \"{url}\"\n{OLD}");
            Config::parse("gateway.toml", &text, &|_| None).expect("a good file").0
        };
        config(new).changes(&config(old), [&Value::Null; 2])
    };
    assert_eq!(changes("redis://:x@h", "redis://:y@h"), ["`store.url` changed"]);
    let elsewhere = changes("redis://:x@h", "redis://:y@i");
    assert_eq!(elsewhere, ["`store.url` changed: takes effect at the next start"]);
}
