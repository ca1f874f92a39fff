//! A thousand routes, and requests for each kind of them.

/// The routes of a service: method (any if empty) and path.
const SHAPES: [(&str, &str); 10] = [
    ("GET", "/v1/{service}"),
    ("POST", "/v1/{service}"),
    ("", "/v1/{service}/search"),
    ("GET", "/v1/{service}/{id}"),
    ("DELETE", "/v1/{service}/{id}"),
    ("", "/v1/{service}/{id}/notes"),
    ("", "/v1/{service}/{id}/notes/{note}"),
    ("", "/v1/{service}/{id}/files/{*rest}"),
    ("", "/v2/{service}/{*rest}"),
    ("", "/static/{service}/{*rest}"),
];
/// The numbers of services: for any host, with a host each, and with a wildcard host each.
const SERVICES: [(usize, &str); 3] =
    [(50, ""), (25, "shop-{number}.example.com"), (25, "*.zone-{number}.example.net")];

/// The kinds of requests.
pub(crate) const KINDS: [&str; 8] = [
    "literal",
    "parameter",
    "parameters",
    "rest",
    "exact host",
    "wildcard host",
    "any host in the end",
    "none",
];

/// Returns the routes: method, host and path. Method and host may be empty.
pub(crate) fn routes() -> Vec<(&'static str, String, String)> {
    let mut routes = Vec::new();
    for (services, host) in SERVICES {
        for number in 0..services {
            let host = host.replace("{number}", &number.to_string());
            let named = |path: &str| path.replace("{service}", &format!("service-{number}"));
            routes.extend(SHAPES.map(|(method, path)| (method, host.clone(), named(path))));
        }
    }
    routes
}

/// Returns requests of a kind, each for another service: host and path of a GET, and the path of its route,
/// if there is one.
pub(crate) fn requests(kind: &str) -> Vec<(String, String, Option<String>)> {
    let (host, path, route) = match kind {
        "literal" => ("api.example.org", "/v1/{service}/search", "/v1/{service}/search"),
        "parameter" => ("api.example.org", "/v1/{service}/81723", "/v1/{service}/{id}"),
        "parameters" => ("api.example.org", "/v1/{service}/81723/notes/4", "/v1/{service}/{id}/notes/{note}"),
        "rest" => ("api.example.org", "/static/{service}/css/site.css", "/static/{service}/{*rest}"),
        "exact host" => (
            "shop-{number}.example.com",
            "/v1/{service}/81723",
            "shop-{number}.example.com/v1/{service}/{id}",
        ),
        "wildcard host" => (
            "eu.shop.zone-{number}.example.net",
            "/v1/{service}/81723",
            "*.zone-{number}.example.net/v1/{service}/{id}",
        ),
        // The host has no such service.
        "any host in the end" => ("shop-{number}.example.com", "/v1/{other}/81723", "/v1/{other}/{id}"),
        _ => ("api.example.org", "/v1/{service}/81723/unknown", ""),
    };
    let requests = (0..25).map(|number| {
        let fill = |text: &str| {
            let (service, other) = (format!("service-{number}"), format!("service-{}", number + 1));
            text.replace("{service}", &service)
                .replace("{other}", &other)
                .replace("{number}", &number.to_string())
        };
        (fill(host), fill(path), Some(fill(route)).filter(|route| !route.is_empty()))
    });
    requests.collect()
}
