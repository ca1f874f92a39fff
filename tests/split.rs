//! Routes that split their requests among upstreams by weight.

use std::fs;

use crate::{
    check::{run, text},
    harness::{gateway::Gateway, upstream::Upstream},
};

fn toml(servers: [&str; 3], weights: &str) -> String {
    let [stable, canary, unused] = servers;
    format!(
        "[upstreams.stable]\nservers = [\"{stable}\"]\n[upstreams.canary]\nservers = [\"{canary}\"]\n\
         [upstreams.unused]\nservers = [\"{unused}\"]\n[[routes]]\nname = \"all\"\npath = \"/{{*rest}}\"\nupstream = {weights}\n"
    )
}

#[test]
fn requests_are_split_by_weight() {
    let upstreams = [(); 3].map(|()| Upstream::hello());
    let urls = [0, 1, 2].map(|at: usize| upstreams[at].url());
    let servers = [0, 1, 2].map(|at: usize| urls[at].as_str());
    let gateway = Gateway::start(&toml(servers, "{ stable = 90, canary = 10, unused = 0 }"));
    let mut client = gateway.client();
    for _ in 0..2_000 {
        assert_eq!(client.get("/").status, 200);
    }
    let counts = [0, 1, 2].map(|at: usize| upstreams[at].count());
    // 200 are expected, with a standard deviation of 13.
    assert!((120..=280).contains(&counts[1]) && counts[2] == 0, "{counts:?}");
    assert_eq!(counts.iter().sum::<usize>(), 2_000);
    gateway.reload(&toml(servers, "{ stable = 0, canary = 1 }"));
    for _ in 0..50 {
        assert_eq!(gateway.get("/").status, 200);
    }
    assert_eq!(upstreams[1].count(), counts[1] + 50);
}

#[test]
fn weights_are_checked_listed_and_explained() {
    let folder = tempfile::tempdir().unwrap();
    let servers = ["http://a:1", "http://b:1", "http://c:1"];
    let write =
        |weights: &str| fs::write(folder.path().join("gateway.toml"), toml(servers, weights)).unwrap();
    for (weights, fault) in [
        ("{ stable = 95, cannary = 5 }", "did you mean `canary`?"),
        ("{ stable = 0, canary = 0 }", "no upstream of this route has a weight"),
        ("{}", "no upstream of this route has a weight"),
        ("{ stable = 1001 }", "from 0 to 1000"),
        ("5", "the name of an upstream, or weights such as"),
    ] {
        write(weights);
        let checked = run(folder.path(), &["check", "gateway.toml"]);
        assert_eq!(checked.status.code(), Some(2), "{weights}");
        assert!(text(&checked.stderr).contains(fault), "{weights}: {}", text(&checked.stderr));
    }
    write("{ stable = 95, canary = 5 }");
    let routes = run(folder.path(), &["routes"]);
    assert!(text(&routes.stdout).contains("canary=5,stable=95"), "{}", text(&routes.stdout));
    let explained = run(folder.path(), &["explain", "GET", "/"]);
    assert!(text(&explained.stdout).contains("canary 5 %, stable 95 %"), "{}", text(&explained.stdout));
}
