//! The keys that requests are counted by.

use std::{net::IpAddr, sync::LazyLock};

use hyper::{
    HeaderMap, Method,
    header::{AUTHORIZATION, COOKIE, HeaderValue},
};
use jsonwebtoken::{Algorithm, EncodingKey, Header, crypto};
use percent_encoding::{NON_ALPHANUMERIC, percent_encode};

use crate::{
    config,
    rules::key::{
        Counted, Subject, count,
        jwt::{Claims, Verifier},
        key_of,
    },
};
use tollgate_routing::path;

use super::{config, fields_of, parts};

/// Two requests have the same key iff they have the same values. The key is the one that operators would
/// write.
pub fn key(bytes: &[u8]) {
    let [one, other, plain, raw] = parts(bytes);
    let limit = &LIMITS.limits[if plain == b"plain" { "plain" } else { "hashed" }];
    let [(one, one_key), (other, other_key)] = [one, other].map(|values| {
        let values = Values::read(values);
        let key = values.key(limit);
        (values, key)
    });
    let (Some(one_key), Some(other_key)) = (one_key, other_key) else { return };
    assert_eq!(one == other, one_key == other_key, "{one_key} {other_key}");

    // Any spelling of the fields is counted in one way.
    let headers = fields_of(raw);
    let query = String::from_utf8_lossy(one_key.as_bytes());
    let of_raw = |query: &str| {
        let claims = claims(&headers);
        let subject = subject(&headers, &claims, query, "", &|_| None);
        if let Counted::For(keys) = count(limit, &subject) {
            assert!((1..=4).contains(&keys.len()), "{keys:?}");
            keys.iter().for_each(|counted| assert_is_text(&counted.key));
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

/// The values of a request, one for each part of a key.
#[derive(PartialEq)]
struct Values([Option<Vec<u8>>; 5]);

impl Values {
    /// Parses values separated by `|`. A missing one is written as `-`, and an empty one is missing, but for that of a path.
    fn read(text: &[u8]) -> Self {
        let mut values = text.splitn(5, |byte| *byte == b'|');
        let mut next = || values.next().filter(|value| *value != b"-").map(<[u8]>::to_vec);
        let is_cookie = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b';' | b'"') || *byte >= 0x80;
        let [query, path, header, cookie, host] = std::array::from_fn(|_| next());
        let host = host.map(|host| String::from_utf8_lossy(&host).to_ascii_lowercase().into_bytes());
        let header = header.filter(|value| HeaderValue::from_bytes(value).is_ok());
        let cookie = cookie.filter(|value| value.iter().all(is_cookie));
        let [query, header, cookie, host] =
            [query, header, cookie, host].map(|value| value.filter(|value| !value.is_empty()));
        Self([query, path, header, cookie, host])
    }

    /// Returns the usual key of a request with these values. `None` if servers may read different keys in it.
    fn key(&self, limit: &config::LimitSettings) -> Option<String> {
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
        let counted = count(limit, &subject(&headers, &claims(&headers), &query, host, &parameter));
        let key = match counted {
            Counted::For(mut keys) => keys.remove(0).key,
            Counted::Ambiguous(part) if part != "host" => return None,
            other => panic!("{other:?}"),
        };
        assert_is_text(&key);
        self.assert_is_written(limit, &key);
        Some(key)
    }

    /// Asserts that an operator who writes these values gets this key.
    fn assert_is_written(&self, limit: &config::LimitSettings, key: &str) {
        let text = |value: &Option<Vec<u8>>| String::from_utf8(value.clone()?).ok();
        let Some(values) = self.0.iter().map(text).collect::<Option<Vec<_>>>() else { return };
        // A value with this prefix stands for a hash.
        if !values.iter().any(|value| value.starts_with("sha256:")) {
            let written = serde_json::to_string(&values).expect("texts");
            assert_eq!(key_of(limit, &written).expect("values").as_str(), key);
        }
    }
}

/// Returns the claims of a request with this header.
fn claims(headers: &HeaderMap) -> Claims<'_> {
    static VERIFIER: LazyLock<Option<Verifier>> =
        LazyLock::new(|| LIMITS.jwt.as_ref().map(|settings| Verifier::new(settings, None)));
    Claims::new(VERIFIER.as_ref(), headers)
}

fn subject<'r>(
    headers: &'r HeaderMap,
    claims: &'r Claims<'r>,
    query: &'r str,
    host: &'r str,
    parameter: &'r (dyn Fn(&str) -> Option<&'r str> + Sync),
) -> Subject<'r> {
    Subject {
        client: IpAddr::from([192, 0, 2, 7]),
        method: &Method::GET,
        host,
        query,
        queries_in_path: &[],
        headers,
        peer_is_trusted: false,
        claims,
        route: "r",
        parameter,
    }
}

/// Asserts that the text of a key is short and has only harmless characters.
fn assert_is_text(key: &str) {
    assert!(key.len() <= 5 * (3 * 64 + 16), "{key}");
    assert!(key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._:-%=/,".contains(&byte)), "{key:?}");
}

const SECRET: &str = "sixteen bytes and sixteen more, at the least";

/// A claim counts only if the token is signed with the secret, whatever else it states.
pub fn jwt(bytes: &[u8]) {
    let mut headers = HeaderMap::new();
    for line in bytes.split(|byte| *byte == b'\n').filter_map(|line| HeaderValue::from_bytes(line).ok()) {
        headers.append(AUTHORIZATION, line);
    }
    let key = EncodingKey::from_secret(SECRET.as_bytes());
    if claim(&headers).is_some() {
        let line = String::from_utf8_lossy(headers[AUTHORIZATION].as_bytes());
        let mut dots = line.match_indices('.');
        assert!(dots.any(|(at, _)| is_signed(&line[..at], &line[at + 1..], &key)), "{line}");
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

/// Returns the key of the limit by a claim. `None` if no token is valid.
fn claim(headers: &HeaderMap) -> Option<String> {
    match count(&LIMITS.limits["claim"], &subject(headers, &claims(headers), "", "", &|_| None)) {
        Counted::For(mut keys) => Some(keys.remove(0).key),
        Counted::Exempt { .. } | Counted::Skipped | Counted::Ambiguous(_) => None,
        counted => panic!("{counted:?}"),
    }
}

/// Returns true if the last two parts of a text are signed by this key, where a lenient decoder reads all parts.
fn is_signed(text: &str, signature: &str, key: &EncodingKey) -> bool {
    let word = text.rsplit(|c: char| c.is_whitespace() || matches!(c, ',' | ';')).next().unwrap_or_default();
    let Some((header, claims)) = word.rsplit_once('.') else { return false };
    let header = header.rsplit('.').next().unwrap_or_default();
    let signatures = digits(signature);
    let signs = |message: &str| {
        [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512].into_iter().any(|algorithm| {
            let own = crypto::sign(message.as_bytes(), key, algorithm);
            // The last digit has bits that aren't used.
            own.is_ok_and(|own| signatures.iter().any(|digits| digits.starts_with(&own[..own.len() - 1])))
        })
    };
    let claims = up_to_paddings(claims);
    // The scheme may be before the header without a space.
    let headers = up_to_paddings(header);
    let mut headers = headers.iter().flat_map(|header| (0..header.len()).map(|start| &header[start..]));
    headers.any(|header| claims.iter().any(|claims| signs(&format!("{header}.{claims}"))))
}

/// Returns the digits of a part, all of them, and those up to each padding.
fn up_to_paddings(part: &str) -> Vec<String> {
    let ends = part.match_indices('=').map(|(at, _)| at).take(8).chain([part.len()]);
    ends.flat_map(|end| digits(&part[..end])).collect()
}

/// Returns the digits in a text: `+` and `/` are some to one decoder, and nothing to another.
fn digits(text: &str) -> [String; 2] {
    let of_url =
        |text: &str| text.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')).collect();
    [of_url(&text.replace('+', "-").replace('/', "_")), of_url(text)]
}
