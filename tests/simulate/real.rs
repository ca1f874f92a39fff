//! Real logs: this gateway's, which contain decisions, and nginx's under load.

use std::{
    collections::BTreeMap,
    fs,
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
};

use serde_json::Value;

use super::{folder, json, limited, run};
use crate::harness::{gateway::Gateway, redis::free_port, wait_until};

fn lines(log: &Path) -> Vec<Value> {
    let text = fs::read_to_string(log).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// A simulation of the gateway's log refuses the same requests by the same limits as the gateway, and counts the same keys, of which
/// the log has hashes only.
#[test]
fn the_gateways_own_log_gives_what_the_gateway_decided() {
    let limits = "[server]\ntrusted_proxies = [\"127.0.0.1\"]\n\
                  [limits.per-client]\nkey = \"ip\"\nrate = \"20/h\"\nexempt = [\"203.0.113.4\"]\n\
                  [limits.per-key]\nkey = [\"header:x-api-key\", \"path:id\"]\nrate = \"12/h\"\nmissing = \"skip\"\n\
                  overrides = [{ key = '[\"gold\",\"1\"]', rate = \"15/h\" }]\n\
                  [limits.all]\nkey = \"global\"\nrate = \"150/h\"\nmode = \"shadow\"\n\
                  [limits.posts]\nkey = \"method\"\nrate = \"60/h\"\nalgorithm = \"fixed-window\"\n\
                  [[routes]]\npath = \"/{id}\"\nrespond = { status = 200 }\n\
                  limits = [\"per-client\", \"per-key\", \"all\"]\n\
                  [[routes]]\npath = \"/{*rest}\"\nmethods = [\"POST\"]\nrespond = { status = 200 }\nlimits = [\"posts\"]\n";
    let folder = folder(&[("gateway.toml", limits.as_bytes())]);
    let log = folder.path().join("access.log");
    let gateway = Gateway::start(&format!("[access_log]\npath = \"{}\"\n{limits}", log.display()));
    let mut client = gateway.client();
    let mut random = fastrand::Rng::with_seed(3);
    const REQUESTS: usize = 400;
    for _ in 0..REQUESTS {
        let key = ["", "gold", "tin", "lead"][random.usize(..4)];
        let target = ["/1", "/2?x-api-key=a", "//%32", "/a/b"][random.usize(..4)];
        let key = if key.is_empty() { String::new() } else { format!("x-api-key: {key}\r\n") };
        let method = if target == "/a/b" && random.bool() { "POST" } else { "GET" };
        let address = random.u8(..7);
        client.send(
            format!(
                "{method} {target} HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 203.0.113.{address}\r\n{key}\r\n"
            )
            .as_bytes(),
        );
        client.answer();
    }
    wait_until("all lines are written", || lines(&log).len() == REQUESTS);

    let told = json(folder.path(), &["access.log"]);
    let mut decided = BTreeMap::<String, [u64; 2]>::new();
    let mut refused = 0;
    for line in lines(&log) {
        refused += u64::from(line["status"] == 429);
        for limit in line["limits"].as_array().unwrap_or(&Vec::new()) {
            let counts = decided.entry(limit["limit"].as_str().unwrap().to_owned()).or_default();
            counts[0] += 1;
            counts[1] += u64::from(limit["decision"] == "refused");
        }
    }
    assert!(refused > 50, "{refused}");
    assert_eq!(told["requests"]["refused"], refused);
    assert_eq!(told["notes"], serde_json::json!([]));
    let simulated: BTreeMap<String, [u64; 2]> = told["limits"]
        .as_array()
        .unwrap()
        .iter()
        .map(|limit| {
            let number = |name: &str| limit[name].as_u64().unwrap();
            (limit["limit"].as_str().unwrap().to_owned(), [number("requests"), number("refused")])
        })
        .collect();
    assert_eq!(simulated, decided);
    let per_key =
        told["limits"].as_array().unwrap().iter().find(|limit| limit["limit"] == "per-key").unwrap();
    assert_eq!((&per_key["keys"], &per_key["judged"]), (&6.into(), &true.into()));
}

/// An nginx that writes combined lines. It is killed with this value.
struct Nginx(Child);

impl Nginx {
    fn start(folder: &Path) -> (Self, u16) {
        let port = free_port();
        let here = folder.display();
        // Requests come from as many addresses as the clients choose: `set_real_ip_from`.
        let text = format!(
            "daemon off; master_process off; pid {here}/nginx.pid; error_log {here}/error.log;\n\
             events {{ worker_connections 512; }}\n\
             http {{\n access_log {here}/access.log combined; client_body_temp_path {here}/b; proxy_temp_path {here}/p;\n\
             fastcgi_temp_path {here}/f; uwsgi_temp_path {here}/u; scgi_temp_path {here}/s;\n\
             set_real_ip_from 127.0.0.1; real_ip_header X-Client;\n\
             server {{ listen 127.0.0.1:{port}; location / {{ return 200 \"hello\"; }} }}\n}}\n"
        );
        fs::write(folder.join("nginx.conf"), text).unwrap();
        let mut command = Command::new("nginx");
        command.arg("-e").arg(folder.join("error.log")).arg("-c").arg(folder.join("nginx.conf"));
        let process = command.stderr(Stdio::null()).spawn().expect("nginx: ./scripts/test.sh installs it");
        wait_until("nginx listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        (Self(process), port)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Client n of 20 asks n times as often as the first.
const CLIENTS: &str = "counter = 0\nrequest = function()\n counter = counter + 1\n \
    local client = math.ceil((math.sqrt(8 * (counter % 210) + 9) - 1) / 2)\n \
    wrk.headers['X-Client'] = '198.51.100.' .. client\n return wrk.format('GET', '/orders/' .. counter)\nend\n";

#[test]
fn a_log_of_nginx_under_load_tells_what_the_limit_should_be() {
    let folder = folder(&[("clients.lua", CLIENTS.as_bytes())]);
    let (nginx, port) = Nginx::start(folder.path());
    let mut wrk = Command::new("wrk");
    wrk.args(["-t1", "-c8", "-d2s", "-s", "clients.lua", &format!("http://127.0.0.1:{port}/")])
        .current_dir(&folder);
    let load = wrk.output().expect("wrk: ./scripts/test.sh installs it");
    assert!(load.status.success(), "{}", String::from_utf8_lossy(&load.stderr));
    drop(nginx);
    let path = folder.path();
    let text = fs::read_to_string(path.join("access.log")).unwrap();
    let written = text.lines().count();
    assert!(written > 1_000, "{written}");

    fs::write(path.join("gateway.toml"), limited("key = \"ip\"\nrate = \"10/s\"")).unwrap();
    let told = json(path, &["access.log", "--report", "report.html"]);
    assert_eq!((&told["lines"]["lines"], &told["lines"]["unreadable"]), (&written.into(), &0.into()));
    let limit = &told["limits"][0];
    // By hand: requests of a client, and the most of them in one second, which is as exact as nginx writes it.
    let mut seconds = BTreeMap::<&str, BTreeMap<&str, u64>>::new();
    for line in text.lines() {
        let (client, rest) = line.split_once(' ').unwrap();
        let second = rest.split(['[', ']']).nth(1).unwrap();
        *seconds.entry(client).or_default().entry(second).or_default() += 1;
    }
    let busiest = &limit["busiest"][0];
    let (client, counts) = seconds.iter().max_by_key(|(_, counts)| counts.values().sum::<u64>()).unwrap();
    assert_eq!(busiest["key"], format!("ip={client}"));
    assert_eq!(busiest["requests"], counts.values().sum::<u64>());
    assert_eq!(busiest["peak"], *counts.values().max().unwrap());
    let refused: u64 =
        seconds.values().flat_map(|counts| counts.values()).map(|count| count.saturating_sub(10)).sum();
    assert_eq!(limit["refused"], refused);
    let peaks = seconds.values().map(|counts| *counts.values().max().unwrap());
    let nobody = limit["smallest"]["nobody"]["permits"].as_u64().unwrap();
    assert_eq!(nobody, peaks.max().unwrap());
    let page = fs::read_to_string(path.join("report.html")).unwrap();
    assert!(page.contains(&format!("<td class=\"number\">{nobody}/s</td>")), "{page}");

    fs::write(path.join("enough.toml"), limited(&format!("key = \"ip\"\nrate = \"{nobody}/s\""))).unwrap();
    let output = run(path, &["access.log", "--config", "enough.toml", "--against", "gateway.toml"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains(": 0 newly refused, ") && !said.contains(", 0 newly admitted"), "{said}");
}
