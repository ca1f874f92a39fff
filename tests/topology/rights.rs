//! Gateways that log in as a user of Redis with the documented rights, in each topology, and with less.

use std::time::Duration;

use crate::{
    harness::{
        cut::{Cut, Fault},
        gateway::Gateway,
        judge::{Late, in_time, judge},
        load::Load,
        metrics::Metrics,
        redis::{Redis, sentinel::Sentinels},
        wait_until,
    },
    topology::{ask, assert_five_pass, by_key, server::RIGHTS},
};

/// Creates the user `gateway` with the documented rights and these.
fn create_user(redis: &Redis, more: &[&str]) {
    let rights: Vec<&str> = RIGHTS.split_whitespace().chain(more.iter().copied()).collect();
    redis.command(&[&["ACL", "SETUSER", "gateway", "on", ">hunter2"], rights.as_slice()].concat());
}

fn assert_serves(store: &str) {
    let toml = by_key(&format!("{store}\ninstances = \"auto\""));
    let gateway = Gateway::start(&format!("{toml}\n[admin]\nlisten = \"127.0.0.1:0\"\n"));
    assert_five_pass(&[&gateway], "a");
    let (_, admin) = gateway.greeting().split_once("dashboard: http://").unwrap();
    let admin = admin.lines().next().unwrap();
    wait_until("it is counted", || Metrics::scrape(admin).of("tollgate_instances") == 1.0);
    gateway.assert_not_logged("the store");
}

#[test]
fn the_documented_rights_are_enough_for_a_server_and_for_database_0() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("redis.sock");
    let socket = socket.to_str().unwrap();
    let redis = Redis::start_with(&["--unixsocket", socket]);
    create_user(&redis, &[]);
    let port = redis.port();
    for url in [
        format!("redis://gateway:hunter2@127.0.0.1:{port}"),
        format!("redis://gateway:hunter2@127.0.0.1:{port}/0"),
        format!("redis+unix://gateway:hunter2@localhost{socket}?db=0"),
    ] {
        redis.command(&["FLUSHALL"]);
        assert_serves(&format!("url = \"{url}\""));
    }
    create_user(&redis, &["+select"]);
    assert_serves(&format!("url = \"redis://gateway:hunter2@127.0.0.1:{port}/3\""));
}

#[test]
fn the_documented_rights_are_enough_with_sentinels() {
    for (keys, right) in [("", "+role"), ("\nreplicated = true", "+wait")] {
        let sentinels = Sentinels::start();
        for server in &sentinels.servers {
            create_user(server, &["+role", right]);
            server.command(&["ACL", "SETUSER", "default", "-evalsha", "-eval", "-select"]);
        }
        let url = sentinels
            .url()
            .replace("redis-sentinel://127.0.0.1:", "redis-sentinel://gateway:hunter2@127.0.0.1:");
        assert_serves(&format!("url = \"{}\"{keys}", url.replace('?', "/0?")));
    }
}

#[test]
fn the_documented_rights_are_enough_to_wait_for_replicas() {
    let primary = Redis::start_with(&["--repl-diskless-sync-delay", "0"]);
    let follow = ["--replicaof", &format!("127.0.0.1 {}", primary.port())];
    let mut replica = Redis::start_with(&follow);
    wait_until("the replica follows", || primary.info("slave0").contains("state=online"));
    create_user(&primary, &["+role", "+wait"]);
    let url = format!("redis://gateway:hunter2@127.0.0.1:{}", primary.port());
    let gateway = Gateway::start(&by_key(&format!("url = \"{url}\"\nreplicated = true")));
    let mut others = (0..).map(|number| format!("other{number}"));
    wait_until("the replica has a decision", || ask(&gateway, &others.next().unwrap()) == 200);
    replica.kill();
    wait_until("the replica is missed", || ask(&gateway, &others.next().unwrap()) == 503);
}

#[test]
fn all_missing_rights_are_named_in_one_line_at_the_first_connection() {
    let redis = Redis::start();
    let store = format!("url = \"redis://gateway:hunter2@127.0.0.1:{}\"", redis.port());
    for (less, named) in [
        (&["-zadd", "-hset", "-time", "-info"][..], "(add +zadd +hset +time +info as"),
        (&["-eval"], "(add +eval as"),
        (&["-publish", "-subscribe"], "(add &tollgate:* +publish +subscribe as"),
        (&["resetkeys", "~shop:*"], "(add ~tollgate:* +get +set"),
    ] {
        create_user(&redis, less);
        let gateway = Gateway::start(&by_key(&store));
        wait_until("the rights are named", || gateway.log().contains(named));
        assert_eq!(gateway.log().matches("its user lacks rights").count(), 1, "{}", gateway.log());
        redis.command(&["ACL", "DELUSER", "gateway"]);
    }
}

#[test]
fn the_words_of_a_server_that_refuses_are_in_the_log() {
    let redis = Redis::start();
    create_user(&redis, &["-zadd"]);
    let url = format!("redis://gateway:hunter2@127.0.0.1:{}", redis.port());
    let gateway = Gateway::start(&by_key(&format!("url = \"{url}\"")));
    assert_eq!(ask(&gateway, "a"), 503);
    wait_until("the server's words are logged", || {
        let words = ["can't run this command", "no permissions to run the 'zadd' command"];
        words.iter().any(|words| gateway.log().contains(words))
    });
    let gateway = Gateway::start(&by_key(&format!("url = \"{url}/3\"")));
    assert_eq!(ask(&gateway, "a"), 503);
    // Versions of Redis say it in other words.
    wait_until("the server's words are logged", || {
        let log = gateway.log();
        log.contains("`NOPERM ") && log.contains("no permissions to run the 'select' command")
    });
}

/// The limits that the user may use, each of a path of its own.
const OPEN: usize = 300;

/// Starts a gateway with limits on /open/0 and so on, and one of this algorithm on /closed. Redis is at this port.
fn open_and_closed(port: u16, algorithm: &str) -> Gateway {
    let open: String = (0..OPEN)
        .map(|at| {
            let limit = format!("{{ name = \"open-{at}\", key = \"global\", rate = \"1000000/h\" }}");
            format!("[[routes]]\npath = \"/open/{at}\"\nrespond = {{ status = 200 }}\nlimits = [{limit}]\n")
        })
        .collect();
    let gateway = Gateway::start(&format!(
        r#"
        [store]
        url = "redis://gateway:hunter2@127.0.0.1:{port}"
        timeout = "1s"
        on_failure = "deny"
        [[routes]]
        path = "/closed"
        respond = {{ status = 200 }}
        limits = [{{ name = "closed", key = "global", rate = "1000000/h", algorithm = "{algorithm}" }}]
        {open}"#
    ));
    wait_until("the store decides", || gateway.get("/open/0").status == 200);
    gateway
}

/// Asks for all paths while Redis is this far away, with so many clients, and checks that each request for an open one was admitted and charged
/// once, and none for /closed.
fn check_that_only_closed_fails(redis: &Redis, cut: &Cut, gateway: &Gateway, far: Fault, clients: usize) {
    judge(Duration::from_millis(100), || try_only_closed(redis, cut, gateway, far, clients));
}

fn try_only_closed(
    redis: &Redis,
    cut: &Cut,
    gateway: &Gateway,
    far: Fault,
    clients: usize,
) -> Result<(), Late> {
    redis.command(&["FLUSHALL"]);
    cut.set(far);
    let closed = Load::start(gateway, 8, || "/closed".to_owned());
    let open = Load::start(gateway, clients, || format!("/open/{}", fastrand::usize(..OPEN)));
    open.wait_for(1_500);
    let (open, closed) = (open.end(), closed.end());
    assert!(closed.len() > 50 && closed.iter().all(|answer| answer.status == 503), "{}", closed.len());
    cut.set(Fault::None);
    // On a busy machine, Redis may take longer than its timeout.
    let failed = open.iter().filter(|answer| answer.status != 200).count();
    in_time(failed == 0, || format!("{failed} of {} failed: {}", open.len(), gateway.log()))?;
    let used = |at| {
        let told = gateway.get(&format!("/open/{at}")).header("ratelimit").unwrap_or_default().to_owned();
        let (_, left) = told.split_once("r=").unwrap();
        1_000_000 - 1 - left.split(';').next().unwrap().parse::<usize>().unwrap()
    };
    assert_eq!((0..OPEN).map(used).sum::<usize>(), open.len());
    Ok(())
}

/// Redis refuses a whole call for one such key. The other operations come in time though Redis is far away.
#[test]
fn a_key_that_the_user_may_not_access_fails_nobody_else() {
    let redis = Redis::start();
    create_user(&redis, &["resetkeys", "~tollgate:open-*", "~tollgate:overrides"]);
    let cut = Cut::before(redis.port());
    let gateway = open_and_closed(cut.port(), "sliding-window");
    check_that_only_closed_fails(&redis, &cut, &gateway, Fault::None, 8);
    check_that_only_closed_fails(&redis, &cut, &gateway, Fault::Delay(Duration::from_millis(50)), OPEN);
    assert!(gateway.log().contains("docs/redisson.md for Redisson's limiters"), "{}", gateway.log());
}

/// Redis ends a script at such a command, after what came before in the call. That happens once.
#[test]
fn a_command_that_the_user_may_not_run_fails_nobody_else_for_long() {
    let redis = Redis::start();
    create_user(&redis, &["-set"]);
    let cut = Cut::before(redis.port());
    let gateway = open_and_closed(cut.port(), "fixed-window");
    assert_eq!(gateway.get("/closed").status, 503);
    check_that_only_closed_fails(&redis, &cut, &gateway, Fault::Delay(Duration::from_millis(50)), OPEN);
}

/// The permits that a call granted before it ended are given back: nobody uses them.
#[test]
fn a_command_that_the_user_may_not_run_leaves_no_permit_taken() {
    let redis = Redis::start();
    create_user(&redis, &["-set"]);
    let cut = Cut::before(redis.port());
    let gateway = Gateway::start(&format!(
        r#"
        [server]
        workers = 1
        [store]
        url = "redis://gateway:hunter2@127.0.0.1:{}"
        timeout = "2s"
        on_failure = "deny"
        [[routes]]
        path = "/first"
        respond = {{ status = 200 }}
        limits = [{{ name = "first", key = "global", rate = "9/s" }}]
        [[routes]]
        path = "/held"
        respond = {{ status = 200 }}
        limits = [{{ name = "held", key = "global", rate = "1", algorithm = "concurrency", lease = "1h" }}]
        [[routes]]
        path = "/closed"
        respond = {{ status = 200 }}
        limits = [{{ name = "closed", key = "global", rate = "9/s", algorithm = "fixed-window" }}]
        "#,
        cut.port()
    ));
    wait_until("the store decides", || gateway.get("/first").status == 200);
    let mut clients = [(); 3].map(|()| gateway.client());
    cut.set(Fault::Delay(Duration::from_millis(500)));
    let before = redis.scripts();
    for (client, path) in clients.iter_mut().zip(["/first", "/held", "/closed"]) {
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
        // What comes while the reply to the first call is on its way goes together in the second.
        wait_until("the first call is made", || redis.scripts() > before);
    }
    let statuses = clients.each_mut().map(|client| client.answer().status);
    assert_eq!(statuses, [200, 503, 503]);
    cut.set(Fault::None);
    wait_until("the permit is free", || gateway.get("/held").status == 200);
}
