//! Several limits in the layout of Redisson on a Cluster: one step where their names share a slot, else all are asked first.

use std::thread;

use crate::harness::{
    gateway::Gateway,
    redis::{Redis, cluster::Cluster},
};

/// A gateway with two limits for each `x-user`, whose names are these, and routes for both and for the wide one.
fn gateway(cluster: &Cluster, [wide, narrow]: [&str; 2]) -> Gateway {
    let limit = |name: &str, redisson_name: &str, rate: &str| {
        format!(
            "[limits.{name}]\nkey = \"header:x-user\"\nrate = \"{rate}\"\nlayout = \"redisson\"\n\
             redisson_name = \"{redisson_name}\"\n"
        )
    };
    Gateway::start(&format!(
        "[store]\nurl = \"{}\"\ntimeout = \"5s\"\non_failure = \"deny\"\n{}{}\
         [[routes]]\npath = \"/\"\nrespond = {{ status = 204 }}\nlimits = [\"wide\", \"narrow\"]\n\
         [[routes]]\npath = \"/wide\"\nrespond = {{ status = 204 }}\nlimits = [\"wide\"]\n",
        cluster.url(),
        limit("wide", wide, "90/h"),
        limit("narrow", narrow, "30/h"),
    ))
}

/// Returns the number of requests that pass of so many.
fn passed(gateway: &Gateway, path: &str, user: &str, times: usize) -> usize {
    let mut client = gateway.client();
    let statuses = (0..times).map(|_| client.get_with(path, &format!("x-user: {user}\r\n")).status);
    statuses.filter(|status| *status == 204).count()
}

/// Returns the permits that a limiter has left, on whichever node it is.
fn left(cluster: &Cluster, name: &str) -> u64 {
    let stem = if name.contains('{') { name.to_owned() } else { format!("{{{name}}}") };
    let node: &Redis = &cluster.nodes[cluster.owner(name)];
    node.command(&["GET", &format!("{stem}:value")]).parse().unwrap()
}

/// Two gateways are asked by two threads each for more than there is. Returns the number of requests that pass.
fn contend(gateways: &[Gateway; 2], user: &str) -> usize {
    thread::scope(|scope| {
        let threads = [0, 1, 0, 1].map(|at| scope.spawn(move || passed(&gateways[at], "/", user, 20)));
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    })
}

#[test]
fn names_with_one_tag_are_one_step_or_none() {
    let cluster = Cluster::start();
    let names = ["wide:{{key}}", "narrow:{{key}}"];
    let gateways = [gateway(&cluster, names), gateway(&cluster, names)];
    assert_eq!(contend(&gateways, "alice"), 30);
    // What the narrow one refused, the wide one wasn't charged.
    assert_eq!([left(&cluster, "wide:{alice}"), left(&cluster, "narrow:{alice}")], [60, 0]);
    assert_eq!(passed(&gateways[0], "/wide", "alice", 70), 60);
}

#[test]
fn names_on_several_slots_hold_and_are_asked_before_they_are_charged() {
    let cluster = Cluster::start();
    let names = ["wide:{key}", "narrow:{key}"];
    let gateways = [gateway(&cluster, names), gateway(&cluster, names)];
    let are_apart =
        |user: &String| cluster.owner(&format!("wide:{user}")) != cluster.owner(&format!("narrow:{user}"));
    let mut users = (0..).map(|number| format!("u{number}")).filter(are_apart);
    // One after the other, nothing is charged that isn't admitted.
    let user = users.next().unwrap();
    assert_eq!(passed(&gateways[0], "/", &user, 20) + passed(&gateways[1], "/", &user, 20), 30);
    let lefts = |user: &str| ["wide", "narrow"].map(|name| left(&cluster, &format!("{name}:{user}")));
    assert_eq!(lefts(&user), [60, 0]);
    // At once, a request may be refused after one limit was charged. Neither admits more than its rate.
    let user = users.next().unwrap();
    let admitted = contend(&gateways, &user) as u64;
    let [wide, narrow] = lefts(&user);
    assert_eq!((admitted, narrow), (30, 0));
    assert!((10..=60).contains(&wide), "{wide}");
}
