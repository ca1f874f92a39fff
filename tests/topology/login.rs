//! Users and passwords of the store that change while gateways run: a reload uses the new ones.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use crate::{
    harness::{
        gateway::Gateway,
        load::Load,
        redis::{Redis, cluster::Cluster, sentinel::Sentinels},
        wait_until,
    },
    topology::{ask, assert_five_pass, by_key},
};

const PERMITS: usize = 1_000_000;

/// A secret in a file of its own.
struct Secret {
    folder: tempfile::TempDir,
}

impl Secret {
    fn new(text: &str) -> Self {
        let secret = Self { folder: tempfile::tempdir().unwrap() };
        secret.write(text);
        secret
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("secret")
    }

    /// The form in which gateway.toml refers to it.
    fn reference(&self) -> String {
        format!("${{file:{}}}", Path::display(&self.path()))
    }

    /// Replaces it, which the gateway may notice by itself.
    fn write(&self, text: &str) {
        let next = self.folder.path().join("next");
        fs::write(&next, format!("{text}\n")).unwrap();
        fs::rename(next, self.path()).unwrap();
    }
}

/// Returns a configuration in which all requests are counted, and get 503 if the store can't answer.
fn by_all(url: &str) -> String {
    format!(
        "[store]\nurl = \"{url}\"\ntimeout = \"2s\"\non_failure = \"deny\"\n[server]\nworkers = 2\n\
         [[routes]]\npath = \"/\"\nrespond = {{ status = 200 }}\n\
         limits = [{{ name = \"all\", key = \"global\", rate = \"{PERMITS}/h\" }}]\n"
    )
}

/// Replaces the secret, and waits until the gateway has reloaded it.
fn reload(gateway: &Gateway, secret: &Secret, text: &str) {
    secret.write(text);
    gateway.signal("HUP");
    wait_until("the gateway reloads", || gateway.log().contains("`store.url` changed"));
    gateway.assert_not_logged("at the next start");
}

/// Returns the ids of the connections of a user in a server's list.
fn ids(list: &str, user: &str) -> Vec<u64> {
    let lines = list.lines().filter(|line| line.contains(&format!(" user={user} ")));
    lines.map(|line| line.split(['=', ' ']).nth(1).unwrap().parse().unwrap()).collect()
}

/// Returns the ids of the connections of the user `gateway`, without those that subscribe.
fn connections(server: &Redis) -> Vec<u64> {
    ids(&server.command(&["CLIENT", "LIST", "TYPE", "normal"]), "gateway")
}

/// Replaces the secret, while these servers accept both. Then they accept the new one only, and close the gateway's
/// connections, so that it must make others.
fn change_everywhere(gateway: &Gateway, secret: &Secret, text: &str, servers: &[&Redis]) {
    let last = servers.iter().map(|server| connections(server).into_iter().max().unwrap_or(0));
    let last: Vec<u64> = last.collect();
    for server in servers {
        server.command(&["ACL", "SETUSER", "gateway", &format!(">{text}")]);
    }
    reload(gateway, secret, text);
    wait_until("all connections are new", || {
        // Servers without requests may have none.
        let ids = servers.iter().zip(&last).map(|(server, last)| (connections(server), last));
        let ids: Vec<_> = ids.flat_map(|(ids, last)| ids.into_iter().map(move |id| (id, last))).collect();
        !ids.is_empty() && ids.iter().all(|(id, last)| id > *last)
    });
    for server in servers {
        set_password(server, text);
        server.command(&["CLIENT", "KILL", "USER", "gateway"]);
    }
}

fn is_accepted(gateway: &Gateway) -> bool {
    !["WRONGPASS", "NOAUTH"].iter().any(|word| gateway.log().contains(word))
}

fn set_password(server: &Redis, password: &str) {
    let password = format!(">{password}");
    server.command(&["ACL", "SETUSER", "gateway", "on", "resetpass", &password, "~*", "&*", "+@all"]);
}

/// Starts Redis, and a gateway that has counted key `a` there with its first password.
fn logged_in() -> (Redis, Secret, Gateway) {
    let redis = Redis::start();
    set_password(&redis, "first");
    let secret = Secret::new("first");
    let url = format!("redis://gateway:{}@127.0.0.1:{}", secret.reference(), redis.port());
    let gateway = Gateway::start(&by_key(&format!("url = \"{url}\"")));
    assert_five_pass(&[&gateway], "a");
    (redis, secret, gateway)
}

/// Returns how many logins a server has rejected lately. Its log counts equal ones in one entry.
fn failed_logins(server: &Redis) -> u64 {
    let log = server.command(&["ACL", "LOG"]);
    let counts = log.lines().zip(log.lines().skip(1)).filter(|(name, _)| *name == "count");
    counts.map(|(_, count)| count.parse::<u64>().unwrap()).sum()
}

#[test]
fn a_reload_uses_the_new_password_and_no_request_fails() {
    let redis = Redis::start();
    redis.command(&["CONFIG", "SET", "requirepass", "first"]);
    let as_admin = |password, words: &[&str]| redis.command(&[&["-a", password], words].concat());
    let secret = Secret::new("first");
    let url = format!("redis://:{}@127.0.0.1:{}", secret.reference(), redis.port());
    let gateway = Gateway::start(&by_all(&url));
    let load = Load::start(&gateway, 2, || "/".to_owned());
    load.wait_for(100);
    as_admin("first", &["CONFIG", "SET", "requirepass", "second"]);
    let connections = || ids(&as_admin("second", &["CLIENT", "LIST", "TYPE", "normal"]), "default");
    let last = connections().into_iter().max().expect("a connection");
    reload(&gateway, &secret, "second");
    wait_until("all connections are new", || connections().iter().all(|id| *id > last));
    load.wait_for(100);
    let answers = load.end();
    assert!(answers.iter().all(|answer| answer.status == 200), "{}", gateway.log());
    as_admin("second", &["CLIENT", "KILL", "TYPE", "normal"]);
    // A worker that isn't connected yet refuses, and states no count.
    let mut ratelimit = None;
    wait_until("the gateway connects again", || {
        ratelimit = gateway.get("/").header("ratelimit").map(str::to_owned);
        ratelimit.is_some()
    });
    let left = ratelimit.as_deref().and_then(|field| field.split([';', '=']).nth(2)).expect("r=");
    let counted = PERMITS - left.parse::<usize>().unwrap();
    assert!(counted > answers.len(), "{counted} of {}", answers.len());
    assert!(is_accepted(&gateway), "{}", gateway.log());
}

#[test]
fn a_password_that_redis_gets_later_is_tried_again_while_old_connections_serve() {
    let (redis, secret, gateway) = logged_in();
    let last = connections(&redis).into_iter().max().expect("a connection");
    reload(&gateway, &secret, "second");
    wait_until("Redis's words are logged", || gateway.log().contains("WRONGPASS"));
    assert_five_pass(&[&gateway], "b");
    set_password(&redis, "second");
    wait_until("all connections are new", || {
        let now = connections(&redis);
        !now.is_empty() && now.iter().all(|id| *id > last)
    });
    assert_five_pass(&[&gateway], "c");
    assert_eq!(ask(&gateway, "a"), 429);
    gateway.assert_not_logged("the store fails");
}

#[test]
fn a_login_that_redis_rejects_is_tried_once_a_second() {
    let (redis, secret, gateway) = logged_in();
    let trying = connections(&redis).len() as u64;
    reload(&gateway, &secret, "second");
    let rejected = || failed_logins(&redis);
    wait_until("the login is tried", || rejected() > 0);
    let (since, before) = (Instant::now(), rejected());
    wait_until("each connection has tried it three times more", || rejected() >= before + 3 * trying);
    // At least one has paused twice.
    assert!(since.elapsed() > Duration::from_secs(1), "{:?} for {trying}", since.elapsed());
}

#[test]
fn a_reload_uses_the_new_passwords_of_sentinels_and_their_primary() {
    let sentinels = Sentinels::start();
    let watcher = |rules: &[&str]| {
        sentinels.command(&[&["ACL", "SETUSER", "watcher"], rules].concat());
    };
    watcher(&["on", ">first", "allchannels", "+@all"]);
    sentinels.servers.iter().for_each(|server| set_password(server, "first"));
    let secret = Secret::new("first");
    let url = sentinels
        .url()
        .replace("redis-sentinel://", &format!("redis-sentinel://gateway:{}@", secret.reference()));
    let url = format!("{url}&sentinelUsername=watcher&sentinelPassword={}", secret.reference());
    let gateway = Gateway::start(&by_all(&url));
    assert_eq!(gateway.get("/").status, 200, "{}", gateway.log());
    watcher(&[">second"]);
    change_everywhere(&gateway, &secret, "second", &sentinels.servers.each_ref());
    watcher(&["<first"]);
    wait_until("the gateway connects again", || gateway.get("/").status == 200);
    sentinels.command(&["CLIENT", "KILL", "USER", "watcher"]);
    sentinels.fail_over();
    let new = sentinels.servers.iter().find(|server| server.port() == sentinels.primary()).unwrap();
    wait_until("the new primary is asked", || {
        gateway.get("/").status == 200 && new.info("role") == "master" && !connections(new).is_empty()
    });
    assert!(is_accepted(&gateway), "{}", gateway.log());
}

#[test]
fn a_reload_uses_the_new_password_on_all_nodes_of_a_cluster() {
    let cluster = Cluster::start();
    cluster.nodes.iter().for_each(|node| set_password(node, "first"));
    let secret = Secret::new("first");
    let url = cluster
        .url()
        .replace("redis-cluster://", &format!("redis-cluster://gateway:{}@", secret.reference()));
    let gateway = Gateway::start(&by_key(&format!("url = \"{url}\"")));
    let keys = ["a", "b", "c", "d", "e", "f"];
    let by_owner = |owner| {
        let bucket = |key: &&&str| cluster.owner(&format!("{{header:x-key={key}}}")) == owner;
        *keys.iter().find(bucket).expect("a key on each primary")
    };
    let each = [0, 1, 2].map(by_owner);
    for key in each {
        assert_eq!(ask(&gateway, key), 200, "{}", gateway.log());
    }
    change_everywhere(&gateway, &secret, "second", &cluster.nodes.iter().collect::<Vec<_>>());
    for key in each {
        wait_until("the node is asked again", || ask(&gateway, key) == 200);
    }
    assert!(is_accepted(&gateway), "{}", gateway.log());
}
