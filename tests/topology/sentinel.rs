//! The primary that Sentinels name, and who takes its place.

use crate::{
    ask, assert_five_pass, by_key,
    harness::{gateway::Gateway, redis::sentinel::Sentinels, wait_until},
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
