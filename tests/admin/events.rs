//! `/events`: live state, and the history of the last minutes.

use std::{fs, io::BufRead};

use serde_json::Value;

use crate::{
    admin::{admin, gateway, gateway_with_token},
    harness::{client::Client, gateway::Gateway, redis::Redis, upstream::Upstream, wait_until},
};

/// What a gateway's operators are told as it happens.
pub(crate) struct Events(Box<dyn BufRead>);

impl Events {
    pub(crate) fn of(gateway: &Gateway) -> Self {
        Self::with(gateway, "")
    }

    /// Returns the events for a request with this header line.
    fn with(gateway: &Gateway, line: &str) -> Self {
        let mut client = Client::connect(admin(gateway).parse().unwrap());
        client.send(format!("GET /events HTTP/1.1\r\nHost: localhost\r\n{line}\r\n").as_bytes());
        let answer = client.head();
        assert_eq!((answer.status, answer.header("content-type")), (200, Some("text/event-stream")));
        Self(Box::new(client.into_reader()))
    }

    /// The name of the next event, and what it tells. (Each event is a chunk of the body.)
    pub(crate) fn next(&mut self) -> (String, Value) {
        self.try_next().expect("the stream has ended")
    }

    /// The next event, if there is one more.
    fn try_next(&mut self) -> Option<(String, Value)> {
        let mut name = String::new();
        loop {
            let mut line = String::new();
            // The last chunk of a body has no bytes.
            if self.0.read_line(&mut line).unwrap() == 0 || line == "0\r\n" {
                return None;
            }
            if let Some(event) = line.strip_prefix("event: ") {
                event.trim().clone_into(&mut name);
            } else if let Some(data) = line.strip_prefix("data: ") {
                return Some((name, serde_json::from_str(data).unwrap()));
            }
        }
    }
}

fn get(gateway: &Gateway, path: &str) -> Value {
    Client::connect(admin(gateway).parse().unwrap()).ask(&format!("GET {path}\nHost: localhost")).json()
}

#[test]
fn what_went_on_is_told_first_and_then_what_goes_on() {
    let gateway = gateway("1/h", "");
    assert_eq!([gateway.get("/").status, gateway.get("/").status], [200, 429]);
    let mut events = Events::of(&gateway);
    let (name, history) = events.next();
    let columns = ["time_ms", "seconds", "1xx", "2xx", "3xx", "4xx", "5xx", "refused", "p50_ms", "p99_ms"];
    assert_eq!((name.as_str(), &history["columns"]), ("history", &serde_json::json!(columns)));
    let (mut time, mut times, mut sums) = (0, 0, [0.0; 8]);
    let add = |sample: &Value, sums: &mut [f64; 8]| {
        (0..8).for_each(|column| sums[column] += sample[column].as_f64().unwrap());
    };
    for sample in history["samples"].as_array().unwrap() {
        add(sample, &mut sums);
        time = sample[0].as_u64().unwrap();
    }
    while times < 3 {
        let (name, state) = events.next();
        assert_eq!(
            (name.as_str(), &state["limits"][0]["decisions"]["refused"]),
            ("state", &serde_json::json!(1))
        );
        if let Some(later) = state["sample"][0].as_u64().filter(|later| *later > time) {
            add(&state["sample"], &mut sums);
            (time, times) = (later, times + 1);
        }
    }
    assert!(sums[1] > 2.5, "{sums:?}");
    assert_eq!(sums[2..], [0.0, 1.0, 0.0, 1.0, 0.0, 1.0]);
}

#[test]
fn a_stream_ends_with_the_access_of_its_client() {
    let gateway = gateway_with_token();
    let ask = |request: &str| Client::connect(admin(&gateway).parse().unwrap()).ask(request);
    let log_in = "POST /api/session\nHost: localhost\nContent-Type: application/json\nContent-Length: 33\n\n\
                  {\"token\":\"correct-horse-battery\"}";
    let cookie = || {
        let set = ask(log_in).header("set-cookie").unwrap().to_owned();
        format!("Cookie: {}", set.split(';').next().unwrap())
    };
    let ends = |mut events: Events| (0..30).any(|_| events.try_next().is_none());
    let (one, other, token) = (cookie(), cookie(), "Authorization: Bearer correct-horse-battery");
    let listen = |line: &str| {
        let mut events = Events::with(&gateway, &format!("{line}\r\n"));
        assert_eq!(["history", "state", "state"].map(|_| events.next().0), ["history", "state", "state"]);
        events
    };
    let [of_one, mut of_other, of_token] = [&one, &other, token].map(listen);
    let end = format!("DELETE /api/session\nHost: localhost\nContent-Type: application/json\n{one}");
    assert_eq!(ask(&end).status, 204);
    assert!(ends(of_one), "it ends with its login");
    (0..3).for_each(|_| drop(of_other.next()));

    let file = fs::read_to_string(gateway.folder().join("gateway.toml")).unwrap();
    gateway.reload(&file.replace("correct-horse-battery", "another-horse-battery"));
    wait_until("the token has changed", || {
        ask(&format!("GET /api/limits\nHost: localhost\n{token}")).status != 200
    });
    assert!(ends(of_other) && ends(of_token), "they end with the token");
    drop(listen("Authorization: Bearer another-horse-battery"));
}

#[test]
fn routes_and_upstreams_tell_how_they_fare() {
    let (upstream, redis) = (Upstream::mirror(), Redis::start());
    let gateway = Gateway::start(&format!(
        "{}\n[admin]\nlisten = \"127.0.0.1:0\"\n[limits.l]\nkey = \"ip\"\nrate = \"3/h\"\n\
         [upstreams.up]\nservers = [{{ url = \"{}\", weight = 2 }}]\n[upstreams.gone]\nservers = [\"http://127.0.0.1:1\"]\n\
         eject = {{ failures = 1, for = \"1h\", max = \"100%\" }}\n\
         [[routes]]\nname = \"a\"\nhost = \"*.example.com\"\npath = \"/a/{{id}}\"\nmethods = [\"GET\", \"PUT\"]\nupstream = \"up\"\n\
         limits = [\"l\"]\n[[routes]]\nname = \"b\"\npath = \"/b\"\nupstream = \"gone\"\n",
        redis.store(),
        upstream.url()
    ));
    for status in [200, 200, 200, 429] {
        assert_eq!(gateway.ask("GET /a/1\nHost: www.example.com").status, status);
    }
    assert_eq!((gateway.get("/b").status, gateway.get("/c").status), (502, 404));
    wait_until("the last is counted", || get(&gateway, "/api/routes")[0]["requests"]["4xx"] == 1);
    let routes = get(&gateway, "/api/routes");
    let names: Vec<_> =
        routes.as_array().unwrap().iter().map(|route| route["route"].as_str().unwrap()).collect();
    assert_eq!(names, ["", "a", "b"]);
    let of = serde_json::json!([{
        "host": "*.example.com", "path": "/a/{id}", "methods": ["GET", "PUT"], "upstream": "up", "limits": ["l"],
    }]);
    assert_eq!(routes[1]["matches"], of);
    let requests = serde_json::json!({ "1xx": 0, "2xx": 3, "3xx": 0, "4xx": 1, "5xx": 0 });
    assert_eq!((&routes[1]["requests"], &routes[1]["refused"]), (&requests, &serde_json::json!(1)));
    assert_eq!(
        (&routes[2]["requests"]["5xx"], &routes[2]["refused"]),
        (&serde_json::json!(1), &serde_json::json!(0))
    );
    assert!(routes[1]["p50_ms"].as_f64().unwrap() <= routes[1]["p99_ms"].as_f64().unwrap());

    let upstreams = get(&gateway, "/api/upstreams");
    let (gone, up) = (&upstreams[0]["servers"][0], &upstreams[1]["servers"][0]);
    assert_eq!(
        (&gone["server"], &gone["failures"], &gone["up"]),
        (&"127.0.0.1:1".into(), &1.into(), &true.into())
    );
    assert!(gone["ejected_for_ms"].as_u64().unwrap() > 3_000_000, "{gone}");
    let told = ["weight", "answers", "failures", "in_flight"].map(|name| up[name].as_u64().unwrap());
    assert_eq!((told, &up["ejected_for_ms"]), ([2, 3, 0, 0], &Value::Null));

    let mut events = Events::of(&gateway);
    events.next();
    let (_, state) = events.next();
    let node = &state["store"]["nodes"][0];
    assert_eq!(
        (&node["node"], &node["breaker_open"]),
        (&format!("127.0.0.1:{}", redis.port()).into(), &false.into())
    );
    assert_eq!((&state["store"]["up"], &state["reload"]), (&true.into(), &Value::Null));
}

#[test]
fn the_last_reload_is_told() {
    let toml = |rate: &str| {
        format!(
            "[admin]\nlisten = \"127.0.0.1:0\"\n[limits.l]\nkey = \"ip\"\nrate = \"{rate}\"\n\
             [[routes]]\npath = \"/\"\nrespond = {{ status = 200 }}\nlimits = [\"l\"]\n"
        )
    };
    let gateway = Gateway::start(&toml("5/h"));
    let reload = || {
        let mut events = Events::of(&gateway);
        events.next();
        events.next().1["reload"].take()
    };
    assert_eq!(reload(), Value::Null);
    gateway.reload(&toml("7/h"));
    wait_until("it is told", || reload()["good"] == true);
    let told = reload();
    assert_eq!(told["changes"], serde_json::json!(["limit `l` 5/h → 7/h: counts kept"]));
    assert!(told["time_ms"].as_u64().unwrap() > 1_700_000_000_000);
    gateway.reload(&toml("often"));
    wait_until("it is told", || reload()["good"] == false);
    assert!(reload()["fault"].as_str().unwrap().contains("`often`"), "{}", reload());
}

#[test]
fn keys_that_ask_most_are_told_as_the_port_takes_them() {
    let redis = Redis::start();
    let gateway = Gateway::start(&format!(
        "{}\n[admin]\nlisten = \"127.0.0.1:0\"\n[limits.by-key]\nkey = [\"header:x-api-key\", \"method\"]\nrate = \"3/h\"\n\
         overrides = [{{ key = '[\"gold\",\"GET\"]', rate = \"9/h\" }}]\n\
         [[routes]]\npath = \"/\"\nrespond = {{ status = 200 }}\nlimits = [\"by-key\"]\n",
        redis.store()
    ));
    (0..5).for_each(|_| drop(gateway.ask("GET /\nx-api-key: gold")));
    (0..4).for_each(|_| drop(gateway.get("/")));
    let top = get(&gateway, "/api/top?by=requests");
    let told =
        |at: usize| (top[at]["limit"].as_str(), top[at]["at_least"].as_u64(), top[at]["at_most"].as_u64());
    assert_eq!([told(0), told(1)], [(Some("by-key"), Some(5), Some(5)), (Some("by-key"), Some(4), Some(4))]);
    let written: Vec<_> = [0, 1].map(|at| top[at]["written"].as_str().unwrap().to_owned()).into();
    assert!(written[0].starts_with("[\"sha256:") && written[0].ends_with("\",\"GET\"]"), "{written:?}");
    assert_eq!(written[1], "[\"ip:127.0.0.1\",\"GET\"]");
    let refused = get(&gateway, "/api/top?by=refused");
    assert_eq!((refused.as_array().unwrap().len(), &refused[0]["written"]), (1, &top[1]["written"]));
    for (written, rate, used) in [(&written[0], "9/h", 5), (&written[1], "3/h", 3)] {
        let key = percent_encoding::utf8_percent_encode(written, percent_encoding::NON_ALPHANUMERIC);
        let state = get(&gateway, &format!("/api/limits/by-key/keys/{key}"));
        assert_eq!((&state["rate"], &state["used"]), (&rate.into(), &used.into()), "{state}");
    }
}

#[test]
fn a_reload_keeps_who_asked_most() {
    let gateway = gateway("1/h", "");
    assert_eq!(gateway.get("/").status, 200);
    gateway.reload(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[limits.l]\nkey = \"global\"\nrate = \"1/h\"\n\
         [[routes]]\npath = \"/\"\nrespond = { status = 200 }\nlimits = [\"l\"]\n",
    );
    // What it was counted by isn't what the limit counts by now.
    let top = get(&gateway, "/api/top?by=requests");
    assert_eq!((&top[0]["key"], &top[0]["written"]), (&"ip=127.0.0.1".into(), &Value::Null));
}
