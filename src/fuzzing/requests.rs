//! What clients and operators send.

use std::{
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{Arc, LazyLock},
    task::{Context, Poll},
};

use arc_swap::ArcSwap;
use futures_util::FutureExt;
use hyper::{
    HeaderMap, Method, Request, Version,
    header::{AUTHORIZATION, CONNECTION, COOKIE, HOST, HeaderName, HeaderValue},
};
use ipnet::IpNet;
use jsonwebtoken::{Algorithm, EncodingKey, Header, crypto};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};
use tower::ServiceExt;

use crate::{
    admin,
    algorithm::{Quota, Rate},
    config::{self, EscapedSlashes, RatelimitHeaders},
    forward::headers::{from_client, towards_client, towards_upstream},
    gateway::{Gateway, client::identify, target::Target},
    limit::{
        Limit, Limiter, Origin, Standing, fields as ratelimit,
        key::{
            Counted, Subject, count,
            jwt::{Claims, Verifier},
            key_of,
        },
        request::stated_cost,
    },
    route::path,
    server::{Status, proxy_protocol},
    store::Outcome,
};

use super::{config, parts};

/// The fields that these lines are, as far as they are any.
fn fields_of(lines: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in lines.split(|byte| *byte == b'\n') {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
    headers
}

/// A path is matched as it is forwarded, its normal forms are final, and no spelling of it has another.
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
    let hides_slash = ["%2f", "%5c"].iter().any(|slash| text.to_ascii_lowercase().contains(slash));
    assert_eq!(path::has_escaped_slash(&text), hides_slash);
}

/// Host and path of a request are read once and for all: what is forwarded is read alike.
pub fn target(bytes: &[u8]) {
    let [method, uri, fields] = parts(bytes);
    let version = if method.ends_with(b" 1.0") { Version::HTTP_10 } else { Version::HTTP_11 };
    let method = method.strip_suffix(b" 1.0").unwrap_or(method);
    let request = Request::builder().method(method).uri(uri).version(version).body(());
    let Ok(mut request) = request else { return };
    *request.headers_mut() = fields_of(fields);
    let (parts, ()) = request.into_parts();
    let read = Target::read(&parts, EscapedSlashes::Keep);
    let Ok(target) = read else {
        assert!(Target::read(&parts, EscapedSlashes::Reject).is_err());
        return;
    };
    let is_refused = Target::read(&parts, EscapedSlashes::Reject).is_err();
    assert_eq!(is_refused, path::has_escaped_slash(parts.uri.path()));
    assert!(!target.host.bytes().any(|byte| byte.is_ascii_uppercase() || matches!(byte, b'/' | b'@' | b' ')));

    let uri = target.forwarded_uri(&parts.uri);
    assert_eq!((uri.path(), uri.query()), (&*target.forwarded, parts.uri.query()));
    let mut again = Request::builder().uri(uri).version(Version::HTTP_10);
    if !target.host.is_empty() {
        again = again.header(HOST, &*target.host);
    }
    let (again, ()) = again.body(()).expect("a target that was forwarded is one").into_parts();
    let read_again = Target::read(&again, EscapedSlashes::Keep).expect("what is forwarded is read");
    assert_eq!(
        (&read_again.host, &read_again.forwarded, read_again.query),
        (&target.host, &target.forwarded, target.query)
    );
}

/// Two requests have the same key iff they have the same values, and the key is the one that people write so.
pub fn key(bytes: &[u8]) {
    let [one, other, plain, raw] = parts(bytes);
    let limit = &LIMITS.limits[if plain == b"plain" { "plain" } else { "hashed" }];
    let [(one, one_key), (other, other_key)] = [one, other].map(|values| {
        let values = Values::read(values);
        let key = values.key(limit);
        (values, key)
    });
    assert_eq!(one == other, one_key == other_key, "{one_key} {other_key}");

    // However the fields are spelt, the answer is one.
    let headers = fields_of(raw);
    let query = String::from_utf8_lossy(one_key.as_bytes());
    let of_raw = |query: &str| {
        let subject = subject(&headers, query, "", &|_| None);
        if let Counted::For { key, .. } = count(limit, &subject) {
            assert_is_text(&key);
        }
    };
    of_raw(&query);
    of_raw(&String::from_utf8_lossy(raw));
}

/// Limits by five values that a request may lack, and by a claim.
static LIMITS: LazyLock<config::Config> = LazyLock::new(|| {
    let key = "key = [\"query:k\", \"path:p\", \"header:x-k\", \"cookie:k\", \"host\"]";
    config(&format!(
        "[limits.plain]\nrate = \"1/s\"\n{key}\nplain = true\n\
         [limits.hashed]\nrate = \"1/s\"\n{key}\n\
         [limits.claim]\nrate = \"1/s\"\nkey = \"jwt:sub\"\nmissing = \"skip\"\n\
         [jwt]\nhmac_secret = \"{SECRET}\"\n\
         [[routes]]\npath = \"/{{p}}\"\nrespond = {{}}\nlimits = [\"plain\", \"hashed\", \"claim\"]"
    ))
});

/// What a request has for each part of a key.
#[derive(PartialEq)]
struct Values([Option<Vec<u8>>; 5]);

impl Values {
    /// Values with a `|` between them; a missing one is written as `-`.
    fn read(text: &[u8]) -> Self {
        let mut values = text.splitn(5, |byte| *byte == b'|');
        let mut next = || values.next().filter(|value| *value != b"-").map(<[u8]>::to_vec);
        let is_cookie = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b';' | b'"') || *byte >= 0x80;
        let [query, path, header, cookie, host] = std::array::from_fn(|_| next());
        let host = host.map(|host| String::from_utf8_lossy(&host).to_ascii_lowercase().into_bytes());
        Self([
            query,
            path,
            header.filter(|value| HeaderValue::from_bytes(value).is_ok()),
            cookie.filter(|value| value.iter().all(is_cookie)),
            host.filter(|host| !host.is_empty()),
        ])
    }

    /// The key of a request that has them.
    fn key(&self, limit: &config::Limit) -> String {
        let [query, path, header, cookie, host] = &self.0;
        let encode = |value: &Vec<u8>| percent_encode(value, NON_ALPHANUMERIC).to_string();
        let query = query.as_ref().map(|value| format!("j=1&%6b={}", encode(value))).unwrap_or_default();
        let path = path.as_ref().map(|value| path::matched(&encode(value)).into_owned());
        let mut headers = HeaderMap::new();
        if let Some(value) = header {
            headers.insert("x-k", HeaderValue::from_bytes(value).expect("looked at before"));
        }
        if let Some(value) = cookie {
            let pairs = [b"j=1; k=", value.as_slice(), b" "].concat();
            headers.insert(COOKIE, HeaderValue::from_bytes(&pairs).expect("looked at before"));
        }
        let host =
            host.as_ref().map(|host| str::from_utf8(host).expect("made from text")).unwrap_or_default();
        let parameter = |_: &str| path.as_deref().map(|path| path.strip_prefix('/').unwrap_or(path));
        let counted = count(limit, &subject(&headers, &query, host, &parameter));
        let Counted::For { key, .. } = counted else { panic!("{counted:?}") };
        assert_is_text(&key);
        self.assert_is_written(limit, &key);
        key
    }

    /// Those who write down the values mean this key.
    fn assert_is_written(&self, limit: &config::Limit, key: &str) {
        let text = |value: &Option<Vec<u8>>| String::from_utf8(value.clone()?).ok();
        let Some(values) = self.0.iter().map(text).collect::<Option<Vec<_>>>() else { return };
        // So a value is written that is known by its hash alone.
        if !values.iter().any(|value| value.starts_with("sha256:")) {
            let written = serde_json::to_string(&values).expect("texts");
            assert_eq!(key_of(limit, &written).expect("values").as_str(), key);
        }
    }
}

fn subject<'r>(
    headers: &'r HeaderMap,
    query: &'r str,
    host: &'r str,
    parameter: &'r (dyn Fn(&str) -> Option<&'r str> + Sync),
) -> Subject<'r> {
    static VERIFIER: LazyLock<Option<Verifier>> = LazyLock::new(|| LIMITS.jwt.as_ref().map(Verifier::new));
    Subject {
        client: IpAddr::from([192, 0, 2, 7]),
        method: &Method::GET,
        host,
        query,
        headers,
        claims: Claims::new(VERIFIER.as_ref(), headers),
        route: "r",
        parameter,
    }
}

/// The text of a key is short, and of characters that nobody minds.
fn assert_is_text(key: &str) {
    assert!(key.len() <= 5 * (3 * 64 + 16), "{key}");
    assert!(key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._:-%=/,".contains(&byte)), "{key:?}");
}

const SECRET: &str = "sixteen bytes and sixteen more, at the least";

/// A claim counts only if the token's signature is one by the secret, whatever the token says.
pub fn jwt(bytes: &[u8]) {
    let mut headers = HeaderMap::new();
    for line in bytes.split(|byte| *byte == b'\n').filter_map(|line| HeaderValue::from_bytes(line).ok()) {
        headers.append(AUTHORIZATION, line);
    }
    let claim =
        |headers: &HeaderMap| match count(&LIMITS.limits["claim"], &subject(headers, "", "", &|_| None)) {
            Counted::For { key, .. } => Some(key),
            Counted::Exempt | Counted::Skipped | Counted::Ambiguous(_) => None,
            Counted::Denied => panic!("nobody is denied"),
        };
    let key = EncodingKey::from_secret(SECRET.as_bytes());
    let is_signed = |token: &str| {
        token.trim().rsplit_once('.').is_some_and(|(message, signature)| {
            [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512].into_iter().any(|algorithm| {
                crypto::sign(message.as_bytes(), &key, algorithm).is_ok_and(|own| own == signature)
            })
        })
    };
    if claim(&headers).is_some() {
        let line = headers[AUTHORIZATION].to_str().expect("a token is text");
        assert!(line.split_once(' ').is_some_and(|(_, token)| is_signed(token)), "{line}");
    }

    let Ok(serde_json::Value::Object(claims)) = serde_json::from_slice(bytes) else { return };
    let token = jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &key).expect("claims");
    headers.clear();
    headers
        .insert(AUTHORIZATION, HeaderValue::from_str(&format!("Bearer {token}")).expect("a token is text"));
    let counted = claim(&headers);
    let lasts = claims.get("exp").and_then(serde_json::Value::as_u64).is_some_and(|exp| exp >> 32 == 1);
    let is_known = !["nbf", "aud", "iss"].iter().any(|name| claims.contains_key(*name));
    if let Some(serde_json::Value::String(subject)) = claims.get("sub").filter(|_| lasts && is_known) {
        let expected = key_of(&LIMITS.limits["claim"], subject).expect("any text");
        let is_hash = subject.starts_with("sha256:");
        assert!(
            is_hash || token.len() > 8_000 || counted.as_deref() == Some(expected.as_str()),
            "{counted:?}"
        );
    }
}

/// Only trusted proxies are believed, and nothing that is left of the first who isn't one; what belongs to a
/// connection goes no further.
pub fn forwarded(bytes: &[u8]) {
    const STRANGER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const PROXY: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    let trusted: [IpNet; 2] = ["10.0.0.0/8", "fd00::/8"].map(|network| network.parse().expect("a network"));
    let sent = fields_of(bytes);

    let mut headers = sent.clone();
    from_client(&mut headers);
    let lines = sent.get_all(CONNECTION).iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    let named: Vec<_> = lines.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok()).collect();
    for name in headers.keys() {
        assert!(!name.as_str().contains('_') && !named.contains(name) && name != CONNECTION, "{name}");
    }

    let claimed = lines_of(&headers, "x-forwarded-for");
    let client = identify(STRANGER, &headers, &trusted);
    assert_eq!((client.peer, client.peer_is_trusted, client.address), (STRANGER, false, STRANGER));
    let mut onward = headers.clone();
    towards_upstream(&mut onward, &client, Version::HTTP_11);
    assert_eq!(lines_of(&onward, "x-forwarded-for"), ["192.0.2.1"]);
    let is_told =
        |name: &str| ["for", "proto", "host"].iter().any(|end| name == format!("x-forwarded-{end}"));
    let is_word = |name: &str| name.starts_with("x-forwarded-") || name == "forwarded" || name == "x-real-ip";
    assert!(onward.keys().all(|name| is_told(name.as_str()) || !is_word(name.as_str())));

    let client = identify(PROXY, &headers, &trusted);
    assert!(client.peer_is_trusted);
    if !trusted.iter().any(|network| network.contains(&client.address)) {
        let mut forged = headers.clone();
        forged.remove("x-forwarded-for");
        for line in [&[HeaderValue::from_static("198.51.100.9")], claimed.as_slice()].concat() {
            forged.append("x-forwarded-for", line);
        }
        assert_eq!(identify(PROXY, &forged, &trusted), client);
    }
    towards_upstream(&mut headers, &client, Version::HTTP_10);
    let told = lines_of(&headers, "x-forwarded-for");
    assert!(told.len() == 1 && told[0].as_bytes().ends_with(b"10.0.0.1"), "{told:?}");
    towards_client(&mut headers);
}

fn lines_of(headers: &HeaderMap, name: &str) -> Vec<HeaderValue> {
    headers.get_all(name).into_iter().cloned().collect()
}

/// A cost is one whole number of its range, however often it is said.
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

/// Upstream's own RateLimit fields stay as they are, and ours can be read, whatever a store has said.
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
        outcome: Outcome { charged: true, remaining: next(), grow_us: next(), delay_us: Some(next()) },
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

/// A PROXY header is the same however it comes, and nothing beyond it is read; who is named can be named again.
pub fn proxy_protocol(bytes: &[u8]) {
    let whole = read_header(&mut &bytes[..]);
    let mut rest = bytes;
    let _ = read_header(&mut rest);
    let (header, _) = bytes.split_at(bytes.len() - rest.len());
    assert!(header.len() <= 4096);
    assert_eq!(read_header(&mut Dribble(bytes)), whole);
    let step = header.len() / 64 + 1;
    for at in (0..header.len()).step_by(step) {
        assert_eq!(read_header(&mut (&bytes[..at]).chain(&bytes[at..])), whole);
    }
    let Ok(client) = whole else { return };
    for length in (0..header.len()).step_by(step) {
        assert_eq!(read_header(&mut &header[..length]), Err(std::io::ErrorKind::UnexpectedEof));
    }
    for after in [&b""[..], b"\r\n", b"GET / HTTP/1.1\r\n\r\n"] {
        let more = [header, after].concat();
        let mut rest = &more[..];
        assert_eq!((read_header(&mut rest), rest), (Ok(client), after));
    }
    if let Some(client) = client {
        for header in [line_naming(client), binary_naming(client)] {
            assert_eq!(read_header(&mut &header[..]), Ok(Some(client)), "{}", header.escape_ascii());
        }
    }
}

/// What a header names, or what kind of error it is, read from bytes that are there.
fn read_header(stream: &mut (impl AsyncRead + Unpin)) -> Result<Option<SocketAddr>, std::io::ErrorKind> {
    let read = proxy_protocol::read(stream).now_or_never().expect("all bytes are there");
    read.map_err(|error| error.kind())
}

/// Bytes that come one by one.
struct Dribble<'b>(&'b [u8]);

impl AsyncRead for Dribble<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        if let Some((byte, rest)) = self.0.split_first() {
            into.put_slice(&[*byte]);
            self.0 = rest;
        }
        Poll::Ready(Ok(()))
    }
}

fn line_naming(client: SocketAddr) -> Vec<u8> {
    let (family, ip, port) = (if client.is_ipv4() { 4 } else { 6 }, client.ip(), client.port());
    format!("PROXY TCP{family} {ip} {ip} {port} {port}\r\n").into_bytes()
}

fn binary_naming(client: SocketAddr) -> Vec<u8> {
    let (family, address) = match client.ip() {
        IpAddr::V4(ip) => (0x11, ip.octets().to_vec()),
        IpAddr::V6(ip) => (0x21, ip.octets().to_vec()),
    };
    let port = client.port().to_be_bytes();
    let block = [&address[..], &address, &port, &port].concat();
    let length = [0, block.len() as u8];
    [b"\r\n\r\n\0\r\nQUIT\n\x21".as_slice(), &[family], &length, &block].concat()
}

/// An operator gets an answer to any request, and none of them says that the gateway has failed.
pub fn admin(bytes: &[u8]) {
    let [method, target, fields, body] = parts(bytes);
    let (Ok(method), Ok(target)) = (Method::from_bytes(method), target.try_into() as Result<hyper::Uri, _>)
    else {
        return;
    };
    let mut request = Request::new(axum::body::Body::from(body.to_vec()));
    (*request.method_mut(), *request.uri_mut()) = (method, target);
    *request.headers_mut() = fields_of(&String::from_utf8_lossy(fields).replace(';', "\n").into_bytes());
    for (name, value) in [("host", "localhost"), ("content-type", "application/json")] {
        let field = request.headers_mut().entry(name);
        field.or_insert(HeaderValue::from_static(value));
    }
    let peer = SocketAddr::from(([127, 0, 0, 1], 1));
    request.extensions_mut().insert(axum::extract::ConnectInfo(peer));
    RUNTIME.with(|runtime| {
        runtime.block_on(async {
            let config = config(
                "[store]\nmax_memory = \"1MiB\"\n[limits.l]\nrate = \"5/s\"\nkey = \"ip\"\n\
                 [limits.m]\nrate = \"5\"\nalgorithm = \"concurrency\"\nkey = [\"header:x-k\", \"ip\"]\n\
                 [[routes]]\npath = \"/\"\nrespond = {}\nlimits = [\"l\", \"m\"]",
            );
            let limiter = Limiter::open(&config.store).expect("a store in this process opens");
            let gateway = Gateway::build(&config, &limiter, None);
            let status = Arc::new(Status::new(Arc::default(), Vec::new()));
            let router = admin::router(None, Arc::new(ArcSwap::from_pointee(gateway)), status);
            let response = router.oneshot(request).await.unwrap_or_else(|never| match never {});
            assert!(!response.status().is_server_error(), "{response:?}");
            let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.expect("a whole answer");
            assert!(str::from_utf8(&body).is_ok());
        });
    });
}

thread_local! {
    static RUNTIME: tokio::runtime::Runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("the system gives a runtime");
}
