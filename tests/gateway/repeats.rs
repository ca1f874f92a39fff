//! Repeated refused requests on a connection get the same response as new ones.

use std::{thread, time::Duration};

use crate::{
    harness::{
        client::Answer,
        gateway::Gateway,
        judge::{Late, in_time, judge},
        redis::Redis,
    },
    limit_all,
};

/// The longest pause of a thread on a machine that can judge.
const PAUSE: Duration = Duration::from_millis(20);

/// Asserts that a repeated request gets the same response as one on a new connection.
fn assert_told_alike(gateway: &Gateway, request: &str) -> Answer {
    let new = gateway.ask(request);
    assert_ne!(new.status, 200, "{request}");
    let mut client = gateway.client();
    for _ in 0..4 {
        assert_eq!(told(&client.ask(request)), told(&new), "{request}");
    }
    new
}

/// Returns a response without the date, its id, and numbers.
fn told(answer: &Answer) -> (u16, Vec<(String, String)>, String) {
    let without_numbers = |text: &str| {
        let is_of_number = |c: char| c.is_ascii_digit() || c == '.';
        text.split(is_of_number)
            .filter(|rest| !rest.is_empty())
            .collect::<Vec<_>>()
            .join("#")
            .replace("#ms", "#s")
    };
    let fields = answer.headers.iter().filter(|(name, _)| name != "date" && name != "x-request-id");
    let fields = fields.map(|(name, value)| (name.clone(), without_numbers(value)));
    (answer.status, fields.collect(), without_numbers(&answer.text()))
}

#[test]
fn what_comes_again_is_told_as_what_is_new() {
    let redis = Redis::start();
    for store in ["", &redis.store()] {
        tells_alike(store);
    }
}

fn tells_alike(store: &str) {
    let route = |path: &str, more: &str| {
        format!("[[routes]]\npath = \"{path}\"\nrespond = {{ status = 200, body = \"in\" }}\n{more}\n")
    };
    let toml = [
        store.to_owned(),
        "[limits.l]\nkey = \"header:x-key\"\nrate = \"1/50s\"\n[limits.wide]\nkey = \"ip\"\nrate = \"900/h\"\n".to_owned(),
        route("/one", "limits = [\"l\"]"),
        "[limits.here]\nkey = \"header:x-key\"\nrate = \"1/50s\"\nscope = \"instance\"\n".to_owned(),
        "[limits.seen]\nkey = \"ip\"\nrate = \"1/50s\"\nmode = \"shadow\"\n".to_owned(),
        "[limits.costly]\nkey = \"ip\"\nrate = \"5/50s\"\ncost = \"header:x-cost\"\n".to_owned(),
        route("/costly", "limits = [\"costly\"]"),
        route("/here", "limits = [\"here\"]"),
        route("/seen", "limits = [\"seen\", \"l\"]"),
        route("/two", "limits = [\"wide\", \"l\"]"),
        route("/own", "limits = [\"l\"]\non_limit = { status = 503, body = \"later\", content_type = \"text/plain\" }"),
        route("/edited", "limits = [\"l\"]\nresponse_headers = { set = { x-set = \"1\" }, remove = [\"ratelimit\"] }"),
    ];
    let gateway = Gateway::start(&toml.concat());
    for path in ["/one", "/here", "/seen", "/two", "/own", "/edited"] {
        for (at, rest) in
            ["", "\nAccept: */*", "\nConnection: keep-alive\nContent-Length: 0", "\nContent-Length: 3\n\nabc"]
                .iter()
                .enumerate()
        {
            for method in ["GET", "POST", "HEAD"] {
                let request = format!("{method} {path}\nX-Key: {method}-{at}-{}{rest}", &path[1..]);
                assert_eq!(gateway.ask(&request).status, 200, "{request}");
                // The store's answer, and from then on this process's.
                assert_ne!(gateway.ask(&request).status, 200, "{request}");
                let first = assert_told_alike(&gateway, &request);
                assert!(gateway.ask(&request).retry_after_ms() <= first.retry_after_ms(), "{request}");
            }
        }
    }
    let never = assert_told_alike(&gateway, "GET /costly\nX-Cost: 6");
    assert_eq!(never.header("retry-after"), None, "it asks for more than there ever is");
}

#[test]
fn what_comes_again_at_once_is_answered_in_turn() {
    let redis = Redis::start();
    for store in ["", &redis.store()] {
        answers_in_turn(store);
    }
}

fn answers_in_turn(store: &str) {
    let gateway = Gateway::start(&(limit_all("key = \"header:x-key\"\nrate = \"1/h\"") + store));
    let get = |key: &str| format!("GET / HTTP/1.1\r\nHost: a\r\nX-Key: {key}\r\n\r\n");
    let mut client = gateway.client();
    let flood = get("a").repeat(40);
    client.send([&flood, &*get("b"), &flood, &get("c"), &get("a")[..20]].concat().as_bytes());
    let mut statuses: Vec<u16> = (0..82).map(|_| client.answer().status).collect();
    client.send(&get("a").as_bytes()[20..]);
    statuses.push(client.answer().status);
    let passed = statuses.iter().enumerate().filter(|(_, status)| **status == 200).map(|(at, _)| at);
    assert_eq!(passed.collect::<Vec<_>>(), [0, 40, 81], "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 80, "{statuses:?}");
}

#[test]
fn the_id_of_a_trusted_peers_request_is_stated_each_time() {
    let toml = format!(
        "[server]\ntrusted_proxies = [\"127.0.0.1\"]\n{}",
        limit_all("key = \"header:x-key\"\nrate = \"1/h\"")
    );
    let gateway = Gateway::start(&toml);
    let mut client = gateway.client();
    let request = "GET /\nX-Key: a\nX-Request-Id: mine";
    for status in [200, 429, 429, 429, 429] {
        let answer = client.ask(request);
        assert_eq!((answer.status, answer.header("x-request-id")), (status, Some("mine")));
    }
}

#[test]
fn what_comes_again_passes_as_soon_as_it_may() {
    let redis = Redis::start();
    for store in ["", &redis.store()] {
        judge(PAUSE, || lets_pass(store));
    }
}

fn lets_pass(store: &str) -> Result<(), Late> {
    let limited = |rate: &str| limit_all(&format!("key = \"ip\"\nrate = \"{rate}\""));
    let toml = |rate: &str| limited(rate) + store;
    let gateway = Gateway::start(&toml("1/400ms"));
    let mut client = gateway.client();
    for _ in 0..3 {
        assert_eq!(client.get("/").status, 200);
        let refused: Vec<_> = (0..3).map(|_| client.get("/")).collect();
        in_time(refused.iter().all(|answer| answer.status == 429), || format!("{refused:?}"))?;
        thread::sleep(Duration::from_millis(refused[2].retry_after_ms()));
    }
    assert_eq!(client.get("/").status, 200);

    gateway.reload(&toml("1/h"));
    let statuses: Vec<u16> = (0..4).map(|_| client.get("/").status).collect();
    in_time(statuses == [429; 4], || format!("{statuses:?}"))?;
    // Another file says what is told, also if others have found out that the limit still refuses; or lets it pass.
    gateway.reload(&(limited("1/h") + "on_limit = { status = 503 }\n" + store));
    assert_eq!([gateway.get("/").status, client.get("/").status], [503, 503]);
    gateway.reload(&toml("2/h"));
    let answer = client.get("/");
    assert_eq!((answer.status, answer.header("ratelimit-policy")), (200, Some("\"l\";q=2;w=3600")));
    assert_eq!(client.get("/").status, 429);
    Ok(())
}

#[test]
fn what_is_kept_of_those_who_were_refused_is_little() {
    const CLIENTS: usize = 200;
    const KIB: usize = 256;
    let toml = limit_all("key = \"ip\"\nrate = \"1/h\"")
        + &format!("on_limit = {{ status = 429, body = \"{}\" }}\n", "x".repeat(KIB << 10));
    let gateway = Gateway::start(&toml);
    assert_eq!(gateway.get("/").status, 200);
    assert_eq!(gateway.get("/").body.len(), KIB << 10);
    let before = gateway.memory_kib("VmRSS");
    let idle: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let mut client = gateway.client();
            assert_eq!(client.get("/").body.len(), KIB << 10);
            client
        })
        .collect();
    let grown = gateway.grew_kib(before);
    assert!(grown < CLIENTS * KIB / 4, "{grown} KiB for {} clients", idle.len());
}
