//! Pending work for the store, and waiting requests, at the end of a gateway.

use crate::{
    harness::{
        self,
        client::Client,
        gateway::Gateway,
        redis::{Redis, cluster::Cluster},
        wait_until,
    },
    restarts::{on_demand, wait_for_end},
};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// A configuration that sends all to an upstream under a limit `l` with these keys. The path `/up` is answered if the store is there that
/// counts them.
fn toml(store: &str, server: &str, limit: &str, url: &str) -> String {
    format!(
        "[server]\nworkers = 1\n{server}\n{store}[limits.l]\nkey = \"global\"\n{limit}\n\
         [upstreams.api]\nservers = [\"{url}\"]\n\
         [[routes]]\npath = \"/{{*rest}}\"\nupstream = \"api\"\nlimits = [\"l\"]\n\
         [[routes]]\npath = \"/up\"\nrespond = {{}}\nlimits = [\"up\"]\n\
         [limits.up]\nkey = \"global\"\nrate = \"1000000/h\"\non_failure = \"deny\"\n"
    )
}

/// Asserts this for a store with these settings and servers.
fn assert_leases_are_released(store: &str, servers: &[Redis]) {
    let buckets = || servers.iter().map(|server| server.keys("tollgate:l:*").len()).sum::<usize>();
    for (drain, is_answered) in [("30s", true), ("200ms", false)] {
        let (upstream, is_asked, release) = on_demand("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlast");
        let server = format!("timeouts = {{ drain = \"{drain}\" }}");
        let limit = "algorithm = \"concurrency\"\nrate = \"3\"";
        let mut gateway = Gateway::start(&toml(store, &server, limit, &upstream.url()));
        // A busy machine may be slow to connect, and a gateway starts without its store then.
        wait_until("the store is used", || gateway.get("/up").status == 200);
        let mut clients = [(); 3].map(|()| gateway.client());
        clients.iter_mut().for_each(|client| client.send(GET));
        clients.iter().for_each(|_| is_asked.recv_timeout(harness::PATIENCE).unwrap());
        assert_eq!(buckets(), 1);
        gateway.signal("TERM");
        if is_answered {
            clients.iter().for_each(|_| release.send(()).unwrap());
            clients.iter_mut().for_each(|client| assert_eq!(client.answer().status, 200));
        }
        wait_for_end(&mut gateway);
        assert_eq!(buckets(), 0, "drain = {drain}");
        drop(release);
    }
}

#[test]
fn leases_are_released_also_of_requests_that_are_cut_off() {
    let redis = Redis::start();
    assert_leases_are_released(&redis.store(), &[redis]);
}

#[test]
fn so_they_are_on_a_cluster() {
    let cluster = Cluster::start();
    let store = format!("[store]\nurl = \"{}\"\ntimeout = \"5s\"\n", cluster.url());
    // Without the replicas.
    assert_leases_are_released(&store, &cluster.nodes[..3]);
}

/// The store stands still while the responses tell their costs, so that they wait to be recorded.
#[test]
fn costs_that_responses_tell_in_the_end_are_recorded() {
    let redis = Redis::start();
    let (upstream, is_asked, release) =
        on_demand("HTTP/1.1 200 OK\r\nX-Tokens-Used: 7\r\nContent-Length: 4\r\n\r\nlast");
    let limit = "rate = \"1000/h\"\ncost = { response_header = \"x-tokens-used\" }";
    let toml = toml(&redis.store(), "", limit, &upstream.url());
    let mut gateway = Gateway::start(&toml);
    wait_until("the store is used", || gateway.get("/up").status == 200);
    let mut clients: Vec<Client> = (0..6).map(|_| gateway.client()).collect();
    clients.iter_mut().for_each(|client| client.send(GET));
    clients.iter().for_each(|_| is_asked.recv_timeout(harness::PATIENCE).unwrap());
    gateway.signal("TERM");
    wait_until("it drains", || gateway.log().contains("draining"));
    redis.pause();
    clients.iter().for_each(|_| release.send(()).unwrap());
    clients.iter_mut().for_each(|client| assert_eq!(client.answer().status, 200));
    redis.resume();
    wait_for_end(&mut gateway);
    let next = Gateway::start(&toml);
    wait_until("the store is used", || next.get("/up").status == 200);
    let mut client = next.client();
    client.send(GET);
    release.send(()).unwrap();
    let answer = client.answer();
    // Six of 7, and this one's estimate.
    assert!(answer.header("ratelimit").unwrap().contains(";r=957;"), "{answer:?}");
}

#[test]
fn those_who_wait_for_room_are_refused_before_they_would_be_cut_off() {
    let redis = Redis::start();
    let mut gateway = Gateway::start(&format!(
        "[server]\nworkers = 1\ntimeouts = {{ drain = \"20s\" }}\n{}\
         [limits.l]\nkey = \"global\"\nrate = \"3/30min\"\nwait = \"1h\"\n\
         [[routes]]\npath = \"/\"\nrespond = {{ status = 204 }}\nlimits = [\"l\"]\n",
        redis.store()
    ));
    for _ in 0..3 {
        assert_eq!(gateway.ask("HEAD /").status, 204);
    }
    let mut clients = [(); 3].map(|()| gateway.client());
    clients.iter_mut().for_each(|client| client.send(GET));
    // The worker has taken up what came before this.
    assert_eq!(gateway.get("/none").status, 404);
    gateway.signal("TERM");
    for client in &mut clients {
        let answer = client.answer();
        assert_eq!((answer.status, answer.header("connection")), (429, Some("close")));
        assert!((1_700_000..=1_800_000).contains(&answer.retry_after_ms()), "{answer:?}");
    }
    wait_for_end(&mut gateway);
    assert!(!gateway.log().contains("cut off"), "{}", gateway.log());
}
