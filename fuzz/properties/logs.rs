//! Access logs, and questions to `explain`.

use std::io::Cursor;

use crate::{
    explain::Question,
    simulate::{Logs, Simulation},
};

use super::config;

const LIMITS: &str = r#"
[limits.per-client]
key = "ip"
rate = "3/10s"
[limits.per-agent]
key = ["header:user-agent", "query:a"]
rate = "2/s"
algorithm = "gcra"
cost = "header:x-cost"
plain = true
[limits.running]
key = "host"
rate = "1"
algorithm = "concurrency"
mode = "shadow"
[limits.failed]
key = "method"
rate = "5/day"
algorithm = "fixed-window"
when_status = ["4xx"]
[[routes]]
path = "/{*rest}"
respond = { status = 200 }
limits = ["per-client", "per-agent", "running", "failed"]
"#;

/// Each line of a log is a request to be decided, or counted as unreadable. The report contains none of its
/// text as markup.
pub fn access_log(bytes: &[u8]) {
    let config = config(LIMITS);
    let logs = Logs::open(vec![("<log>".to_owned(), Box::new(Cursor::new(bytes.to_vec())))]);
    let simulation = Simulation { config: &config, against: Some(&config), host: None };
    let report = match logs.and_then(|logs| simulation.run(logs)) {
        Ok(report) => report,
        // Bytes that begin like gzip may not be gzip, and lines may not be those of a log.
        Err(error) => {
            assert!(bytes.starts_with(&[0x1f, 0x8b]) || error.to_string().contains("is not an access log"));
            return;
        }
    };
    assert_eq!(report.requests.all, report.lines.lines - report.lines.unreadable);
    let against = report.against.as_ref().expect("it was asked for");
    assert_eq!((against.newly_refused, against.newly_admitted), (0, 0));
    for limit in &report.limits {
        assert!(limit.refused <= limit.requests && limit.keys_refused <= limit.keys);
        assert!(limit.curve.is_sorted_by(|one, next| one.0 < next.0 && one.1 >= next.1));
    }
    let page = report.page();
    for tag in page.split('<').skip(1) {
        let name = tag.trim_start_matches('/').split([' ', '>']).next().unwrap_or_default();
        let known = [
            "!DOCTYPE", "html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "h3", "p",
            "small", "div", "b", "span", "i", "ul", "li", "table", "tr", "th", "td", "code", "svg", "line",
            "text", "rect", "path",
        ];
        assert!(known.contains(&name), "<{name}");
    }
}

/// A question to `explain` is parsed, or rejected with a remedy.
pub fn question(bytes: &[u8]) {
    if let Err(remedy) = Question::from_query(&String::from_utf8_lossy(bytes)) {
        assert_eq!(remedy.lines().count(), 2, "{remedy}");
    }
}
