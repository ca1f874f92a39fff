//! Keys that a file lists, and keys that clients invent.

use std::fs;

use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::{
    decisions::Decider,
    harness::{client::Answer, gateway::Gateway, redis::Redis, wait_until},
    limit_all,
};

/// Returns a line of the file, with the hash of a key and its name.
fn line(key: &str) -> String {
    let hash: String = Sha256::digest(key).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{hash} of-{}\n", key.len())
}

/// Writes a file with these keys. Returns the line of the configuration that names it.
fn keys_file(keys: &[&str]) -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.txt");
    fs::write(&path, keys.iter().map(|key| line(key)).collect::<String>()).unwrap();
    (folder, format!("keys_file = {path:?}\n"))
}

fn ask(gateway: &Gateway, key: &str) -> Answer {
    gateway.ask(&format!("GET /\nX-Api-Key: {key}"))
}

#[test]
fn an_invented_key_is_no_fresh_quota() {
    let (_folder, file) = keys_file(&["gold", "silver"]);
    let redis = Redis::start();
    for store in [String::new(), redis.store()] {
        let limit = limit_all(&format!("key = \"header:x-api-key\"\nrate = \"2/h\"\n{file}"));
        let gateway = Gateway::start(&format!("{store}{limit}"));
        let status = |key: &str| ask(&gateway, key).status;
        assert_eq!(
            ["one", "two", "three", "gold", "gold", "gold"].map(status),
            [200, 200, 429, 200, 200, 429]
        );
        // Requests without a key share the count of their address.
        assert_eq!((gateway.get("/").status, status("silver"), status("Gold")), (429, 200, 429));
        gateway.assert_not_logged("gold");
    }
    let mut keys = redis.keys("tollgate:l:*");
    keys.sort();
    assert_eq!(keys.len(), 3, "{keys:?}");
    assert!(keys.concat().contains("{ip=127.0.0.1}") && !keys.concat().contains("gold"), "{keys:?}");
}

#[test]
fn keys_of_one_name_have_its_rate_and_a_count_each() {
    let (folder, file) = keys_file(&["gold1", "gold2", "silver"]);
    let limit = limit_all(&format!(
        "key = \"header:x-api-key\"\nrate = \"1/h\"\noverrides = [{{ key = \"of-5\", rate = \"3/h\" }}]\n{file}"
    ));
    let redis = Redis::start();
    for store in [String::new(), redis.store()] {
        fs::write(folder.path().join("keys.txt"), ["gold1", "gold2", "silver"].map(line).concat()).unwrap();
        let gateway = Gateway::start(&format!("{store}{limit}"));
        let admitted = |key: &str| (0..5).filter(|_| ask(&gateway, key).status == 200).count();
        assert_eq!(["gold1", "gold2", "silver", "of-5"].map(admitted), [3, 3, 1, 1]);
        // A key changes its tier with the file.
        let silver = line("silver").replace("of-6", "of-5");
        fs::write(folder.path().join("keys.txt"), silver).unwrap();
        wait_until("the key has the other rate", || ask(&gateway, "silver").status == 200);
    }
}

#[test]
fn an_unknown_key_is_denied_without_being_counted() {
    let (_folder, file) = keys_file(&["gold", "Bearer gold"]);
    for (key, field, challenge) in [
        ("header:x-api-key", "X-Api-Key: ", "ApiKey realm=\"tollgate\""),
        (
            "header:authorization",
            "Authorization: Bearer ",
            "Bearer realm=\"tollgate\", error=\"invalid_token\"",
        ),
    ] {
        let keys = format!("key = [\"{key}\", \"method\"]\nrate = \"1/h\"\nunknown = \"deny\"\n{file}");
        let gateway = Gateway::start(&limit_all(&keys));
        for invented in ["one", "two", "gold"].map(|key| format!("{key}x")) {
            let refused = gateway.ask(&format!("GET /\n{field}{invented}"));
            assert_eq!((refused.status, refused.json()["code"].as_str()), (401, Some("key-unknown")));
            assert_eq!(refused.header("www-authenticate"), Some(challenge));
            assert!(!String::from_utf8(refused.body).unwrap().contains(&invented));
        }
        let statuses = [(); 2].map(|()| gateway.ask(&format!("GET /\n{field}gold")).status);
        assert_eq!(statuses, [200, 429]);
        // `missing` is another matter.
        assert_eq!(gateway.get("/").status, 200);
    }
}

#[test]
fn of_the_keys_that_servers_may_read_those_count_that_are_known() {
    let (_folder, file) = keys_file(&["gold", "silver", "Token gold"]);
    for unknown in ["ip", "deny"] {
        let keys = format!("rate = \"2/h\"\nunknown = \"{unknown}\"\n{file}");
        let gateway = Gateway::start(&limit_all(&format!("key = \"query:key\"\n{keys}")));
        let ask = |path: &str| gateway.get(path).status;
        let paths = ["/?key=lead&KEY=gold", "/?key=silver&key=lead", "/?key=gold&key=silver", "/?key=gold"];
        assert_eq!(paths.map(ask), [200, 200, 200, 429], "{unknown}");
        // Nothing has been counted by the address.
        let refused = if unknown == "ip" { 429 } else { 401 };
        let paths = ["/?key=lead", "/?key=lead&KEY=tin", "/?key=lead"];
        let expected = if unknown == "ip" { [200, 200, refused] } else { [refused; 3] };
        assert_eq!(paths.map(ask), expected, "{unknown}");
        let gateway = Gateway::start(&limit_all(&format!("key = \"header:authorization\"\n{keys}")));
        let statuses = [(); 3].map(|()| gateway.ask("GET /\nAuthorization: Token gold").status);
        assert_eq!(statuses, [200, 200, 429], "{unknown}");
    }
}

#[test]
fn a_shadow_limit_denies_no_key() {
    let (_folder, file) = keys_file(&["gold"]);
    let keys =
        format!("key = \"header:x-api-key\"\nrate = \"1/h\"\nmode = \"shadow\"\nunknown = \"deny\"\n{file}");
    assert_eq!(ask(&Gateway::start(&limit_all(&keys)), "lead").status, 200);
}

#[test]
fn a_changed_file_counts_at_once_and_a_broken_one_changes_nothing() {
    let (folder, file) = keys_file(&["gold"]);
    let keys = format!("key = \"header:x-api-key\"\nrate = \"1000/h\"\nunknown = \"deny\"\n{file}");
    let gateway = Gateway::start(&limit_all(&keys));
    assert_eq!((ask(&gateway, "gold").status, ask(&gateway, "silver").status), (200, 401));
    let write = |text: &str| fs::write(folder.path().join("keys.txt"), text).unwrap();
    write(&line("silver"));
    wait_until("the file is read again", || ask(&gateway, "silver").status == 200);
    assert_eq!(ask(&gateway, "gold").status, 401);
    gateway.wait_for_log("limit `l`: `keys_file` changed");
    write("hunter2\n");
    wait_until("the file is refused", || gateway.log().contains("the running one stays in use"));
    assert!(gateway.log().contains("line 1 ") && !gateway.log().contains("hunter2"), "{}", gateway.log());
    assert_eq!((ask(&gateway, "silver").status, ask(&gateway, "gold").status), (200, 401));
}

#[test]
fn keys_that_another_proxy_describes_are_known_too() {
    let (_folder, file) = keys_file(&["gold"]);
    let decider = Decider::start(
        "",
        &format!(
            "[limits.l]\nkey = \"descriptor:api_key\"\nrate = \"1/h\"\nunknown = \"deny\"\n{file}\
             [[descriptors]]\ndomain = \"shop\"\nmatch = {{ api_key = \"*\" }}\nlimits = [\"l\"]\n"
        ),
    );
    let ask = |key: &str| {
        let body = format!(
            r#"{{"domain":"shop","descriptors":[{{"entries":[{{"key":"api_key","value":"{key}"}}]}}]}}"#
        );
        decider.ask(&format!("POST /json\nContent-Length: {}\n\n{body}", body.len()))
    };
    let statuses = ["lead", "lead", "gold", "gold"].map(|key| ask(key).status);
    assert_eq!(statuses, [429, 429, 200, 429]);
}
