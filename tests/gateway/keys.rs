//! The keys that requests are counted by.

use crate::{
    harness::{client::Answer, gateway::Gateway, redis::Redis},
    limit_all,
};

const TRUSTING: &str = "[server]\ntrusted_proxies = [\"127.0.0.0/8\"]\n";
const SECRET: &str = "s3cret";

/// `one` is counted in this bucket, `same` too, and `other` in another.
struct Case {
    limit: &'static str,
    one: &'static str,
    same: &'static str,
    other: &'static str,
    bucket: &'static str,
}

const CASES: &[Case] = &[
    Case {
        limit: r#"key = "ip""#,
        one: "GET /0/x",
        same: "POST /0/y?a=b",
        other: "GET /0/x\nX-Forwarded-For: 192.0.2.7",
        bucket: "ip=127.0.0.1",
    },
    Case {
        limit: r#"key = "ip""#,
        one: "GET /1/x\nX-Forwarded-For: 2001:db8:0:1:2::3",
        same: "GET /1/x\nX-Forwarded-For: 10.0.0.1\nX-Forwarded-For: 2001:db8:0:1:ffff::, 127.0.0.9",
        other: "GET /1/x\nX-Forwarded-For: 2001:db8:0:2:2::3",
        bucket: "ip=2001:db8:0:1::",
    },
    Case {
        limit: "key = \"ip\"\nipv4_prefix = 24\nipv6_prefix = 48",
        one: "GET /2/x\nX-Forwarded-For: 192.0.2.7",
        same: "GET /2/x\nX-Forwarded-For: ::ffff:192.0.2.200",
        other: "GET /2/x\nX-Forwarded-For: 192.0.3.7",
        bucket: "ip=192.0.2.0",
    },
    Case {
        limit: r#"key = "header:x-api-key""#,
        one: "GET /3/x\nX-API-Key: s3cret",
        same: "PUT /3/y\nx-api-key: s3cret\nX-Forwarded-For: 192.0.2.7",
        other: "GET /3/x\nX-API-Key: s3crets",
        bucket: "header:x-api-key=sha256/1ec1c26b50d5d3c58d9583181af80766",
    },
    Case {
        limit: "key = \"header:x-api-key\"\nplain = true",
        one: "GET /4/x\nX-API-Key: team a",
        same: "GET /4/y\nX-API-Key: team a\nX-API-Key: team a",
        other: "GET /4/x\nX-API-Key: team b",
        bucket: "header:x-api-key=team%20a",
    },
    Case {
        limit: "key = \"cookie:sid\"\nplain = true",
        one: "GET /5/x\nCookie: theme=dark; sid=a1",
        same: "GET /5/x\nCookie: x=y\nCookie: sid=a1",
        other: "GET /5/x\nCookie: sid=a2; osid=a1",
        bucket: "cookie:sid=a1",
    },
    Case {
        limit: "key = \"query:user\"\nplain = true",
        one: "GET /6/x?user=a%20b",
        same: "GET /6/y?x=1&us%65r=a+b",
        other: "GET /6/x?user=a%2520b",
        bucket: "query:user=a%20b",
    },
    Case {
        limit: r#"key = "path:id""#,
        one: "GET /7/a%2fb",
        same: "GET /7/./%61%2Fb/?q",
        other: "GET /7/a%252Fb",
        bucket: "path:id=a%2Fb",
    },
    Case {
        limit: r#"key = "host""#,
        one: "GET /8/x\nHost: api.example.com:80",
        same: "GET http://Api.example.com./8/x\nHost: other.test",
        other: "GET /8/x\nHost: api.example.com.evil.test",
        bucket: "host=api.example.com",
    },
    Case {
        limit: r#"key = "method""#,
        one: "PATCH /9/x",
        same: "PATCH /9/y",
        other: "GET /9/x",
        bucket: "method=PATCH",
    },
    Case {
        limit: r#"key = "route""#,
        one: "GET /10/x",
        same: "GET /10/y\nX-Forwarded-For: 192.0.2.7",
        other: "GET /again/10/x",
        bucket: "route=r10",
    },
    Case {
        limit: "key = [\"ip\", \"header:x-user\"]\nplain = true",
        one: "GET /11/x\nX-User: a",
        same: "POST /11/y\nX-User: a",
        other: "GET /11/x\nX-User: b",
        bucket: "12:ip=127.0.0.1,15:header:x-user=a",
    },
    Case {
        limit: r#"key = "header:x-user""#,
        one: "GET /12/x",
        same: "GET /12/y",
        other: "GET /12/x\nX-User: 127.0.0.1",
        bucket: "ip=127.0.0.1",
    },
];

#[test]
fn every_kind_of_key_names_its_bucket_and_shares_it_with_nobody() {
    let redis = Redis::start();
    let mut toml = format!("{TRUSTING}{}", redis.store());
    for (number, Case { limit, .. }) in CASES.iter().enumerate() {
        toml += &format!("[limits.l{number}]\n{limit}\nrate = \"1/h\"\n");
        for (name, path) in [("r", ""), ("again-r", "/again")] {
            toml += &format!(
                "[[routes]]\nname = \"{name}{number}\"\npath = \"{path}/{number}/{{id}}\"\n\
                 respond = {{ status = 200 }}\nlimits = [\"l{number}\"]\n"
            );
        }
    }
    let gateway = Gateway::start(&toml);
    for (number, case) in CASES.iter().enumerate() {
        let Case { limit, one, same, other, bucket } = case;
        assert_eq!(gateway.ask(one).status, 200, "{limit}: {one}");
        let named = redis.keys(&format!("tollgate:l{number}:*"));
        assert_eq!(named, [format!("tollgate:l{number}:sw:{{{bucket}}}")], "{limit}: {one}");
        assert_eq!(gateway.ask(same).status, 429, "{limit}: {same}");
        assert_eq!(gateway.ask(other).status, 200, "{limit}: {other}");
    }
    let told = redis.keys("*").join("\n") + &gateway.log();
    assert!(!told.contains(SECRET), "{told}");
}

#[test]
fn everybody_shares_a_global_limit() {
    let gateway = Gateway::start(&(TRUSTING.to_owned() + &limit_all("key = \"global\"\nrate = \"1/h\"")));
    assert_eq!(gateway.ask("GET /").status, 200);
    assert_eq!(gateway.ask("POST /x\nX-Forwarded-For: 192.0.2.7").status, 429);
}

#[test]
fn a_request_that_lacks_the_key_is_skipped_or_denied_as_the_limit_says() {
    let limit =
        |missing| limit_all(&format!("key = \"header:x-key\"\nrate = \"1/h\"\nmissing = \"{missing}\""));
    let skips = Gateway::start(&limit("skip"));
    for _ in 0..3 {
        let answer = skips.get("/");
        assert_eq!((answer.status, answer.header("ratelimit")), (200, None));
    }
    let denies = Gateway::start(&limit("deny"));
    let answer = denies.get("/");
    let code = "key-missing";
    assert_eq!((answer.status, answer.json()["code"].as_str()), (429, Some(code)), "{answer:?}");
    assert_eq!((answer.header("retry-after"), answer.header("ratelimit")), (None, None));
    let lacking = "the request lacks a part of the key of limit `l`: header:x-key";
    assert_eq!(answer.json()["detail"].as_str(), Some(lacking));
    assert_eq!(denies.ask("GET /\nX-Key: a").status, 200);
}

#[test]
fn exempt_networks_and_keys_are_not_counted() {
    let limit = "key = \"header:x-key\"\nrate = \"1/h\"\nexempt = [\"10.0.0.0/8\", \"partner\"]";
    let gateway = Gateway::start(&(TRUSTING.to_owned() + &limit_all(limit)));
    for request in ["GET /\nX-Key: a\nX-Forwarded-For: 10.1.2.3", "GET /\nX-Key: partner"] {
        for _ in 0..3 {
            let answer = gateway.ask(request);
            assert_eq!((answer.status, answer.header("ratelimit")), (200, None), "{request}");
        }
    }
    let counted = "GET /\nX-Key: a\nX-Forwarded-For: 11.1.2.3";
    assert_eq!([gateway.ask(counted).status, gateway.ask(counted).status], [200, 429]);
}

#[test]
fn an_exempt_request_skips_that_limit_only() {
    let gateway = Gateway::start(
        &(limit_all("key = \"ip\"\nrate = \"1/h\"\nexempt = [\"127.0.0.0/8\"]")
            .replace("[\"l\"]", "[\"l\", \"all\"]")
            + "[limits.all]\nkey = \"global\"\nrate = \"2/h\"\n"),
    );
    let statuses: Vec<u16> = (0..3).map(|_| gateway.get("/").status).collect();
    assert_eq!(statuses, [200, 200, 429]);
    assert_eq!(gateway.get("/").header("ratelimit-policy"), Some("\"all\";q=2;w=3600"));
}

#[test]
fn a_key_with_an_override_has_its_own_rate() {
    let limit = "key = [\"header:x-key\", \"ip\"]\nrate = \"1/h\"\nipv4_prefix = 8\n\
                 overrides = [{ key = '[\"gold\",\"127.9.9.9\"]', rate = \"3/h\" }]";
    let gateway = Gateway::start(&limit_all(limit));
    let statuses = |request| [(); 4].map(|()| gateway.ask(request).status);
    assert_eq!(statuses("GET /\nX-Key: gold"), [200, 200, 200, 429]);
    assert_eq!(statuses("GET /\nX-Key: golden"), [200, 429, 429, 429]);
    // Counted by its address alone, it isn't one of the key's values.
    assert_eq!(statuses("GET /"), [200, 429, 429, 429]);
}

#[test]
fn who_is_not_trusted_cannot_choose_the_address_that_is_counted() {
    let gateway = Gateway::start(&limit_all("key = \"ip\"\nrate = \"1/h\""));
    assert_eq!(gateway.ask("GET /\nX-Forwarded-For: 192.0.2.7").status, 200);
    assert_eq!(gateway.ask("GET /\nX-Forwarded-For: 192.0.2.8").status, 429);
}

#[test]
fn a_field_that_connection_names_is_no_key() {
    let gateway = Gateway::start(&limit_all("key = \"header:x-key\"\nrate = \"1/h\""));
    assert_eq!(gateway.ask("GET /\nX-Key: a").status, 200);
    // Upstream wouldn't see it: it counts as missing.
    assert_eq!(gateway.ask("GET /\nX-Key: b\nConnection: x-key").status, 200);
    assert_eq!(gateway.ask("GET /\nX-Key: c\nConnection: close, X-Key").status, 429);
}

/// HAProxy, for one, passes on what clients write into Connection, beside what it says of them itself.
#[test]
fn a_client_cannot_take_away_what_a_proxy_says_of_it() {
    let limit = "key = \"ip\"\nrate = \"1/h\"\nexempt = [\"127.0.0.0/8\"]";
    let gateway = Gateway::start(&(TRUSTING.to_owned() + &limit_all(limit)));
    let by_proxy = "GET /\nX-Forwarded-For: 192.0.2.7";
    assert_eq!(gateway.ask(by_proxy).status, 200);
    for named in ["x-forwarded-for", "close, X-Forwarded-For"] {
        assert_eq!(gateway.ask(&format!("{by_proxy}\nConnection: {named}")).status, 429, "{named}");
    }
    // So for the quota of a client, here none.
    let limit = "key = \"ip\"\nrate = \"9/h\"\nrate_from = \"header:x-quota\"\nmax = 9";
    let gateway = Gateway::start(&(TRUSTING.to_owned() + &limit_all(limit)));
    assert_eq!(gateway.ask("GET /\nX-Quota: 0\nConnection: x-quota").status, 429);
}

#[test]
fn two_values_for_one_key_are_refused() {
    let gateway = Gateway::start(&limit_all("key = \"header:x-key\"\nrate = \"1/h\""));
    for other in ["X-Key", "x-kEY"] {
        let answer = gateway.ask(&format!("GET /\nX-Key: a\n{other}: b"));
        assert_eq!((answer.status, answer.json()["code"].as_str()), (400, Some("key-ambiguous")));
    }
    assert_eq!(gateway.ask("GET /\nX-Key: a").status, 200);
}

/// Servers cut them, pass over what isn't base64, or stop at it, each in its way.
#[test]
fn credentials_that_no_standard_has_are_refused() {
    let gateway = Gateway::start(SPELT);
    for text in [
        "Basic YTp*iYx==",
        "Basic YTpiYw",
        "Basic YTpiYw==x",
        "Basic YTpiYw=xx",
        "Basic YTpiYw!xxxx",
        "Basic =YTpiYw=x",
        "Basic YTo=x",
        "Basic e2E6Yg=x",
        "Basic eyJhOmJjZA==x",
        "Basic YTpi x",
        "Basic YTpiYwB4",
        "Basic eyJhIjoiYiJ9.eyJiIjowfQ.AAA6AA",
        "Bearer k1 x",
        "Bearer ,k1",
        "Bearer a=b k1",
        "Bearer \"k1\tx\"",
    ] {
        let answer = gateway.ask(&format!("GET /credentials\nAuthorization: {text}"));
        assert_eq!((answer.status, answer.json()["code"].as_str()), (400, Some("key-ambiguous")), "{text}");
    }
    for text in ["Basic YTpi", "Basic alice:key", "Mine user=\"a b\", key=c", "8f3a-21", "AWS id:a+b/c="] {
        let answer = gateway.ask(&format!("GET /credentials\nAuthorization: {text}"));
        assert_eq!(answer.status, 200, "{text}");
    }
}

/// A route limited by each kind of key that has spellings.
const SPELT: &str = r#"
    [limits.credentials]
    key = "header:authorization"
    rate = "1/h"
    [limits.header]
    key = "header:x-api-key"
    rate = "1/h"
    [limits.cookie]
    key = "cookie:sid"
    rate = "1/h"
    [limits.query]
    key = "query:api_key"
    rate = "1/h"
    [[routes]]
    path = "/credentials"
    respond = { status = 200 }
    limits = ["credentials"]
    [[routes]]
    path = "/header"
    respond = { status = 200 }
    limits = ["header"]
    [[routes]]
    path = "/cookie"
    respond = { status = 200 }
    limits = ["cookie"]
    [[routes]]
    path = "/query"
    respond = { status = 200 }
    limits = ["query"]
"#;

#[test]
fn no_spelling_of_a_key_escapes_its_limit() {
    let redis = Redis::start();
    for store in ["", &redis.store()] {
        let gateway = Gateway::start(&(store.to_owned() + SPELT));
        let mut escaped = Vec::new();
        for (ordinary, spellings) in [
            (
                "GET /credentials\nAuthorization: Bearer k1",
                &[
                    "bearer k1",
                    "Bearer  k1",
                    "Bearer\tk1",
                    "BEARER \t k1",
                    "Token token=\"k1\", app=\"ios\"",
                    "Bearerk1",
                    "bearerk1",
                ][..],
            ),
            ("GET /header\nX-Api-Key: k1", &["k1\u{a0}", "\u{a0}\u{3000}k1\u{85}"]),
            (
                "GET /credentials\nAuthorization: Basic YTpiYw==",
                &["basic YTpiYw==", "BasicXYTpiYw==", "Basic: YTpiYw=="],
            ),
            (
                "GET /cookie\nCookie: sid=k1",
                &[
                    "sid=%6b1",
                    r#"sid="\1531""#,
                    "s%69d=k1; sid=r",
                    "sid=r2; sid=k1",
                    "a=1 sid=k1",
                    "sid[]=k1",
                    r#"sid=k1"x"#,
                    r#""sid=k1"#,
                    r"\sid=k1",
                    r"sid=k1\",
                    r#"sid="k1"#,
                    ",sid=k1",
                    "/sid=k1; sid=r3",
                    "sid=r4; a@=sid=k1",
                    "a=b\u{e9}sid=k1",
                    r#"sid="\0456b1""#,
                    "sid= r5(sid=k1",
                    "sid=%22k1%22",
                    "s%C4%B0d=k1",
                    "sid\"=k1",
                    "sid=k1\nCookie: 1",
                ],
            ),
            ("GET /cookie\nCookie: sid=a+b/c%3D", &["sid=a%2Bb/c=", "sid=a+b/c="]),
            (
                "GET /query?api_key=k1",
                &[
                    "api_key=k1;1",
                    "api_key=r3&api.key=k1",
                    "%20api_key=k1",
                    "api_key%00=k1",
                    "api_key[]=k1",
                    "api_key=%6b1",
                    "a;api_key=k1",
                    "API_KEY=k1",
                    "api_key=%1C%01k1",
                    "api_key=%C2%ADk1%E2%A0%80",
                    "=api_key=k1",
                    "a=b&==api_key=k1",
                    ".api_key=k1&api_key=r4",
                    "api_key%2Ex=k1&api_key=r5",
                    "api_key=r6&nxtPapi_key=k1",
                ],
            ),
            (
                "GET /query?api_key=a%2Bb%2525",
                &["api_key=a+b%2525", "api_key=a%2bb%2525", "api_key=a+b%25%32%35"],
            ),
        ] {
            assert_eq!(gateway.ask(ordinary).status, 200, "{ordinary}");
            assert_eq!(gateway.ask(ordinary).status, 429, "{ordinary}");
            for spelling in spellings {
                let at = ordinary.find('?').or_else(|| ordinary.find(": ").map(|at| at + 1)).unwrap();
                let request = format!("{}{spelling}", &ordinary[..=at]);
                let answer = gateway.ask(&request);
                if answer.status != 429 {
                    escaped.push((request, answer.status));
                }
            }
        }
        assert!(escaped.is_empty(), "{escaped:#?}");
    }
}

/// Nobody's: all clients with one would share its count.
#[test]
fn an_empty_value_is_no_key() {
    let gateway = Gateway::start(&SPELT.replace("rate = \"1/h\"", "rate = \"9/h\"\nmissing = \"deny\""));
    for request in [
        "GET /header\nX-Api-Key:",
        "GET /credentials\nAuthorization:",
        "GET /cookie\nCookie: sid=",
        "GET /cookie\nCookie: sid=\"\"",
        "GET /query?api_key=",
        "GET /query?api_key",
    ] {
        assert_eq!(gateway.ask(request).status, 429, "{request}");
    }
    assert_eq!(gateway.ask("GET /query?api_key=&api_key=k1").status, 429, "a server may read the first");
    assert_eq!(gateway.ask("GET /query?api_key=k1").status, 200);
}

#[test]
fn an_encoded_word_is_no_key() {
    let gateway = Gateway::start(SPELT);
    for request in
        ["GET /header\nX-Api-Key: =?utf-8?q?k1?=", "GET /credentials\nAuthorization: =?utf-8?q?Bearer=20k1?="]
    {
        let answer = gateway.ask(request);
        assert_eq!(
            (answer.status, answer.json()["code"].as_str()),
            (400, Some("key-ambiguous")),
            "{request}"
        );
    }
}

#[test]
fn a_field_that_cgi_takes_for_the_key_is_not_forwarded() {
    let gateway = Gateway::start(
        r#"
        [limits.keys]
        key = "header:x-api-key"
        rate = "9/h"
        missing = "deny"
        [[routes]]
        path = "/"
        upstream = "echo"
        limits = ["keys"]
        [upstreams.echo]
        builtin = "echo"
        "#,
    );
    for name in ["X_Api_Key", "X.Api.Key", "X!Api!Key"] {
        let answer = gateway.ask(&format!("GET /\n{name}: hidden\nX-Api-Key: seen"));
        let header = answer.text().to_lowercase();
        assert!(header.contains("seen") && !header.contains("hidden"), "{name}: {header}");
        assert_eq!(gateway.ask(&format!("GET /\n{name}: hidden")).status, 429, "{name}");
    }
}

#[test]
fn a_key_stays_where_it_is_for_those_who_do_not_know_it() {
    let gateway = Gateway::start(&SPELT.replace("1/h", "2/h"));
    for (victim, strangers) in [
        ("GET /credentials\nAuthorization: Bearer k1", &["Bearer K1", "Bearer k", "k", "Basic azE6"][..]),
        (
            "GET /cookie\nCookie: sid=k1",
            &["sid=K1", "sid=k; a=1", "asid=k1", "sid=%256b1", "sid=r; a=sid=k1"],
        ),
        // Of two clients, the last parameter or the name of the application is often the same.
        (
            "GET /credentials\nAuthorization: Token token=\"victim\", app=\"my ios\"",
            &["Token token=\"attacker\", app=\"my ios\"", "Bearer app=\"my", "Bearer ios", "Bearer ios\""],
        ),
        // Credentials that aren't base64, or of which a part is a name
        (
            "GET /credentials\nAuthorization: Basic alice:key",
            &["Basic alice:wrong", "Basic alice", "Basic !"],
        ),
        ("GET /credentials\nAuthorization: Mine user=\"a\", key=\"b\"", &["Mine user=\"a\", key=\"c\""]),
        ("GET /credentials\nAuthorization: Basic YWxpY2U6Pj4+Pz8/", &["Basic YWxpY2U6", "Basic YWxpY2U="]),
        ("GET /credentials\nAuthorization: ApiKey aToken1", &["ApiKey bToken1", "xBearer1", "xBasic1"]),
        (
            "GET /query?api_key=k1",
            &["api_key=K1", "api_key=k", "api_keys=k1", "xapi_key=k1", "api_key=%256b1"],
        ),
    ] {
        let at = victim.find('?').or_else(|| victim.find(": ").map(|at| at + 1)).unwrap();
        for stranger in strangers.iter().flat_map(|stranger| [stranger; 3]) {
            gateway.ask(&format!("{}{stranger}", &victim[..=at]));
        }
        let statuses = [(); 3].map(|()| gateway.ask(victim).status);
        assert_eq!(statuses, [200, 200, 429], "{victim}");
    }
}

#[test]
fn a_limit_that_counts_a_request_for_several_keys_is_told_once() {
    let gateway = Gateway::start(&SPELT.replace("1/h", "3/h"));
    assert_eq!(gateway.get("/query?api_key=b").header("ratelimit"), Some("\"query\";r=2;t=3600"));
    let told = |answer: &Answer, name: &str| answer.header(name).map(str::to_owned);
    let answer = gateway.get("/query?api_key=a&api_key=b");
    assert_eq!(told(&answer, "ratelimit-policy").as_deref(), Some("\"query\";q=3;w=3600"));
    assert!(told(&answer, "ratelimit").is_some_and(|told| told.starts_with("\"query\";r=1;")), "{answer:?}");
    assert_eq!(gateway.get("/query?api_key=b").status, 200);
    let answer = gateway.get("/query?api_key=a&api_key=b");
    assert_eq!((answer.status, &answer.json()["violated-policies"]), (429, &serde_json::json!(["query"])));
    // It was charged for both keys, or for neither.
    assert!(told(&gateway.get("/query?api_key=a"), "ratelimit").is_some_and(|told| told.contains("r=1;")));
    let many = gateway.get("/query?api_key=1&api_key=2&api_key=3&api_key=4&api_key=5");
    assert_eq!((many.status, many.json()["code"].as_str()), (400, Some("key-ambiguous")));
}

#[test]
fn a_shadow_limit_refuses_nobody_whatever_is_wrong_with_its_key() {
    let gateway = Gateway::start(
        r#"
        [limits.ambiguous]
        key = "query:k"
        rate = "1/h"
        mode = "shadow"
        [limits.missing]
        key = "header:x-key"
        rate = "1/h"
        missing = "deny"
        mode = "shadow"
        [[routes]]
        path = "/"
        respond = { status = 200 }
        limits = ["ambiguous", "missing"]
        "#,
    );
    assert_eq!(gateway.get("/?k=1&k=2").status, 200);
}

/// A gateway with little memory, on which a limit by a header has been asked for more keys than fit.
fn flooded(store: &str) -> Gateway {
    let gateway = Gateway::start(&format!(
        r#"
        [server]
        trusted_proxies = ["127.0.0.0/8"]
        [admin]
        listen = "127.0.0.1:0"
        [store]
        max_memory = "1MiB"
        {store}
        [limits.l]
        key = "header:x-api-key"
        rate = "7/h"
        overrides = [{{ key = "slow", rate = "2/day" }}, {{ key = "fast", rate = "9/h" }}]
        [limits.other]
        key = "ip"
        rate = "7/h"
        [[routes]]
        path = "/"
        respond = {{ status = 200 }}
        limits = ["l"]
        [[routes]]
        path = "/other"
        respond = {{ status = 200 }}
        limits = ["other"]
        "#
    ));
    let mut client = gateway.client();
    assert_eq!(client.ask("GET /\nx-api-key: known").status, 200);
    let statuses: Vec<u16> =
        (0..5_000).map(|key| client.ask(&format!("GET /\nx-api-key: invented-{key}")).status).collect();
    let denied = statuses.iter().filter(|status| !matches!(status, 200 | 429)).count();
    assert_eq!(denied, 0, "what is neither admitted nor limited has had no decision");
    assert_eq!(statuses.last(), Some(&429));
    gateway
}

/// What `requests` requests get.
fn statuses(gateway: &Gateway, request: &str, requests: usize) -> Vec<u16> {
    let mut client = gateway.client();
    (0..requests).map(|_| client.ask(request).status).collect()
}

fn keys_past_a_share_are_counted_by_network(store: &str) {
    let gateway = flooded(store);
    // A key that is known has its own quota still, of which one is used; its log needs memory to grow.
    let known = statuses(&gateway, "GET /\nx-api-key: known", 8);
    assert_eq!(known, [200, 200, 200, 200, 200, 200, 429, 429]);
    // The network of the flood has used up its count, for whatever key, and for who has none.
    assert_eq!(statuses(&gateway, "GET /\nx-api-key: new", 1), [429]);
    assert_eq!(statuses(&gateway, "GET /", 1), [429]);
    // Another network has one, too, which all of its keys share: they are told what is left of it.
    let from = |address: &str, key: &str| {
        let answer = gateway.ask(&format!("GET /\nx-forwarded-for: {address}\nx-api-key: {key}"));
        (answer.status, answer.header("ratelimit").unwrap_or_default().to_owned())
    };
    for (turn, address) in ["192.0.2.7", "192.0.2.200", "192.0.2.1"].into_iter().enumerate() {
        let (status, left) = from(address, &format!("new-{turn}"));
        assert!(status == 200 && left.contains(&format!("r={};", 6 - turn)), "{status} {left}");
    }
    assert!(from("192.0.3.7", "new-0").1.contains("r=6;"));
    assert!(from("2001:db8:7:1::1", "new-0").1.contains("r=6;"));
    assert!(from("2001:db8:7:2::1", "new-1").1.contains("r=5;"));
    // A key with a rate of its own keeps it, from whatever network.
    let from_many = |key: &str, requests: u32| {
        let statuses = (0..requests).map(|network| from(&format!("198.51.{network}.7"), key).0);
        statuses.filter(|status| *status == 200).count()
    };
    assert_eq!((from_many("slow", 20), from_many("fast", 20)), (2, 9));
    // Another limit notices nothing.
    assert_eq!(statuses(&gateway, "GET /other", 8), [200, 200, 200, 200, 200, 200, 200, 429]);
    let said = gateway.log().matches("has used up its share of the memory").count();
    assert_eq!(said, 1, "{}", gateway.log());
}

#[test]
fn invented_keys_lock_nobody_out() {
    keys_past_a_share_are_counted_by_network("");
}

#[test]
fn invented_keys_lock_nobody_out_while_the_store_is_away() {
    let redis = Redis::away();
    keys_past_a_share_are_counted_by_network(&format!("url = \"{}\"", redis.url()));
}

/// Clients can invent keys that match a pattern. These must leave room for networks and for keys that an override names.
#[test]
fn invented_keys_of_a_plan_lock_nobody_out() {
    let gateway = Gateway::start(
        r#"
        [server]
        trusted_proxies = ["127.0.0.0/8"]
        [store]
        max_memory = "1MiB"
        [limits.l]
        key = ["header:x-plan", "header:x-api-key"]
        rate = "7/h"
        overrides = [{ key = ["pro", "*"], rate = "9/h" }, { key = ["pro", "alice"], rate = "11/h" }]
        [[routes]]
        path = "/"
        respond = { status = 200 }
        limits = ["l"]
        "#,
    );
    let mut client = gateway.client();
    for key in 0..6_000 {
        client.ask(&format!("GET /\nx-plan: pro\nx-api-key: invented-{key}"));
    }
    let admitted = |network: u32, key: &str, requests| {
        let request = format!("GET /\nx-forwarded-for: 198.51.{network}.7\nx-plan: pro\nx-api-key: {key}");
        statuses(&gateway, &request, requests).iter().filter(|status| **status == 200).count()
    };
    assert_eq!(statuses(&gateway, "GET /\nx-plan: pro\nx-api-key: new", 1), [429]);
    assert_eq!((admitted(1, "new", 20), admitted(2, "new", 20), admitted(3, "alice", 20)), (7, 7, 11));
}

/// The counts of the limit that had all of the memory last, and those of the other one fill what is left.
#[test]
fn a_limit_that_is_added_during_a_flood_leaves_each_network_its_count() {
    let toml = |names: &[&str]| {
        let limit = |name: &&str| {
            format!(
                "[limits.{name}]\nkey = \"header:x-api-key\"\nrate = \"7/h\"\n\
                 [[routes]]\npath = \"/{name}\"\nrespond = {{ status = 200 }}\nlimits = [\"{name}\"]\n"
            )
        };
        let limits = names.iter().map(limit).collect::<String>();
        format!("[server]\ntrusted_proxies = [\"127.0.0.0/8\"]\n[store]\nmax_memory = \"1MiB\"\n{limits}")
    };
    let gateway = Gateway::start(&toml(&["l"]));
    let flood = |path: &str| {
        let mut client = gateway.client();
        for key in 0..3_000 {
            client.ask(&format!("GET {path}\nx-api-key: invented-{key}"));
        }
    };
    flood("/l");
    gateway.reload(&toml(&["l", "m"]));
    flood("/m");
    for (path, network) in [("/l", 1), ("/m", 2), ("/l", 3), ("/m", 4)] {
        let request = format!("GET {path}\nx-forwarded-for: 198.51.{network}.7\nx-api-key: new-{network}");
        let admitted = statuses(&gateway, &request, 10).iter().filter(|status| **status == 200).count();
        assert_eq!(admitted, 7, "network {network} on {path}");
    }
}

#[test]
fn a_reload_leaves_the_store_as_it_is() {
    let toml = |prefix: &str| {
        format!(
            "[store]\nkey_prefix = \"{prefix}\"\n[limits.l]\nkey = \"ip\"\nrate = \"2/h\"\n\
             [[routes]]\npath = \"/\"\nrespond = {{ status = 200 }}\nlimits = [\"l\"]\n"
        )
    };
    let gateway = Gateway::start(&toml("one"));
    assert_eq!([gateway.get("/").status, gateway.get("/").status], [200, 200]);
    gateway.reload(&toml("other"));
    assert_eq!(gateway.get("/").status, 429);
}
