//! Load balancing.

use std::sync::{Mutex, mpsc};

use crate::{
    harness::{gateway::Gateway, upstream::Upstream, wait_until, wire::WireUpstream},
    proxy::{forward_to, quoted},
};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nup";

fn weighted(upstream: &Upstream, weight: u32) -> String {
    format!("{{ url = \"{}\", weight = {weight} }}", upstream.url())
}

#[test]
fn servers_take_turns_as_often_as_their_weights_say() {
    let servers = [(); 3].map(|()| Upstream::hello());
    let [one, two, three] = &servers;
    let list = [weighted(one, 2), quoted(two.url()), weighted(three, 1)];
    let gateway = Gateway::start(&forward_to(&list, "balance = \"round-robin\""));
    for _ in 0..40 {
        // Each on a connection of its own, so that all workers take part.
        assert_eq!(gateway.get("/").status, 200);
    }
    assert_eq!(servers.each_ref().map(Upstream::count), [20, 10, 10]);
}

#[test]
fn draws_follow_the_weights() {
    for balance in ["random", "least-request"] {
        let servers = [(); 2].map(|()| Upstream::hello());
        let list = [weighted(&servers[0], 9), weighted(&servers[1], 1)];
        let gateway = Gateway::start(&forward_to(&list, &format!("balance = \"{balance}\"")));
        let mut client = gateway.client();
        for _ in 0..300 {
            assert_eq!(client.get("/").status, 200);
        }
        let [heavy, light] = servers.each_ref().map(Upstream::count);
        assert!(heavy + light == 300 && heavy > 200 && light > 0, "{balance}: {heavy}, {light}");
    }
}

#[test]
fn a_server_that_is_busy_gets_no_more() {
    let (answer, answers) = mpsc::channel::<()>();
    let answers = Mutex::new(answers);
    let busy = WireUpstream::start(move |mut wire| {
        while wire.request().is_some() {
            let _ = answers.lock().unwrap().recv();
            wire.send(OK);
        }
    });
    let idle = Upstream::hello();
    let gateway = Gateway::start(&forward_to(&[quoted(busy.url()), quoted(idle.url())], ""));
    let mut held = loop {
        let before = idle.count();
        let mut client = gateway.client();
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        wait_until("the request arrives", || busy.connections() + idle.count() > before);
        if busy.connections() > 0 {
            break client;
        }
        assert_eq!(client.answer().text(), "hello");
    };
    for _ in 0..50 {
        assert_eq!(gateway.get("/").text(), "hello");
    }
    drop(answer);
    assert_eq!(held.answer().text(), "up");
    assert_eq!(busy.connections(), 1);
}

#[test]
fn a_server_that_is_named_twice_is_one_with_both_shares() {
    let servers = [(); 2].map(|()| Upstream::hello());
    let list = [quoted(servers[0].url()), quoted(servers[1].url()), weighted(&servers[0], 2)];
    let gateway = Gateway::start(&forward_to(&list, "balance = \"round-robin\""));
    for _ in 0..20 {
        assert_eq!(gateway.get("/").status, 200);
    }
    assert_eq!(servers.each_ref().map(Upstream::count), [15, 5]);
}
