//! Values in configuration files.

use tollgate_limiter::{Rate, StoreSettings, StoreUrl, duration};

use crate::config::{Config, ServerUrl, Target};
use tollgate_routing::{HostPattern, Matcher, Parameters, Pattern, Table, View, path};

/// Parses a configuration that has this text between `before` and `after`. `None` if it is invalid.
fn config_with(before: &str, text: &str, after: &str) -> Option<Config> {
    let text = serde_json::to_string(&text.replace('$', "$$")).expect("a text").replace('\u{7f}', "\\u007f");
    let file = format!("[upstreams.u]\n{before}{text}{after}\n[[routes]]\npath = \"/\"\nupstream = \"u\"\n");
    Config::parse("gateway.toml", &file, &|_| None).ok().map(|(config, _)| config)
}

/// Rates and durations are within their limits, and are printed in a form that is read back as the same
/// value.
pub fn rate(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(rate) = text.parse::<Rate>() {
        assert!((1..=Rate::MAX_PERMITS).contains(&rate.permits));
        assert!(
            (1_000..=Rate::MAX_WINDOW_US).contains(&rate.window_us) && rate.window_us.is_multiple_of(1_000)
        );
        assert_eq!(rate.to_string().parse(), Ok(rate));
    }
    // Only microseconds whose nanoseconds fit into a number.
    let written = text.parse::<u64>().ok().filter(|us| us.checked_mul(1_000).is_some());
    for us in duration::parse_us(&text).ok().into_iter().chain(written) {
        let text = duration::DurationText(us);
        assert_eq!(
            [format!("{text}"), format!("{text:#}")].map(|text| duration::parse_us(&text)),
            [Ok(us), Ok(us)]
        );
    }
    assert_quotas_print(&text);
    try_values(&text);
}

/// Asserts that the rates of all algorithms are printed in a form that is read back as the same value.
fn assert_quotas_print(text: &str) {
    let limit = "builtin = \"echo\"\n[limits.l]\nkey = \"ip\"\n";
    for more in [
        "",
        "algorithm = \"concurrency\"",
        "algorithm = \"gcra\"\nburst = 3",
        "algorithm = \"sliding-cells\"",
    ] {
        let quota = |text: &str| {
            let config = config_with(&format!("{limit}{more}\nrate = "), text, "")?;
            Some(config.limits["l"].quota)
        };
        if let Some(read) = quota(text) {
            assert_eq!(quota(&read.to_string()), Some(read));
        }
    }
}

/// Parses a text as the value of other keys, which must not panic.
fn try_values(text: &str) {
    for key in ["retries.budget", "health.path", "health.interval", "eject.max"] {
        config_with(&format!("builtin = \"echo\"\n{key} = "), text, "");
    }
    for key in ["max_header_bytes", "timeouts.header"] {
        config_with(&format!("builtin = \"echo\"\n[server]\n{key} = "), text, "");
    }
    for key in ["wait", "when_status", "lease", "exempt", "key"] {
        let (before, after) = if key == "exempt" { ("[", "]") } else { ("", "") };
        let rate = if key == "key" { "" } else { "key = \"ip\"\n" };
        config_with(
            &format!("builtin = \"echo\"\n[limits.l]\nrate = \"1/s\"\n{rate}{key} = {before}"),
            text,
            after,
        );
    }
}

/// Server URLs are printed in a form that is read back as the same value. Store URLs are printed without
/// their password.
pub fn url(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let servers = |text: &str| {
        let config = config_with("servers = ", text, "")?;
        match config.upstreams.into_values().next()?.target {
            Target::Servers(servers) => servers.into_iter().next().map(|server| server.url),
            Target::Echo => None,
        }
    };
    if let Some(url) = servers(&text) {
        let has_address = match &url {
            ServerUrl::Tcp { host, port, .. } => *port > 0 && !host.is_empty(),
            ServerUrl::Unix(path) => path.is_absolute(),
        };
        assert!(has_address, "{url}");
        assert_eq!(servers(&url.to_string()), Some(url));
    }

    // Messages name the schemes of Redis.
    let is_secret =
        |word: &str| word.len() >= 8 && text.matches(word).count() == 1 && !word.contains("redis");
    match StoreSettings::at(&text) {
        Ok(store) => {
            if let StoreUrl::Redis(url) = &store.url
                && let Some(password) = url.login.password.as_ref().filter(|password| is_secret(password))
            {
                assert!(!format!("{store:?}{url}").contains(password.as_str()), "{store:?}");
            }
        }
        Err(message) => {
            let before_host = text.rsplit_once('@').map(|(before, _)| before);
            let user = before_host.and_then(|before| before.split_once("://")).map(|(_, user)| user);
            assert!(user.is_none_or(|user| !is_secret(user) || !message.contains(user)), "{message}");
        }
    }
}

/// Patterns are printed in a form that is read back as the same pattern. A path takes a route iff a pattern
/// fits it.
pub fn route(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.split('\n');
    let mut next = || lines.next().unwrap_or_default();
    let (path, host) = (path::matched(&path::forwarded(next())).into_owned(), next().to_ascii_lowercase());
    if let Ok(host) = host.parse::<HostPattern>() {
        assert_eq!(host.to_string().parse(), Ok(host));
    }
    let patterns: Vec<Pattern> = lines.filter_map(|line| line.parse().ok()).collect();
    for pattern in &patterns {
        assert_eq!(pattern.to_string().parse().as_ref(), Ok(pattern));
    }
    let matcher = |path: &Pattern| Matcher {
        host: None,
        path: path.clone(),
        methods: Vec::new(),
        headers: Vec::new(),
        query: Vec::new(),
        claims: Vec::new(),
    };
    let table = Table::new(patterns.iter().map(|pattern| (matcher(pattern), pattern)));
    let (method, headers) = Default::default();
    let parameters = Parameters::default();
    let view = View::new(&method, &host, &path, &parameters, &headers, &());
    match table.find(&view) {
        Some(found) => {
            assert!(fits(found.route, &path), "{} {path}", found.route);
            assert!(found.route.params().all(|name| found.param(name).is_some()));
        }
        None => assert!(!patterns.iter().any(|pattern| fits(pattern, &path)), "{path}"),
    }
}

/// Returns true if a path in matched form fits the pattern.
fn fits(pattern: &Pattern, path: &str) -> bool {
    let segments = |path: &str| -> Vec<String> {
        path.split('/').filter(|segment| !segment.is_empty()).map(str::to_owned).collect()
    };
    let (pattern, path) = (segments(&pattern.to_string()), segments(path));
    let has_rest = pattern.last().is_some_and(|last| last.starts_with("{*"));
    let fixed = pattern.len() - usize::from(has_rest);
    let is_alike = |(pattern, segment): (&String, &String)| {
        pattern.starts_with('{') || path::matched(pattern).trim_start_matches('/') == segment
    };
    (path.len() == fixed || has_rest && path.len() > fixed)
        && pattern[..fixed].iter().zip(&path).all(is_alike)
}
