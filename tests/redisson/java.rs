//! The real client beside gateways and the library, on the same keys. Needs Maven and Java; skipped where they are missing.

#![allow(clippy::print_stderr, reason = "a skipped test says so")]

use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{Arc, LazyLock},
    time::SystemTime,
};

use serde_json::Value as Json;
use tokio::runtime::Builder;
use tollgate_limiter::{Ask, Counted, Key, Limit, Limiter, Rate, RedissonType};

use crate::harness::{gateway::Gateway, redis::Redis, wait_until};

/// The version of the client.
const VERSION: &str = "4.7.0";

/// The folder in which the program was built. `None` if this machine has no Maven.
static BUILT: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
    let target = build("interop/redisson", &[&format!("-Dredisson.version={VERSION}")])?;
    Some(target.join(VERSION))
});

/// Builds a project with Maven, and returns the folder of what it makes. `None` if this machine has no Maven.
pub(super) fn build(project: &str, arguments: &[&str]) -> Option<PathBuf> {
    let has_maven = Command::new("mvn").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !has_maven {
        eprintln!("\n*** SKIPPED: no mvn on PATH, so {project} wasn't run: apt-get install maven ***\n");
        return None;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(project);
    let mut command = Command::new("mvn");
    command.args(["-q", "-B", "package"]).args(arguments).current_dir(&folder);
    assert!(command.status().unwrap().success(), "{project} doesn't build");
    Some(folder.join("target"))
}

/// A Java process with a client of its own.
pub(super) struct Java {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    commands: u64,
}

impl Java {
    /// Starts one, if this machine has Maven.
    pub(super) fn start(redis: &Redis) -> Option<Self> {
        let target = BUILT.as_ref()?;
        let classes = format!("{}:{}/*", target.join("classes").display(), target.join("lib").display());
        let mut command = Command::new("java");
        command.args(["-cp", &classes, "tollgate.Limiter", &redis.url()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().expect("java comes with Maven");
        let (input, output) = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
        let mut java = Self { process, input, output, commands: 0 };
        assert_eq!(java.answer()["id"], "ready");
        Some(java)
    }

    pub(super) fn send(&mut self, command: &str) {
        self.commands += 1;
        writeln!(self.input, "{} {command}", self.commands).unwrap();
        self.input.flush().unwrap();
    }

    pub(super) fn answer(&mut self) -> Json {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    /// Runs a command, and returns its result.
    pub(super) fn run(&mut self, command: &str) -> Json {
        self.send(command);
        let answer = self.answer();
        assert!(answer["error"].is_null(), "{command}: {answer}");
        answer["result"].clone()
    }

    pub(super) fn granted(&mut self, command: &str) -> u64 {
        self.run(command).as_u64().unwrap()
    }
}

impl Drop for Java {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn toml(redis: &Redis, rate: &str) -> String {
    format!(
        "{}[limits.shared]\nkey = \"header:x-user\"\nrate = \"{rate}\"\ncost = \"header:x-cost\"\non_failure = \"deny\"\n\
         layout = \"redisson\"\nredisson_name = \"it:{{key}}\"\n\
         [[routes]]\npath = \"/\"\nrespond = {{ status = 204 }}\nlimits = [\"shared\"]\n",
        redis.store()
    )
}

pub(super) fn gateway(redis: &Redis, rate: &str) -> Gateway {
    Gateway::start(&toml(redis, rate))
}

pub(super) fn passes(gateway: &Gateway, user: &str, cost: u64) -> bool {
    let answer = gateway.client().get_with("/", &format!("x-user: {user}\r\nx-cost: {cost}\r\n"));
    assert!(matches!(answer.status, 204 | 429), "{answer:?}");
    answer.status == 204
}

#[test]
fn either_side_sets_changes_releases_and_deletes() {
    let redis = Redis::start();
    let Some(mut java) = Java::start(&redis) else { return };
    let gateway = gateway(&redis, "5/min");
    // What a gateway made, Java knows.
    assert!(passes(&gateway, "bob", 2));
    assert_eq!(java.run("try_set it:bob overall 99 1000"), false);
    assert_eq!(java.granted("acquire it:bob 9 1"), 3);
    assert!(!passes(&gateway, "bob", 1));
    // What Java gives back, gateways take at once.
    java.run("release it:bob 2");
    assert!(passes(&gateway, "bob", 2));
    assert!(!passes(&gateway, "bob", 1));
    // A rate that Java changes holds here.
    assert_eq!(java.run("update it:bob overall 8 60000 60000 keep"), true);
    assert!(!passes(&gateway, "bob", 4));
    assert!(passes(&gateway, "bob", 1));
    assert_eq!(java.run("update it:bob overall 4 60000 60000 drop"), true);
    assert!(passes(&gateway, "bob", 4));
    assert_eq!(java.granted("acquire it:bob 1 1"), 0);
    // One that is changed here holds there.
    Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let limiter = Limiter::connect(&redis.url()).unwrap();
        let limit = Limit::new("library", "9/h".parse::<Rate>().unwrap())
            .shared_with_redisson("it:{key}".parse().unwrap(), RedissonType::Overall);
        let ask = Ask::new(&Arc::new(limit), Key::verbatim("bob"));
        let rate = "6/min".parse::<Rate>().unwrap();
        assert!(limiter.update_rate(&ask, rate, Counted::Kept).await.unwrap());
        let state = limiter.peek(&ask).await.unwrap();
        assert_eq!((state.quota.rate(), state.usage.used), (rate, 4));
        assert_eq!(java.granted("acquire it:bob 9 1"), 2);
        assert!(limiter.release(&ask, None).await.unwrap());
        assert_eq!(java.granted("acquire it:bob 9 1"), 1);
        limiter.reset(&ask).await.unwrap();
        assert_eq!(java.run("available it:bob"), 6);
    });
    // After it was deleted, a gateway sets its own rate, and Java keeps working.
    assert_eq!(java.run("delete it:bob"), true);
    assert!(passes(&gateway, "bob", 5));
    assert_eq!(java.granted("acquire it:bob 1 1"), 0);
    let rate = {
        java.send("rate it:bob");
        java.answer()
    };
    assert_eq!((rate["rate"].as_u64(), rate["interval"].as_u64()), (Some(5), Some(60_000)));
    // Java's own waiters get in when permits of a gateway end.
    assert_eq!(java.run("set it:carol overall 2 700"), "done");
    wait_until("both are taken", || passes(&gateway, "carol", 2));
    assert_eq!(java.run("wait it:carol 1 5000"), true);
}

#[test]
fn java_keeps_working_while_gateways_join_and_leave() {
    let redis = Redis::start();
    let Some(mut java) = Java::start(&redis) else { return };
    assert_eq!(java.run("set it:dora overall 20 500"), "done");
    // On a busy machine, the gateways need longer.
    let was_there = |ms| takes_permits_throughout(&mut java, &redis, ms);
    assert!([6_000, 15_000, 40_000].into_iter().any(was_there), "gateways didn't join and leave in time");
    // What it set is as it was, and idle, all of it is available.
    java.send("rate it:dora");
    let rate = java.answer();
    assert_eq!((rate["rate"].as_u64(), rate["interval"].as_u64()), (Some(20), Some(500)));
    wait_until("all of it is available", || java.run("available it:dora") == 20);
}

/// Has Java take permits for so many milliseconds, while one gateway after the other joins and leaves, the first in order. Returns
/// true if they did so in this time.
fn takes_permits_throughout(java: &mut Java, redis: &Redis, ms: u64) -> bool {
    let begin = SystemTime::now();
    java.send(&format!("flood it:dora {ms} 1 2"));
    for leaves_in_order in [true, false] {
        let gateway = gateway(redis, "5/min");
        wait_until("the gateway gets a share", || passes(&gateway, "dora", 1));
        if leaves_in_order {
            gateway.signal("TERM");
        }
    }
    let left_ms = begin.elapsed().unwrap().as_millis() as u64;
    let flood = java.answer();
    assert_eq!(flood["errors"], serde_json::json!([]));
    let begin_ms = begin.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as u64;
    let ends = flood["calls"].as_array().unwrap().iter().map(|call| call[1].as_u64().unwrap());
    let (first, last) = (ends.clone().min().unwrap(), ends.max().unwrap());
    assert!(first < begin_ms + left_ms, "Java took nothing before {left_ms} ms");
    begin_ms + left_ms < last
}

#[test]
fn clients_of_their_own_count_apart_each_by_its_id() {
    let redis = Redis::start();
    let toml = toml(&redis, "3/min").replace("layout", "redisson_type = \"per-client\"\nlayout");
    let gateways = [Gateway::start(&toml), Gateway::start(&toml)];
    let granted = |_| gateways.each_ref().map(|gateway| passes(gateway, "erin", 1));
    assert_eq!([0; 4].map(granted), [[true; 2], [true; 2], [true; 2], [false; 2]]);
    assert_eq!(redis.command(&["HMGET", "it:erin", "rate", "interval", "type"]), "3\n60000\n1");
    let mut clients = 2;
    if let Some(mut java) = Java::start(&redis) {
        assert_eq!(java.granted("acquire it:erin 9 1"), 3);
        clients += 1;
    }
    for kept in ["value", "permits"] {
        let keys = redis.keys(&format!("{{it:erin}}:{kept}*"));
        let ids = keys.iter().filter_map(|key| key.strip_prefix(&format!("{{it:erin}}:{kept}:")));
        assert_eq!((ids.count(), keys.len()), (clients, clients), "{keys:?}");
    }
}
