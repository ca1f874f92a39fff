//! Requests that wait for room.

use std::{
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use tokio::{
    runtime::Builder,
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep, timeout},
};
use tollgate_limiter::{Admission, Algorithm, Ask, Limit, Limiter, OnFailure, Quota, Refusal};

use crate::{
    harness::{
        cut::{Cut, Fault},
        judge::{Late, in_time, judge, within},
        redis::Redis,
    },
    limiter::{after, ask, block_on, limit, limited, patient, queued, quota, told},
};

const MS: Duration = Duration::from_millis(1);
/// What the machine may keep a thread waiting for, and all of these hold.
const PAUSE: Duration = Duration::from_millis(10);

type Waiter = JoinHandle<Result<Admission, Refusal>>;

/// Starts to acquire, and returns when that waits or is over, and a store on this machine has mostly told when there will be room.
async fn begin(limiter: &Arc<Limiter>, asks: Vec<Ask>, deadline: Option<Instant>) -> Waiter {
    let acquiring = limiter.clone();
    let waiter = queued(limiter, async move { acquiring.acquire(&asks, deadline).await }).await;
    sleep(15 * MS).await;
    waiter
}

/// Runs a test on both stores, each time on a new one.
fn on_both_stores<F: Future<Output = Result<(), Late>>>(test: impl Fn(Arc<Limiter>) -> F) {
    judge(PAUSE, || on("memory:", &test));
    judge(PAUSE, || on(&Redis::start().url(), &test));
}

fn on<F: Future<Output = Result<(), Late>>>(url: &str, test: impl Fn(Arc<Limiter>) -> F) -> Result<(), Late> {
    block_on(async {
        let limiter = patient(url);
        let warm = limiter.warm_up().await;
        in_time(warm.is_ok(), || format!("warming up: {warm:?}"))?;
        test(limiter).await
    })
}

#[test]
fn a_refused_request_is_served_when_its_room_appears() {
    on_both_stores(async |limiter| {
        let limit = limit("l", "2/300ms");
        let since = Instant::now();
        limiter.try_acquire(&[ask(&limit, 2)]).await.unwrap();
        let admitted = limiter.acquire(&[ask(&limit, 1)], after(20_000)).await.unwrap();
        assert!(since.elapsed() >= 300 * MS, "{:?}", since.elapsed());
        assert_eq!(admitted.standings()[0].outcome.remaining, 1);
        // Without a deadline it waits as long as it takes.
        limiter.acquire(&[ask(&limit, 2)], None).await.unwrap();
        assert!(since.elapsed() >= 600 * MS, "{:?}", since.elapsed());
        Ok(())
    });
}

#[test]
fn first_come_first_served_whatever_the_cost() {
    on_both_stores(async |limiter| {
        let limit = limit("l", "3/200ms");
        let since = Instant::now();
        limiter.try_acquire(&[ask(&limit, 2)]).await.unwrap();
        let (served, mut order) = tokio::sync::mpsc::unbounded_channel();
        // The second would fit at once, and so would the fourth beside the third.
        for (turn, cost) in [3, 1, 3, 1, 1].into_iter().enumerate() {
            let (acquiring, asks, served) = (limiter.clone(), [ask(&limit, cost)], served.clone());
            queued(&limiter, async move {
                acquiring.acquire(&asks, None).await.unwrap();
                // Nobody receives it if the test is repeated.
                let _ = served.send(turn);
            })
            .await;
        }
        within(since.elapsed(), 200 * MS, "queueing five")?;
        for turn in 0..5 {
            assert_eq!(order.recv().await, Some(turn));
        }
        Ok(())
    });
}

/// Three requests queue in their order, though the third comes while the second still has no answer.
#[test]
fn first_come_first_served_however_far_away_redis_is() {
    let redis = Redis::start();
    let cut = Cut::before(redis.port());
    let trial = async || {
        let (limiter, limit) = (patient(&cut.url()), limit("l", "1/700ms"));
        cut.set(Fault::None);
        limiter.warm_up().await.unwrap();
        // Only Redis knows that the limit is full.
        patient(&redis.url()).acquire(&[ask(&limit, 1)], None).await.unwrap();
        cut.set(Fault::Delay(50 * MS));
        let full = Instant::now();
        let (served, mut order) = tokio::sync::mpsc::unbounded_channel();
        let begin = |turn| {
            let (acquiring, asks, served) = (limiter.clone(), [ask(&limit, 1)], served.clone());
            tokio::spawn(async move {
                acquiring.acquire(&asks, None).await.unwrap();
                // Nobody receives it if the test is repeated.
                let _ = served.send(turn);
            });
        };
        begin(1);
        sleep(20 * MS).await;
        begin(2);
        while limiter.waiting() == 0 {
            within(full.elapsed(), 600 * MS, "queueing while the limit is full")?;
            sleep(MS).await;
        }
        begin(3);
        for turn in 1..=3 {
            assert_eq!(order.recv().await, Some(turn));
        }
        Ok(())
    };
    judge(PAUSE, || block_on(trial()));
}

/// It would hold up those behind it until there is room for all of it, and then be refused.
#[test]
fn who_is_refused_by_another_limit_takes_no_place() {
    on_both_stores(async |limiter| {
        let waits = Arc::new(Limit::new("waits", quota("2/500ms")).wait_at_most(Duration::from_secs(10)));
        let refuses = limit("refuses", "1/h");
        limiter.try_acquire(&[ask(&refuses, 1)]).await.unwrap();
        limiter.try_acquire(&[ask(&refuses, 1)]).await.unwrap_err();
        let since = Instant::now();
        limiter.try_acquire(&[ask(&waits, 2)]).await.unwrap();
        let waiter = begin(&limiter, vec![ask(&waits, 1)], None).await;
        let both = [ask(&waits, 2), ask(&refuses, 1)];
        let refused = limiter.acquire_within_waits(&both, Instant::now()).await;
        within(since.elapsed(), 490 * MS, "refusing it")?;
        let refused = limited(refused.unwrap_err());
        assert!(refused.violated().eq(["refuses"]), "{refused:?}");
        waiter.await.unwrap().unwrap();
        // For one that waits for the other limit, too, there is a place.
        let patient = begin(&limiter, both.to_vec(), None).await;
        assert!(!patient.is_finished());
        patient.abort();
        Ok(())
    });
}

/// Two places are all that one key of a limit without `wait` can use, however many requests ask for them.
#[test]
fn no_more_requests_wait_than_their_other_limit_serves_in_time() {
    on_both_stores(async |limiter| {
        let waits = Arc::new(Limit::new("waits", quota("2/500ms")).wait_at_most(Duration::from_secs(10)));
        let few = limit("few", "2/h");
        limiter.try_acquire(&[ask(&waits, 2)]).await.unwrap();
        let both = vec![ask(&waits, 1), ask(&few, 1)];
        let since = Instant::now();
        let mut all = JoinSet::new();
        for _ in 0..20 {
            let (limiter, both) = (limiter.clone(), both.clone());
            all.spawn(async move { limiter.acquire_within_waits(&both, Instant::now()).await });
        }
        for _ in 0..18 {
            let refused = limited(all.join_next().await.unwrap().unwrap().unwrap_err());
            assert!(refused.violated().eq(["few"]), "{refused:?}");
        }
        within(since.elapsed(), 490 * MS, "refusing those that would wait in vain")?;
        for admitted in all.join_all().await {
            admitted.unwrap();
        }
        // Permits that come back in time are waited for.
        let soon = limit("soon", "1/100ms");
        let both = vec![ask(&waits, 1), ask(&soon, 1)];
        let mut all = JoinSet::new();
        for _ in 0..9 {
            let (limiter, both) = (limiter.clone(), both.clone());
            all.spawn(async move { limiter.acquire_within_waits(&both, Instant::now()).await });
        }
        let since = Instant::now();
        while limiter.waiting() < 9 {
            in_time(since.elapsed() < 400 * MS, || format!("{} wait", limiter.waiting()))?;
            sleep(MS).await;
        }
        Ok(())
    });
}

#[test]
fn who_waits_holds_no_place_among_those_in_flight() {
    on_both_stores(async |limiter| {
        let waits = Arc::new(Limit::new("waits", quota("3/300ms")).wait_at_most(Duration::from_secs(2)));
        let in_flight = Arc::new(Limit::new("inflight", Quota::concurrency(3)));
        limiter.try_acquire(&[ask(&waits, 3)]).await.unwrap();
        let both = [ask(&waits, 1), ask(&in_flight, 1)];
        let mut all = JoinSet::new();
        for _ in 0..9 {
            let (limiter, both) = (limiter.clone(), both.clone());
            // Each ends as soon as it is admitted.
            all.spawn(async move { limiter.acquire_within_waits(&both, Instant::now()).await.map(drop) });
        }
        let served = all.join_all().await;
        in_time(served.iter().all(Result::is_ok), || format!("{served:?}"))
    });
}

/// They may take its permits much later.
#[test]
fn who_waits_in_another_queue_takes_no_room() {
    on_both_stores(async |limiter| {
        let (shared, slow) = (limit("shared", "20/s"), limit("slow", "1/h"));
        limiter.try_acquire(&[ask(&slow, 1)]).await.unwrap();
        let mut waiting = JoinSet::new();
        for _ in 0..60 {
            let limiter = limiter.clone();
            let asks = [ask(&shared, 1), ask(&slow, 1)];
            waiting.spawn(async move { limiter.acquire(&asks, None).await });
        }
        let since = Instant::now();
        while limiter.waiting() < 60 {
            in_time(since.elapsed() < 5_000 * MS, || format!("{} wait", limiter.waiting()))?;
            sleep(MS).await;
        }
        let fast = Arc::new(Limit::new("fast", quota("1/300ms")).wait_at_most(Duration::from_millis(900)));
        let both = [ask(&shared, 1), ask(&fast, 1)];
        limiter.try_acquire(&both).await.unwrap();
        // Two, as the first in a queue asks nothing.
        let served = tokio::join!(
            limiter.acquire_within_waits(&both, Instant::now()),
            limiter.acquire_within_waits(&both, Instant::now())
        );
        in_time(served.0.is_ok() && served.1.is_ok(), || format!("refused for another queue: {served:?}"))?;
        Ok(())
    });
}

#[test]
fn who_does_not_wait_does_not_pass_those_who_do() {
    on_both_stores(async |limiter| {
        let limit = limit("l", "2/300ms");
        let since = Instant::now();
        limiter.try_acquire(&[ask(&limit, 1)]).await.unwrap();
        let waiter = begin(&limiter, vec![ask(&limit, 2)], None).await;
        // One permit is free, but it comes after the other two.
        let passing = limiter.try_acquire(&[ask(&limit, 1)]).await;
        within(since.elapsed(), 300 * MS, "asking before the first permit is back")?;
        let told = told(passing.unwrap_err());
        assert!(since.elapsed() + told >= 600 * MS && told <= 600 * MS, "{told:?}");
        waiter.await.unwrap().unwrap();
        Ok(())
    });
}

#[test]
fn who_can_not_be_served_in_time_is_refused_at_once() {
    on_both_stores(async |limiter| {
        let limit = limit("l", "2/400ms");
        let since = Instant::now();
        limiter.try_acquire(&[ask(&limit, 2)]).await.unwrap();
        let refused = limiter.acquire(&[ask(&limit, 1)], after(200)).await;
        within(since.elapsed(), 200 * MS, "refusing the first")?;
        assert!((200 * MS..=400 * MS).contains(&told(refused.unwrap_err())));
        // Its own permit would be free in time, but not behind the two that wait.
        let waiter = begin(&limiter, vec![ask(&limit, 2)], None).await;
        let refused = limiter.acquire(&[ask(&limit, 1)], after(600)).await;
        within(since.elapsed(), 200 * MS, "refusing the second")?;
        let told = told(refused.unwrap_err());
        assert!(since.elapsed() + told >= 800 * MS && told <= 800 * MS, "{told:?}");
        let behind = begin(&limiter, vec![ask(&limit, 1)], after(900)).await;
        waiter.await.unwrap().unwrap();
        in_time(behind.await.unwrap().is_ok(), || "the last was refused".to_owned())?;
        assert!(since.elapsed() >= 800 * MS);
        // What a limit never allows isn't waited for.
        let waiter = begin(&limiter, vec![ask(&limit, 2)], None).await;
        let never = limiter.acquire(&[ask(&limit, 3)], None).await.unwrap_err();
        assert_eq!(limited(never).delay_us(), None);
        drop(waiter);
        Ok(())
    });
}

#[test]
fn those_whose_room_appears_together_go_in_one_call_and_none_is_made_meanwhile() {
    judge(PAUSE, || {
        let redis = Redis::start();
        block_on(async {
            let limiter = patient(&redis.url());
            limiter.warm_up().await.unwrap();
            let limit = limit("l", "6/500ms");
            limiter.try_acquire(&[ask(&limit, 6)]).await.unwrap();
            let since = Instant::now();
            let mut waiters = Vec::new();
            for cost in [1, 2, 1, 2] {
                waiters.push(begin(&limiter, vec![ask(&limit, cost)], None).await);
            }
            within(since.elapsed(), 200 * MS, "beginning to wait")?;
            sleep((200 * MS).saturating_sub(since.elapsed())).await;
            let before = redis.scripts();
            sleep(Duration::from_millis(400).saturating_sub(since.elapsed())).await;
            let after = redis.scripts();
            within(since.elapsed(), 500 * MS, "looking at them")?;
            assert_eq!(after, before, "calls while all wait");
            for waiter in waiters {
                waiter.await.unwrap().unwrap();
            }
            let calls = redis.scripts() - before;
            in_time(calls == 1, || format!("the room was taken in {calls} calls"))
        })
    });
}

#[test]
fn a_flood_behind_waiters_costs_redis_nothing() {
    let redis = Redis::start();
    block_on(async {
        let limiter = patient(&redis.url());
        limiter.warm_up().await.unwrap();
        let limit = limit("l", "2/2s");
        limiter.try_acquire(&[ask(&limit, 2)]).await.unwrap();
        let waiter = begin(&limiter, vec![ask(&limit, 1)], None).await;
        let flood = async |times: u32| {
            for _ in 0..times {
                let mut tasks = JoinSet::new();
                for _ in 0..20 {
                    let (limiter, asks) = (limiter.clone(), [ask(&limit, 1)]);
                    tasks.spawn(async move { limiter.acquire(&asks, after(100)).await.unwrap_err() });
                }
                tasks.join_all().await;
            }
        };
        flood(1).await;
        let before = redis.scripts();
        flood(20).await;
        assert_eq!(redis.scripts(), before);
        waiter.abort();
    });
}

#[test]
fn who_leaves_frees_the_place_and_those_behind_are_served_earlier() {
    on_both_stores(async |limiter| {
        let limit = limit("l", "2/400ms");
        for leaver in [0, 1] {
            let since = Instant::now();
            limiter.acquire(&[ask(&limit, 2)], None).await.unwrap();
            let begun = since.elapsed();
            let mut waiters = Vec::new();
            for cost in [2, 2, 2] {
                waiters.push(begin(&limiter, vec![ask(&limit, cost)], None).await);
            }
            waiters.remove(leaver).abort();
            for (turn, waiter) in waiters.into_iter().enumerate() {
                waiter.await.unwrap().unwrap();
                let (served, due) = (since.elapsed(), (turn as u32 + 1) * 400 * MS);
                assert!(served >= due, "{turn} was served after {served:?}");
                // (The first of the second round had to wait for the last of the first.)
                within(served - begun, due + 300 * MS, &format!("serving {turn}"))?;
            }
        }
        Ok(())
    });
}

#[test]
fn a_place_is_given_up_wherever_its_holder_stands() {
    on_both_stores(async |limiter| {
        let limit = limit("l", "1/60ms");
        // At some time between its first step and its admission, each of them gives up.
        let mut times = fastrand::Rng::with_seed(7);
        let mut waiters = JoinSet::new();
        for _ in 0..60 {
            let (limiter, limit) = (limiter.clone(), limit.clone());
            let patience = Duration::from_micros(times.u64(0..150_000));
            let start = Duration::from_micros(times.u64(0..300_000));
            waiters.spawn(async move {
                sleep(start).await;
                drop(timeout(patience, limiter.acquire(&[ask(&limit, 1)], None)).await);
            });
        }
        waiters.join_all().await;
        // Whoever was asked for last may have been charged.
        let since = Instant::now();
        limiter.acquire(&[ask(&limit, 1)], after(10_000)).await.unwrap();
        within(since.elapsed(), 500 * MS, "serving the last")?;
        Ok(())
    });
}

#[test]
fn several_limits_are_waited_for_where_the_delay_is_greatest_and_asked_again() {
    on_both_stores(async |limiter| {
        let (short, long) = (limit("short", "1/200ms"), limit("long", "1/400ms"));
        let both = vec![ask(&short, 1), ask(&long, 1)];
        let since = Instant::now();
        limiter.try_acquire(&both).await.unwrap();
        let waiter = begin(&limiter, both, after(3_000)).await;
        // It doesn't hold up the other one.
        let other = limiter.acquire(&[ask(&short, 1)], after(380)).await;
        in_time(other.is_ok(), || format!("the other one was refused: {other:?}"))?;
        assert!(since.elapsed() >= 200 * MS, "{:?}", since.elapsed());
        within(since.elapsed(), 400 * MS, "serving the other one")?;
        // When the greater delay is over, the other bucket refuses, and is waited for in turn.
        sleep((390 * MS).saturating_sub(since.elapsed())).await;
        limiter.acquire(&[ask(&short, 1)], after(10_000)).await.unwrap();
        let taken = since.elapsed();
        let admission = waiter.await.unwrap();
        in_time(admission.is_ok(), || format!("refused in the end: {admission:?}"))?;
        let admission = admission.unwrap();
        assert_eq!(admission.standings().len(), 2);
        assert!(since.elapsed() >= taken.min(400 * MS), "{:?}", since.elapsed());
        Ok(())
    });
}

#[test]
fn other_gateways_may_take_the_room_and_the_waiter_keeps_its_place() {
    judge(PAUSE, || {
        let redis = Redis::start();
        block_on(async {
            let (here, there) = (patient(&redis.url()), patient(&redis.url()));
            here.warm_up().await.unwrap();
            there.warm_up().await.unwrap();
            let limit = limit("l", "2/300ms");
            let since = Instant::now();
            here.try_acquire(&[ask(&limit, 1)]).await.unwrap();
            let first = begin(&here, vec![ask(&limit, 2)], None).await;
            let second = begin(&here, vec![ask(&limit, 1)], None).await;
            // Taken from under the first one.
            sleep((150 * MS).saturating_sub(since.elapsed())).await;
            let taken = there.try_acquire(&[ask(&limit, 1)]).await;
            within(since.elapsed(), 290 * MS, "taking the room")?;
            taken.unwrap();
            first.await.unwrap().unwrap();
            assert!(since.elapsed() >= 450 * MS, "{:?}", since.elapsed());
            let (is_served, at) = (second.is_finished(), since.elapsed());
            within(at, 750 * MS, "serving the first")?;
            assert!(!is_served);
            second.await.unwrap().unwrap();
            assert!(since.elapsed() >= 750 * MS, "{:?}", since.elapsed());
            Ok(())
        })
    });
}

#[test]
fn the_failure_policy_decides_on_those_who_wait() {
    for policy in [OnFailure::Deny, OnFailure::Allow, OnFailure::Local] {
        let mut redis = Redis::start();
        block_on(async {
            let limiter = patient(&redis.url());
            limiter.warm_up().await.unwrap();
            let limit = Arc::new(Limit::new("l", quota("1/2s")).on_failure(policy));
            limiter.try_acquire(&[ask(&limit, 1)]).await.unwrap();
            let waiters = [
                begin(&limiter, vec![ask(&limit, 1)], None).await,
                begin(&limiter, vec![ask(&limit, 1)], None).await,
            ];
            redis.kill();
            for (turn, waiter) in waiters.into_iter().enumerate() {
                let answer = timeout(Duration::from_secs(5), waiter).await.expect("an answer comes").unwrap();
                match policy {
                    OnFailure::Deny => {
                        assert!(
                            matches!(answer, Err(Refusal::StoreUnavailable { .. })),
                            "{turn}: {answer:?}"
                        );
                    }
                    _ => drop(answer.unwrap()),
                }
            }
        });
    }
}

#[test]
fn queues_are_bounded() {
    block_on(async {
        let limiter = patient("memory:");
        let limit = limit("l", "1/h");
        limiter.try_acquire(&[ask(&limit, 1)]).await.unwrap();
        let mut waiters = JoinSet::new();
        let begun = Instant::now();
        for _ in 0..10_050 {
            let (limiter, asks) = (limiter.clone(), [ask(&limit, 1)]);
            waiters.spawn(async move { limiter.acquire(&asks, None).await });
        }
        for _ in 0..50 {
            let refused = waiters.join_next().await.unwrap().unwrap().unwrap_err();
            assert!(told(refused) > Duration::from_secs(3_000));
        }
        assert!(timeout(50 * MS, waiters.join_next()).await.is_err(), "the others wait");
        drop(waiters);
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        let left = async {
            while limiter.waiting() > 0 {
                sleep(MS).await;
            }
        };
        timeout(10_000 * MS, left).await.expect("all have left");
        let refused = timeout(50 * MS, limiter.acquire(&[ask(&limit, 1)], None)).await;
        assert!(refused.is_err(), "there is a place again");
    });
}

#[test]
fn no_waiter_depends_on_the_thread_of_another() {
    let redis = Redis::start();
    for url in ["memory:", &redis.url()] {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let limiter = runtime.block_on(async { patient(url) });
        let limit = limit("l", "1/200ms");
        let (joined, others) = mpsc::channel();
        // The first of the queue is on a thread that ends, with its runtime, while they wait.
        let first = thread::spawn({
            let (limiter, limit) = (limiter.clone(), limit.clone());
            move || {
                block_on(async {
                    limiter.warm_up().await.unwrap();
                    limiter.try_acquire(&[ask(&limit, 1)]).await.unwrap();
                    let waiter = begin(&limiter, vec![ask(&limit, 1)], None).await;
                    joined.send(()).unwrap();
                    sleep(50 * MS).await;
                    drop(waiter);
                });
            }
        });
        others.recv().unwrap();
        runtime.block_on(async {
            let asks = [ask(&limit, 1)];
            let served = timeout(Duration::from_secs(5), limiter.acquire(&asks, None)).await;
            served.expect("it is served").unwrap();
        });
        first.join().unwrap();
    }
}

#[test]
fn what_is_in_flight_is_not_waited_for() {
    on_both_stores(async |limiter| {
        let mut quota = quota("1/10s");
        quota.algorithm = Algorithm::Concurrency;
        let limit = Arc::new(Limit::new("l", quota));
        let _first = limiter.acquire(&[ask(&limit, 1)], None).await.unwrap();
        let asks = [ask(&limit, 1)];
        let refused = timeout(Duration::from_secs(5), limiter.acquire(&asks, None)).await;
        assert!(!limited(refused.expect("it is refused at once").unwrap_err()).is_exact());
        Ok(())
    });
}
