//! `concurrency` limits over all gateways.

use std::{
    sync::{
        Arc, Mutex,
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    forward_all,
    harness::{
        client::{Answer, Client},
        gateway::Gateway,
        redis::Redis,
        wait_until,
        wire::WireUpstream,
    },
};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbe";

/// A configuration that sends all to an upstream, so many at a time.
fn at_most(permits: u32, url: &str, store: &str, lease: &str) -> String {
    format!(
        "{store}[limits.l]\nkey = \"global\"\nalgorithm = \"concurrency\"\nrate = \"{permits}\"\nlease = \"{lease}\"\n{}limits = [\"l\"]\n",
        forward_all(url, "")
    )
}

/// An upstream that sends half of each answer, and the other half for each word on the channel.
fn in_halves() -> (WireUpstream, Sender<()>) {
    let (go, gone): (Sender<()>, Receiver<()>) = mpsc::channel();
    let gone = Arc::new(Mutex::new(gone));
    let upstream = WireUpstream::start(move |mut wire| {
        while wire.request().is_some() {
            wire.send(HEAD);
            if gone.lock().unwrap().recv().is_err() {
                return;
            }
            wire.send(b"en");
        }
    });
    (upstream, go)
}

/// Sends a request, and if it is admitted reads the first half of the answer.
fn try_to_begin(gateway: &Gateway) -> Result<Client, Answer> {
    let mut client = gateway.client();
    client.send(GET);
    let answer = client.head();
    if answer.status != 200 {
        return Err(answer);
    }
    client.bytes(2);
    Ok(client)
}

/// Sends a request that is admitted, and reads the first half of the answer.
fn begin(gateway: &Gateway) -> Client {
    try_to_begin(gateway).unwrap()
}

#[test]
fn at_most_so_many_are_in_flight_over_two_gateways() {
    let redis = Redis::start();
    for store in ["", &redis.store()] {
        let (upstream, go) = in_halves();
        let toml = at_most(3, &upstream.url(), store, "30s");
        let one = Gateway::start(&toml);
        let other = if store.is_empty() { None } else { Some(Gateway::start(&toml)) };
        let other = other.as_ref().unwrap_or(&one);
        let mut running = [begin(&one), begin(other), begin(other)];
        for gateway in [&one, other] {
            let refused = gateway.get("/");
            assert_eq!(refused.status, 429);
            assert_eq!((refused.header("retry-after"), refused.header("retry-after-ms")), (Some("1"), None));
            let policy = refused.header("ratelimit-policy").unwrap();
            assert_eq!(policy, "\"l\";q=3;qu=\"concurrent-requests\"");
            assert_eq!(refused.header("ratelimit"), Some("\"l\";r=0"));
            assert!(refused.json().get("retry_after_ms").is_none());
        }
        // Its end frees the place at once, wherever it is asked for.
        go.send(()).unwrap();
        wait_until("one has ended", || {
            running.iter_mut().any(|client| {
                let stream = client.writer();
                stream.set_nonblocking(true).unwrap();
                let has_more = stream.peek(&mut [0]).is_ok();
                stream.set_nonblocking(false).unwrap();
                has_more
            })
        });
        for gateway in [&one, other] {
            let mut admitted = None;
            wait_until("there is room again", || {
                let mut client = gateway.client();
                client.send(GET);
                let is_admitted = client.head().status == 200;
                admitted = is_admitted.then_some(client);
                is_admitted
            });
            drop(admitted);
        }
        drop(go);
    }
}

#[test]
fn a_lease_ends_with_its_client_and_with_its_upstream() {
    let redis = Redis::start();
    for store in ["", &redis.store()] {
        let (upstream, _go) = in_halves();
        let gateway = Gateway::start(&at_most(1, &upstream.url(), store, "30s"));
        for _ in 0..3 {
            let mut client = None;
            wait_until("the lease of the client that left has ended", || {
                let mut next = gateway.client();
                next.send(GET);
                let admitted = next.head().status == 200;
                client = admitted.then_some(next);
                admitted
            });
            assert_eq!(gateway.get("/").status, 429);
            drop(client);
        }
        let gone = WireUpstream::start(drop);
        let gateway = Gateway::start(
            &at_most(1, &gone.url(), store, "31s")
                .replace("[limits.l]", "[limits.other]")
                .replace("[\"l\"]", "[\"other\"]"),
        );
        for _ in 0..5 {
            wait_until("the lease of the request that failed has ended", || gateway.get("/").status == 502);
        }
    }
}

#[test]
fn a_lease_is_renewed_while_its_request_runs() {
    let redis = Redis::start();
    for store in ["", &redis.store()] {
        let (upstream, _go) = in_halves();
        let gateway = Gateway::start(&at_most(1, &upstream.url(), store, "3s"));
        let _running = begin(&gateway);
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(4) {
            assert_eq!(gateway.get("/").status, 429, "after {:?}", since.elapsed());
            thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn the_leases_of_a_gateway_that_dies_expire() {
    let redis = Redis::start();
    let (upstream, _go) = in_halves();
    let toml = at_most(1, &upstream.url(), &redis.store(), "1s");
    let (dies, lives) = (Gateway::start(&toml), Gateway::start(&toml));
    let running = begin(&dies);
    assert_eq!(lives.get("/").status, 429);
    let since = Instant::now();
    drop(dies);
    wait_until("the lease has expired", || {
        let mut client = lives.client();
        client.send(GET);
        client.head().status == 200
    });
    assert!(since.elapsed() < Duration::from_secs(4), "{:?}", since.elapsed());
    drop(running);
}

#[test]
fn requests_that_end_while_redis_stands_still_leave_their_places_to_others() {
    const PLACES: u32 = 4;
    for until_it_is_noticed in [false, true] {
        let redis = Redis::start();
        let (upstream, go) = in_halves();
        let store = redis.store().replace("5s", "200ms");
        let toml = at_most(PLACES, &upstream.url(), &store, "1h");
        let gateway = Gateway::start(&toml.replace("lease =", "on_failure = \"deny\"\nlease ="));
        let mut running = Vec::new();
        wait_until("all places are taken", || {
            running.extend(try_to_begin(&gateway));
            running.len() == PLACES as usize
        });
        redis.pause();
        // What comes now is asked of Redis, which may grant it when it goes on.
        assert_eq!([(); 2].map(|()| gateway.get("/").status), [503, 503]);
        if until_it_is_noticed {
            wait_until("it is noticed", || {
                gateway.get("/");
                gateway.log().contains("the store fails")
            });
        }
        running.iter().for_each(|_| go.send(()).unwrap());
        running.iter_mut().for_each(|client| drop(client.bytes(2)));
        // By the time at which this has failed, the releases have.
        assert_eq!(gateway.get("/").status, 503);
        redis.resume();
        drop(running);
        wait_until("all places are free", || {
            let again: Vec<_> = (0..=PLACES).map_while(|_| try_to_begin(&gateway).ok()).collect();
            again.len() == PLACES as usize
        });
    }
}
