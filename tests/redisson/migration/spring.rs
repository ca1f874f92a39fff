//! Spring Cloud Gateway with its RedisRateLimiter.

use std::{
    fs,
    net::{SocketAddr, TcpStream},
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

use jsonwebtoken::{EncodingKey, Header, encode, get_current_timestamp};
use serde_json::json;
use tempfile::TempDir;

use super::{Guide, with};
use crate::{
    harness::{
        client::{Answer, Client},
        gateway::Gateway,
        redis::{Redis, free_port},
        upstream::Upstream,
    },
    redisson::java,
};

const SECRET: &str = "0123456789abcdef0123456789abcdef";
/// The time for which Spring waits for Redis.
const TIMEOUT: Duration = Duration::from_millis(500);

/// Spring Cloud Gateway as bench/java has it.
struct Spring {
    process: Child,
    address: SocketAddr,
    _folder: TempDir,
}

impl Spring {
    /// Starts it with this application.yaml, if this machine has Maven.
    fn start(yaml: &str, redis: &Redis) -> Option<Self> {
        let target = java::build("bench/java", &[])?;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("application.yaml");
        fs::write(&file, yaml).unwrap();
        let port = free_port();
        let mut command = Command::new("java");
        command.args(["-cp", &format!("{0}/bench.jar:{0}/lib/*", target.display()), "bench.Gateway"]);
        command.arg(format!("--spring.config.location={}", file.display()));
        command.args(["--server.address=127.0.0.1".to_owned(), format!("--server.port={port}")]);
        command.arg(format!("--spring.data.redis.port={}", redis.port()));
        command.arg(format!("--spring.data.redis.timeout={}ms", TIMEOUT.as_millis()));
        let log = folder.path().join("log");
        command.stdout(fs::File::create(&log).unwrap());
        let mut spring = Self {
            process: command.spawn().expect("java comes with Maven"),
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            _folder: folder,
        };
        while TcpStream::connect(spring.address).is_err() {
            let has_ended = spring.process.try_wait().unwrap().is_some();
            assert!(!has_ended, "{}", fs::read_to_string(&log).unwrap());
            thread::sleep(Duration::from_millis(20));
        }
        Some(spring)
    }
}

impl Drop for Spring {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns the answer to a request of a user, or of nobody.
fn ask(gateway: SocketAddr, path: &str, user: &str) -> Answer {
    let claims = json!({ "sub": user, "exp": get_current_timestamp() + 600 });
    let token = encode(&Header::default(), &claims, &EncodingKey::from_secret(SECRET.as_bytes())).unwrap();
    // The resolver of bench/java takes X-Key for the name of a user who has authenticated.
    let who = format!("\nx-key: {user}\nauthorization: Bearer {token}");
    Client::connect(gateway).ask(&format!("GET {path}{}", if user.is_empty() { "" } else { &who }))
}

/// Returns the tokens that are left by a response.
fn left(answer: &Answer) -> u64 {
    let ours = || answer.header("ratelimit")?.split_once(";r=")?.1.split(';').next();
    let left = answer.header("x-ratelimit-remaining").or_else(ours);
    left.unwrap_or_else(|| panic!("{answer:?}")).parse().unwrap()
}

/// Asks until a request is refused. Returns the number of those that passed, and the refusal.
fn exhaust(gateway: SocketAddr, path: &str, user: &str) -> (usize, Answer) {
    for passed in 0..5_000 {
        let answer = ask(gateway, path, user);
        if answer.status != 200 {
            return (passed, answer);
        }
    }
    panic!("5000 requests pass");
}

/// Returns what is left when a request passes after others were refused, and the time since the last of them.
fn refilled(gateway: SocketAddr, path: &str, user: &str) -> (u64, Duration) {
    let mut refused_at = None;
    loop {
        let asked_at = Instant::now();
        let answer = ask(gateway, path, user);
        match (answer.status, refused_at) {
            (429, _) => refused_at = Some(asked_at),
            (_, Some(refused_at)) => return (left(&answer), refused_at.elapsed()),
            (_, None) => {}
        }
    }
}

/// Spring with the route of the page and others that are made of it, and what a gateway gets that has the page's file.
struct Sides {
    redis: Redis,
    upstream: Upstream,
    spring: Spring,
    toml: String,
}

impl Sides {
    /// Starts Spring, if this machine has Maven.
    fn start(guide: &Guide) -> Option<Self> {
        let (redis, upstream) = (Redis::start(), Upstream::hello());
        let (head, route) = guide.block("yaml").split_once('\n').unwrap();
        let slow = with(route, "replenishRate: 10", "replenishRate: 1");
        let slow = with(&slow, "burstCapacity: 20", "burstCapacity: 60");
        let slow = with(&slow, "requestedTokens: 1", "requestedTokens: 60");
        let open = with(route, "key-resolver:", "deny-empty-key: false\n          key-resolver:");
        let dear = with(route, "requestedTokens: 1", "requestedTokens: 21");
        let others = [("slow", &slow), ("too", &slow), ("open", &open), ("dear", &dear)];
        let others = others.map(|(name, route)| route.replace("orders", name)).concat();
        let yaml = format!("{head}\n{route}{others}").replace("http://127.0.0.1:3000", &upstream.url());
        let toml = with(guide.block("toml"), "http://127.0.0.1:3000", &upstream.url());
        let toml = with(&toml, "[store]\nurl = \"redis://127.0.0.1:6379\"\n", &redis.store());
        let spring = Spring::start(&yaml, &redis)?;
        Some(Self { redis, upstream, spring, toml })
    }

    /// Starts a gateway with the page's file, changed so.
    fn gateway(&self, changes: &[(&str, &str)]) -> Gateway {
        let toml = changes.iter().fold(self.toml.clone(), |toml, (part, instead)| with(&toml, part, instead));
        Gateway::start_with(&toml, &["run", "--listen", "127.0.0.1:0"], &[("JWT_SECRET", SECRET)])
    }
}

#[test]
fn the_page_says_what_differs_from_spring() {
    let mut guide = Guide::of("\n## Spring Cloud Gateway");
    let Some(mut sides) = Sides::start(&guide) else { return };
    let ours = sides.gateway(&[]);
    let both = [sides.spring.address, ours.address()];
    ask_once(&mut guide, both, &sides.upstream);
    take_a_burst(&mut guide, both);
    ask_of_others(&mut guide, &sides);
    lose_redis(&mut guide, &mut sides);
    guide.assert_complete();
}

/// Single requests: which are the route's, and what the upstream gets.
fn ask_once(guide: &mut Guide, both: [SocketAddr; 2], upstream: &Upstream) {
    for path in ["/v1/orders/7", "/v1/orders/7/items", "/v1/orders", "/v1/ordersX", "/"] {
        guide.same(path, both.map(|gateway| ask(gateway, path, "alice").status));
    }
    let sent = both.map(|gateway| {
        ask(gateway, "/v1/orders/7", "alice");
        upstream.last().headers
    });
    guide.same("the host that the upstream is asked for", sent.each_ref().map(|sent| &sent["host"]));
    let names = ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-request-id", "via"];
    let has_them = sent.each_ref().map(|sent| names.map(|name| sent.contains_key(name)));
    let sentence = "The service also gets `X-Forwarded-For`, `-Proto` and `-Host`, `X-Request-Id` and `Via`";
    guide.differs(sentence, has_them, [[false; 5], [true; 5]]);
    let nobody = both.map(|gateway| ask(gateway, "/v1/orders/7", "").status);
    guide.differs("`missing = \"deny\"`, which answers 429 instead of 403", nobody, [403, 429]);
}

/// A burst, what follows it, and a second key.
fn take_a_burst(guide: &mut Guide, both: [SocketAddr; 2]) {
    let path = "/v1/orders/7";
    guide.same("left after the first", both.map(|gateway| left(&ask(gateway, path, "bob"))));
    let exhausted = both.map(|gateway| exhaust(gateway, path, "bob"));
    let is_whole = |(passed, _): &(usize, Answer)| *passed >= 19;
    guide.same("the burst", exhausted.each_ref().map(is_whole));
    guide.same("its end", exhausted.each_ref().map(|(_, refusal)| refusal.status));
    let explains = |(_, refusal): &(usize, Answer)| {
        (refusal.header("retry-after").is_some(), refusal.header("content-type").is_some())
    };
    let explained = exhausted.each_ref().map(explains);
    let sentence = "Rejections have `Retry-After` and a body; Spring's have neither";
    guide.differs(sentence, explained, [(false, false), (true, true)]);
    let names = exhausted.each_ref().map(|(_, refusal)| {
        ["x-ratelimit-remaining", "ratelimit"].map(|name| refusal.header(name).is_some())
    });
    let sentence = "`RateLimit` and `RateLimit-Policy`, or `ratelimit_headers = \"x-ratelimit\"`";
    guide.differs(sentence, names, [[true, false], [false, true]]);
    // Ten more for each of Spring's seconds, and one of ours each 100 ms since the last refusal.
    let [(left, _), (left_of_ours, since)] = both.map(|gateway| refilled(gateway, path, "bob"));
    let found = [left % 10 == 9, u128::from(left_of_ours) <= since.as_millis() / 100];
    let sentence = "ten tokens are added at once each second. Here one is added every 100 ms";
    guide.differs(sentence, found, [true, true]);
    guide.same("a second key", both.map(|gateway| self::left(&ask(gateway, path, "carol"))));
}

/// The changes that turn the page's file into one of a request a minute, for two routes.
const SLOW: [(&str, &str); 4] = [
    ("\"10/s\"", "\"1/min\""),
    ("burst     = 20", "burst = 1"),
    ("/v1/orders/{*rest}", "/v1/slow/{*rest}"),
    (
        "[[routes]]",
        "[[routes]]\npath = \"/v1/too/7\"\nupstream = \"orders\"\nlimits = [\"per-user\"]\n[[routes]]",
    ),
];

/// Routes and files that are made of the page's as its table says.
fn ask_of_others(guide: &mut Guide, sides: &Sides) {
    let spring = sides.spring.address;
    let ours = sides.gateway(&[("\"deny\"", "\"skip\""), ("/v1/orders/", "/v1/open/")]);
    let nobody = [spring, ours.address()].map(|gateway| ask(gateway, "/v1/open/7", "").status);
    guide.same("deny-empty-key: false", nobody);

    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("gateway.toml"), with(&sides.toml, "cost      = 1 ", "cost = 21 ")).unwrap();
    let mut check = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    check.args(["check", "gateway.toml"]).current_dir(&folder).env("JWT_SECRET", SECRET);
    let errors = String::from_utf8(check.output().unwrap().stderr).unwrap();
    let never = [ask(spring, "/v1/dear/7", "dave").status == 429, errors.contains("can never be admitted")];
    guide.differs(
        "A cost that never fits is an error in the file. Spring rejects every request.",
        never,
        [true; 2],
    );

    let ours = sides.gateway(&SLOW);
    let statuses = |gateway, paths: [&str; 3], user| paths.map(|path| ask(gateway, path, user).status);
    let paths = ["/v1/slow/7", "/v1/slow/7", "/v1/too/7"];
    let found = [spring, ours.address()].map(|gateway| statuses(gateway, paths, "dave"));
    let sentence = "Spring counts per route and key. Here a limit that several routes name is one count";
    guide.differs(sentence, found, [[200, 429, 200], [200, 429, 429]]);
    let by_route = [&SLOW[..], &[("\"jwt:sub\"", "[\"route\", \"jwt:sub\"]")]].concat();
    let ours = sides.gateway(&by_route);
    guide.same("with `route` in the key", [found[0], statuses(ours.address(), paths, "dave")]);
}

/// Requests while Redis is away.
fn lose_redis(guide: &mut Guide, sides: &mut Sides) {
    let ours = sides.gateway(&SLOW);
    let [spring, ours] = [sides.spring.address, ours.address()];
    let three = |gateway| [(); 3].map(|()| ask(gateway, "/v1/slow/7", "erin").status);
    assert_eq!(left(&ask(ours, "/v1/slow/7", "frank")), 0);
    sides.redis.kill();
    let since = Instant::now();
    let found = [three(spring), three(ours)];
    let sentence = "When Redis fails, Spring admits every request, each after `spring.data.redis.timeout`";
    guide.differs(sentence, [found[0], found[1]], [[200; 3], [200, 429, 429]]);
    assert!(since.elapsed() >= 3 * TIMEOUT);
    let allow = ("[limits.per-user]", "[limits.per-user]\non_failure = \"allow\"");
    let ours = sides.gateway(&[&SLOW[..], &[allow]].concat());
    guide.same("on_failure = \"allow\"", [found[0], three(ours.address())]);
}
