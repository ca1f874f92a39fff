//! Changes that a route makes: paths, redirects, header fields, body sizes.

use std::io::Write;

use hyper::{Response, body::Incoming};

use crate::{
    harness::{
        gateway::Gateway,
        redis::free_address,
        upstream::{Upstream, whole},
        wire::WireUpstream,
    },
    proxy::{forward_to, quoted},
};

/// Starts a gateway with routes to this upstream that have these keys.
fn routing(upstream: &Upstream, routes: &[&str]) -> Gateway {
    let routes = routes.iter().map(|keys| format!("[[routes]]\nupstream = \"api\"\n{keys}\n"));
    let servers = format!("[upstreams.api]\nservers = \"{}\"\n", upstream.url());
    Gateway::start(&(servers + &routes.collect::<String>()))
}

#[test]
fn a_path_is_rewritten_with_what_came() {
    let upstream = Upstream::hello();
    let gateway = routing(
        &upstream,
        &[
            "path = \"/v1/orders/{id}\"\nrewrite = \"/orders/{id}\"",
            "path = \"/files/{*rest}\"\nrewrite = \"/static/{*rest}\"",
            "path = \"/all/{a}/{b}\"\nrewrite = \"/{b}/{a}/\"",
            "path = \"/home\"\nrewrite = \"/\"",
            "path = \"/as-it-is/{*rest}\"",
        ],
    );
    for (sent, forwarded) in [
        ("/v1/orders/7", "/orders/7"),
        ("/v1/orders/7/?a=%2F&b=/../", "/orders/7?a=%2F&b=/../"),
        ("/v1/orders/7?", "/orders/7?"),
        ("//v1//orders/a%2Fb%41%7e", "/orders/a%2Fb%41%7e"),
        ("/v1/x/../orders/7", "/orders/7"),
        ("http://other.test/v1/orders/7?q", "/orders/7?q"),
        ("/files", "/static/"),
        ("/files//a//b%20c/", "/static/a//b%20c/"),
        ("/all/1/2", "/2/1/"),
        ("/home/", "/"),
        ("/as-it-is/..%2Fx", "/as-it-is/..%2Fx"),
    ] {
        assert_eq!(gateway.get(sent).status, 200, "{sent}");
        assert_eq!(upstream.last().uri.to_string(), forwarded, "{sent}");
    }
}

#[test]
fn no_spelling_climbs_out_of_where_a_route_puts_it() {
    let upstream = Upstream::hello();
    let limited = "limits = [{ name = \"l\", key = \"ip\", rate = \"2/h\" }]";
    let gateway = routing(
        &upstream,
        &[&format!("path = \"/v1/{{*rest}}\"\nrewrite = \"/public/{{*rest}}\"\n{limited}")],
    );
    for sent in [
        "/v1/..%2Fadmin",
        "/v1/a/%2e%2E%5cadmin",
        "/v1/..\\admin",
        "/v1/..;/admin",
        "/v1/a/..;x=1/..;/admin",
        "/v1/a%2f..",
    ] {
        let answer = gateway.get(sent);
        assert_eq!((answer.status, answer.json()["code"].as_str()), (400, Some("target-invalid")), "{sent}");
    }
    assert_eq!(upstream.count(), 0);
    // None of them was charged, and whatever is let through is limited.
    assert_eq!(gateway.get("/v1/a%2Fb").status, 200);
    assert_eq!(gateway.get("/v1//./%61%2Fb/").status, 200);
    assert_eq!(gateway.get("/v1/c").status, 429);
    assert_eq!(upstream.last().uri.path(), "/public/%61%2Fb/");
}

#[test]
fn clients_are_sent_elsewhere() {
    let gateway = Gateway::start(
        "[[routes]]\npath = \"/old/{id}\"\nredirect = { to = \"/new/{id}\" }\n\
         [[routes]]\npath = \"/shop/{*rest}\"\nredirect = { to = \"https://shop.example/{*rest}?from=a\", status = 302 }\n\
         [[routes]]\npath = \"/go/{*rest}\"\nredirect = { to = \"/{*rest}\", status = 307 }\n\
         limits = [{ name = \"l\", key = \"ip\", rate = \"2/h\" }]\n",
    );
    for (request, status, location) in [
        ("GET /old/7", 308, "/new/7"),
        ("POST /old/a%2Fb?x=1&y=%0d%0a", 308, "/new/a%2Fb?x=1&y=%0d%0a"),
        ("GET /shop/a//b?q=1", 302, "https://shop.example/a//b?from=a&q=1"),
        ("GET /shop", 302, "https://shop.example/?from=a"),
        ("GET /go//evil.example/", 307, "/evil.example/"),
        ("GET /go/\\evil.example", 307, "/%5Cevil.example"),
    ] {
        let answer = gateway.ask(request);
        assert_eq!((answer.status, answer.header("location")), (status, Some(location)), "{request}");
        assert_eq!((answer.text().as_str(), answer.header("content-length")), ("", Some("0")), "{request}");
    }
    assert_eq!(gateway.get("/go/x").status, 429, "a redirect is limited like any answer");
}

#[test]
fn fields_are_removed_then_set_then_added() {
    let upstream = Upstream::start(|_| async {
        let answer = Response::builder().header("server", "up").header("x-powered-by", "it");
        answer.header("x-both", "1").header("cache-control", "private").body(whole("hello")).unwrap()
    });
    let requests = "request_headers = { remove = [\"x-gone\", \"x-again\", \"cookie\"], set = { x-again = \"2\", authorization = \"Bearer t\", \
                    x-forwarded-proto = \"https\" }, add = { x-both = \"b\" } }";
    let answers = "response_headers = { remove = [\"server\", \"x-powered-by\"], set = { cache-control = \"no-store\" }, \
                   add = { x-both = \"2\" } }";
    let gateway = routing(&upstream, &[&format!("path = \"/a\"\n{requests}\n{answers}"), "path = \"/b\""]);
    let sent =
        "X-Gone: 1\nX-Again: 1\nX-Again: 1\nAuthorization: Basic eA==\nX-Both: a\nCookie: a=b\nX-Kept: k";
    let answer = gateway.ask(&format!("GET /a\n{sent}"));
    let headers = upstream.last().headers;
    let lines = |name: &str| {
        headers.get_all(name).iter().map(|line| line.to_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for (name, expected) in [
        ("x-gone", &[][..]),
        ("cookie", &[]),
        ("x-again", &["2"]),
        ("authorization", &["Bearer t"]),
        ("x-both", &["a", "b"]),
        ("x-kept", &["k"]),
        ("x-forwarded-proto", &["https"]),
    ] {
        assert_eq!(lines(name), expected, "{name}");
    }
    assert_eq!((answer.header("server"), answer.header("x-powered-by")), (None, None));
    assert_eq!((answer.lines("cache-control"), answer.lines("x-both")), (vec!["no-store"], vec!["1", "2"]));

    let answer = gateway.ask(&format!("GET /b\n{sent}"));
    let headers = upstream.last().headers;
    assert_eq!(
        (headers["x-gone"].as_bytes(), headers["authorization"].as_bytes()),
        (&b"1"[..], &b"Basic eA=="[..])
    );
    assert_eq!((answer.header("server"), answer.lines("x-both")), (Some("up"), vec!["1"]));
}

#[test]
fn every_answer_of_a_route_has_its_fields() {
    let dead = WireUpstream::start(drop);
    let gateway = Gateway::start(&format!(
        "[upstreams.dead]\nservers = \"{}\"\n\
         [[routes]]\npath = \"/dead\"\nupstream = \"dead\"\nresponse_headers = {{ set = {{ x-own = \"1\" }} }}\n\
         [[routes]]\npath = \"/limited\"\nrespond = {{ status = 200 }}\nresponse_headers = {{ set = {{ x-own = \"1\" }} }}\n\
         limits = [{{ name = \"l\", key = \"ip\", rate = \"1/h\" }}]\n\
         [[routes]]\npath = \"/moved\"\nredirect = {{ to = \"/\" }}\nresponse_headers = {{ set = {{ x-own = \"1\" }} }}\n",
        dead.url()
    ));
    for (path, status) in [("/dead", 502), ("/limited", 200), ("/limited", 429), ("/moved", 308)] {
        let answer = gateway.get(path);
        assert_eq!((answer.status, answer.header("x-own")), (status, Some("1")), "{path}");
    }
    assert_eq!(gateway.get("/nowhere").header("x-own"), None);
}

#[test]
fn the_cost_that_an_answer_tells_is_read_before_it_is_removed() {
    let upstream = Upstream::start(|_| async {
        Response::builder().header("x-tokens-used", "7").body(whole("hello")).unwrap()
    });
    let limit =
        "{ name = \"l\", key = \"ip\", rate = \"10/h\", cost = { response_header = \"x-tokens-used\" } }";
    let gateway = routing(
        &upstream,
        &[&format!("path = \"/\"\nlimits = [{limit}]\nresponse_headers = {{ remove = \"x-tokens-used\" }}")],
    );
    let answer = gateway.get("/");
    assert_eq!((answer.header("x-tokens-used"), answer.header("ratelimit").is_some()), (None, true));
    crate::harness::wait_until("it is recorded", || {
        gateway.get("/").header("ratelimit").is_some_and(|state| state.starts_with("\"l\";r=0"))
            || gateway.get("/").status == 429
    });
}

#[test]
fn an_upstream_may_be_asked_by_its_own_name() {
    let upstream = Upstream::hello();
    let gateway = routing(&upstream, &["path = \"/own\"\npreserve_host = false", "path = \"/clients\""]);
    let own = upstream.url();
    let own = own.strip_prefix("http://").unwrap();
    for (request, host) in [
        ("GET /own", own),
        ("GET http://other.test/own", own),
        ("GET /clients", "tollgate.test"),
        ("GET http://other.test/clients", "other.test"),
    ] {
        assert_eq!(gateway.ask(request).status, 200, "{request}");
        let headers = upstream.last().headers;
        assert_eq!(headers["host"], host, "{request}");
        let asked = if request.contains("other") { "other.test" } else { "tollgate.test" };
        assert_eq!(headers["x-forwarded-host"], asked, "{request}");
    }
}

#[test]
fn the_server_that_is_asked_next_is_asked_by_its_own_name() {
    let alive = Upstream::hello();
    let retries = "balance = \"round-robin\"\nretries = { attempts = 1, budget = \"100%\" }";
    let servers = [quoted(format!("http://{}", free_address())), quoted(alive.url())];
    let gateway = Gateway::start(&(forward_to(&servers, retries) + "preserve_host = false\n"));
    for _ in 0..2 {
        assert_eq!(gateway.get("/").status, 200);
    }
    let own = alive.url();
    assert_eq!(alive.seen(|parts| own.ends_with(parts.headers["host"].to_str().unwrap())), 2);
}

/// Reads all of a request's body.
async fn taken(body: Incoming) -> usize {
    use http_body_util::BodyExt;
    body.collect().await.map_or(0, |body| body.to_bytes().len())
}

#[test]
fn a_body_is_bounded_by_the_server_and_otherwise_by_the_route() {
    let upstream = Upstream::start(|request| async {
        Response::new(whole(taken(request.into_body()).await.to_string()))
    });
    let limit = "limits = [{ name = \"l\", key = \"ip\", rate = \"3/h\" }]";
    let gateway = Gateway::start(&format!(
        "[server]\nmax_body = \"8B\"\n[upstreams.api]\nservers = \"{}\"\n\
         [[routes]]\npath = \"/server\"\nupstream = \"api\"\n{limit}\n\
         [[routes]]\npath = \"/more\"\nupstream = \"api\"\nmax_body = \"16B\"\n\
         [[routes]]\npath = \"/any\"\nupstream = \"api\"\nmax_body = \"none\"\n\
         [[routes]]\npath = \"/here\"\nrespond = {{ status = 200 }}\n",
        upstream.url()
    ));
    let sized = |path: &str, size: usize| {
        gateway.ask(&format!("POST {path}\nContent-Length: {size}\n\n{}", "x".repeat(size)))
    };
    let chunked = |path: &str, size: usize| {
        let chunks = "4\r\nabcd\r\n".repeat(size / 4);
        gateway.ask(&format!("POST {path}\nTransfer-Encoding: chunked\n\n{chunks}0\r\n\r\n"))
    };
    for (path, most) in [("/server", 8), ("/more", 16)] {
        assert_eq!(
            (sized(path, most).text(), chunked(path, most).text()),
            (most.to_string(), most.to_string())
        );
        let upstream_saw = upstream.count();
        let answer = sized(path, most + 1);
        assert_eq!((answer.status, answer.json()["code"].as_str()), (413, Some("body-too-large")), "{path}");
        assert_eq!(upstream.count(), upstream_saw, "it is refused before anything is sent");
        assert_eq!(chunked(path, most + 4).status, 413, "{path}");
    }
    assert_eq!(
        (sized("/any", 100).text(), chunked("/any", 100).text()),
        ("100".to_owned(), "100".to_owned())
    );
    assert_eq!((sized("/here", 8).status, sized("/here", 9).status), (200, 413));
    // Those that were sent, three, have been charged.
    assert_eq!(sized("/server", 9).status, 413);
    assert_eq!(sized("/server", 1).status, 429);
    gateway.assert_not_logged("larger than");
}

#[test]
fn a_client_that_expects_to_go_on_is_told_before_it_sends() {
    let upstream = Upstream::mirror();
    let gateway = Gateway::start(&(forward_to(&[quoted(upstream.url())], "") + "max_body = \"4B\"\n"));
    let mut client = gateway.client();
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(client.answer().status, 413);
    // One that doesn't wait gets its answer as well, though it is still sending.
    let mut client = gateway.client();
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
    client.writer().write_all(b"2\r\nde\r\n").unwrap();
    assert_eq!(client.answer().status, 413);
}

#[test]
fn whom_a_limit_refuses_is_told_in_the_words_of_the_route() {
    let limit = |name: &str| {
        format!(
            "limits = [{{ name = \"{name}\", key = \"header:x-k\", rate = \"1/h\", missing = \"deny\" }}]"
        )
    };
    let gateway = Gateway::start(&format!(
        "[[routes]]\npath = \"/a\"\nrespond = {{ status = 200 }}\n{}\n\
         on_limit = {{ status = 503, body = '{{\"error\":\"slow down\"}}', content_type = \"application/json\" }}\n\
         [[routes]]\npath = \"/b\"\nrespond = {{ status = 200 }}\n{}\non_limit = {{ status = 420 }}\n\
         [[routes]]\npath = \"/c\"\nrespond = {{ status = 200 }}\n{}\non_limit = {{ body = \"${{WORDS:-later}}\" }}\n",
        limit("a"),
        limit("b"),
        limit("c")
    ));
    for path in ["/a", "/b", "/c"] {
        assert_eq!(gateway.ask(&format!("GET {path}\nX-K: 1")).status, 200);
    }
    let refused = |path: &str| gateway.ask(&format!("GET {path}\nX-K: 1"));
    let answer = refused("/a");
    assert_eq!((answer.status, answer.header("content-type")), (503, Some("application/json")));
    assert_eq!(answer.text(), "{\"error\":\"slow down\"}");
    assert!(answer.retry_after_ms() > 3_590_000 && answer.header("retry-after").is_some(), "{answer:?}");
    assert_eq!(answer.header("ratelimit-policy"), Some("\"a\";q=1;w=3600"));

    let answer = refused("/b");
    assert_eq!((answer.status, answer.json()["status"].as_u64()), (420, Some(420)));
    assert_eq!(answer.json()["violated-policies"][0], "b");
    let answer = refused("/c");
    assert_eq!((answer.status, answer.text().as_str()), (429, "later"));
    assert_eq!(answer.header("content-type"), Some("text/plain; charset=utf-8"));
    // Who lacks the key is refused by the limit, too; what is wrong with a request isn't the limit's.
    assert_eq!(gateway.get("/a").status, 503);
    assert_eq!(gateway.ask("GET /a\nX-K: 1\nX-K: 2").status, 400);
    let call = gateway.ask("POST /a\nX-K: 1\nContent-Type: application/grpc");
    assert_eq!((call.status, call.header("grpc-status"), call.text().as_str()), (200, Some("8"), ""));
}

#[test]
fn a_limit_of_a_route_is_one_like_any_other() {
    let gateway = Gateway::start(
        "[[routes]]\npath = \"/a\"\nrespond = { status = 200 }\nlimits = [{ name = \"shared\", key = \"ip\", rate = \"2/h\" }]\n\
         [[routes]]\npath = \"/b\"\nrespond = { status = 200 }\nlimits = [\"shared\"]\n",
    );
    assert_eq!(
        (gateway.get("/a").status, gateway.get("/b").status, gateway.get("/a").status),
        (200, 200, 429)
    );
}
