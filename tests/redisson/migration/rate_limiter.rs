//! Redisson's `RRateLimiter`, a program with the library, and a gateway.

use std::{
    error::Error,
    process::Command,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use tokio::runtime::Builder;
use tollgate_limiter::{
    Ask, BlockingLimiter, Counted, Limit, Limiter, Rate, Refusal, StoreError, StoreSettings,
};

use super::{Guide, compact, with};
use crate::{
    harness::{gateway::Gateway, redis::Redis, upstream::Upstream},
    redisson::{java::Java, rates::admin},
};

/// The page's program, for one request.
fn log_in(url: &str, user: &str) -> Result<(), Box<dyn Error>> {
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let limiter = Limiter::connect(url)?;
        let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
        limiter.try_acquire(Ask::new(&logins, user)).await?; // the error says when to retry
        Ok(())
    })
}

/// Returns how many of seven requests of a user the program admits, if Redis answered all of them in time.
fn taken_by_program(sides: &Sides) -> u64 {
    let url = sides.redis.url();
    for user in (0..100).map(|attempt| format!("alice-{attempt}")) {
        let taken = (0..7).filter(|_| log_in(&url, &user).is_ok()).count() as u64;
        let left = sides.limiter.peek(&ask(&user)).unwrap().remaining();
        if taken + left == 5 {
            return taken;
        }
    }
    panic!("Redis never answered in time");
}

/// Java, the library and a gateway with the page's file. Java has a Redis of its own.
struct Sides {
    of_java: Redis,
    java: Java,
    redis: Redis,
    limiter: BlockingLimiter,
    gateway: Gateway,
    toml: String,
    _upstream: Upstream,
}

impl Sides {
    /// Starts them, if this machine has Maven.
    fn start(guide: &Guide) -> Option<Self> {
        let (of_java, redis, upstream) = (Redis::start(), Redis::start(), Upstream::hello());
        let java = Java::start(&of_java)?;
        let toml = with(guide.block("toml"), "http://127.0.0.1:3000", &upstream.url());
        let toml = with(&toml, "[store]\nurl = \"redis://127.0.0.1:6379\"\n", &redis.store());
        let toml = format!("{toml}[admin]\nlisten = \"127.0.0.1:0\"\n");
        let gateway = Gateway::start(&toml);
        let settings =
            StoreSettings { timeout: Duration::from_secs(5), ..StoreSettings::at(&redis.url()).unwrap() };
        let limiter = BlockingLimiter::open(&settings).unwrap();
        Some(Self { of_java, java, redis, limiter, gateway, toml, _upstream: upstream })
    }

    /// Runs a command of Java's program, and returns its error.
    fn error_of_java(&mut self, command: &str) -> Option<String> {
        self.java.send(command);
        self.java.answer()["error"].as_str().map(str::to_owned)
    }

    /// Runs `tollgate limits` with these words. Returns true if it did so, and what it said.
    fn limits(&self, words: &str) -> (bool, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.arg("limits").args(words.split(' ')).args(["--admin", &admin(&self.gateway)]);
        let output = command.output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    }

    /// Tries to get so many permits, one by one, and returns the number that each side got.
    fn take(&mut self, user: &str, times: usize) -> [usize; 3] {
        let by_java = self.java.granted(&format!("acquire logins:{user} {times} 1")) as usize;
        let ask = ask(user);
        let by_library = (0..times).filter(|_| self.limiter.try_acquire(&ask).is_ok()).count();
        let path = format!("/login/{user}");
        let by_gateway = (0..times).filter(|_| self.gateway.get(&path).status == 200).count();
        [by_java, by_library, by_gateway]
    }

    /// Returns what is left on each side.
    fn left(&mut self, user: &str) -> [u64; 3] {
        let by_java = self.java.granted(&format!("available logins:{user}"));
        let (_, shown) = self.limits(&format!("show logins {user}"));
        let of_gateway = shown.lines().find_map(|line| line.strip_prefix("left  ")).unwrap();
        [by_java, self.limiter.peek(&ask(user)).unwrap().remaining(), of_gateway.parse().unwrap()]
    }

    /// Sets a rate on each side, unless one is set. Returns true where it did.
    fn set_if_absent(&mut self, user: &str, permits: u32) -> [bool; 3] {
        let by_java = self.java.run(&format!("try_set logins:{user} overall {permits} 60000"));
        let by_library = self.limiter.set_rate_if_absent(&ask(user), rate(&format!("{permits}/min")));
        let by_gateway = self.limits(&format!("set logins {user} {permits}/min --if-absent"));
        [by_java == true, by_library.unwrap(), by_gateway.0]
    }

    /// Sets the page's rate in Java, where each name needs one.
    fn set(&mut self, user: &str) {
        assert_eq!(self.java.run(&format!("try_set logins:{user} overall 5 60000")), true);
    }
}

fn ask(user: &str) -> Ask {
    Ask::new(&Arc::new(Limit::new("logins", rate("5/min"))), user)
}

fn rate(text: &str) -> Rate {
    text.parse().unwrap()
}

#[test]
fn the_page_says_what_differs_from_redisson() {
    let mut guide = Guide::of("\n## Redisson `RRateLimiter`");
    let Some(mut sides) = Sides::start(&guide) else { return };
    assert!(guide.block("java").contains("trySetRate(RateType.OVERALL, 5, 1, RateIntervalUnit.MINUTES)"));
    take(&mut guide, &mut sides);
    change_rates(&mut guide, &mut sides);
    give_back_and_delete(&mut guide, &mut sides);
    wait(&mut guide, &mut sides);
    look_into_redis(&mut guide, &mut sides);
    run_out_of_memory(&mut guide, &mut sides);
    guide.assert_complete();
}

/// The program of the page, and what is taken of a limiter.
fn take(guide: &mut Guide, sides: &mut Sides) {
    let program = guide.block("rust").replace("\"redis://127.0.0.1:6379\"", "url");
    for line in program.lines().map(compact) {
        assert!(compact(include_str!("rate_limiter.rs")).contains(&line), "log_in lacks {line}");
    }
    sides.set("alice");
    let by_java = sides.java.granted("acquire logins:alice 7 1");
    guide.same("the program", [by_java, taken_by_program(sides)]);
    sides.set("bob");
    let taken = sides.take("bob", 7);
    guide.same("a burst", taken);
    let left = sides.left("bob");
    guide.same("what is left of it", left);
    // A name without a rate, and one whose limiter was deleted.
    let error = sides.error_of_java("acquire logins:carol 1 1");
    let found = [error.is_none(), sides.limiter.try_acquire(ask("carol")).is_ok(), {
        sides.gateway.get("/login/carol").status == 200
    }];
    guide.differs("raises an exception for a limiter without a rate", found, [false, true, true]);
    // Several permits, and more than there ever are.
    sides.set("dave");
    let with_cost = with(&sides.toml, "\"5/min\"", "\"5/min\"\ncost = \"header:x-cost\"");
    let gateway = Gateway::start(&with_cost);
    let gateway = |cost: u32| gateway.client().get_with("/login/dave", &format!("x-cost: {cost}\r\n"));
    let several = [
        sides.java.granted("acquire logins:dave 2 3"),
        (0..2).filter(|_| sides.limiter.try_acquire(ask("dave").cost(3)).is_ok()).count() as u64,
        (0..2).filter(|_| gateway(3).status == 200).count() as u64,
    ];
    guide.same("three permits of five, twice", several);
    let error = sides.error_of_java("acquire logins:dave 1 6");
    let refusal = sides.limiter.try_acquire(ask("dave").cost(6)).unwrap_err();
    let is_for_good = matches!(refusal, Refusal::Limited(_)) && refusal.retry_after().is_none();
    let answer = gateway(6);
    let found =
        [error.is_some(), is_for_good, answer.status == 429 && answer.header("retry-after").is_none()];
    guide.differs(
        "raise an exception in Redisson's script; here the request is rejected without a retry time",
        found,
        [true; 3],
    );
}

/// trySetRate, setRate and updateRate.
fn change_rates(guide: &mut Guide, sides: &mut Sides) {
    let first = sides.set_if_absent("erin", 5);
    guide.same("trySetRate", first);
    let second = sides.set_if_absent("erin", 9);
    guide.same("trySetRate again", second);
    // A service that sets the rate before each request.
    let mut taken = [0; 3];
    for _ in 0..7 {
        sides.java.run("set logins:erin overall 5 60000");
        sides.limiter.set_rate(&ask("erin"), rate("5/min"), Counted::Kept).unwrap();
        assert!(sides.limits("set logins erin 5/min").0);
        let granted = sides.take("erin", 1);
        taken.iter_mut().zip(granted).for_each(|(taken, granted)| *taken += granted);
    }
    guide.differs("so a service that calls it before each request [limits nothing]", taken, [7, 5, 5]);
    sides.limiter.set_rate(&ask("erin"), rate("5/min"), Counted::Forgotten).unwrap();
    sides.java.run("set logins:erin overall 5 60000");
    let [by_java, by_library, _] = sides.left("erin");
    guide.same("setRate that forgets", [by_java, by_library]);
    // updateRate, first where no rate is set.
    let update = |sides: &mut Sides, user: &str| {
        let is_updated = sides.limiter.update_rate(&ask(user), rate("8/min"), Counted::Kept).unwrap();
        [sides.java.run(&format!("update logins:{user} overall 8 60000 0 keep")) == true, is_updated]
    };
    let updated = update(sides, "frank");
    guide.same("updateRate of none", updated);
    assert_eq!(sides.set_if_absent("frank", 5), [true; 3]);
    let taken = sides.take("frank", 3);
    guide.same("before updateRate", taken);
    let updated = update(sides, "frank");
    guide.same("updateRate", updated);
    assert!(sides.limits("set logins frank 8/min").0);
    let left = sides.left("frank");
    guide.same("what is left after updateRate", left);
}

/// release, delete, and the clients that count apart.
fn give_back_and_delete(guide: &mut Guide, sides: &mut Sides) {
    sides.set("gina");
    let refunding = Ask::new(&Arc::new(Limit::clone(ask("gina").limit()).with_refunds()), "gina");
    assert_eq!(sides.java.granted("acquire logins:gina 3 1"), 3);
    sides.java.run("release logins:gina 2");
    assert!(sides.limiter.try_acquire(refunding.clone().cost(3)).is_ok());
    let release = |ask: Ask| sides.limiter.run(async move |limiter| limiter.release(&ask, None).await);
    assert!(release(refunding.clone().cost(2)).unwrap());
    let left =
        [sides.java.granted("available logins:gina"), sides.limiter.peek(&refunding).unwrap().remaining()];
    guide.same("what is left after release", left);
    let is_supported = !matches!(release(ask("gina")), Err(StoreError::Unsupported(_)));
    guide.differs(
        "`release`, in Redisson's layout and of limits with refunds",
        [true, is_supported],
        [true, false],
    );
    // The counts go, and with `delete` the rate that was set.
    assert_eq!(sides.set_if_absent("hugo", 3), [true; 3]);
    sides.take("hugo", 2);
    assert_eq!(sides.java.run("delete logins:hugo"), true);
    let is_deleted = sides.limiter.run(async |limiter| limiter.delete(&ask("hugo")).await);
    assert!(is_deleted.unwrap() && sides.limits("reset logins hugo").0);
    sides.set("hugo");
    let left = sides.left("hugo");
    guide.differs("`reset` for the counts, `delete` for the rate, too", left, [5, 5, 3]);
    // RateType.PER_CLIENT.
    let mut another = Java::start(&sides.of_java).unwrap();
    sides.java.run("try_set logins:ines client 5 60000");
    let by_java = [&mut sides.java, &mut another].map(|java| java.granted("acquire logins:ines 7 1"));
    let alone = Arc::new(Limit::clone(ask("ines").limit()).in_this_process());
    let limiters = [&sides.redis, &sides.redis].map(|redis| BlockingLimiter::connect(&redis.url()).unwrap());
    let of_limiter = |limiter: &BlockingLimiter| {
        (0..7).filter(|_| limiter.try_acquire(Ask::new(&alone, "ines")).is_ok()).count() as u64
    };
    let toml = with(&sides.toml, "\"5/min\"", "\"5/min\"\nscope = \"instance\"");
    let gateways = [&toml, &toml].map(|toml| Gateway::start(toml));
    let of_gateway =
        |gateway: &Gateway| (0..7).filter(|_| gateway.get("/login/ines").status == 200).count() as u64;
    let by_us = [limiters.each_ref().map(of_limiter), gateways.each_ref().map(of_gateway)];
    guide.same("RateType.PER_CLIENT", [by_java, by_us[0], by_us[1]]);
}

/// tryAcquire with a timeout, and acquire.
fn wait(guide: &mut Guide, sides: &mut Sides) {
    sides.set("jane");
    sides.take("jane", 5);
    let (since, timeout) = (Instant::now(), Duration::from_millis(1_200));
    let waited = sides.java.run(&format!("wait logins:jane 1 {}", timeout.as_millis())) == false;
    let waited = waited && since.elapsed() >= timeout;
    let refusal = sides.limiter.acquire(ask("jane"), Some(timeout)).unwrap_err();
    let found = [waited, refusal.retry_after().is_some_and(|retry_after| retry_after > timeout)];
    guide.differs(
        "A caller whose time doesn't suffice is refused at once. Redisson lets it wait in vain",
        found,
        [true; 2],
    );
    // Five permits, one after the other, and then all of them at once.
    let one_after_the_other = |take: &mut dyn FnMut()| {
        (0..5).for_each(|_| {
            take();
            thread::sleep(Duration::from_millis(300));
        });
    };
    sides.java.run("try_set calls overall 5 7000");
    one_after_the_other(&mut || assert_eq!(sides.java.granted("acquire calls 1 1"), 1));
    let before = sides.of_java.scripts();
    assert_eq!(sides.java.run("wait calls 5 20000"), true);
    let asks_again = sides.of_java.scripts() - before > 2;
    let calls = Ask::new(&Arc::new(Limit::new("calls", rate("5/7s"))), "");
    one_after_the_other(&mut || drop(sides.limiter.try_acquire(&calls).unwrap()));
    let refusal = sides.limiter.try_acquire(calls.clone().cost(5)).unwrap_err();
    thread::sleep(refusal.retry_after().unwrap());
    let is_admitted = sides.limiter.try_acquire(calls.cost(5)).is_ok();
    let sentence = "Redisson waits for the oldest grant to expire, even if the request needs more permits, and asks again. \
                    Here the delay is exact for the permits requested";
    guide.differs(sentence, [asks_again, is_admitted], [true; 2]);
}

/// Compares what both leave in Redis, and whose clock they use.
fn look_into_redis(guide: &mut Guide, sides: &mut Sides) {
    sides.of_java.command(&["FLUSHALL"]);
    sides.redis.command(&["FLUSHALL"]);
    sides.of_java.command(&["CONFIG", "RESETSTAT"]);
    sides.redis.command(&["CONFIG", "RESETSTAT"]);
    sides.set("kim");
    let taken = sides.take("kim", 1);
    guide.same("one permit", taken);
    let asks_time = [&sides.of_java, &sides.redis]
        .map(|redis| redis.connect().command(&["INFO", "commandstats"]).text().contains("cmdstat_time:"));
    let sentence = "Redisson uses the client's clock: a client with a fast clock frees permits for all clients. Here, Redis's clock is used";
    guide.differs(sentence, asks_time, [false, true]);
    let of_java = sides.of_java.keys("*");
    let ours = sides.redis.keys("tollgate:logins:*=kim}");
    let sentence = "Redisson keeps the number of free permits in a second key beside the set";
    let has_value = of_java.contains(&"{logins:kim}:value".to_owned());
    // The library's and the gateway's.
    guide.differs(sentence, [has_value, ours.len() != 2], [true, false]);
    let stays = |redis: &Redis, keys: &[String]| {
        keys.iter().all(|key| redis.connect().command(&["PTTL", key]).integer() == -1)
    };
    let stay = [stays(&sides.of_java, &of_java), stays(&sides.redis, &ours)];
    let sentence = "Redisson's keys stay in Redis forever unless you set `keepAliveTime` or call `expire`. Here every count expires by itself";
    guide.differs(sentence, stay, [true, false]);
}

/// A Redis that takes no more writes.
fn run_out_of_memory(guide: &mut Guide, sides: &mut Sides) {
    sides.set("lea");
    for redis in [&sides.of_java, &sides.redis] {
        redis.command(&["CONFIG", "SET", "maxmemory", "1"]);
    }
    let error = sides.error_of_java("acquire logins:lea 1 1");
    let found = [
        error.is_none(),
        sides.limiter.try_acquire(ask("lea")).is_ok(),
        sides.gateway.get("/login/lea").status == 200,
    ];
    let sentence = "raises an exception in Redisson; here the limit's `on_failure` applies";
    guide.differs(sentence, found, [false, true, true]);
}
