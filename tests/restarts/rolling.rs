//! Rolling restarts under load.

use std::{
    net::{SocketAddr, TcpListener},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use crate::{
    harness::{gateway::Gateway, redis::Redis, upstream::Upstream},
    restarts::{
        clients::{Clients, Manner},
        wait_for_end,
    },
};

/// Two gateways on one Redis, behind a balancer that takes them in turn.
#[test]
fn a_rolling_restart_of_two_gateways_fails_no_request_and_counts_each_once() {
    let (redis, upstream) = (Redis::start(), Upstream::hello());
    let toml = format!(
        "{}[server]\nworkers = 2\ntimeouts = {{ drain = \"30s\" }}\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [upstreams.api]\nservers = [\"{}\"]\n\
         [limits.plenty]\nkey = \"global\"\nrate = \"1000000/h\"\n\
         [limits.scarce]\nkey = \"global\"\nrate = \"200/h\"\n\
         [[routes]]\npath = \"/plenty\"\nupstream = \"api\"\nlimits = [\"plenty\"]\n\
         [[routes]]\npath = \"/scarce\"\nupstream = \"api\"\nlimits = [\"scarce\"]\n",
        redis.store(),
        upstream.url()
    );
    let mut gateways = [(); 2].map(|()| Gateway::start(&toml));
    let places = Arc::new(Mutex::new(gateways.each_ref().map(Gateway::address)));
    let turn = Arc::new(AtomicUsize::new(0));
    let place = {
        let places = places.clone();
        move || places.lock().unwrap()[turn.fetch_add(1, SeqCst) % 2]
    };
    let clients = Clients::start(8, Manner::Retries, &["/plenty", "/scarce"], place);
    for _ in 0..3 {
        for (gateway, at) in gateways.iter_mut().zip(0..) {
            clients.wait_for(50);
            gateway.signal("TERM");
            wait_for_end(gateway);
            *gateway = Gateway::start(&toml);
            places.lock().unwrap()[at] = gateway.address();
        }
    }
    clients.wait_for(50);
    let outcomes = clients.end();
    let of = |outcome: &str| outcomes.get(outcome).copied().unwrap_or_default();
    assert_eq!(
        of("/plenty 200") + of("/scarce 200") + of("/scarce 429"),
        outcomes.values().sum::<usize>(),
        "{outcomes:?}"
    );
    assert_eq!(of("/scarce 200"), 200);
    let next = gateways[0].get("/plenty");
    let left = format!("\"plenty\";r={};", 1_000_000 - of("/plenty 200") - 1);
    assert!(next.header("ratelimit").unwrap().starts_with(&left), "{next:?}, {outcomes:?}");
}

/// The test is the supervisor: it holds the socket, in which new clients wait.
#[test]
fn a_restart_on_a_socket_that_the_supervisor_holds_is_seen_by_nobody() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address: SocketAddr = socket.local_addr().unwrap();
    let toml = format!(
        "[server]\nlisten = \"{address}\"\ntimeouts = {{ drain = \"30s\" }}\n\
         [[routes]]\npath = \"/\"\nrespond = {{ status = 204 }}\n"
    );
    let start = || Gateway::start_with_sockets(&toml, vec![socket.try_clone().unwrap().into()]);
    let mut gateway = start();
    let clients = [Manner::KeepsOne, Manner::OpensEach]
        .map(|manner| Clients::start(4, manner, &["/"], move || address));
    for _ in 0..5 {
        clients.iter().for_each(|clients| clients.wait_for(50));
        gateway.signal("TERM");
        wait_for_end(&mut gateway);
        gateway = start();
    }
    for outcomes in clients.map(Clients::end) {
        assert_eq!(outcomes.keys().collect::<Vec<_>>(), ["/ 204"], "{outcomes:?}");
    }
}
