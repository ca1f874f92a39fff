//! The cost of slow and silent clients.

use std::{
    process::Command,
    thread,
    time::{Duration, Instant},
};

use crate::{
    harness::{
        client::Client,
        gateway::Gateway,
        judge::{in_time, judge, within},
        upstream::Upstream,
        wait_until,
    },
    median,
};

/// In which the gateway has nothing to do.
const REST: Duration = Duration::from_secs(2);

fn forward_all(server: &str, url: &str) -> Gateway {
    Gateway::start(&format!(
        "[server]\nworkers = 1\n{server}\n[upstreams.api]\nservers = [\"{url}\"]\ntimeouts = {{ idle = \"1m\" }}\n\
         [[routes]]\npath = \"/{{*rest}}\"\nupstream = \"api\"\n"
    ))
}

/// Asserts that the gateway takes little CPU time for a rest. It has five of them, because what ends by itself, and a busy machine, may
/// add to one. Without optimization, looking at 10,000 connections for late clients takes up to a half of this.
fn assert_is_cheap(gateway: &Gateway, mut rest: impl FnMut()) {
    let mut spent = Vec::new();
    while spent.iter().all(|spent| *spent >= REST / 10) {
        assert!(spent.len() < 5, "{spent:?} of {REST:?}");
        let before = gateway.cpu();
        rest();
        spent.push(gateway.cpu() - before);
    }
}

/// Lets a process open so many files, those that are open included; none is closed.
fn limit_files(process: u32, limit: &str) {
    let status = Command::new("prlimit")
        .args([&format!("--pid={process}"), &format!("--nofile={limit}:")])
        .status()
        .expect("prlimit is needed: a part of util-linux");
    assert!(status.success());
}

#[test]
fn a_lack_of_files_costs_nothing_but_new_connections_until_it_has_passed() {
    judge(Duration::from_millis(200), || {
        let upstream = Upstream::hello();
        let gateway = forward_all("", &upstream.url());
        let mut kept = gateway.client();
        assert_eq!(kept.get("/").status, 200);
        limit_files(gateway.process(), "3");
        let mut waiting: Vec<Client> = (0..20).map(|_| gateway.client()).collect();
        waiting.iter_mut().for_each(|client| client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
        wait_until("it has no files", || gateway.log().contains("can't accept connections now"));
        assert_is_cheap(&gateway, || {
            let since = Instant::now();
            while since.elapsed() < REST {
                // It has its connection here, and one to the upstream.
                assert_eq!(kept.get("/").status, 200);
                thread::sleep(Duration::from_millis(100));
            }
        });
        assert_eq!(gateway.log().matches("can't accept").count(), 1, "{}", gateway.log());
        limit_files(gateway.process(), "1000");
        let since = Instant::now();
        assert!(waiting.iter_mut().all(|client| client.answer().status == 200));
        within(since.elapsed(), Duration::from_secs(1), "answering when there were files again")
    });
}

/// The files of this process and of the gateway's are bounded: each has its end of the connections.
#[test]
fn connections_that_idle_cost_little_and_hold_up_nobody() {
    const CONNECTIONS: usize = 10_000;
    const BYTES_MOST: usize = 5 << 10;
    rlimit::increase_nofile_limit(u64::MAX).unwrap();
    let upstream = Upstream::hello();
    let start = || forward_all("timeouts = { idle = \"1h\" }", &upstream.url());
    let (gateway, without) = (start(), start());
    let ask = |client: &mut Client| assert_eq!(client.get("/").status, 200);
    let mut clients = [gateway.client(), without.client()];
    clients.iter_mut().for_each(|client| (0..500).for_each(|_| ask(client)));
    let before = gateway.memory_kib("VmRSS");
    let mut idle: Vec<Client> = Vec::with_capacity(CONNECTIONS);
    for _ in 0..CONNECTIONS {
        let mut client = gateway.client();
        ask(&mut client);
        idle.push(client);
    }
    let bytes = ((gateway.memory_kib("VmRSS") - before) << 10) / CONNECTIONS;
    assert!(bytes <= BYTES_MOST, "{bytes} bytes a connection");
    assert_is_cheap(&gateway, || thread::sleep(REST));
    judge(Duration::from_millis(1), || {
        // They take turns, so that what else the machine does meanwhile befalls both.
        let mut took = [(); 2].map(|()| Vec::new());
        for _ in 0..1_000 {
            for (client, took) in clients.iter_mut().zip(&mut took) {
                let since = Instant::now();
                ask(client);
                took.push(since.elapsed());
            }
        }
        let [among_idle, undisturbed] = took.map(median);
        in_time(among_idle < undisturbed * 3 / 2, || format!("{among_idle:?}, {undisturbed:?} without them"))
    });
    ask(&mut idle[CONNECTIONS / 2]);
}
