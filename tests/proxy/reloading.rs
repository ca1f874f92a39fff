//! A changed configuration takes effect while the gateway runs, however the reload is triggered, without affecting clients.

use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    thread::{self, sleep},
    time::{Duration, Instant},
};

use crate::harness::{
    client::{Answer, Client},
    gateway::Gateway,
    load::Load,
    redis::{Redis, tls::Certificates},
    upstream::Upstream,
    wait_until,
};

/// A gateway checks its files every five seconds, even without a signal.
const SOON: Duration = Duration::from_secs(4);
const ADMIN: &str = "[admin]\nlisten = \"127.0.0.1:0\"\n";

/// Returns a configuration with a single route that responds with this.
fn saying(word: &str) -> String {
    format!("{ADMIN}[[routes]]\npath = \"/\"\nrespond = {{ status = 200, body = \"{word}\" }}\n")
}

/// A gateway that tells all of what it does.
fn talkative(toml: &str) -> Gateway {
    Gateway::start_with(toml, &["run", "--listen", "127.0.0.1:0"], &[("TOLLGATE_LOG", "debug")])
}

/// Waits until a route says this, which is soon: sooner than a gateway looks at its files by itself.
fn wait_for_word(gateway: &Gateway, word: &str) {
    let since = Instant::now();
    wait_for_word_at_last(gateway, word);
    assert!(since.elapsed() < SOON, "it took {:?} to say {word}", since.elapsed());
}

fn wait_for_word_at_last(gateway: &Gateway, word: &str) {
    wait_until(&format!("it says {word}"), || gateway.get("/").text() == word);
}

/// How often it has read a configuration again, good or bad.
fn reloads(gateway: &Gateway) -> usize {
    gateway.log().matches("reloaded `").count() + gateway.log().matches("the running one stays").count()
}

/// Asserts how often it has read a configuration again. It logs a little later than it does.
fn assert_reloads(gateway: &Gateway, expected: usize) {
    wait_until("all is logged", || reloads(gateway) >= expected);
    assert_eq!(reloads(gateway), expected, "{}", gateway.log());
}

/// Waits until it has logged this.
fn wait_for_line(gateway: &Gateway, part: &str) {
    wait_until(&format!("it logs {part}"), || gateway.log().contains(part));
}

/// Waits until the gateway has looked at its files once more, and found what it knew.
fn wait_for_look(gateway: &Gateway) {
    let looks = || gateway.log().matches("are unchanged").count();
    // One may be about to be told of that began before.
    let before = looks();
    wait_until("it looks at the files", || looks() > before + 1);
}

/// Asks the admin port.
fn operate(gateway: &Gateway, request: &str, fields: &str) -> Answer {
    let (_, address) = gateway.greeting().split_once("dashboard: http://").unwrap();
    let mut client = Client::connect(address.lines().next().unwrap().parse().unwrap());
    client.send(
        format!("{request} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n{fields}\r\n").as_bytes(),
    );
    client.answer()
}

const JSON: &str = "Content-Type: application/json\r\n";

#[test]
fn a_changed_file_is_read_again_however_it_was_written() {
    let gateway = Gateway::start(&saying("one"));
    let file = gateway.folder().join("gateway.toml");
    assert_eq!(gateway.get("/").text(), "one");

    fs::write(&file, saying("written")).unwrap();
    wait_for_word(&gateway, "written");

    let new = gateway.folder().join("gateway.toml.tmp.1234");
    fs::write(&new, saying("renamed")).unwrap();
    fs::rename(&new, &file).unwrap();
    wait_for_word(&gateway, "renamed");

    // As vim does it.
    fs::rename(&file, gateway.folder().join("gateway.toml~")).unwrap();
    fs::write(&file, saying("with a backup")).unwrap();
    fs::remove_file(gateway.folder().join("gateway.toml~")).unwrap();
    wait_for_word(&gateway, "with a backup");
    assert_reloads(&gateway, 3);
    wait_for_line(&gateway, "by=\"a change of `gateway.toml`\"");
}

/// Writes a version as Kubernetes mounts a ConfigMap: the files are links through one link, which is swapped.
fn mount(folder: &Path, version: &str, toml: &str) {
    fs::create_dir(folder.join(version)).unwrap();
    fs::write(folder.join(version).join("gateway.toml"), toml).unwrap();
    symlink(version, folder.join("..data_tmp")).unwrap();
    fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
}

#[test]
fn a_swapped_link_on_the_way_to_the_file_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    mount(folder.path(), "..1", &saying("one"));
    let file = folder.path().join("gateway.toml");
    symlink("..data/gateway.toml", &file).unwrap();
    let arguments = ["run", "--listen", "127.0.0.1:0", "--config", file.to_str().unwrap()];
    let gateway = Gateway::start_with("", &arguments, &[]);
    for (version, before, word) in [("..2", "..1", "two"), ("..3", "..2", "three")] {
        mount(folder.path(), version, &saying(word));
        fs::remove_dir_all(folder.path().join(before)).unwrap();
        wait_for_word(&gateway, word);
    }
    assert_reloads(&gateway, 2);
}

#[test]
fn a_folder_in_place_of_the_files_is_noticed() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    for (folder, word) in [("conf", "one"), ("next", "two")] {
        fs::create_dir(at(folder)).unwrap();
        fs::write(at(folder).join("gateway.toml"), saying(word)).unwrap();
    }
    let file = at("conf/gateway.toml");
    let arguments = ["run", "--listen", "127.0.0.1:0", "--config", file.to_str().unwrap()];
    let gateway = Gateway::start_with("", &arguments, &[]);
    fs::rename(at("conf"), at("before")).unwrap();
    fs::rename(at("next"), at("conf")).unwrap();
    wait_for_word_at_last(&gateway, "two");
    fs::write(&file, saying("three")).unwrap();
    wait_for_word(&gateway, "three");
}

#[test]
fn what_is_written_again_unchanged_is_no_change() {
    let gateway = talkative(&saying("one"));
    let file = gateway.folder().join("gateway.toml");
    fs::write(&file, saying("one")).unwrap();
    wait_for_look(&gateway);
    fs::File::open(&file).unwrap().set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    wait_for_look(&gateway);
    // Emptied files are about to be written.
    fs::write(&file, "").unwrap();
    wait_for_look(&gateway);
    assert_eq!((reloads(&gateway), gateway.get("/").text().as_str()), (0, "one"), "{}", gateway.log());
    fs::write(&file, saying("two")).unwrap();
    wait_for_word(&gateway, "two");
}

/// Only a file that has become empty may be about to be written. Changes wait for it, which the log says.
#[test]
fn a_file_that_is_empty_in_use_holds_up_no_change() {
    let referring = |word: &str| saying(&format!("{word}${{file:word.txt:-}}"));
    let gateway = talkative(&saying("one"));
    let at = |name: &str| gateway.folder().join(name);
    fs::write(at("word.txt"), "").unwrap();
    fs::write(at("gateway.toml"), referring("two")).unwrap();
    wait_for_word_at_last(&gateway, "two");
    fs::write(at("gateway.toml"), referring("three ")).unwrap();
    wait_for_word_at_last(&gateway, "three ");

    fs::write(at("word.txt"), "words").unwrap();
    wait_for_word_at_last(&gateway, "three words");
    assert_reloads(&gateway, 3);
    fs::write(at("word.txt"), "").unwrap();
    wait_for_line(&gateway, "`word.txt` became empty");
    fs::write(at("new.toml"), referring("four")).unwrap();
    fs::rename(at("new.toml"), at("gateway.toml")).unwrap();
    wait_for_look(&gateway);
    assert_eq!((reloads(&gateway), gateway.get("/").text().as_str()), (3, "three words"));
    // Once for each state, not at each look.
    assert_eq!(gateway.log().matches("became empty").count(), 2, "{}", gateway.log());
    // An operator takes it as it is.
    gateway.signal("HUP");
    wait_for_word_at_last(&gateway, "four");
    fs::write(at("gateway.toml"), referring("five")).unwrap();
    wait_for_word_at_last(&gateway, "five");
}

#[test]
fn a_wrong_file_changes_nothing_and_is_told_once() {
    let gateway = talkative(&saying("one"));
    let file = gateway.folder().join("gateway.toml");
    let wrong = saying("two").replace("status = 200", "status = 2000");
    fs::write(&file, &wrong).unwrap();
    wait_for_line(&gateway, "the running one stays");
    fs::write(&file, &wrong).unwrap();
    wait_for_look(&gateway);
    assert_eq!(gateway.log().matches("`2000` is out of range").count(), 1, "{}", gateway.log());
    assert_eq!((reloads(&gateway), gateway.get("/").text().as_str()), (1, "one"));
    let page = operate(&gateway, "GET /metrics", "").text();
    assert!(page.contains("tollgate_reloads_total{result=\"bad\"} 1"), "{page}");

    let shown = operate(&gateway, "GET /api/config", "").json();
    assert_eq!(shown["config"]["routes"][0]["respond"]["body"], "one");
    assert_eq!(shown["last_reload"]["good"], false);
    assert!(shown["last_reload"]["faults"].as_str().unwrap().contains("`2000` is out of range"), "{shown}");

    fs::write(&file, saying("three")).unwrap();
    wait_for_word(&gateway, "three");
    // A configuration is in use before its reload is noted.
    let show = || operate(&gateway, "GET /api/config", "").json();
    wait_until("the reload is noted", || show()["last_reload"]["good"] == true);
    let shown = show();
    assert_eq!(shown["config"]["routes"][0]["respond"]["body"], "three");
    assert_eq!(shown["file"], "gateway.toml");
}

#[test]
fn a_file_that_the_configuration_names_is_one_of_its_own() {
    let key = "k\":\"c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA\"";
    let jwks =
        |id: &str| format!("{{\"keys\":[{{\"kty\":\"oct\",\"kid\":\"{id}\",\"alg\":\"HS256\",\"{key}}}]}}");
    let gateway = Gateway::start(&saying("one"));
    let at = |name: &str| gateway.folder().join(name);
    // It is named before it is there.
    fs::create_dir(at("keys")).unwrap();
    fs::write(at("gateway.toml"), saying("two") + "[jwt]\njwks_file = \"keys/jwks.json\"\n").unwrap();
    wait_for_line(&gateway, "the running one stays");
    fs::write(at("keys/jwks.json"), jwks("first")).unwrap();
    wait_for_word(&gateway, "two");
    wait_for_line(&gateway, "by=\"a change of `keys/jwks.json`\"");
    wait_for_line(&gateway, "`jwt` changed");
    let changes = || gateway.log().matches("`jwt` changed").count();
    let before = changes();
    fs::write(at("keys/jwks.json"), jwks("second")).unwrap();
    wait_until("the keys are read again", || changes() > before);
}

#[test]
fn certificates_are_taken_as_they_are_renewed() {
    let folder = tempfile::tempdir().unwrap();
    let install = || {
        let certificates = Certificates::for_server(&["127.0.0.1"]);
        for name in ["server.pem", "server.key"] {
            fs::copy(certificates.path(name), folder.path().join(name)).unwrap();
        }
    };
    install();
    let [cert, key] = ["server.pem", "server.key"].map(|name| folder.path().join(name));
    let tls = format!("[server]\ntls = {{ certs = [{{ cert = {cert:?}, key = {key:?} }}] }}\n");
    let gateway = Gateway::start(&(tls + &saying("one")));
    // It sees both files together, however long the machine takes to write them.
    gateway.pause();
    install();
    gateway.resume();
    wait_for_line(&gateway, "`server.tls` changed");
    assert_reloads(&gateway, 1);
}

#[test]
fn operators_reload_and_are_told_what_changes() {
    let limited = |rate: &str| {
        format!(
            "{ADMIN}[limits.per-client]\nkey = \"ip\"\nrate = \"{rate}\"\n[[routes]]\npath = \"/\"\nrespond = {{ status = 200 }}\n\
             limits = [\"per-client\"]\n"
        )
    };
    let gateway = Gateway::start(&limited("100/h"));
    let file = gateway.folder().join("gateway.toml");
    let reload = |fields: &str| operate(&gateway, "POST /api/reload", fields);
    assert!(gateway.get("/").header("ratelimit").unwrap().starts_with("\"per-client\";r=99;"));
    assert_eq!(reload(JSON).json(), serde_json::json!({ "changes": [] }));

    let told = "limit `per-client` 100/h → 50/h: counts kept";
    fs::write(&file, limited("50/h")).unwrap();
    let answer = reload(JSON);
    // Who notices the file's change first is told of it.
    if answer.json()["changes"][0] != told {
        wait_for_line(&gateway, told);
    }
    assert!(gateway.get("/").header("ratelimit").unwrap().starts_with("\"per-client\";r=48;"));
    wait_for_line(&gateway, "by=\"the operator at 127.0.0.1:");

    fs::write(&file, limited("50/parsec")).unwrap();
    let answer = reload(JSON);
    assert_eq!((answer.status, answer.header("content-type")), (422, Some("application/problem+json")));
    let problem = answer.json();
    let fault = &problem["faults"][0];
    assert_eq!(
        (&fault["severity"], &fault["line"], &fault["column"]),
        (&"error".into(), &5.into(), &8.into())
    );
    assert!(fault["message"].as_str().unwrap().contains("50/parsec"), "{problem}");
    assert!(!fault["help"][0].as_str().unwrap().is_empty());
    assert!(gateway.get("/").header("ratelimit").unwrap().starts_with("\"per-client\";r=47;"));

    // No form and no other site can do it.
    assert_eq!(reload("").status, 415);
    assert_eq!(reload(&format!("{JSON}Origin: http://evil.example\r\n")).status, 403);
}

#[test]
fn operators_who_reload_together_take_turns() {
    let gateway = Gateway::start(&saying("one"));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..4 {
                    gateway.signal("HUP");
                    assert_eq!(operate(&gateway, "POST /api/reload", JSON).status, 200);
                }
            });
        }
    });
    assert_eq!(gateway.get("/").text(), "one");
    wait_until("all are logged", || gateway.log().matches("by=\"the operator at").count() == 32);
}

#[test]
fn reloads_under_load_lose_no_request_and_no_count() {
    const CLIENTS: usize = 4;
    /// So that they send 200 requests a second together.
    const PAUSE: Duration = Duration::from_millis(20);
    let (redis, upstream) = (Redis::start(), Upstream::hello());
    let config = |permits: usize, timeout: usize| {
        format!(
            "{}[upstreams.api]\nservers = \"{}\"\ntimeouts = {{ response = \"{timeout}s\" }}\n\
             [limits.l]\nkey = \"ip\"\nrate = \"{permits}/h\"\n\
             [[routes]]\npath = \"/{{*rest}}\"\nupstream = \"api\"\nlimits = [\"l\"]\n",
            redis.store(),
            upstream.url()
        )
    };
    let gateway = Gateway::start(&config(100_000, 30));
    let file = gateway.folder().join("gateway.toml");
    let load = Load::start(&gateway, CLIENTS, || {
        sleep(PAUSE);
        "/".to_owned()
    });
    load.wait_for(20);
    let mut asked = 0;
    for (permits, timeout) in [(90_000, 20), (80_000, 30), (110_000, 40), (70_000, 50), (60_000, 60)] {
        let next = gateway.folder().join("next");
        fs::write(&next, config(permits, timeout)).unwrap();
        fs::rename(&next, &file).unwrap();
        wait_until("it holds", || {
            asked += 1;
            gateway.get("/").header("ratelimit-policy") == Some(&format!("\"l\";q={permits};w=3600"))
        });
        load.wait_for(20);
    }
    let answers = load.end();
    assert!(answers.iter().all(|answer| answer.status == 200));
    assert_reloads(&gateway, 5);
    let left = 60_000 - answers.len() - asked - 1;
    let state = gateway.get("/").header("ratelimit").unwrap_or_default().to_owned();
    assert!(state.starts_with(&format!("\"l\";r={left};")), "{state}, not {left}");
    assert_eq!(upstream.count(), answers.len() + asked + 1);
}

#[test]
fn what_is_shown_of_the_configuration_is_no_secret() {
    let redis = Redis::start();
    let store = redis.store().replace("redis://", "redis://me:hunter2-url@");
    redis.command(&["ACL", "SETUSER", "me", "on", ">hunter2-url", "~*", "&*", "+@all"]);
    let secret = "hunter2-secret-secret-secret-secret-32";
    let toml = format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\ntoken = \"hunter2-token-token\"\n{store}\
         [jwt]\nhmac_secret = \"{secret}\"\nissuer = \"${{ISSUER}}\"\n\
         [upstreams.token-service]\nservers = \"http://127.0.0.1:9\"\n\
         [limits.l]\nkey = \"header:x-k\"\nrate = \"5/h\"\nexempt = [\"hunter2-exempt\", \"10.0.0.0/8\"]\n\
         overrides = [{{ key = \"hunter2-override\", rate = \"9/h\" }}]\n\
         [[routes]]\npath = \"/\"\nupstream = \"token-service\"\nlimits = [\"l\", {{ name = \"m\", key = \"query:k\", rate = \"5/h\", exempt = [\"hunter2-inline\"] }}]\n\
         headers = {{ x-proof = \"hunter2-header\" }}\nquery = {{ proof = \"hunter2-query\" }}\n\
         request_headers = {{ set = {{ authorization = \"Bearer hunter2-set\" }}, add = {{ x-key = \"hunter2-add\" }}, remove = [\"x-visible\"] }}\n\
         [[routes]]\npath = \"/b\"\nrespond = {{ status = 200, body = \"${{BODY}} $${{NAME}}\", headers = {{ x-public = \"visible\" }} }}\n\
         [decisions]\nlisten = \"127.0.0.1:0\"\n\
         [[descriptors]]\ndomain = \"shop\"\nmatch = {{ api_key = \"hunter2-match\" }}\nlimits = [\"of-shop\"]\n\
         [limits.of-shop]\nkey = \"descriptor:api_key\"\nrate = \"5/h\"\n"
    );
    let variables = [("ISSUER", "hunter2-issuer"), ("BODY", "hunter2-body")];
    let gateway = Gateway::start_with(&toml, &["run", "--listen", "127.0.0.1:0"], &variables);
    let bearer = "Authorization: Bearer hunter2-token-token\r\n";
    assert_eq!(operate(&gateway, "GET /api/config", "").status, 401);
    for reload in [false, true] {
        if reload {
            assert_eq!(operate(&gateway, "POST /api/reload", &format!("{JSON}{bearer}")).status, 200);
        }
        let answer = operate(&gateway, "GET /api/config", bearer);
        assert_eq!(answer.status, 200);
        assert!(!answer.text().contains("hunter2"), "{}", answer.text());
        let config = &answer.json()["config"];
        for (pointer, expected) in [
            ("/admin/token", "******"),
            ("/jwt/issuer", "${ISSUER}"),
            ("/upstreams/token-service/servers", "http://127.0.0.1:9"),
            ("/limits/l/exempt/1", "10.0.0.0/8"),
            ("/limits/l/overrides/0/key", "******"),
            ("/limits/l/overrides/0/rate", "9/h"),
            ("/routes/0/request_headers/set/authorization", "******"),
            ("/routes/0/request_headers/remove/0", "x-visible"),
            ("/routes/1/respond/body", "${BODY} $${NAME}"),
            ("/routes/1/respond/headers/x-public", "visible"),
            ("/descriptors/0/domain", "shop"),
            ("/descriptors/0/match/api_key", "******"),
            ("/server/listen", "127.0.0.1:0"),
        ] {
            assert_eq!(
                config.pointer(pointer).and_then(|value| value.as_str()),
                Some(expected),
                "{pointer}: {config:#}"
            );
        }
    }
    gateway.assert_not_logged("hunter2");
}
