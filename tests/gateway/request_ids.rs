//! `X-Request-Id` on responses.

use crate::{
    forward_all,
    harness::{gateway::Gateway, upstream::Upstream},
};

const TOML: &str = "[limits.l]\nkey = \"ip\"\nrate = \"1/h\"\n\
     [[routes]]\npath = \"/in\"\nrespond = { status = 200 }\nlimits = [\"l\"]\n\
     [[routes]]\npath = \"/edited\"\nrespond = { status = 200 }\nresponse_headers = { remove = [\"x-request-id\"] }\n";

/// Routes that change the id.
const EDITS: &str = "[[routes]]\npath = \"/renamed\"\nupstream = \"api\"\nrequest_headers = { set = { x-request-id = \"edited\" } }\n\
     [[routes]]\npath = \"/unnamed\"\nupstream = \"api\"\nrequest_headers = { remove = [\"x-request-id\"] }\n";

#[test]
fn every_response_has_the_id_with_which_the_request_was_forwarded() {
    let upstream = Upstream::mirror();
    let trusts = "[server]\ntrusted_proxies = [\"127.0.0.1\"]\n";
    for server in ["", trusts] {
        let gateway = Gateway::start(&format!("{server}{TOML}{EDITS}{}", forward_all(&upstream.url(), "")));
        let mut client = gateway.client();
        let mut ids = Vec::new();
        for (path, status) in
            [("/up", 200), ("/in", 200), ("/in", 429), ("/in", 429), ("/in", 429), ("/a/%00", 400)]
        {
            let answer = client.get(path);
            assert_eq!(answer.status, status, "{path}");
            let [id] = answer.lines("x-request-id")[..] else { panic!("{path}: {answer:?}") };
            ids.push(id.to_owned());
        }
        assert_eq!(ids[0], upstream.last().headers["x-request-id"]);
        let mut malformed = gateway.client();
        malformed.send(b"GET\r\n\r\n");
        ids.push(malformed.answer().header("x-request-id").unwrap().to_owned());
        assert!(ids.iter().all(|id| id.len() == 32), "{ids:?}");
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 7);
        assert_eq!(gateway.get("/edited").header("x-request-id"), None);
        for (path, id) in [("/renamed", Some("edited")), ("/unnamed", None)] {
            let answer = gateway.get(path);
            let forwarded = upstream.last().headers.get("x-request-id").cloned();
            assert_eq!(forwarded.as_ref().map(|id| id.to_str().unwrap()), id);
            assert!(
                answer.header("x-request-id").is_some_and(|stated| id.is_none_or(|id| stated == id)),
                "{answer:?}"
            );
        }
        let of_proxy = gateway.ask("GET /in\nX-Request-Id: mine");
        assert_eq!(of_proxy.header("x-request-id") == Some("mine"), server == trusts);
    }
    let off =
        Gateway::start(&format!("[server]\nrequest_id = false\n{TOML}{}", forward_all(&upstream.url(), "")));
    assert_eq!(
        [off.get("/in"), off.get("/in")].map(|answer| answer.header("x-request-id").is_some()),
        [false; 2]
    );
    assert_eq!(off.get("/up").header("x-request-id"), None);
    assert_eq!(upstream.last().headers["x-request-id"].len(), 32);
}
