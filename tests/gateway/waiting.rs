//! Requests that wait for room.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::{
    harness::{
        client::Client,
        gateway::Gateway,
        judge::{in_time, judge, within},
        redis::Redis,
        wait_until,
    },
    limit_all,
};

const MS: Duration = Duration::from_millis(1);
/// What the machine may keep a thread waiting for.
const PAUSE: Duration = Duration::from_millis(20);
const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn a_refused_request_is_held_until_there_is_room() {
    judge(PAUSE, || {
        let redis = Redis::start();
        let keys = "key = \"global\"\nrate = \"2/400ms\"\nwait = \"1s\"";
        for store in ["", &redis.store()] {
            let gateway = Gateway::start(&format!("{store}{}", limit_all(keys)));
            let since = Instant::now();
            let clients: Vec<_> = (0..4)
                .map(|_| {
                    let mut client = gateway.client();
                    thread::spawn(move || (client.get("/").status, since.elapsed()))
                })
                .collect();
            let mut served: Vec<_> = clients.into_iter().map(|client| client.join().unwrap()).collect();
            served.sort_by_key(|(_, took)| *took);
            in_time(served.iter().all(|(status, _)| *status == 200), || format!("{served:?}"))?;
            assert!(served[2].1 >= 400 * MS, "{served:?}");
            within(served[3].1, 900 * MS, "the last")?;
        }
        Ok(())
    });
}

#[test]
fn a_request_that_would_wait_too_long_is_refused_at_once() {
    judge(PAUSE, || {
        let keys = "key = \"global\"\nrate = \"1/2s\"\nwait = \"500ms\"";
        let gateway = Gateway::start(&limit_all(keys));
        let since = Instant::now();
        assert_eq!(gateway.get("/").status, 200);
        let refused = gateway.get("/");
        within(since.elapsed(), 400 * MS, "refusing it")?;
        assert_eq!(refused.status, 429);
        assert!((1_000..=2_000).contains(&refused.retry_after_ms()));
        Ok(())
    });
}

#[test]
fn it_waits_only_if_every_limit_that_refuses_lets_it() {
    judge(PAUSE, || {
        let two = |first: &str, second: &str| {
            let toml = limit_all(&format!("key = \"global\"\nrate = \"1/400ms\"\n{first}"));
            let toml = toml.replace("limits = [\"l\"]", "limits = [\"l\", \"m\"]");
            Gateway::start(&format!("[limits.m]\nkey = \"global\"\nrate = \"1/300ms\"\n{second}\n{toml}"))
        };
        let second_of = |gateway: Gateway| {
            assert_eq!(gateway.get("/").status, 200);
            let since = Instant::now();
            (gateway.get("/").status, since.elapsed())
        };
        let (status, took) = second_of(two("wait = \"1s\"", "wait = \"2s\""));
        in_time(status == 200, || format!("{status} after {took:?}"))?;
        let (status, took) = second_of(two("wait = \"1s\"", ""));
        within(took, 250 * MS, "refusing it")?;
        assert_eq!(status, 429);
        // The smallest budget holds.
        let (status, took) = second_of(two("wait = \"1s\"", "wait = \"20ms\""));
        within(took, 250 * MS, "refusing it")?;
        assert_eq!(status, 429);
        Ok(())
    });
}

#[test]
fn a_client_that_leaves_frees_its_place() {
    // Nobody reads its body while it waits.
    let post = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello".as_slice();
    for request in [GET, post] {
        assert_leaver_frees_its_place(request);
    }
}

fn assert_leaver_frees_its_place(request: &[u8]) {
    judge(PAUSE, || {
        let keys = "key = \"global\"\nrate = \"1/1s\"\nwait = \"1500ms\"";
        let gateway = Gateway::start(&limit_all(keys));
        let since = Instant::now();
        assert_eq!(gateway.get("/").status, 200);
        let mut leaver = gateway.client();
        leaver.send(request);
        // It has joined by then. Behind it there is no hope.
        thread::sleep(100 * MS);
        let behind = gateway.get("/");
        in_time(behind.status == 429 && behind.retry_after_ms() > 1_500, || format!("{behind:?}"))?;
        drop(leaver);
        let mut served = 0;
        wait_until("the place is free", || {
            served = gateway.get("/").status;
            served == 200
        });
        within(since.elapsed(), 1_900 * MS, "serving the next")?;
        Ok(())
    });
}

#[test]
fn those_who_wait_are_answered_when_the_gateway_drains() {
    let keys = "key = \"global\"\nrate = \"1/500ms\"\nwait = \"30s\"";
    let mut gateway = Gateway::start(&format!("[server]\nworkers = 2\n{}", limit_all(keys)));
    assert_eq!(gateway.get("/").status, 200);
    let mut clients: Vec<_> = (0..4).map(|_| gateway.client()).collect();
    for client in &mut clients {
        client.send(GET);
    }
    thread::sleep(100 * MS);
    gateway.signal("TERM");
    for client in &mut clients {
        assert_eq!(client.answer().status, 200);
    }
    wait_until("the gateway ends", || gateway.ended().is_some());
}

#[test]
fn those_who_wait_are_held_to_the_quota_of_a_reload() {
    let redis = Redis::start();
    for store in ["", &redis.store()] {
        let toml = |rate: &str| {
            let keys = "key = \"header:x-key\"\nwait = \"1m\"\nrate = \"RATE\"\n\
                        overrides = [{ key = \"own\", rate = \"RATE\" }]";
            format!("{store}{}", limit_all(&keys.replace("RATE", rate)))
        };
        // More room, for those with a rate of their own, too.
        let gateway = Gateway::start(&toml("1/40s"));
        let [mut any, mut own] = ["any", "own"].map(|key| {
            let field = format!("x-key: {key}\r\n");
            assert_eq!(gateway.client().get_with("/", &field).status, 200);
            let mut client = gateway.client();
            client.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{field}\r\n").as_bytes());
            client
        });
        assert!(![&mut any, &mut own].into_iter().any(|client| client.hears_within(200 * MS)));
        let since = Instant::now();
        gateway.reload(&toml("2/40s"));
        assert_eq!([any.answer().status, own.answer().status], [200, 200]);
        assert!(since.elapsed() < 30_000 * MS, "served after {:?}", since.elapsed());
        // Less room: it would come too late.
        let mut late = gateway.client();
        late.send(b"GET / HTTP/1.1\r\nHost: a\r\nx-key: any\r\n\r\n");
        assert!(!late.hears_within(200 * MS));
        let since = Instant::now();
        gateway.reload(&toml("1/h"));
        assert_eq!(late.answer().status, 429);
        assert!(since.elapsed() < 30_000 * MS, "refused after {:?}", since.elapsed());
    }
}

#[test]
fn those_who_wait_are_held_to_the_rate_of_a_pattern() {
    let toml = |rate: &str| {
        limit_all(&format!(
            "key = [\"header:x-plan\", \"method\"]\nwait = \"1m\"\nrate = \"1/h\"\n\
             overrides = [{{ key = [\"pro\", \"*\"], rate = \"{rate}\" }}]"
        ))
    };
    let gateway = Gateway::start(&toml("1/40s"));
    assert_eq!(gateway.client().get_with("/", "x-plan: pro\r\n").status, 200);
    let mut client = gateway.client();
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\nx-plan: pro\r\n\r\n");
    assert!(!client.hears_within(200 * MS));
    let since = Instant::now();
    gateway.reload(&toml("2/40s"));
    assert_eq!(client.answer().status, 200);
    assert!(since.elapsed() < 30_000 * MS, "served after {:?}", since.elapsed());
}

#[test]
fn those_who_wait_are_refused_for_good_by_a_rate_of_zero() {
    let redis = Redis::start();
    for store in ["", &redis.store()] {
        // The wait is longer than the window, so that time lost on a busy machine refuses nobody.
        let keys = "key = \"header:x-key\"\nwait = \"1h\"\nrate = \"1/30min\"";
        let gateway = Gateway::start(&format!(
            "[server]\nworkers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n{store}{}",
            limit_all(keys)
        ));
        let (_, admin) = gateway.greeting().split_once("dashboard: http://").unwrap();
        let admin = admin.lines().next().unwrap().parse().unwrap();
        assert_eq!(gateway.client().get_with("/", "x-key: a\r\n").status, 200);
        let mut waiting = gateway.client();
        waiting.send(b"GET / HTTP/1.1\r\nHost: a\r\nx-key: a\r\n\r\n");
        assert!(!waiting.hears_within(200 * MS));
        let body = "{\"rate\":\"0\"}";
        let set = Client::connect(admin).ask(&format!(
            "PUT /api/limits/l/keys/a/override\nHost: 127.0.0.1\nContent-Type: application/json\nContent-Length: {}\n\n{body}",
            body.len()
        ));
        assert_eq!(set.status / 100, 2, "{set:?}");
        let refused = waiting.answer();
        assert_eq!((refused.status, refused.header("retry-after")), (429, None));
        // The only worker serves others.
        assert_eq!(gateway.client().get_with("/", "x-key: b\r\n").status, 200);
    }
}
