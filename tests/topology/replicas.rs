//! Decisions that replicas must have.

use crate::harness::{gateway::Gateway, redis::Redis, wait_until};

#[test]
fn what_the_replicas_do_not_have_holds_no_lease() {
    let primary = Redis::start_with(&["--repl-diskless-sync-delay", "0"]);
    let replica = Redis::start_with(&["--replicaof", &format!("127.0.0.1 {}", primary.port())]);
    wait_until("the replica follows", || primary.info("slave0").contains("state=online"));
    let gateway = Gateway::start(&format!(
        "[store]\nurl = \"{}\"\nreplicated = true\ntimeout = \"2s\"\non_failure = \"deny\"\n[server]\nworkers = 1\n\
         [[routes]]\npath = \"/\"\nrespond = {{ status = 200 }}\n\
         limits = [{{ name = \"l\", key = \"global\", algorithm = \"concurrency\", rate = \"5\", lease = \"1h\" }}]\n",
        primary.url()
    ));
    let bucket = || primary.keys("tollgate:l:*").pop();
    let leases = || bucket().map_or(0, |bucket| primary.command(&["ZCARD", &bucket]).parse().unwrap());
    let scripts = primary.scripts();
    wait_until("the replica has a decision", || gateway.get("/").status == 200);
    assert!(primary.scripts() > scripts);
    wait_until("its lease has ended", || leases() == 0);
    // It doesn't confirm anything, and the primary hasn't noticed that it is away.
    replica.pause();
    let scripts = primary.scripts();
    assert_eq!(gateway.get("/").status, 503);
    assert!(primary.scripts() > scripts, "the primary has decided");
    wait_until("the lease is given back", || leases() == 0);
    replica.resume();
}
