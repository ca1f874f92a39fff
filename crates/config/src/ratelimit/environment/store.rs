//! The variables about Redis.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::{Translator, quoted};

impl Translator<'_> {
    /// Writes the table of the store.
    pub(super) fn store(&mut self) {
        self.table("store");
        if let Some(url) = self.store_url() {
            self.key("url", quoted(&url), "REDIS_URL, REDIS_TYPE, REDIS_SOCKET_TYPE, REDIS_TLS");
            if url.starts_with("rediss") {
                let files = ["REDIS_TLS_CACERT", "REDIS_TLS_CLIENT_CERT", "REDIS_TLS_CLIENT_KEY"];
                self.files("tls", &[("ca", files[0]), ("cert", files[1]), ("key", files[2])]);
            }
        }
        if let Some(timeout) = self.text("REDIS_TIMEOUT") {
            self.key("timeout", quoted(&timeout), "REDIS_TIMEOUT");
        }
        if let Some(prefix) = self.text("CACHE_KEY_PREFIX") {
            self.key("key_prefix", quoted(&prefix), "CACHE_KEY_PREFIX");
        }
    }

    /// Returns the URL of the store, or reports why there is none.
    fn store_url(&mut self) -> Option<String> {
        let Some(place) = self.text("REDIS_URL") else {
            self.error(
                "REDIS_URL is not set",
                "name the Redis server: REDIS_URL=redis:6379 and REDIS_SOCKET_TYPE=tcp",
            );
            return None;
        };
        let s = if self.flag("REDIS_TLS", false) { "s" } else { "" };
        let login = self.text("REDIS_AUTH").map(|auth| login(&auth)).unwrap_or_default();
        match self.text_or("REDIS_TYPE", "single").to_lowercase().as_str() {
            "single" => self.single_url(&place, s, &login),
            "cluster" => Some(cluster_url(&place, s, &login)),
            "sentinel" => self.sentinel_url(&place, s, &login),
            kind => {
                self.error(
                    format!("REDIS_TYPE: there is no kind of Redis `{kind}`"),
                    "use SINGLE, SENTINEL or CLUSTER",
                );
                None
            }
        }
    }

    fn single_url(&mut self, place: &str, s: &str, login: &str) -> Option<String> {
        if let Some((scheme, rest)) = place.split_once("://") {
            let s = if scheme == "redis" { s } else { "" };
            let login = if rest.contains('@') { "" } else { login };
            return Some(format!("{scheme}{s}://{login}{rest}"));
        }
        match self.text_or("REDIS_SOCKET_TYPE", "unix").to_lowercase().as_str() {
            "tcp" => Some(format!("redis{s}://{login}{place}")),
            "unix" if place.starts_with('/') => Some(format!("redis+unix://{login}{place}")),
            "unix" => {
                self.error(
                    "REDIS_URL is not the path of a socket",
                    "for a host and a port, set REDIS_SOCKET_TYPE=tcp",
                );
                None
            }
            kind => {
                self.error(
                    format!("REDIS_SOCKET_TYPE: there is no kind of socket `{kind}`"),
                    "use tcp or unix",
                );
                None
            }
        }
    }

    fn sentinel_url(&mut self, place: &str, s: &str, login: &str) -> Option<String> {
        let mut parts = place.split(',').map(str::trim);
        let (Some(service), Some(first)) = (parts.next(), parts.next()) else {
            self.error(
                "REDIS_URL names no Sentinels",
                "write the name of the primary first: REDIS_URL=mymaster,sentinel:26379",
            );
            return None;
        };
        let own = self.text("REDIS_SENTINEL_AUTH").map(|auth| split_login(&auth)).unwrap_or_default();
        let own = [("sentinelUsername", own.0), ("sentinelPassword", own.1)].into_iter();
        let own = own.filter(|(_, value)| !value.is_empty());
        let own: String = own.map(|(name, value)| format!("&{name}={}", encoded(&value))).collect();
        let service = encoded(service);
        Some(format!("redis{s}-sentinel://{login}{first}?service={service}{}{own}", nodes(parts)))
    }
}

fn cluster_url(place: &str, s: &str, login: &str) -> String {
    let mut parts = place.split(',').map(str::trim);
    let first = parts.next().unwrap_or_default();
    let nodes = nodes(parts);
    format!("redis{s}-cluster://{login}{first}{}", nodes.replacen('&', "?", 1))
}

/// Returns further servers as parameters of a URL.
fn nodes<'n>(parts: impl Iterator<Item = &'n str>) -> String {
    parts.map(|node| format!("&node={node}")).collect()
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Splits `USER:PASSWORD`. Without a colon, all of it is the password.
fn split_login(auth: &str) -> (String, String) {
    let (user, password) = auth.split_once(':').unwrap_or(("", auth));
    (user.to_owned(), password.to_owned())
}

/// Returns a login as it stands before the host of a URL.
fn login(auth: &str) -> String {
    let (user, password) = split_login(auth);
    format!("{}:{}@", encoded(&user), encoded(&password))
}
