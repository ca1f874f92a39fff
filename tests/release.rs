//! What a release promises to later versions (docs/upgrading.md): its configuration is accepted, and counts that it left in Redis are honoured under the
//! same keys. `tests/release` has a folder for each release, and for 0.1.0-alpha, the first program that made packages.
//!
//! A new release is recorded by `cargo test --test redis release::record -- --ignored`.

use std::{collections::BTreeMap, fs, path::PathBuf, sync::Arc};

use serde_json::{Value as Json, json};
use tollgate::config::Config;
use tollgate_limiter::{
    Algorithm, Ask, Key, Limit, Quota, Rate,
    store::{Act, Charge, Operation, Reply},
};

use crate::{
    harness::{gateway::Gateway, redis::Redis, resp::Value, wait_until},
    store::stepped::{SECOND, START, Script, decision, on},
};

/// The seconds after which the use of a bucket is recorded. The grants are at 0 and 3.
const LOOKS: [u64; 3] = [4, 9, 11];

/// Returns the folder of a release.
fn folder(release: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests/release", release].iter().collect()
}

fn releases() -> Vec<String> {
    let entries = fs::read_dir(folder("")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// Returns a limit for each algorithm, with its name.
fn limits() -> BTreeMap<&'static str, Quota> {
    let rate = "10/10s".parse::<Rate>().unwrap();
    [
        ("sliding-window", Algorithm::SlidingWindow),
        ("sliding-cells", Algorithm::SlidingCells { cells: 10 }),
        ("fixed-window", Algorithm::FixedWindow),
        ("gcra", Algorithm::Gcra { burst: Some(7) }),
        ("concurrency", Algorithm::Concurrency),
    ]
    .map(|(name, algorithm)| (name, Quota::new(algorithm, rate)))
    .into()
}

/// Returns the charge of a request by one caller.
fn charge(name: &str, quota: Quota, cost: u32) -> Charge {
    let limit = Arc::new(Limit::new(name, quota));
    Ask::new(&limit, Key::from("caller".to_owned())).cost(cost).charge("tollgate", quota.rate())
}

/// Returns what a bucket looks like in Redis, apart from its expiry.
fn content(script: &mut Script, bucket: &[u8]) -> Json {
    let Value::Text(kind) = script.command(&[b"TYPE", bucket]) else { panic!("no type") };
    match kind.as_slice() {
        b"string" => json!({ "string": hex(script.command(&[b"GET", bucket]).bytes()) }),
        b"zset" => {
            let members = script.command(&[b"ZRANGE", bucket, b"0", b"-1", b"WITHSCORES"]);
            let pairs = members.list().chunks(2);
            let pairs = pairs.map(|pair| json!([pair[1].text(), hex(pair[0].bytes())]));
            json!({ "sorted-set": pairs.collect::<Vec<_>>() })
        }
        kind => panic!("{}", kind.escape_ascii()),
    }
}

/// Writes a bucket as a release left it. Its expiry is long enough for the test.
fn restore(script: &mut Script, bucket: &[u8], content: &Json) {
    if let Some(text) = content.get("string") {
        script.command(&[b"SET", bucket, &bytes(text.as_str().unwrap())]);
    } else {
        for pair in content["sorted-set"].as_array().unwrap() {
            let [score, member] = [0, 1].map(|at| pair[at].as_str().unwrap());
            script.command(&[b"ZADD", bucket, score.as_bytes(), &bytes(member)]);
        }
    }
    script.command(&[b"PEXPIRE", bucket, b"90000"]);
}

/// Returns the permits in use and the delay of 7 permits, at each look.
fn looks(script: &mut Script, name: &str, quota: Quota) -> Json {
    let looks = LOOKS.map(|seconds| {
        script.set_clock(START + seconds * SECOND);
        let reply = script.operate(&[on(&charge(name, quota, 7), Act::Peek(7))]).1.remove(0);
        let Reply::Usage(usage) = reply else { panic!("{reply:?}") };
        json!({ "after_s": seconds, "used": usage.used, "delay_us": usage.delay_us })
    });
    json!(looks)
}

#[test]
#[ignore = "records this version as a release"]
fn record() {
    let mut buckets = BTreeMap::new();
    let mut script = Script::with_stepped_clock();
    for (name, quota) in limits() {
        for (seconds, cost) in [(0, 4), (3, 3)] {
            script.set_clock(START + seconds * SECOND);
            let charge = charge(name, quota, cost);
            let reply = script.operate(&[Operation::Take([charge][..].into())]).1.remove(0);
            assert!(decision(reply).admitted, "{name}");
        }
        let bucket = charge(name, quota, 1).bucket;
        let content = content(&mut script, &bucket);
        let looks = looks(&mut script, name, quota);
        buckets.insert(
            name,
            json!({ "key": str::from_utf8(&bucket).unwrap(), "content": content, "looks": looks }),
        );
    }
    let release = folder(env!("CARGO_PKG_VERSION"));
    fs::create_dir_all(&release).unwrap();
    fs::write(release.join("buckets.json"), serde_json::to_string_pretty(&buckets).unwrap() + "\n").unwrap();
    fs::copy("tests/every-key.toml", release.join("every-key.toml")).unwrap();
    fs::copy("gateway.toml", release.join("gateway.toml")).unwrap();
    fs::write(release.join("metrics.txt"), metrics().join("\n") + "\n").unwrap();
}

/// Returns the names of the metrics in docs/metrics.md, which other tests compare with those that a gateway exports.
fn metrics() -> Vec<String> {
    let text = fs::read_to_string("docs/metrics.md").unwrap();
    let is_of_name = |letter: char| letter.is_ascii_lowercase() || letter == '_';
    let words = text.split(|letter| !is_of_name(letter));
    // Not the beginning of several names.
    let words = words.filter(|word| word.starts_with("tollgate_") && !word.ends_with('_'));
    let mut names: Vec<String> = words.map(str::to_owned).collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[test]
fn this_version_is_recorded() {
    assert!(releases().contains(&env!("CARGO_PKG_VERSION").to_owned()), "{:?}", releases());
}

#[test]
fn counts_of_each_release_are_honoured() {
    for release in releases() {
        let recorded = fs::read_to_string(folder(&release).join("buckets.json")).unwrap();
        let recorded: BTreeMap<String, Json> = serde_json::from_str(&recorded).unwrap();
        let mut script = Script::with_stepped_clock();
        for (name, quota) in limits() {
            let recorded = recorded.get(name).unwrap_or_else(|| panic!("{release} lacks {name}"));
            let bucket = charge(name, quota, 1).bucket;
            assert_eq!(str::from_utf8(&bucket).unwrap(), recorded["key"], "{release}: the key in Redis");
            restore(&mut script, &bucket, &recorded["content"]);
            assert_eq!(looks(&mut script, name, quota), recorded["looks"], "{release}: {name}");
            // And it counts on: what isn't in use is admitted, and no more.
            script.set_clock(START + 4 * SECOND);
            let requests = vec![Operation::Take([charge(name, quota, 1)][..].into()); 20];
            let admitted =
                script.operate(&requests).1.into_iter().filter(|reply| decision(reply.clone()).admitted);
            let capacity = if name == "gcra" { 7 } else { 10 };
            let used = recorded["looks"][0]["used"].as_u64().unwrap();
            assert_eq!(admitted.count() as u64, capacity - used, "{release}: {name}");
        }
    }
}

#[test]
fn a_rate_that_a_release_set_is_honoured() {
    let redis = Redis::start();
    redis.command(&["HSET", "tollgate:overrides", "per-client", "3 0 - 0", "#version", "1763683200000000"]);
    let toml = format!(
        "{}[limits.per-client]\nkey = \"ip\"\nrate = \"5/10s\"\n[[routes]]\npath = \"/\"\nrespond = {{ status = 200 }}\nlimits = [\"per-client\"]\n",
        redis.store()
    );
    let gateway = Gateway::start(&toml);
    let policy = || gateway.get("/").header("ratelimit-policy").unwrap().to_owned();
    wait_until("the gateway has read the overrides", || policy() == "\"per-client\";q=3;w=10");
}

#[test]
fn configurations_of_each_release_are_accepted() {
    for release in releases() {
        for name in ["every-key.toml", "gateway.toml"] {
            let text = fs::read_to_string(folder(&release).join(name)).unwrap();
            // Its paths are relative to the root of the repository.
            let parsed = Config::parse("gateway.toml", &text, &|_| None);
            parsed.unwrap_or_else(|faults| panic!("{release}/{name}: {faults}"));
        }
    }
}

#[test]
fn metrics_of_each_release_are_still_there() {
    let now = metrics();
    for release in releases() {
        let recorded = fs::read_to_string(folder(&release).join("metrics.txt")).unwrap();
        let gone: Vec<&str> = recorded.lines().filter(|name| !now.contains(&(*name).to_owned())).collect();
        assert_eq!(gone, [""; 0], "metrics of {release}");
        assert!(recorded.lines().count() > 30);
    }
}
