//! Access to the admin port, and its responses to requests without access.

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    process::Command,
};

use socket2::{Domain, Socket, Type};

use crate::{
    admin::{admin, events::Events, gateway, gateway_with_token, limits},
    harness::{
        client::{Answer, Client},
        gateway::Gateway,
        wait_until,
    },
};

/// Sends a head and a body to a gateway's admin port: the status and the body of the answer.
fn ask(gateway: &Gateway, head: &str, body: &str) -> (u16, String) {
    let mut client = Client::connect(admin(gateway).parse().unwrap());
    client.send(format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).as_bytes());
    let answer = client.answer();
    (answer.status, answer.text())
}

const SET: &str = "PUT /api/limits/l/override HTTP/1.1\r\nHost: localhost";
const JSON: &str = "Content-Type: application/json";
const RATE: &str = r#"{"rate": "7/h"}"#;

#[test]
fn a_page_of_another_site_changes_nothing() {
    let gateway = gateway("5/h", "");
    let set = |head: &str| ask(&gateway, head, RATE).0;
    // A name that somebody has pointed here, a form, and a script elsewhere.
    assert_eq!(set(&format!("PUT /api/limits/l/override HTTP/1.1\r\nHost: evil.example\r\n{JSON}")), 403);
    assert_eq!(set(&format!("{SET}\r\nContent-Type: text/plain")), 415);
    assert_eq!(set(SET), 415);
    assert_eq!(set(&format!("{SET}\r\n{JSON}\r\nOrigin: http://evil.example")), 403);
    assert_eq!(set(&format!("{SET}\r\n{JSON}\r\nOrigin: null")), 403);
    assert_eq!(gateway.get("/").header("ratelimit-policy"), Some("\"l\";q=5;w=3600"));
    assert_eq!(set(&format!("{SET}\r\n{JSON}\r\nOrigin: http://localhost")), 200);
    assert_eq!(gateway.get("/").header("ratelimit-policy"), Some("\"l\";q=7;w=3600"));
    wait_until("it is logged", || gateway.log().contains("limit `l`: rate set to 7/h: counts kept"));
}

#[test]
fn what_is_wrong_is_said_and_changes_nothing() {
    let gateway = gateway("5/h", "");
    for (body, status, told) in [
        (r#"{"rate": "7/0s"}"#, 400, "no whole number of milliseconds"),
        (r#"{"rate": "20"}"#, 400, "is not a valid rate"),
        (r#"{"rate": "7/h", "for": "0s"}"#, 400, "`for` is too short"),
        (r#"{"rate": "7/h", "scope": "all"}"#, 400, "unknown scope `all`"),
        (r#"{"rate": "7/h", "fro": "1h"}"#, 422, "unknown field `fro`"),
        (r#"{"rate""#, 400, "EOF"),
        (&format!("{{\"rate\": \"{}\"}}", "9".repeat(20_000)), 413, ""),
    ] {
        let (answered, problem) = ask(&gateway, &format!("{SET}\r\n{JSON}"), body);
        assert_eq!(answered, status, "{body}: {problem}");
        assert!(problem.contains(told), "{problem}");
    }
    let (status, problem) = ask(&gateway, "GET /api/limits/m/keys/1.2.3.4 HTTP/1.1\r\nHost: localhost", "");
    assert_eq!(status, 404);
    assert!(problem.contains("unknown limit `m`; the limits are: l"), "{problem}");
    let (status, problem) = ask(&gateway, "GET /api/limits/l/keys/%ff HTTP/1.1\r\nHost: localhost", "");
    assert_eq!((status, problem.starts_with('{')), (400, true), "{problem}");
    assert_eq!(gateway.get("/").header("ratelimit-policy"), Some("\"l\";q=5;w=3600"));
}

#[test]
fn a_token_is_demanded_and_never_shown() {
    let token = "correct-horse-battery";
    let gateway = gateway("5/h", "");
    let with_token = gateway_with_token();
    assert_eq!(limits(&gateway, &["list"]).0, 0);
    let (status, told) = limits(&with_token, &["list"]);
    assert_eq!((status, told.contains("Bearer")), (1, true), "{told}");
    for borne in ["wrong", "", "correct-horse-batter"] {
        let head = format!("GET /api/limits HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {borne}");
        assert_eq!(ask(&with_token, &head, "").0, 401, "{borne}");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["limits", "list", "--json", "--admin", &format!("http://{}", admin(&with_token))]);
    let output = command.env("TOLLGATE_ADMIN_TOKEN", token).output().unwrap();
    assert!(output.status.success());
    assert!(!String::from_utf8(output.stdout).unwrap().contains(token));
    assert!(!with_token.log().contains(token));
}

/// An answer of a gateway's admin port.
fn answer(gateway: &Gateway, head: &str, body: &str) -> Answer {
    let mut client = Client::connect(admin(gateway).parse().unwrap());
    client.send(format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).as_bytes());
    client.answer()
}

#[test]
fn a_login_is_a_cookie_that_no_script_and_no_other_site_has() {
    let gateway = gateway_with_token();
    let log_in = |fields: &str, token: &str| {
        let head = format!("POST /api/session HTTP/1.1\r\nHost: ops.example:9901\r\n{fields}");
        answer(&gateway, &head, &format!("{{\"token\": \"{token}\"}}"))
    };
    let token = "correct-horse-battery";
    assert_eq!(log_in(JSON, "correct-horse-batter").status, 401);
    assert_eq!(log_in("Content-Type: text/plain", token).status, 415);
    assert_eq!(log_in(&format!("{JSON}\r\nOrigin: http://evil.example"), token).status, 403);
    let answered = log_in(&format!("{JSON}\r\nOrigin: http://ops.example:9901"), token);
    let cookie = answered.header("set-cookie").unwrap();
    let (pair, attributes) = cookie.split_once("; ").unwrap();
    assert_eq!(attributes, "Path=/; Max-Age=43200; HttpOnly; SameSite=Strict");
    assert!(!cookie.contains("horse") && pair.len() == "tollgate-9901=".len() + 64, "{cookie}");

    let list = |host: &str, cookie: &str| {
        answer(&gateway, &format!("GET /api/limits HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}"), "").status
    };
    assert_eq!(list("ops.example:9901", &format!("other=1; {pair}")), 200);
    // Of another gateway on the same machine, of nobody, and of one who guesses.
    assert_eq!(list("ops.example:9902", pair), 401);
    assert_eq!(
        [list("ops.example:9901", "tollgate-9901="), list("ops.example:9901", &pair[..40])],
        [401, 401]
    );
    // With the cookie a change needs the same as without.
    let set = |fields: &str| {
        let host = "Host: ops.example:9901";
        answer(
            &gateway,
            &format!("PUT /api/limits/l/override HTTP/1.1\r\n{host}\r\nCookie: {pair}\r\n{fields}"),
            RATE,
        )
        .status
    };
    assert_eq!(
        [set(&format!("{JSON}\r\nOrigin: http://evil.example")), set("Content-Type: text/plain")],
        [403, 415]
    );
    assert_eq!(set(JSON), 200);
    wait_until("it is logged by whom", || gateway.log().contains("counts kept who=127.0.0.1:"));
    gateway.wait_for_log(" by login");
    let end = format!("DELETE /api/session HTTP/1.1\r\nHost: ops.example:9901\r\nCookie: {pair}\r\n{JSON}");
    assert_eq!(answer(&gateway, &end, "").status, 204);
    assert_eq!(list("ops.example:9901", pair), 401);
    gateway.assert_not_logged("horse");
    gateway.assert_not_logged(&pair[20..]);
}

#[test]
fn each_answer_says_what_a_browser_may_do_with_it() {
    for gateway in [gateway("5/h", ""), gateway_with_token()] {
        for path in ["/", "/dashboard.js", "/metrics", "/api/limits", "/nowhere"] {
            let answer = answer(&gateway, &format!("GET {path} HTTP/1.1\r\nHost: localhost"), "");
            let policy = answer.header("content-security-policy").unwrap();
            assert!(
                policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"),
                "{policy}"
            );
            assert!(policy.ends_with("frame-ancestors 'none'") && !policy.contains("unsafe"), "{policy}");
            for (name, value) in [
                ("x-frame-options", "DENY"),
                ("x-content-type-options", "nosniff"),
                ("referrer-policy", "no-referrer"),
                ("cache-control", "no-store"),
            ] {
                assert_eq!(answer.header(name), Some(value), "{path}");
            }
        }
        // What is of this gateway is for its operators.
        assert_eq!(answer(&gateway, "GET / HTTP/1.1\r\nHost: localhost", "").status, 200);
    }
    let page = answer(&gateway("5/h", ""), "GET / HTTP/1.1\r\nHost: evil.example", "");
    assert_eq!(page.status, 403);
}

/// The head of the answer to a GET with this token, from this address of the machine.
fn answer_to_token(gateway: &Gateway, from: [u8; 4], path: &str, token: &str) -> String {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
    socket.connect(&admin(gateway).parse::<SocketAddr>().unwrap().into()).unwrap();
    let mut stream = TcpStream::from(socket);
    let head = "Host: localhost\r\nConnection: close";
    write!(stream, "GET {path} HTTP/1.1\r\n{head}\r\nAuthorization: Bearer {token}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn wrong_tokens_are_held_up_and_seldom_logged_and_the_right_one_is_accepted() {
    let (gateway, token) = (gateway_with_token(), "correct-horse-battery");
    let one = [127, 0, 0, 1];
    let answered = |from, path: &str, token: &str| {
        let answer = answer_to_token(&gateway, from, path, token);
        answer.split(' ').nth(1).unwrap().parse::<u16>().unwrap()
    };
    let told: Vec<u16> = (0..8).map(|_| answered(one, "/api/limits", "wrong")).collect();
    assert_eq!(told, [401, 401, 401, 401, 401, 429, 429, 429]);
    let held_up = answer_to_token(&gateway, one, "/api/limits", "wrong").to_ascii_lowercase();
    let (_, wait) = held_up.split_once("\r\nretry-after: ").expect(&held_up);
    assert!((1..=60).contains(&wait.split("\r\n").next().unwrap().parse().unwrap()), "{held_up}");
    // A peer is held up for its own guesses only, and whatever it guesses at.
    // One in a thousand shares its place with the first.
    let mut others = (2..5).map(|last| [127, 0, 0, last]);
    let other =
        others.find(|other| answered(*other, "/api/limits", "wrong") == 401).expect("one is not held up");
    let guesses = 32 + u32::from(other[3]);
    assert_eq!(answered(one, "/metrics", "wrong"), 429);
    assert_eq!(answered(one, "/api/session", "wrong"), 429);
    let login = "POST /api/session HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json";
    assert_eq!(ask(&gateway, login, r#"{"token": "wrong"}"#).0, 429);
    assert_eq!(answered(one, "/", ""), 200, "the page to log in on");

    assert_eq!(answered(one, "/api/limits", token), 200);
    assert_eq!(answered(one, "/api/limits", "wrong"), 401, "the right one has made up for the wrong ones");
    for _ in 0..20 {
        answered(other, "/api/limits", "wrong");
    }
    let metrics = answer_to_token(&gateway, other, "/metrics", token);
    assert!(metrics.contains(&format!("\ntollgate_admin_wrong_tokens_total {guesses}\n")), "{metrics}");
    let told = |log: &str| log.matches("wrong admin token").count();
    wait_until("they are logged", || told(&gateway.log()) >= 10);
    let log = gateway.log();
    assert_eq!(told(&log), 10, "{log}");
    assert!(log.contains("127.0.0.1:") && !log.contains("horse"), "{log}");
}

/// A HEAD has the length of what a GET answers, so it tells as much.
#[test]
fn no_method_tells_whether_a_token_is_right_uncounted() {
    let gateway = gateway_with_token();
    let ask = |method: &str, fields: &str| {
        let mut client = Client::connect(admin(&gateway).parse().unwrap());
        client.ask(&format!("{method} /api/session\nHost: localhost{fields}"))
    };
    let wrong = "\nAuthorization: Bearer wrong";
    assert_eq!(["GET", "HEAD", "PUT"].map(|method| ask(method, wrong).status), [401; 3]);
    gateway.wait_for_log("wrong admin token");
    let metrics = answer_to_token(&gateway, [127, 0, 0, 1], "/metrics", "correct-horse-battery");
    assert!(metrics.contains("\ntollgate_admin_wrong_tokens_total 3\n"), "{metrics}");
    let right = "\nAuthorization: Bearer correct-horse-battery";
    assert_eq!([ask("HEAD", right).status, ask("HEAD", "").status, ask("GET", "").status], [200; 3]);
}

/// The silent ones have five seconds for a head. So an answer that comes while they are open hasn't waited for them.
#[test]
fn silent_connections_delay_nobody() {
    let gateway = gateway("5/h", "");
    let connect = || TcpStream::connect(admin(&gateway)).unwrap();
    for body in [
        "",
        "POST /api/session HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n",
    ] {
        let delayed = |_| {
            let mut silent: Vec<TcpStream> = (0..70).map(|_| connect()).collect();
            silent.iter_mut().for_each(|stream| stream.write_all(body.as_bytes()).unwrap());
            assert_eq!(ask(&gateway, "GET /livez HTTP/1.1\r\nHost: localhost", ""), (200, "ok\n".to_owned()));
            let open = silent.iter_mut().filter(|stream| {
                stream.set_nonblocking(true).unwrap();
                (&**stream).read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
            });
            open.count() < 50
        };
        // A machine that stands still for seconds ends them, too.
        assert!(!(0..3).all(delayed), "{body:?}");
    }
}

/// The others have five seconds for another request each. So all places are taken when the first of the thousand is answered.
#[test]
fn who_sends_many_requests_at_once_keeps_no_place_that_others_wait_for() {
    const LIVEZ: &str = "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let gateway = gateway("5/h", "");
    let connect = || TcpStream::connect(admin(&gateway)).unwrap();
    let is_answered_once = |_| {
        let _others: Vec<Client> = (0..63)
            .map(|_| {
                let mut client = Client::connect(admin(&gateway).parse().unwrap());
                client.send(LIVEZ.as_bytes());
                assert_eq!(client.answer().status, 200);
                client
            })
            .collect();
        let mut many = connect();
        // It may be reset before it has sent all.
        let _ = many.write_all(LIVEZ.repeat(1_000).as_bytes());
        assert_eq!(ask(&gateway, "GET /livez HTTP/1.1\r\nHost: localhost", ""), (200, "ok\n".to_owned()));
        let mut answers = Vec::new();
        let _ = many.read_to_end(&mut answers);
        let answers = String::from_utf8(answers).unwrap();
        assert!(answers.starts_with("HTTP/1.1 200"), "{answers}");
        answers.matches("HTTP/1.1 200").count() == 1 && answers.contains("connection: close")
    };
    // A machine that stands still for seconds ends the others.
    assert!((0..3).any(is_answered_once));
}

/// Clients that send their requests as they connect are answered, however many others connect at once.
#[test]
fn a_crowd_that_connects_at_once_is_answered() {
    let gateway = gateway("5/h", "");
    gateway.pause();
    let mut crowd: Vec<Client> =
        (0..300).map(|_| Client::connect(admin(&gateway).parse().unwrap())).collect();
    for client in crowd.iter_mut().step_by(3) {
        client.send(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    }
    gateway.resume();
    for client in crowd.iter_mut().step_by(3) {
        assert_eq!(client.answer().status, 200);
    }
}

/// Who listens to events is at work, though nothing is heard of it.
#[test]
fn silent_connections_cut_off_no_one_who_listens() {
    let gateway = gateway("5/h", "");
    let mut events = Events::of(&gateway);
    events.next();
    for _ in 0..3 {
        let _silent: Vec<TcpStream> =
            (0..100).map(|_| TcpStream::connect(admin(&gateway)).unwrap()).collect();
        assert_eq!(ask(&gateway, "GET /livez HTTP/1.1\r\nHost: localhost", "").0, 200);
    }
    for _ in 0..3 {
        assert_eq!(events.next().0, "state");
    }
}

#[test]
fn who_says_nothing_on_the_admin_port_takes_nothing_from_others() {
    let gateway = gateway("1000000/h", "");
    let mut silent: Vec<Client> =
        (0..200).map(|_| Client::connect(admin(&gateway).parse().unwrap())).collect();
    silent.iter_mut().for_each(|client| client.send(b"GET /livez HTTP/1.1\r\nHost: local"));
    let files = || std::fs::read_dir(format!("/proc/{}/fd", gateway.process())).unwrap().count();
    assert!(files() < 150, "{} files are open", files());
    assert_eq!(gateway.get("/").status, 200);
    // Their time is up before an operator's patience is.
    drop(silent.split_off(100));
    assert_eq!(limits(&gateway, &["list"]).0, 0);
}
