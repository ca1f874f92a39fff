//! Health checks and scraping, as load balancers, Kubernetes and Prometheus do it: without a secret, by any name.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
};

use crate::{
    admin::{admin, gateway, gateway_with_token},
    harness::{gateway::Gateway, wait_until},
};

/// Returns the response to these lines, on a connection that ends with it.
pub(super) fn raw(address: SocketAddr, head: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(format!("{head}\r\n\r\n").as_bytes()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

pub(super) fn status(response: &str) -> u16 {
    response.split(' ').nth(1).expect(response).parse().unwrap()
}

/// Returns the status of a scrape by the name of a service, with a bearer token unless it is empty.
fn get(gateway: &Gateway, path: &str, token: &str) -> u16 {
    let token = if token.is_empty() { String::new() } else { format!("\r\nAuthorization: Bearer {token}") };
    let head = format!("GET {path} HTTP/1.1\r\nHost: gateway-1:9901\r\nConnection: close{token}");
    status(&raw(admin(gateway).parse().unwrap(), &head))
}

#[test]
fn probes_need_no_token_and_no_host() {
    for gateway in [gateway("5/h", ""), gateway_with_token()] {
        for path in ["/livez", "/readyz"] {
            assert_eq!(get(&gateway, path, ""), 200, "{path}");
            // The probe of `option httpchk GET /readyz` of HAProxy.
            let response = raw(admin(&gateway).parse().unwrap(), &format!("GET {path} HTTP/1.0"));
            assert_eq!(status(&response), 200, "{response}");
            assert!(response.to_ascii_lowercase().contains("\r\ncache-control: no-store\r\n"), "{response}");
            assert_eq!(get(&gateway, path, "wrong"), 200, "a probe's token isn't looked at");
        }
        // The rest is for operators.
        assert!([401, 403].contains(&get(&gateway, "/api/limits", "")));
    }
}

#[test]
fn metrics_need_a_token_of_their_own_or_the_admin_token() {
    assert_eq!(get(&gateway("5/h", ""), "/metrics", ""), 200, "without tokens, any Host");
    let start = |tokens: &str| {
        Gateway::start(&format!(
            "[admin]\nlisten = \"127.0.0.1:0\"\n{tokens}[[routes]]\npath = \"/\"\nrespond = {{}}\n"
        ))
    };
    let metrics_token = "metrics_token = \"reader-of-figures\"\n";
    let both = start(&format!("token = \"correct-horse-battery\"\n{metrics_token}"));
    let only = start(metrics_token);
    for gateway in [&both, &only] {
        assert_eq!(get(gateway, "/metrics", "reader-of-figures"), 200);
        assert_eq!(get(gateway, "/metrics", ""), 401);
        assert_eq!(get(gateway, "/metrics", "reader-of-figure"), 401);
        assert_ne!(get(gateway, "/api/limits", "reader-of-figures"), 200);
        wait_until("the wrong token is logged with its peer", || {
            gateway.log().contains("wrong admin token peer=127.0.0.1:")
        });
        gateway.assert_not_logged("reader");
    }
    assert_eq!(get(&both, "/metrics", "correct-horse-battery"), 200);
    assert_eq!(get(&both, "/api/limits", "correct-horse-battery"), 200);
}

#[test]
fn the_main_listener_answers_health_checks_before_routing_until_it_drains() {
    let gateway = Gateway::start(
        "[server]\nhealth = \"/-/ready\"\n[access_log]\npath = \"access.log\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [limits.l]\nkey = \"ip\"\nrate = \"1/h\"\n\
         [[routes]]\npath = \"/{*rest}\"\nrespond = { status = 204 }\nlimits = [\"l\"]\n",
    );
    for head in
        ["GET /-/ready HTTP/1.0", "GET /-/ready?deep HTTP/1.1\r\nHost: any.example\r\nConnection: close"]
    {
        for _ in 0..3 {
            let response = raw(gateway.address(), head);
            assert!(status(&response) == 200 && response.ends_with("\r\n\r\nready\n"), "{response}");
        }
    }
    let head = raw(gateway.address(), "HEAD /-/ready HTTP/1.0");
    assert!(status(&head) == 200 && head.ends_with("\r\n\r\n"), "{head}");
    assert_eq!(gateway.ask("POST /-/ready").status, 204, "other methods take the route, and the only permit");
    assert_eq!(gateway.get("/-/ready/").status, 429);

    wait_until("the other two requests are logged", || {
        std::fs::read_to_string(gateway.folder().join("access.log")).unwrap().lines().count() == 2
    });
    let _open = gateway.client();
    gateway.signal("TERM");
    wait_until("it isn't ready", || {
        status(&raw(gateway.address(), "GET /-/ready HTTP/1.0")) == 503 && get(&gateway, "/readyz", "") == 503
    });
    assert_eq!(get(&gateway, "/livez", ""), 200);
}
