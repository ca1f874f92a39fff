//! No spelling of a path escapes its limit: either the limit applies, or the upstream reads another resource.
//!
//! Servers read paths differently. The readers here cover the known kinds, and one of them is nginx.

use std::{
    collections::BTreeSet,
    fs,
    net::{SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
};

use percent_encoding::percent_decode_str;
use tempfile::TempDir;

use crate::harness::{
    client::Client,
    frames::{End, Frames, WINDOW_UPDATE, get},
    gateway::Gateway,
    redis::free_port,
    upstream::Upstream,
    wait_until,
};

/// What lies between two segments, before the first, or behind the last.
const BETWEEN: &[&str] = &[
    "/",
    "//",
    "/./",
    "/.//",
    "/x/../",
    "/x//../../",
    "/%2e/",
    "/%2E/",
    "/x/%2e%2E/",
    "/x/.%2e/",
    "/x/%2E./",
    "%2F",
    "%2f",
    "%2F%2f",
    "/%2F",
    "%2F/",
    "%2F.%2F",
    "%2f%2e/",
    "/x%2F..%2f",
    "/x%2F%2e%2E/",
    "/x/..%2F",
    "%5C",
    "%5c",
    "\\",
    "/\\",
    "\\.\\",
    "/x\\..\\",
    "/x%5C..%5c",
    "/x/..\\",
    "/x\\..%2F",
    ";/",
    ";x/",
    ";x=1;y/",
    "%3Bx/",
    "/;x/",
    "/.;x/",
    "/x/..;x/",
    "/x;y/../",
    "/x/..;x%2F",
    "/x;y\\..;z%2f",
    "/%252e/",
    "%252F",
    "/x/%252e%252e/",
    "/\u{85}/../",
];
/// What stands behind all of it.
const BEHIND: &[&str] = &[
    "",
    "/",
    "//",
    "/.",
    "/./",
    "/x/..",
    "/x/../",
    "/%2e",
    "/x/%2E%2e",
    "%2F",
    "%2f%2F",
    "%2F.",
    "%5C",
    "\\",
    "\\.",
    ";",
    ";x",
    ";x=1/",
    "/;x",
    ";/x",
    "/;/x%2Fy",
    "%0A",
    "%0A%80",
    "%3B",
    "%3bx",
    "?",
    "?x",
    "?/../x",
    "#",
    "#x",
    "?#",
    "%3F",
    "%3fx",
    "%23x",
    "%00",
    "%00x",
    "/%00",
    "%20",
    "%09",
    ".",
    "%252F",
    "%2500",
];
/// Ways to write `/a` and `secret`, with what is in front.
const FRONT: &[&str] = &[
    "",
    "/.",
    "/..",
    "/x/..",
    "/%2e%2e",
    "//x",
    "/\\x",
    "//x\\y",
    "/\\x\\..",
    "/x%5Cy/..\\..",
    "http://tollgate.test",
    "http://other.test:81/x/..",
    "HTTP://TOLLGATE.TEST",
    "https://tollgate.test",
    "http://me@tollgate.test",
];
const SEGMENTS: &[(&str, &str)] = &[
    ("a", "secret"),
    ("%61", "secret"),
    ("a", "%73%65%63%72%65%74"),
    ("a", "s%65cret"),
    ("%61", "secre%74"),
    ("%2561", "secret"),
    ("a", "s%2565cret"),
];

/// Every spelling: all of one kind with all of another, and the rest plain.
fn spellings() -> BTreeSet<String> {
    let mut spellings = BTreeSet::new();
    let mut add = |front: &str, before: &str, (first, second): (&str, &str), between: &str, behind: &str| {
        spellings.insert([front, before, first, between, second, behind].concat());
    };
    for between in BETWEEN {
        for behind in BEHIND {
            add("", "/", SEGMENTS[0], between, behind);
        }
        for before in BETWEEN.iter().filter(|before| before.starts_with('/')) {
            add("", before, SEGMENTS[0], between, "");
        }
        for segments in SEGMENTS {
            for front in FRONT {
                add(front, "/", *segments, between, "");
            }
        }
    }
    for segments in SEGMENTS {
        for behind in BEHIND {
            for front in FRONT {
                add(front, "/", *segments, "/", behind);
            }
        }
    }
    spellings
}

/// Joins segments as a path is resolved: without empty ones and dots.
fn resolved<'s>(segments: impl Iterator<Item = &'s str>) -> String {
    let mut path: Vec<&str> = Vec::new();
    for segment in segments {
        match segment {
            "" | "." => {}
            ".." => drop(path.pop()),
            segment => path.push(segment),
        }
    }
    path.iter().map(|segment| format!("/{segment}")).collect()
}

fn decoded(path: &str) -> String {
    percent_decode_str(path).decode_utf8_lossy().into_owned()
}

fn without_parameters(path: &str) -> String {
    let segments = path.split('/').map(|segment| segment.split(';').next().unwrap());
    segments.collect::<Vec<_>>().join("/")
}

/// Returns the path behind what may be a host.
fn behind_host(path: &str) -> &str {
    let host = path.strip_prefix("//").map(|host| host.trim_start_matches('/'));
    host.map_or(path, |host| host.find('/').map_or("/", |end| &host[end..]))
}

/// Returns the resource of a path, as one kind of server reads it.
type Reader = fn(&str) -> String;

const READERS: &[(&str, Reader)] = &[
    ("RFC 3986", |path| {
        resolved(
            path.split('/')
                .map(|segment| decoded(segment).replace('/', "%2F"))
                .collect::<Vec<_>>()
                .iter()
                .map(String::as_str),
        )
    }),
    ("decodes, and resolves nothing", |path| decoded(path).trim_end_matches('/').to_owned()),
    ("resolves what it decodes", |path| resolved(decoded(path).split('/'))),
    ("resolves, then decodes", |path| decoded(&resolved(path.split('/')))),
    ("servlets", |path| resolved(decoded(&without_parameters(path)).split('/'))),
    ("servlets that decode first", |path| resolved(without_parameters(&decoded(path)).split('/'))),
    ("backslashes are slashes", |path| resolved(decoded(path).replace('\\', "/").split('/'))),
    ("literal backslashes are slashes", |path| resolved(decoded(&path.replace('\\', "/")).split('/'))),
    ("all of these", |path| resolved(without_parameters(&decoded(path).replace('\\', "/")).split('/'))),
    ("those that end at a semicolon", |path| resolved(decoded(path.split(';').next().unwrap()).split('/'))),
    ("those that end at a decoded question mark", |path| {
        resolved(decoded(path).split('?').next().unwrap().split('/'))
    }),
    ("PHP's and Python's URLs", |path| resolved(decoded(behind_host(path)).split('/'))),
    ("URLs of browsers", |path| {
        let path = path.replace('\\', "/");
        decoded(&resolved(behind_host(&path).split('/')))
    }),
    ("Starlette and Bottle", |path| {
        let valid: String = decoded(path).replace(char::REPLACEMENT_CHARACTER, "");
        resolved(valid.trim_end_matches('\n').split('/'))
    }),
    ("C, which ends at a NUL", |path| resolved(decoded(path).split('\0').next().unwrap().split('/'))),
];

/// A gateway whose limit for `/a/secret` is used up, and all else is free, on one upstream.
fn used_up(upstream: &str) -> Gateway {
    let gateway = Gateway::start(&format!(
        "[upstreams.api]\nservers = [\"{upstream}\"]\n[limits.l]\nkey = [\"route\", \"path:name\"]\nrate = \"1/h\"\n\
         [[routes]]\npath = \"/{{*rest}}\"\nupstream = \"api\"\n\
         [[routes]]\npath = \"/a/{{name}}\"\nupstream = \"api\"\n\
         [[routes]]\npath = \"/a/secret\"\nupstream = \"api\"\nlimits = [\"secret\"]\n\
         [limits.secret]\nkey = \"route\"\nrate = \"1/h\"\n\
         [[routes]]\npath = \"/of/{{name}}\"\nupstream = \"api\"\nlimits = [\"l\"]\n",
    ));
    for path in ["/a/secret", "/of/me"] {
        assert_eq!(gateway.get(path).status, 200);
        assert_eq!(gateway.get(path).status, 429);
    }
    gateway
}

/// The status of a target that is sent as it is.
fn ask(client: &mut Client, target: &str) -> (u16, String) {
    client.send(format!("GET {target} HTTP/1.1\r\nHost: tollgate.test\r\n\r\n").as_bytes());
    let answer = client.answer();
    (answer.status, answer.text())
}

#[test]
fn every_spelling_of_a_limited_path_is_limited_or_another_path() {
    let upstream = Upstream::hello();
    let gateway = used_up(&upstream.url());
    let spellings = spellings();
    assert!(spellings.len() > 2_000, "{}", spellings.len());
    let (mut limited, mut others) = (0, 0);
    let mut client = gateway.client();
    for spelling in &spellings {
        match ask(&mut client, spelling).0 {
            429 => limited += 1,
            200 => {
                others += 1;
                let seen = upstream.last().uri;
                for (name, reader) in READERS {
                    assert_ne!(
                        reader(seen.path()),
                        "/a/secret",
                        "{spelling} is {seen} upstream, where {name}"
                    );
                }
            }
            // hyper takes it for no request, and hangs up.
            400 => client = gateway.client(),
            status => panic!("{spelling}: {status}"),
        }
    }
    assert!(limited > 1_000 && others > 100, "{limited} limited, {others} others");
}

/// As the :path of HTTP/2, where whole urls are none (RFC 9113, section 8.3.1).
#[test]
fn every_spelling_of_a_limited_path_is_limited_or_another_path_in_http_2() {
    let upstream = Upstream::hello();
    let gateway = used_up(&upstream.url());
    let room_for_all = || {
        let mut client = Frames::connect(gateway.address());
        client.send(WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes());
        client
    };
    let mut client = room_for_all();
    let (mut limited, mut others) = (0, 0);
    for (number, spelling) in (0..).zip(spellings()) {
        let stream = 2 * number + 1;
        client.ask(stream, &get(&spelling, &[]));
        let told = client.told(stream);
        match (told.end, told.status) {
            // It has sent too much that is no request.
            (End::Gone(_), _) => client = room_for_all(),
            (End::Whole, 200) => {
                others += 1;
                assert!(spelling.starts_with('/'), "{spelling}");
                let seen = upstream.last().uri;
                for (name, reader) in READERS {
                    let read = reader(seen.path());
                    assert_ne!(read, "/a/secret", "{spelling} is {seen} upstream, where {name}");
                }
            }
            // No path to h2, or to the gateway.
            (End::Reset(_), _) | (End::Whole, 400) => {}
            // The second time it has a place in the connection's table.
            (End::Whole, 429 | 0) => limited += 1,
            _ => panic!("{spelling}: {told:?}"),
        }
        assert_eq!(upstream.count(), 2 + others, "{spelling}");
    }
    assert!(limited > 1_000 && others > 100, "{limited} limited, {others} others");
}

#[test]
fn every_spelling_of_a_limited_path_is_limited_or_another_path_to_nginx() {
    let nginx =
        Nginx::start("location ~ ^/a/secret/?$ { return 200 secret; } location / { return 200 other; }");
    let gateway = used_up(&format!("http://{}", nginx.address));
    let mut client = gateway.client();
    let mut others = 0;
    for spelling in spellings() {
        // 400 is either's.
        match ask(&mut client, &spelling) {
            (429, _) => {}
            (200, text) => {
                assert_eq!(text, "other", "{spelling}");
                others += 1;
            }
            (400, _) => client = gateway.client(),
            (status, _) => panic!("{spelling}: {status}"),
        }
    }
    assert!(others > 100, "{others}");
}

#[test]
fn every_spelling_of_a_parameter_is_counted_as_one() {
    let upstream = Upstream::hello();
    let gateway = used_up(&upstream.url());
    for target in [
        "/of/me",
        "/of/%6de",
        "/of/m%65/",
        "/of//me",
        "/x/../of/me",
        "/of/me;",
        "/of/me;v=1",
        "/of/me;v=2/",
        "/of/me%2F",
        "/of/me%5C",
        "/of/me\\",
        "/of%2Fme",
        "/of;x/me",
        "/of/me;x%2F",
        "/of/me;/x",
        "//x/of/me",
        "/of/me%0A",
        "/of/me%80",
    ] {
        assert_eq!(gateway.get(target).status, 429, "{target}");
    }
    // A path with dots could be made to count for anything.
    for target in [
        "/of/me;x%2F..%2Fyou",
        "/of/me;%2f..%2f1",
        "/of/me;\\..\\1",
        "/of/me\\..%2F1;",
        "/of/x%2F..%2fme",
        "/of/x\\..\\1",
        "/of/x/..;/1",
    ] {
        let answer = gateway.get(target);
        assert_eq!(
            (answer.status, answer.json()["code"].as_str()),
            (400, Some("path-ambiguous")),
            "{target}"
        );
    }
    for target in ["/of/you", "/of/me2", "/of/m", "/of/me%2Fmore"] {
        assert_eq!(gateway.get(target).status, 200, "{target}");
    }
}

/// A path that may be read as another goes where it went, unchanged, and is only limited as the other one, too.
#[test]
fn a_path_with_escaped_slashes_goes_where_its_own_route_says() {
    let (projects, other) = (Upstream::hello(), Upstream::hello());
    let gateway = Gateway::start(&format!(
        "[upstreams.projects]\nservers = [\"{}\"]\n[upstreams.other]\nservers = [\"{}\"]\n\
         [[routes]]\npath = \"/projects/{{id}}/files\"\nupstream = \"projects\"\n\
         [[routes]]\npath = \"/{{*rest}}\"\nupstream = \"other\"\nlimits = [\"l\"]\n\
         [limits.l]\nkey = \"global\"\nrate = \"2/h\"\n",
        projects.url(),
        other.url()
    ));
    let answer = gateway.get("/projects/group%2Fproject/files");
    assert_eq!((answer.status, answer.header("ratelimit-policy")), (200, Some("\"l\";q=2;w=3600")));
    assert_eq!(projects.last().uri.path(), "/projects/group%2Fproject/files");
    assert_eq!(gateway.get("/projects/1/files").header("ratelimit-policy"), None);
    assert_eq!(gateway.get("/projects/group%2Fproject/files").status, 200);
    assert_eq!(gateway.get("/projects/group%2Fproject/files").status, 429);
    assert_eq!((projects.count(), other.count()), (3, 0));
}

/// nginx with these locations. It is killed with this value.
struct Nginx {
    process: Child,
    address: SocketAddr,
    _folder: TempDir,
}

impl Nginx {
    fn start(locations: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let path = folder.path().display();
        let paths: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|of| format!("{of}_temp_path {path}/{of}; "))
            .concat();
        let text = format!(
            "daemon off; master_process off; pid {path}/pid; error_log stderr crit;\n\
             events {{ worker_connections 64; }}\n\
             http {{ access_log off; {paths}keepalive_requests 100000; server {{ listen {address}; {locations} }} }}\n"
        );
        let file = folder.path().join("nginx.conf");
        fs::write(&file, text).unwrap();
        let start = |program: &str| {
            let mut command = Command::new(program);
            command.arg("-p").arg(folder.path()).arg("-c").arg(&file).stdin(Stdio::null()).spawn()
        };
        // Debian has it where only root looks.
        let process = start("nginx").or_else(|_| start("/usr/sbin/nginx"));
        let process = process.expect("no nginx: install it with your system's package manager");
        wait_until("nginx listens", || TcpStream::connect(address).is_ok());
        Self { process, address, _folder: folder }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
