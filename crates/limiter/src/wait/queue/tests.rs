//! Queues against a model that is as simple as it is slow, and what their steps cost.

use std::cell::Cell;

use tokio::time::advance;

use super::*;
use crate::{Admission, Ask, Limit, Refusal, Scope, algorithm::Rate, wait::Patience};

const MS: Duration = Duration::from_millis(1);

fn quota(algorithm: Algorithm, rate: &str) -> Quota {
    Quota::new(algorithm, rate.parse::<Rate>().unwrap())
}

fn awaited(limit: &Arc<Limit>, quota: Quota, cost: u32, until: Option<Instant>) -> Awaited {
    let ask = Ask::new(limit, "caller").cost(cost);
    Awaited { ask, bucket: "b".into(), quota, scope: Scope::Shared, is_shared: false, until }
}

fn limit() -> Arc<Limit> {
    Arc::new(Limit::new("l", quota(Algorithm::SlidingWindow, "1/s")))
}

/// Returns what a store tells in which permits get free one after the other.
fn told(quota: Quota, permits: u32) -> Outcome {
    let delay_us = (permits <= quota.capacity()).then_some(u64::from(permits) * 7_000);
    Outcome { charged: false, remaining: 0, grow_us: 0, delay_us, rate: None }
}

/// The queue of one bucket, and those that wait in it.
struct Line<'w> {
    waits: &'w Waits,
    bucket: Bytes,
    places: Vec<(QueuePlace<'w>, oneshot::Receiver<WaitResult>)>,
}

impl<'w> Line<'w> {
    fn of(waits: &'w Waits) -> Self {
        Self { waits, bucket: "b".into(), places: Vec::new() }
    }

    fn join(&mut self, awaited: &Awaited) -> WaiterId {
        self.join_late(awaited, Duration::ZERO)
    }

    /// Joins so long after it came.
    fn join_late(&mut self, awaited: &Awaited, late: Duration) -> WaiterId {
        let (patience, arrival) = (Patience::Until(awaited.until), Instant::now());
        let request = WaitingRequest {
            asks: Default::default(),
            arrival,
            came: arrival - late,
            patience,
            deadline: None,
        };
        let joined = self.waits.join(&Arc::new(request), awaited, None).expect("there is a place");
        let id = joined.0.id;
        self.places.push(joined);
        id
    }

    fn leave(&mut self, id: WaiterId) {
        self.places.retain(|(place, _)| place.id != id);
    }

    fn look<T>(&self, look: impl FnOnce(&mut Queue) -> T) -> Option<T> {
        self.waits.queues.lock().by_bucket.get_mut(&self.bucket).map(look)
    }

    /// Settles all, and returns the number of times that the terms of a waiter were looked up.
    fn settle(&self) -> usize {
        self.settle_while(|| self.look(|queue| queue.rooms.len() < queue.waiters.len()).unwrap_or(false))
    }

    /// Has the first waiter look as long as it is to, and returns the same number.
    fn let_first_look(&self) -> usize {
        self.settle_while(|| matches!(self.waits.next(&self.places[0].0, Instant::now()), NextStep::Look))
    }

    fn settle_while(&self, goes_on: impl Fn() -> bool) -> usize {
        let renewals = Cell::new(0);
        let renewed = |awaited: &Awaited| {
            renewals.set(renewals.get() + 1);
            awaited.clone()
        };
        while goes_on() {
            let before = renewals.get();
            let wanted = self
                .waits
                .estimate_rooms(&self.bucket, renewed, |awaited, cost| Some(told(awaited.quota, cost)));
            assert!(wanted.is_empty(), "the store has told all");
            assert!(renewals.get() - before <= TOGETHER_MOST + 1, "others need the lock");
        }
        renewals.get()
    }
}

/// A queue whose times are worked out for each waiter by all ahead of it.
#[derive(Default)]
struct Model(Vec<(WaiterId, Awaited, Option<Instant>)>);

impl Model {
    fn find(&self, id: WaiterId) -> usize {
        self.0.iter().position(|(other, ..)| *other == id).unwrap()
    }

    fn forget_from(&mut self, at: usize) {
        self.0.iter_mut().skip(at).for_each(|(.., free_at)| *free_at = None);
    }

    fn settle(&mut self) {
        let (mut at, now) = (0, Instant::now());
        while at < self.0.len() {
            if self.0[at].2.is_none() {
                let free_at = self.free_at(at, now);
                let until = self.0[at].1.until;
                if free_at.is_none_or(|free_at| until.is_some_and(|until| free_at > until.max(now))) {
                    self.0.remove(at);
                    self.forget_from(at);
                    continue;
                }
                self.0[at].2 = free_at;
            }
            at += 1;
        }
    }

    /// Returns when there is room for one behind those whose time is known. `None` means never.
    fn free_at(&self, at: usize, now: Instant) -> Option<Instant> {
        let (ahead, Awaited { quota, .. }) = (&self.0[..at], &self.0[at].1);
        let permits = ahead.iter().map(|(_, ahead, _)| ahead.cost()).sum::<u64>() + self.0[at].1.needs();
        let capacity = u64::from(quota.capacity());
        let own = if permits <= capacity {
            now + Duration::from_micros(told(*quota, permits as u32).delay_us.unwrap())
        } else {
            let mut taken = 0;
            let last = ahead.iter().find(|(_, ahead, _)| {
                taken += ahead.cost();
                taken >= permits - capacity
            });
            last?.2.unwrap() + Duration::from_micros(back_in_us(*quota, permits.abs_diff(taken)))
        };
        Some(ahead.last().map_or(own, |(.., others_at)| own.max(others_at.unwrap())))
    }
}

#[tokio::test(start_paused = true)]
async fn the_times_of_a_queue_are_those_of_a_model() {
    let quotas = [
        quota(Algorithm::SlidingWindow, "9/300ms"),
        quota(Algorithm::SlidingWindow, "20/1s"),
        quota(Algorithm::Gcra { burst: Some(6) }, "30/1s"),
    ];
    let (limit, mut random) = (limit(), fastrand::Rng::with_seed(11));
    let (mut settled, mut refused) = (0, 0);
    for _ in 0..150 {
        let waits = Waits::default();
        let (mut line, mut model) = (Line::of(&waits), Model::default());
        for _ in 0..120 {
            let now = Instant::now();
            let any = model.0.get(random.usize(0..model.0.len().max(1))).map(|(id, ..)| *id);
            match (random.u32(0..12), any) {
                (0, Some(id)) => {
                    let at = model.find(id);
                    line.leave(id);
                    model.0.remove(at);
                    model.forget_from(at);
                }
                (1, Some(_)) => {
                    let (id, ..) = model.0.remove(0);
                    waits.answer(&line.bucket, id, WaitResult::Taken(Ok(Admission::default())));
                }
                (2, Some(id)) => {
                    waits.lost(&line.bucket);
                    model.forget_from(0);
                    let (at, free_at) = (model.find(id), now + 40 * MS);
                    let until = model.0[at].1.until;
                    waits.keep(&line.bucket, id, until, free_at);
                    model.0[at].2 = Some(free_at).filter(|_| at == 0);
                }
                (3, _) => {
                    waits.forget(None);
                    model.forget_from(0);
                }
                (4, _) => advance(random.u32(1..100) * MS).await,
                (5 | 6, _) => {
                    line.settle();
                    let before = model.0.len();
                    model.settle();
                    (settled, refused) = (settled + model.0.len(), refused + before - model.0.len());
                }
                _ => {
                    let cost = [0, 1, 1, 2, 5, 9, 12][random.usize(0..7)];
                    let until = random.bool().then(|| now + random.u32(50..3_000) * MS);
                    let awaited = awaited(&limit, quotas[random.usize(0..3)], cost, until);
                    let late = [0, 0, 0, 70][random.usize(0..4)] * MS;
                    let id = line.join_late(&awaited, late);
                    let at = model.0.iter().filter(|(other, ..)| other.came <= id.came).count();
                    model.0.insert(at, (id, awaited, None));
                    model.forget_from(at);
                }
            }
            let found = line.look(|queue| {
                let times = queue.rooms.iter().map(|room| Some(room.free_at)).chain(std::iter::repeat(None));
                queue.waiters.iter().map(|waiter| waiter.id).zip(times).collect::<Vec<_>>()
            });
            let expected: Vec<_> = model.0.iter().map(|(id, _, free_at)| (*id, *free_at)).collect();
            assert_eq!(found.unwrap_or_default(), expected);
        }
    }
    assert!(settled > 5_000 && refused > 500, "{settled} settled, {refused} refused");
}

#[test]
fn those_who_leave_have_those_behind_settled_once_and_a_few_at_a_time() {
    const WAITING: usize = 2_000;
    let (waits, limit) = (Waits::default(), limit());
    let mut line = Line::of(&waits);
    let awaited = awaited(&limit, limit.quota(), 1, None);
    let ids: Vec<WaiterId> = (0..WAITING).map(|_| line.join(&awaited)).collect();
    line.settle();
    for left in [1_900, 1_500, 1_700, 1_600] {
        line.leave(ids[left]);
    }
    assert_eq!(line.look(|queue| queue.rooms.len()), Some(1_500));
    // And the first one for each time that the lock was taken.
    assert_eq!(line.settle(), 496 + 2);
    // A newcomer has nobody looked at but itself and the first one.
    line.join(&awaited);
    assert_eq!(line.settle(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_first_ones_who_leave_in_turn_cost_little_each() {
    const LEAVE: usize = 2_000;
    let (waits, limit) = (Waits::default(), limit());
    let mut line = Line::of(&waits);
    let awaited = awaited(&limit, limit.quota(), 1, None);
    let ids: Vec<WaiterId> = (0..2 * LEAVE).map(|_| line.join(&awaited)).collect();
    let mut looked = line.let_first_look();
    for id in &ids[..LEAVE] {
        line.leave(*id);
        looked += line.let_first_look();
    }
    assert!(looked <= ESTIMATES_MOST + ids.len() + 3 * LEAVE, "{looked} were looked at for {LEAVE} who left");
    advance(5 * MS).await;
    line.let_first_look();
    assert!(line.look(|queue| queue.rooms.len()) >= Some(100), "the others are looked at later");
}

#[tokio::test(start_paused = true)]
async fn who_can_wait_no_longer_is_refused_even_if_no_time_of_room_may_be_worked_out() {
    let (waits, limit, now) = (Waits::default(), limit(), Instant::now());
    let mut line = Line::of(&waits);
    for until in [None, None, Some(now + 20 * MS)] {
        line.join(&awaited(&limit, quota(Algorithm::SlidingWindow, "1/h"), 1, until));
    }
    advance(20 * MS).await;
    waits.queues.lock().estimates = Estimates { left: 0, refilled: Instant::now() };
    let (place, answer) = line.places.last_mut().unwrap();
    assert!(matches!(waits.next(place, Instant::now()), NextStep::Look), "the first one's isn't known");
    let hour = |awaited: &Awaited, permits| {
        Some(Outcome { delay_us: Some(3_600_000_000), ..told(awaited.quota, permits) })
    };
    waits.estimate_rooms(&line.bucket, Awaited::clone, hour);
    assert!(matches!(waits.next(place, Instant::now()), NextStep::Rest(None)));
    assert!(matches!(answer.try_recv(), Ok(WaitResult::Taken(Err(Refusal::Limited(_))))));
    assert_eq!(waits.count(), 2);
}

/// Judged by the ratio of two times, each the shortest of some, and measured again if it is too great: a busy machine interrupts all of the longer
/// ones. In proportion to the square of the length, it would be 361.
#[test]
fn to_settle_a_queue_takes_a_time_in_proportion_to_its_length() {
    let took = |waiting: usize| {
        let (waits, limit) = (Waits::default(), limit());
        let mut line = Line::of(&waits);
        let awaited = awaited(&limit, limit.quota(), 1, None);
        for _ in 0..waiting {
            line.join(&awaited);
        }
        let times = (0..30).map(|_| {
            waits.forget(None);
            waits.queues.lock().estimates = Estimates::default();
            let since = std::time::Instant::now();
            line.settle();
            since.elapsed()
        });
        times.min().unwrap()
    };
    let ratio = || took(9_500).as_secs_f64() / took(500).as_secs_f64();
    let mut ratios = std::iter::repeat_with(ratio).take(20);
    assert!(ratios.any(|ratio| ratio < 80.0), "19 times the waiters take more than 80 times as long");
}

#[test]
fn the_store_is_asked_once_for_all_who_need_the_same() {
    let (waits, limit) = (Waits::default(), limit());
    let mut line = Line::of(&waits);
    let (one, two) = (limit.quota(), quota(Algorithm::SlidingWindow, "2/s"));
    for at in 0..300 {
        line.join(&awaited(&limit, if at % 2 == 0 { one } else { two }, 0, None));
    }
    let wanted = waits.estimate_rooms(&line.bucket, Awaited::clone, |_, _| None);
    let wanted: Vec<_> = wanted.into_iter().map(|(awaited, permits)| (awaited.quota, permits)).collect();
    assert_eq!(wanted, [(one, 1), (two, 1)]);
}

#[tokio::test(start_paused = true)]
async fn who_is_asked_for_is_not_refused_meanwhile() {
    let (waits, limit, now) = (Waits::default(), limit(), Instant::now());
    let mut line = Line::of(&waits);
    line.join(&awaited(&limit, limit.quota(), 1, Some(now + 20 * MS)));
    line.settle();
    advance(10 * MS).await;
    let asks = waits.next(&line.places[0].0, Instant::now());
    assert!(matches!(asks, NextStep::Ask(asked) if asked.len() == 1));
    // Of two that were asked for, the other one was refused, and a look ends that began before.
    waits.lost(&line.bucket);
    let hour = Outcome { delay_us: Some(3_600_000_000), ..told(limit.quota(), 1) };
    waits.estimate_rooms(&line.bucket, Awaited::clone, |_, _| Some(hour));
    let (place, answer) = &mut line.places[0];
    assert!(answer.try_recv().is_err(), "it is still asked for");
    waits.answer(&place.bucket, place.id, WaitResult::Taken(Ok(Admission::default())));
    waits.end_call(&place.bucket);
    assert!(matches!(answer.try_recv(), Ok(WaitResult::Taken(Ok(_)))));
}
