//! The access log: a line per request. Logging never delays requests.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read, Seek},
    path::Path,
    process::{Command, Stdio},
};

use hyper::Response;
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{
    gateway::Gateway,
    metrics::Metrics,
    redis::Redis,
    signal,
    upstream::{Upstream, whole},
    wait_until,
};

/// A folder, and a configuration that writes its access log there.
fn logging(more: &str) -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.log");
    let toml = format!("[access_log]\npath = \"{}\"\n{more}", path.display());
    (folder, toml)
}

const ANSWER: &str = "[[routes]]\npath = \"/{*rest}\"\nrespond = { status = 200, body = \"in\" }\n";

/// The lines of a log, once there are so many.
fn lines(log: &Path, count: usize) -> Vec<String> {
    let read = || fs::read_to_string(log).unwrap_or_default();
    wait_until("the lines are written", || read().matches('\n').count() >= count);
    let lines: Vec<_> = read().lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), count, "{lines:#?}");
    lines
}

fn objects(folder: &TempDir, count: usize) -> Vec<Value> {
    let lines = lines(&folder.path().join("access.log"), count);
    lines.iter().map(|line| serde_json::from_str(line).expect(line)).collect()
}

#[test]
fn a_line_tells_who_asked_what_and_who_decided_what() {
    let upstream = Upstream::start(|_| async { Response::new(whole("five!")) });
    let redis = Redis::start();
    let (folder, toml) = logging(&format!(
        "{}[server]\ntrusted_proxies = [\"127.0.0.1\"]\n[upstreams.up]\nservers = [\"{}\"]\n\
         [limits.per-key]\nkey = \"header:x-api-key\"\nrate = \"2/h\"\nexempt = [\"gold\"]\n\
         [limits.per-client]\nkey = \"ip\"\nrate = \"100/h\"\nmode = \"shadow\"\n\
         [[routes]]\nname = \"in\"\npath = \"/in\"\nupstream = \"up\"\nlimits = [\"per-key\", \"per-client\"]\n",
        redis.store(),
        upstream.url(),
    ));
    let gateway = Gateway::start(&toml);
    let ask = |key: &str| {
        let fields =
            "x-forwarded-for: 203.0.113.7\nuser-agent: curl/8\nreferer: https://me:secret@a/?b=secret";
        gateway.ask(&format!("GET /in?user=secret\nx-api-key: {key}\n{fields}")).status
    };
    assert_eq!(
        [ask("hunter2"), ask("hunter2"), ask("hunter2"), ask("hunter2"), ask("gold")],
        [200, 200, 429, 429, 200]
    );
    assert_eq!(gateway.get("/nowhere").status, 404);
    let objects = objects(&folder, 6);

    let first = &objects[0];
    for (field, expected) in [
        ("client", "203.0.113.7"),
        ("method", "GET"),
        ("target", "/in?user=*"),
        ("protocol", "HTTP/1.1"),
        ("route", "in"),
        ("user_agent", "curl/8"),
        ("referer", "https://a/?b=*"),
        ("request_id", upstream.last().headers["x-request-id"].to_str().unwrap()),
    ] {
        let object = if field == "request_id" { &objects[4] } else { first };
        assert_eq!(object[field], expected, "{object}");
    }
    assert_eq!((&first["status"], &first["bytes"]), (&200.into(), &5.into()));
    assert_eq!(first["upstream"]["server"], upstream.url()["http://".len()..]);
    let [all, part] =
        [&first["duration_ms"], &first["upstream"]["duration_ms"]].map(|ms| ms.as_f64().unwrap());
    assert!(part > 0.0 && part <= all, "{part} of {all}");
    let time = humantime::parse_rfc3339(first["time"].as_str().unwrap()).unwrap();
    assert!(time.elapsed().unwrap().as_secs() < 60 && first["time"].as_str().unwrap().len() == 24);

    let bucket = redis.keys("tollgate:per-key:*").remove(0);
    let key = bucket.split(['{', '}']).nth(1).unwrap();
    let limits = |object: &Value| {
        let limits = object["limits"].as_array().unwrap();
        let words = limits.iter().map(|limit| {
            let words = ["limit", "decision", "origin"].map(|field| limit[field].as_str().unwrap());
            format!("{} {} {}", words.join(" "), limit["remaining"], limit["key"].as_str().unwrap_or("-"))
        });
        words.collect::<Vec<_>>()
    };
    let shadow = |did: &str, left: u32| format!("per-client {did} shadow {left} ip=203.0.113.7");
    assert_eq!(limits(first), [format!("per-key admitted store 1 {key}"), shadow("admitted", 99)]);
    assert_eq!(limits(&objects[2]), [format!("per-key refused store 0 {key}"), shadow("uncharged", 98)]);
    assert_eq!(limits(&objects[3]), [format!("per-key refused local_refusal 0 {key}")]);
    assert_eq!(limits(&objects[4]), ["per-key exempt terms null -".to_owned(), shadow("admitted", 97)]);
    assert_eq!((&objects[3]["status"], &objects[3]["upstream"]), (&429.into(), &Value::Null));
    assert!(objects[3]["bytes"].as_u64().unwrap() > 100, "{}", objects[3]);
    assert_eq!((&objects[5]["status"], objects[5].get("route")), (&404.into(), None));
    let text = fs::read_to_string(folder.path().join("access.log")).unwrap();
    assert!(!text.contains("secret") && !text.contains("hunter2") && !text.contains("gold"), "{text}");
}

#[test]
fn combined_is_what_others_write_by_that_name() {
    let (folder, toml) = logging("format = \"combined\"\n");
    let gateway = Gateway::start(&(toml + ANSWER));
    gateway.ask("POST /a\"b/%22?c=d\nuser-agent: Mozilla/5.0 \"x\" \\ \u{fc}\nreferer: https://example.com/");
    let line = &lines(&folder.path().join("access.log"), 1)[0];
    let (client, rest) = line.split_once(" - - [").unwrap();
    let (time, rest) = rest.split_once("] ").unwrap();
    assert_eq!(client, "127.0.0.1");
    let agent = r"Mozilla/5.0 \x22x\x22 \x5C \xC3\xBC";
    assert_eq!(rest, format!(r#""POST /a\x22b/%22?c=* HTTP/1.1" 200 2 "https://example.com/" "{agent}""#));
    // 21/Nov/2026:07:45:12 +0000
    let shape: String = time.chars().map(|c| if c.is_ascii_digit() { '9' } else { c }).collect();
    let months = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec";
    assert!(
        months.contains(&time[3..6]) && shape.replace(&time[3..6], "Mon") == "99/Mon/9999:99:99:99 +9999",
        "{time}"
    );
}

#[test]
fn a_line_is_written_when_the_answer_has_ended_or_broken_off() {
    let (piece, upstream) = Upstream::in_two_pieces();
    let (folder, toml) = logging(&crate::forward_all(&upstream.url(), ""));
    let gateway = Gateway::start(&toml);
    let (mut patient, mut leaving) = (gateway.client(), gateway.client());
    piece.send(1).unwrap();
    for client in [&mut patient, &mut leaving] {
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.head().status, 200);
        assert_eq!(client.bytes(10), b"5\r\npiece\r\n");
    }
    assert_eq!(fs::read_to_string(folder.path().join("access.log")).unwrap(), "");
    drop(leaving);
    let left = &objects(&folder, 1)[0];
    assert_eq!((&left["bytes"], &left["broken_off"]), (&5.into(), &true.into()));
    piece.send(3).unwrap();
    assert_eq!(patient.bytes(15), b"5\r\npiece\r\n0\r\n\r\n");
    let whole = &objects(&folder, 2)[1];
    assert_eq!((&whole["bytes"], whole.get("broken_off")), (&10.into(), None));
    assert!(patient.get_with("/", "").status == 200);
}

#[test]
fn an_answer_without_a_body_is_whole() {
    let (folder, toml) = logging("");
    let nothing = "[[routes]]\npath = \"/nothing\"\nrespond = { status = 204, body = \"x\" }\n";
    let empty = "[[routes]]\npath = \"/empty\"\nrespond = { status = 200 }\n";
    let gateway = Gateway::start(&[&toml, ANSWER, nothing, empty].concat());
    for request in ["HEAD /", "GET /nothing", "GET /empty"] {
        gateway.ask(request);
    }
    for object in objects(&folder, 3) {
        assert_eq!((&object["bytes"], object.get("broken_off")), (&0.into(), None), "{object}");
    }
}

#[test]
fn a_client_that_leaves_before_its_answer_is_told_of() {
    let upstream = Upstream::start(|_| std::future::pending());
    let (folder, toml) = logging(&crate::forward_all(&upstream.url(), ""));
    let gateway = Gateway::start(&toml);
    let mut client = gateway.client();
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_until("the upstream has it", || upstream.count() == 1);
    drop(client);
    assert_eq!(objects(&folder, 1)[0]["status"], 499);
}

#[test]
fn what_cannot_be_read_is_logged_and_counted() {
    let (folder, toml) = logging(&format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[server]\nmax_header_bytes = \"8KiB\"\n{ANSWER}"
    ));
    let gateway = Gateway::start(&toml);
    let long = "x".repeat(9_000);
    for (sent, status) in [
        ("\x16\x03\x01\r\n\r\n".to_owned(), 400),
        ("GET /a?key=secret HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n".to_owned(), 400),
        (format!("PUT /b HTTP/1.1\r\nHost: a\r\nX: {long}\r\n\r\n"), 431),
        (format!("GET /{long} HTTP/1.1\r\n\r\n"), 414),
    ] {
        let mut client = gateway.client();
        client.send(sent.as_bytes());
        assert_eq!(client.answer().status, status, "{sent:?}");
    }
    let objects = objects(&folder, 4);
    let told = |object: &Value| {
        let text = |name: &str| object[name].as_str().unwrap().to_owned();
        (
            text("client"),
            [text("method"), text("target"), text("protocol")],
            object["status"].as_u64().unwrap(),
        )
    };
    let expected =
        [(["-"; 3], 400), (["GET", "/a?key=*", "HTTP/1.1"], 400), (["PUT", "/b", "HTTP/1.1"], 431)];
    for (object, (line, status)) in objects.iter().zip(expected) {
        assert_eq!(told(object), ("127.0.0.1".to_owned(), line.map(str::to_owned), status), "{object}");
    }
    assert_eq!(objects[3]["status"], 414);

    let (_, admin) = gateway.greeting().split_once("dashboard: http://").unwrap();
    let metrics = Metrics::scrape(admin.lines().next().unwrap());
    for (reason, count) in
        [("request-malformed", 2.0), ("head-too-large", 1.0), ("target-too-long", 1.0), ("http2", 0.0)]
    {
        let series = format!("tollgate_requests_unreadable_total{{reason=\"{reason}\"}}");
        assert_eq!(metrics.of(&series), count, "{series}");
    }
    assert_eq!(metrics.of("tollgate_requests_total{route=\"\",status=\"4xx\"}"), 4.0);
}

#[test]
fn a_rotation_loses_no_line() {
    let (folder, toml) = logging("");
    let gateway = Gateway::start(&(toml + ANSWER));
    let (log, rotated) = (folder.path().join("access.log"), folder.path().join("access.log.1"));
    let mut client = gateway.client();
    client.get("/1");
    lines(&log, 1);
    fs::rename(&log, &rotated).unwrap();
    client.get("/2");
    lines(&rotated, 2);
    gateway.signal("USR1");
    wait_until("it is opened again", || log.exists());
    client.get("/3");
    assert!(lines(&log, 1)[0].contains("\"/3\""));
    assert_eq!(lines(&rotated, 2).len(), 2);
}

#[test]
fn a_log_whose_folder_has_vanished_goes_on_in_the_old_file() {
    let (folder, toml) = logging("");
    let gateway = Gateway::start(&(toml + ANSWER));
    let mut old = File::open(folder.path().join("access.log")).unwrap();
    folder.close().unwrap();
    gateway.signal("USR1");
    wait_until("the failure is logged", || gateway.log().contains("continues in the old file"));
    assert_eq!(gateway.get("/").status, 200);
    wait_until("the line is written", || {
        let mut text = String::new();
        old.rewind().unwrap();
        old.read_to_string(&mut text).unwrap();
        text.ends_with('\n')
    });
}

#[test]
fn a_reader_who_does_not_read_holds_nobody_up() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let log = format!("[admin]\nlisten = \"127.0.0.1:0\"\n[access_log]\npath = \"{}\"\n", pipe.display());
    let gateway = Gateway::start(&(log + ANSWER));
    let (_, admin) = gateway.greeting().split_once("dashboard: http://").unwrap();
    let admin = admin.lines().next().unwrap();
    let lost = || Metrics::scrape(admin).of("tollgate_access_log_lost_total");
    let mut client = gateway.client();
    let long = "x".repeat(400);
    for _ in 0..100 {
        assert_eq!(client.get(&format!("/{long}")).status, 200);
    }
    assert_eq!(lost(), 0.0);
    // What the pipe, the buffer and the queue hold is less.
    let requests = format!("GET /{long} HTTP/1.1\r\nHost: a\r\n\r\n").repeat(100);
    for _ in 0..100 {
        client.send(requests.as_bytes());
        (0..100).for_each(|_| assert_eq!(client.answer().status, 200));
    }
    assert!((1_000.0..2_000.0).contains(&lost()), "{}", lost());
}

#[test]
fn stdout_has_nothing_but_lines_and_all_of_them_when_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("gateway.toml"), format!("[access_log]\n{ANSWER}")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["--listen", "127.0.0.1:0"]).current_dir(&folder);
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut greeting = String::new();
    let mut stderr = BufReader::new(process.stderr.take().unwrap());
    while !greeting.contains("try: ") {
        assert_ne!(stderr.read_line(&mut greeting).unwrap(), 0, "{greeting}");
    }
    let (_, address) = greeting.split_once("tollgate listens on http://").expect(&greeting);
    let mut client =
        crate::harness::client::Client::connect(address.lines().next().unwrap().parse().unwrap());
    (0..50).for_each(|_| assert_eq!(client.get("/").status, 200));
    drop(client);
    signal("TERM", process.id());
    let mut text = String::new();
    process.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(process.wait().unwrap().success());
    assert!(text.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{text}");
    assert_eq!(text.lines().count(), 50);
}

#[test]
fn a_file_that_cannot_be_written_is_told_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let toml = format!("[access_log]\npath = \"no/such/folder/log\"\n{ANSWER}");
    fs::write(folder.path().join("gateway.toml"), toml).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate")).current_dir(&folder).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(told.contains("can't open `no/such/folder/log`: No such file"), "{told}");
}

#[test]
fn the_signal_ends_no_gateway_that_writes_no_log() {
    let gateway = Gateway::start(ANSWER);
    gateway.signal("USR1");
    assert_eq!(gateway.get("/").status, 200);
}
