//! Calendar windows, as clients and operators see them.

use time::{Date, Month, OffsetDateTime};

use crate::{
    harness::{gateway::Gateway, redis::Redis},
    limit_all,
};

const PLAN: &str = "key = \"ip\"\nrate = \"2/year\"\nalgorithm = \"fixed-window\"\ncalendar = \"-03:30\"";

/// Returns the seconds until the next year begins by that clock.
fn seconds_left() -> i64 {
    let now = OffsetDateTime::now_utc();
    let begins = |year| {
        let day = Date::from_calendar_date(year, Month::January, 1).unwrap();
        day.with_hms(3, 30, 0).unwrap().assume_utc()
    };
    let ends = [begins(now.year()), begins(now.year() + 1)].into_iter().find(|begins| *begins > now).unwrap();
    (ends - now).whole_seconds()
}

#[test]
fn a_year_that_is_used_up_ends_with_the_calendars() {
    let redis = Redis::start();
    for store in [String::new(), redis.store()] {
        let gateway = Gateway::start(&format!("{store}{}", limit_all(PLAN)));
        let least = || seconds_left() - 60;
        let first = gateway.get("/");
        // A year has no fixed number of seconds.
        assert_eq!(first.header("ratelimit-policy"), Some("\"l\";q=2"));
        let standing = first.header("ratelimit").unwrap();
        let resets = standing.strip_prefix("\"l\";r=1;t=").unwrap().parse().unwrap();
        assert!((least()..=seconds_left() + 2).contains(&resets), "{standing}");
        assert_eq!(gateway.get("/").status, 200);
        let refused = gateway.get("/");
        let retry_after = refused.header("retry-after").unwrap().parse().unwrap();
        assert_eq!(refused.status, 429);
        assert!((least()..=seconds_left() + 2).contains(&retry_after), "{retry_after}");
    }
}
