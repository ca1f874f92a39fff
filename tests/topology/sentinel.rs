//! The primary that Sentinels name, and its successor.

use std::time::Duration;

use crate::{
    harness::{
        cut::{Cut, Fault},
        gateway::Gateway,
        load::Load,
        redis::{
            Redis,
            sentinel::{SERVICE, Sentinel, Sentinels},
        },
        wait_until,
    },
    topology::{ask, assert_five_pass, by_key},
};

#[test]
fn limits_hold_through_sentinels_and_over_a_planned_failover() {
    let sentinels = Sentinels::start();
    let gateway = Gateway::start(&by_key(&format!("url = \"{}\"", sentinels.url())));
    for _ in 0..3 {
        assert_eq!(ask(&gateway, "a"), 200);
    }
    assert_five_pass(&[&gateway], "b");
    sentinels.fail_over();
    let new = sentinels.servers.iter().find(|server| server.port() == sentinels.primary()).unwrap();
    let mut others = (0..).map(|number| format!("other{number}"));
    wait_until("the new primary is asked", || {
        let other = others.next().unwrap();
        let status = ask(&gateway, &other);
        status == 200 && new.info("role") == "master" && new.keys(&format!("*{other}*")).len() == 1
    });
    // What was counted came along.
    assert_eq!([(); 3].map(|()| ask(&gateway, "a")), [200, 200, 429], "{}", gateway.log());
    assert_eq!(ask(&gateway, "b"), 429);
}

#[test]
fn a_primary_that_is_killed_is_replaced_without_a_hand() {
    let mut sentinels = Sentinels::start();
    let gateway = Gateway::start(&by_key(&format!("url = \"{}\"", sentinels.url())));
    assert_five_pass(&[&gateway], "a");
    sentinels.servers[0].kill();
    assert_eq!(ask(&gateway, "b"), 503);
    wait_until("the replica is asked", || ask(&gateway, "b") == 200);
    wait_until("all agree", || sentinels.primary() == sentinels.servers[1].port());
    wait_until("it is told", || gateway.log().contains("the store answers again"));
}

/// The Sentinel is kept from announcing the switch, as if it hung meanwhile.
#[test]
fn a_planned_failover_that_no_message_tells_of_is_noticed() {
    let sentinels = Sentinels::start();
    // Sentinels can't have it follow the new primary, so it stays one, as others do for some ten seconds.
    sentinels.servers[0].command(&["ACL", "SETUSER", "default", "-replicaof", "-slaveof"]);
    let sentinel = Cut::before(sentinels.port());
    let url = format!("redis-sentinel://127.0.0.1:{}?service={SERVICE}", sentinel.port());
    let gateway = Gateway::start(&by_key(&format!("url = \"{url}\"")));
    assert_five_pass(&[&gateway], "a");
    sentinel.set(Fault::Swallow);
    sentinels.fail_over();
    wait_until("the replica is a primary", || sentinels.servers[1].info("role") == "master");
    sentinel.set(Fault::None);
    let mut others = (0..).map(|number| format!("other{number}"));
    wait_until("the new primary is asked", || {
        let other = others.next().unwrap();
        ask(&gateway, &other) == 200 && sentinels.servers[1].keys(&format!("*{other}*")).len() == 1
    });
    assert_eq!(sentinels.servers[0].info("role"), "master");
}

/// The Sentinels' user may ask, and not listen.
#[test]
fn a_planned_failover_is_noticed_without_the_right_to_listen() {
    let sentinels = Sentinels::start();
    let [old, new] = &sentinels.servers;
    old.command(&["ACL", "SETUSER", "default", "-replicaof", "-slaveof"]);
    let rights = "+sentinel|get-master-addr-by-name +sentinel|master +sentinel|sentinels";
    let words: Vec<&str> = "ACL SETUSER asker on >hunter2".split(' ').chain(rights.split(' ')).collect();
    sentinels.command(&words);
    let (port, login) = (sentinels.port(), "sentinelUsername=asker&sentinelPassword=hunter2");
    let url = format!("redis-sentinel://127.0.0.1:{port}?service={SERVICE}&{login}");
    let gateway = Gateway::start(&by_key(&format!("url = \"{url}\"")));
    assert_five_pass(&[&gateway], "a");
    sentinels.fail_over();
    let mut others = (0..).map(|number| format!("other{number}"));
    wait_until("the new primary is asked", || {
        let other = others.next().unwrap();
        ask(&gateway, &other) == 200 && new.keys(&format!("*{other}*")).len() == 1
    });
    assert_eq!(old.info("role"), "master");
}

/// A Sentinel that is cut off from the others goes on naming the old primary, if that lives on.
#[test]
fn a_sentinel_that_has_missed_a_failover_is_not_believed_for_long() {
    let sentinels = Sentinels::start();
    let [old, new] = &sentinels.servers;
    // Sentinels can't have it follow the new primary, nor learn of others by it.
    old.command(&["ACL", "SETUSER", "default", "-replicaof", "-slaveof", "-publish"]);
    sentinels.fail_over();
    wait_until("the replica is a primary", || new.info("role") == "master");
    // By a replica it would learn of the others.
    wait_until("the old primary has none", || old.info("connected_slaves") == "0");
    let stale = Sentinel::start(old.port());
    let others = Cut::before(sentinels.port());
    others.set(Fault::Refuse);
    let (first, second) = (stale.port(), others.port());
    let url = format!("redis-sentinel://127.0.0.1:{first}?node=127.0.0.1:{second}&service={SERVICE}");
    let gateway = Gateway::start(&by_key(&format!("url = \"{url}\"")));
    assert_five_pass(&[&gateway], "a");
    assert_eq!(old.keys("*=a*").len(), 1);
    wait_until("the gateway listens to the old Sentinel", || stale.clients().contains("cmd=subscribe"));
    others.set(Fault::None);
    let mut keys = (0..).map(|number| format!("other{number}"));
    wait_until("the new primary is asked", || {
        let key = keys.next().unwrap();
        ask(&gateway, &key) == 200 && new.keys(&format!("*={key}*")).len() == 1
    });
    assert_five_pass(&[&gateway], "b");
    assert_eq!([old, new].map(|server| server.keys("*=b*").len()), [0, 1]);
}

/// Their epochs begin at 0 then.
#[test]
fn sentinels_that_are_set_up_again_are_followed() {
    let sentinels = Sentinels::start();
    let gateway = Gateway::start(&by_key(&format!("url = \"{}\"", sentinels.url())));
    assert_five_pass(&[&gateway], "a");
    sentinels.fail_over();
    let [_, second] = &sentinels.servers;
    let mut keys = (0..).map(|number| format!("other{number}"));
    let mut counts_at = |server: &Redis| {
        let key = keys.next().unwrap();
        ask(&gateway, &key) == 200
            && server.info("role") == "master"
            && server.keys(&format!("*={key}*")).len() == 1
    };
    wait_until("the second one is asked", || counts_at(second));
    // So that the failover has been heard of.
    std::thread::sleep(Duration::from_millis(1_500));
    let third = Redis::start();
    sentinels.command(&["SENTINEL", "REMOVE", SERVICE]);
    sentinels.command(&["SENTINEL", "MONITOR", SERVICE, "127.0.0.1", &third.port().to_string(), "2"]);
    wait_until("the third one is asked", || counts_at(&third));
}

/// A gateway that admits all that it can count, and clients that ask it over a planned failover. Returns how many were
/// admitted, and how many of them the new primary knows.
fn admitted_over_a_failover(keys: &str) -> [usize; 2] {
    const PERMITS: usize = 1_000_000;
    let sentinels = Sentinels::start();
    let gateway = Gateway::start(&format!(
        "[store]\nurl = \"{}\"\ntimeout = \"200ms\"\non_failure = \"deny\"\n{keys}\n[server]\nworkers = 2\n\
         [[routes]]\npath = \"/\"\nrespond = {{ status = 200 }}\n\
         limits = [{{ name = \"all\", key = \"global\", rate = \"{PERMITS}/h\" }}]\n",
        sentinels.url()
    ));
    let bucket = "tollgate:all:sw:{global=}";
    let load = Load::start(&gateway, 4, || "/".to_owned());
    load.wait_for(200);
    sentinels.fail_over();
    let new = sentinels.servers.iter().find(|server| server.port() == sentinels.primary()).unwrap();
    let entries = || new.command(&["ZCARD", bucket]).parse::<usize>().unwrap();
    let before = entries();
    wait_until("the new primary is asked", || entries() > before + 200);
    let answers = load.end();
    assert!(answers.iter().all(|answer| matches!(answer.status, 200 | 503)));
    let admitted = answers.iter().filter(|answer| answer.status == 200).count();
    let last = gateway.get("/");
    let left = last.header("ratelimit").unwrap().split([';', '=']).nth(2).unwrap();
    let known = PERMITS - left.parse::<usize>().unwrap() - 1;
    [admitted, known]
}

#[test]
fn a_planned_failover_loses_nothing_if_decisions_wait_for_replicas() {
    let [admitted, known] = admitted_over_a_failover("replicated = true");
    assert!(known >= admitted, "{known} of {admitted} are known");
}

#[test]
fn a_replica_that_fails_holds_decisions_up_for_some_seconds() {
    let mut sentinels = Sentinels::start();
    let keys = format!("url = \"{}\"\nreplicated = true", sentinels.url());
    let gateway = Gateway::start(&by_key(&keys));
    assert_five_pass(&[&gateway], "a");
    sentinels.servers[1].kill();
    assert_eq!(ask(&gateway, "b"), 503);
    wait_until("it is told", || gateway.log().contains("has lost a replica"));
    let mut others = (0..).map(|number| format!("other{number}"));
    wait_until("the primary goes on alone", || ask(&gateway, &others.next().unwrap()) == 200);
    wait_until("that is told, too", || gateway.log().contains("continues without a replica"));
    // The one that comes back is waited for again.
    sentinels.servers[1].restart();
    assert_five_pass(&[&gateway], "c");
}

/// Redis answers WAIT after four fifths of the timeout, and so the gateway gets no answer in time.
#[test]
fn a_replica_that_fails_is_given_up_also_if_no_answer_to_wait_comes_in_time() {
    let primary = Redis::start_with(&["--repl-diskless-sync-delay", "0"]);
    let follow = ["--replicaof", &format!("127.0.0.1 {}", primary.port())];
    let mut replica = Redis::start_with(&follow);
    wait_until("the replica follows", || primary.info("slave0").contains("state=online"));
    let distance = Cut::before(primary.port());
    distance.set(Fault::Delay(Duration::from_millis(15)));
    let keys = by_key(&format!("url = \"{}\"\nreplicated = true", distance.url()));
    let gateway = Gateway::start(&keys.replace("\"1s\"", "\"100ms\""));
    let mut others = (0..).map(|number| format!("other{number}"));
    wait_until("the primary is asked", || ask(&gateway, &others.next().unwrap()) == 200);
    replica.kill();
    wait_until("a decision waits for the replica", || ask(&gateway, &others.next().unwrap()) == 503);
    wait_until("the primary goes on alone", || ask(&gateway, &others.next().unwrap()) == 200);
}
