//! Matching routes, for all spellings of a path.

use crate::{harness::gateway::Gateway, limit_all};

/// Starts a gateway whose routes respond with their index in this list.
fn numbered(matchers: &[&str]) -> Gateway {
    let routes = matchers.iter().enumerate().map(|(number, matcher)| {
        format!("[[routes]]\n{matcher}\nrespond = {{ status = 200, body = \"{number}\" }}\n")
    });
    Gateway::start(&routes.collect::<String>())
}

#[test]
fn the_most_specific_route_wins() {
    let gateway = numbered(&[
        r#"path = "/{*rest}""#,
        r#"path = "/v1/{*rest}""#,
        r#"path = "/v1/orders/{id}""#,
        r#"path = "/v1/orders/new""#,
        "path = \"/v1/orders/{id}\"\nmethods = [\"POST\", \"PUT\"]",
        "path = \"/v1/orders/{id}\"\nheaders = { x-version = \"2\" }",
        "path = \"/v1/orders/{id}\"\nquery = { preview = \"1\" }",
        "path = \"/v1/orders/{id}\"\nmethods = [\"POST\"]\nquery = { preview = \"1\" }",
        "path = \"/v1/orders/new\"\nhost = \"*.example.com\"",
        "path = \"/{*rest}\"\nhost = \"*.example.com\"",
        "path = \"/{*rest}\"\nhost = \"api.example.com\"",
        "path = \"/{*rest}\"\nhost = \"*.api.example.com\"",
    ]);
    for (request, route) in [
        ("GET /", "0"),
        ("GET /v1", "1"),
        ("GET /v1/orders", "1"),
        ("GET /v1/orders/7", "2"),
        ("GET /v1/orders/7/lines", "1"),
        ("GET /v1/orders/new", "3"),
        ("PUT /v1/orders/7", "4"),
        ("PUT /v1/orders/new", "3"),
        ("GET /v1/orders/7\nX-Version: 2", "5"),
        ("GET /v1/orders/7\nX-Version: 1\nX-Version: 2", "5"),
        ("GET /v1/orders/7\nX-Version: 3", "2"),
        ("GET /v1/orders/7?preview=1", "6"),
        ("GET /v1/orders/7?a=b&previe%77=1", "6"),
        ("GET /v1/orders/7?preview=12", "2"),
        ("POST /v1/orders/7?preview=1", "7"),
        ("PUT /v1/orders/7?preview=1", "4"),
        ("GET /v1/orders/new\nHost: www.example.com", "8"),
        ("GET /v1\nHost: www.example.com", "9"),
        ("GET /v1/orders/new\nHost: api.example.com", "10"),
        ("GET /\nHost: API.Example.COM.:8080", "10"),
        ("GET /\nHost: a.api.example.com", "11"),
        ("GET /\nHost: example.com", "0"),
    ] {
        assert_eq!(gateway.ask(request).text(), route, "{request}");
    }
}

#[test]
fn escaped_slashes_are_refused_where_the_file_says_so() {
    let reject = "[server]\nescaped_slashes = \"reject\"\n";
    let gateway = Gateway::start(&format!("{reject}{}", limit_all("key = \"ip\"\nrate = \"1/h\"")));
    for path in ["/a%2Fb", "/a%2fb", "/a%5cb"] {
        let answer = gateway.get(path);
        assert_eq!((answer.status, answer.json()["code"].as_str()), (400, Some("escaped-slash")), "{path}");
    }
    assert_eq!(gateway.get("/a/b").status, 200, "what was rejected wasn't charged");
}

#[test]
fn a_route_answers_by_itself_and_with_values_of_the_environment() {
    let respond = r#"{ status = 418, body = "${POT}, ${SIZE:-small}", headers = { x-pot = "${POT}" } }"#;
    let gateway = Gateway::start_with(
        &format!("[[routes]]\npath = \"/tea\"\nrespond = {respond}\n"),
        &["--listen", "127.0.0.1:0"],
        &[("POT", "tea, \"black\"")],
    );
    let answer = gateway.get("/tea");
    assert_eq!((answer.status, answer.header("x-pot")), (418, Some("tea, \"black\"")));
    assert_eq!(answer.text(), "tea, \"black\", small");
    let head = gateway.ask("HEAD /tea");
    assert_eq!((head.status, head.header("content-length")), (418, Some("19")));
}
