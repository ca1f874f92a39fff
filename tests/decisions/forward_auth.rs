//! Forward authentication without a proxy: what a call may say, and what it is answered.

use std::{process::Command, thread, time::Duration};

use crate::{
    decisions::{Decider, THREE},
    harness::client::{Answer, Client},
};

#[test]
fn a_described_request_is_decided() {
    let decider = Decider::start("", THREE);
    let call = |client: &str| {
        decider.ask(&format!(
            "GET /check\nX-Forwarded-Method: POST\nX-Forwarded-Uri: /api/a?b=c\nX-Forwarded-Host: shop.test\n\
             X-Forwarded-Proto: https\nX-Forwarded-For: 198.51.100.1, {client}"
        ))
    };
    for remaining in [2, 1, 0] {
        let answer = call("203.0.113.5");
        assert_eq!((answer.status, answer.body.len()), (200, 0));
        let field = answer.header("ratelimit").unwrap();
        assert!(field.starts_with(&format!("\"per-client\";r={remaining};")), "{field}");
    }
    let refused = call("203.0.113.5");
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    assert!(refused.header("retry-after").is_some() && refused.header("ratelimit-policy").is_some());
    let body = String::from_utf8(refused.body.clone()).unwrap();
    assert!(body.contains("quota-exceeded") && body.contains("per-client"), "{body}");
    assert_eq!(call("203.0.113.6").status, 200, "another client");
}

#[test]
fn calls_without_a_route_are_admitted_and_without_a_path_refused() {
    let decider = Decider::start("", THREE);
    let unrouted = decider.ask("GET /check\nX-Forwarded-Uri: /other");
    assert_eq!((unrouted.status, unrouted.header("ratelimit")), (200, None));
    for call in ["GET /check", "GET /check/", "POST /check\nContent-Length: 0", "GET /check/envoyage"] {
        let answer = decider.ask(call);
        assert_eq!(answer.status, 400, "{call}");
        assert!(String::from_utf8(answer.body).unwrap().contains("forwarded-uri-missing"));
    }
    for uri in ["api", "", "/api/%00"] {
        assert_eq!(decider.ask(&format!("GET /check\nX-Forwarded-Uri: {uri}")).status, 400, "{uri}");
    }
    assert_eq!(decider.ask("GET /checks\nX-Forwarded-Uri: /api/a").status, 404);
}

/// The proxy forwards what the gateway admits, and a server may find a resource that has a limit.
#[test]
fn calls_without_a_route_count_for_routes_that_servers_may_find() {
    let decider = Decider::start("", THREE);
    let ask = |target: &str| decider.ask(&format!("GET /check\nX-Forwarded-Uri: {target}"));
    for (target, remaining) in [("/api%2Fa", 2), ("/index.php/api/a", 1), ("/api;x/a", 0)] {
        let answer = ask(target);
        let field = answer.header("ratelimit").unwrap_or_else(|| panic!("{target}: {}", answer.status));
        assert!(field.starts_with(&format!("\"per-client\";r={remaining};")), "{target}: {field}");
    }
    for target in ["/%2Fapi/a", "/api%5Ca", "/api/a"] {
        assert_eq!(ask(target).status, 429, "{target}");
    }
    for target in ["/other%2Fapi", "/apis", "/index.php/other"] {
        let answer = ask(target);
        assert_eq!((answer.status, answer.header("ratelimit")), (200, None), "{target}");
    }
    let requires = "[jwt]\nhmac_secret = \"a secret that is long enough for HS256\"\n\
        [[routes]]\npath = \"/orders/{id}\"\nrespond = { status = 204 }\nrequire = \"jwt\"\n";
    let decider = Decider::start("", requires);
    for (target, status) in [("/orders/7", 401), ("/orders%2F7", 401), ("/orders", 200)] {
        let answer = decider.ask(&format!("GET /check\nX-Forwarded-Uri: {target}"));
        assert_eq!(answer.status, status, "{target}");
    }
}

/// A proxy forwards the target as it came. So nothing of it may be left out or resolved before it is counted.
#[test]
fn targets_that_the_upstream_would_read_differently_are_rejected() {
    let decider = Decider::start("", THREE);
    for target in [
        "/api/a#",
        "/other#/../api/a",
        "/api/a?b=c#&key=d",
        "/other?#&key=d",
        "/api/../other",
        "/api/%2e%2E/other",
        "/other/../api/a",
        "/api/./a",
        "/api/a/..",
    ] {
        // Whatever the client says of its body: to a gRPC call, the answer would be 200 with a `grpc-status`.
        for described in ["", "\nContent-Type: application/grpc"] {
            let answer = decider.ask(&format!("GET /check\nX-Forwarded-Uri: {target}{described}"));
            assert_eq!(answer.status, 400, "{target}{described}");
        }
    }
    let post = decider.ask("GET /check\nX-Forwarded-Method: post\nX-Forwarded-Uri: /api/a");
    assert!(String::from_utf8(post.body).unwrap().contains("method-invalid"));
    for target in ["/check/envoy/api/../other", "/check/envoy/api/%2e%2e/other"] {
        assert_eq!(decider.ask(&format!("GET {target}")).status, 400, "{target}");
    }
    // A client may have sent the first line.
    for repeated in ["Uri: /other", "Method: GET\nX-Forwarded-Method: POST", "Host: a\nX-Forwarded-Host: b"] {
        let answer = decider.ask(&format!("GET /check\nX-Forwarded-{repeated}\nX-Forwarded-Uri: /api/a"));
        assert_eq!(answer.status, 400, "{repeated}");
    }
    for target in ["/api/..a", "/api/a..", "/api/a?b=/../c"] {
        assert_eq!(decider.ask(&format!("GET /check\nX-Forwarded-Uri: {target}")).status, 200, "{target}");
    }
}

/// The gateway would remove these fields, or those that `Connection` names. A proxy forwards them to servers that take them for the
/// key.
#[test]
fn fields_that_servers_take_for_a_key_count_for_it() {
    let of = |key: &str| THREE.replace("\"ip\"", &format!("\"header:{key}\""));
    let decider = Decider::start("", &of("x-api-key"));
    let ask = |fields: &str| decider.ask(&format!("GET /check\nX-Forwarded-Uri: /api/a\n{fields}")).status;
    for (fields, status) in [
        ("X-Api-Key: a", 200),
        ("X_Api_Key: a", 200),
        ("Connection: X-Api-Key\nX-Api-Key: a", 200),
        ("X_Api.Key: a", 429),
        ("X-Api-Key: a", 429),
        ("X-Api-Key: b\nX_Api_Key: a", 400),
        ("X-Api-Key: b\nX_Api_Key: b", 200),
        ("X-Api-Key: b\nX_Other: a", 200),
    ] {
        assert_eq!(ask(fields), status, "{fields}");
    }
    let decider = Decider::start("", &of("authorization"));
    let ask = |fields: &str| decider.ask(&format!("GET /check\nX-Forwarded-Uri: /api/a\n{fields}")).status;
    for name in ["Php-Auth-User", "PHP_AUTH_USER", "Php-Auth_Digest", "Cgi-Authorization"] {
        assert_eq!(ask(&format!("Authorization: Bearer a\n{name}: Bearer a")), 400, "{name}");
        assert_eq!(ask(&format!("{name}: Bearer a")), 400, "{name}");
    }
}

#[test]
fn envoy_asks_with_the_path_itself() {
    let decider = Decider::start("", &THREE.replace("\"ip\"", "\"query:key\""));
    let call = |target: &str| decider.ask(&format!("GET {target}\nX-Forwarded-Uri: /other"));
    for (target, limited) in [
        ("/check/envoy/api/a?key=b", true),
        ("/check/envoy//api/a?key=b", true),
        ("/check/envoy/other", false),
        ("/check/envoy", false),
        ("/check/envoy?key=b", false),
    ] {
        let answer = call(target);
        assert_eq!((answer.status, answer.header("ratelimit").is_some()), (200, limited), "{target}");
    }
    assert_eq!(call("/check/envoy/api/a?key=b").status, 200);
    assert_eq!(call("/check/envoy/api/b?key=b").status, 429);
}

/// The route of the call itself, and the caller as a client, have nothing to do with the request that it describes.
#[test]
fn repeated_calls_ask_the_limits_of_the_request_that_they_describe() {
    let decider = Decider::start(
        "",
        "[limits.short]\nkey = \"ip\"\nrate = \"1/4s\"\n[limits.long]\nkey = \"ip\"\nrate = \"1/h\"\n\
         [[routes]]\npath = \"/api/{*rest}\"\nrespond = { status = 204 }\nlimits = [\"short\"]\n\
         [[routes]]\npath = \"/{*rest}\"\nrespond = { status = 204 }\nlimits = [\"long\"]\n",
    );
    for call in [
        "GET /check\nX-Forwarded-Uri: /api/a\nX-Forwarded-For: 203.0.113.5",
        "GET /check/envoy/api/a\nX-Forwarded-For: 203.0.113.6",
    ] {
        let mut proxy = Client::connect(decider.address);
        // The limit of the call's own path and of its peer is used up, for a request that is described so.
        for status in [200, 429] {
            let own = proxy.ask("GET /check\nX-Forwarded-Uri: /check/envoy/api/a").status;
            assert!(own == status || own == 429, "{own}");
        }
        assert_eq!(proxy.ask(call).status, 200, "{call}");
        let refused: Vec<_> = (0..4).map(|_| proxy.ask(call)).collect();
        for answer in &refused {
            let policy = answer.header("ratelimit-policy").unwrap();
            assert_eq!((answer.status, policy), (429, "\"short\";q=1;w=4"), "{call}");
            assert_eq!(answer.header("x-request-id"), None, "{call}");
        }
        thread::sleep(Duration::from_millis(refused[3].retry_after_ms()));
        assert_eq!(proxy.ask(call).status, 200, "{call}");
    }
}

#[test]
fn only_limits_act() {
    let decider = Decider::start(
        "",
        "[limits.once]\nkey = \"ip\"\nrate = \"1/h\"\n[limits.leased]\nkey = \"ip\"\nrate = \"1\"\n\
         algorithm = \"concurrency\"\nlease = \"1h\"\n\
         [limits.failures]\nkey = \"ip\"\nrate = \"1/h\"\nwhen_status = \"5xx\"\n\
         [upstreams.dead]\nservers = \"http://127.0.0.1:1\"\n\
         [[routes]]\npath = \"/dead\"\nupstream = \"dead\"\nlimits = [\"once\", \"leased\", \"failures\"]\n\
         response_headers = { set = { x-more = \"1\" } }\non_limit = { status = 503, body = \"later\" }\n\
         [[routes]]\npath = \"/moved\"\nredirect = { to = \"https://a.test/\", status = 308 }\n\
         [[routes]]\npath = \"/denied\"\nrespond = { status = 403, body = \"no\" }\n",
    );
    for limit in ["leased", "failures"] {
        decider.gateway.wait_for_log(&format!("[decisions] skips limit `{limit}`"));
    }
    let call = |path: &str| decider.ask(&format!("GET /check\nX-Forwarded-Uri: {path}"));
    let admitted = call("/dead");
    assert_eq!((admitted.status, admitted.header("x-more")), (200, None));
    assert!(admitted.header("ratelimit").unwrap().starts_with("\"once\";r=0"));
    let refused = call("/dead");
    assert_eq!((refused.status, &*refused.body), (503, &b"later"[..]));
    for path in ["/moved", "/denied"] {
        let answer = call(path);
        assert_eq!((answer.status, answer.body.len(), answer.header("location")), (200, 0, None), "{path}");
    }
}

/// Asks with a question in JSON.
fn question(decider: &Decider, body: &str) -> Answer {
    let (head, length) = ("POST /check\nContent-Type: application/json; charset=utf-8", body.len());
    decider.ask(&format!("{head}\nContent-Length: {length}\n\n{body}"))
}

#[test]
fn a_question_for_several_keys_of_a_limit_bans_the_one_that_is_refused() {
    let limit = "[limits.logins]\nkey = \"header:x-user\"\nrate = \"2/h\"\nban = { after = \"2/min\", for = \"1h\" }\n";
    let decider = Decider::start("", limit);
    let ask = |keys: &[&str]| {
        let limits: Vec<_> = keys.iter().map(|key| format!(r#"{{"name":"logins","key":"{key}"}}"#)).collect();
        question(&decider, &format!(r#"{{"limits":[{}]}}"#, limits.join(",")))
    };
    assert_eq!([ask(&["mallory"]).status, ask(&["mallory"]).status], [200; 2]);
    for _ in 0..3 {
        assert_eq!(ask(&["victim", "mallory"]).status, 429);
    }
    decider.gateway.wait_for_log("banned");
    assert_eq!(ask(&["victim"]).status, 200);
    assert_eq!(ask(&["mallory"]).retry_after_ms().div_ceil(3_600_000), 1);
}

/// Past the limit's share of memory, new keys without a client are counted together.
#[test]
fn all_keys_of_a_question_pay_where_they_are_counted_together() {
    let limit =
        "[store]\nmax_memory = \"1MiB\"\n[limits.logins]\nkey = \"header:x-user\"\nrate = \"1000000/h\"\n";
    let decider = Decider::start("", limit);
    let ask = |keys: &mut dyn Iterator<Item = String>| {
        let limits: Vec<_> = keys.map(|key| format!(r#"{{"name":"logins","key":"{key}"}}"#)).collect();
        let answer = question(&decider, &format!(r#"{{"limits":[{}]}}"#, limits.join(",")));
        let standings = answer.header("ratelimit").unwrap().to_owned();
        let left = standings.split_once(";r=").unwrap().1.split(';').next().unwrap().to_owned();
        left.parse::<u64>().unwrap()
    };
    for flood in 0..100 {
        ask(&mut (0..256).map(|key| format!("{flood}-{key}")));
    }
    let before = ask(&mut ["one".to_owned()].into_iter());
    assert!(before < 999_999, "it is counted with others: {before} left");
    assert_eq!(ask(&mut ["two", "three", "four"].map(str::to_owned).into_iter()), before - 3);
}

/// Past the limit's share of memory, a key with an address is counted with those of its network.
#[test]
fn keys_past_a_share_are_counted_by_the_network_of_the_client() {
    let decider = Decider::start(
        "",
        r#"
        [store]
        max_memory = "1MiB"
        [limits.l]
        key = ["ip", "header:x-user"]
        rate = "5/h"
        [limits.client]
        key = "ip"
        rate = "10000/h"
        [limits.user]
        key = "header:x-user"
        rate = "5/h"
        [limits.d]
        key = "descriptor:user"
        rate = "5/h"
        [[descriptors]]
        domain = "d"
        match = { remote_address = "*", user = "*" }
        limits = ["d"]
        [limits.apart]
        key = "descriptor:user"
        rate = "5/h"
        [[descriptors]]
        domain = "apart"
        match = { user = "*" }
        limits = ["apart"]
        "#,
    );
    let asked = |client: &str, user: &str| {
        let limit = format!(r#"{{"limits":[{{"name":"l","key":["{client}","{user}"]}}]}}"#);
        let limits = format!(
            r#"{{"limits":[{{"name":"client","key":"{client}"}},{{"name":"user","key":"{user}"}}]}}"#
        );
        let client = format!(r#"{{"key":"remote_address","value":"{client}"}}"#);
        let user = format!(r#"{{"key":"user","value":"{user}"}}"#);
        let call = |domain: &str, descriptors: &str| {
            let call = format!(r#"{{"domain":"{domain}","descriptors":[{descriptors}]}}"#);
            decider.ask(&format!("POST /json\nContent-Length: {}\n\n{call}", call.len())).status
        };
        [
            question(&decider, &limit).status,
            question(&decider, &limits).status,
            call("d", &format!(r#"{{"entries":[{client},{user}]}}"#)),
            call("apart", &format!(r#"{{"entries":[{user}]}},{{"entries":[{client}]}}"#)),
        ]
    };
    for user in 0..6_000 {
        asked("198.51.100.7", &format!("invented-{user}"));
    }
    assert_eq!(asked("198.51.100.8", "mallory"), [429; 4]);
    assert_eq!(asked("203.0.113.5", "alice"), [200; 4]);
}

#[test]
fn envoy_asks_by_http_2_too() {
    let decider = Decider::start("", THREE);
    for expected in ["200", "200", "200", "429"] {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--http2-prior-knowledge", "--header", "Host: shop.test"]);
        curl.args(["--output", "/dev/null", "--write-out", "%{http_code}"]);
        let told = curl.arg(format!("http://{}/check/envoy/api/a", decider.address)).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&told.stdout), expected);
    }
}

#[test]
fn services_ask_in_json() {
    let decider = Decider::start(
        "",
        "[limits.logins]\nkey = \"header:x-user\"\nrate = \"3/h\"\n\
         [limits.pairs]\nkey = [\"header:x-user\", \"method\"]\nrate = \"2/h\"\n\
         [limits.all]\nkey = \"global\"\nrate = \"100/h\"\n",
    );
    let ask = |body: &str| question(&decider, body);
    let logins =
        |cost: u32| ask(&format!(r#"{{"limits":[{{"name":"logins","key":"alice","cost":{cost}}}]}}"#));
    let answer = logins(2);
    assert_eq!((answer.status, answer.body.len()), (200, 0));
    assert!(answer.header("ratelimit").unwrap().starts_with("\"logins\";r=1;"));
    let refused = logins(2);
    assert_eq!((refused.status, refused.header("content-type")), (429, Some("application/problem+json")));
    assert_eq!(logins(1).status, 200, "the refused call has charged nothing");
    assert_eq!(ask(r#"{"limits":[{"name":"logins","key":["alice"]}]}"#).status, 429);
    // All or none.
    let both =
        r#"{"limits":[{"name":"pairs","key":["alice","GET"]},{"name":"logins","key":"bob"},{"name":"all"}]}"#;
    assert_eq!([ask(both).status, ask(both).status, ask(both).status], [200, 200, 429]);
    for body in [
        "",
        "{}",
        r#"{"limits":[]}"#,
        r#"{"limits":[{"name":"none","key":"a"}]}"#,
        r#"{"limits":[{"name":"logins"}]}"#,
        r#"{"limits":[{"name":"logins","key":null}]}"#,
        r#"{"limits":[{"name":"pairs","key":"a"}]}"#,
        r#"{"limits":[{"name":"logins","key":["a","b"]}]}"#,
        r#"{"limits":[{"name":"logins","key":"a","cost":2147483648}]}"#,
        r#"{"limits":[{"name":"logins","key":"a","more":1}]}"#,
        r#"{"limits":[{"name":"logins","key":"a","cost":-1}]}"#,
    ] {
        let answer = ask(body);
        assert_eq!(answer.status, 400, "{body}");
        let told = String::from_utf8(answer.body).unwrap();
        assert!(told.contains("question-invalid"), "{told}");
    }
    // What a client sends as its key is nothing but a value, so it names no other client's count.
    let question_of = |key: &str| format!(r#"{{"limits":[{{"name":"logins","key":"{key}","cost":3}}]}}"#);
    assert_eq!(ask(&question_of("test")).status, 200);
    let of_others = [
        "sha256:9f86d081884c7d659a2feaa0c55ad015",
        "header:x-user=sha256/9f86d081884c7d659a2feaa0c55ad015",
        "ip:127.0.0.1",
    ];
    assert_eq!(of_others.map(|key| ask(&question_of(key)).status), [200; 3]);
    let without_key = decider.ask("GET /check\nX-Forwarded-Uri: /\nX-Forwarded-Method: GET");
    assert_eq!(without_key.status, 200);
    // A proxy passes on what its client posts.
    let described = decider
        .ask("POST /check\nContent-Type: application/json\nX-Forwarded-Uri: /\nContent-Length: 2\n\n{}");
    assert_eq!(described.status, 200);
}
