//! What operators' programs ask for: metrics, and whether clients should come.

use http_body_util::BodyExt;
use hyper::Response;

use crate::{
    admin, gateway,
    harness::{
        client::Client,
        gateway::Gateway,
        metrics::Metrics,
        redis::Redis,
        upstream::{Upstream, whole},
        wait_until,
    },
};

/// What a gateway says of its readiness.
fn readiness(gateway: &Gateway) -> (u16, String) {
    let mut client = Client::connect(admin(gateway).parse().unwrap());
    let answer = client.ask("GET /readyz\nHost: localhost");
    (answer.status, answer.text())
}

fn scrape(gateway: &Gateway) -> Metrics {
    Metrics::scrape(&admin(gateway))
}

/// Routes of these lines, and an admin port.
fn with_admin(toml: &str) -> Gateway {
    Gateway::start(&format!("[admin]\nlisten = \"127.0.0.1:0\"\n{toml}"))
}

#[test]
fn a_gateway_is_ready_also_while_the_store_is_away() {
    let mut redis = Redis::start();
    let gateway = gateway("5/h", &redis.store());
    assert_eq!(readiness(&gateway), (200, "ready\n".to_owned()));
    redis.kill();
    wait_until("it is noticed", || readiness(&gateway) == (200, "degraded\n".to_owned()));
    assert_eq!(gateway.get("/").status, 200);
    redis.restart();
    wait_until("it is noticed", || readiness(&gateway) == (200, "ready\n".to_owned()));
}

#[test]
fn a_gateway_that_began_without_the_store_says_so() {
    let redis = Redis::away();
    assert_eq!(readiness(&gateway("5/h", &redis.store())), (200, "degraded\n".to_owned()));
}

#[test]
fn a_gateway_that_drains_wants_no_clients() {
    let (reached, is_reached) = std::sync::mpsc::channel();
    let (end, ends) = tokio::sync::watch::channel(false);
    let upstream = Upstream::start(move |_| {
        let (reached, mut ends) = (reached.clone(), ends.clone());
        async move {
            reached.send(()).unwrap();
            ends.wait_for(|ends| *ends).await.unwrap();
            Response::new(whole("late"))
        }
    });
    let route = "[[routes]]\npath = \"/\"\nupstream = \"u\"\n";
    let gateway = with_admin(&format!("[upstreams.u]\nservers = [\"{}\"]\n{route}", upstream.url()));
    let mut client = gateway.client();
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    is_reached.recv().unwrap();
    gateway.signal("TERM");
    wait_until("it drains", || readiness(&gateway) == (503, "draining\n".to_owned()));
    end.send(true).unwrap();
    assert_eq!(client.answer().text(), "late");
}

#[test]
fn each_request_is_counted_once_when_its_answer_has_ended() {
    let upstream = Upstream::mirror();
    let mut gateway = with_admin(&format!(
        "[upstreams.up]\nservers = [\"{0}\", \"{0}\"]\n[upstreams.gone]\nservers = [\"http://127.0.0.1:1\"]\n\
         [[routes]]\nname = \"in\"\npath = \"/in\"\nupstream = \"up\"\n\
         [[routes]]\nname = \"gone\"\npath = \"/gone\"\nupstream = \"gone\"\n\
         [[routes]]\nname = \"a \\\"b\\\"\\\\\"\npath = \"/named\"\nrespond = {{ status = 302 }}\n",
        upstream.url(),
    ));
    let before = scrape(&gateway);
    let mut client = gateway.client();
    (0..3).for_each(|_| assert_eq!(client.get("/in").status, 200));
    (0..2).for_each(|_| assert_eq!(client.get("/gone").status, 502));
    assert_eq!(client.get("/named").status, 302);
    assert_eq!(client.get("/nowhere").status, 404);
    let mut after = scrape(&gateway);
    wait_until("the last answer has ended", || {
        after = scrape(&gateway);
        after.of("tollgate_requests_total{route=\"\",status=\"4xx\"}") == 1.0
    });
    let server = format!("upstream=\"up\",server=\"{}\"", &upstream.url()["http://".len()..]);
    let grown = after.since(&before);
    for (series, growth) in [
        ("tollgate_requests_total{route=\"in\",status=\"2xx\"}", 3.0),
        ("tollgate_requests_total{route=\"gone\",status=\"5xx\"}", 2.0),
        ("tollgate_requests_total{route=\"a \\\"b\\\"\\\\\",status=\"3xx\"}", 1.0),
        ("tollgate_request_duration_seconds_count{route=\"in\"}", 3.0),
        ("tollgate_request_duration_seconds_bucket{le=\"60.0\",route=\"gone\"}", 2.0),
        (&format!("tollgate_upstream_response_seconds_count{{{server}}}"), 3.0),
        (
            "tollgate_upstream_failures_total{upstream=\"gone\",server=\"127.0.0.1:1\",kind=\"unreachable\"}",
            2.0,
        ),
        ("tollgate_connections_accepted_total", 1.0),
    ] {
        assert_eq!(grown.get(series), Some(&growth), "{series}: {grown:#?}");
    }
    let requests = grown.iter().filter(|(series, _)| series.starts_with("tollgate_requests_total"));
    assert_eq!(requests.map(|(_, growth)| growth).sum::<f64>(), 7.0);
    assert_eq!(after.of("tollgate_connections"), 1.0);
    assert!(after.of("process_resident_memory_bytes") > 1e6 && after.of("process_open_fds") > 5.0);
    assert!(after.of("process_start_time_seconds") > 1.7e9 && after.of("process_cpu_seconds_total") < 60.0);
    assert!(gateway.ended().is_none());
}

#[test]
fn what_a_reload_leaves_goes_on_with_its_metrics() {
    let route = |name: &str| {
        format!("[[routes]]\nname = \"{name}\"\npath = \"/{name}\"\nrespond = {{ status = 200 }}\n")
    };
    let admin = "[admin]\nlisten = \"127.0.0.1:0\"\n";
    let gateway = with_admin(&(route("a") + &route("b")));
    assert_eq!((gateway.get("/a").status, gateway.get("/b").status), (200, 200));
    let count = |route: &str| format!("tollgate_requests_total{{route=\"{route}\",status=\"2xx\"}}");
    wait_until("both are counted", || scrape(&gateway).of(&count("b")) == 1.0);
    gateway.reload("[[routes]]\n");
    gateway.reload(&format!("{admin}{}{}", route("a"), route("c")));
    let metrics = scrape(&gateway);
    assert_eq!((metrics.of(&count("a")), metrics.of(&count("c"))), (1.0, 0.0));
    assert!(!metrics.text.contains("route=\"b\""));
    wait_until("the reloads are counted", || {
        let reloads = |result| scrape(&gateway).of(&format!("tollgate_reloads_total{{result=\"{result}\"}}"));
        (reloads("good"), reloads("bad")) == (1.0, 1.0)
    });
}

#[test]
fn a_client_that_leaves_before_its_answer_is_counted() {
    let upstream = Upstream::start(|request| async {
        drop(request.into_body().collect().await);
        std::future::pending().await
    });
    let route = "[[routes]]\nname = \"r\"\npath = \"/\"\nupstream = \"u\"\n";
    let gateway = with_admin(&format!("[upstreams.u]\nservers = [\"{}\"]\n{route}", upstream.url()));
    let mut client = gateway.client();
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_until("the upstream has it", || upstream.count() == 1);
    drop(client);
    wait_until("it is counted", || {
        scrape(&gateway).of("tollgate_requests_total{route=\"r\",status=\"4xx\"}") == 1.0
    });
}
