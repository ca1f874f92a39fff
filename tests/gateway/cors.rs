//! The configuration for CORS in docs/configuration.md, with a real browser.

use serde_json::{Value, json};

use crate::harness::{browser::Browser, gateway::Gateway, upstream::Upstream};

const PAGE: &str = include_str!("../../docs/configuration.md");

/// Returns the file of the page, for scripts of this origin.
fn file(origin: &Upstream, orders: &Upstream) -> String {
    let (_, section) = PAGE.split_once("\n## CORS\n").unwrap();
    let (_, toml) = section.split_once("```toml\n").unwrap();
    let toml = toml.split("```").next().unwrap();
    let places = [
        ("https://shop.example", origin.url()),
        ("https://orders.internal", orders.url()),
        ("100/10s", "2/h".to_owned()),
    ];
    places.into_iter().fold(toml.to_owned(), |file, (from, to)| {
        assert!(file.contains(from), "{from}");
        file.replace(from, &to)
    })
}

/// Sends a request from a page, for which a browser asks first. Returns what its script learns: the status, whether it can read
/// each field, and the title of a problem.
fn send(browser: &Browser, gateway: &Gateway) -> Value {
    let fields = "['ratelimit', 'ratelimit-policy', 'retry-after', 'retry-after-ms', 'x-request-id']";
    browser.run(&format!(
        "return fetch('http://{}/v1/orders/5', {{ method: 'DELETE', headers: {{ 'X-Api-Key': 'k' }} }}).then(\
         (answer) => [answer.status, {fields}.filter((name) => answer.headers.has(name)).length],\
         (error) => error.name)",
        gateway.address()
    ))
}

#[test]
fn scripts_of_one_origin_pass_and_read_the_fields_of_limits() {
    let [shop, other, orders] = [(); 3].map(|()| Upstream::hello());
    let gateway = Gateway::start(&file(&shop, &orders));
    let browser = Browser::open(&shop.url());
    // The browser asks before the first one, which isn't counted.
    for fields in [3, 3] {
        assert_eq!(send(&browser, &gateway), json!([200, fields]));
    }
    assert_eq!(send(&browser, &gateway), json!([429, 5]));
    assert_eq!((orders.count(), orders.last().method.as_str()), (2, "DELETE"));

    let stranger = Browser::open(&other.url());
    assert_eq!(send(&stranger, &gateway), "TypeError");
    assert_eq!(orders.count(), 2);
}
