//! Upstreams with TLS.

use hyper::{Response, Version};

use crate::{
    harness::{
        client::Answer,
        gateway::Gateway,
        redis::tls::Certificates,
        upstream::{Speech, Upstream, whole},
        wait_until,
    },
    proxy::{forward_to, quoted},
};

const BOTH: &[&str] = &["h2", "http/1.1"];

fn upstream(certificates: &Certificates, asks_clients: bool) -> Upstream {
    Upstream::speaking(Speech::Tls(certificates.server(BOTH, asks_clients)), |_| async {
        Response::new(whole("hello"))
    })
}

fn gateway(upstream: &Upstream, keys: &str) -> Gateway {
    Gateway::start(&format!("[server]\nworkers = 1\n{}", forward_to(&[quoted(upstream.url())], keys)))
}

fn trusting(certificates: &Certificates, more: &str) -> String {
    format!("tls = {{ ca = {:?}{more} }}", certificates.path("ca.pem"))
}

/// Whether the answer names the cause, and nothing that is about the server.
fn names_the_cause(answer: &Answer, upstream: &Upstream) -> bool {
    let told = format!("{answer:?} {}", answer.text());
    assert!(
        !told.contains("127.0.0.1") && !told.contains(upstream.url().rsplit(':').next().unwrap()),
        "{told}"
    );
    answer.status == 502 && answer.json()["code"] == "upstream-tls"
}

#[test]
fn a_server_is_trusted_by_the_authority_of_the_file() {
    let certificates = Certificates::for_server(&["127.0.0.1"]);
    let upstream = upstream(&certificates, false);
    let gateway = gateway(&upstream, &trusting(&certificates, ""));
    for _ in 0..3 {
        assert_eq!(gateway.get("/").text(), "hello");
    }
    let connections = upstream.connections();
    assert_eq!((connections.len(), connections[0].protocol.as_deref()), (1, Some("http/1.1")));
    assert_eq!(upstream.last().version, Version::HTTP_11);
}

#[test]
fn a_server_that_cannot_be_trusted_is_sent_nothing() {
    let certificates = Certificates::for_server(&["127.0.0.1"]);
    let upstream = upstream(&certificates, false);
    let others = Certificates::for_server(&["127.0.0.1"]);
    for keys in [trusting(&others, ""), trusting(&certificates, ", server_name = \"api.internal\"")] {
        let gateway = gateway(&upstream, &keys);
        let answer = gateway.get("/");
        assert!(names_the_cause(&answer, &upstream), "{answer:?}");
        assert_eq!(answer.json()["detail"], "the upstream's certificate can't be trusted");
        wait_until("the cause is logged", || gateway.log().contains("invalid peer certificate"));
    }
    assert_eq!(upstream.count(), 0);
}

#[test]
fn the_name_of_the_file_is_asked_for_and_verified() {
    let certificates = Certificates::for_server(&["api.internal"]);
    let upstream = upstream(&certificates, false);
    let answer = gateway(&upstream, &trusting(&certificates, "")).get("/");
    assert!(names_the_cause(&answer, &upstream), "{answer:?}");
    let gateway = gateway(&upstream, &trusting(&certificates, ", server_name = \"api.internal\""));
    assert_eq!(gateway.get("/").text(), "hello");
    assert_eq!(upstream.connections().last().unwrap().server_name.as_deref(), Some("api.internal"));
}

#[test]
fn the_gateway_shows_its_own_certificate() {
    let certificates = Certificates::for_server(&["127.0.0.1"]);
    let upstream = upstream(&certificates, true);
    assert_eq!(gateway(&upstream, &trusting(&certificates, "")).get("/").status, 502);
    let (cert, key) = (certificates.path("client.pem"), certificates.path("client.key"));
    let gateway = gateway(&upstream, &trusting(&certificates, &format!(", cert = {cert:?}, key = {key:?}")));
    assert_eq!(gateway.get("/").text(), "hello");
    assert!(upstream.connections()[0].client_is_known);
}

#[test]
fn a_session_is_resumed_by_the_next_connection() {
    let certificates = Certificates::for_server(&["127.0.0.1"]);
    let upstream = Upstream::speaking(Speech::Tls(certificates.server(BOTH, false)), |_| async {
        Response::builder().header("connection", "close").body(whole("hello")).unwrap()
    });
    let gateway = gateway(&upstream, &trusting(&certificates, ""));
    for _ in 0..3 {
        assert_eq!(gateway.get("/").text(), "hello");
    }
    assert_eq!(
        upstream.connections().iter().map(|shaken| shaken.is_resumed).collect::<Vec<_>>(),
        [false, true, true]
    );
}

#[test]
fn a_server_without_tls_is_no_server_with_tls() {
    let plain = Upstream::hello();
    let certificates = Certificates::for_server(&["127.0.0.1"]);
    let url = plain.url().replace("http://", "https://");
    let gateway = Gateway::start(&forward_to(&[quoted(url)], &trusting(&certificates, "")));
    let answer = gateway.get("/");
    assert!(names_the_cause(&answer, &plain), "{answer:?}");
    assert_eq!(answer.json()["detail"], "the TLS handshake with the upstream failed");
}

#[test]
fn other_certificates_take_effect_with_a_reload() {
    let certificates = Certificates::for_server(&["127.0.0.1"]);
    let upstream = upstream(&certificates, false);
    let configuration = |keys: &str| forward_to(&[quoted(upstream.url())], keys);
    let gateway = Gateway::start(&configuration(&trusting(&certificates, "")));
    assert_eq!(gateway.get("/").status, 200);
    gateway.reload(&configuration(&trusting(&Certificates::for_server(&["127.0.0.1"]), "")));
    wait_until("it is logged", || gateway.log().contains("upstream `api`: `tls` changed"));
    assert_eq!(gateway.get("/").json()["code"], "upstream-tls");
    gateway.reload(&configuration(&trusting(&certificates, "")));
    assert_eq!(gateway.get("/").status, 200);
}

#[test]
fn what_is_agreed_on_is_spoken() {
    let certificates = Certificates::for_server(&["127.0.0.1"]);
    for (protocols, version) in
        [(BOTH, Version::HTTP_2), (&["http/1.1"], Version::HTTP_11), (&[], Version::HTTP_11)]
    {
        let upstream = Upstream::speaking(Speech::Tls(certificates.server(protocols, false)), |_| async {
            Response::new(whole("hello"))
        });
        let gateway = gateway(&upstream, &format!("http2 = true\n{}", trusting(&certificates, "")));
        for _ in 0..3 {
            assert_eq!(gateway.get("/").text(), "hello");
            assert_eq!(upstream.last().version, version, "{protocols:?}");
        }
        assert_eq!(upstream.connections().len(), 1, "{protocols:?}");
    }
}
