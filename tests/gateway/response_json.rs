//! Costs that responses state in their bodies: JSON, and streams of events.

use std::sync::{Mutex, mpsc};

use hyper::Response;

use crate::{
    forward_all,
    harness::{
        client::{Answer, Client},
        gateway::Gateway,
        metrics::Metrics,
        redis::Redis,
        upstream::{Upstream, whole},
        wait_until,
        wire::WireUpstream,
    },
};

const COST: &str = "cost = { response_json = \"/usage/total_tokens\", estimate = 10 }";

fn left(answer: &Answer) -> u64 {
    let fields = answer.header("ratelimit").unwrap_or_else(|| panic!("{answer:?}"));
    let (_, rest) = fields.split_once(";r=").unwrap();
    rest.split(';').next().unwrap().parse().unwrap()
}

fn forward_limited(url: &str, keys: &str) -> String {
    let limit = format!("[limits.l]\nkey = \"global\"\nrate = \"1000/h\"\n{COST}\n{keys}\n");
    format!("{limit}{}limits = [\"l\"]\n", forward_all(url, ""))
}

/// A model whose answer to `/<kind>/<tokens>` has used so many tokens.
fn model() -> Upstream {
    Upstream::start(|request| async move {
        let path = request.uri().path().to_owned();
        let (kind, tokens) = path[1..].split_once('/').unwrap();
        let usage = format!("{{\"choices\":[],\"usage\":{{\"prompt_tokens\":1,\"total_tokens\":{tokens}}}}}");
        let answer = Response::builder();
        let answer = match kind {
            "json" => answer.header("content-type", "application/json").body(whole(usage)),
            "gzip" => {
                let answer = answer.header("content-type", "application/json");
                answer.header("content-encoding", "gzip").body(whole(usage))
            }
            "events" => {
                let stream = format!(
                    "data: {{\"choices\":[{{}}],\"usage\":null}}\n\ndata: {usage}\n\ndata: [DONE]\n\n"
                );
                answer.header("content-type", "text/event-stream").body(whole(stream))
            }
            _ => answer.header("content-type", "text/plain").body(whole(usage)),
        };
        answer.unwrap()
    })
}

#[test]
fn the_usage_in_a_response_is_its_cost() {
    let (redis, upstream) = (Redis::start(), model());
    for store in [String::new(), redis.store()] {
        redis.command(&["FLUSHALL"]);
        let gateway = Gateway::start(&format!("{store}{}", forward_limited(&upstream.url(), "")));
        let mut client = gateway.client();
        // Each shows what was left when it was admitted.
        for (path, before) in [
            ("/json/100", 990),
            ("/events/200", 890),
            // Less than the estimate gives nothing back.
            ("/json/3", 690),
            // What can't be read, or isn't a cost, leaves the estimate.
            ("/gzip/100", 680),
            ("/text/100", 670),
            ("/json/null", 660),
            ("/json/-5", 650),
            ("/json/1.5", 640),
            // A debt.
            ("/events/5000", 630),
        ] {
            assert_eq!(left(&client.get_with(path, "Accept-Encoding: gzip\r\n")), before, "{path}");
            assert_eq!(upstream.last().headers["accept-encoding"], "identity");
        }
        assert_eq!(client.get("/json/1").status, 429);
    }
}

#[test]
fn responses_without_a_cost_are_counted_and_the_first_one_is_logged() {
    let upstream = model();
    let admin = "[admin]\nlisten = \"127.0.0.1:0\"\n";
    let gateway = Gateway::start(&format!("{admin}{}", forward_limited(&upstream.url(), "")));
    let (_, admin) = gateway.greeting().split_once("dashboard: http://").unwrap();
    let kept =
        || Metrics::scrape(admin.lines().next().unwrap()).of("tollgate_estimates_kept_total{limit=\"l\"}");
    let mut client = gateway.client();
    for (path, expected) in
        [("/json/100", 0.0), ("/events/1", 0.0), ("/json/null", 1.0), ("/text/1", 2.0), ("/gzip/1", 3.0)]
    {
        client.get(path);
        wait_until(path, || kept() == expected);
    }
    gateway.wait_for_log("didn't state its cost");
    let log = gateway.log();
    assert_eq!(log.matches("didn't state its cost (`/usage/total_tokens`)").count(), 1, "{log}");
}

#[test]
fn the_unused_part_of_an_estimate_comes_back() {
    let upstream = model();
    let gateway = Gateway::start(&forward_limited(&upstream.url(), "refunds = true"));
    let mut client = gateway.client();
    for (path, before) in [("/json/3", 990), ("/events/0", 987), ("/json/10", 987), ("/text/1", 977)] {
        assert_eq!(left(&client.get(path)), before, "{path}");
    }
}

const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

/// A server that sends a piece of a stream for each text on the channel; an empty one ends the stream.
fn pieces() -> (WireUpstream, mpsc::Sender<&'static str>) {
    let (piece, pieces) = mpsc::channel::<&'static str>();
    let pieces = Mutex::new(pieces);
    let upstream = WireUpstream::start(move |mut wire| {
        while wire.request().is_some() {
            wire.send(HEAD.as_bytes());
            for piece in pieces.lock().unwrap().iter() {
                wire.send(format!("{:x}\r\n{piece}\r\n", piece.len()).as_bytes());
                if piece.is_empty() {
                    break;
                }
            }
        }
    });
    (upstream, piece)
}

fn ask(client: &mut Client) -> u64 {
    client.send(b"GET /events HTTP/1.1\r\nHost: a\r\n\r\n");
    left(&client.head())
}

#[test]
fn a_stream_is_not_delayed_and_may_be_cut_anywhere() {
    let (upstream, piece) = pieces();
    let gateway = Gateway::start(&forward_limited(&upstream.url(), ""));
    let mut client = gateway.client();
    let cut = ["data: {\"usage\":{\"total_to", "kens\":4", "0}}\r", "\n\r\nda", "ta: [DONE]\r\n\r\n"];
    for before in [990, 950] {
        assert_eq!(ask(&mut client), before);
        for text in cut {
            piece.send(text).unwrap();
            // The next one isn't sent before this one has arrived.
            assert_eq!(client.chunk(), text.as_bytes());
        }
        piece.send("").unwrap();
        assert!(client.chunk().is_empty());
    }
}

#[test]
fn a_client_that_leaves_pays_what_the_stream_has_stated() {
    let (upstream, piece) = pieces();
    let limited = forward_limited(&upstream.url(), "").replace("1000/h", "1000000/h");
    let gateway = Gateway::start(&limited);
    let mut client = gateway.client();
    assert_eq!(ask(&mut client), 999_990);
    piece.send("data: {\"usage\":{\"total_tokens\":300}}\n\n").unwrap();
    client.chunk();
    drop(client);
    let mut others = 0;
    // Whether it has left is noticed when more is written.
    wait_until("the cost is recorded", || {
        let _ = piece.send(": still here\n\n");
        let mut other = gateway.client();
        other.send(b"GET /none HTTP/1.1\r\nHost: a\r\n\r\n");
        others += 1;
        left(&other.head()) == 1_000_000 - 300 - 10 * others
    });
}

const PAGE: &str = include_str!("../../docs/llm-tokens.md");

/// A route that is billed by the usage in the answers, as the page shows it.
#[test]
fn the_page_about_tokens_bills_by_json() {
    let upstream = model();
    let (_, section) = PAGE.split_once("\n## The usage in the answer\n").unwrap();
    let (_, toml) = section.split_once("```toml\n").unwrap();
    let toml = toml.split("```").next().unwrap();
    let port = upstream.url().rsplit(':').next().unwrap().to_owned();
    let toml = toml.replace("3000", &port).replace("path     = \"/v1/{*rest}\"", "path     = \"/{*rest}\"");
    let gateway = Gateway::start(&toml);
    let mut client = gateway.client();
    for (path, before) in
        [("/json/100", 99_000), ("/events/200", 98_900), ("/json/5000", 98_700), ("/text/0", 93_700)]
    {
        let answer = client.get_with(path, "X-Api-Key: gold\r\n");
        assert_eq!(left(&answer), before, "{path}");
    }
}
