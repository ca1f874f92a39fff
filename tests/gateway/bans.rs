//! Bans: keys that are refused too often are refused for a time, by all gateways.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use crate::{
    harness::{
        client::Answer,
        gateway::Gateway,
        metrics::Metrics,
        redis::{Redis, cluster::Cluster},
        wait_until,
    },
    limit_all,
};

/// Two requests a minute, and a ban of an hour after three refusals.
const BANNING: &str = "key = [\"ip\", \"header:x-user\"]\nmissing = \"skip\"\nrate = \"2/min\"\nban = { after = \"3/h\", for = \"1h\" }";
/// The milliseconds of most of the ban: nothing else takes so long.
const NEARLY_AN_HOUR: u64 = 3_000_000;

fn of(gateway: &Gateway, user: &str) -> Answer {
    gateway.ask(&format!("GET /\nX-User: {user}"))
}

fn is_banned(answer: &Answer) -> bool {
    answer.status == 429 && answer.retry_after_ms() > NEARLY_AN_HOUR
}

/// Uses up the rate of a user, and is refused so often.
fn breach(gateway: &Gateway, user: &str, refusals: usize) {
    assert_eq!([of(gateway, user).status, of(gateway, user).status], [200, 200]);
    for _ in 0..refusals {
        let refused = of(gateway, user);
        assert_eq!(refused.status, 429);
        assert!(refused.retry_after_ms() <= 60_000);
    }
}

/// Returns the number of refusals of this origin.
fn refusals_by(gateway: &Gateway, origin: &str) -> f64 {
    let (_, admin) = gateway.greeting().split_once("dashboard: http://").unwrap();
    let series = format!("tollgate_decisions_total{{limit=\"l\",outcome=\"refused\",origin=\"{origin}\"}}");
    Metrics::scrape(admin.lines().next().unwrap()).of(&series)
}

#[test]
fn a_key_that_is_refused_too_often_is_banned() {
    let redis = Redis::start();
    for store in [String::new(), redis.store()] {
        let gateway = Gateway::start(&format!("{store}{}", limit_all(BANNING)));
        // So many refusals are no breach.
        breach(&gateway, "bob", 2);
        breach(&gateway, "eve", 3);
        wait_until("eve is banned", || is_banned(&of(&gateway, "eve")));
        let banned = of(&gateway, "eve");
        assert_eq!(banned.header("ratelimit-policy"), Some("\"l\";q=2;w=60"));
        let standing = banned.header("ratelimit").unwrap();
        assert!(standing.starts_with("\"l\";r=0;t=3"), "{standing}");
        assert_eq!(banned.json()["violated-policies"][0], "l");
        assert!(!is_banned(&of(&gateway, "bob")) && of(&gateway, "carol").status == 200);
    }
    // It expires, in the slot of the count.
    let keys = redis.command(&["KEYS", "*:ban:*"]);
    assert!(keys.contains("tollgate:l:ban:{") && keys.lines().count() <= 2, "{keys}");
    for key in keys.lines().filter(|key| !key.is_empty()) {
        let left_ms = redis.command(&["PTTL", key]).trim().parse::<u64>().expect("it expires");
        assert!((1..=3_601_000).contains(&left_ms), "{key}: {left_ms}");
    }
}

#[test]
fn a_ban_holds_in_all_gateways() {
    let (redis, cluster) = (Redis::start(), Cluster::start());
    for url in [redis.url(), cluster.url()] {
        let config = format!("[store]\nurl = \"{url}\"\ntimeout = \"2s\"\n{}", limit_all(BANNING));
        let [one, other] = [(), ()].map(|()| Gateway::start(&config));
        // Their counts are in different slots, if there are any.
        for user in ["eve", "mallory", "trudy", "oscar"] {
            breach(&one, user, 3);
            wait_until("the other gateway knows", || is_banned(&of(&other, user)));
        }
    }
}

/// Each gateway counts the refusals that it gives, also those that it gives without asking the store.
#[test]
fn refusals_are_counted_per_gateway() {
    let redis = Redis::start();
    let config = format!("{}[admin]\nlisten = \"127.0.0.1:0\"\n{}", redis.store(), limit_all(BANNING));
    let [one, other] = [(), ()].map(|()| Gateway::start(&config));
    breach(&one, "eve", 2);
    for _ in 0..2 {
        assert!(!is_banned(&of(&other, "eve")));
    }
    // By now eve would be banned, too, if all refusals were counted together.
    for (gateway, user) in [(&one, "bob"), (&other, "carol")] {
        breach(gateway, user, 3);
        wait_until("the ban is known", || is_banned(&of(gateway, user)));
    }
    assert_eq!(redis.keys("*:ban:*").len(), 2);
    wait_until("the third refusal by one gateway is a breach", || is_banned(&of(&one, "eve")));
    assert!(refusals_by(&one, "local_refusal") > 0.0);
}

#[test]
fn a_banned_key_charges_no_other_limit() {
    let redis = Redis::start();
    let limits = format!(
        "[limits.all]\nkey = \"global\"\nrate = \"100/h\"\n[limits.l]\n{BANNING}\n\
         [[routes]]\npath = \"/all\"\nrespond = {{}}\nlimits = [\"all\"]\n\
         [[routes]]\npath = \"/\"\nrespond = {{}}\nlimits = [\"all\", \"l\"]\n"
    );
    for store in [String::new(), redis.store()] {
        let gateway = Gateway::start(&format!("{store}{limits}"));
        breach(&gateway, "eve", 3);
        wait_until("eve is banned", || is_banned(&of(&gateway, "eve")));
        for _ in 0..5 {
            assert!(is_banned(&of(&gateway, "eve")));
        }
        let standing = gateway.get("/all").header("ratelimit").unwrap().to_owned();
        assert!(standing.starts_with("\"all\";r=97;"), "{standing}");
    }
}

/// Keys for which there is no memory are counted by network, but not banned by it.
#[test]
fn a_ban_of_an_invented_key_is_none_of_its_network() {
    let gateway = Gateway::start(&format!("[store]\nmax_memory = \"1MiB\"\n{}", limit_all(BANNING)));
    assert_eq!(of(&gateway, "known").status, 200);
    let mut inventor = gateway.client();
    let mut count = 0;
    let mut invent = || {
        count += 1;
        inventor.get_with("/", &format!("X-User: {count}\r\n")).status
    };
    wait_until("keys are counted by network", || (0..1_000).any(|_| invent() == 429));
    wait_until("eve is banned", || is_banned(&of(&gateway, "eve")));
    assert_eq!(of(&gateway, "known").status, 200);
    assert!(!is_banned(&of(&gateway, "new")));
}

/// One client that has keys banned as fast as it can invent them takes no memory of other networks.
#[test]
fn bans_of_invented_keys_leave_networks_their_counts() {
    let gateway = Gateway::start(&format!(
        "[server]\ntrusted_proxies = [\"127.0.0.0/8\"]\n[store]\nmax_memory = \"1MiB\"\n{}",
        limit_all(BANNING)
    ));
    let mut client = gateway.client();
    for key in 0..2_500 {
        (0..5).for_each(|_| drop(client.get_with("/", &format!("X-User: {key}\r\n"))));
    }
    for network in 0..20 {
        let fields = format!("X-User: new-{network}\r\nX-Forwarded-For: 198.51.{network}.1\r\n");
        assert_eq!(client.get_with("/", &fields).status, 200, "{network}");
    }
}

/// Requests during a ban don't make it longer.
#[test]
fn a_ban_ends_when_it_said() {
    let keys = BANNING.replace("2/min", "2/100ms").replace("1h", "2s");
    let redis = Redis::start();
    for store in [String::new(), redis.store()] {
        let gateway = Gateway::start(&format!("{store}{}", limit_all(&keys)));
        let mut ends = None;
        wait_until("eve is banned", || {
            let sent = Instant::now();
            let answer = of(&gateway, "eve");
            let told = (answer.status == 429).then(|| answer.retry_after_ms()).filter(|ms| *ms > 1_000);
            ends = told.map(|ms| [sent, Instant::now()].map(|at| at + Duration::from_millis(ms)));
            ends.is_some()
        });
        let [earliest, latest] = ends.unwrap();
        let mut is_over = false;
        while !is_over && Instant::now() < earliest {
            let left = latest - Instant::now();
            let answer = of(&gateway, "eve");
            is_over = answer.status == 200;
            // A ban that begins again lasts two seconds more.
            assert!(
                is_over || answer.retry_after_ms() <= left.as_millis() as u64 + 1_000,
                "{left:?} {answer:?}"
            );
        }
        sleep(latest.saturating_duration_since(Instant::now()));
        assert!(is_over || of(&gateway, "eve").status == 200);
    }
}

/// A limit may be full for longer than a ban lasts.
#[test]
fn a_ban_says_when_the_limit_has_room_if_that_is_later() {
    let keys = BANNING.replace("2/min", "2/2h").replace("1h\" }", "1m\" }");
    let redis = Redis::start();
    for store in [String::new(), redis.store()] {
        let gateway =
            Gateway::start(&format!("[admin]\nlisten = \"127.0.0.1:0\"\n{store}{}", limit_all(&keys)));
        assert_eq!([of(&gateway, "eve").status, of(&gateway, "eve").status], [200, 200]);
        wait_until("eve is banned", || {
            assert!(of(&gateway, "eve").retry_after_ms() > NEARLY_AN_HOUR);
            refusals_by(&gateway, "ban") > 0.0
        });
        assert!(of(&gateway, "eve").retry_after_ms() > NEARLY_AN_HOUR);
    }
}

#[test]
fn a_shadow_limit_bans_nobody() {
    let gateway = Gateway::start(&limit_all(&format!("{BANNING}\nmode = \"shadow\"")));
    for _ in 0..20 {
        assert_eq!(of(&gateway, "eve").status, 200);
    }
}

#[test]
fn a_gateway_without_its_store_bans_by_itself() {
    let keys = format!("{BANNING}\non_failure = \"local\"");
    let store = "[store]\nurl = \"redis://127.0.0.1:1\"\n";
    let gateway = Gateway::start(&format!("{store}{}", limit_all(&keys)));
    breach(&gateway, "eve", 3);
    wait_until("eve is banned", || is_banned(&of(&gateway, "eve")));
    assert_eq!(of(&gateway, "bob").status, 200);
}
