//! What an estimate took too much comes back, where a limit has `refunds`.

use hyper::Response;

use crate::{
    forward_all,
    harness::{
        client::Answer,
        gateway::Gateway,
        redis::Redis,
        upstream::{Upstream, whole},
        wait_until,
    },
};

/// An upstream whose responses to `/<number>` say that they have cost so much.
fn telling() -> Upstream {
    Upstream::start(|request| async move {
        let mut response = Response::new(whole("up"));
        if let Ok(cost) = request.uri().path()[1..].parse() {
            response.headers_mut().insert("x-used", cost);
        }
        response
    })
}

fn forward_limited(url: &str, algorithm: &str) -> String {
    let cost = "cost = { response_header = \"x-used\", estimate = 50 }\nrefunds = true";
    let limit = format!("[limits.l]\nkey = \"global\"\nrate = \"100/h\"\n{algorithm}\n{cost}\n");
    format!("{limit}{}limits = [\"l\"]\n", forward_all(url, ""))
}

fn left(answer: &Answer) -> u64 {
    let fields = answer.header("ratelimit").unwrap_or_else(|| panic!("{answer:?}"));
    let (_, rest) = fields.split_once(";r=").unwrap();
    rest.split(';').next().unwrap().parse().unwrap()
}

#[test]
fn the_unused_part_of_an_estimate_comes_back() {
    let (redis, upstream) = (Redis::start(), telling());
    for algorithm in ["sliding-window", "sliding-cells", "fixed-window", "gcra"] {
        for store in [String::new(), redis.store()] {
            redis.command(&["FLUSHALL"]);
            let limit = forward_limited(&upstream.url(), &format!("algorithm = \"{algorithm}\""));
            let gateway = Gateway::start(&format!("{store}{limit}"));
            let mut client = gateway.client();
            for (path, before) in [
                ("/10", 50),
                ("/7", 40),
                // It has used nothing.
                ("/0", 33),
                // More than the estimate is a debt, and no cost leaves the estimate.
                ("/73", 33),
            ] {
                let seen = left(&client.get(path));
                // A meter doesn't give back what may have drained meanwhile.
                assert!(
                    seen == before || algorithm == "gcra" && seen + 1 == before,
                    "{algorithm} {path}: {seen}"
                );
            }
            assert_eq!(client.get("/1").status, 429, "{algorithm}");
        }
    }
}

#[test]
fn without_refunds_nothing_comes_back() {
    let upstream = telling();
    let limit = forward_limited(&upstream.url(), "").replace("refunds = true", "refunds = false");
    let gateway = Gateway::start(&limit);
    let mut client = gateway.client();
    assert_eq!([client.get("/1"), client.get("/1")].each_ref().map(left), [50, 0]);
    assert_eq!(client.get("/1").status, 429);
}

/// A rejection that is remembered ends with a refund, at once here and soon on other gateways.
#[test]
fn a_refund_ends_the_rejections_of_all_gateways() {
    let (end, ends) = tokio::sync::watch::channel(false);
    let (redis, upstream) = (
        Redis::start(),
        Upstream::start(move |_| {
            let mut ends = ends.clone();
            async move {
                ends.wait_for(|ends| *ends).await.unwrap();
                Response::builder().header("x-used", "1").body(whole("up")).unwrap()
            }
        }),
    );
    let toml = format!("{}{}", redis.store(), forward_limited(&upstream.url(), ""));
    let [one, other] = [Gateway::start(&toml), Gateway::start(&toml)];
    let mut slow: Vec<_> = (0..2).map(|_| one.client()).collect();
    for client in &mut slow {
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    wait_until("both are in flight", || upstream.count() == 2);
    let (mut here, mut there) = (one.client(), other.client());
    for client in [&mut here, &mut there] {
        let refused = client.get("/");
        assert_eq!(refused.status, 429);
        assert!(refused.retry_after_ms() > 3_000_000);
    }
    end.send_replace(true);
    for client in &mut slow {
        assert_eq!(client.answer().status, 200);
    }
    wait_until("there is room here", || here.get("/").status == 200);
    wait_until("there is room there", || there.get("/").status == 200);
}
