//! Overrides, resets and looking up keys: they reach every gateway, keep counts, and cost requests nothing.

use std::time::{Duration, Instant};

use crate::{
    admin::{admin, gateway, limits, policy},
    harness::{
        gateway::Gateway,
        judge::{judge, within},
        metrics::Metrics,
        redis::Redis,
        wait_until,
    },
};

/// In this time, at the latest, a change has reached all gateways.
const REACH: Duration = Duration::from_millis(1_500);
/// Half a second of that is for the machine.
const PAUSE: Duration = Duration::from_millis(100);

fn done(printed: (i32, String)) -> String {
    assert_eq!(printed.0, 0, "{}", printed.1);
    printed.1
}

#[test]
fn a_rate_that_is_set_holds_for_all_gateways_and_keeps_the_count() {
    judge(PAUSE, || {
        let redis = Redis::start();
        let [one, other] = [(), ()].map(|()| gateway("5/h", &redis.store()));
        for _ in 0..5 {
            assert_eq!(one.get("/").status, 200);
        }
        assert_eq!((one.get("/").status, other.get("/").status), (429, 429));
        done(limits(&one, &["set", "l", "7/h"]));
        let answer = one.get("/");
        let standing = answer.header("ratelimit").unwrap();
        assert!(standing.starts_with("\"l\";r=1;t=3"), "{standing}");
        let set = Instant::now();
        wait_until("the other gateway has heard of it", || policy(&other) == "\"l\";q=7;w=3600");
        within(set.elapsed(), REACH, "reaching the other gateway")?;
        assert_eq!(one.get("/").status, 429);
        done(limits(&other, &["unset", "l"]));
        assert_eq!(policy(&other), "\"l\";q=5;w=3600");
        wait_until("the first gateway has heard of it", || policy(&one) == "\"l\";q=5;w=3600");
        Ok(())
    });
}

#[test]
fn a_change_whose_message_is_lost_is_noticed_within_a_second() {
    judge(PAUSE, || {
        let redis = Redis::start();
        let [one, other] = [(), ()].map(|()| gateway("1000000/h", &redis.store()));
        wait_until("both listen", || redis.command(&["PUBSUB", "NUMSUB", "tollgate:changes"]).ends_with('2'));
        // Whoever may not listen hears nothing.
        redis.command(&["ACL", "SETUSER", "default", "-subscribe", "-psubscribe"]);
        redis.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        done(limits(&one, &["set", "l", "7/h"]));
        let set = Instant::now();
        wait_until("the other gateway has noticed", || policy(&other) == "\"l\";q=7;w=3600");
        within(set.elapsed(), REACH, "reaching the other gateway")
    });
}

#[test]
fn a_key_has_its_own_rate_before_the_limits() {
    for store in [String::new(), Redis::start().store()] {
        let redis = store.contains("redis").then(Redis::start);
        let gateway = gateway("5/h", &redis.as_ref().map(Redis::store).unwrap_or_default());
        done(limits(&gateway, &["set", "l", "127.0.0.1", "9/h"]));
        assert_eq!(done(limits(&gateway, &["set", "l", "4/h", "--for", "1h"])), "set: 4/h (ends in 1h)\n");
        let told = done(limits(&gateway, &["set", "l", "3/h"]));
        assert!(told.starts_with("set: 3/h; replaced 4/h (ends in "), "{told}");
        assert_eq!(policy(&gateway), "\"l\";q=9;w=3600");
        done(limits(&gateway, &["unset", "l", "127.0.0.1"]));
        assert_eq!(policy(&gateway), "\"l\";q=3;w=3600");
        let shown = done(limits(&gateway, &["show", "l", "127.0.0.1"]));
        assert!(shown.contains("rate  3/h (set)\nused  2\nleft  1\n"), "{shown}");
        let listed = done(limits(&gateway, &["list"]));
        assert_eq!(listed, "LIMIT  KEY  RATE  SET\nl      *    5/h   3/h\n");
        assert_eq!(limits(&gateway, &["set", "l", "4/h", "--if-absent"]).0, 1);
        assert_eq!(policy(&gateway), "\"l\";q=3;w=3600");
        done(limits(&gateway, &["unset", "l"]));
        assert_eq!(limits(&gateway, &["unset", "l"]), (1, "no rate was set\n".to_owned()));
        done(limits(&gateway, &["set", "l", "4/h", "--if-absent"]));
        assert_eq!(policy(&gateway), "\"l\";q=4;w=3600");
    }
}

#[test]
fn an_override_may_end_by_itself() {
    let redis = Redis::start();
    for store in [String::new(), redis.store()] {
        let gateway = gateway("1000000/h", &store);
        let set = Instant::now();
        done(limits(&gateway, &["set", "l", "7/h", "--for", "700ms"]));
        let told = policy(&gateway);
        assert!(told == "\"l\";q=7;w=3600" || set.elapsed() >= Duration::from_millis(700), "{told}");
        wait_until("it has ended", || policy(&gateway) == "\"l\";q=1000000;w=3600");
        assert!(set.elapsed() >= Duration::from_millis(700));
        // What has ended is absent.
        done(limits(&gateway, &["set", "l", "8/h", "--if-absent"]));
    }
}

#[test]
fn a_rate_of_nothing_blocks_and_is_lifted_again() {
    for store in [String::new(), Redis::start().store()] {
        let redis = store.contains("redis").then(Redis::start);
        let gateway = gateway("5/h", &redis.as_ref().map(Redis::store).unwrap_or_default());
        done(limits(&gateway, &["set", "l", "127.0.0.1", "0"]));
        let refused = gateway.get("/");
        assert_eq!((refused.status, refused.header("retry-after")), (429, None));
        assert!(refused.text().contains("no requests are admitted at present"));
        done(limits(&gateway, &["unset", "l", "127.0.0.1"]));
        assert_eq!(gateway.get("/").header("ratelimit"), Some("\"l\";r=4;t=3600"));
    }
}

/// An IPv6 client has a whole network, so its addresses are counted together.
#[test]
fn the_network_that_a_rate_is_for_is_told() {
    let gateway = gateway("5/h", "");
    assert_eq!(
        done(limits(&gateway, &["set", "l", "2001:db8::17", "9/h"])),
        "set: 9/h for all of 2001:db8::/64\n"
    );
    assert_eq!(done(limits(&gateway, &["set", "l", "192.0.2.7", "9/h"])), "set: 9/h for ip=192.0.2.7\n");
    assert_eq!(done(limits(&gateway, &["set", "l", "9/h"])), "set: 9/h\n");
}

#[test]
fn a_key_without_memory_of_its_own_is_told() {
    let gateway = Gateway::start(
        "[store]\nmax_memory = \"1MiB\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [limits.l]\nkey = \"header:x-api-key\"\nrate = \"5/h\"\n\
         [[routes]]\npath = \"/\"\nrespond = { status = 200 }\nlimits = [\"l\"]\n",
    );
    let mut client = gateway.client();
    for key in 0..5_000 {
        client.ask(&format!("GET /\nx-api-key: invented-{key}"));
    }
    let of = |key: &str| done(limits(&gateway, &["show", "l", key]));
    let (known, new) = (of("invented-0"), of("new"));
    assert!(known.ends_with("used  1\nleft  4\n"), "{known}");
    assert!(
        new.contains("it is counted with others of its client's network") && !new.contains("left"),
        "{new}"
    );
}

#[test]
fn what_is_known_without_the_store_is_listed() {
    let mut redis = Redis::start();
    let own = "overrides = [{ key = \"192.0.2.7\", rate = \"7/h\" }]";
    let gateway = Gateway::start(&format!(
        "{}[admin]\nlisten = \"127.0.0.1:0\"\n[limits.l]\nkey = \"ip\"\nrate = \"5/h\"\n{own}\n\
         [[routes]]\npath = \"/\"\nrespond = {{ status = 200 }}\nlimits = [\"l\"]\n",
        redis.store()
    ));
    done(limits(&gateway, &["set", "l", "192.0.2.8", "9/h"]));
    let table = "LIMIT  KEY           RATE  SET\n\
                 l      *             5/h\n\
                 l      ip=192.0.2.7  7/h\n\
                 l      ip=192.0.2.8        9/h\n";
    assert_eq!(done(limits(&gateway, &["list"])), table);
    redis.kill();
    let listed = done(limits(&gateway, &["list"]));
    let (known, unknown) = listed.split_at(table.len());
    assert_eq!(known, table);
    assert!(unknown.starts_with("\nThe store gives no answer: "), "{unknown}");
    assert!(unknown.ends_with("Later changes and bans are not known.\n"), "{unknown}");
}

#[test]
fn a_reset_frees_a_key_on_all_gateways_at_once() {
    judge(PAUSE, || {
        let redis = Redis::start();
        let [one, other] = [(), ()].map(|()| gateway("1/h", &redis.store()));
        assert_eq!(one.get("/").status, 200);
        // Both refuse without asking from here on.
        assert_eq!([one.get("/").status, other.get("/").status], [429, 429]);
        wait_until("both listen", || redis.command(&["PUBSUB", "NUMSUB", "tollgate:changes"]).ends_with('2'));
        assert_eq!(done(limits(&one, &["reset", "l", "127.0.0.1"])), "reset: ip=127.0.0.1\n");
        assert_eq!(one.get("/").status, 200);
        assert_eq!(one.get("/").status, 429);
        done(limits(&one, &["reset", "l", "127.0.0.1"]));
        let reset = Instant::now();
        wait_until("the other gateway admits", || other.get("/").status == 200);
        within(reset.elapsed(), REACH, "reaching the other gateway")
    });
}

#[test]
fn overrides_survive_a_gateway_and_are_the_only_key_without_an_expiry() {
    let redis = Redis::start();
    {
        let gateway = gateway("5/h", &redis.store());
        done(limits(&gateway, &["set", "l", "7/h"]));
        gateway.get("/");
    }
    let again = gateway("5/h", &redis.store());
    wait_until("it has read them", || policy(&again) == "\"l\";q=7;w=3600");
    let lasting = redis.keys("*").into_iter().filter(|key| redis.command(&["TTL", key]) == "-1");
    assert_eq!(lasting.collect::<Vec<_>>(), ["tollgate:overrides"]);
}

#[test]
fn a_scope_of_this_instance_counts_here_alone() {
    let redis = Redis::start();
    let [one, other] = [(), ()].map(|()| gateway("1/h", &redis.store()));
    done(limits(&one, &["set", "l", "1/h", "--scope", "instance"]));
    assert_eq!(one.get("/").status, 200);
    assert_eq!(one.get("/").status, 429);
    wait_until("the other gateway has heard of it", || {
        Metrics::scrape(&admin(&other)).of("tollgate_overrides") == 1.0
    });
    assert_eq!(other.get("/").status, 200);
    assert_eq!(other.get("/").status, 429);
    assert_eq!(redis.keys("tollgate:l:*"), [""; 0]);
}

#[test]
fn a_rate_may_be_set_for_longer_than_anybody_lives() {
    let redis = Redis::start();
    for store in [String::new(), redis.store()] {
        let gateway = gateway("5/h", &store);
        done(limits(&gateway, &["set", "l", "7/h", "--for", "400000years"]));
        assert_eq!(policy(&gateway), "\"l\";q=7;w=3600");
    }
}

/// By a newer version, or by hand.
#[test]
fn what_cannot_be_read_in_the_table_changes_nothing_and_stays() {
    let redis = Redis::start();
    let gateway = gateway("5/h", &redis.store());
    let put = |field: &str, value: &str| redis.command(&["HSET", "tollgate:overrides", field, value]);
    let strange = [
        ("l", "7 3600000000 - 0 by-ops"),
        ("l ip=127.0.0.1", "7 3600000000 - 0 7"),
        ("l ip=1", "7"),
        ("l ip=2", "7 1 - 0"),
        ("l ip=3", "99999999999 1000 - 0"),
        ("l ip=4", "7 -1000 everywhere 0"),
        ("\u{1b}[31m", ""),
    ];
    for version in ["abc", "inf", "-7", "99999999999999999999999999"] {
        for (field, value) in strange {
            put(field, value);
        }
        put("m", "7 1000 - 1700000000000000");
        put("#version", version);
        done(limits(&gateway, &["set", "l", "127.0.0.1", "9/h"]));
        assert_eq!(policy(&gateway), "\"l\";q=9;w=3600", "after the version {version}");
        done(limits(&gateway, &["unset", "l", "127.0.0.1"]));
        assert_eq!(policy(&gateway), "\"l\";q=5;w=3600");
        // What was there before but for the key's, which was replaced, and what had ended; and the version.
        assert_eq!(redis.command(&["HLEN", "tollgate:overrides"]), strange.len().to_string());
    }
    redis.command(&["DEL", "tollgate:overrides"]);
    redis.command(&["LPUSH", "tollgate:overrides", "garbage"]);
    let (status, told) = limits(&gateway, &["set", "l", "9/h"]);
    assert!(status == 1 && told.contains("WRONGTYPE"), "{told}");
    assert_eq!(policy(&gateway), "\"l\";q=5;w=3600");
}

#[test]
fn rates_that_are_set_are_bounded_in_number() {
    let redis = Redis::start();
    let gateway = gateway("5/h", &redis.store());
    let fill = "for i = 1, 9999 do redis.call('HSET', KEYS[1], 'l ip=' .. i, '7 1000 - 0') end";
    redis.command(&["EVAL", fill, "1", "tollgate:overrides"]);
    done(limits(&gateway, &["set", "l", "7/h"]));
    let (status, told) = limits(&gateway, &["set", "l", "127.0.0.1", "9/h"]);
    assert!(status == 1 && told.contains("too many rates are set"), "{told}");
    done(limits(&gateway, &["set", "l", "8/h"]));
    assert_eq!(policy(&gateway), "\"l\";q=8;w=3600");
    done(limits(&gateway, &["unset", "l"]));
    done(limits(&gateway, &["set", "l", "127.0.0.1", "9/h"]));
    assert_eq!(policy(&gateway), "\"l\";q=9;w=3600");
}

#[test]
fn who_may_not_publish_may_set_rates() {
    let redis = Redis::start();
    let gateway = gateway("5/h", &redis.store());
    redis.command(&["ACL", "SETUSER", "default", "resetchannels"]);
    done(limits(&gateway, &["set", "l", "7/h"]));
    assert_eq!(policy(&gateway), "\"l\";q=7;w=3600");
}

#[test]
fn patterns_of_the_file_are_listed_and_none_is_set() {
    let gateway = Gateway::start(
        "[admin]\nlisten = \"127.0.0.1:0\"\n\
         [limits.by-plan]\nkey = [\"header:x-plan\", \"header:x-api-key\"]\nrate = \"1/h\"\n\
         overrides = [{ key = [\"*\", \"s3cret\"], rate = \"4/h\" }, { key = [\"pro\", \"*\"], rate = \"5/h\" }]\n\
         [limits.by-key]\nkey = \"header:x-api-key\"\nrate = \"2/h\"\nplain = true\n\
         overrides = [{ key = \"gold\", rate = \"9/h\" }]\n\
         [limits.shown]\nkey = [\"header:x-plan\", \"header:x-api-key\"]\nrate = \"1/h\"\nplain = true\n\
         overrides = [{ key = [\"pro\", \"*\"], rate = \"6/h\" }]\n\
         [[routes]]\npath = \"/\"\nrespond = {}\nlimits = [\"by-plan\", \"by-key\", \"shown\"]\n",
    );
    let listed = done(limits(&gateway, &["list"]));
    let rates = |of: &str| {
        let lines = listed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        lines.filter(|cells| cells[0] == of).map(|cells| cells[1..].join(" ")).collect::<Vec<_>>()
    };
    assert_eq!(rates("by-key"), ["* 2/h", "header:x-api-key=gold 9/h"], "{listed}");
    assert_eq!(rates("shown"), ["* 1/h", "[\"pro\",\"*\"] 6/h"], "{listed}");
    // Values that may be credentials are hashed.
    let patterns = rates("by-plan");
    assert_eq!(patterns.len(), 3, "{listed}");
    assert!(
        patterns.iter().any(|row| row.starts_with("[\"*\",\"sha256:") && row.ends_with(" 4/h")),
        "{listed}"
    );
    assert!(
        patterns.iter().any(|row| row.starts_with("[\"sha256:") && row.ends_with(",\"*\"] 5/h")),
        "{listed}"
    );
    assert!(!listed.contains("s3cret"), "{listed}");

    for (limit, pattern) in [("by-plan", "[\"pro\",\"*\"]"), ("by-plan", "[ \"*\", \"a\" ]"), ("by-key", "*")]
    {
        let (status, told) = limits(&gateway, &["set", limit, pattern, "9/h"]);
        assert!(
            status == 1 && told.contains("`*` stands for any value only in the file's `overrides`"),
            "{told}"
        );
        // A rate of that key, which an earlier version may have set, can be removed.
        assert_eq!(limits(&gateway, &["unset", limit, pattern]).1, "no rate was set\n");
    }
    done(limits(&gateway, &["set", "by-plan", "[\"pro\",\"**\"]", "9/h"]));
    assert_eq!(done(limits(&gateway, &["list"])).matches("9/h").count(), 2);
}

#[test]
fn a_ban_is_shown_and_lifted() {
    let redis = Redis::start();
    for store in [String::new(), redis.store()] {
        let gateway = Gateway::start(&format!(
            "{store}[admin]\nlisten = \"127.0.0.1:0\"\n\
             [limits.l]\nkey = \"ip\"\nrate = \"1/h\"\nban = {{ after = \"2/h\", for = \"1d\" }}\n\
             [[routes]]\npath = \"/\"\nrespond = {{}}\nlimits = [\"l\"]\n"
        ));
        assert_eq!([(); 3].map(|()| gateway.get("/").status), [200, 429, 429]);
        // No requests while it is being banned: two more refusals would be another breach. It is counted before it holds, and
        // listed afterwards.
        let listed = "\nBans that this gateway gave";
        wait_until("it is listed", || done(limits(&gateway, &["list"])).contains(listed));
        let metrics = Metrics::scrape(&admin(&gateway));
        assert_eq!(metrics.of("tollgate_bans_total{limit=\"l\"}"), 1.0);
        assert!(gateway.get("/").retry_after_ms() > 80_000_000);
        let shown = done(limits(&gateway, &["show", "l", "127.0.0.1"]));
        assert!(shown.contains("used  1\nleft  0\nbanned for another "), "{shown}");
        let metrics = Metrics::scrape(&admin(&gateway));
        assert!(metrics.of("tollgate_decisions_total{limit=\"l\",outcome=\"refused\",origin=\"ban\"}") > 0.0);
        done(limits(&gateway, &["reset", "l", "127.0.0.1"]));
        assert_eq!(gateway.get("/").status, 200);
        let shown = done(limits(&gateway, &["show", "l", "127.0.0.1"]));
        assert!(!shown.contains("banned"), "{shown}");
    }
}

/// Returns a configuration with a limit that bans after its second refusal, for a day.
fn banning(store: &str) -> String {
    format!(
        "{store}[admin]\nlisten = \"127.0.0.1:0\"\n\
         [limits.logins]\nkey = \"header:x-user\"\nrate = \"1/h\"\nplain = true\nban = {{ after = \"2/h\", for = \"1d\" }}\n\
         [limits.free]\nkey = \"ip\"\nrate = \"1000000/h\"\n\
         [[routes]]\npath = \"/\"\nrespond = {{}}\nlimits = [\"logins\"]\n"
    )
}

/// Has keys banned, one after the other. A key isn't asked for while it is being banned, since two more refusals would ban it again.
fn breach(gateway: &Gateway, keys: impl IntoIterator<Item = String>) {
    for key in keys {
        let ask = || gateway.ask(&format!("GET /\nx-user: {key}"));
        assert_eq!([(); 3].map(|()| ask().status), [200, 429, 429]);
        wait_until("it is listed", || banned(gateway).contains(&key));
        assert!(ask().retry_after_ms() > 80_000_000);
    }
}

/// Returns the table of bans in a list of limits: the keys, without the times.
fn banned(gateway: &Gateway) -> Vec<String> {
    let listed = done(limits(gateway, &["list"]));
    let Some((_, bans)) = listed.split_once("\nBans that this gateway gave, the latest first") else {
        return vec![];
    };
    let rows = bans.lines().skip(2).map(|row| row.split_whitespace().collect::<Vec<_>>());
    let key = |row: Vec<&str>| {
        assert!(row[0] == "logins" && (row[2] == "1day" || row[2].starts_with("23h")), "{listed}");
        row[1].to_owned()
    };
    rows.map(key).collect()
}

#[test]
fn bans_are_listed_until_they_are_lifted() {
    let redis = Redis::start();
    for store in [String::new(), redis.store()] {
        let gateway = Gateway::start(&banning(&store));
        assert_eq!(banned(&gateway), [""; 0]);
        breach(&gateway, ["eve", "mallory"].map(str::to_owned));
        assert_eq!(banned(&gateway), ["mallory", "eve"], "the latest first");
        let line = "limit `logins`: key `header:x-user=eve` is banned for 1d";
        wait_until("the ban is logged", || gateway.log().contains(line));

        let listed: serde_json::Value =
            serde_json::from_str(&done(limits(&gateway, &["list", "--json"]))).unwrap();
        assert_eq!((&listed[0]["limit"], &listed[0]["bans"]), (&"free".into(), &serde_json::json!([])));
        let ban = &listed[1]["bans"][0];
        assert_eq!((&ban["key"], &ban["written"]), (&"header:x-user=mallory".into(), &"mallory".into()));
        assert!((86_000_000..=86_400_000).contains(&ban["ends_in_ms"].as_u64().unwrap()), "{ban}");

        done(limits(&gateway, &["reset", "logins", "mallory"]));
        assert_eq!(banned(&gateway), ["eve"]);
        // A reload that leaves the limit its name leaves the list.
        gateway.reload(&banning(&store).replace("1000000", "2000000"));
        assert_eq!(banned(&gateway), ["eve"]);
        if !store.is_empty() {
            // Another gateway gave no ban, and lifts this one's.
            let other = Gateway::start(&banning(&store));
            assert_eq!(banned(&other), [""; 0]);
            assert!(other.ask("GET /\nx-user: eve").retry_after_ms() > 80_000_000);
            done(limits(&other, &["reset", "logins", "eve"]));
            assert_eq!(banned(&gateway), [""; 0]);
        }
    }
}

#[test]
fn of_many_bans_ten_a_minute_are_logged() {
    let gateway = Gateway::start(&banning(""));
    breach(&gateway, (0..12).map(|user| format!("user-{user}")));
    assert_eq!(banned(&gateway).len(), 12);
    wait_until("ten are logged", || gateway.log().matches("is banned for 1d").count() == 10);
    gateway.assert_not_logged("user-11`");
}
