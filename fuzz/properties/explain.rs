//! Explanations of requests.

use std::sync::{Arc, LazyLock};

use hyper::Request;
use tokio::{
    runtime::{Builder, Runtime},
    time::Instant,
};
use tollgate_http1::head::FIELDS_MOST;
use tollgate_limiter::{Effect, Limiter};

use crate::{
    config::Config,
    explain::{DescribedLimit, Explanation, Question},
    gateway::{Gateway, Peer, Upload},
    rules::Rule,
};

use super::config;

static CONFIG: LazyLock<Config> = LazyLock::new(|| {
    config(
        r#"
[server]
trusted_proxies = ["10.0.0.0/8"]
[store]
max_memory = "1MiB"
[limits.client]
key = "ip"
rate = "1000/h"
exempt = ["198.51.100.0/24"]
[limits.caller]
key = ["header:x-api-key", "path:id"]
rate = "1000/h"
algorithm = "gcra"
missing = "deny"
[limits.user]
key = "query:user"
rate = "1000/h"
missing = "skip"
plain = true
[limits.session]
key = "cookie:session"
rate = "1000/h"
missing = "deny"
mode = "shadow"
[limits.host]
key = ["host", "method"]
rate = "1000/h"
algorithm = "fixed-window"
[[routes]]
host = "api.example.com"
path = "/v1/orders/{id}"
respond = {}
limits = ["client", "caller"]
[[routes]]
path = "/v1/{*rest}"
methods = ["POST", "PUT"]
respond = {}
limits = ["client", "session"]
[[routes]]
path = "/v1/search"
respond = {}
limits = ["user", "session"]
[[routes]]
path = "/public/{*rest}"
redirect = { to = "/v1/{*rest}" }
limits = ["host", "user"]
[[routes]]
path = "/open"
respond = {}
"#,
    )
});

/// The limits of an explanation are those that count the request, by the same keys. A request that is explained as rejected or
/// refused isn't counted.
pub fn explain(bytes: &[u8]) {
    let read = || Question::from_query(&String::from_utf8_lossy(bytes)).ok();
    let (Some(question), Some(again)) = (read(), read()) else { return };
    // A header with more fields is rejected before anything is looked at.
    if question.parts.headers.len() > FIELDS_MOST {
        return;
    }
    RUNTIME.with(|runtime| {
        runtime.block_on(async {
            let limiter = Limiter::open(&CONFIG.store).expect("a store in this process opens");
            let gateway = Arc::new(Gateway::build(&CONFIG, &limiter, None));
            let peer = Peer { address: question.peer, scheme: "http" };
            let request = Request::from_parts(question.parts.clone(), Upload::none());
            let explanation = Explanation::of(&gateway, question);
            let response = gateway.clone().answer(peer, request, true).await;
            if let Some(rejected) = &explanation.rejected {
                assert_eq!(response.status().as_u16(), rejected.status, "{explanation:?}");
            }
            for rule in gateway.planner.rules.values() {
                assert_counted(rule, &explanation);
            }
            let live = Explanation::live(&gateway, again).await;
            let is_admitted = !is_refused(&explanation);
            for limit in live.limits.iter().filter(|limit| limit.outcome == "counted") {
                let used = limit.live.as_ref().map(|live| live.used);
                assert_eq!(used, Some(u64::from(is_admitted)), "{live:?}");
            }
        });
    });
}

/// Returns true if the request is explained as refused by a limit that can't count it.
fn is_refused(explanation: &Explanation) -> bool {
    explanation.limits.iter().any(|limit| limit.outcome == "refused" && limit.mode == "enforce")
}

/// Asserts that a limit has done to the only request what the explanation says.
fn assert_counted(rule: &Rule, explanation: &Explanation) {
    let effects = [Effect::Admitted, Effect::Refused, Effect::Uncharged, Effect::Exempt, Effect::Skipped];
    let counts = effects.map(|effect| rule.count(effect));
    let keys: Vec<_> = rule.busiest().read(Instant::now()).into_iter().map(|hits| hits.key).collect();
    let mut described = explanation.limits.iter().filter(|limit| limit.limit == rule.limit().name());
    let limit = described.next();
    assert!(described.next().is_none() && explanation.rejected.as_ref().is_none_or(|_| limit.is_none()));
    let name = rule.limit().name();
    if is_refused(explanation) {
        assert!(counts[0] == 0 && keys.is_empty(), "{name} {counts:?} {keys:?} {explanation:?}");
        return;
    }
    let expected = match limit.map(|limit| limit.outcome) {
        None => [0; 5],
        Some("counted") => [1, 0, 0, 0, 0],
        Some("refused") => [0, 1, 0, 0, 0],
        Some("exempt") => [0, 0, 0, 1, 0],
        Some("skipped") => [0, 0, 0, 0, 1],
        Some(other) => panic!("{other}"),
    };
    assert_eq!(counts, expected, "{name} {explanation:?}");
    let own = |DescribedLimit { key, other_keys, .. }: &DescribedLimit| {
        key.iter().chain(other_keys).cloned().collect::<Vec<_>>()
    };
    let own = limit.map(own).unwrap_or_default();
    assert!(keys.len() == own.len().min(1) && keys.iter().all(|key| own.contains(key)), "{keys:?} {own:?}");
}

thread_local! {
    static RUNTIME: Runtime =
        Builder::new_current_thread().enable_all().build().expect("the system gives a runtime");
}
