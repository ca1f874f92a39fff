//! What the real client left in Redis after each step, replayed: from the state before, our scripts must come to the same
//! state. interop/redisson/record.py records it.

use std::collections::BTreeMap;

use serde_json::Value as Json;
use tollgate_limiter::{Algorithm, RedissonType, store::Charge};

use crate::{
    redisson::{at, change, charge, client_id, peek, take_many},
    store::stepped::Script,
};

const TRANSCRIPTS: [&str; 3] = [
    include_str!("../../interop/redisson/transcripts/3.21.0.json"),
    include_str!("../../interop/redisson/transcripts/3.52.0.json"),
    include_str!("../../interop/redisson/transcripts/4.7.0.json"),
];

/// A key as far as both sides must agree: content, and its time to live in seconds, if it has one.
#[derive(Debug, PartialEq, Eq)]
struct Key {
    content: String,
    ttl_s: Option<i64>,
}

fn number(json: &Json) -> i64 {
    json.as_i64().unwrap()
}

fn ttl_s(ms: i64) -> Option<i64> {
    (ms >= 0).then_some((ms + 2_000) / 10_000 * 10)
}

/// Returns the permits of members by their time. Those that weren't there before are from the earliest time of the step on, and
/// have the time of its end: Java has read its clock earlier, and a grant of ours may stand for several equal ones.
fn permits(
    members: impl Iterator<Item = (i64, Vec<u8>)>,
    before: &Json,
    step: &Json,
    earliest: i64,
) -> String {
    let mut by_time = BTreeMap::<i64, u32>::new();
    for (score, member) in members {
        assert_eq!((member.len(), member[0]), (21, 16));
        let hex: String = member.iter().map(|byte| format!("{byte:02x}")).collect();
        let time = if before.to_string().contains(&hex) {
            score
        } else {
            let now = number(&step["now_ms"]);
            assert!((earliest..=now).contains(&score), "{score} isn't from {earliest} to {now}");
            now
        };
        *by_time.entry(time).or_default() += u32::from_le_bytes(member[17..].try_into().unwrap());
    }
    format!("{by_time:?}")
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// The recorded keys, under the names that this process gives them.
fn recorded(step: &Json) -> BTreeMap<String, &Json> {
    let ours = |name: &str| match name.rsplit_once(':') {
        Some((stem, id)) if id.len() == 36 => format!("{stem}:{}", client_id()),
        _ => name.to_owned(),
    };
    step["keys"].as_object().unwrap().iter().map(|(name, key)| (ours(name), key)).collect()
}

fn expected(before: &Json, step: &Json) -> BTreeMap<String, Key> {
    let key = |(name, key): (String, &Json)| {
        let content = match key["type"].as_str().unwrap() {
            "hash" => key["fields"].to_string(),
            "zset" => {
                let members = key["members"].as_array().unwrap().iter();
                let members =
                    members.map(|member| (number(&member["score"]), bytes(member["hex"].as_str().unwrap())));
                permits(members, before, step, before["now_ms"].as_i64().unwrap_or(0))
            }
            _ => key["value"].as_str().unwrap().to_owned(),
        };
        (name, Key { content, ttl_s: ttl_s(number(&key["pttl"])) })
    };
    recorded(step).into_iter().map(key).collect()
}

fn restore(script: &mut Script, step: &Json) {
    script.command(&["FLUSHALL"]);
    for (name, key) in recorded(step) {
        match key["type"].as_str().unwrap() {
            "hash" => {
                for (field, value) in key["fields"].as_object().unwrap() {
                    script.command(&["HSET", &name, field, value.as_str().unwrap()]);
                }
            }
            "zset" => {
                for member in key["members"].as_array().unwrap() {
                    let (score, member) =
                        (member["score"].to_string(), bytes(member["hex"].as_str().unwrap()));
                    script.command(&[b"ZADD".as_slice(), name.as_bytes(), score.as_bytes(), &member]);
                }
            }
            _ => drop(script.command(&["SET", &name, key["value"].as_str().unwrap()])),
        }
        let ttl_ms = number(&key["pttl"]);
        if ttl_ms > 0 {
            script.command(&["PEXPIRE", &name, &ttl_ms.to_string()]);
        }
    }
}

fn found(script: &mut Script, before: &Json, step: &Json) -> BTreeMap<String, Key> {
    let all = script.command(&["KEYS", "*"]);
    let names: Vec<String> = all.list().iter().map(|name| name.text().to_owned()).collect();
    let mut keys = BTreeMap::new();
    for name in names.into_iter().filter(|name| name != "clock") {
        let content = match script.command(&["TYPE", &name]).text() {
            "hash" => {
                let flat = script.command(&["HGETALL", &name]);
                let pairs =
                    flat.list().chunks(2).map(|pair| (pair[0].text().to_owned(), pair[1].text().into()));
                Json::Object(pairs.collect()).to_string()
            }
            "zset" => {
                let flat = script.command(&["ZRANGE", &name, "0", "-1", "WITHSCORES"]);
                let members = flat.list().chunks(2);
                let members = members.map(|pair| (pair[1].integer(), pair[0].bytes().to_vec()));
                permits(members, before, step, number(&step["now_ms"]))
            }
            _ => script.command(&["GET", &name]).text().to_owned(),
        };
        let ttl_s = ttl_s(script.command(&["PTTL", &name]).integer());
        keys.insert(name, Key { content, ttl_s });
    }
    keys
}

/// The limiter as a gateway has it that was configured otherwise than Java.
fn ours(name: &str, cost: u32) -> Charge {
    charge(name, "77/70s", cost)
}

/// Does to Redis what Java did, and returns false if there is nothing like it on our side.
fn act(script: &mut Script, step: &Json) -> bool {
    let words: Vec<&str> = step["command"].as_str().unwrap().split(' ').collect();
    let (name, reply) = (words[1], &step["reply"]);
    let kind = |word: &str| if word == "client" { "1" } else { "0" };
    match words[0] {
        "acquire" if step["keys"].as_object().unwrap().is_empty() => return false,
        "acquire" => {
            let (times, cost) = (words[2].parse().unwrap(), words[3].parse().unwrap());
            let granted = take_many(script, &ours(name, cost), times);
            // Java raises an error where nothing ever fits.
            let java = reply["result"].as_u64().unwrap_or(0);
            assert_eq!(granted as u64, java, "{step}");
            if reply["error"].is_string() {
                assert_eq!(peek(script, &ours(name, cost)).delay_us, None);
            }
        }
        "available" => {
            let rate = recorded(step)[name]["fields"]["rate"].as_str().unwrap().parse::<u64>().unwrap();
            let left = rate - peek(script, &ours(name, 1)).used;
            assert_eq!(left, reply["result"].as_u64().unwrap(), "{step}");
            // Java writes what it found, and a look of ours writes nothing.
            return false;
        }
        "try_set" => {
            let keep_alive = words.get(5).unwrap_or(&"0");
            let is_set =
                change(script, name, &["set-if-absent", words[3], words[4], kind(words[2]), keep_alive]);
            assert_eq!(is_set.integer() == 1, reply["result"].as_bool().unwrap(), "{step}");
        }
        "set" => drop(change(script, name, &["set", words[3], words[4], kind(words[2]), "0"])),
        "update" => {
            let keep = if words[6] == "keep" { "1" } else { "0" };
            let is_set =
                change(script, name, &["update", words[3], words[4], kind(words[2]), words[5], keep]);
            assert_eq!(is_set.integer() == 1, reply["result"].as_bool().unwrap(), "{step}");
        }
        "release" => drop(change(script, name, &["release", words[2]])),
        _ => return false,
    }
    true
}

#[test]
fn what_java_left_in_redis_is_what_our_scripts_leave() {
    let mut script = Script::with_stepped_clock();
    let mut compared = 0;
    for transcript in TRANSCRIPTS {
        let transcript: Json = serde_json::from_str(transcript).unwrap();
        let version = transcript["version"].as_str().unwrap();
        // The keys of each limiter before the next step.
        let mut before: BTreeMap<&str, &Json> = BTreeMap::new();
        for step in transcript["steps"].as_array().unwrap() {
            let name = step["command"].as_str().unwrap().split(' ').nth(1).unwrap();
            let nothing = serde_json::json!({ "keys": {} });
            let before_it = before.get(name).copied().unwrap_or(&nothing);
            restore(&mut script, before_it);
            at(&mut script, step["now_ms"].as_u64().unwrap());
            if act(&mut script, step) {
                let mut expected = expected(before_it, step);
                let mut found = found(&mut script, before_it, step);
                // Versions before 3.37 know no keepAliveTime; ours writes it, as later ones do.
                if step["command"].as_str().unwrap().starts_with("set")
                    || name == "absent"
                    || version == "3.21.0"
                {
                    strip_keep_alive(&mut expected);
                    strip_keep_alive(&mut found);
                }
                assert_eq!(found, expected, "{version}: {}", step["command"]);
                compared += 1;
            }
            before.insert(name, step);
        }
    }
    assert!(compared > 60, "{compared}");
}

fn strip_keep_alive(keys: &mut BTreeMap<String, Key>) {
    for key in keys.values_mut() {
        if let Ok(Json::Object(mut fields)) = serde_json::from_str(&key.content) {
            fields.remove("keepAliveTime");
            key.content = Json::Object(fields).to_string();
        }
    }
}

#[test]
fn a_client_of_its_own_counts_beside_those_of_java() {
    let mut script = Script::with_stepped_clock();
    at(&mut script, 1_000_000);
    let mut per_client = charge("mine", "3/s", 1);
    per_client.quota.algorithm = Algorithm::Redisson(RedissonType::PerClient);
    assert_eq!(take_many(&mut script, &per_client, 5), 3);
    let step = serde_json::json!({ "now_ms": 1_000_000 });
    let keys = found(&mut script, &Json::Null, &step);
    let own = client_id();
    assert_eq!(keys[&format!("{{mine}}:value:{own}")].content, "0");
    assert!(keys["mine"].content.contains("\"type\":\"1\""), "{keys:?}");
    assert_eq!(keys.len(), 3);
}
