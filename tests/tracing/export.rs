//! Exporting spans to a collector, and failures to do so.

use std::net::TcpListener;

use crate::{
    harness::{
        collector::Collector, gateway::Gateway, metrics::Metrics, redis::tls::Certificates, upstream::Speech,
        wait_until,
    },
    tracing::{admin, unreachable},
};

/// What answers all by itself.
const ANSWER: &str = "[[routes]]\npath = \"/{*rest}\"\nrespond = { status = 204 }\n";
const ADMIN: &str = "[admin]\nlisten = \"127.0.0.1:0\"\n";

fn spans(gateway: &Gateway, outcome: &str) -> usize {
    Metrics::scrape(&admin(gateway)).of(&format!("tollgate_spans_total{{outcome=\"{outcome}\"}}")) as usize
}

fn tracing(url: &str) -> String {
    format!("[tracing]\notlp = \"{url}\"\nsample = 1\n{ADMIN}{ANSWER}")
}

/// Asks so often that the bound of what waits is passed, and says by how much KiB the memory has grown since the first
/// half of that.
fn overflow(gateway: &Gateway) -> usize {
    let mut client = gateway.client();
    let mut ask = |times: usize| {
        for _ in 0..times / 100 {
            client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(100).as_bytes());
            (0..100).for_each(|_| assert_eq!(client.answer().status, 204));
        }
    };
    ask(8_000);
    let half = gateway.memory_kib("VmRSS");
    ask(8_000);
    gateway.memory_kib("VmRSS").saturating_sub(half)
}

#[test]
fn what_is_sent_is_counted() {
    let collector = Collector::start();
    let gateway = Gateway::start(&tracing(&collector.url()));
    (0..3).for_each(|_| assert_eq!(gateway.get("/").status, 204));
    collector.await_spans(3);
    wait_until("they are counted", || spans(&gateway, "exported") == 3);
    assert_eq!((spans(&gateway, "failed"), spans(&gateway, "dropped")), (0, 0));
}

#[test]
fn a_collector_that_is_away_holds_nobody_up() {
    let url = unreachable();
    let gateway = Gateway::start(&tracing(&url));
    assert!(overflow(&gateway) < 4 << 10);
    wait_until("it is counted", || spans(&gateway, "failed") > 0);
    assert!(spans(&gateway, "dropped") > 1_000);
    let told = format!("can't send traces to `{url}`");
    wait_until("it is told", || gateway.log().contains(&told));
    wait_until("more fails", || spans(&gateway, "failed") > 1_000);
    assert_eq!(gateway.log().matches(&told).count(), 1, "{}", gateway.log());
}

#[test]
fn a_collector_that_does_not_answer_holds_nobody_up() {
    // The system accepts for it, and nobody ever reads.
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut gateway = Gateway::start(&tracing(&format!("http://{}", deaf.local_addr().unwrap())));
    assert!(overflow(&gateway) < 4 << 10);
    wait_until("the rest is counted", || spans(&gateway, "dropped") > 12_000);
    gateway.signal("TERM");
    wait_until("it ends all the same", || gateway.ended().is_some());
    assert!(gateway.log().contains("couldn't be exported at shutdown"), "{}", gateway.log());
}

#[test]
fn what_waits_is_sent_when_the_gateway_ends() {
    let collector = Collector::start();
    let mut gateway = Gateway::start(&(collector.table("1") + ANSWER));
    let mut client = gateway.client();
    (0..40).for_each(|_| assert_eq!(client.get("/").status, 204));
    drop(client);
    gateway.signal("TERM");
    wait_until("it has ended", || gateway.ended().is_some());
    assert_eq!(collector.spans().len(), 40);
}

#[test]
fn a_collector_may_speak_tls() {
    let certificates = Certificates::for_server(&["127.0.0.1"]);
    let collector = Collector::speaking(Speech::Tls(certificates.server(&["h2"], false)));
    let ca = certificates.path("ca.pem");
    let start = |roots: &str| {
        let variables = [("SSL_CERT_FILE", roots), ("SSL_CERT_DIR", "/nowhere")];
        Gateway::start_with(&tracing(&collector.url()), &["run", "--listen", "127.0.0.1:0"], &variables)
    };
    let trusting = start(ca.to_str().unwrap());
    trusting.get("/");
    collector.await_spans(1);
    let others = Certificates::for_server(&["127.0.0.1"]);
    let wary = start(others.path("ca.pem").to_str().unwrap());
    wary.get("/");
    wait_until("it isn't trusted", || spans(&wary, "failed") == 1);
    assert_eq!(collector.spans().len(), 1);
}

#[test]
fn the_environment_says_who_sends() {
    let collector = Collector::start();
    let variables = [
        ("OTEL_SERVICE_NAME", "edge"),
        ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.name=other"),
    ];
    let gateway = Gateway::start_with(
        &(collector.table("1") + ANSWER),
        &["run", "--listen", "127.0.0.1:0"],
        &variables,
    );
    gateway.get("/");
    collector.await_spans(1);
    let resource = collector.resource();
    assert_eq!((&*resource["service.name"], &*resource["deployment.environment.name"]), ("edge", "test"));
}

#[test]
fn a_reload_changes_what_is_drawn_and_not_where_it_goes() {
    let (collector, other) = (Collector::start(), Collector::start());
    let gateway = Gateway::start(&(collector.table("0") + ANSWER));
    gateway.get("/");
    gateway.reload(&(collector.table("1") + ANSWER));
    wait_until("it is said", || gateway.log().contains("`tracing.sample` changed"));
    gateway.get("/");
    collector.await_spans(1);
    gateway.reload(&(other.table("1") + ANSWER));
    let is_of_restart =
        |line: &str| line.contains("`tracing` changed") && line.contains(": takes effect at the next start");
    wait_until("it is said", || gateway.log().lines().any(is_of_restart));
    gateway.get("/");
    collector.await_spans(2);
    gateway.reload(ANSWER);
    gateway.get("/");
    collector.await_spans(3);
    assert!(other.spans().is_empty());
}
