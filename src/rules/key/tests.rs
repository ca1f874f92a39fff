//! Keys of requests, and keys as operators write them.

use std::sync::Arc;

use super::*;

fn limit(toml: &str) -> Arc<config::LimitSettings> {
    let text = format!(
        "[upstreams.u]\nbuiltin = \"echo\"\n[limits.l]\nrate = \"1/s\"\n{toml}\n[[routes]]\npath = \"/{{id}}/{{name}}\"\nupstream = \"u\"\nlimits = [\"l\"]"
    );
    let (mut config, _) = config::Config::parse("test.toml", &text, &|_| None).unwrap();
    config.limits.remove("l").unwrap()
}

fn counted(toml: &str, headers: &[(&'static str, &str)], query: &str, client: &str) -> Counted {
    let map = headers
        .iter()
        .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap()));
    let headers = &map.collect();
    count(
        &limit(toml),
        &Subject {
            client: client.parse().unwrap(),
            method: &Method::GET,
            host: "api.example.com",
            query,
            queries_in_path: &[],
            headers,
            peer_is_trusted: false,
            claims: &Claims::new(None, headers),
            route: "orders",
            parameter: &|name| match name {
                "id" => Some("a%2Fb c"),
                "name" => Some("a+b%2b"),
                _ => None,
            },
        },
    )
}

fn key(toml: &str, headers: &[(&'static str, &str)], query: &str) -> String {
    only(counted(toml, headers, query, "192.0.2.7")).key
}

/// The only key of a request.
fn only(counted: Counted) -> CountedKey {
    match counted {
        Counted::For(mut keys) if keys.len() == 1 => keys.remove(0),
        other => panic!("{other:?}"),
    }
}

/// The keys of a request, with the rates of their own.
fn keys(toml: &str, headers: &[(&'static str, &str)], query: &str) -> Vec<String> {
    let text = |CountedKey { key, rate, .. }| match rate {
        Some(rate) => format!("{key} {rate}"),
        None => key,
    };
    match counted(toml, headers, query, "192.0.2.7") {
        Counted::For(keys) => keys.into_iter().map(text).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_kind_of_key_has_its_text() {
    for (toml, expected) in [
        ("key = \"ip\"", "ip=192.0.2.7"),
        ("key = \"host\"", "host=api.example.com"),
        ("key = \"method\"", "method=GET"),
        ("key = \"route\"", "route=orders"),
        ("key = \"global\"", "global="),
        ("key = \"path:id\"", "path:id=a%2Fb%20c"),
        ("key = \"query:k\"\nplain = true", "query:k=v%26%20w"),
        ("key = \"header:x-key\"\nplain = true", "header:x-key=A1"),
        ("key = \"cookie:sid\"\nplain = true", "cookie:sid=s%3D1"),
        ("key = [\"method\", \"ip\"]", "10:method=GET,12:ip=192.0.2.7"),
        ("key = [\"ip\"]\nipv4_prefix = 24", "ip=192.0.2.0"),
        ("key = [\"ip\"]\nipv4_prefix = 1", "ip=128.0.0.0"),
    ] {
        let headers = [("x-key", "A1"), ("cookie", "a=b; sid =s=1")];
        assert_eq!(key(toml, &headers, "x=1&%6B=v%26%20w"), expected, "{toml}");
    }
}

#[test]
fn methods_that_clients_invent_are_counted_together() {
    for (sent, counted) in [("GET", "GET"), ("PATCH", "PATCH"), ("PROPFIND", "other"), ("FOO1", "other")] {
        assert_eq!(KeyPart::method_value(&sent.parse().unwrap()), counted);
    }
}

#[test]
fn keys_that_a_program_makes_are_those_of_the_file() {
    let (name, value) = (HeaderName::from_static("x-key"), "test".parse().unwrap());
    let by_header = key("key = \"header:x-key\"", &[("x-key", "test")], "");
    assert_eq!(Key::header(&name, &value).as_str(), by_header);
    assert_eq!(Key::global().as_str(), key("key = \"global\"", &[], ""));
    assert_eq!(Key::address("192.0.2.7".parse().unwrap()).as_str(), key("key = \"ip\"", &[], ""));
    assert_eq!(Key::address("::ffff:192.0.2.7".parse().unwrap()).as_str(), "ip=192.0.2.7");
    assert_eq!(Key::address("2001:db8:1:2:3::4".parse().unwrap()).as_str(), "ip=2001:db8:1:2::");
}

#[test]
fn what_may_be_a_secret_is_hashed() {
    let hashed = "header:x-key=sha256/9f86d081884c7d659a2feaa0c55ad015";
    assert_eq!(key("key = \"header:x-key\"", &[("x-key", "test")], ""), hashed);
    let long = "v".repeat(65);
    let text = key("key = \"header:x-key\"\nplain = true", &[("x-key", &long)], "");
    assert!(text.starts_with("header:x-key=sha256/") && text.len() == 20 + 32, "{text}");
    // A value that looks like a hash is not taken for one.
    let text = key("key = \"header:x-key\"\nplain = true", &[("x-key", "sha256/00")], "");
    assert_eq!(text, "header:x-key=sha256%2F00");
}

#[test]
fn a_request_without_the_key_is_counted_by_address_skipped_or_denied() {
    let by = |missing| format!("key = \"header:x-key\"\nplain = true\nmissing = \"{missing}\"");
    assert_eq!(key(&by("ip"), &[], ""), "ip=192.0.2.7");
    assert_eq!(key(&by("ip"), &[("x-key", "192.0.2.7")], ""), "header:x-key=192.0.2.7");
    assert_eq!(counted(&by("skip"), &[], "", "::1"), Counted::Skipped);
    assert_eq!(counted(&by("deny"), &[], "", "::1"), Counted::Denied);
}

#[test]
fn addresses_are_counted_by_network() {
    let key = |client| only(counted("key = \"ip\"", &[], "", client)).key;
    assert_eq!(key("2001:db8:1:2:3:4:5:6"), "ip=2001:db8:1:2::");
    assert_eq!(key("2001:db8:1:2:ffff::"), "ip=2001:db8:1:2::");
    assert_eq!(key("192.0.2.255"), "ip=192.0.2.255");
}

#[test]
fn each_value_that_servers_may_read_is_counted() {
    let by_key = "key = \"query:k\"\nplain = true";
    assert_eq!(keys(by_key, &[], "k=1&k=2"), ["query:k=1", "query:k=2"]);
    assert_eq!(keys(by_key, &[], "k=1&%6b=1"), ["query:k=1"]);
    assert_eq!(keys(by_key, &[], "K=1"), ["ip=192.0.2.7", "query:k=1"]);
    let many = "k=1&k=2&k=3&k=4&k=5";
    assert_eq!(counted(by_key, &[], many, "::1"), Counted::Ambiguous("query:k".into()));
    let utf_7 = [("content-type", "text/plain; charset=utf-7")];
    for query in ["k=+AGE-", "+AGs-=a", "k=a"] {
        assert_eq!(counted(by_key, &utf_7, query, "::1"), Counted::Ambiguous("query:k".into()), "{query}");
    }
    assert_eq!(keys(by_key, &utf_7, ""), ["ip=192.0.2.7"]);
    assert_eq!(keys(by_key, &[("content-type", "text/plain; charset=latin1")], "k=a"), ["query:k=a"]);
    let by_name = "key = \"path:name\"\nplain = true";
    assert_eq!(keys(by_name, &[], ""), ["path:name=a%2Bb%2B", "path:name=a%20b%2B"]);
    let cookies = [("cookie", "sid=1; b=2; sid=2")];
    let by_cookie = "key = \"cookie:sid\"\nplain = true";
    // A server may join them with a comma.
    let lines = [("cookie", "sid=1"), ("cookie", "2")];
    assert_eq!(counted(by_cookie, &lines, "", "::1"), Counted::Ambiguous("cookie:sid".into()));
    assert_eq!(keys(by_cookie, &cookies, ""), ["cookie:sid=1", "cookie:sid=2"]);
    let by_credentials = "key = \"header:authorization\"\nplain = true";
    assert_eq!(
        keys(by_credentials, &[("authorization", "bearer k1")], ""),
        ["header:authorization=Bearer%20k1"]
    );
    let lines = [("x-key", "1"), ("x-key", "2")];
    assert_eq!(
        counted("key = \"header:x-key\"", &lines, "", "::1"),
        Counted::Ambiguous("header:x-key".into())
    );
    let both = "key = [\"query:k\", \"cookie:sid\"]\nplain = true";
    assert_eq!(
        keys(both, &cookies, "k=1&k=2"),
        [
            "9:query:k=1,12:cookie:sid=1",
            "9:query:k=2,12:cookie:sid=1",
            "9:query:k=1,12:cookie:sid=2",
            "9:query:k=2,12:cookie:sid=2"
        ]
    );
    assert_eq!(counted(both, &cookies, "k=1&k=2&k=3", "::1"), Counted::Ambiguous("cookie:sid".into()));
}

#[test]
fn an_unusual_spelling_is_no_way_to_be_exempt_skipped_or_to_have_another_rate() {
    let by = |rest| format!("key = \"query:k\"\nplain = true\n{rest}");
    let exempt = by("exempt = [\"partner\", \"friend\"]");
    assert_eq!(keys(&exempt, &[], "k=r&K=partner"), ["query:k=r"]);
    assert_eq!(keys(&exempt, &[], "K=partner"), ["ip=192.0.2.7"]);
    assert_eq!(counted(&exempt, &[], "k=partner&K=friend", "::1"), Counted::Exempt { entry: 0 });
    assert_eq!(keys(&by("missing = \"skip\""), &[], "K=1"), ["query:k=1"]);
    assert_eq!(counted(&by("missing = \"deny\""), &[], "K=1", "::1"), Counted::Denied);
    let overrides = by("overrides = [{ key = \"gold\", rate = \"9/s\" }]");
    assert_eq!(keys(&overrides, &[], "k=r&k=gold"), ["query:k=r", "query:k=gold 9/s"]);
    let gold = "key = \"header:authorization\"\nplain = true\noverrides = [{ key = \"bearer  gold\", rate = \"9/s\" }]";
    for sent in ["Bearer gold", "BEARER gold", "bearer\tgold"] {
        assert_eq!(keys(gold, &[("authorization", sent)], ""), ["header:authorization=Bearer%20gold 9/s"]);
    }
}

#[test]
fn networks_and_keys_are_exempt() {
    let by = |exempt| format!("key = \"header:x-key\"\nexempt = [{exempt}]");
    let partner = [("x-key", "partner")];
    assert_eq!(counted(&by("\"192.0.2.0/24\""), &partner, "", "192.0.2.7"), Counted::Exempt { entry: 0 });
    assert_ne!(counted(&by("\"192.0.2.0/24\""), &partner, "", "192.0.3.7"), Counted::Exempt { entry: 0 });
    assert_eq!(counted(&by("\"partner\""), &partner, "", "::1"), Counted::Exempt { entry: 0 });
    assert_ne!(counted(&by("\"partners\""), &partner, "", "::1"), Counted::Exempt { entry: 0 });
    let composite = "key = [\"header:x-key\", \"method\"]\nexempt = ['[\"partner\",\"GET\"]']";
    assert_eq!(counted(composite, &partner, "", "::1"), Counted::Exempt { entry: 0 });
}

#[test]
fn a_key_has_the_rate_that_the_overrides_give_it() {
    let rate = |toml: &str, headers: &[(&'static str, &str)], client: &str| {
        only(counted(toml, headers, "", client)).rate.map(|rate| rate.to_string())
    };
    let by_key = "key = \"header:x-key\"\noverrides = [{ key = \"gold\", rate = \"9/s\" }, { key = \"192.0.2.7\", rate = \"8/s\" }]";
    assert_eq!(rate(by_key, &[("x-key", "gold")], "::1").as_deref(), Some("9/s"));
    assert_eq!(rate(by_key, &[("x-key", "golden")], "::1"), None);
    // Its address isn't its key.
    assert_eq!(rate(by_key, &[], "192.0.2.7"), None);
    let both = "key = [\"ip\", \"method\"]\nipv6_prefix = 48\noverrides = [{ key = '[\"2001:db8::7\",\"GET\"]', rate = \"9/s\" }]";
    assert_eq!(rate(both, &[], "2001:db8:0:ffff::1").as_deref(), Some("9/s"));
    assert_eq!(rate(both, &[], "2001:db8:1::1"), None);
    let permits = "key = \"ip\"\noverrides = [{ key = \"::1\", rate = \"2/min\" }]";
    assert_eq!(rate(permits, &[], "::2").as_deref(), Some("2/min"));
}

#[test]
fn a_key_that_people_write_is_that_of_the_request() {
    let long = "v".repeat(65);
    for (toml, headers, query, written) in [
        ("key = \"header:x-key\"", [("x-key", "gold")], "", "gold"),
        ("key = \"header:x-key\"\nplain = true", [("x-key", "a b")], "", "a b"),
        ("key = \"header:x-key\"\nplain = true", [("x-key", &*long)], "", &*long),
        ("key = \"ip\"\nipv4_prefix = 24", [("x-key", "")], "", "192.0.2.200"),
        ("key = \"ip\"", [("x-key", "")], "", "::ffff:192.0.2.7"),
        ("key = \"host\"", [("x-key", "")], "", "API.example.com"),
        ("key = \"global\"", [("x-key", "")], "", "global"),
        (
            "key = [\"header:x-key\", \"ip\", \"query:k\"]",
            [("x-key", "gold")],
            "k=%22",
            r#"["gold", "192.0.2.7", "\""]"#,
        ),
    ] {
        let counted = Key::of_text(key(toml, &headers, query));
        assert_eq!(key_of(&limit(toml), written), Ok(counted.clone()), "{toml}");
        let shown = super::written(&limit(toml), counted.as_str()).unwrap();
        assert_eq!(key_of(&limit(toml), &shown).as_ref(), Ok(&counted), "{toml}: {shown}");
        // As the log and the metrics show it.
        assert_eq!(key_of(&limit(toml), counted.as_str()).as_ref(), Ok(&counted), "{toml}");
    }
    let by_key = limit("key = [\"header:x-key\", \"ip\"]");
    let shown = r#"["sha256:9f86d081884c7d659a2feaa0c55ad015", "192.0.2.7"]"#;
    let test = key_of(&by_key, r#"["test", "192.0.2.7"]"#).unwrap();
    assert_eq!(
        [shown, &shown.replace(':', "/")].map(|shown| key_of(&by_key, shown)),
        [Ok(test.clone()), Ok(test)]
    );
    for written in ["gold", "[]", r#"["gold"]"#, r#"["gold","me"]"#, r#"["a","::1","b"]"#] {
        assert!(key_of(&by_key, written).is_err(), "{written}");
    }
}

#[test]
fn a_value_that_looks_like_a_key_is_shown_so_that_it_names_its_own_bucket() {
    let toml = "key = \"header:x-key\"\nplain = true";
    for value in
        ["header:x-key=gold", "ip=192.0.2.7", "ip:192.0.2.7", "sha256:9f86d081884c7d659a2feaa0c55ad015"]
    {
        let counted = key(toml, &[("x-key", value)], "");
        let shown = written(&limit(toml), &counted).unwrap();
        assert_eq!(key_of(&limit(toml), &shown).unwrap().as_str(), counted, "{shown}");
        // Services ask with values that clients send.
        assert_eq!(key_of_values(&limit(toml), value).unwrap().as_str(), counted);
    }
}

#[test]
fn a_known_key_is_written_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys.txt");
    let of_test = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    let shared = |number: u32| format!("{number:064x} shared\n");
    std::fs::write(&file, format!("{of_test} shop\n{}{}", shared(1), shared(2))).unwrap();
    let known = limit(&format!("key = [\"header:x-key\", \"method\"]\nkeys_file = {file:?}"));
    let by_value = key_of(&known, r#"["test","GET"]"#).unwrap();
    assert_eq!(key_of(&known, r#"["shop","GET"]"#), Ok(by_value.clone()));
    let shown = written(&known, by_value.as_str()).unwrap();
    assert_eq!(key_of(&known, &shown), Ok(by_value));
    assert!(key_of(&known, r#"["ip:192.0.2.7","GET"]"#).is_ok(), "an unknown key is counted by address");
    for (value, fault) in [("shops", "no such key"), ("shared", "2 keys")] {
        let told = key_of(&known, &format!(r#"["{value}","GET"]"#)).unwrap_err();
        assert!(told.contains(fault), "{told}");
    }
    let plain = limit(&format!("key = \"header:x-key\"\nplain = true\nkeys_file = {file:?}"));
    assert!(key_of(&plain, "shop").is_err() && key_of(&plain, "test").is_ok());
}

#[test]
fn callers_who_lack_the_key_are_written_by_address() {
    let by_key = limit("key = [\"header:x-key\", \"method\"]");
    let counted = Key::of_text(key("key = [\"header:x-key\", \"method\"]", &[], ""));
    assert_eq!(written(&by_key, counted.as_str()).as_deref(), Some(r#"["ip:192.0.2.7","GET"]"#));
    assert_eq!(key_of(&by_key, r#"["ip:192.0.2.7","GET"]"#), Ok(counted));
    let skipping = limit("key = \"header:x-key\"\nmissing = \"skip\"\nplain = true");
    assert_eq!(key_of(&skipping, "ip:192.0.2.7").unwrap().as_str(), "header:x-key=ip:192.0.2.7");
    // Of a limit as it was before a reload.
    assert_eq!(written(&by_key, "global="), None);
    assert_eq!(written(&by_key, "9999:a,"), None);
    assert_eq!(written(&skipping, "query:k=1"), None);
}

proptest::proptest! {
    #[test]
    fn no_two_keys_have_the_same_text(
        one in proptest::array::uniform2("[ -~é]{0,4}|v{64,66}"),
        other in proptest::array::uniform2("[ -~é]{0,4}|v{64,66}"),
        plain: bool,
    ) {
        let parts = [KeyPart::Query("a,1:b=".to_owned()), KeyPart::Path("p".to_owned())];
        let text = |values: &[String; 2]| {
            joined(parts.iter().zip(values).map(|(part, value)| part_text(part, value.as_bytes(), plain)).collect())
        };
        proptest::prop_assert_eq!(text(&one) == text(&other), one == other);
    }
}

#[test]
fn a_name_in_the_file_stands_for_its_keys() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/known-keys.txt");
    let rate = "7/s".parse().unwrap();
    for (of, own, shown) in [
        ("\"header:x-key\"", "\"shop\"", "shop"),
        ("\"header:x-key\"\nplain = true", "\"shop\"", "shop"),
        ("[\"method\", \"header:x-key\"]", "[\"*\", \"shop\"]", r#"["*","shop"]"#),
        ("[\"method\", \"header:x-key\"]", "[\"GET\", \"shop\"]", r#"["GET","shop"]"#),
    ] {
        let toml =
            format!("key = {of}\nkeys_file = {file:?}\noverrides = [{{ key = {own}, rate = \"{rate}\" }}]");
        let counted = |value| only(counted(&toml, &[("x-key", value)], "", "192.0.2.7"));
        let (known, unknown) = (counted("test"), counted("shop"));
        assert_eq!((known.rate, unknown.rate), (Some(rate), None), "{toml}");
        let limit = limit(&toml);
        let of = |text: &str| OwnRates::new(&limit).of(&Key::of_text(text.to_owned()));
        assert_eq!((of(&known.key), of(&unknown.key)), (Some(rate), None), "{toml}");
        assert_eq!(own_text(&limit, &limit.overrides[0]), shown);
        // As a question in JSON names its key.
        let values = ["test", "shop"].map(|value| match &*limit.key {
            [_] => value.to_owned(),
            _ => format!(r#"["GET","{value}"]"#),
        });
        let rates = values.map(|value| OwnRates::new(&limit).of(&key_of_values(&limit, &value).unwrap()));
        assert_eq!(rates, [Some(rate), None], "{toml}");
    }
    let toml = format!("key = \"header:x-key\"\nkeys_file = {file:?}\nexempt = [\"shop\"]");
    for (value, is_exempt) in [("test", true), ("shop", false)] {
        let counted = counted(&toml, &[("x-key", value)], "", "192.0.2.7");
        assert_eq!(matches!(counted, Counted::Exempt { .. }), is_exempt, "{counted:?}");
    }
}
