//! The real client beside gateways and the library, on the same keys. Needs Maven and Java; skipped where they are missing.

#![allow(clippy::print_stderr, reason = "a skipped test says so")]

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use serde_json::Value as Json;
use tokio::runtime::Builder;
use tollgate_limiter::{Ask, Counted, Key, Limit, Limiter, Rate, RedissonType};

use crate::harness::{gateway::Gateway, redis::Redis, wait_until};

/// How long both sides acquire at once.
const SECONDS: u64 = 10;
/// What Java's clock may be behind that of Redis when its call arrives, on a busy machine.
const SLACK_MS: u64 = 300;
/// The version of the client.
const VERSION: &str = "4.7.0";

/// Where the program was built. `None` if this machine has no Maven.
static BUILT: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
    let has_maven = Command::new("mvn").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !has_maven {
        eprintln!("\n*** SKIPPED: no mvn on PATH, so the real Redisson client wasn't run ***\n");
        return None;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop/redisson");
    let arguments = ["-q", "-B", "package", &format!("-Dredisson.version={VERSION}")];
    let status = Command::new("mvn").args(arguments).current_dir(&folder).status().unwrap();
    assert!(status.success(), "interop/redisson doesn't build");
    Some(folder.join("target").join(VERSION))
});

/// A Java process with a client of its own.
struct Java {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    commands: u64,
}

impl Java {
    /// Starts one, if this machine has Maven.
    fn start(redis: &Redis) -> Option<Self> {
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

    fn send(&mut self, command: &str) {
        self.commands += 1;
        writeln!(self.input, "{} {command}", self.commands).unwrap();
        self.input.flush().unwrap();
    }

    fn answer(&mut self) -> Json {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    /// Runs a command, and returns its result.
    fn run(&mut self, command: &str) -> Json {
        self.send(command);
        let answer = self.answer();
        assert!(answer["error"].is_null(), "{command}: {answer}");
        answer["result"].clone()
    }

    fn granted(&mut self, command: &str) -> u64 {
        self.run(command).as_u64().unwrap()
    }
}

impl Drop for Java {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn gateway(redis: &Redis, rate: &str) -> Gateway {
    Gateway::start(&format!(
        "{}[limits.shared]\nkey = \"header:x-user\"\nrate = \"{rate}\"\ncost = \"header:x-cost\"\non_failure = \"deny\"\n\
         layout = \"redisson\"\nredisson_name = \"it:{{key}}\"\n\
         [[routes]]\npath = \"/\"\nrespond = {{ status = 204 }}\nlimits = [\"shared\"]\n",
        redis.store()
    ))
}

fn passes(gateway: &Gateway, user: &str, cost: u64) -> bool {
    let answer = gateway.client().get_with("/", &format!("x-user: {user}\r\nx-cost: {cost}\r\n"));
    assert!(matches!(answer.status, 204 | 429), "{answer:?}");
    answer.status == 204
}

/// The grants that Redis has recorded: each member with its time and permits.
type Grants = BTreeMap<Vec<u8>, (u64, u64)>;

/// Collects all members that there ever are until the time has passed.
fn collect(redis: &Redis, name: &str, until: Instant) -> Grants {
    let mut connection = redis.connect();
    let mut grants = Grants::new();
    while Instant::now() < until {
        let found = connection.command(&["ZRANGE", &format!("{{{name}}}:permits"), "0", "-1", "WITHSCORES"]);
        for pair in found.list().chunks(2) {
            let member = pair[0].bytes().to_vec();
            let permits = u32::from_le_bytes(member[17..].try_into().unwrap());
            grants.insert(member, (pair[1].integer() as u64, u64::from(permits)));
        }
        thread::sleep(Duration::from_millis(20));
    }
    grants
}

/// The most permits within any window.
fn most_within(grants: &Grants, window_ms: u64) -> u64 {
    let mut sorted: Vec<_> = grants.values().copied().collect();
    sorted.sort_unstable();
    let mut most = 0;
    for (first, (start, _)) in sorted.iter().enumerate() {
        let within = sorted[first..].iter().take_while(|(at, _)| *at < start + window_ms);
        most = most.max(within.map(|(_, permits)| permits).sum());
    }
    most
}

#[test]
fn java_and_gateways_and_the_library_share_one_limiter() {
    const RATE: u64 = 60;
    let redis = Redis::start();
    let Some(mut java) = Java::start(&redis) else { return };
    assert_eq!(java.run(&format!("try_set it:alice overall {RATE} 1000")), true);
    let gateways = [gateway(&redis, "7/h"), gateway(&redis, "8/h")];
    let until = Instant::now() + Duration::from_secs(SECONDS);
    let passed = AtomicU64::new(0);
    let millis = SECONDS * 1_000 - 1_500;
    for permits in [1, 3] {
        java.send(&format!("flood it:alice {millis} {permits} 2"));
    }
    let grants = thread::scope(|scope| {
        for (gateway, cost) in gateways.iter().zip([1, 2]) {
            let passed = &passed;
            scope.spawn(move || {
                let mut client = gateway.client();
                while Instant::now() < until - Duration::from_millis(1_200) {
                    let answer = client.get_with("/", &format!("x-user: alice\r\nx-cost: {cost}\r\n"));
                    if answer.status == 204 {
                        passed.fetch_add(cost, Relaxed);
                    }
                    thread::sleep(Duration::from_millis(2));
                }
            });
        }
        let (passed, url) = (&passed, redis.url());
        scope.spawn(move || {
            Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
                let limiter = Limiter::connect(&url).unwrap();
                limiter.warm_up().await.unwrap();
                let limit = Limit::new("library", "9/h".parse::<Rate>().unwrap())
                    .shared_with_redisson("it:{key}".parse().unwrap(), RedissonType::Overall);
                let ask = Ask::new(&Arc::new(limit), Key::verbatim("alice"));
                while Instant::now() < until - Duration::from_millis(1_200) {
                    if limiter.try_acquire(std::slice::from_ref(&ask)).await.is_ok() {
                        passed.fetch_add(1, Relaxed);
                    }
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            });
        });
        collect(&redis, "it:alice", until)
    });
    let mut by_java = 0;
    for _ in 0..2 {
        let answer = java.answer();
        assert_eq!(answer["errors"].as_array().map(Vec::len), Some(0), "{answer}");
        by_java += answer["result"].as_u64().unwrap();
    }
    let (by_us, recorded) = (passed.load(Relaxed), grants.values().map(|(_, permits)| permits).sum::<u64>());
    eprintln!("Java took {by_java} permits, Tollgate {by_us}; Redis recorded {recorded}");
    assert!(by_java > 0 && by_us > 0);
    assert_eq!(by_java + by_us, recorded, "each permit is recorded once");
    assert!(most_within(&grants, 1_000 - SLACK_MS) <= RATE);
    assert!(recorded <= RATE * (SECONDS + 1), "{recorded}");
    assert!(recorded >= RATE * (SECONDS - 4), "none is lost: {recorded}");
    // After an idle interval, all is available again, to both.
    thread::sleep(Duration::from_millis(1_100));
    assert_eq!(java.run("available it:alice"), RATE);
    assert!(passes(&gateways[0], "alice", RATE));
    assert_eq!(java.granted("acquire it:alice 3 1"), 0);
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
        assert!(limiter.release(&ask).await.unwrap());
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
