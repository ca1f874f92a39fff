//! A store that goes down delays no request, and is used as soon as it is back.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    harness::{
        cut::{Cut, Fault},
        gateway::Gateway,
        judge::{Late, in_time, judge, within},
        load::{Answered, Load, most_within},
        redis::Redis,
        wait_until,
    },
    sleep_until,
};

const AWAY: Duration = Duration::from_secs(1);
/// The store's deadline of 50 ms, and as much again.
const ANSWERED_WITHIN: Duration = Duration::from_millis(100);
/// For all of them, however late a busy machine lets a thread run.
const NOTHING_HANGS: Duration = Duration::from_secs(10);
const BACK_WITHIN: Duration = Duration::from_millis(500);
/// What the machine may keep a thread waiting for, and all of these hold.
const PAUSE: Duration = Duration::from_millis(20);
/// Where a connection has lost what went through it, which only its silence tells.
const REPLACED_WITHIN: Duration = Duration::from_millis(1_000);

/// What goes wrong, and how it ends.
struct Outage {
    name: &'static str,
    leave: fn(&mut Redis, &Cut),
    come_back: fn(&mut Redis, &Cut),
    back_within: Duration,
}

/// What the connections suffer.
fn cut(name: &'static str, leave: fn(&mut Redis, &Cut), back_within: Duration) -> Outage {
    Outage { name, leave, come_back: |_, cut| cut.set(Fault::None), back_within }
}

fn outages() -> [Outage; 10] {
    [
        Outage {
            name: "stopped",
            leave: |redis, _| redis.pause(),
            come_back: |redis, _| redis.resume(),
            back_within: BACK_WITHIN,
        },
        Outage {
            name: "killed",
            leave: |redis, _| redis.kill(),
            come_back: |redis, _| redis.restart(),
            back_within: BACK_WITHIN,
        },
        Outage {
            name: "without memory",
            leave: |redis, _| drop(redis.command(&["CONFIG", "SET", "maxmemory", "1"])),
            come_back: |redis, _| drop(redis.command(&["CONFIG", "SET", "maxmemory", "0"])),
            back_within: BACK_WITHIN,
        },
        Outage {
            name: "demoted",
            leave: |redis, _| drop(redis.command(&["REPLICAOF", "127.0.0.1", "1"])),
            come_back: |redis, _| drop(redis.command(&["REPLICAOF", "NO", "ONE"])),
            back_within: BACK_WITHIN,
        },
        cut("refused", |_, cut| cut.set(Fault::Refuse), BACK_WITHIN),
        cut("reset", |_, cut| cut.set(Fault::Reset), BACK_WITHIN),
        cut("reset in a reply", |_, cut| cut.set(Fault::ResetAfter(700)), BACK_WITHIN),
        cut("slow", |_, cut| cut.set(Fault::Delay(Duration::from_millis(300))), REPLACED_WITHIN),
        cut("swallowed", |_, cut| cut.set(Fault::Swallow), REPLACED_WITHIN),
        cut("without replies", |_, cut| cut.set(Fault::SwallowReplies), REPLACED_WITHIN),
    ]
}

#[test]
fn answers_stay_in_time_while_the_store_is_away_and_it_is_back_at_once() {
    for outage in outages() {
        judge(PAUSE, || outage.passes_unnoticed());
    }
}

impl Outage {
    fn passes_unnoticed(&self) -> Result<(), Late> {
        let Self { name, leave, come_back, back_within } = self;
        let mut redis = Redis::start();
        let cut = Cut::before(redis.port());
        let gateway = Gateway::start(&format!(
            "[server]\nworkers = 2\n[store]\nurl = \"{}\"\n\
             [limits.l]\nkey = \"query:phase\"\nplain = true\nrate = \"1000000/h\"\n\
             [[routes]]\npath = \"/\"\nrespond = {{ status = 200 }}\nlimits = [\"l\"]\n",
            cut.url()
        ));
        let phase = Arc::new(AtomicUsize::new(0));
        let asked = phase.clone();
        let load = Load::start(&gateway, 8, move || format!("/?phase={}", asked.load(SeqCst)));
        load.wait_for(1_000);
        let left = Instant::now();
        leave(&mut redis, &cut);
        thread::sleep(AWAY);
        // Only what is asked from now on is counted under this key.
        phase.store(1, SeqCst);
        come_back(&mut redis, &cut);
        let back = Instant::now();
        wait_until("the store is used", || {
            redis.command(&["EXISTS", "tollgate:l:sw:{query:phase=1}"]) == "1"
        });
        let back = back.elapsed();
        load.wait_for(1_000);
        let answers = load.end();
        assert!(answers.iter().all(|answer| answer.status == 200), "{name}");
        let slowest = answers.iter().map(Answered::took).max().unwrap();
        assert!(slowest < NOTHING_HANGS, "{name}: an answer took {slowest:?}");
        within(back, *back_within, &format!("{name}: using the store again"))?;
        // While all was well, the machine alone made answers late.
        let (before, since): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.received < left);
        let [usual, of_a_hundred] = [before, since].map(one_of_a_hundred);
        in_time(of_a_hundred < usual + ANSWERED_WITHIN, || {
            format!("{name}: one of a hundred answers took {of_a_hundred:?}, and {usual:?} before")
        })
    }
}

/// Returns the time within which all but one of a hundred answers were there.
fn one_of_a_hundred(answers: Vec<&Answered>) -> Duration {
    let mut took: Vec<Duration> = answers.into_iter().map(Answered::took).collect();
    took.sort_unstable();
    took[took.len() * 99 / 100]
}

/// The answers to what asks the store, and to what doesn't: those tell what the machine alone makes of the time.
#[derive(Default)]
struct Answers {
    limited: Vec<Answered>,
    free: Vec<Answered>,
}

impl Answers {
    fn extend(&mut self, other: Self) {
        self.limited.extend(other.limited);
        self.free.extend(other.free);
    }
}

/// Clients that ask at fixed times, 200 a second in all, whatever the answers do; until the instant. After each answer
/// they ask for what has no limits.
fn ask_steadily(gateway: &Gateway, path: &str, until: Instant) -> Answers {
    const CLIENTS: u32 = 20;
    const EVERY: Duration = Duration::from_millis(100);
    let begin = Instant::now();
    let ask = |client: u32| {
        let mut connection = gateway.client();
        let mut answers = Answers::default();
        let mut due = begin + EVERY * client / CLIENTS;
        let mut ask = |path| {
            let sent = Instant::now();
            let status = connection.get(path).status;
            Answered { sent, received: Instant::now(), status }
        };
        while due < until {
            sleep_until(due);
            answers.limited.push(ask(path));
            answers.free.push(ask("/free"));
            due += EVERY;
        }
        answers
    };
    let ask = &ask;
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|client| scope.spawn(move || ask(client))).collect();
        let mut answers = Answers::default();
        clients.into_iter().for_each(|client| answers.extend(client.join().unwrap()));
        answers
    })
}

#[test]
fn a_store_that_stands_still_for_five_seconds_delays_nobody_while_limits_hold_here() {
    judge(PAUSE, stand_still);
}

fn stand_still() -> Result<(), Late> {
    const SHARE: usize = 20;
    const WINDOW: Duration = Duration::from_secs(1);
    let redis = Redis::start();
    let gateway = Gateway::start(&format!(
        "[server]\nworkers = 2\n[store]\nurl = \"{}\"\ninstances = 2\n\
         [limits.l]\nkey = \"query:k\"\nplain = true\nrate = \"{}/s\"\n\
         [[routes]]\npath = \"/\"\nrespond = {{ status = 200 }}\nlimits = [\"l\"]\n\
         [[routes]]\npath = \"/free\"\nrespond = {{ status = 204 }}\n",
        redis.url(),
        2 * SHARE
    ));
    let ask_for = |path, time| ask_steadily(&gateway, path, Instant::now() + time);
    let mut answers = ask_for("/?k=before", WINDOW);
    redis.pause();
    let stopped = Instant::now();
    let during = ask_for("/?k=during", 5 * WINDOW);
    redis.resume();
    let resumed = Instant::now();
    let used = thread::scope(|scope| {
        let load = scope.spawn(|| ask_for("/?k=after", 2 * WINDOW));
        wait_until("the store is used", || {
            redis.command(&["EXISTS", "tollgate:l:sw:{query:k=after}"]) == "1"
        });
        let used = resumed.elapsed();
        answers.extend(load.join().unwrap());
        used
    });
    let passed: Vec<_> = during.limited.iter().filter(|answer| answer.status == 200).copied().collect();
    let most = most_within(&passed, WINDOW);
    assert!(most <= SHARE, "{most} passed within a window");
    answers.extend(during);
    assert!(answers.limited.iter().all(|answer| matches!(answer.status, 200 | 429)));
    in_time(passed.len() >= 4 * SHARE, || format!("{} passed in {:?}", passed.len(), resumed - stopped))?;
    within(used, BACK_WITHIN, "using the store again")?;
    let [limited, free] =
        [&answers.limited, &answers.free].map(|answers| answers.iter().map(Answered::took).max().unwrap());
    in_time(limited < free + ANSWERED_WITHIN, || {
        format!("an answer took {limited:?}, without limits {free:?}")
    })
}
