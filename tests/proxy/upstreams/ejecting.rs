//! Failing servers are ejected for a while.

use http_body_util::BodyExt;
use hyper::Response;

use super::failing::metrics;
use crate::{
    harness::{
        frames::{CANCEL, ENHANCE_YOUR_CALM, Frames, HEADERS, INTERNAL_ERROR, PROTOCOL_ERROR},
        gateway::Gateway,
        upstream::{Upstream, whole},
        wait_until,
        wire::WireUpstream,
    },
    proxy::{cleartext_http2, forward_to, quoted},
};

fn answering(status: u16) -> Upstream {
    Upstream::start(move |request| async move {
        let _ = request.into_body().collect().await;
        Response::builder().status(status).body(whole("")).unwrap()
    })
}

fn gateway(servers: &[&Upstream], eject: &str) -> Gateway {
    let list = servers.iter().map(|server| quoted(server.url())).collect::<Vec<_>>();
    Gateway::start(&forward_to(&list, &format!("balance = \"round-robin\"\neject = {{ {eject} }}")))
}

fn ask(gateway: &Gateway, times: usize) -> Vec<u16> {
    let mut client = gateway.client();
    (0..times).map(|_| client.get("/").status).collect()
}

#[test]
fn a_server_that_fails_in_a_row_gets_no_requests_for_a_while() {
    for status in [502, 503, 504] {
        let (bad, good) = (answering(status), answering(200));
        let gateway = gateway(&[&bad, &good], "failures = 3, for = \"1h\"");
        assert_eq!(ask(&gateway, 30).iter().filter(|told| **told == status).count(), 3);
        assert_eq!((bad.count(), good.count()), (3, 27));
        wait_until("it is logged", || gateway.log().contains("ejected for 3600s after 3 failures in a row"));
    }
}

#[test]
fn what_the_application_answers_is_no_failure_of_the_server() {
    let (bad, good) = (answering(500), answering(200));
    ask(&gateway(&[&bad, &good], "failures = 1, for = \"1h\""), 10);
    assert_eq!((bad.count(), good.count()), (5, 5));
}

#[test]
fn a_body_that_comes_too_late_for_its_route_is_no_failure_of_the_server() {
    let servers = [answering(200), answering(200)];
    let list = servers.each_ref().map(|server| quoted(server.url()));
    let keys = "balance = \"round-robin\"\neject = { failures = 1, for = \"1h\", max = \"50%\" }";
    let gateway = Gateway::start(&(forward_to(&list, keys) + "timeout = \"100ms\""));
    for _ in 0..4 {
        let mut client = gateway.client();
        client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\nabc");
        let answer = client.answer();
        assert_eq!((answer.status, &answer.json()["code"]), (408, &"request-timeout".into()));
    }
    assert_eq!(ask(&gateway, 6), [200; 6]);
    assert_eq!(servers.each_ref().map(Upstream::count), [5, 5]);
}

/// Else a client could have servers ejected that close connections after some time without bytes of a body, as nginx does.
#[test]
fn a_server_that_closes_on_an_unfinished_body_is_not_ejected() {
    let impatient = WireUpstream::start(|mut wire| {
        while let Some(head) = wire.request() {
            if head.starts_with("POST") {
                wire.read("abc".len());
                std::thread::sleep(std::time::Duration::from_millis(1_100));
                return;
            }
            wire.send(b"HTTP/1.1 299 Own\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let good = answering(200);
    let list = [impatient.url(), good.url()].map(quoted);
    let keys = "balance = \"round-robin\"\neject = { failures = 1, for = \"1h\", max = \"50%\" }";
    let gateway = Gateway::start(&forward_to(&list, keys));
    for (length, then) in [(4, [200, 299, 200, 299, 200]), (3, [200; 5])] {
        let post = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\nabc");
        let mut client = gateway.client();
        client.send(post.as_bytes());
        let answer = client.answer();
        assert_eq!((answer.status, &answer.json()["code"]), (502, &"upstream-broken".into()));
        assert_eq!(ask(&gateway, 5), then, "{length}");
    }
}

/// Else a client could have all servers ejected: Tomcat, for example, has enough of a large head,
/// and gRPC's servers end requests with a short `grpc-timeout`, or without `te: trailers`.
#[test]
fn requests_that_a_server_resets_for_what_is_in_them_do_not_eject_it() {
    for code in [PROTOCOL_ERROR, ENHANCE_YOUR_CALM, CANCEL, INTERNAL_ERROR] {
        let resetting = WireUpstream::start(move |wire| {
            let mut server = Frames::accept(wire);
            while let Some(frame) = server.next() {
                if frame.kind == HEADERS {
                    server.reset_with(frame.stream, code);
                }
            }
        });
        let good = Upstream::speaking(cleartext_http2(), |_| async { Response::new(whole("")) });
        let list = [resetting.url(), good.url()].map(quoted);
        let keys =
            "http2 = true\nbalance = \"round-robin\"\neject = { failures = 1, for = \"1h\", max = \"50%\" }";
        let toml = format!("[admin]\nlisten = \"127.0.0.1:0\"\n{}", forward_to(&list, keys));
        let gateway = Gateway::start(&toml);
        let mut client = gateway.client();
        let statuses = [(); 20].map(|()| client.get("/").status);
        assert_eq!(statuses.iter().filter(|status| **status == 502).count(), 10, "{statuses:?}");
        let healthy = format!(
            "tollgate_upstream_healthy{{upstream=\"api\",server=\"{}\"}}",
            resetting.url().trim_start_matches("http://")
        );
        assert_eq!(metrics(&gateway).of(&healthy), 1.0, "{code}");
    }
}

#[test]
fn a_server_that_was_left_out_comes_back_by_itself() {
    let (bad, good) = (answering(503), answering(200));
    let gateway = gateway(&[&bad, &good], "failures = 1, for = \"50ms\"");
    ask(&gateway, 2);
    assert_eq!(bad.count(), 1);
    wait_until("it gets requests again", || {
        ask(&gateway, 2);
        bad.count() > 1
    });
}

#[test]
fn only_a_share_of_the_servers_is_left_out() {
    let servers = [(); 3].map(|()| answering(503));
    let [one, two, three] = &servers;
    ask(&gateway(&[one, two, three], "failures = 1, for = \"1h\", max = \"67%\""), 30);
    assert_eq!(servers.each_ref().map(Upstream::count), [1, 1, 28]);
}

#[test]
fn if_all_are_left_out_all_are_asked() {
    let servers = [(); 2].map(|()| answering(503));
    let gateway = gateway(&[&servers[0], &servers[1]], "failures = 1, for = \"1h\", max = \"100%\"");
    ask(&gateway, 20);
    assert_eq!(servers.each_ref().map(Upstream::count), [10, 10]);
}
