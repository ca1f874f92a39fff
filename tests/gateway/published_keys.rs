//! Keys that an issuer publishes at a URL, and rotates.

use std::{
    io::{Read, Write},
    net::TcpListener,
    process::Command,
    sync::{Arc, Mutex},
    thread,
};

use hyper::{Response, header::LOCATION};
use serde_json::json;

use super::tokens::{Issuer, of};
use crate::harness::{
    client::Answer,
    gateway::Gateway,
    metrics::Metrics,
    redis::{free_port, tls::Certificates},
    upstream::{Speech, Upstream, whole},
    wait_until,
    wire::WireUpstream,
};

/// Something that a server answers, which tests replace: a status and a body.
pub(super) type Published = Arc<Mutex<(u16, String)>>;

/// Returns a JWKS with the keys of these issuers.
pub(super) fn jwks(issuers: &[&Issuer]) -> String {
    json!({ "keys": issuers.iter().map(|issuer| issuer.jwk()).collect::<Vec<_>>() }).to_string()
}

pub(super) fn publish(speech: Speech, text: String) -> (Published, Upstream) {
    let published: Published = Arc::new(Mutex::new((200, text)));
    let served = published.clone();
    let server = Upstream::speaking(speech, move |_| {
        let (status, text) = served.lock().unwrap().clone();
        let response = Response::builder().status(status).header(LOCATION, "/elsewhere");
        async { response.body(whole(text)).unwrap() }
    });
    (published, server)
}

pub(super) fn set(published: &Published, status: u16, text: String) {
    *published.lock().unwrap() = (status, text);
}

/// Returns a configuration with a route that needs a token, one with a limit by a claim, and an open one.
fn configuration(jwt: &str) -> String {
    format!(
        "[jwt]\n{jwt}\n[limits.l]\nkey = \"jwt:sub\"\nrate = \"100/h\"\n\
         [[routes]]\npath = \"/api\"\nrespond = {{ body = \"in\" }}\nrequire = \"jwt\"\n\
         [[routes]]\npath = \"/counted\"\nrespond = {{ body = \"in\" }}\nlimits = [\"l\"]\n\
         [[routes]]\npath = \"/open\"\nrespond = {{ body = \"in\" }}\n"
    )
}

fn ask(gateway: &Gateway, path: &str, issuer: &Issuer) -> Answer {
    gateway.ask(&format!("GET {path}\nAuthorization: Bearer {}", issuer.token(&of("ann"))))
}

fn status(gateway: &Gateway, issuer: &Issuer) -> u16 {
    ask(gateway, "/api", issuer).status
}

#[test]
fn a_rotated_key_is_fetched_when_a_token_names_it() {
    let [old, new, unknown] = ["old", "new", "unknown"].map(|name| Issuer::ed25519().named(name));
    let (published, server) = publish(Speech::Http1, jwks(&[&old]));
    let toml = configuration(&format!("jwks_url = \"{}/keys\"", server.url()));
    let gateway = Gateway::start(&toml);
    // The first request waits for the first fetch.
    assert_eq!((status(&gateway, &old), server.count()), (200, 1));
    set(&published, 200, jwks(&[&new]));
    assert_eq!((status(&gateway, &old), server.count()), (200, 1));
    assert_eq!((status(&gateway, &new), server.count()), (200, 2));
    assert_eq!(status(&gateway, &old), 401);
    let statuses = [(); 10].map(|()| status(&gateway, &unknown));
    assert_eq!((statuses, server.count()), ([401; 10], 2), "at most every half a minute");

    // While the issuer fails, its last keys are good, also after a reload.
    set(&published, 503, String::new());
    gateway.reload(&toml.replace("100/h", "200/h"));
    wait_until("the keys are fetched again", || server.count() > 2);
    assert_eq!((status(&gateway, &new), status(&gateway, &old)), (200, 401));
    wait_until("the failure is logged", || gateway.log().contains("it answers 503"));
}

#[test]
fn a_live_explanation_fetches_the_key_that_a_request_would_wait_for() {
    let [old, new] = ["old", "new"].map(|name| Issuer::ed25519().named(name));
    let (published, server) = publish(Speech::Http1, jwks(&[&old]));
    let jwt = format!("jwks_url = \"{}/keys\"", server.url());
    let gateway = Gateway::start(&format!("[admin]\nlisten = \"127.0.0.1:0\"\n{}", configuration(&jwt)));
    assert_eq!(status(&gateway, &old), 200);
    set(&published, 200, jwks(&[&new]));
    let (_, admin) = gateway.greeting().split_once("dashboard: ").unwrap();
    let mut explain = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    explain.args(["explain", "GET", "/api", "--live", "--admin", admin.lines().next().unwrap()]);
    explain.args(["-H", &format!("authorization: Bearer {}", new.token(&of("ann")))]);
    explain.current_dir(gateway.folder());
    let told = String::from_utf8(explain.output().unwrap().stdout).unwrap();
    assert!(told.contains("/api") && !told.contains("401: "), "{told}");
}

#[test]
fn a_key_that_is_no_longer_published_is_forgotten() {
    let [old, new] = ["old", "new"].map(|name| Issuer::ed25519().named(name));
    let (published, server) = publish(Speech::Http1, jwks(&[&old]));
    let url = format!("jwks_url = \"{}\"\nrefresh = \"1s\"", server.url());
    let gateway = Gateway::start(&configuration(&url));
    assert_eq!(status(&gateway, &old), 200);
    set(&published, 200, jwks(&[&new]));
    wait_until("the old key is forgotten", || status(&gateway, &old) == 401);
}

/// Answers each connection to this port with these keys.
fn serve(port: u16, keys: String) {
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", keys.len());
            stream.write_all(format!("{head}{keys}").as_bytes()).unwrap();
        }
    });
}

#[test]
fn while_the_issuer_cannot_be_reached_only_what_needs_it_is_503() {
    let (issuer, port) = (Issuer::ed25519().named("a"), free_port());
    let gateway =
        Gateway::start(&configuration(&format!("jwks_url = \"http://127.0.0.1:{port}/keys.json\"")));
    for path in ["/api", "/counted"] {
        let answer = ask(&gateway, path, &issuer);
        assert_eq!(
            (answer.status, answer.json()["code"].as_str()),
            (503, Some("token-unverified")),
            "{path}"
        );
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
    assert_eq!(ask(&gateway, "/open", &issuer).status, 200);
    // Without a token, nothing has to be verified.
    assert_eq!((gateway.get("/api").status, gateway.get("/counted").status), (401, 200));
    gateway.wait_for_log("can't fetch");
    let failures = gateway.log().matches("can't fetch the keys of the token issuer").count();
    assert_eq!(failures, 1, "{}", gateway.log());
    serve(port, jwks(&[&issuer]));
    wait_until("the keys are fetched", || status(&gateway, &issuer) == 200);
    assert_eq!(ask(&gateway, "/counted", &issuer).status, 200);
}

#[test]
fn an_answer_that_is_no_good_jwks_changes_nothing() {
    let [good, other] = ["a", "a"].map(|name| Issuer::ed25519().named(name));
    let secret = Issuer::hmac(&[b'0'; 32]).named("a");
    let large = json!({ "keys": [other.jwk()], "more": "x".repeat(1 << 20) }).to_string();
    for (number, (code, text, told)) in [
        (200, large, "more than 1 MiB"),
        (302, jwks(&[&other]), "redirects aren't followed"),
        (500, jwks(&[&other]), "it answers 500"),
        (200, "<html>".to_owned(), "not a JWKS: line 1, column 1"),
        (200, jwks(&[&secret]), "no public key"),
        (200, jwks(&[]), "no public key"),
    ]
    .into_iter()
    .enumerate()
    {
        let (published, server) = publish(Speech::Http1, jwks(&[&good]));
        let url = format!("jwks_url = \"{}/{number}\"\nrefresh = \"1s\"", server.url());
        let gateway = Gateway::start(&configuration(&url));
        wait_until("the keys are there", || status(&gateway, &good) == 200);
        set(&published, code, text);
        wait_until("it is fetched", || gateway.log().contains(told));
        assert_eq!((status(&gateway, &good), status(&gateway, &other)), (200, 401), "{told}");
        assert_eq!(status(&gateway, &secret), 401, "{told}");
        assert_eq!(server.seen(|request| request.uri.path() == "/elsewhere"), 0);
    }
}

#[test]
fn a_token_cannot_name_another_place_of_keys() {
    let [good, forger] = ["a", "b"].map(|name| Issuer::ed25519().named(name));
    let (_, theirs) = publish(Speech::Http1, jwks(&[&forger]));
    let (_, server) = publish(Speech::Http1, jwks(&[&good]));
    let forger = forger.with_keys_at(&theirs.url());
    let gateway = Gateway::start(&configuration(&format!("jwks_url = \"{}\"", server.url())));
    assert_eq!((status(&gateway, &good), status(&gateway, &forger)), (200, 401));
    assert_eq!((server.count(), theirs.count()), (2, 0));
}

#[test]
fn the_issuer_is_verified_by_its_certificate() {
    let issuer = Issuer::ed25519().named("a");
    let [certificates, others] = [(); 2].map(|()| Certificates::for_server(&["127.0.0.1"]));
    let speech = Speech::Tls(certificates.server(&["h2", "http/1.1"], false));
    let (_, server) = publish(speech, jwks(&[&issuer]));
    let toml = configuration(&format!("jwks_url = \"{}/keys\"", server.url()));
    let start = |certificates: &Certificates| {
        let roots = certificates.path("ca.pem");
        let roots = [("SSL_CERT_FILE", roots.to_str().unwrap())];
        Gateway::start_with(&toml, &["run", "--listen", "127.0.0.1:0"], &roots)
    };
    let trusting = start(&certificates);
    wait_until("the keys are there", || status(&trusting, &issuer) == 200);
    let distrustful = start(&others);
    assert_eq!(status(&distrustful, &issuer), 503);
    distrustful.wait_for_log("certificate");
    assert_eq!(server.count(), 1);
}

#[test]
fn fetches_are_counted_by_outcome() {
    let issuer = Issuer::ed25519().named("a");
    let (published, server) = publish(Speech::Http1, jwks(&[&issuer]));
    let jwt = format!("jwks_url = \"{}\"\nrefresh = \"1s\"", server.url());
    let toml = format!("[admin]\nlisten = \"127.0.0.1:0\"\n{}", configuration(&jwt));
    let gateway = Gateway::start(&toml);
    let (_, admin) = gateway.greeting().split_once("dashboard: http://").unwrap();
    let admin = admin.lines().next().unwrap();
    let fetches = || {
        let metrics = Metrics::scrape(admin);
        ["ok", "failed"]
            .map(|outcome| metrics.of(&format!("tollgate_jwks_fetches_total{{outcome=\"{outcome}\"}}")))
    };
    wait_until("a fetch is counted", || fetches()[0] > 0.0);
    assert_eq!(fetches()[1], 0.0);
    set(&published, 503, String::new());
    wait_until("a failed fetch is counted", || fetches()[1] > 0.0);
    // A reload that leaves the URL leaves the counts.
    let [before, _] = fetches();
    gateway.reload(&toml.replace("100/h", "200/h"));
    assert!(fetches()[0] >= before);
}

/// A response that lasts keeps the configuration that it began with.
#[test]
fn a_configuration_that_is_replaced_refreshes_no_keys_however_long_its_responses_last() {
    let issuer = Issuer::ed25519().named("a");
    let (_published, server) = publish(Speech::Http1, jwks(&[&issuer]));
    let (endless, _ended) = WireUpstream::without_end();
    let at = |path: &str| {
        let jwt = format!("jwks_url = \"{}{path}\"\nrefresh = \"1s\"", server.url());
        let upstream = format!("[upstreams.u]\nservers = \"{}\"\n", endless.url());
        let route = "[[routes]]\npath = \"/endless\"\nupstream = \"u\"\n";
        format!("{}{upstream}{route}", configuration(&jwt))
    };
    let fetches = |path: &str| server.seen(|request| request.uri.path() == path);
    let gateway = Gateway::start(&at("/old"));
    assert_eq!(status(&gateway, &issuer), 200);
    let mut client = gateway.client();
    client.send(b"GET /endless HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.head().status, 200);
    gateway.reload(&at("/new"));
    // One may be on its way.
    let most = fetches("/old") + 1;
    wait_until("the new keys are refreshed", || fetches("/new") > 4);
    assert!(fetches("/old") <= most, "{} > {most}", fetches("/old"));
    client.bytes(16 << 20);
}
