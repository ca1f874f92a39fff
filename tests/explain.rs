//! `tollgate explain` describes what the gateway does: from the file, and from a running gateway.

use std::{
    fs,
    process::{Command, Output},
};

use crate::harness::{gateway::Gateway, redis::Redis, wait_until};
use jsonwebtoken::{Algorithm as JwtAlgorithm, EncodingKey, Header, encode};
use serde_json::Value;
use tempfile::TempDir;

const FILE: &str = r#"
[server]
trusted_proxies = ["10.0.0.0/8"]
escaped_slashes = "reject"

[upstreams.up]
servers = ["http://127.0.0.1:9"]

[limits.per-client]
key = "ip"
rate = "5/10s"
exempt = ["198.51.100.0/24", "203.0.113.0/24"]

[limits.per-key]
key = ["header:x-api-key", "path:id"]
rate = "10/min"
missing = "deny"
overrides = [{ key = '["gold","7"]', rate = "100/min" }]
exempt = ['["lead","7"]', '["platinum","7"]']

[limits.shadowy]
key = "query:user"
rate = "1/s"
mode = "shadow"
missing = "skip"
plain = true
algorithm = "gcra"
wait = "250ms"

[[routes]]
name = "order"
host = "api.example.com"
path = "/v1/orders/{id}"
upstream = "up"
limits = ["per-client", "per-key"]
timeout = "3s"

[[routes]]
name = "orders"
path = "/v1/{*rest}"
upstream = "up"
limits = ["shadowy"]

[[routes]]
name = "posted"
path = "/v1/orders/{id}"
methods = ["POST", "PUT"]
upstream = "up"

[[routes]]
name = "new"
path = "/v1/orders/{id}"
headers = { x-version = "2" }
upstream = "up"

[[routes]]
name = "preview"
path = "/v1/orders/{id}"
query = { preview = "1" }
respond = { status = 204 }
"#;

fn folder(toml: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("gateway.toml"), toml).unwrap();
    folder
}

fn run(folder: &TempDir, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.arg("explain").args(words).current_dir(folder).output().unwrap()
}

fn json(folder: &TempDir, words: &[&str]) -> Value {
    let output = run(folder, &[words, &["--json"]].concat());
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn text(folder: &TempDir, words: &[&str]) -> String {
    let output = run(folder, words);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn each_route_says_why_it_is_not_taken() {
    let folder = folder(FILE);
    let specific = |name| format!("`{name}` is more specific, or equally specific and earlier in the file");
    let [host, path, methods] = ["host", "path", "method"].map(|part| format!("{part} doesn't match"));
    let version = "header `x-version` doesn't match".to_owned();
    let preview = "query parameter `preview` doesn't match".to_owned();
    for (words, taken, reasons) in [
        (
            &["GET", "http://api.example.com/v1/orders/7"][..],
            "order",
            vec![
                ("orders", specific("order")),
                ("posted", methods.clone()),
                ("new", version.clone()),
                ("preview", preview.clone()),
            ],
        ),
        (
            &["GET", "/v1/orders/7"],
            "orders",
            vec![
                ("order", host.clone()),
                ("posted", methods),
                ("new", version.clone()),
                ("preview", preview.clone()),
            ],
        ),
        (
            &["PUT", "/v1/orders/7?preview=1", "-H", "X-Version: 2", "-H", "-x: begins with a hyphen"],
            "posted",
            vec![
                ("order", host.clone()),
                ("orders", specific("posted")),
                ("new", specific("posted")),
                ("preview", specific("posted")),
            ],
        ),
        (
            &["GET", "/v1/orders/7?preview=1", "-H", "X-Version: 2"],
            "new",
            vec![
                ("order", host.clone()),
                ("orders", specific("new")),
                ("posted", "method doesn't match".into()),
                ("preview", specific("new")),
            ],
        ),
        (
            &["GET", "/v1"],
            "orders",
            vec![("order", host), ("posted", path.clone()), ("new", path.clone()), ("preview", path)],
        ),
    ] {
        let explained = json(&folder, words);
        assert_eq!(explained["route"]["name"], taken, "{words:?}");
        let others = explained["others"].as_array().unwrap().iter();
        let others: Vec<_> = others
            .map(|other| (other["name"].as_str().unwrap(), other["reason"].as_str().unwrap().to_owned()))
            .collect();
        assert_eq!(others, reasons, "{words:?}");
        let known = explained["others"].as_array().unwrap().iter().chain([&explained["route"]]);
        let preview = known.into_iter().find(|route| route["name"] == "preview").unwrap();
        assert_eq!(preview["matches"], "/v1/orders/{id}?preview", "values may be secrets");
    }
}

#[test]
fn a_path_is_shown_as_it_came_as_it_is_matched_and_as_it_goes_on() {
    let folder = folder(FILE);
    let explained = json(&folder, &["GET", "http://API.example.com/v1//orders/x/../%37?a=%2F"]);
    for (name, shown) in [
        ("host", "api.example.com"),
        ("path", "/v1//orders/x/../%37"),
        ("matched", "/v1/orders/7"),
        ("forwarded", "/v1//orders/%37"),
    ] {
        assert_eq!(explained[name], shown, "{name}");
    }
    let route = &explained["route"];
    assert_eq!((&route["upstream"], &route["target"]), (&"up".into(), &"/v1//orders/%37?a=%2F".into()));
    assert_eq!(route["timeout_ms"], 3000);
    assert_eq!(json(&folder, &["GET", "/v1/orders/7?preview=1"])["route"]["responds"], 204);
}

#[test]
fn rewritten_paths_and_redirects_are_shown() {
    let folder = folder(
        "[upstreams.up]\nservers = [\"http://127.0.0.1:9\"]\n\
         [[routes]]\npath = \"/shop/{id}\"\nupstream = \"up\"\nrewrite = \"/orders/{id}\"\n\
         [[routes]]\npath = \"/old/{*rest}\"\nredirect = { to = \"https://new.example/{*rest}\", status = 307 }\n",
    );
    let rewritten = json(&folder, &["GET", "/shop/%37?a=b"]);
    assert_eq!(rewritten["route"]["target"], "/orders/%37?a=b");
    let moved = json(&folder, &["GET", "/old/a/b?c"]);
    let (target, status) = (&moved["route"]["target"], &moved["route"]["responds"]);
    assert_eq!((target, status), (&"https://new.example/a/b?c".into(), &307.into()));
    assert!(text(&folder, &["GET", "/old/a"]).contains("redirects  307 to https://new.example/a\n"));
}

#[test]
fn what_is_answered_before_any_limit_is_told() {
    let folder = folder(FILE);
    for (words, status, code) in [
        (&["GET", "/nowhere"][..], 404, "no-route"),
        (&["GET", "/v1/a%2Fb"], 400, "escaped-slash"),
        (&["GET", "/v1", "-H", "Host: a b"], 400, "host-invalid"),
        (&["GET", "/v1", "-H", "Host: a", "-H", "Host: b"], 400, "host-repeated"),
        (&["GET", "*"], 400, "target-invalid"),
        (&["OPTIONS", "*"], 204, "about-server"),
    ] {
        let explained = json(&folder, words);
        assert_eq!(
            (&explained["rejected"]["status"], &explained["rejected"]["code"]),
            (&status.into(), &code.into())
        );
        assert!(explained["route"].is_null() && explained["limits"] == Value::Array(vec![]), "{words:?}");
        assert!(text(&folder, words).contains(&format!("answer       {status}: ")));
    }
}

/// Health checks are answered before routing, on the command line and by a gateway that runs.
#[test]
fn a_health_check_is_answered_by_the_gateway_itself() {
    let toml = "[server]\nhealth = \"/-/ready\"\n[admin]\nlisten = \"127.0.0.1:0\"\n[limits.l]\nkey = \"ip\"\nrate = \"5/h\"\n\
                [[routes]]\nname = \"all\"\npath = \"/{*rest}\"\nrespond = { status = 404 }\nlimits = [\"l\"]\n";
    let folder = folder(toml);
    let gateway = Gateway::start(toml);
    let admin = format!("http://{}", crate::admin::admin(&gateway));
    let live = ["--live", "--admin", &admin];
    for (words, path) in
        [(&["GET", "/-/ready?a"][..], "/-/ready?a"), (&["HEAD", "http://a/-/ready"], "/-/ready")]
    {
        assert_eq!(gateway.get(path).text(), "ready\n");
        for more in [&[][..], &live] {
            let words = [words, more].concat();
            let explained = json(&folder, &words);
            assert_eq!(
                (&explained["rejected"]["status"], &explained["rejected"]["code"]),
                (&200.into(), &"health-check".into()),
                "{words:?}"
            );
            assert!(explained["route"].is_null() && explained["limits"] == Value::Array(vec![]), "{words:?}");
            assert!(text(&folder, &words).contains("answer       200: `server.health` is this path, "));
        }
    }
    for words in [["POST", "/-/ready"], ["GET", "/-/ready/"]] {
        assert_eq!(gateway.ask(&words.join(" ")).status, 404);
        assert_eq!(json(&folder, &words)["route"]["name"], "all", "{words:?}");
        assert_eq!(json(&folder, &[&words[..], &live].concat())["route"]["name"], "all", "{words:?}");
    }
}

/// A path that servers read differently is shown with its route and all readings, whether it is refused for that or not.
#[test]
fn what_servers_may_read_in_a_path_is_told() {
    let folder = folder(&FILE.replace("\"reject\"", "\"keep\""));
    let host = "http://api.example.com";
    for (path, route, code, readings) in [
        (
            "/v1/orders;v/7",
            "orders",
            None,
            &[("/v1/orders", Some("orders")), ("/v1/orders/7", Some("order"))][..],
        ),
        ("/v1;x/orders/7", "", Some("no-route"), &[("/v1", Some("orders")), ("/v1/orders/7", Some("order"))]),
        (
            "/v1/orders;x%5C7",
            "orders",
            None,
            &[
                ("/v1/orders", Some("orders")),
                ("/v1/orders/7", Some("order")),
                ("/v1/orders;x/7", Some("orders")),
            ],
        ),
        (
            "/v1/orders/..;/a",
            "orders",
            Some("path-ambiguous"),
            &[("/v1", Some("orders")), ("/v1/a", Some("orders"))],
        ),
        ("/v1/..;/a", "orders", Some("path-ambiguous"), &[("/", None), ("/a", None)]),
    ] {
        let explained = json(&folder, &["GET", &format!("{host}{path}")]);
        assert_eq!(explained["route"]["name"].as_str().unwrap_or_default(), route, "{path}");
        assert_eq!(explained["rejected"]["code"].as_str(), code, "{path}");
        let told: Vec<_> = explained["readings"]
            .as_array()
            .unwrap()
            .iter()
            .map(|reading| (reading["path"].as_str().unwrap(), reading["route"].as_str()))
            .collect();
        assert_eq!(told, readings, "{path}");
        assert_eq!(code.is_some(), explained["limits"] == Value::Array(vec![]), "{path}");
    }
    let told = text(&folder, &["GET", &format!("{host}/v1/..;/a")]);
    for line in [
        "or read as /a, for no route\n",
        "answer       400: some servers see a dot segment in the path, by which it would escape limits\n",
        "route        orders  (/v1/{*rest})\n",
    ] {
        assert!(told.contains(line), "{told}");
    }
}

#[test]
fn each_limit_tells_whom_it_counts_and_by_which_rate() {
    let folder = folder(FILE);
    let limits = |words: &[&str]| {
        let explained = json(&folder, words);
        let limits = explained["limits"].as_array().unwrap().clone();
        (explained["client"].as_str().unwrap().to_owned(), limits)
    };
    let url = "http://api.example.com/v1/orders/7";
    let (client, counted) = limits(&["GET", url, "--ip", "192.0.2.7", "-H", "x-api-key: gold"]);
    assert_eq!(client, "192.0.2.7");
    assert_eq!(
        (&counted[0]["outcome"], &counted[0]["key"], &counted[0]["rate"]),
        (&"counted".into(), &"ip=192.0.2.7".into(), &"5/10s".into())
    );
    let key = counted[1]["key"].as_str().unwrap();
    assert!(key.contains("header:x-api-key=sha256/") && key.ends_with(",9:path:id=7"), "{key}");
    assert!(!key.contains("gold"), "{key}");
    assert_eq!((&counted[1]["rate"], &counted[1]["rate_from"]), (&"100/min".into(), &"overrides".into()));
    // Behind a proxy that is trusted.
    let (client, counted) = limits(&[
        "GET",
        url,
        "--ip",
        "10.1.1.1",
        "-H",
        "X-Forwarded-For: 203.0.113.9",
        "-H",
        "x-api-key: tin",
    ]);
    assert_eq!((client.as_str(), &counted[0]["outcome"]), ("203.0.113.9", &"exempt".into()));
    assert_eq!(counted[0]["exempted_by"], "203.0.113.0/24");
    // A key may be a credential: it is named as its bucket would be.
    let (_, counted) = limits(&["GET", url, "-H", "x-api-key: platinum"]);
    assert_eq!((&counted[0]["exempted_by"], &counted[1]["outcome"]), (&Value::Null, &"exempt".into()));
    let entry = counted[1]["exempted_by"].as_str().unwrap();
    assert!(entry.contains("header:x-api-key=sha256/") && entry.ends_with(",9:path:id=7"), "{entry}");
    assert!(!entry.contains("platinum"), "{entry}");
    let told = text(&folder, &["GET", url, "-H", "x-api-key: platinum"]);
    assert!(told.contains(&format!("no: exempt by `{entry}`")), "{told}");
    assert_eq!((&counted[1]["rate"], &counted[1]["rate_from"]), (&"10/min".into(), &"limit".into()));
    let (_, counted) = limits(&["GET", url]);
    assert_eq!((&counted[1]["outcome"], &counted[1]["missing"]), (&"refused".into(), &"deny".into()));
    assert!(counted[1]["reason"].as_str().unwrap().contains("per-key"), "{counted:?}");
    let (_, counted) = limits(&["GET", "/v1/a?user=alice"]);
    assert_eq!(
        (&counted[0]["key"], &counted[0]["mode"], &counted[0]["wait_ms"]),
        (&"query:user=alice".into(), &"shadow".into(), &250.into())
    );
    let (_, counted) = limits(&["GET", "/v1/a"]);
    assert_eq!(counted[0]["outcome"], "skipped");
    // Two values for a key.
    let (_, counted) = limits(&["GET", "/v1/a?user=a&User=b"]);
    assert_eq!(
        (&counted[0]["key"], &counted[0]["other_keys"]),
        (&"query:user=a".into(), &serde_json::json!(["query:user=b"]))
    );
    let told = text(&folder, &["GET", "/v1/a?user=a&User=b"]);
    assert!(told.contains("query:user=b, as some servers read it\n"), "{told}");
    // More than are counted.
    let (_, counted) = limits(&["GET", "/v1/a?user=a&user=b&user=c&user=d&user=e"]);
    assert_eq!(counted[0]["outcome"], "refused");
}

#[test]
fn wrong_use_ends_with_2_and_the_remedy_and_no_credential() {
    let folder = folder(FILE);
    for (words, told) in [
        (&["GET", "http://"][..], "`http://` is not a valid URL"),
        (&["G T", "/"], "`G T` is not a valid method"),
        (&["GET", "/", "-H", "hunter2"], "a header is not valid"),
        (&["GET", "/", "--ip", "nobody"], "`nobody` is not an IP address"),
        (&["GET", "/", "--config", "none.toml"], "can't read `none.toml`"),
        (&["GET", "/", "--live"], "has no table [admin]"),
        (&["GET", "/", "--live", "--admin", "ftp://a"], "is not a valid admin URL"),
    ] {
        let output = run(&folder, words);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {complaint}");
        assert!(complaint.contains(told) && !complaint.contains("hunter2"), "{complaint}");
        assert!(output.stdout.is_empty());
    }
}

/// Uses `script` of util-linux to get a terminal.
#[cfg(target_os = "linux")]
#[test]
fn colour_is_for_terminals() {
    let folder = folder(FILE);
    let command = concat!(env!("CARGO_BIN_EXE_tollgate"), " explain GET /v1");
    let mut script = Command::new("script");
    script.args(["--quiet", "--command", command, "/dev/null"]).env_remove("NO_COLOR");
    let output = script.current_dir(&folder).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("\u{1b}[1mroute"));
    assert!(!text(&folder, &["GET", "/v1"]).contains('\u{1b}'));
}

/// Explanations agree with the gateway's access log.
#[test]
fn the_gateways_log_agrees() {
    let folder = folder(FILE);
    let log = folder.path().join("access.log");
    let toml = format!("{FILE}[access_log]\npath = \"{}\"\n", log.display());
    let gateway = Gateway::start(&toml);
    let requests = [
        ("GET", "api.example.com", "/v1//orders/7/../8", vec!["x-api-key: gold"]),
        ("GET", "api.example.com", "/v1/orders/7", vec![]),
        ("GET", "other.example.com", "/v1/orders/7?user=alice", vec![]),
        ("PUT", "other.example.com", "/v1/orders/7", vec!["x-version: 2"]),
        ("GET", "other.example.com", "/v1/orders/7", vec!["x-version: 2"]),
        ("GET", "other.example.com", "/v1/orders/7?preview=1", vec![]),
        ("GET", "other.example.com", "/nowhere", vec![]),
        // A servlet would take it for `order`'s.
        ("GET", "api.example.com", "/v1;x/orders;/7", vec!["x-api-key: gold"]),
        ("GET", "api.example.com", "/v1/orders;v/7?user=alice", vec!["x-api-key: gold"]),
        // It would take it for one that goes up.
        ("GET", "api.example.com", "/v1/orders/..;/7", vec![]),
        ("GET", "api.example.com", "/v1/a%2Fb", vec![]),
    ];
    for (at, (method, host, target, headers)) in requests.iter().enumerate() {
        let lines: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
        let mut client = gateway.client();
        client.send(format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n{lines}\r\n").as_bytes());
        client.answer();
        let read = || fs::read_to_string(&log).unwrap_or_default();
        wait_until("the line is written", || read().lines().count() == at + 1);
        let line: Value = serde_json::from_str(read().lines().last().unwrap()).unwrap();

        let url = format!("http://{host}{target}");
        let mut words = vec![*method, &url];
        words.extend(headers.iter().flat_map(|line| ["-H", *line]));
        let explained = json(&folder, &words);
        let route = explained["route"]["name"].as_str().unwrap_or_default();
        assert_eq!(route, line["route"].as_str().unwrap_or_default(), "{words:?}");
        if let Some(status) = explained["rejected"]["status"].as_u64() {
            assert_eq!(line["status"], status, "{words:?}");
        }
        let keys = |value: &Value| -> Vec<(String, String)> {
            let limits = value["limits"].as_array().cloned().unwrap_or_default();
            let keyed =
                limits.iter().filter_map(|limit| Some((limit["limit"].as_str()?, limit["key"].as_str()?)));
            keyed.map(|(limit, key)| (limit.to_owned(), key.to_owned())).collect()
        };
        // A request that a limit's terms refuse isn't counted by the others either.
        let is_refused =
            explained["limits"].as_array().unwrap().iter().any(|limit| limit["outcome"] == "refused");
        if is_refused {
            assert_eq!((line["status"].as_u64(), keys(&line)), (Some(429), vec![]), "{words:?}");
        } else {
            assert_eq!(keys(&explained), keys(&line), "{words:?}");
        }
    }
}

#[test]
fn a_live_look_tells_what_the_store_holds_and_what_the_next_request_gets() {
    let redis = Redis::start();
    for store in [String::new(), redis.store()] {
        let toml = format!(
            "{store}[admin]\nlisten = \"127.0.0.1:0\"\n[limits.l]\nkey = \"ip\"\nrate = \"2/h\"\n\
             [limits.k]\nkey = \"header:x-api-key\"\nrate = \"1/h\"\n[[routes]]\npath = \"/\"\n\
             respond = {{ status = 200 }}\nlimits = [\"l\", \"k\"]\n"
        );
        let folder = folder(&toml);
        let gateway = Gateway::start(&toml);
        let (_, admin) = gateway.greeting().split_once("dashboard: ").unwrap();
        let admin = admin.lines().next().unwrap().to_owned();
        let live = |key: &str| {
            let header = format!("x-api-key: {key}");
            json(&folder, &["GET", "/", "-H", &header, "--live", "--admin", &admin])
        };
        let ask = |key: &str| gateway.ask(&format!("GET /\nx-api-key: {key}")).status;
        assert_eq!(live("a")["next"]["admitted"], true);
        assert_eq!(ask("a"), 200);
        let full = live("a");
        assert_eq!(full["limits"][0]["live"]["used"], 1);
        assert_eq!(
            (&full["limits"][1]["live"]["remaining"], &full["limits"][1]["live"]["admits"]),
            (&0.into(), &false.into())
        );
        assert!(full["limits"][1]["live"]["retry_after_ms"].as_u64().unwrap() > 3_500_000);
        assert_eq!((&full["next"]["admitted"], &full["next"]["refused_by"][0]), (&false.into(), &"k".into()));
        // A look takes nothing.
        assert_eq!(
            (live("b")["next"]["admitted"] == true, ask("a"), ask("b"), ask("c")),
            (true, 429, 200, 429)
        );
        let set = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(["limits", "set", "l", "9/h", "--admin", &admin])
            .output()
            .unwrap();
        assert!(set.status.success());
        let set = live("c");
        assert_eq!(
            (&set["limits"][0]["rate"], &set["limits"][0]["rate_from"]),
            (&"9/h".into(), &"set".into())
        );
        assert_eq!((set["next"]["admitted"] == true, ask("c")), (true, 200));
        let told = text(&folder, &["GET", "/", "-H", "x-api-key: a", "--live", "--admin", &admin]);
        assert!(
            told.contains("set while the gateways run")
                && told.contains("next request would be refused by k"),
            "{told}"
        );
    }
}

#[test]
fn a_live_look_without_the_store_tells_what_decides_meanwhile() {
    let toml = "[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"redis://127.0.0.1:1\"\n[limits.l]\nkey = \"ip\"\n\
                rate = \"2/h\"\n[limits.k]\nkey = \"ip\"\nrate = \"1/h\"\non_failure = \"deny\"\n[[routes]]\npath = \"/\"\n\
                respond = { status = 200 }\nlimits = [\"l\", \"k\"]\n";
    let folder = folder(toml);
    let gateway = Gateway::start(toml);
    let (_, admin) = gateway.greeting().split_once("dashboard: ").unwrap();
    let told = text(&folder, &["GET", "/", "--live", "--admin", admin.lines().next().unwrap()]);
    assert!(
        told.contains("next request unknown: ") && told.contains("on_failure decides: l local, k deny"),
        "{told}"
    );
}

#[test]
fn what_a_route_requires_is_told_with_the_name_of_a_key_and_the_source_of_its_rate() {
    let keys = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/known-keys.txt");
    let limit = format!(
        "key = \"header:x-api-key\"\nrate = \"5/s\"\nrate_from = \"header:x-quota\"\nmax = 9\n\
         overrides = [{{ key = \"test\", rate = \"7/s\" }}]\nkeys_file = {keys:?}\n"
    );
    let secret = "0123456789abcdef0123456789abcdef";
    let folder = folder(&format!(
        "[server]\ntrusted_proxies = [\"10.0.0.0/8\"]\n[jwt]\nhmac_secret = \"{secret}\"\n\
         [limits.l]\n{limit}[limits.strict]\n{limit}unknown = \"deny\"\n\
         [[routes]]\npath = \"/a\"\nrespond = {{}}\nrequire = \"jwt\"\n\
         [[routes]]\npath = \"/b\"\nrespond = {{}}\nlimits = [\"l\", \"strict\"]\n"
    ));
    let rejected = json(&folder, &["GET", "/a"]);
    assert_eq!(
        (&rejected["rejected"]["status"], &rejected["route"]["requires"]),
        (&401.into(), &"jwt".into())
    );
    assert!(text(&folder, &["GET", "/a", "-H", "authorization: Bearer a.b.c"]).contains("a valid token"));

    let limits = |words: &[&str]| json(&folder, &[&["GET", "/b"], words].concat())["limits"].clone();
    let known = limits(&["-H", "x-api-key: test"]);
    for limit in [0, 1] {
        assert_eq!(
            (&known[limit]["known_as"], &known[limit]["outcome"]),
            (&"shop".into(), &"counted".into())
        );
        assert_eq!((&known[limit]["rate"], &known[limit]["rate_from"]), (&"7/s".into(), &"overrides".into()));
    }
    let quota = ["-H", "x-api-key: test", "-H", "x-quota: 8"];
    let stated = limits(&[&quota[..], &["--ip", "10.0.0.1"]].concat());
    assert_eq!((&stated[0]["rate"], &stated[0]["rate_from"]), (&"8/s".into(), &"request".into()));
    assert_eq!(limits(&quota)[0]["rate"], "7/s", "a field of somebody else");

    let unknown = limits(&["-H", "x-api-key: invented"]);
    assert_eq!((&unknown[0]["key"], &unknown[0]["known_as"]), (&"ip=127.0.0.1".into(), &Value::Null));
    assert_eq!(unknown[1]["reason"], "the key in `header:x-api-key` is not known");
    let told = text(&folder, &["GET", "/b", "-H", "x-api-key: test"]);
    assert!(told.contains(", known as shop\n") && told.contains("it is refused with 401\n"), "{told}");
}

#[test]
fn a_claim_that_a_route_matches_is_compared_with_that_of_the_token() {
    let secret = "0123456789abcdef0123456789abcdef";
    let routes = "[[routes]]\nname = \"pro\"\npath = \"/a\"\nclaims = { plan = \"pro\" }\nrespond = {}\n\
                  [[routes]]\nname = \"free\"\npath = \"/a\"\nrespond = {}\n";
    let known = folder(&format!("[jwt]\nhmac_secret = \"{secret}\"\n{routes}"));
    let bearer = |claims: Value| {
        let key = EncodingKey::from_secret(secret.as_bytes());
        format!("authorization: Bearer {}", encode(&Header::default(), &claims, &key).unwrap())
    };
    let pro = bearer(serde_json::json!({ "plan": ["free", "pro"], "exp": 4_102_444_800_u64 }));
    let told = text(&known, &["GET", "/a", "-H", &pro]);
    assert!(told.contains("pro  (/a jwt:plan=pro)") && !told.contains("doesn't match"), "{told}");
    let free = bearer(serde_json::json!({ "plan": "free", "exp": 4_102_444_800_u64 }));
    let expired = bearer(serde_json::json!({ "plan": "pro", "exp": 1 }));
    for (words, why) in [
        (&["GET", "/a"][..], "pro: claim `plan` doesn't match: the request has no token\n"),
        (&["GET", "/a", "-H", &free], "pro: claim `plan` doesn't match\n"),
        (
            &["GET", "/a", "-H", &expired],
            "pro: claim `plan` doesn't match: the token isn't valid: it has expired (`exp`)\n",
        ),
    ] {
        let told = text(&known, words);
        assert!(told.contains("free  (/a)") && told.contains(why), "{told}");
    }
    // The keys are fetched by a gateway that runs.
    let fetched = folder(&format!("[jwt]\njwks_url = \"http://127.0.0.1:1/\"\n{routes}"));
    let told = text(&fetched, &["GET", "/a", "-H", &pro]);
    assert!(told.contains("503: the token can't be verified now"), "{told}");
    assert!(told.contains("the keys that verify the token haven't been fetched"), "{told}");
    assert!(told.contains("add --live"), "{told}");
}

#[test]
fn what_is_wrong_with_a_token_is_told() {
    let secret = "0123456789abcdef0123456789abcdef";
    let folder = folder(&format!(
        "[jwt]\nhmac_secret = \"{secret}\"\nissuer = \"https://a.test\"\naudience = \"shop\"\n\
         [[routes]]\npath = \"/a\"\nrequire = \"jwt\"\nrespond = {{}}\n"
    ));
    let token = |claims: Value, algorithm, secret: &str| {
        encode(&Header::new(algorithm), &claims, &EncodingKey::from_secret(secret.as_bytes())).unwrap()
    };
    let of = |issuer: &str, audience: &str, expiry: u64| {
        let claims = serde_json::json!({ "iss": issuer, "aud": audience, "exp": expiry });
        token(claims, JwtAlgorithm::HS256, secret)
    };
    let (url, later) = ("https://a.test", 4_102_444_800);
    let claims = serde_json::json!({ "iss": url, "aud": "shop", "exp": later });
    for (token, why) in [
        (of("https://a.test/", "shop", later), "its issuer (`iss`) isn't one of jwt.issuer"),
        (of(url, "other", later), "its audience (`aud`) isn't one of jwt.audience"),
        (of(url, "shop", 1), "it has expired (`exp`)"),
        (
            token(serde_json::json!({ "iss": url, "aud": "shop" }), JwtAlgorithm::HS256, secret),
            "it doesn't say when it expires (`exp`)",
        ),
        (token(claims.clone(), JwtAlgorithm::HS256, &secret.replace('a', "b")), "another key signed it"),
        ("abc".to_owned(), "it is not a JWT, or has an algorithm that isn't supported (`alg`)"),
    ] {
        let told = text(&folder, &["GET", "/a", "-H", &format!("authorization: Bearer {token}")]);
        assert!(told.contains(&format!("401: the token isn't valid: {why}\n")), "{told}");
    }
    let good =
        text(&folder, &["GET", "/a", "-H", &format!("authorization: Bearer {}", of(url, "shop", later))]);
    assert!(!good.contains("401: "), "{good}");
}

#[test]
fn the_key_that_signed_a_token_says_what_is_wrong_with_it() {
    let keys = [
        (b'a', "YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE"),
        (b'b', "YmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmI"),
    ];
    let folder = folder(
        "[jwt]\njwks_file = \"keys.json\"\n[[routes]]\npath = \"/a\"\nrequire = \"jwt\"\nrespond = {}\n",
    );
    let jwk = |key: &str| serde_json::json!({ "kty": "oct", "alg": "HS256", "k": key });
    let jwks = serde_json::json!({ "keys": keys.map(|(_, key)| jwk(key)) });
    fs::write(folder.path().join("keys.json"), jwks.to_string()).unwrap();
    for (byte, _) in keys {
        let key = EncodingKey::from_secret(&[byte; 32]);
        let expired = encode(&Header::default(), &serde_json::json!({ "exp": 1 }), &key).unwrap();
        let told = text(&folder, &["GET", "/a", "-H", &format!("authorization: Bearer {expired}")]);
        assert!(told.contains("the token isn't valid: it has expired (`exp`)"), "{told}");
    }
}
