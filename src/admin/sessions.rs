//! Logins to the dashboard. A browser that has sent the token gets a cookie, which scripts can't read and
//! which isn't sent from other sites. A login ends after twelve hours or with the process. If there are too
//! many, the oldest ends.

use std::time::Duration;

use axum::http::{
    HeaderMap,
    header::{COOKIE, HOST, HeaderValue},
    uri::Authority,
};
use parking_lot::Mutex;
use rustls::crypto::aws_lc_rs;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::config::AdminToken;

const SESSIONS_MOST: usize = 64;
const LASTS: Duration = Duration::from_secs(12 * 3_600);

/// The logins, the oldest first.
#[derive(Default)]
pub(super) struct Sessions(Mutex<Vec<Session>>);

struct Session {
    /// The hash of the cookie's secret. Comparing hashes takes the same time for any guess.
    hash: Hash,
    /// The hash of the token that was sent. Another token ends the login.
    token: Hash,
    until: Instant,
}

type Hash = [u8; 32];

impl Sessions {
    /// Creates a login and returns the cookie to set. The request's header fields determine its name.
    pub(super) fn begin(&self, headers: &HeaderMap, token: &AdminToken) -> HeaderValue {
        let mut secret = [0; 32];
        let random = aws_lc_rs::default_provider().secure_random;
        random.fill(&mut secret).expect("the system gives randomness");
        let secret: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut sessions = self.0.lock();
        sessions.retain(|session| session.until > Instant::now());
        if sessions.len() == SESSIONS_MOST {
            sessions.remove(0);
        }
        let (hash, token) = (Sha256::digest(&secret).into(), Sha256::digest(token.as_str()).into());
        sessions.push(Session { hash, token, until: Instant::now() + LASTS });
        cookie(headers, &secret, LASTS)
    }

    /// Returns true if the request has a valid cookie of a login with this token.
    pub(super) fn has(&self, headers: &HeaderMap, token: &AdminToken) -> bool {
        let now = Instant::now();
        let (borne, token) = (borne(headers), Hash::from(Sha256::digest(token.as_str())));
        let sessions = self.0.lock();
        let is_valid = |session: &Session| session.until > now && session.token == token;
        sessions.iter().any(|session| is_valid(session) && borne.contains(&session.hash))
    }

    /// Ends the login of a request and returns the cookie to set.
    pub(super) fn end(&self, headers: &HeaderMap) -> HeaderValue {
        let borne = borne(headers);
        self.0.lock().retain(|session| !borne.contains(&session.hash));
        cookie(headers, "", Duration::ZERO)
    }
}

fn cookie(headers: &HeaderMap, value: &str, lasts: Duration) -> HeaderValue {
    let (name, seconds) = (name(headers), lasts.as_secs());
    let cookie = format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict");
    HeaderValue::from_str(&cookie).expect("it is visible ASCII")
}

/// Returns the cookie's name. It contains the port, since browsers share cookies between all ports of a host,
/// and another gateway may run there.
fn name(headers: &HeaderMap) -> String {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()?.parse::<Authority>().ok());
    format!("tollgate-{}", host.and_then(|host| host.port_u16()).unwrap_or(80))
}

/// Returns the hashes of the request's cookies. There is more than one only if the client sends the cookie
/// repeatedly.
fn borne(headers: &HeaderMap) -> Vec<Hash> {
    let name = name(headers);
    let lines = headers.get_all(COOKIE).into_iter().filter_map(|line| line.to_str().ok());
    let pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.filter(|(other, _)| *other == name).map(|(_, value)| Sha256::digest(value).into()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(cookie: &HeaderValue) -> HeaderMap {
        let pair = cookie.to_str().unwrap().split(';').next().unwrap().parse().unwrap();
        HeaderMap::from_iter([(HOST, "localhost:9901".parse().unwrap()), (COOKIE, pair)])
    }

    #[test]
    fn logins_are_bounded_in_number_and_time() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(async {
            let (sessions, token) = (Sessions::default(), AdminToken("correct-horse-battery".to_owned()));
            let nobody = headers(&"a=b".parse().unwrap());
            let first = headers(&sessions.begin(&nobody, &token));
            assert!(sessions.has(&first, &token) && !sessions.has(&nobody, &token));
            assert!(sessions.0.lock().iter().all(|session| session.hash != [0; 32]));
            let others: Vec<_> =
                (0..SESSIONS_MOST).map(|_| headers(&sessions.begin(&nobody, &token))).collect();
            assert!(!sessions.has(&first, &token) && others.iter().all(|other| sessions.has(other, &token)));
            assert!(!sessions.has(&others[1], &AdminToken("another-horse-battery".to_owned())));
            sessions.end(&others[0]);
            assert!(!sessions.has(&others[0], &token) && sessions.has(&others[1], &token));
            tokio::time::advance(LASTS).await;
            assert!(!sessions.has(&others[1], &token));
        });
    }

    #[test]
    fn a_cookie_is_for_its_port_and_no_script() {
        let (sessions, token) = (Sessions::default(), AdminToken("correct-horse-battery".to_owned()));
        let mut headers = headers(&"a=b".parse().unwrap());
        let cookie = sessions.begin(&headers, &token);
        let text = cookie.to_str().unwrap();
        assert!(
            text.starts_with("tollgate-9901=") && text.ends_with("; HttpOnly; SameSite=Strict"),
            "{text}"
        );
        headers.insert(COOKIE, cookie);
        headers.insert(HOST, "localhost:9902".parse().unwrap());
        assert!(!sessions.has(&headers, &token));
    }
}
