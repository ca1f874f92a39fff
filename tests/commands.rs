//! The commands and signals as operators use them, and the shipped gateway.toml.

use std::{
    fs,
    net::TcpListener,
    process::{Command, Output, Stdio},
};

use tempfile::TempDir;

use crate::harness::{gateway::Gateway, redis::Redis, upstream::Upstream, wait_until, wire::WireUpstream};

const SHIPPED: &str = include_str!("../gateway.toml");
const GOOD: &str = "[[routes]]\npath = \"/\"\nrespond = { status = 200 }\n";
const BAD: &str = "[[routes]]\npath = \"/\"\nrespond = { status = 200 }\nlimit = []\n";

/// Returns a command in a folder with a good.toml and a bad.toml, and the folder.
fn command(arguments: &[&str]) -> (TempDir, Command) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("good.toml"), GOOD).unwrap();
    fs::write(folder.path().join("bad.toml"), BAD).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(arguments).current_dir(&folder);
    (folder, command)
}

/// Runs a command in a folder with a good.toml and a bad.toml.
fn tollgate(arguments: &[&str]) -> Output {
    let (_folder, mut command) = command(arguments);
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn output_that_cannot_be_written_is_a_failure_but_a_reader_that_stops_is_none() {
    for arguments in
        [&["schema"][..], &["routes", "--config", "good.toml"], &["check", "good.toml", "--json"]]
    {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let (reader, closed) = std::io::pipe().unwrap();
        drop(reader);
        for (output, code, told) in [
            (Stdio::from(full), 1, "error: can't write the output: No space left on device (os error 28)\n"),
            (Stdio::from(closed), 0, ""),
        ] {
            let (_folder, mut command) = command(arguments);
            let output = command.stdout(output).output().unwrap();
            assert_eq!((output.status.code(), text(&output.stderr)), (Some(code), told), "{arguments:?}");
        }
    }
}

#[test]
fn the_printed_curl_line_asks_a_route() {
    for (path, target) in
        [("/", "/"), ("/{*rest}", "/"), ("/v1/orders/{id}/items/{*rest}", "/v1/orders/1/items/")]
    {
        let gateway =
            Gateway::start(&format!("[[routes]]\npath = \"{path}\"\nrespond = {{ status = 204 }}\n"));
        let tried = format!("try: curl -i http://{}{target}\n", gateway.address());
        assert!(gateway.greeting().ends_with(&tried), "{}", gateway.greeting());
        assert_eq!(gateway.get(target).status, 204);
    }
}

/// The first minute of a new user: the shipped file, and the command that it suggests.
#[test]
fn the_shipped_file_limits_the_printed_curl_line() {
    let redis = Redis::start();
    let url = redis.url();
    let on_redis: [&str; 6] = ["--config", "gateway.toml", "--listen", "127.0.0.1:0", "--store", &url];
    // It falls back in 50 ms, which a busy machine may take.
    let patient = SHIPPED.replace("[store]\n", "[store]\ntimeout = \"5s\"\n");
    assert_ne!(patient, SHIPPED);
    for (arguments, variable) in [
        (&[][..], ("TOLLGATE_LISTEN", "127.0.0.1:0")),
        (&["run", "--listen", "127.0.0.1:0"], ("TOLLGATE_STORE", "memory:")),
        (&on_redis, ("TOLLGATE_STORE", "memory:")),
    ] {
        let gateway = Gateway::start_with(&patient, arguments, &[variable]);
        let lines: Vec<&str> = gateway.greeting().lines().collect();
        let [listens, counts, line] = lines[..] else { panic!("{lines:?}") };
        assert_eq!(listens, format!("tollgate listens on http://{}", gateway.address()));
        let is_on_redis = arguments.contains(&url.as_str());
        assert_eq!(
            counts,
            if is_on_redis { format!("store: {url}") } else { "store: in memory, this process only".into() }
        );
        assert_eq!(line, format!("try: curl -i http://{}/", gateway.address()));
        let curl = || {
            let output =
                Command::new("sh").args(["-c", line.strip_prefix("try: ").unwrap()]).output().unwrap();
            text(&output.stdout).replace('\r', "")
        };
        for left in (0..5).rev() {
            let answer = curl();
            assert!(answer.starts_with("HTTP/1.1 200 OK\n"), "{answer}");
            assert!(answer.contains("\nratelimit-policy: \"per-client\";q=5;w=10\n"), "{answer}");
            assert!(answer.contains(&format!("\nratelimit: \"per-client\";r={left};t=")), "{answer}");
            let (_, echo) = answer.split_once("\n\n").unwrap();
            let echo: serde_json::Value = serde_json::from_str(echo).unwrap();
            assert_eq!((&echo["method"], &echo["path"]), (&"GET".into(), &"/".into()));
        }
        let refused = curl();
        assert!(refused.starts_with("HTTP/1.1 429 Too Many Requests\n"), "{refused}");
        assert!(refused.contains("\nretry-after: ") && refused.contains("quota-exceeded"), "{refused}");
        if arguments == on_redis {
            let bucket = "tollgate:per-client:sw:{ip=127.0.0.1}";
            assert_eq!(redis.command(&["ZCARD", bucket]), "5");
        }
    }
}

#[test]
fn check_tells_faults_and_ends_with_2() {
    let good = tollgate(&["check", "good.toml"]);
    assert_eq!(
        (good.status.code(), text(&good.stdout), text(&good.stderr)),
        (Some(0), "good.toml: ok\n", "")
    );
    let bad = tollgate(&["check", "bad.toml"]);
    assert_eq!((bad.status.code(), text(&bad.stdout)), (Some(2), ""));
    let told = text(&bad.stderr);
    assert!(told.contains("bad.toml:4") && told.contains("`limit`") && told.contains("`limits`"), "{told}");
    let missing = tollgate(&["check", "none.toml"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(text(&missing.stderr).contains("can't read `none.toml`"));
    assert!(text(&missing.stderr).contains("write a new one with `tollgate init`"), "{missing:?}");
    let shipped = tollgate(&["check", concat!(env!("CARGO_MANIFEST_DIR"), "/gateway.toml")]);
    assert_eq!((shipped.status.code(), text(&shipped.stderr)), (Some(0), ""));
}

#[test]
fn wrong_use_and_wrong_files_end_with_2_and_results_with_0() {
    for (arguments, status) in [
        (&["check"][..], 2),
        (&["serve"], 2),
        (&["--verbose"], 2),
        (&["--config", "good.toml", "check", "good.toml"], 2),
        (&["--config", "bad.toml"], 2),
        (&["run", "--config", "none.toml"], 2),
        (&["--config", "good.toml", "--listen", "nowhere"], 2),
        (&["--config", "good.toml", "--store", "mysql://x"], 2),
        (&[], 2), // There is no gateway.toml.
        (&["--help"], 0),
        (&["--version"], 0),
        (&["man", "no-such-folder"], 1),
    ] {
        let output = tollgate(arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {output:?}");
        let (told, silent) =
            if status == 0 { (output.stdout, output.stderr) } else { (output.stderr, output.stdout) };
        assert!(!told.is_empty() && silent.is_empty(), "{arguments:?}");
    }
}

#[test]
fn the_version_names_the_build() {
    let output = tollgate(&["--version"]);
    let [version, build] = text(&output.stdout).lines().collect::<Vec<_>>()[..] else { panic!("{output:?}") };
    assert!(version.starts_with(concat!("tollgate ", env!("CARGO_PKG_VERSION"))), "{version}");
    assert!(build.starts_with("build: ") && build.contains("rustc 1."), "{build}");
    assert_eq!(text(&tollgate(&["-V"]).stdout).trim_end(), version);
}

#[test]
fn each_command_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let output = tollgate(&["man", folder.path().to_str().unwrap()]);
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    let help = tollgate(&["--help"]);
    let (_, commands) = text(&help.stdout).split_once("Commands:\n").unwrap();
    let commands = commands.lines().map_while(|line| line.strip_prefix("  ")?.split(' ').next());
    let pages: Vec<String> =
        commands.filter(|name| *name != "help").map(|name| format!("tollgate-{name}.1")).collect();
    assert!(pages.len() > 5, "{pages:?}");
    for page in pages.iter().map(String::as_str).chain(["tollgate.1"]) {
        let page =
            fs::read_to_string(folder.path().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
        assert!(page.contains(".TH tollgate") && page.contains(".SH SYNOPSIS"), "{page}");
    }
}

#[test]
fn an_address_in_use_ends_with_1_and_the_remedy() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = tollgate(&["--config", "good.toml", "--listen", &address]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""));
    let told = text(&output.stderr);
    assert!(told.contains(&format!("can't listen on `{address}`: Address already in use")), "{told}");
    assert!(told.contains("name another address"), "{told}");
}

/// Uses `script` of util-linux to get a terminal.
#[cfg(target_os = "linux")]
#[test]
fn colour_is_for_terminals_without_no_color() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("bad.toml"), BAD).unwrap();
    let told = |no_color: &str| {
        let check = concat!(env!("CARGO_BIN_EXE_tollgate"), " check bad.toml");
        let mut script = Command::new("script");
        script.args(["--quiet", "--command", check, "/dev/null"]).env("NO_COLOR", no_color);
        let output = script.current_dir(&folder).output().unwrap();
        text(&output.stdout).to_owned()
    };
    assert!(told("").contains("\u{1b}["), "{:?}", told(""));
    assert!(told("1").contains("bad.toml") && !told("1").contains('\u{1b}'), "{:?}", told("1"));
    assert!(!text(&tollgate(&["check", "bad.toml"]).stderr).contains('\u{1b}'));
}

#[test]
fn a_reload_changes_the_rate_for_the_next_request_and_keeps_the_count() {
    let redis = Redis::start();
    for store in [String::new(), redis.store()] {
        let toml = |rate: &str| {
            format!(
                "{store}[limits.per-client]\nkey = \"ip\"\nrate = \"{rate}\"\n[[routes]]\npath = \"/\"\n\
                 respond = {{ status = 200 }}\nlimits = [\"per-client\"]\n"
            )
        };
        let gateway = Gateway::start(&toml("5/10min"));
        // On a connection that stays, too.
        let mut client = gateway.client();
        let mut ask = || {
            let answer = client.get("/");
            let state = answer.header("ratelimit").unwrap();
            (answer.status, state.split(';').nth(1).unwrap().to_owned())
        };
        let answered = [(); 6].map(|()| ask().0);
        assert_eq!(answered, [200, 200, 200, 200, 200, 429]);
        for (rate, expected) in
            [("7/10min", (200, "r=1")), ("3/10min", (429, "r=0")), ("9/5min", (200, "r=2"))]
        {
            gateway.reload(&toml(rate));
            let (status, left) = ask();
            assert_eq!((status, left.as_str()), expected, "{rate} on `{store}`");
        }
        for change in ["5/10m → 7/10m", "7/10m → 3/10m", "3/10m → 9/5m"] {
            let line = format!("limit `per-client` {change}: counts kept");
            wait_until(&line, || gateway.log().contains(&line));
        }
    }
}

#[test]
fn a_wrong_file_on_a_reload_changes_nothing_and_is_told() {
    let gateway = Gateway::start(GOOD);
    gateway.reload(BAD);
    assert_eq!(gateway.get("/").status, 200);
    let log = gateway.log();
    assert!(log.contains("file=\"gateway.toml\" line=4") && log.contains("the running one stays"), "{log}");
    gateway.reload(&GOOD.replace("200", "204"));
    assert_eq!(gateway.ask("HEAD /").status, 204);
}

#[test]
fn a_request_in_flight_at_a_reload_ends_as_it_began() {
    let (upstream, release) =
        WireUpstream::answering_when_told(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nold");
    let toml = "[upstreams.api]\nservers = [\"URL\"]\n[[routes]]\npath = \"/\"\nupstream = \"api\"\n";
    let gateway = Gateway::start(&toml.replace("URL", &upstream.url()));
    let mut client = gateway.client();
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_until("the upstream is asked", || upstream.connections() == 1);
    gateway.reload(&toml.replace("URL", &Upstream::hello().url()));
    assert_eq!(gateway.get("/").text(), "hello");
    release.send(()).unwrap();
    assert_eq!(client.answer().text(), "old");
}
