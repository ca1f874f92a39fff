//! Requests of clients.

use std::{net::IpAddr, sync::Arc};

use hyper::{
    HeaderMap, Request, Version,
    header::{CONNECTION, HOST, HeaderName, HeaderValue, TE},
};
use ipnet::IpNet;
use percent_encoding::percent_decode_str;
use tollgate_limiter::{
    Limit, Origin, Quota, Rate, RatelimitHeaders, Standing, fields as ratelimit, store::Outcome,
};

use crate::{
    config::EscapedSlashes,
    forward::headers::{from_client, towards_client, towards_upstream, trailers_from_client},
    gateway::{Peer, client::identify, target::Target},
    rules::costs::stated_cost,
    trace::{self, Context},
};
use tollgate_routing::{
    Pattern, Table, path,
    template::{Location, Template},
};

use super::{fields_of, parts};

/// A path is matched in the form in which it is forwarded. Both forms are final, and all spellings of a path
/// match alike.
pub fn path(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let sent = path::forwarded(&text);
    let matched = path::matched(&sent);
    let normal = |path: &str| path::matched(&path::forwarded(path)).into_owned();
    assert!(sent.starts_with('/') && matched.starts_with('/'));
    assert_eq!(path::forwarded(&sent), sent);
    assert_eq!(path::matched(&matched), matched);
    assert_eq!(normal(&matched), matched);
    let named = |path: &str| -> Vec<Vec<u8>> {
        path.split('/')
            .filter(|name| !name.is_empty())
            .map(|name| percent_decode_str(name).collect())
            .collect()
    };
    assert_eq!(named(&sent), named(&matched));
    assert!(!named(&sent).iter().any(|name| name == b"." || name == b".."));

    let mut escaped = String::new();
    for segment in matched.split('/').skip(1) {
        escaped += "//x/.%2E/";
        for byte in percent_decode_str(segment) {
            escaped += &format!("%{byte:02x}");
        }
    }
    assert_eq!(normal(&escaped), matched);
    assert_eq!(normal(&format!("{matched}/.//")), matched);
    for reading in path::readings(&sent, &matched).unwrap_or_default() {
        let without_empty = normal(&reading);
        assert!(reading != matched && named(&without_empty) == named(&reading), "{reading}");
    }

    assert_templates_keep_path(&sent, &matched, &text);
    let hides_slash = ["%2f", "%5c"].iter().any(|slash| text.to_ascii_lowercase().contains(slash));
    assert_eq!(path::has_escaped_slash(&text), hides_slash);
}

/// Asserts that rewriting a path, or redirecting to it, changes only its beginning.
fn assert_templates_keep_path(sent: &str, matched: &str, query: &str) {
    let all: Pattern = "/{*rest}".parse().expect("a pattern");
    let rewritten = "/b/{*rest}".parse::<Template>().expect("a template").fill(&all, sent);
    assert_eq!(path::forwarded(&rewritten), rewritten);
    assert_eq!(path::matched(&rewritten), path::matched(&format!("/b{matched}")));
    let to = "/{*rest}".parse::<Location>().expect("a location").fill(&all, sent, query);
    assert!(to.starts_with('/') && !to.starts_with("//") && to.bytes().all(|byte| byte.is_ascii_graphic()));
    assert!(!to.contains('\\'), "browsers read it as a slash: {to}");
}

/// The host and path of a request are read once: a forwarded request is read in the same way.
pub fn target(bytes: &[u8]) {
    let [method, uri, fields] = parts(bytes);
    let version = if method.ends_with(b" 1.0") { Version::HTTP_10 } else { Version::HTTP_11 };
    let method = method.strip_suffix(b" 1.0").unwrap_or(method);
    let request = Request::builder().method(method).uri(uri).version(version).body(());
    let Ok(mut request) = request else { return };
    *request.headers_mut() = fields_of(fields);
    let (parts, ()) = request.into_parts();
    let routes = Table::<()>::new([]);
    let read = |parts, slashes| Target::read(parts, slashes, &routes);
    let Ok(target) = read(&parts, EscapedSlashes::Keep) else {
        assert!(read(&parts, EscapedSlashes::Reject).is_err());
        return;
    };
    let is_refused = read(&parts, EscapedSlashes::Reject).is_err();
    assert_eq!(is_refused, path::has_escaped_slash(parts.uri.path()));
    assert!(!target.host.bytes().any(|byte| byte.is_ascii_uppercase() || matches!(byte, b'/' | b'@' | b' ')));

    let uri = target.forwarded_uri(&parts.uri).unwrap_or_else(|| parts.uri.clone());
    assert_eq!((uri.path(), uri.query()), (&*target.forwarded, parts.uri.query()));
    let mut again = Request::builder().uri(uri).version(Version::HTTP_10);
    if !target.host.is_empty() {
        again = again.header(HOST, &*target.host);
    }
    let (again, ()) = again.body(()).expect("a target that was forwarded is one").into_parts();
    let read_again = read(&again, EscapedSlashes::Keep).expect("what is forwarded is read");
    assert_eq!(
        (&read_again.host, &read_again.forwarded, read_again.query),
        (&target.host, &target.forwarded, target.query)
    );
}

/// Only trusted proxies can state a client, and nothing to the left of the first untrusted address counts.
/// Hop-by-hop fields are never forwarded. The trace sent to the upstream is valid.
pub fn forwarded(bytes: &[u8]) {
    let sent = fields_of(bytes);
    let mut headers = sent.clone();
    from_client(&mut headers, &[]);
    assert_no_hop_by_hop(&sent, &headers);
    assert_trace_is_valid(&headers);
    assert_client_is_trusted(&headers);
    assert_trailers_are_clean(sent);
}

fn assert_no_hop_by_hop(sent: &HeaderMap, headers: &HeaderMap) {
    let lines = sent.get_all(CONNECTION).iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    let named: Vec<_> = lines.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok()).collect();
    for name in headers.keys() {
        let stays = named.contains(name) && name != TE;
        assert!(!name.as_str().contains('_') && !stays && name != CONNECTION, "{name}");
    }
}

fn assert_trace_is_valid(headers: &HeaderMap) {
    let mut traced = headers.clone();
    trace::propagate(&mut traced, None);
    assert_eq!(traced == *headers, Context::read(headers).is_some());
    let field = Context::read(&traced).expect("a trace").to_field();
    assert!(field.len() == 55 && lines_of(&traced, "traceparent").len() == 1, "{field:?}");
}

fn assert_client_is_trusted(headers: &HeaderMap) {
    const STRANGER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const PROXY: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    let http = |address| Peer { address, scheme: "http" };
    let trusted: [IpNet; 2] = ["10.0.0.0/8", "fd00::/8"].map(|network| network.parse().expect("a network"));
    let client = identify(http(STRANGER), headers, &trusted);
    assert_eq!((client.peer, client.peer_is_trusted, client.address), (STRANGER, false, STRANGER));
    let mut onward = headers.clone();
    towards_upstream(&mut onward, &client, Version::HTTP_11, HeaderValue::from_static("own"));
    assert_eq!(lines_of(&onward, "x-request-id"), ["own"]);
    assert_eq!(lines_of(&onward, "x-forwarded-for"), ["192.0.2.1"]);
    assert!(lines_of(&onward, "te").iter().all(|line| line == "trailers"), "{onward:?}");
    let is_set = |name: &str| ["for", "proto", "host"].iter().any(|end| name == format!("x-forwarded-{end}"));
    assert!(onward.keys().all(|name| is_set(name.as_str()) || !is_of_proxy(name.as_str())));

    let client = identify(http(PROXY), headers, &trusted);
    assert!(client.peer_is_trusted);
    if !trusted.iter().any(|network| network.contains(&client.address)) {
        assert_eq!(identify(http(PROXY), &with_forged_address(headers), &trusted), client);
    }
    let mut onward = headers.clone();
    towards_upstream(&mut onward, &client, Version::HTTP_10, HeaderValue::from_static("own"));
    let addresses = lines_of(&onward, "x-forwarded-for");
    assert!(addresses.len() == 1 && addresses[0].as_bytes().ends_with(b"10.0.0.1"), "{addresses:?}");
    towards_client(&mut onward);
}

/// Returns the header with another address at the left of X-Forwarded-For, where clients can write.
fn with_forged_address(headers: &HeaderMap) -> HeaderMap {
    let claimed = lines_of(headers, "x-forwarded-for");
    let mut forged = headers.clone();
    forged.remove("x-forwarded-for");
    for line in [&[HeaderValue::from_static("198.51.100.9")], claimed.as_slice()].concat() {
        forged.append("x-forwarded-for", line);
    }
    forged
}

/// Returns true if a proxy describes the client in this field, or the target before it was changed.
fn is_of_proxy(name: &str) -> bool {
    const OTHERS: [&str; 5] = ["forwarded", "x-real-ip", "x-original-url", "x-rewrite-url", "x-vhm-root"];
    name.starts_with("x-forwarded-") || OTHERS.contains(&name)
}

fn assert_trailers_are_clean(mut trailers: HeaderMap) {
    trailers_from_client(&mut trailers);
    let is_of_header =
        |name: &str| ["host", "content-length", "transfer-encoding", "via", "te"].contains(&name);
    for name in trailers.keys().map(HeaderName::as_str) {
        assert!(!is_of_header(name) && !is_of_proxy(name) && !name.contains('_'), "{name}");
    }
}

fn lines_of(headers: &HeaderMap, name: &str) -> Vec<HeaderValue> {
    headers.get_all(name).into_iter().cloned().collect()
}

/// A cost is a whole number in its range. If it is stated several times, it is the same each time.
pub fn cost(bytes: &[u8]) {
    let name = HeaderName::from_static("x-cost");
    let lines: Vec<_> =
        bytes.split(|byte| *byte == b'\n').filter_map(|line| HeaderValue::from_bytes(line).ok()).collect();
    let mut headers = HeaderMap::new();
    for line in &lines {
        headers.append(&name, line.clone());
    }
    let stated = stated_cost(&headers, &name);
    assert_eq!(stated.is_none(), lines.is_empty());
    if let Some(Ok(cost)) = stated {
        assert!((1..=i32::MAX as u32).contains(&cost));
        let is_said = |line: &HeaderValue| {
            line.to_str().is_ok_and(|line| line.trim_start_matches('0') == cost.to_string())
        };
        assert!(lines.iter().all(is_said), "{lines:?}");
    }
}

/// RateLimit fields of the upstream stay as they are, and those of Tollgate are valid for any numbers from a
/// store.
pub fn fields(bytes: &[u8]) {
    let [numbers, fields] = parts(bytes);
    let numbers = String::from_utf8_lossy(numbers);
    let mut numbers = numbers.split(' ').map(|number| number.parse().unwrap_or_default());
    let mut next = || -> u64 { numbers.next().unwrap_or_default() };
    let rate = Rate {
        permits: next().clamp(1, u64::from(Rate::MAX_PERMITS)) as u32,
        window_us: next().clamp(1, Rate::MAX_WINDOW_US / 1_000) * 1_000,
    };
    let standings = [rate.into(), Quota::concurrency(rate.permits)].map(|quota: Quota| Standing {
        limit: Arc::new(Limit::new("a-limit", quota)),
        quota,
        origin: Origin::Store,
        number: 0,
        outcome: Outcome {
            charged: true,
            remaining: next(),
            grow_us: next(),
            delay_us: Some(next()),
            rate: None,
        },
    });
    for form in [
        RatelimitHeaders::Draft11,
        RatelimitHeaders::XRatelimit,
        RatelimitHeaders::Both,
        RatelimitHeaders::Off,
    ] {
        let upstream = fields_of(fields);
        let mut headers = upstream.clone();
        ratelimit::write(&mut headers, &standings, form);
        let is_draft = matches!(form, RatelimitHeaders::Draft11 | RatelimitHeaders::Both);
        for name in ["ratelimit", "ratelimit-policy"] {
            let (before, mut after) = (lines_of(&upstream, name), lines_of(&headers, name));
            let ours = if is_draft { after.pop() } else { None };
            assert_eq!(before, after);
            assert!(ours.is_none_or(|ours| {
                ours.to_str().is_ok_and(|ours| ours.matches("\"a-limit\";").count() == 2)
            }));
        }
        if matches!(form, RatelimitHeaders::XRatelimit | RatelimitHeaders::Both) {
            for name in ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"] {
                let lines = lines_of(&headers, name);
                assert!(
                    lines.len() == 1 && lines[0].to_str().is_ok_and(|number| number.parse::<u64>().is_ok())
                );
            }
        }
    }
}
