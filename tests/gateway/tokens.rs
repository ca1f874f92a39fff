//! Valid and invalid tokens as keys.

use aws_lc_rs::{
    encoding::{AsDer, Pkcs8V1Der},
    rsa::{KeyPair, KeySize},
    signature::Ed25519KeyPair,
};
use jsonwebtoken::{
    Algorithm, DecodingKey, DecodingKeyKind, EncodingKey, Header, encode, get_current_timestamp,
    jwk::{AlgorithmParameters, Jwk},
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    harness::{gateway::Gateway, redis::Redis},
    limit_all,
};

pub(super) const SECRET: &str = "0123456789abcdef0123456789abcdef";
/// One request an hour for each subject, none without.
const PER_SUBJECT: &str = "key = \"jwt:sub\"\nrate = \"1/h\"\nmissing = \"deny\"";

/// Who signs tokens.
pub(super) struct Issuer {
    header: Header,
    key: EncodingKey,
}

impl Issuer {
    pub(super) fn hmac(secret: &[u8]) -> Self {
        Self { header: Header::new(Algorithm::HS256), key: EncodingKey::from_secret(secret) }
    }

    fn rsa() -> Self {
        let pair: Pkcs8V1Der<'_> = KeyPair::generate(KeySize::Rsa2048).unwrap().as_der().unwrap();
        // What is wrapped in a PKCS #8 header of so many bytes is a PKCS #1 key.
        let key = EncodingKey::from_rsa_der(&pair.as_ref()[26..]);
        Self { header: Header::new(Algorithm::RS256), key }
    }

    pub(super) fn ed25519() -> Self {
        let pair: Pkcs8V1Der<'_> = Ed25519KeyPair::generate().unwrap().as_der().unwrap();
        Self { header: Header::new(Algorithm::EdDSA), key: EncodingKey::from_ed_der(pair.as_ref()) }
    }

    pub(super) fn named(mut self, id: &str) -> Self {
        self.header.kid = Some(id.to_owned());
        self
    }

    /// States in its tokens that its keys are at this URL.
    pub(super) fn with_keys_at(mut self, url: &str) -> Self {
        self.header.jku = Some(url.to_owned());
        self
    }

    /// Its public key.
    pub(super) fn jwk(&self) -> Jwk {
        let mut jwk = Jwk::from_encoding_key(&self.key, self.header.alg).unwrap();
        jwk.common.key_id = self.header.kid.clone();
        jwk
    }

    pub(super) fn token(&self, claims: &Value) -> String {
        encode(&self.header, claims, &self.key).unwrap()
    }
}

pub(super) fn seconds_from_now(seconds: i64) -> i64 {
    i64::try_from(get_current_timestamp()).unwrap() + seconds
}

/// Claims of a good token.
pub(super) fn of(subject: &str) -> Value {
    json!({ "sub": subject, "exp": seconds_from_now(600) })
}

/// These claims instead or beside.
pub(super) fn with(claims: Value, others: Value) -> Value {
    let (Value::Object(mut claims), Value::Object(others)) = (claims, others) else { panic!("no claims") };
    claims.extend(others);
    claims.into()
}

fn status(gateway: &Gateway, token: &str) -> u16 {
    gateway.ask(&format!("GET /\nAuthorization: Bearer {token}")).status
}

fn assert_missing(gateway: &Gateway, token: &str, why: &str) {
    let answer = gateway.ask(&format!("GET /\nAuthorization: Bearer {token}"));
    assert_eq!((answer.status, answer.json()["code"].as_str()), (429, Some("key-missing")), "{why}");
}

fn base64url(bytes: &[u8]) -> String {
    let key = Jwk::from_encoding_key(&EncodingKey::from_secret(bytes), Algorithm::HS256).unwrap();
    match key.algorithm {
        AlgorithmParameters::OctetKey(key) => key.value,
        other => panic!("{other:?}"),
    }
}

/// A gateway that believes the secret.
fn by_secret(others: &str) -> Gateway {
    Gateway::start(&format!("[jwt]\nhmac_secret = \"{SECRET}\"\n{others}{}", limit_all(PER_SUBJECT)))
}

/// A gateway that believes these keys, and their file.
fn by_keys(keys: &Value) -> (Gateway, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys.json");
    std::fs::write(&file, json!({ "keys": keys }).to_string()).unwrap();
    let gateway = Gateway::start(&format!("[jwt]\njwks_file = {file:?}\n{}", limit_all(PER_SUBJECT)));
    (gateway, folder)
}

#[test]
fn each_subject_of_a_verified_token_is_counted_for_itself() {
    let gateway = by_secret("");
    let issuer = Issuer::hmac(SECRET.as_bytes());
    let ann = issuer.token(&of("ann"));
    assert_eq!(status(&gateway, &ann), 200);
    // Another token of hers is hers, too.
    assert_eq!(status(&gateway, &issuer.token(&with(of("ann"), json!({ "n": 2 })))), 429);
    assert_eq!(status(&gateway, &issuer.token(&of("bob"))), 200);
    assert_eq!(
        gateway.ask(&format!("GET /\nauthorization: bearer  {ann}")).header("ratelimit-policy"),
        Some("\"l\";q=1;w=3600")
    );
}

#[test]
fn tokens_are_verified_by_the_keys_of_a_file() {
    let (rsa, ed) = (Issuer::rsa().named("r"), Issuer::ed25519().named("e"));
    let (unknown, encrypting) =
        (json!({ "kty": "future", "kid": "r" }), with(json!(Issuer::rsa().jwk()), json!({ "use": "enc" })));
    let (gateway, _folder) = by_keys(&json!([unknown, encrypting, rsa.jwk(), ed.jwk()]));
    assert_eq!(status(&gateway, &rsa.token(&of("ann"))), 200);
    assert_eq!(status(&gateway, &ed.token(&of("ann"))), 429);
    assert_eq!(status(&gateway, &ed.token(&of("bob"))), 200);
    let unnamed = Issuer { header: Header::new(Algorithm::EdDSA), key: ed.key.clone() };
    assert_eq!(status(&gateway, &unnamed.token(&of("cid"))), 200);

    assert_missing(&gateway, &Issuer::ed25519().named("e").token(&of("dan")), "signed by another key");
    let other_name = Issuer { header: Header::new(Algorithm::EdDSA), key: ed.key.clone() }.named("r");
    assert_missing(&gateway, &other_name.token(&of("dan")), "signed by another key than it names");
}

#[test]
fn a_public_key_is_no_secret_and_none_is_no_algorithm() {
    let rsa = Issuer::rsa().named("r");
    let jwk = rsa.jwk();
    let (gateway, _folder) = by_keys(&json!([jwk]));
    let public = DecodingKey::from_jwk(&jwk).unwrap();
    let DecodingKeyKind::RsaModulusExponent { n, .. } = public.kind() else { panic!("{jwk:?}") };
    let text = serde_json::to_string(&jwk).unwrap();
    for secret in [n, base64url(n).as_bytes(), text.as_bytes(), b"0"] {
        let confused = Issuer::hmac(secret).named("r");
        assert_missing(&gateway, &confused.token(&of("ann")), "signed with the public key as a secret");
    }
    let good = rsa.token(&of("ann"));
    let [_, claims, signature] = good.split('.').collect::<Vec<_>>()[..] else { panic!("{good}") };
    for header in [
        r#"{"alg":"none"}"#,
        r#"{"alg":"None","kid":"r"}"#,
        r#"{"alg":"RS384","kid":"r"}"#,
        r#"{"kid":"r"}"#,
        "{}",
    ] {
        let header = base64url(header.as_bytes());
        for signature in [signature, ""] {
            assert_missing(&gateway, &format!("{header}.{claims}.{signature}"), "of another algorithm");
        }
    }
    let forged = base64url(of("bob").to_string().as_bytes());
    let header = good.split('.').next().unwrap();
    assert_missing(&gateway, &format!("{header}.{forged}.{signature}"), "with other claims");
    for broken in
        ["", "a", "a.b", "a.b.c", "a.b.c.d", &good[1..], &good[..good.len() - 2], &format!("{good}.")]
    {
        assert_missing(&gateway, broken, "broken");
    }
    assert_eq!(status(&gateway, &good), 200);
}

#[test]
fn a_token_that_does_not_hold_here_and_now_is_missing() {
    let gateway = by_secret("issuer = [\"id\", \"old\"]\naudience = \"shop\"\n");
    let issuer = Issuer::hmac(SECRET.as_bytes());
    let good = |subject| with(of(subject), json!({ "iss": "id", "aud": ["other", "shop"] }));
    for (why, others) in [
        ("expired", json!({ "exp": seconds_from_now(-60) })),
        ("without expiry", json!({ "exp": null })),
        ("with an expiry in words", json!({ "exp": "never" })),
        ("not valid yet", json!({ "nbf": seconds_from_now(60) })),
        ("of another issuer", json!({ "iss": "me" })),
        ("of no issuer", json!({ "iss": null })),
        ("for another audience", json!({ "aud": ["other"] })),
        ("for nobody", json!({ "aud": [] })),
        ("for anybody", json!({ "aud": null })),
        ("without a subject", json!({ "sub": null })),
        ("with a list for a subject", json!({ "sub": ["ann"] })),
        ("longer than is looked at", json!({ "x": "y".repeat(8 << 10) })),
    ] {
        assert_missing(&gateway, &issuer.token(&with(good("ann"), others)), why);
    }
    assert_missing(&gateway, &Issuer::hmac(&[b'0'; 32]).token(&good("ann")), "signed with another secret");
    let mut critical = Issuer::hmac(SECRET.as_bytes());
    critical.header.crit = Some(vec!["b64".to_owned()]);
    assert_missing(&gateway, &critical.token(&good("ann")), "with something critical that isn't known");
    // Decoders of base64 read several values in it, and if it has `-` or `_` more than are charged.
    let as_password = gateway.ask(&format!("GET /\nAuthorization: Basic {}", issuer.token(&good("ann"))));
    assert!(matches!(as_password.status, 400 | 429), "{as_password:?}");
    assert_eq!(gateway.get("/").status, 429);

    assert_eq!(status(&gateway, &issuer.token(&good("ann"))), 200);
    let differing_clocks =
        json!({ "exp": seconds_from_now(-20), "nbf": seconds_from_now(20), "aud": "shop", "iss": "old" });
    assert_eq!(status(&gateway, &issuer.token(&with(good("bob"), differing_clocks))), 200);
}

#[test]
fn no_spelling_of_a_token_escapes_the_limit_of_its_subject() {
    let issuer = || Issuer::hmac(SECRET.as_bytes());
    // The second one's tokens name a key, and the gateway's has no name.
    [issuer(), issuer().named("a")].iter().for_each(assert_no_spelling_escapes);
}

fn assert_no_spelling_escapes(issuer: &Issuer) {
    let ann = issuer.token(&of("ann"));
    let limit = |missing: &str| {
        let limit = limit_all(PER_SUBJECT).replace("deny", missing);
        Gateway::start(&format!("[jwt]\nhmac_secret = \"{SECRET}\"\n{limit}"))
    };
    let (skips, denies) = (limit("skip"), limit("deny"));
    let (signed, signature) = ann.rsplit_once('.').unwrap();
    assert_eq!(status(&skips, &ann), 200);
    for spelling in [
        format!("Bearer {ann}="),
        format!("Bearer {ann}==="),
        format!("Bearer {ann}!!!!"),
        format!("Bearer {ann}=QUJD"),
        format!("Bearer {ann}{}", "!".repeat(8 << 10)),
        format!("Bearer {}*{}", &ann[..ann.len() - 9], &ann[ann.len() - 9..]),
        format!("Bearer =={ann}"),
        format!("Bearer {}", ann.replacen('.', "=!=.", 1)),
        format!("Bearer {signed}=.{signature}"),
        format!("Bearer {signed}\u{e9}.{signature}"),
        format!("Bearer{ann}"),
        format!("Bearer {ann}/+"),
        format!("Bearer{ann} x"),
        format!("x Bearer{ann}"),
        format!("xbearer{ann}"),
        format!("Bearer {ann}..-"),
        format!("Bearer {signed}.={signature}=QQ"),
        format!("{ann} Bearer"),
        format!("Bearer {signed}.BeArEr{signature}"),
        format!("Bearer x {ann}=A"),
        format!("Bearer {ann}Bearer x"),
        format!("Bearer{ann}Bearerx"),
        format!("Bearer {signed}.\"\"{signature} x"),
        format!("x\ty {ann} z"),
        format!("Token token={ann}"),
        format!("Foo x, Bearer {ann}"),
        format!("JWT {ann}"),
        format!("Bearer x {ann}"),
        format!("Bearer {ann},x"),
        ann.clone(),
    ] {
        let request = format!("GET /\nAuthorization: {spelling}");
        assert_eq!(skips.ask(&request).status, 429, "{spelling}");
        // Not all servers believe it.
        let answer = denies.ask(&request);
        assert_eq!((answer.status, answer.json()["code"].as_str()), (429, Some("key-missing")), "{spelling}");
    }
    for forged in [format!("{signed}.="), format!("{signed}.{}", &signature[1..]), format!("{ann}A=")] {
        assert_eq!([status(&skips, &forged), status(&skips, &forged)], [200, 200], "{forged}");
    }
}

/// A check of a signature takes up to 0.3 ms.
#[test]
fn few_signatures_of_a_request_are_checked() {
    let gateway = by_secret("");
    let text = |name: char| format!("eyJhbGciOiJIUzI1NiJ9.{name}bcd=efgh+ijkl/mnop==.{}", "a=B+c/".repeat(7));
    let bearer = |names: &str| names.chars().map(text).collect::<Vec<_>>().join(" ");
    let code = |names: &str| {
        let answer = gateway.ask(&format!("GET /\nAuthorization: Bearer {}", bearer(names)));
        (answer.status, answer.json()["code"].as_str().unwrap().to_owned())
    };
    assert_eq!(code("x"), (429, "key-missing".to_owned()));
    assert_eq!(code("xyz"), (400, "key-ambiguous".to_owned()));
}

/// Rewriting all that decoders may read in 28 kB took 7 ms.
#[test]
fn a_token_is_read_leniently_up_to_a_length() {
    let gateway = by_secret("");
    let ann = Issuer::hmac(SECRET.as_bytes()).token(&of("ann"));
    for (junk, code) in
        [("~x", "key-missing"), ("x", "key-missing"), ("~~", "key-ambiguous"), ("~=", "key-ambiguous")]
    {
        let length = if code == "key-missing" { 10_000 } else { 28_000 };
        let answer =
            gateway.ask(&format!("GET /\nAuthorization: Bearer {ann}{}", junk.repeat(length / junk.len())));
        assert_eq!(answer.json()["code"].as_str(), Some(code), "{junk}");
    }
}

#[test]
fn a_token_that_only_patient_servers_believe_counts_for_its_subject() {
    let issuer = Issuer::hmac(SECRET.as_bytes());
    let limit = limit_all(PER_SUBJECT).replace("deny", "skip");
    let gateway = Gateway::start(&format!("[jwt]\nhmac_secret = \"{SECRET}\"\n{limit}"));
    let status_with = |others| status(&gateway, &issuer.token(&with(of("ann"), others)));
    assert_eq!(status_with(json!({})), 200);
    for others in [
        json!({ "exp": seconds_from_now(-60) }),
        json!({ "exp": seconds_from_now(-240) }),
        json!({ "nbf": seconds_from_now(240) }),
    ] {
        assert_eq!(status_with(others.clone()), 429, "{others}");
    }
    assert_eq!(status_with(json!({ "exp": seconds_from_now(-400) })), 200);
}

#[test]
fn two_different_credentials_are_refused() {
    let gateway = by_secret("");
    let issuer = Issuer::hmac(SECRET.as_bytes());
    let (ann, bob) = (issuer.token(&of("ann")), issuer.token(&of("bob")));
    let answer = gateway.ask(&format!("GET /\nAuthorization: Bearer {ann}\nAuthorization: Bearer {bob}"));
    assert_eq!((answer.status, answer.json()["code"].as_str()), (400, Some("key-ambiguous")));
}

#[test]
fn claims_name_their_buckets_and_without_them_the_address_does() {
    let redis = Redis::start();
    let limit = limit_all("key = \"jwt:sub\"\nrate = \"9/h\"");
    let gateway = Gateway::start(&format!("{}[jwt]\nhmac_secret = \"{SECRET}\"\n{limit}", redis.store()));
    let issuer = Issuer::hmac(SECRET.as_bytes());
    for subject in [json!("ann@example.com"), json!(7), json!(true), json!("x".repeat(65))] {
        let token = issuer.token(&json!({ "sub": subject, "exp": seconds_from_now(600) }));
        assert_eq!(status(&gateway, &token), 200, "{subject}");
    }
    let unverified = Issuer::hmac(b"a guess").token(&of("ann@example.com"));
    assert_eq!(status(&gateway, &unverified), 200);
    let mut keys = redis.keys("tollgate:l:*");
    keys.sort();
    let long = keys.iter().position(|key| key.contains("jwt:sub=sha256/")).expect("a hashed one");
    assert!(!keys.remove(long).contains("xx"));
    let expected = ["ip=127.0.0.1", "jwt:sub=7", "jwt:sub=ann%40example.com", "jwt:sub=true"];
    assert_eq!(keys, expected.map(|key| format!("tollgate:l:sw:{{{key}}}")));
    gateway.assert_not_logged(SECRET);
}

#[test]
fn a_reload_reads_the_keys_again() {
    let (old, new) = (Issuer::ed25519(), Issuer::ed25519());
    let (gateway, folder) = by_keys(&json!([old.jwk()]));
    assert_eq!(status(&gateway, &old.token(&of("ann"))), 200);
    assert_missing(&gateway, &new.token(&of("bob")), "signed by a key to come");
    let file = folder.path().join("keys.json");
    std::fs::write(&file, json!({ "keys": [new.jwk()] }).to_string()).unwrap();
    gateway.reload(&format!("[jwt]\njwks_file = {file:?}\n{}", limit_all(PER_SUBJECT)));
    assert_missing(&gateway, &old.token(&of("ann")), "signed by a key that is gone");
    assert_eq!(status(&gateway, &new.token(&of("bob"))), 200);
    gateway.wait_for_log("`jwt` changed");
}
