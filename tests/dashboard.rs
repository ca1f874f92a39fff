//! The dashboard in a real browser.

mod appearance;

use std::fs;

use sha2::{Digest, Sha256};

use crate::{
    check::certify,
    harness::{
        browser::{Browser, ENTER, TAB},
        gateway::Gateway,
        redis::Redis,
        upstream::Upstream,
        wait_until,
    },
};

/// Returns a configuration with a limit by unhashed API key, an admin port, and more keys of [admin].
fn gateway(rate: &str, more: &str) -> Gateway {
    Gateway::start(&format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n{more}\n[limits.per-key]\nkey = \"header:x-api-key\"\nrate = \"{rate}\"\n\
         plain = true\n[[routes]]\npath = \"/\"\nrespond = {{ status = 200 }}\nlimits = [\"per-key\"]\n"
    ))
}

/// Opens the dashboard of a gateway.
fn page(gateway: &Gateway) -> String {
    let (_, admin) = gateway.greeting().split_once("dashboard: ").unwrap();
    format!("{}/", admin.lines().next().unwrap())
}

fn ask(gateway: &Gateway, key: &str) -> u16 {
    gateway.ask(&format!("GET /\nx-api-key: {key}")).status
}

/// Asserts that the page has no errors and loaded nothing from other hosts.
fn is_clean(browser: &Browser, page: &str) {
    assert_eq!(browser.complaints(), [""; 0]);
    let requests = browser.requests();
    assert!(requests.iter().any(|url| url.ends_with("/events")), "{requests:?}");
    let is_own = |url: &&String| url.starts_with(page) || url.starts_with("data:");
    assert_eq!(requests.iter().find(|url| !is_own(url)), None);
}

#[test]
fn a_refused_key_is_seen_reset_and_given_a_rate() {
    let gateway = gateway("3/h", "");
    for status in [200, 200, 200, 429, 429] {
        assert_eq!(ask(&gateway, "crawler"), status);
    }
    let browser = Browser::open(&page(&gateway));
    browser.wait_for("#refused tbody", "crawler");
    browser.wait_for("#busiest tbody tr", "crawler\tper-key");
    assert!(browser.text("#limits tbody").starts_with("per-key\t3/h\t"));
    browser.wait_for("#link", "live");

    browser.click("#refused tbody button");
    browser.wait_for("#found-used", "3");
    assert_eq!(browser.text("#found-left"), "0");
    browser.click("#reset");
    browser.wait_for("#said", "The count was reset.");
    assert_eq!((browser.text("#found-used"), ask(&gateway, "crawler")), ("0".to_owned(), 200));

    browser.write("#rate", "1/h");
    browser.click("#set button[type=submit]");
    browser.wait_for("#said", "The key's rate is 1/h for 1h.");
    browser.wait_for("#found-rate", "1/h (set)");
    assert_eq!((ask(&gateway, "crawler"), ask(&gateway, "other")), (429, 200));
    browser.click("#unset");
    browser.wait_for("#said", "The file's rate applies again.");
    assert_eq!(ask(&gateway, "crawler"), 200);

    browser.run("document.querySelector('#rate').value = ''");
    browser.write("#rate", "often");
    browser.click("#set button[type=submit]");
    browser.wait_for("#said", "`often` is not a valid rate");
    // What a browser says of that answer is its own.
    let complaints = browser.complaints();
    assert!(complaints.len() == 1 && complaints[0].contains("status of 400"), "{complaints:?}");
    is_clean(&browser, &page(&gateway));
    let log = gateway.log();
    assert!(
        log.contains("limit `per-key`, key `header:x-api-key=crawler`: count reset who=127.0.0.1:"),
        "{log}"
    );
}

/// Holds back the answers about the key `slow`, and notes when it has given one.
const SLOW: &str = "const ask = window.fetch; window.fetch = async (path, how) => { const answer = await ask(path, how); \
    if (!path.includes('keys/slow')) return answer; await new Promise((go) => { window.go = go; }); \
    setTimeout(() => { window.gone = true; }, 100); return answer; }";

#[test]
fn a_slow_answer_is_not_taken_for_another_key() {
    let gateway = gateway("3/h", "");
    let browser = Browser::open(&page(&gateway));
    browser.wait_for("#link", "live");
    browser.run(SLOW);
    for key in ["slow", "quick"] {
        browser.run("document.querySelector('#key').value = ''");
        browser.write("#key", key);
        browser.click("#look-up button");
    }
    browser.wait_for("#found-key", "quick");
    wait_until("the slow answer is there", || browser.run("return window.go !== undefined") == true);
    browser.run("window.go()");
    wait_until("it was given", || browser.run("return window.gone === true") == true);
    assert_eq!(browser.text("#found-key"), "header:x-api-key=quick");
}

#[test]
fn a_page_shows_what_went_on_before_it_was_opened_and_goes_on() {
    let gateway = gateway("1000000/h", "");
    let admin = page(&gateway);
    let upto = |browser: &Browser, least: u64| {
        let all = "return samples.reduce((sum, sample) => sum + sample.all * sample.seconds, 0)";
        wait_until("the page has counted it", || browser.run(all).as_f64().unwrap().round() >= least as f64);
    };
    (0..50).for_each(|_| assert_eq!(ask(&gateway, "early"), 200));
    let browser = Browser::open(&admin);
    browser.wait_for("#routes tbody", "/");
    (0..30).for_each(|_| assert_eq!(ask(&gateway, "late"), 200));
    upto(&browser, 30);
    let another = Browser::open(&admin);
    wait_until("it draws", || {
        another.run("return document.querySelectorAll('#throughput path').length").as_u64() > Some(1)
    });
    upto(&another, 80);
    is_clean(&another, &admin);
}

#[test]
fn who_has_the_token_logs_in_and_out() {
    let gateway = gateway("3/h", "token = \"correct-horse-battery\"");
    let admin = page(&gateway);
    let browser = Browser::open(&admin);
    browser.wait_for("#login", "Log in");
    assert_eq!((browser.text("main").as_str(), browser.focus().as_str()), ("", "token"));
    browser.write("#token", "wrong-horse-battery");
    browser.press(ENTER);
    browser.wait_for("#login-said", "wrong token");
    browser.complaints();
    browser.run("document.querySelector('#token').value = ''");
    browser.write("#token", "correct-horse-battery");
    browser.press(ENTER);
    browser.wait_for("#link", "live");
    assert_eq!(browser.run("return document.cookie"), "");
    is_clean(&browser, &admin);
    browser.run("location.reload()");
    browser.wait_for("#limits tbody", "per-key");
    browser.click("#log-out");
    browser.wait_for("#login", "Log in");
    browser.run("location.reload()");
    browser.wait_for("#login", "Log in");
    assert_eq!(browser.text("main"), "");
    gateway.assert_not_logged("horse");
}

#[test]
fn keys_alone_suffice() {
    let gateway = gateway("3/h", "");
    assert_eq!(ask(&gateway, "crawler"), 200);
    let browser = Browser::open(&page(&gateway));
    browser.wait_for("#busiest tbody", "crawler");
    browser.press(TAB);
    assert_eq!(browser.run("return document.activeElement.className"), "skip");
    let ring = "return getComputedStyle(document.activeElement).outlineStyle";
    assert_eq!(browser.run(ring), "solid", "the focus is seen");
    browser.press(ENTER);
    browser.press(TAB);
    // From there on, since the skip.
    wait_until("the focus is on the key", || {
        if browser.focus() != "key" {
            browser.press(TAB);
        }
        browser.focus() == "key"
    });
    browser.press(&format!("crawler{ENTER}"));
    browser.wait_for("#found-used", "1");
    wait_until("the focus is on what was found", || browser.focus() == "found");
    browser.press(&format!("{TAB}9/h{TAB}{TAB}{ENTER}"));
    browser.wait_for("#found-rate", "9/h (set)");
    browser.press(&format!("{TAB}{TAB}{ENTER}"));
    browser.wait_for("#said", "The count was reset.");
    // The table's rows stay while one has the focus, and a chart tells its values.
    browser.run("document.querySelector('#busiest button').focus()");
    browser.press(ENTER);
    browser.wait_for("#found-key", "header:x-api-key=crawler");
    wait_until("it draws", || {
        browser.run("return document.querySelectorAll('#throughput path').length") != 0
    });
    browser.run("document.querySelector('#throughput svg').focus()");
    browser.press("\u{e012}");
    let label = "return document.querySelector('#throughput svg').getAttribute('aria-label')";
    wait_until("the chart tells", || {
        browser.run(label).as_str().unwrap().starts_with("Requests per second at ")
    });
    let unlabelled = "return [...document.querySelectorAll('input:not([hidden]), select')]\
                      .filter((field) => field.labels.length === 0).map((field) => field.id)";
    assert_eq!(browser.run(unlabelled), serde_json::json!([]));
    let headless = "return document.querySelectorAll('th:not([scope])').length";
    assert_eq!(browser.run(headless), 0);
}

#[test]
fn the_name_of_a_key_is_no_script() {
    let gateway = gateway("1/h", "");
    let hostile = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>";
    for status in [200, 429] {
        assert_eq!(ask(&gateway, &hostile[..60]), status);
        assert_eq!(ask(&gateway, "</th><script src=//evil.example/x.js>"), status);
    }
    let browser = Browser::open(&page(&gateway));
    browser.wait_for("#refused tbody", "<img src=x onerror=");
    browser.wait_for("#refused tbody", "<script src=//evil.example/x.js>");
    browser.click("#refused tbody button");
    browser.wait_for("#found-left", "0");
    assert_eq!(
        browser.run("return [document.title, document.querySelectorAll('img, main script').length]"),
        serde_json::json!(["Tollgate", 0])
    );
    is_clean(&browser, &page(&gateway));
    // And were it one, it wouldn't run.
    browser.run("const s = document.createElement('script'); s.textContent = \"document.title = 'owned'\"; document.body.append(s)");
    assert_eq!(browser.run("return document.title"), "Tollgate");
    assert!(browser.complaints().iter().any(|told| told.contains("Content Security Policy")));
}

#[test]
fn exempt_requests_are_not_mixed_with_skipped_ones() {
    let gateway = Gateway::start(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[limits.l]\nkey = \"header:x-api-key\"\nrate = \"5/h\"\nmissing = \"skip\"\nexempt = [\"gold\"]\n\
         [[routes]]\npath = \"/\"\nrespond = { status = 200 }\nlimits = [\"l\"]\n",
    );
    let browser = Browser::open(&page(&gateway));
    browser.wait_for("#limits tbody", "l");
    let value = |title: &str| {
        let script =
            format!("return document.querySelector('#limits td[data-title=\"{title}\"]').textContent");
        browser.run(&script).as_str().unwrap().to_owned()
    };
    wait_until("requests without the key are skipped, and nothing is exempt", || {
        assert_eq!(gateway.get("/").status, 200);
        let (exempt, skipped) = (value("exempt"), value("skipped"));
        assert_eq!(exempt, "0");
        skipped != "0"
    });
    wait_until("requests with the key are exempt", || {
        assert_eq!(ask(&gateway, "gold"), 200);
        value("exempt") != "0"
    });
}

#[test]
fn problems_are_at_the_top_and_go_away() {
    let redis = Redis::away();
    let gateway = Gateway::start(&format!(
        "{}[admin]\nlisten = \"127.0.0.1:0\"\n[upstreams.orders]\nservers = [\"http://127.0.0.1:1\"]\n\
         health = {{ path = \"/\", interval = \"100ms\", fall = 1, rise = 1 }}\n[limits.l]\nkey = \"ip\"\nrate = \"5/h\"\n\
         [[routes]]\npath = \"/\"\nrespond = {{ status = 200 }}\nlimits = [\"l\"]\n",
        redis.store()
    ));
    let browser = Browser::open(&page(&gateway));
    browser.wait_for("#problems", "The store is down");
    browser.wait_for("#problems", "Upstream orders: All servers are down");
    browser.wait_for("#overrides .empty", "Not known: ");
    let toml = fs::read_to_string(gateway.folder().join("gateway.toml")).unwrap();
    gateway.reload("nonsense");
    browser.wait_for("#problems", "The last reload failed");
    gateway.reload(
        &toml.replace(
            "127.0.0.1:1\"",
            &format!("{}\"", Upstream::hello().url().trim_start_matches("http://")),
        ),
    );
    let mut redis = redis;
    redis.restart();
    let hidden = "return document.querySelector('#problems').textContent";
    wait_until("the store is up, and the reload was good", || {
        let problems = browser.run(hidden).as_str().unwrap().to_owned();
        !problems.contains("store is down") && !problems.contains("reload failed")
    });
    browser.wait_for("#overrides .empty", "No key has a rate of its own");
    let about = browser.text("#about");
    let hostname = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert!(about.starts_with(&format!("{} (process {})", hostname.trim(), gateway.process())), "{about}");
    assert!(about.contains(concat!(" · version ", env!("CARGO_PKG_VERSION"), " · up 0 min")), "{about}");
}

#[test]
fn certificates_that_have_expired_are_a_problem_until_they_are_renewed() {
    let folder = tempfile::tempdir().unwrap();
    certify(folder.path(), 2021);
    let file = |name: &str| folder.path().join(name).display().to_string();
    let toml = format!(
        "[server]\ntls = {{ certs = [{{ cert = {:?}, key = {:?} }}] }}\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [[routes]]\npath = \"/\"\nrespond = {{ status = 200 }}\n",
        file("a.pem"),
        file("a.key")
    );
    let gateway = Gateway::start(&toml);
    let browser = Browser::open(&page(&gateway));
    browser.wait_for("#problems", "expired on 2021-01-01");
    certify(folder.path(), 2999);
    gateway.reload(&toml);
    wait_until("the problem is gone", || {
        browser.run("return document.querySelector('#problems').hidden") == serde_json::json!(true)
    });
}

#[test]
fn tables_show_delays_and_overrides_are_sorted_and_searched() {
    let gateway = gateway("3/h", "");
    let set = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["limits", "set", "per-key", "whale", "2/h", "--admin", page(&gateway).trim_end_matches('/')])
        .output()
        .unwrap();
    assert!(set.status.success(), "{set:?}");
    for (key, requests) in [("ant", 5), ("bee", 9), ("whale", 4)] {
        (0..requests).for_each(|_| _ = ask(&gateway, key));
    }
    let browser = Browser::open(&page(&gateway));
    browser.wait_for("#overrides tbody", "header:x-api-key=whale\tper-key\t2/h\tset");
    let first =
        |table: &str| browser.text(&format!("#{table} tbody tr")).split('\t').next().unwrap().to_owned();
    wait_until("the delays are shown", || {
        let cells = "return [...document.querySelectorAll('#refused td[data-title=\"retry after\"]')].map((cell) => cell.textContent)";
        let delays = browser.run(cells);
        let delays = delays.as_array().unwrap();
        delays.len() == 3 && delays.iter().all(|delay| delay.as_str().unwrap().ends_with(" min"))
    });
    assert_eq!(first("busiest"), "bee");
    browser.click("#busiest thead button");
    wait_until("sorted by key", || first("busiest") == "ant");
    browser.click("#busiest thead button");
    wait_until("the other way around", || first("busiest") == "whale");
    assert_eq!(
        browser.run("return document.querySelector('#busiest th').getAttribute('aria-sort')"),
        "descending"
    );
    browser.write("#search", "BEE");
    wait_until("only the bee is left", || browser.text("#busiest tbody").lines().count() == 1);
    assert_eq!(first("busiest"), "bee");
    is_clean(&browser, &page(&gateway));
}

#[test]
fn keys_of_a_file_are_shown_by_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys.txt");
    let hash: String = Sha256::digest("gold").iter().map(|byte| format!("{byte:02x}")).collect();
    fs::write(&file, format!("{hash} partner\n")).unwrap();
    let gateway = Gateway::start(&format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[limits.l]\nkey = \"header:x-api-key\"\nrate = \"1/h\"\nkeys_file = {file:?}\n\
         [[routes]]\npath = \"/\"\nrespond = {{ status = 200 }}\nlimits = [\"l\"]\n"
    ));
    assert_eq!(["gold", "gold", "lead"].map(|key| ask(&gateway, key)), [200, 429, 200]);
    let browser = Browser::open(&page(&gateway));
    browser.wait_for("#busiest tbody", "partner\tl");
    browser.wait_for("#busiest tbody", "127.0.0.1\tl");
    // It can still be looked up.
    browser.click("#refused tbody button");
    browser.wait_for("#found-used", "1");
    is_clean(&browser, &page(&gateway));
}

#[test]
fn bans_are_shown_and_lifted() {
    let gateway = gateway("1/h", "");
    let toml = fs::read_to_string(gateway.folder().join("gateway.toml")).unwrap();
    gateway
        .reload(&toml.replace("plain = true\n", "plain = true\nban = { after = \"2/h\", for = \"1d\" }\n"));
    let browser = Browser::open(&page(&gateway));
    browser.wait_for("#bans .empty", "No ban of this gateway lasts.");
    for status in [200, 429, 429] {
        assert_eq!(ask(&gateway, "<b>mallory</b>"), status);
    }
    browser.wait_for("#bans tbody", "<b>mallory</b>\tper-key\t");
    browser.click("#bans tbody button");
    browser.wait_for("#found-key", "header:x-api-key=");
    browser.click("#reset");
    browser.wait_for("#said", "The count was reset.");
    browser.wait_for("#bans .empty", "No ban of this gateway lasts.");
    assert_eq!(ask(&gateway, "<b>mallory</b>"), 200);
    is_clean(&browser, &page(&gateway));
}
