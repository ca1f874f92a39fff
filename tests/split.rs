//! Routes that split their requests among upstreams by weight.

use std::fs;

use hyper::Response;

use crate::{
    admin::admin,
    check::{run, text},
    harness::{
        gateway::Gateway,
        metrics::Metrics,
        upstream::{Upstream, whole},
    },
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
    let gateway = Gateway::start(&toml(servers, "{ stable = 95, canary = 5, unused = 0 }"));
    let mut client = gateway.client();
    for _ in 0..2_000 {
        assert_eq!(client.get("/").status, 200);
    }
    let counts = [0, 1, 2].map(|at: usize| upstreams[at].count());
    // 100 are expected, with a standard deviation of 10.
    assert!((40..=160).contains(&counts[1]) && counts[2] == 0, "{counts:?}");
    assert_eq!(counts.iter().sum::<usize>(), 2_000);
    gateway.reload(&toml(servers, "{ stable = 0, canary = 1 }"));
    for _ in 0..50 {
        assert_eq!(gateway.get("/").status, 200);
    }
    assert_eq!(upstreams[1].count(), counts[1] + 50);
}

/// The file and the route for testers as docs/configuration.md has them.
#[test]
fn the_page_about_a_canary_works() {
    let (_, section) = include_str!("../docs/configuration.md").split_once("\n## A canary\n").unwrap();
    let toml = section.split_once("```toml\n").unwrap().1.split("```").next().unwrap();
    let route = "headers = { x-canary = \"1\" }` and `upstream = \"canary\"";
    assert!(section.contains(route));
    let upstreams = [(); 3].map(|()| Upstream::hello());
    let toml = upstreams.iter().enumerate().fold(toml.to_owned(), |toml, (at, upstream)| {
        toml.replace(&format!("http://10.0.0.{}:3000", at + 1), &upstream.url())
    });
    let testers = route.replace("` and `", "\n");
    let gateway = Gateway::start(&format!("{toml}\n[[routes]]\npath = \"/{{*rest}}\"\n{testers}\n"));
    let mut client = gateway.client();
    for _ in 0..50 {
        assert_eq!(client.get_with("/", "X-Canary: 1\r\n").status, 200);
    }
    assert_eq!(upstreams[2].count(), 50);
    for _ in 0..400 {
        assert_eq!(client.get("/").status, 200);
    }
    // 20 are expected, with a standard deviation of 4.
    let counts = upstreams.each_ref().map(Upstream::count);
    assert!((51..=100).contains(&counts[2]) && counts[0] > 0 && counts[1] > 0, "{counts:?}");
}

#[test]
fn the_responses_of_each_upstream_are_counted_by_status() {
    let canary = Upstream::start(|request| async move {
        let status = if request.uri().path() == "/broken" { 503 } else { 200 };
        Response::builder().status(status).body(whole("new")).unwrap()
    });
    let (stable, canary) = (Upstream::hello().url(), canary.url());
    let toml = |weights| {
        let admin = "[admin]\nlisten = \"127.0.0.1:0\"\n";
        admin.to_owned() + &toml([&stable, &canary, "http://127.0.0.1:1"], weights)
    };
    let gateway = Gateway::start(&toml("{ stable = 1 }"));
    let scrape = || Metrics::scrape(&admin(&gateway));
    assert!(!scrape().text.contains("tollgate_upstream_responses_total{"), "nothing has counted");
    (0..3).for_each(|_| assert_eq!(gateway.get("/broken").status, 200));
    gateway.reload(&toml("{ canary = 1 }"));
    assert_eq!(gateway.get("/").status, 200);
    (0..2).for_each(|_| assert_eq!(gateway.get("/broken").status, 503));
    gateway.reload(&toml("{ unused = 1 }"));
    assert_eq!(gateway.get("/").status, 502);
    let metrics = scrape();
    for (upstream, url, [good, bad]) in [("stable", &stable, [3.0, 0.0]), ("canary", &canary, [1.0, 2.0])] {
        let server = &url["http://".len()..];
        let count = |class| {
            let labels = format!("upstream=\"{upstream}\",server=\"{server}\",status=\"{class}\"");
            metrics.of(&format!("tollgate_upstream_responses_total{{{labels}}}"))
        };
        assert_eq!(["2xx", "4xx", "5xx"].map(count), [good, 0.0, bad], "{upstream}");
    }
    assert!(!metrics.text.contains("tollgate_upstream_responses_total{upstream=\"unused\""));
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
