//! The URL of a Redis server, Cluster or Sentinel setup.
//!
//! The syntax is that of common clients: user, password and database in their usual places, further nodes as
//! `?node=HOST:PORT`. It is parsed here, so that errors can say what is wrong.
//!
//! Each mistake has an error of its own, which stands beside the code that finds it.

use std::{borrow::Cow, fmt, net::Ipv6Addr, path::PathBuf};

use http::uri::Authority;
use percent_encoding::percent_decode_str;

use super::password;

/// A Redis URL, possibly with user, password and database. Displays without passwords.
///
/// # Examples
///
/// ```
/// # use tollgate_limiter::StoreUrl;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let Ok(StoreUrl::Redis(url)) = "redis://gateway:secret@10.0.0.1/2".parse() else { unreachable!("a URL of Redis") };
/// assert_eq!((url.to_string().as_str(), url.tls, url.database), ("redis://gateway:******@10.0.0.1/2", false, Some(2)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl {
    text: String,
    /// The servers to connect to.
    pub servers: RedisServers,
    /// True if connections use TLS.
    pub tls: bool,
    /// The login for the servers.
    pub login: RedisLogin,
    /// The database. `None` means the server's default.
    pub database: Option<u8>,
}

/// The servers to connect to.
///
/// # Examples
///
/// ```
/// # use tollgate_limiter::{StoreUrl, store::redis::url::RedisServers};
/// let Ok(StoreUrl::Redis(url)) = "redis-sentinel://10.0.0.1?node=10.0.0.2&service=mymaster".parse() else {
///     panic!("it is a URL of Redis")
/// };
/// assert!(matches!(url.servers, RedisServers::Sentinel { service, .. } if service == "mymaster"));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub enum RedisServers {
    /// A single server.
    One(Endpoint),
    /// A server on this machine, at this unix socket.
    Socket(PathBuf),
    /// The servers of a Cluster; these are the known ones.
    Cluster(Vec<Endpoint>),
    /// The primary that the Sentinels name.
    Sentinel {
        /// The known Sentinels.
        sentinels: Vec<Endpoint>,
        /// The name of the primary.
        service: String,
        /// The login for the Sentinels themselves.
        login: RedisLogin,
    },
}

/// A host, or an address without brackets, and a port.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::store::redis::url::Endpoint;
///
/// assert_eq!(Endpoint { host: "::1".to_owned(), port: 6379 }.to_string(), "[::1]:6379");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The host.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// A login for a server. It has no `Debug` output, since it holds a password.
///
/// # Examples
///
/// ```
/// # use tollgate_limiter::StoreUrl;
/// let Ok(StoreUrl::Redis(url)) = "redis://:secret@10.0.0.1".parse() else { panic!("it is a URL of Redis") };
/// assert_eq!((url.login.user, url.login.password.as_deref()), (None, Some("secret")));
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RedisLogin {
    /// The user. `None` means the default user.
    pub user: Option<String>,
    /// The password.
    pub password: Option<String>,
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&password::blank_word(&self.text))
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

impl RedisUrl {
    const PORT: u16 = 6379;
    const SENTINEL_PORT: u16 = 26379;

    /// Parses a URL.
    ///
    /// # Errors
    /// The URL is invalid. The error is a message and a line that says how to fix it. It quotes nothing of
    /// the URL, since the position of a password in an invalid URL is unknown.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let parts = Parts::split(text).ok_or_else(|| invalid(text))?;
        let port = if parts.kind == "-sentinel" { Self::SENTINEL_PORT } else { Self::PORT };
        let mut database = database(&parts)?;
        let servers = match parts.kind {
            "+unix" => {
                if !matches!(parts.authority, "" | "localhost") {
                    return Err("the path of this URL's socket lacks its first part, which is read as a host\nwrite three slashes: \"redis+unix:///run/redis.sock\"".to_owned());
                }
                database = parts.parameter("db")?.map(|number| read_database(&number)).transpose()?.flatten();
                RedisServers::Socket(PathBuf::from(decode(parts.path).ok_or_else(no_url)?))
            }
            "-cluster" => RedisServers::Cluster(parts.nodes(port)?),
            "-sentinel" => RedisServers::Sentinel {
                sentinels: parts.nodes(port)?,
                service: parts.service()?,
                login: RedisLogin {
                    user: parts.parameter("sentinelUsername")?,
                    password: parts.parameter("sentinelPassword")?,
                },
            },
            _ => RedisServers::One(
                endpoint(parts.authority, port).ok_or_else(|| invalid_node(parts.authority))?,
            ),
        };
        parts.complain_of_unknown_parameters()?;
        Ok(Self { text: text.to_owned(), servers, tls: parts.tls, login: parts.login()?, database })
    }
}

/// The parts of a URL's text.
struct Parts<'t> {
    tls: bool,
    /// The rest of the scheme: `-cluster`, `-sentinel`, `+unix` or nothing.
    kind: &'t str,
    user_info: Option<&'t str>,
    authority: &'t str,
    /// The path with its leading slash, possibly empty.
    path: &'t str,
    parameters: Vec<(Cow<'t, str>, Cow<'t, str>)>,
}

impl<'t> Parts<'t> {
    fn split(text: &'t str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let kind = scheme.strip_prefix("redis")?;
        let (tls, kind) = kind.strip_prefix('s').map_or((false, kind), |kind| (true, kind));
        let is_known = matches!(kind, "" | "-cluster" | "-sentinel") || (kind == "+unix" && !tls);
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let is_plain = !text.contains(|c: char| c.is_control() || matches!(c, ' ' | '#'));
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (user_info, authority) =
            authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
        let has_place = if kind == "+unix" { path.len() > 1 } else { !authority.is_empty() };
        let parameters = form_urlencoded::parse(query.as_bytes()).collect();
        (is_known && is_plain && has_place).then_some(Self {
            tls,
            kind,
            user_info,
            authority,
            path,
            parameters,
        })
    }

    fn login(&self) -> Result<RedisLogin, String> {
        let info = self.user_info.unwrap_or_default();
        // Without a colon, all of it is the user, as in any URL.
        let (user, password) = info.split_once(':').unwrap_or((info, ""));
        let part = |text: &str| match decode(text) {
            Some(text) => Ok(Some(text).filter(|text| !text.is_empty())),
            None => Err(no_url()),
        };
        Ok(RedisLogin { user: part(user)?, password: part(password)? })
    }

    /// Returns the URL's host and the hosts of its `node` parameters.
    fn nodes(&self, port: u16) -> Result<Vec<Endpoint>, String> {
        let others = self.parameters.iter().filter(|(name, _)| name == "node").map(|(_, node)| node.as_ref());
        std::iter::once(self.authority)
            .chain(others)
            .map(|node| endpoint(node, port).ok_or_else(|| invalid_node(node)))
            .collect()
    }

    fn service(&self) -> Result<String, String> {
        let service = match self.parameter("service")? {
            Some(service) => Some(service),
            None => self.parameter("sentinelServiceName")?,
        };
        service.filter(|service| !service.is_empty()).ok_or_else(|| {
            "this URL doesn't name the primary\nadd the name that the Sentinels know it by: \"redis-sentinel://HOST:26379?service=mymaster\"".to_owned()
        })
    }

    fn parameter(&self, name: &str) -> Result<Option<String>, String> {
        let mut values = self.parameters.iter().filter(|(found, _)| found == name).map(|(_, value)| value);
        match (values.next(), values.next()) {
            (_, Some(_)) => Err(format!("this URL has several parameters `{name}`\nremove all but one")),
            (value, None) => Ok(value.map(|value| value.clone().into_owned())),
        }
    }

    fn complain_of_unknown_parameters(&self) -> Result<(), String> {
        let known: &[&str] = match self.kind {
            "+unix" => &["db"],
            "-cluster" => &["node"],
            "-sentinel" => {
                &["node", "service", "sentinelServiceName", "sentinelUsername", "sentinelPassword"]
            }
            _ => &[],
        };
        match self.parameters.iter().find(|(name, _)| !known.contains(&name.as_ref())) {
            None => Ok(()),
            Some((name, number)) if known.is_empty() && name == "db" && number.parse::<u8>().is_ok() => Err(format!(
                "the database of this URL is its path\nwrite \"redis://HOST:6379/{number}\""
            )),
            Some(_) if known.is_empty() => Err(
                "the URL of a single server can't have parameters\nremove everything from the `?` on, or use \"redis-cluster://\" or \"redis-sentinel://\"".to_owned(),
            ),
            Some((name, _)) if !is_name(name) => Err(format!(
                "this URL has a parameter that this kind of store doesn't support\nit supports `{}`",
                known.join("`, `")
            )),
            Some((name, _)) => Err(format!(
                "this kind of store doesn't support the parameter `{name}`\nit supports `{}`",
                known.join("`, `")
            )),
        }
    }
}

/// Returns the database that the path names, if this kind of URL can have one.
fn database(parts: &Parts<'_>) -> Result<Option<u8>, String> {
    let written = parts.path.trim_matches('/');
    if parts.kind != "+unix" && written.contains('@') {
        return Err(
            "a `/` ends the password of this URL\nin a password, percent-encode `/ ? # @ %`: `/` is %2F"
                .to_owned(),
        );
    }
    match parts.kind {
        "+unix" => Ok(None),
        "-cluster" if !written.is_empty() => Err(
            "a Redis Cluster has no databases\nremove the path from the URL, and separate stores by `key_prefix`"
                .to_owned(),
        ),
        _ if written.is_empty() => Ok(None),
        "-sentinel" if written.parse::<u8>().is_err() => Err(
            "the path of this URL is not a database, a whole number from 0 to 255\nname the primary in a parameter: \"redis-sentinel://HOST:26379?service=mymaster\"".to_owned(),
        ),
        _ => read_database(written),
    }
}

/// Returns the number of a database. `None` for 0: a connection begins there, and SELECT needs a right.
fn read_database(written: &str) -> Result<Option<u8>, String> {
    written
        .parse()
        .map(|number| Some(number).filter(|number| *number != 0))
        .map_err(|_| "the database of this URL is not a whole number from 0 to 255\nwrite for example \"redis://HOST:6379/0\"".to_owned())
}

fn endpoint(text: &str, default_port: u16) -> Option<Endpoint> {
    let authority: Authority = text.parse().ok().filter(|_| !text.contains(','))?;
    let host = authority.host();
    let port = match text.strip_prefix(host)?.strip_prefix(':') {
        Some(port) => port.parse().ok().filter(|port| *port != 0)?,
        None => default_port,
    };
    Some(Endpoint { host: bare_host(host)?.to_owned(), port })
}

/// Returns a host without the brackets around an IPv6 address. `None` if brackets occur anywhere else.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::store::redis::url::bare_host;
///
/// assert_eq!([bare_host("[::1]"), bare_host("redis"), bare_host("[redis]")], [Some("::1"), Some("redis"), None]);
/// ```
pub fn bare_host(host: &str) -> Option<&str> {
    match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(address) => address.parse::<Ipv6Addr>().is_ok().then_some(address),
        None => (!host.is_empty() && !host.contains(['[', ']'])).then_some(host),
    }
}

fn decode(text: &str) -> Option<String> {
    percent_decode_str(text).decode_utf8().ok().map(Cow::into_owned)
}

/// Returns true if the text can be shown: a parameter's name, and no part of a password.
fn is_name(text: &str) -> bool {
    text.len() <= 20 && text.bytes().all(|b| b.is_ascii_alphabetic())
}

/// Returns what is wrong with a URL that has no place, or another scheme.
fn invalid(text: &str) -> String {
    let rows: [(bool, &str, &str); 4] = [
        (
            text.starts_with("redis+tls:"),
            "the scheme of this URL is unknown",
            "for TLS write \"rediss://HOST:6379\"",
        ),
        (
            text.starts_with("valkey"),
            "the scheme of this URL is unknown",
            "for Valkey write \"redis://HOST:6379\", with TLS \"rediss://HOST:6379\"",
        ),
        (
            !text.contains("://"),
            "this store URL has no scheme",
            "write \"redis://HOST:6379\", or \"memory:\"",
        ),
        (
            text.contains([' ', '#']),
            "this store URL has a space or a `#`",
            "in a password, write %20 for a space and %23 for `#`",
        ),
    ];
    let row = rows.into_iter().find(|(applies, ..)| *applies);
    row.map_or_else(no_url, |(_, fault, remedy)| format!("{fault}\n{remedy}"))
}

/// Returns what is wrong with a host and port.
fn invalid_node(node: &str) -> String {
    let port = node.rsplit_once(':').map(|(_, port)| port);
    let (fault, remedy) = if node.contains(',') {
        (
            "this URL has several hosts in one place",
            "write further ones as parameters: \"redis-cluster://HOST:6379?node=HOST:6379\", \"redis-sentinel://HOST:26379?node=HOST:26379&service=mymaster\"",
        )
    } else if node.matches(':').count() > 1 || node.contains(['[', ']']) {
        ("the host of this URL is not valid", "write an IPv6 address in brackets: \"redis://[::1]:6379\"")
    } else if port.is_some_and(|port| port.parse::<u16>().is_ok_and(|port| port != 0)) || port.is_none() {
        return no_url();
    } else {
        (
            "the port of this URL is not a number from 1 to 65535",
            "write HOST:PORT: \"redis://HOST:6379\"; in a password, percent-encode `/ ? # @ %`",
        )
    };
    format!("{fault}\n{remedy}")
}

fn no_url() -> String {
    const REMEDY: &str = "use \"memory:\", or a Redis URL: \"redis://USER:${PASSWORD}@HOST:6379/0\", \"redis-cluster://HOST:6379?node=HOST:6379\", \"redis-sentinel://HOST:26379?service=mymaster\" (with TLS each \"rediss\"), \"redis+unix:///run/redis.sock\"; in a password, percent-encode spaces and `/ ? # @ %`";
    format!("this is not a valid store URL\n{REMEDY}")
}

#[cfg(test)]
mod tests;
