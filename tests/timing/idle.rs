//! Idle connections to servers. If a server closes one as a request arrives, a request that can't be retried fails, so the
//! gateway closes it first.

use std::{
    sync::mpsc,
    time::{Duration, Instant},
};

use crate::harness::{
    gateway::Gateway,
    judge::{judge, within},
    upstream::Upstream,
    wire::WireUpstream,
};

/// After which servers mostly close connections that idle (Node, Apache).
const USUAL: Duration = Duration::from_secs(5);

#[test]
fn a_connection_that_idles_is_closed_before_the_usual_server_would() {
    judge(USUAL / 10, || {
        let idled = idle_time();
        // It is of use for as long as it is safe.
        assert!(idled > USUAL / 2, "closed after {idled:?}");
        within(idled, USUAL, "closing it")
    });
}

/// Returns how long a connection upstream idled until the gateway closed it.
fn idle_time() -> Duration {
    let (closed, is_closed) = mpsc::channel();
    let upstream = WireUpstream::start(move |mut wire| {
        let mut answered = Instant::now();
        while wire.request().is_some() {
            wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nup");
            answered = Instant::now();
        }
        closed.send(answered.elapsed()).unwrap();
    });
    // Other servers have a bound of their own.
    let other = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "[server]\nworkers = 1\n[upstreams.usual]\nservers = \"{}\"\n\
         [upstreams.other]\nservers = \"{}\"\ntimeouts = {{ idle = \"1m\" }}\n\
         [[routes]]\npath = \"/usual\"\nupstream = \"usual\"\n[[routes]]\npath = \"/other\"\nupstream = \"other\"\n",
        upstream.url(),
        other.url()
    ));
    let mut client = gateway.client();
    assert_eq!(client.get("/other").status, 200);
    for _ in 0..3 {
        assert_eq!(client.get("/usual").text(), "up");
    }
    let idled = is_closed.recv_timeout(4 * USUAL).unwrap();
    assert_eq!((upstream.connections(), other.open()), (1, 1));
    idled
}
